"""`webrl view`: a run's trajectories in the browser, on this machine only unless told otherwise.

`files.py` (what a run folder holds, read as it grows) -> `index.py` (where each trajectory lies, and what is filtered
on) -> `query.py` (a selection of them) -> `details.py`, `scores.py`, `tokens.py`, `text.py` (one of them, step by step)
-> `app.py` (pages), served to those who may see them by `server.py`. `hand.py` writes the labels set by hand.
"""
