"""Demonstrations: recorded from scripted experts, read from any source, and the supervised start π_0 made from them."""
