"""Models behind HTTP: vLLM servers of our own, and any OpenAI-compatible URL."""
