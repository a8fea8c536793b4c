"""What a run shows of itself: tables in the terminal, the report page, trackers."""
