"""A run on disk: its folder, whole files, JSON lines, locks, provenance, and where time and memory go."""
