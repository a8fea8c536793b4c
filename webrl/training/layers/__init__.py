"""How a model computes a packed row: attention, norms, kernels and the output head."""
