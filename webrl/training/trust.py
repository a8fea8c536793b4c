"""Keeps a policy update near the policy that it starts from, π_{k-1}.

A fixed sample of the phase's own steps is scored before the first optimizer step and again after steps 1, 2, 4, 8, …,
after the last one, and wherever a batch's own KL is past the limit. The update ends, and the weights of the last check
that was passed are kept, when

    KL(π_{k-1} ‖ π) > `actor.max_kl`        mean over the sample of e^r − 1 − r, r = log π(a|s) − log π_{k-1}(a|s)
    −mean r > `actor.max_success_drop`      over the sample's steps of successful trajectories

in nats per action. The first is Schulman's k3 estimator (joschu.net/blog/kl-approx.html): the sample's actions were
drawn from π_{k-1}. A loss or a gradient that is not finite ends the update in the same way.

In the demo r of successful actions has a standard deviation of 0.5 to 0.8: the mean of the 40 in two batches is known
to 0.1, which is the limit itself. A check scores two batches, and six more where these reach half of a limit.

An update that leaves the region within its first quarter had too high a learning rate: `train_actor` begins again from
π_{k-1} at a quarter of it, up to `RETRIES` times. An update that ends at less than a quarter of every limit doubles a
rate that was lowered (`next_rate_factor`), as PPO's adaptive KL penalty does (arXiv 1707.06347, section 4).
"""

from __future__ import annotations

import logging
import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

from torch import Tensor

from webrl.config import ActorConfig
from webrl.training.packing import Item
from webrl.types import StepRecord

logger = logging.getLogger(__name__)

RETRIES = 3
RETRY_FACTOR = 0.25
_EARLY = 0.25
"""Share of the steps before which an update that ends is begun again."""
_WELL_INSIDE = 0.25
"""Share of a limit below which a lowered learning rate rises again."""


@dataclass
class TrustRegion:
    """The limits, the sample that they are checked on, and how far the update has come."""

    parts: Sequence[Sequence[Item]]
    """The sample: every check scores the first part, and the second where that reaches half of a limit."""
    is_success: Sequence[bool]
    """[S] whether the trajectory of each of their steps succeeded."""
    max_kl: float
    max_success_drop: float
    num_steps: int = 0
    """Optimizer steps of the whole update."""
    may_retry: bool = False
    kept_steps: int = 0
    """Optimizer steps whose result is kept."""
    stopped: str = ""
    """Why the update ended before its last step; empty if it did not."""
    weights: dict[str, Tensor] = field(default_factory=dict)
    """Trained weights after `kept_steps`, on the main process."""

    def is_due(self, step: int, batch_kl: float) -> bool:
        """Return whether the sample is scored after `step` (1-based)."""
        return step == self.num_steps or step & (step - 1) == 0 or not batch_kl <= self.max_kl

    def measure(self, sums: Mapping[str, float], size: int) -> dict[str, float]:
        """Return the metrics of a check from its sums (`kl`, `drop`) over the sample's first `size` steps."""
        successes = max(sum(self.is_success[:size]), 1)
        return {"trust_kl": sums["kl"] / size, "trust_success_drop": sums["drop"] / successes}

    def is_far_inside(self, metrics: Mapping[str, float]) -> bool:
        """Return whether half of a limit is not reached; False if a metric is NaN."""
        return metrics["trust_kl"] <= self.max_kl / 2 and metrics["trust_success_drop"] <= self.max_success_drop / 2

    def check(self, metrics: Mapping[str, float], step: int) -> None:
        """End the update if a limit is passed."""
        kl, drop = metrics["trust_kl"], metrics["trust_success_drop"]
        if not kl <= self.max_kl:
            self.stopped = f"step {step}: KL {kl:.3g} passed actor.max_kl={self.max_kl:g}"
        elif not drop <= self.max_success_drop:
            limit = f"actor.max_success_drop={self.max_success_drop:g}"
            self.stopped = f"step {step}: successful actions lost {drop:.3g} nats, past {limit}"

    def keep(self, state: dict[str, Tensor], step: int) -> None:
        """Keep a copy of the weights as they are after `step`; `state` may alias the model's."""
        for name, value in state.items():
            if name in self.weights:
                self.weights[name].copy_(value)
            else:
                self.weights[name] = value.clone()
        self.kept_steps = step

    @property
    def retries(self) -> bool:
        """True if the update ended so early that it is begun again at a lower rate."""
        return bool(self.stopped) and self.may_retry and self.kept_steps < _EARLY * self.num_steps


def make_region(samples: Sequence[StepRecord], items: Sequence[Item], config: ActorConfig) -> TrustRegion | None:
    """The region of an update on `samples`, their `items` in the same order; None without limits or own steps.

    The sample is two and six batches of this phase's own steps, each spread evenly over their order.
    """
    if config.max_kl is None and config.max_success_drop is None:
        return None
    own = [i for i, record in enumerate(samples) if record.source == "current"]
    first = _spread(own, 2 * config.batch_size)
    rest = _spread(sorted({*own} - {*first}), 6 * config.batch_size)
    if not first:
        logger.warning("this phase has no steps of its own: actor.max_kl and actor.max_success_drop are not checked")
        return None
    return TrustRegion(
        parts=[[items[i] for i in part] for part in (first, rest) if part],
        is_success=[samples[i].outcome == 1 for i in first + rest],
        max_kl=math.inf if config.max_kl is None else config.max_kl,
        max_success_drop=math.inf if config.max_success_drop is None else config.max_success_drop,
    )


def _spread(indices: Sequence[int], most: int) -> list[int]:
    size = min(len(indices), most)
    return [indices[i * len(indices) // size] for i in range(size)]


def next_rate_factor(counts: Mapping[str, Any], factor: float, config: ActorConfig) -> float:
    """Return the factor on `actor.lr` for the next phase, after an update at `factor` whose counts are given."""
    limits = {"actor_trust_kl": config.max_kl, "actor_trust_success_drop": config.max_success_drop}
    shares = [counts.get(name, math.inf) / limit for name, limit in limits.items() if limit is not None]
    is_well_inside = len(shares) > 0 and max(shares) < _WELL_INSIDE
    return min(1.0, 2 * factor) if is_well_inside and "actor_stopped" not in counts else factor
