"""Two phases' numbers to a tracker: `python tracker_scripts.py KIND RUN`, in a process of its own."""

import sys
from pathlib import Path

from webrl.config import load_config
from webrl.reports.trackers import open_trackers

kind, run = sys.argv[1], Path(sys.argv[2])
config = load_config(run / "config.yaml").model_copy(update={"trackers": (kind,)})
with open_trackers(config) as trackers:
    for phase in (0, 1):
        trackers.log("phase", {"eval.rate": 0.5 + phase / 4}, phase)
        trackers.log(f"phase_{phase:02d}/actor", {"loss": 1.5, "advantages": [0.0, 1.0]}, 8)
