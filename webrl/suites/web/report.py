"""An evaluation on one's own site: success by checks, and apart from it what the outcome model says of the rest.

API: `summarize(trajectories, labels, confidence)`.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import replace
from typing import Any

from webrl.evaluate import is_decided, success_rate, summarize_evaluation
from webrl.suites.web.tasks import has_checks
from webrl.types import Label, Trajectory


def summarize(trajectories: Sequence[Trajectory], labels: Mapping[str, Label], confidence: float) -> dict[str, Any]:
    """The counts of an evaluation.

    The headline is by checks; where no instruction has one it is the outcome model's (`web.by` says which). Finished
    episodes whose checks could not be made, or that nobody judged, are in no rate and counted as `undecided`.
    """
    checked = [t for t in trajectories if has_checks(t.task)]
    judged = [_judged(t, labels.get(t.trajectory_id)) for t in trajectories if not has_checks(t.task)]
    decided = {"checks": [t for t in checked if is_decided(t)], "judge": [t for t in judged if is_decided(t)]}
    by = "checks" if checked or not judged else "judge"
    rates = {name: success_rate(part, confidence).to_json() for name, part in decided.items() if part}
    undecided = len(trajectories) - sum(map(len, decided.values()))
    return summarize_evaluation(decided[by], confidence) | {"web": {"by": by, "undecided": undecided, **rates}}


def _judged(trajectory: Trajectory, label: Label | None) -> Trajectory:
    return replace(trajectory, env_reward=None if label is None else label.reward)
