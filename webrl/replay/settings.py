"""Which prompt rollouts are turned into where nobody names a config: their run's or their actor's, never the demo's."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path
from typing import Any

from webrl.config import ModelsConfig, RunConfig, load_config
from webrl.errors import DataError
from webrl.llm.loading import adapter_base, model_folder
from webrl.replay.sources import find_source
from webrl.runs.store import read_json

_PUBLISHED_TOKENS = 15872
"""16,384 less 512 for the reply."""
_REPLY_TOKENS = 512
_CONTEXT_KEYS = ("max_position_embeddings", "n_positions", "seq_length", "max_seq_len")


def run_of(path: Path | str | None) -> Path | None:
    """Return the run folder that holds a phase, a trajectory file or a model; None for anything else."""
    if not path:
        return None
    parents = Path(path).absolute().parents
    return next((p for p in parents if (p / "config.yaml").is_file() and next(p.glob("phase_*"), None)), None)


def settings_for(rollout: Path, actor: str | None, orm: str | None, overrides: Sequence[str]) -> RunConfig:
    """Return the published settings within the models' limits; traces of VAB are trained in the released format.

    Args:
        actor, orm: folders or hub names; of a hub name the limit is not known before it is loaded.
        overrides: `key=value`, which win.

    Raises:
        DataError: no rollouts there, or a model folder whose config cannot be read.
        UsageError: a bad override.
    """
    settings = []
    if find_source(rollout).kind in ("vab", "released"):
        settings += ["models.prompt_format=webrl", "rollout.dialect=webrl", "label.prompt_format=webrl"]
    for section, model in (("models", actor), ("label", orm)):
        context = context_of(model) if model else None
        if context is not None:
            limit = max(16, min(_PUBLISHED_TOKENS, context - _REPLY_TOKENS))
            settings.append(f"{section}.max_prompt_tokens={limit}")
    return load_config(None, [*settings, *overrides])


def context_of(model: str) -> int | None:
    """Positions that a model folder's config states; None if it states none, or for a hub name.

    Raises:
        DataError: a config.json that is no JSON object.
        ModelError: a path that does not exist.
    """
    folder = model_folder(model)
    base = adapter_base(folder) if folder else None
    if base:
        return context_of(base)
    if folder is None or not (folder / "config.json").is_file():
        return None
    data = read_json(folder / "config.json")
    if not isinstance(data, dict):
        raise DataError(f"{folder / 'config.json'}: expected an object, found {data!r:.80}")
    inner = data.get("text_config")
    places: list[dict[str, Any]] = [data, inner] if isinstance(inner, dict) else [data]
    found = (place.get(key) for place in places for key in _CONTEXT_KEYS)
    return next((n for n in found if type(n) is int and n > 0), None)


def describe(config: RunConfig, *, judged: bool) -> list[str]:
    """Return the lines on the prompts that actor and judge are given."""
    models, label = config.models, config.label
    lines = [f"prompt            {_format(models)}, at most {models.max_prompt_tokens} tokens"]
    if judged:
        text = label.system_prompt or "ours"
        limit = f"at most {label.max_prompt_tokens} tokens"
        lines.append(f"judge's prompt    {label.prompt_format}, {limit}, system text {text}")
    return lines


def _format(models: ModelsConfig) -> str:
    if not models.max_prompt_chars:
        return models.prompt_format
    return f"{models.prompt_format}, past rounds and page at most {models.max_prompt_chars} characters"
