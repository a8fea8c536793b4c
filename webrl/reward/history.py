"""The action history that a judge is shown: what was done, and nothing that the agent says beside it.

A policy that is trained on a judge's verdicts learns to claim success wherever the judge reads it. So a judge sees
actions in canonical form, in which comments, spelling and whatever cannot be read leave no trace. What remains of the
agent's own words are the arguments of its actions: text that it typed, and the answer that it gave to the user
(`send_msg_to_user`, `exit`), as one quoted literal each, which cannot begin a line of its own.
"""

from __future__ import annotations

from collections.abc import Sequence

from webrl.config import LabelConfig
from webrl.rollouts.answers import read_any

UNREADABLE = "(unreadable)"
"""Stands for an answer that was no action; it did nothing."""


def shown_actions(responses: Sequence[str], config: LabelConfig) -> list[str]:
    """The agent's answers as the configured judge sees them, one a step (`label.actions`)."""
    raw = config.actions == "raw" or (config.actions == "auto" and config.prompt_format == "webrl")
    return list(responses) if raw and config.judge == "orm" else [canonical(response) for response in responses]


def canonical(response: str) -> str:
    """The action of an answer in its one spelling, in either action language; `UNREADABLE` if there is none."""
    action = read_any(response)
    return action.canonical if action else UNREADABLE
