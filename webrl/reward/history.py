"""The action history that a judge is shown: what was done, and nothing that the agent says beside it.

A policy that is trained on a judge's verdicts learns to claim success wherever the judge reads it. So a judge sees
actions in canonical form, in which comments, spelling and whatever cannot be read leave no trace. What remains of the
agent's own words are the arguments of its actions: text that it typed, and the answer that it gave to the user
(`send_msg_to_user`, `exit`), as one quoted literal each, which cannot begin a line of its own.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Literal

from webrl.config import LabelConfig
from webrl.rollouts.actions import ActionError
from webrl.rollouts.dialects import parse

UNREADABLE = "(unreadable)"
"""Stands for an answer that was no action; it did nothing."""
_DIALECTS: tuple[Literal["browsergym", "webrl"], ...] = ("browsergym", "webrl")


def shown_actions(responses: Sequence[str], config: LabelConfig) -> list[str]:
    """The agent's answers as the configured judge sees them, one a step (`label.actions`)."""
    raw = config.actions == "raw" or (config.actions == "auto" and config.prompt_format == "webrl")
    return list(responses) if raw and config.judge == "orm" else [canonical(response) for response in responses]


def canonical(response: str) -> str:
    """The action of an answer in its one spelling, in either action language; `UNREADABLE` if there is none."""
    for dialect in _DIALECTS:
        try:
            return parse(response, dialect).canonical
        except ActionError:
            continue
    return UNREADABLE
