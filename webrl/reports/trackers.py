"""Metrics to TensorBoard files, Weights & Biases and trackio (`trackers=…`).

Trainers, here or in other processes, append a run's metrics to `phase_NN/metrics.jsonl`; that file is the record,
trackers are a view.

A tracker that cannot be set up stops the run with one message; one that fails later warns once and is left out.
Only rank 0 opens trackers.
"""

from __future__ import annotations

import hashlib
import importlib
import json
import logging
import threading
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any

from webrl.config import RunConfig
from webrl.config.extras import require
from webrl.config.redaction import map_texts, redact
from webrl.errors import ExtraMissing, UsageError

logger = logging.getLogger(__name__)


class Trackers:
    """All trackers of a run; a failing call only warns, and the others continue.

    A context manager, within which new lines of `[phase_NN/]metrics.jsonl` go to them as `phase_NN/<name>/<metric>`.
    Lines that were there on entry belong to an earlier call and are left out.
    """

    def __init__(self, run_dir: Path, trackers: Mapping[str, _TensorBoard | _Hosted]) -> None:
        self._run_dir, self._trackers = run_dir, dict(trackers)
        self._offsets: dict[Path, int] = {}
        self._stop = threading.Event()
        self._thread = threading.Thread(target=self._relay, name="metrics-relay", daemon=True)

    def log(self, group: str, metrics: Mapping[str, float], step: int) -> None:
        """Write `group/name` (say `actor/loss`) at the group's own `step` everywhere."""
        self._each("log", lambda tracker: tracker.log(group, metrics, step))

    def close(self) -> None:
        """Flush and end all of them."""
        self._each("close", lambda tracker: tracker.close())
        self._trackers.clear()

    def _each(self, what: str, call: Callable[[Any], None]) -> None:
        for name, tracker in list(self._trackers.items()):
            try:
                call(tracker)
            # A third party's network and disk: any error may come, and none must end a training run.
            except Exception as error:
                logger.warning("tracker %s failed to %s and is disabled from now on: %r", name, what, error)
                del self._trackers[name]

    def __enter__(self) -> Trackers:
        try:
            self._offsets = {path: path.stat().st_size for path in self._files()}
            self._thread.start()
        except BaseException:
            self.close()
            raise
        return self

    def __exit__(self, *exc: object) -> None:
        try:
            self._stop.set()
            self._thread.join()
            self._forward()
        finally:  # also where Ctrl-C comes during the last reading
            self.close()

    def _relay(self) -> None:
        while not self._stop.wait(5.0):
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
                try:
                    data: dict[str, Any] = json.loads(line)
                    group, step = f"{path.parent.name}/{data['name']}", int(data["step"])
                except (ValueError, KeyError, TypeError):
                    logger.warning("%s: not a metric line, left out of the trackers: %r", path, line[:80])
                    continue
                metrics = {
                    name.removeprefix(f"{data['name']}/"): value
                    for name, value in data.items()
                    if name != "step" and isinstance(value, int | float) and not isinstance(value, bool)
                }
                self.log(group, metrics, step)


def open_trackers(config: RunConfig) -> Trackers:
    """Open the configured trackers; a resumed run continues in the same place. Raises UsageError: one is not installed,
    not logged in, or cannot write (tracker, reason and fix are named).
    """
    opened: dict[str, _TensorBoard | _Hosted] = {}
    for name in config.trackers:
        try:
            require(name, f"trackers=[{name}]")
            opened[name] = _TensorBoard(config) if name == "tensorboard" else _Hosted(name, config)
        except Exception as error:
            Trackers(config.run_dir, opened).close()
            if isinstance(error, ExtraMissing):
                raise
            raise UsageError(f"tracker {name!r} cannot be set up: {error}; or leave it out of `trackers`") from error
    return Trackers(config.run_dir, opened)


class _TensorBoard:
    def __init__(self, config: RunConfig) -> None:
        from torch.utils.tensorboard.writer import SummaryWriter

        self._writer: Any = SummaryWriter(log_dir=str(config.run_dir / "tensorboard"))
        self.close = self._writer.close

    def log(self, group: str, metrics: Mapping[str, float], step: int) -> None:
        for name, value in metrics.items():
            self._writer.add_scalar(f"{group}/{name}", value, step)


class _Hosted:
    """Weights & Biases, and trackio, whose interface is the same."""

    def __init__(self, module: str, config: RunConfig) -> None:
        options: dict[str, str] = {}
        if module == "wandb":
            config.run_dir.mkdir(parents=True, exist_ok=True)
            run_id = hashlib.sha256(str(config.run_dir.resolve()).encode()).hexdigest()[:16]
            options = {"dir": str(config.run_dir), "id": run_id}
        settings = map_texts(redact, config.model_dump(mode="json"))
        tracker: Any = importlib.import_module(module)
        self._run: Any = tracker.init(project="webrl", name=config.name, config=settings, resume="allow", **options)
        self.close = self._run.finish
        self._groups: set[str] = set()

    def log(self, group: str, metrics: Mapping[str, float], step: int) -> None:
        if group not in self._groups and hasattr(self._run, "define_metric"):
            self._run.define_metric(f"{group}/*", step_metric=f"{group}/step")
        self._groups.add(group)
        self._run.log({f"{group}/step": step} | {f"{group}/{name}": value for name, value in metrics.items()})
