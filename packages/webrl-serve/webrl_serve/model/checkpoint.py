"""Finds the checkpoint that `webrl serve-model` serves: a run's actor or another model, with its training settings.

API: `find_checkpoint(name, config, overrides, phase=None) -> Checkpoint`; `check_context(checkpoint) -> int | None`.
"""

from __future__ import annotations

import json
import logging
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

from webrl.config import RunConfig, load_config
from webrl.config.extras import is_installed
from webrl.config.resources import find_config, is_file, shipped_model
from webrl.errors import UsageError
from webrl.llm.check import check_model
from webrl.llm.loading import check_sight, model_folder
from webrl.llm.servers.vllm_fleet import Weights, context_length
from webrl.runs.folder import require_run
from webrl.runs.machine import visible_gpus

logger = logging.getLogger(__name__)

_MODEL_FILES = ("config.json", "adapter_config.json")
_ENGINE = "rollout.engine.kind"


@dataclass(frozen=True)
class Checkpoint:
    """Weights, and the settings of their prompts and answers."""

    name: str
    """Folder (also a LoRA adapter's) or hub name."""
    alias: str
    """Its name for clients."""
    config: RunConfig
    """Prompt, action language, sampling and engine."""
    source: str
    """Origin of these settings."""


def find_checkpoint(
    name: str, config: str | None = None, overrides: Sequence[str] = (), *, phase: int | None = None
) -> Checkpoint:
    """Find a checkpoint by its name.

    Args:
        name: a run folder (its newest actor, or that of `phase`), a model folder or a hub name.
        config: a config file or shipped config; None: that of the run that `name` is, or is in, else the defaults.
        overrides: `key=value` over it.

    Raises:
        UsageError: a run without an actor, `phase` without a run, a bad config, or an engine that serves other models.
        ModelError: a model that cannot be loaded (`check_model`), a vision-language model without
            `rollout.image_size`, or a text model with it.
    """
    name = shipped_model(name)
    folder = Path(name).expanduser()
    alias = folder.name or name
    if folder.is_dir() and not any((folder / file).is_file() for file in _MODEL_FILES):
        run = require_run(folder)
        alias = folder.resolve().name
        phases = range(run.last_phase(), -1, -1) if phase is None else [phase]
        actor = next((found for number in phases if (found := run.phase(number).actor).is_dir()), None)
        if actor is None:
            where = f"phase {phase}" if phase is not None else "any phase"
            raise UsageError(
                f"{str(run.path)!r} has no actor of {where} (phase_NN/actor): it is not trained yet, or keep_models "
                f"has removed it; `webrl status {run.path}` shows more"
            )
        folder = actor
        name = str(folder)
    elif phase is not None:
        raise UsageError(f"--phase {phase}: {name!r:.200} is not a run folder")
    path = find_config(config) if config else None
    if path is None and model_folder(name):  # in a run: RUN/sft, RUN/phase_NN/actor
        above = (parent / "config.yaml" for parent in folder.resolve().parents[:2])
        path = next(filter(is_file, above), None)
    settings = load_config(path, overrides)
    check_sight(settings, name)
    settings = _on_best_engine(settings, overrides)
    check_model(name, sees=settings.rollout.sees, use=settings.rollout.engine.kind)
    return Checkpoint(name, alias if model_folder(name) else name, settings, str(path) if path else "the defaults")


def check_context(checkpoint: Checkpoint) -> int | None:
    """Returns the tokens that prompt and answer may have together; None if the model's config has no limit.

    Raises:
        UsageError: the settings' prompts and answers do not fit.
        ModelError: the model's config cannot be read.
    """
    models, rollout = checkpoint.config.models, checkpoint.config.rollout
    weights = Weights.of(checkpoint.name)
    limit: int | None = json.loads(weights.shape).get("max_position_embeddings")
    if rollout.engine.kind == "vllm":
        limit = context_length(weights, models)
    if limit and models.max_prompt_tokens + rollout.max_new_tokens > limit:
        room = limit - rollout.max_new_tokens
        raise UsageError(
            f"models.max_prompt_tokens={models.max_prompt_tokens} and rollout.max_new_tokens={rollout.max_new_tokens} "
            f"({checkpoint.source}) are more than the {limit} positions of {checkpoint.name!r}: name the CONFIG that "
            f"it was trained with, or set models.max_prompt_tokens={max(room, 16)}"
        )
    return limit


def _on_best_engine(config: RunConfig, overrides: Sequence[str]) -> RunConfig:
    """Return the settings with vLLM if there are a GPU and vLLM and no engine is named. Raises UsageError."""
    engine = config.rollout.engine
    if engine.kind == "openai":
        raise UsageError(
            f"{_ENGINE}=openai: those servers have weights of their own; {_ENGINE}=transformers or vllm serves this "
            "checkpoint"
        )
    if config.rollout.sees:
        if engine.kind != "transformers":
            raise UsageError(
                f"{_ENGINE}={engine.kind}: not yet with rollout.image_size; {_ENGINE}=transformers serves it"
            )
        return config
    asked = any(override.startswith((f"{_ENGINE}=", "engine.kind=")) for override in overrides)
    if engine.kind != "transformers" or asked or not (is_installed("vllm") and visible_gpus()):
        return config
    logger.info("a GPU and vLLM are here: %s=vllm (%s=transformers is slower)", _ENGINE, _ENGINE)
    served = config.rollout.model_copy(update={"engine": engine.model_copy(update={"kind": "vllm"})})
    return config.model_copy(update={"rollout": served})
