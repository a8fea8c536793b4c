"""A model in this process."""
