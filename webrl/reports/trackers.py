"""Metrics to TensorBoard files, Weights & Biases and trackio (`trackers=…`).

While they are open, what this process's trainings append to `phase_NN/metrics.jsonl` goes to them as well; that file
is the record, trackers are a view.

A tracker that cannot be set up stops the run with one message; one that fails later warns once and is left out.
Only rank 0 opens trackers.
"""

from __future__ import annotations

import hashlib
import importlib
import logging
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any

from webrl.config import RunConfig
from webrl.config.extras import EXTRAS, require
from webrl.config.redaction import redact_all
from webrl.errors import ExtraMissing, UsageError
from webrl.training.metrics import listeners

logger = logging.getLogger(__name__)


class Trackers:
    """All trackers of a run; a context manager. A failing call only warns; the others continue."""

    def __init__(self, trackers: Mapping[str, _TensorBoard | _Hosted]) -> None:
        self._trackers = dict(trackers)

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
                logger.warning("tracker %s failed to %s and is left out from now on: %r", name, what, error)
                del self._trackers[name]

    def __enter__(self) -> Trackers:
        listeners.append(self._forward)
        return self

    def __exit__(self, *exc: object) -> None:
        listeners.remove(self._forward)
        self.close()

    def _forward(self, path: Path, name: str, step: int, values: Mapping[str, Any]) -> None:
        """Log a line of a phase's metrics as `phase_NN/<name>/<metric>`; of lists (histograms) nothing."""
        if path.parent.name.startswith("phase_"):
            is_number = {key: isinstance(v, int | float) and not isinstance(v, bool) for key, v in values.items()}
            self.log(f"{path.parent.name}/{name}", {key: v for key, v in values.items() if is_number[key]}, step)


def open_trackers(config: RunConfig) -> Trackers:
    """Open the configured trackers for a run; a resumed run continues in the same place.

    Raises:
        UsageError: one is not installed, not logged in, or cannot write (tracker, reason and fix are named).
    """
    opened: dict[str, _TensorBoard | _Hosted] = {}
    for name in config.trackers:
        try:
            if name in EXTRAS:
                require(name, f"trackers=[{name}]")
            opened[name] = _TensorBoard(config) if name == "tensorboard" else _Hosted(name, config)
        except ExtraMissing:
            Trackers(opened).close()
            raise
        except Exception as error:
            Trackers(opened).close()
            raise UsageError(f"tracker {name!r} cannot be set up: {error}; or leave it out of `trackers`") from error
    return Trackers(opened)


class _TensorBoard:
    def __init__(self, config: RunConfig) -> None:
        from torch.utils.tensorboard.writer import SummaryWriter

        self._writer: Any = SummaryWriter(log_dir=str(config.run_dir / "tensorboard"))

    def log(self, group: str, metrics: Mapping[str, float], step: int) -> None:
        for name, value in metrics.items():
            self._writer.add_scalar(f"{group}/{name}", value, step)

    def close(self) -> None:
        self._writer.close()


class _Hosted:
    """Weights & Biases, and trackio, whose interface is the same."""

    def __init__(self, module: str, config: RunConfig) -> None:
        options: dict[str, str] = {}
        if module == "wandb":
            config.run_dir.mkdir(parents=True, exist_ok=True)
            run_id = hashlib.sha256(str(config.run_dir.resolve()).encode()).hexdigest()[:16]
            options = {"dir": str(config.run_dir), "id": run_id}
        settings = redact_all(config.model_dump(mode="json"))
        tracker: Any = importlib.import_module(module)
        self._run: Any = tracker.init(project="webrl", name=config.name, config=settings, resume="allow", **options)
        self._groups: set[str] = set()

    def log(self, group: str, metrics: Mapping[str, float], step: int) -> None:
        if group not in self._groups and hasattr(self._run, "define_metric"):
            self._run.define_metric(f"{group}/*", step_metric=f"{group}/step")
        self._groups.add(group)
        self._run.log({f"{group}/step": step} | {f"{group}/{name}": value for name, value in metrics.items()})

    def close(self) -> None:
        self._run.finish()
