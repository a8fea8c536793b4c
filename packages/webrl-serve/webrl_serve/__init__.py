"""Serves webrl's browser environment (OpenEnv, gymnasium) and its checkpoints (OpenAI API)."""
