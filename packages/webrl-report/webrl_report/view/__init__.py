"""`webrl view`: a run's trajectories in the browser, on this machine only unless told otherwise.

`index.py` (reads run folders as they grow) -> `query.py` (a selection of trajectories) -> `details.py` (one of them,
step by step) -> `app.py` (pages and labels set by hand, behind the access checks).
"""
