"""What every environment and pool offers, here, in a worker or on a server, and what an agent is told of a page."""

from __future__ import annotations

import math
from contextlib import AbstractAsyncContextManager
from dataclasses import dataclass
from typing import Any, Protocol

from webrl.errors import StageError
from webrl.types import Task


@dataclass(frozen=True)
class Observation:
    """What the agent sees."""

    text: str
    """The page as text, uncut."""
    url: str
    """Address of the active tab."""
    goal: str
    """The task's instruction, or the page's own."""
    screenshot: bytes | None = None
    """PNG, if screenshots are on."""
    details: Any = None
    """Pruned HTML and the elements' boxes (webrl-serve's `PageDetails`), if `page_details` is on."""


@dataclass(frozen=True)
class StepResult:
    """The result of one action."""

    observation: Observation
    """The page afterwards."""
    action: str
    """The action in canonical form; "" if it could not be read."""
    error: str
    """The error that the agent sees, or ""."""
    done: bool
    """The page has ended the episode."""
    reward: float
    """The environment's own reward, as in BrowserGym; the last step's is the episode's (see `checked_reward`)."""
    agent_done: bool
    """The agent has ended the episode."""
    message: str = ""
    """The agent's final message."""
    blocked: int = 0
    """Requests blocked by the navigation guard during this step."""


@dataclass(frozen=True)
class Score:
    """What an environment reports on an episode only after its last step.

    Example: `Score(1.0)`, `Score(None, "judge at http://localhost:8000/v1 does not answer (…)")`
    """

    reward: float | None
    """As of `checked_reward`; None if there is nothing to add, or it could not be determined."""
    note: str = ""
    """Why there is no score, or why the evaluator gave up on the page."""


def checked_reward(episode: str, reward: float) -> float:
    """Return an environment's reward, a success above 0. Raises StageError above 1, as its scale is then unknown."""
    if not -math.inf < reward <= 1:
        raise StageError(f"{episode}: the environment's reward is {reward!r}; scale it to [0, 1], 0 for a failure")
    return reward


class Env(Protocol):
    """Any environment: in this process, in a worker, or on a server."""

    async def reset(self, task: Task) -> Observation:
        """Start an episode. Raises BrowserError, DataError."""

    async def step(self, action_text: str) -> StepResult:
        """Act once. Raises BrowserError."""

    async def finish(self) -> Score:
        """Return the episode's score so far, for suites that need one. Raises BrowserError."""

    async def close(self) -> None:
        """Free its resources; never raises."""


class Pool(Protocol):
    """Lends environments; local processes, Ray actors and remote servers look the same."""

    @property
    def size(self) -> int:
        """Number of environments."""

    def env(self) -> AbstractAsyncContextManager[Env]:
        """Borrow one; waits until one is free."""
