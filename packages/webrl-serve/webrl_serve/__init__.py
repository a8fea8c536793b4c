"""Serves webrl's browser environment (OpenEnv, gymnasium, Ray) and its checkpoints (OpenAI API)."""
