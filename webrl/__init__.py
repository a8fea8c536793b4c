"""WebRL: self-evolving online curriculum reinforcement learning for LLM web agents (arXiv 2411.02337)."""

__version__ = "0.1.0"
