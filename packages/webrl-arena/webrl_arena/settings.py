"""The arena: `rollout.arena`, the settings of `tasks.suite=arena` (docs/arena.md)."""

from __future__ import annotations

from pathlib import Path

from pydantic import Field

from webrl.config.section import Section


class ArenaConfig(Section):
    """The arena's sites and tasks (docs/arena.md)."""

    folder: Path | None = Field(None, description="folder of `webrl arena up --folder`; none: its default")
    score_steps: bool = Field(
        False,
        description="score after every step, as BrowserGym does, and end an episode that is solved; serve-env and grpo "
        "always do",
    )


SETTINGS = ArenaConfig
"""The model of the section (`webrl.config.plugins.settings_of`)."""
