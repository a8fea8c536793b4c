"""Labels trajectories with the environment's own reward (`label.judge=environment`).

For ablations only: such a run is not possible on tasks without an evaluator, so results must not be compared with those
of an outcome model without saying so.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Iterable
from pathlib import Path

from webrl.evaluate import is_success
from webrl.reward.labels import keep_label, read_labels
from webrl.runs.store import Appender
from webrl.types import Label, Trajectory

JUDGE = "environment"
"""Its name in labels."""


def label_by_environment(
    trajectories: Iterable[Trajectory], out: Path, on_label: Callable[[Label], None] | None = None
) -> Counter[str]:
    """Write a label for every finished trajectory to `out`; one without a reward stays unjudged, never failed.

    Resumes; counts as `reward.orm.label_trajectories` does.
    """
    known = set(read_labels(out)) if out.exists() else set()
    counts: Counter[str] = Counter()
    with Appender(out) as file:
        for trajectory in trajectories:
            if not trajectory.status.finished:
                counts["unfinished"] += 1
                continue
            if trajectory.trajectory_id in known:
                counts["skipped"] += 1
                continue
            keep_label(_label(trajectory), file, counts, on_label)
    return counts


def _label(trajectory: Trajectory) -> Label:
    if trajectory.env_reward is None:
        why = trajectory.env_error or "the environment has no reward for this task"
        return Label(trajectory.trajectory_id, None, None, JUDGE, why)
    won = is_success(trajectory)
    return Label(trajectory.trajectory_id, float(won), int(won), JUDGE)
