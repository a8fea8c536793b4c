"""Tells which of our prompts a model was trained with: its tokenizer, and every folder that it is saved to, say so.

`webrl sft` and the phases save the tokenizer they load, so what a training starts with is what its folder says.
"""

from __future__ import annotations

import re
from pathlib import Path
from typing import Any, Literal, cast

from webrl.errors import ModelError
from webrl.runs.store import read_json, write_json

PromptName = Literal["brief", "examples"]
_KEY = "webrl_prompt"
"""In tokenizer_config.json."""


def prompt_of(tokenizer: Any, asked: str = "auto") -> PromptName:
    """The prompt for a model: the one asked for (`models.prompt`), or what its tokenizer says.

    Raises:
        ModelError: the tokenizer names another prompt, of a later version perhaps.
    """
    name = asked if asked != "auto" else getattr(tokenizer, "init_kwargs", {}).get(_KEY, "examples")
    if name not in ("brief", "examples"):
        raise ModelError(f"tokenizer_config.json: {_KEY}={name!r:.80} is no prompt of this version; set models.prompt")
    return cast("PromptName", name)


def mark_tokenizer(tokenizer: Any, name: str) -> Any:
    """The tokenizer of the model `name`, with the prompt of a folder that an earlier version has trained."""
    tokenizer.init_kwargs.setdefault(_KEY, unmarked_prompt(Path(name).expanduser()))
    return tokenizer


def unmarked_prompt(folder: Path) -> PromptName:
    """`brief` for the folders that versions without this mark have written, which knew no other prompt."""
    report = folder.with_name(f"{folder.name}_report") / "report.json"  # webrl sft
    # A training with adapters, webrl push, webrl grpo, the shipped models.
    ours = ("lora/state.safetensors", "config.yaml", "report.json", "recipe.json")
    in_phase = re.fullmatch(r"phase_\d+", folder.absolute().parent.name)
    return "brief" if in_phase or report.is_file() or any((folder / file).is_file() for file in ours) else "examples"


def mark_folder(folder: Path, asked: str) -> None:
    """Have a saved model's folder name the prompt that was asked for in its training; "auto": it does already."""
    path = folder / "tokenizer_config.json"
    if asked != "auto":
        write_json(path, read_json(path) | {_KEY: asked})
