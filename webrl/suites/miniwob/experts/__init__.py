"""Scripted experts for the MiniWoB pages we train and evaluate on; text in, text out.

They record demonstrations, propose instructions, and tell valid and accomplished ones apart. The
reinforcement-learning loop never sees them: only demonstrations and benchmarks do.
"""

from __future__ import annotations

import difflib
from collections.abc import Sequence

from webrl.errors import UsageError
from webrl.suites.miniwob.experts.expert import Expert
from webrl.suites.miniwob.experts.sites import EXPERTS

__all__ = ["EXPERTS", "Expert", "accomplished", "expert_for", "is_valid"]


def expert_for(site: str) -> Expert:
    """The expert of a page (`miniwob.click-button`).

    Raises:
        UsageError: no expert knows this page; the nearest is named.
    """
    if site not in EXPERTS:
        nearest = difflib.get_close_matches(site, EXPERTS, n=1, cutoff=0)
        raise UsageError(f"no scripted expert for {site!r}; the nearest is {nearest[0]!r}")
    return EXPERTS[site]


def is_valid(site: str, instruction: str, observation: str) -> bool:
    """Whether an instruction can be done on this page, as far as its first observation shows."""
    return expert_for(site).is_valid(instruction, observation)


def accomplished(
    site: str,
    instruction: str,
    initial_observation: str,
    actions: Sequence[str],
    observations: Sequence[str],
    final_observation: str,
) -> bool:
    """Ground truth for an instruction: `observations[i]` was shown before `actions[i]`.

    `initial_observation` stands in where there were no actions.
    """
    shown = [initial_observation, *observations[1:]] if observations else []
    return expert_for(site).accomplished(instruction, actions, shown, final_observation)
