"""Serves webrl's browser environment (OpenEnv) and its checkpoints (OpenAI API)."""
