"""Filtered behaviour cloning (paper §4.1, baseline): imitate the best trajectories only.

A trajectory's score is its discounted return 0.9^{T−1} r(s_T): among successes the shorter ones rank higher. Kept are
trajectories whose score is positive and at least the `percentile`-th (70th, paper) of all; their steps are trained
with L = −(1/n) Σ_i log π(a_i | s, a_<i). Left out: the paper does not say how ties of a 0/1 reward are broken; the
discount is ours (the released code's).
"""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np

from webrl.config import ActorConfig
from webrl.training.objectives import sft
from webrl.training.objectives.interface import Objective, outcome_of
from webrl.types import StepRecord

DISCOUNT = 0.9


def advantages(records: Sequence[StepRecord], config: ActorConfig) -> list[float]:
    """1 for steps of kept trajectories, 0 for the rest."""
    scores = {r.trajectory_id: outcome_of(r) * DISCOUNT ** (r.num_steps - 1) for r in records}
    threshold = float(np.percentile(list(scores.values()), config.percentile))
    return [float(0 < scores[r.trajectory_id] >= threshold) for r in records]


OBJECTIVE = Objective(advantages=advantages, loss=sft.loss, needs_reference=False, is_relative=True)
