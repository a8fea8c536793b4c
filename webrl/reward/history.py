"""Builds the action history that a judge sees: the actions, without the agent's comments on them.

A policy that is trained on a judge's verdicts learns to claim success wherever the judge reads it. So a judge sees
actions in canonical form, without comments, spelling differences and unreadable parts. What remains of the
agent's own words are the arguments of its actions: text that it typed, and the answer that it gave to the user
(`send_msg_to_user`, `exit`), as one quoted literal each, which cannot begin a line of its own.
"""

from __future__ import annotations

from collections.abc import Sequence

from webrl.config import LabelConfig
from webrl.rollouts.answers import read_any

UNREADABLE = "(unreadable)"
"""Replaces an answer that was not an action and had no effect."""


def shown_actions(responses: Sequence[str], config: LabelConfig) -> list[str]:
    """The agent's answers as the configured judge sees them, one a step (`label.actions`)."""
    raw = config.actions == "raw" or (config.actions == "auto" and config.prompt_format == "webrl")
    return list(responses) if raw and config.judge == "orm" else [canonical(response) for response in responses]


def canonical(response: str) -> str:
    """The action of an answer in its one spelling, in either action language; `UNREADABLE` if there is none."""
    action = read_any(response)
    return action.canonical if action else UNREADABLE
