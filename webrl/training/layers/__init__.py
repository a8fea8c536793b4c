"""Layers that compute a packed row: attention and the output head."""
