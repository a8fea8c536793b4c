"""What a run shows of itself: tables, plots, trackers."""
