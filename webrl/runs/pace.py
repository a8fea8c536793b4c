"""How long stages take, measured on the phases that have finished: what is left of a run."""

from __future__ import annotations

import contextlib
from collections.abc import Iterable, Sequence

from webrl.errors import DataError, StageError
from webrl.runs.folder import RunFolder


def usual_seconds(run: RunFolder, stage: str, phase: int) -> tuple[int, float] | None:
    """Return (phase, seconds) of this stage in the newest earlier phase like this one; None if there is none.

    Phase 0 is like no other: it writes no tasks from failures and trains no actor.
    """
    for earlier in range(phase - 1, 0, -1):
        if run.phase(earlier).is_done(stage):
            with contextlib.suppress(DataError, StageError, TypeError, ValueError):  # damaged: who reads it names it
                return earlier, float(run.phase(earlier).read_stage(stage)["seconds"])
    return None


def seconds_left(
    run: RunFolder, stages: Sequence[str], phase: int, num_phases: int
) -> tuple[float | None, float | None]:
    """What is left of a phase and of the run, stages that are under way counted whole; None where nothing like it ran.

    Args:
        stages: the names of a phase's stages.
    """

    def total(names: Iterable[str], number: int) -> float | None:
        known = [usual_seconds(run, name, number) for name in names]
        return None if None in known else sum((usual[1] for usual in known if usual), 0.0)

    of_phase = total([stage for stage in stages if not run.phase(phase).is_done(stage)], phase)
    if phase >= num_phases:
        return of_phase, of_phase
    later = total(stages, phase + 1)
    if of_phase is None or later is None:
        return of_phase, None
    return of_phase, of_phase + (num_phases - phase) * later
