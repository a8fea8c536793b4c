"""Files and folders that a config names, looked for before work starts and before torch is imported."""

from __future__ import annotations

from collections.abc import Collection

from webrl.config import RunConfig
from webrl.llm.loading import model_folder
from webrl.reward.system_text import configured_text
from webrl.runs.folder import RunFolder


def check_inputs(config: RunConfig, stages: Collection[str]) -> None:
    """Return if what these stages start from is there.

    Raises:
        UsageError: the judge's system text is not there.
        ModelError: a model folder does not exist, or holds pickles.
    """
    due = frozenset(stages)
    if "label" in due:
        configured_text(config.label)
        if config.label.engine.kind != "openai":
            for judge in (config.models.orm, *config.label.ensemble):
                model_folder(judge)
    acting = due & {"rollout", "replay", "train", "eval"}
    if acting and not RunFolder(config.run_dir).phase(0).actor.is_dir():  # later phases start from the run's own
        model_folder(config.models.actor)
    if {"gen-tasks", "rollout"} <= due and config.num_phases and config.generate.engine.kind != "openai":
        model_folder(config.models.generator)
