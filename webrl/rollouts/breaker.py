"""A phase, or recording, whose episodes fail for reasons not the agent's stops before hours go into what trains nobody.

`open_breaker(path, num_episodes, config)` gives what `collect` calls after each episode. It stops as soon as the share
is certain to be passed, so that a fault that mends itself early costs nothing. The failed episodes stay in the file,
for whoever looks why; the next call finds the share passed, takes them out, and they are played again.
"""

from __future__ import annotations

import logging
import math
from collections import Counter
from pathlib import Path

from webrl.config import RolloutConfig
from webrl.errors import StageError
from webrl.runs.store import cut_torn_line, read_records, write_records
from webrl.types import Status, Trajectory

logger = logging.getLogger(__name__)

FAILED = frozenset({Status.ENV_ERROR, Status.POLICY_ERROR, Status.TIMEOUT})
"""No whole attempt, and not left behind on purpose (`cut_off`)."""


class Breaker:
    """Counts the failed episodes of one phase."""

    def __init__(self, path: Path, num_episodes: int, allowed: float) -> None:
        self.statuses: Counter[str] = Counter()
        self._path = path
        self._num_episodes = num_episodes
        self._allowed = allowed

    def count(self, trajectory: Trajectory) -> None:
        """Count one episode."""
        if trajectory.status in FAILED:
            self.statuses[trajectory.status.value] += 1

    @property
    def is_passed(self) -> bool:
        """Whether more have failed than may, whatever becomes of the rest."""
        return self.statuses.total() > self._allowed * self._num_episodes

    def __call__(self, trajectory: Trajectory) -> None:
        """Count one episode, and stop the stage if it is one too many.

        Raises:
            StageError: what failed, and how to go on.
        """
        self.count(trajectory)
        if trajectory.status not in FAILED or not self.is_passed:
            return
        kinds = ", ".join(f"{name} {number}" for name, number in sorted(self.statuses.items()))
        raise StageError(
            f"{self._path}: {self.statuses.total()} of {self._num_episodes} episodes failed for reasons that are not "
            f"the agent's ({kinds}), more than rollout.max_failed={self._allowed:g} allows; the last, "
            f"{trajectory.trajectory_id}: {trajectory.message:.300}; mend that, and the same command plays the failed "
            "ones again"
        )


def open_breaker(path: Path, num_episodes: int, config: RolloutConfig) -> Breaker:
    """The breaker of what plays so many episodes to `path`; where it stopped before, the failed episodes go first."""
    waited_for = math.ceil(config.cut_off * num_episodes)
    breaker = Breaker(path, waited_for, config.max_failed)
    if not path.exists():
        return breaker
    cut_torn_line(path)
    for trajectory in read_records(path, Trajectory):
        breaker.count(trajectory)
    if not breaker.is_passed:
        return breaker
    logger.warning("%s: %d failed episodes are played again", path, breaker.statuses.total())
    write_records(path, (t for t in read_records(path, Trajectory) if t.status not in FAILED))
    return Breaker(path, waited_for, config.max_failed)
