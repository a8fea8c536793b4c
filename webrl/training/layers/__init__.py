"""Layers that compute a packed row: attention, norms, kernels and the output head."""
