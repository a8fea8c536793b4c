"""Metrics, charts and example episodes to TensorBoard files, Weights & Biases and trackio (`trackers=…`).

A tracker that cannot be set up stops the run with one message; one that fails later warns once and is left out.
Only rank 0 opens trackers.
"""

from __future__ import annotations

import hashlib
import importlib
import logging
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, Protocol

from webrl.config import RunConfig
from webrl.config.extras import EXTRAS, require
from webrl.config.redaction import redact_all
from webrl.errors import ExtraMissing, UsageError
from webrl.reports.markdown import escaped, table

if TYPE_CHECKING:
    import numpy as np
    from numpy.typing import NDArray

logger = logging.getLogger(__name__)
Metric = float | Sequence[float]
"""A scalar, or the values of a histogram."""


@dataclass(frozen=True)
class Shown:
    """What there is to see after a phase; secrets are masked."""

    pictures: dict[str, NDArray[np.uint8]]
    """Charts as [height, width, 3] by their name, such as `success-by-phase`."""
    head: tuple[str, ...]
    """Names of the columns of `examples`."""
    examples: Sequence[tuple[object, ...]]
    """Episodes of the phase, each with what it was, how it ended and where it lies."""


class Showcase(Protocol):
    """Draws what there is to see (the hook `showcase`)."""

    def phase(self, number: int) -> Shown:
        """The charts of all phases up to this one, and examples of this one."""


class Tracker(Protocol):
    """One place that metrics go to."""

    def log(self, group: str, metrics: Mapping[str, Metric], step: int) -> None:
        """Write `group/name` at `step`; each group has its own step axis."""

    def show(self, shown: Shown, step: int) -> None:
        """Write charts as `report/<name>` and episodes as `report/examples`, at the phase `step`."""

    def close(self) -> None:
        """Flush and end."""


class Trackers:
    """All trackers of a run; a context manager. A failing call warns and the rest goes on."""

    def __init__(self, trackers: Mapping[str, Tracker]) -> None:
        self._trackers = dict(trackers)

    def log(self, group: str, metrics: Mapping[str, Metric], step: int) -> None:
        """Write `group/name` (say `actor/loss`) at the group's own `step` everywhere."""
        self._each("log", lambda tracker: tracker.log(group, metrics, step))

    def show(self, showcase: Showcase | None, phase: int) -> None:
        """Show what there is to see after a phase everywhere; nothing without a showcase."""
        if not self._trackers or showcase is None:
            return
        try:
            shown = showcase.phase(phase)
        # Drawing is worth no training run, whatever a damaged file or a library makes of it.
        except Exception as error:
            logger.warning("phase %d: no charts and examples for the trackers: %r", phase, error)
            return
        self._each("show", lambda tracker: tracker.show(shown, phase))

    def close(self) -> None:
        """Flush and end all of them."""
        self._each("close", lambda tracker: tracker.close())
        self._trackers.clear()

    def _each(self, what: str, call: Callable[[Tracker], None]) -> None:
        for name, tracker in list(self._trackers.items()):
            try:
                call(tracker)
            # A third party's network and disk: anything may come, and none of it is worth a training run.
            except Exception as error:
                logger.warning("tracker %s failed to %s and is left out from now on: %r", name, what, error)
                del self._trackers[name]

    def __enter__(self) -> Trackers:
        return self

    def __exit__(self, *exc: object) -> None:
        self.close()


def open_trackers(config: RunConfig) -> Trackers:
    """Open the configured trackers for a run; a continued run goes on in the same place.

    Raises:
        UsageError: one is not installed, not logged in, or cannot write (tracker, reason and fix are named).
    """
    opened: dict[str, Tracker] = {}
    for name in config.trackers:
        try:
            if name in EXTRAS:
                require(name, f"trackers=[{name}]")
            opened[name] = _KINDS[name](config)
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

    def log(self, group: str, metrics: Mapping[str, Metric], step: int) -> None:
        import numpy as np

        for name, value in metrics.items():
            if not isinstance(value, Sequence):
                self._writer.add_scalar(f"{group}/{name}", value, step)
            elif value:
                self._writer.add_histogram(f"{group}/{name}", np.asarray(value), step)

    def show(self, shown: Shown, step: int) -> None:
        for name, pixels in shown.pictures.items():
            self._writer.add_image(f"report/{name}", pixels, step, dataformats="HWC")
        self._writer.add_text("report/examples", table(shown.head, shown.examples), step)

    def close(self) -> None:
        self._writer.close()


class _Hosted:
    """Weights & Biases, and trackio, whose interface is the same."""

    def __init__(self, module: str, config: RunConfig, **options: Any) -> None:
        self._module: Any = importlib.import_module(module)
        settings = redact_all(config.model_dump(mode="json"))
        self._run: Any = self._module.init(
            project="webrl", name=config.name, config=settings, resume="allow", **options
        )
        self._groups: set[str] = set()

    def log(self, group: str, metrics: Mapping[str, Metric], step: int) -> None:
        data: dict[str, Any] = {}
        for name, value in metrics.items():
            if not isinstance(value, Sequence):
                data[f"{group}/{name}"] = value
            elif value and hasattr(self._module, "Histogram"):
                data[f"{group}/{name}"] = self._module.Histogram(list(value))
        self._log(group, data, step)

    def show(self, shown: Shown, step: int) -> None:
        data = {f"report/{name}": self._module.Image(pixels) for name, pixels in shown.pictures.items()}
        rows = [list(map(self._as_cell, row)) for row in shown.examples]
        self._log("report", data | {"report/examples": self._module.Table(columns=list(shown.head), data=rows)}, step)

    def close(self) -> None:
        self._run.finish()

    def _log(self, group: str, data: dict[str, Any], step: int) -> None:
        if group not in self._groups and hasattr(self._run, "define_metric"):
            self._run.define_metric(f"{group}/*", step_metric=f"{group}/step")
        self._groups.add(group)
        self._run.log({f"{group}/step": step} | data)

    def _as_cell(self, value: object) -> str:
        """Text; trackio's tables are Markdown."""
        return str(value) if self._module.__name__ == "wandb" else escaped(value)


def _wandb(config: RunConfig) -> Tracker:
    config.run_dir.mkdir(parents=True, exist_ok=True)
    run_id = hashlib.sha256(str(config.run_dir.resolve()).encode()).hexdigest()[:16]
    return _Hosted("wandb", config, dir=str(config.run_dir), id=run_id)


_KINDS: dict[str, Callable[[RunConfig], Tracker]] = {
    "tensorboard": _TensorBoard,
    "wandb": _wandb,
    "trackio": lambda config: _Hosted("trackio", config),
}
