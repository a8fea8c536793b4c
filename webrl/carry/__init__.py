"""A run folder as one small file, and back: `scripts/carry_run.py`.

Merged weights stay behind. They are made again from the adapters (`training/export.py`), phase by phase from the model
that the run started from, and must come out as the very files that were there.
"""
