"""Critic and actor training (paper §3.2-3.4), the same code on a laptop, one GPU, or many nodes.

Scores and values are computed by `scoring.py`, models trained by `update.py`. Folders hold config, safetensors
(float32) and tokenizer. Before starting a Python process that trains on a CPU, export
`webrl.runs.machine.cpu_environment()`.
"""
