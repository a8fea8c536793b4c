"""Other programs' files: VAB-WebArena-Lite's trace folders and task files, the released WebRL experience files."""
