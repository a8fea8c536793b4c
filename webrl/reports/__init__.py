"""Shows a run: tables in the terminal, status, trackers."""
