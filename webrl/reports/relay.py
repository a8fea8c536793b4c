"""Carries training metrics from the run folder to the trackers while a run goes on.

Trainers, here or in other processes, append to `phase_NN/metrics.jsonl`; that file is the record, trackers are a view.
"""

from __future__ import annotations

import json
import logging
import threading
from pathlib import Path
from typing import Any

from webrl.reports.trackers import Metric, Trackers

logger = logging.getLogger(__name__)
_INTERVAL_S = 5.0


class Relay:
    """Context manager: new lines of `[phase_NN/]metrics.jsonl` go to the trackers as `phase_NN/<name>/<metric>`.

    Lines that were there on entry belong to an earlier call and are left out.
    """

    def __init__(self, run_dir: Path, trackers: Trackers) -> None:
        self._run_dir, self._trackers = run_dir, trackers
        self._offsets: dict[Path, int] = {}
        self._stop = threading.Event()
        self._thread = threading.Thread(target=self._run, name="metrics-relay", daemon=True)

    def __enter__(self) -> Relay:
        self._offsets = {path: path.stat().st_size for path in self._files()}
        self._thread.start()
        return self

    def __exit__(self, *exc: object) -> None:
        self._stop.set()
        self._thread.join()
        self._forward()

    def _run(self) -> None:
        while not self._stop.wait(_INTERVAL_S):
            self._forward()

    def _files(self) -> list[Path]:
        return sorted([*self._run_dir.glob("phase_*/metrics.jsonl"), *self._run_dir.glob("metrics.jsonl")])

    def _forward(self) -> None:
        for path in self._files():
            try:
                # A trainer that resumes from a checkpoint rewrites its file shorter.
                offset = min(self._offsets.get(path, 0), path.stat().st_size)
                with path.open("rb") as file:
                    file.seek(offset)
                    whole, newline, _ = file.read().rpartition(b"\n")
            except OSError as error:
                logger.warning("cannot read %s for the trackers: %s", path, error)
                continue
            self._offsets[path] = offset + len(whole) + len(newline)
            for line in whole.splitlines():
                self._send(path, line)

    def _send(self, path: Path, line: bytes) -> None:
        try:
            data: dict[str, Any] = json.loads(line)
            group, step = f"{path.parent.name}/{data['name']}", int(data["step"])
        except (ValueError, KeyError, TypeError):
            logger.warning("%s: not a metric line, left out of the trackers: %r", path, line[:80])
            return
        metrics: dict[str, Metric] = {}
        for name, value in data.items():
            numbers = value if isinstance(value, list) else [value]
            is_metric = all(isinstance(item, int | float) and not isinstance(item, bool) for item in numbers)
            if name not in ("name", "step") and is_metric:
                metrics[name.removeprefix(f"{data['name']}/")] = value
        self._trackers.log(group, metrics, step)
