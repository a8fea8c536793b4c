"""The arena: `rollout.arena`, the settings of `tasks.suite=arena` (docs/arena.md)."""

from __future__ import annotations

from pathlib import Path
from typing import Any

from pydantic import Field, field_validator

from webrl.config.section import TaskFiles


class ArenaConfig(TaskFiles):
    """The arena's sites and tasks (docs/arena.md)."""

    folder: Path | None = Field(None, description="of `webrl arena up --folder`; none: its default")
    eval_files: tuple[Path, ...] = Field((), description="tasks of the evaluation (JSONL); none: the templates'")
    score_steps: bool = Field(
        False,
        description="score after every step, as BrowserGym does, and end an episode that is solved; serve-env and grpo "
        "always do",
    )

    @field_validator("train_files", "eval_files", mode="before")
    @classmethod
    def _one_is_a_list_of_one(cls, value: Any) -> Any:
        return (value,) if isinstance(value, str | Path) else value


SETTINGS = ArenaConfig
"""The model of the section (`webrl.config.plugins.settings_of`)."""
