"""Loading a tokenizer or a causal language model, with errors that say what to do."""

from __future__ import annotations

import json
import logging
from pathlib import Path
from typing import Any

from webrl.errors import ModelError
from webrl.llm.fingerprint import weights_fingerprint

logger = logging.getLogger(__name__)

_TOKENIZER_FILES = ("tokenizer.json", "tokenizer.model", "tokenizer_config.json", "vocab.json")


def load_tokenizer(name: str) -> Any:
    """The transformers tokenizer of a folder or hub name (a LoRA folder without one: its base model's).

    Raises:
        ModelError: no such folder or hub model, or a folder without tokenizer.
    """
    from transformers import AutoTokenizer

    folder = model_folder(name)
    if folder and not any((folder / file).is_file() for file in _TOKENIZER_FILES):
        base = adapter_base(folder)
        if base:
            return load_tokenizer(base)
        raise ModelError(
            f"model folder {name!r} has no tokenizer; save it beside the weights with "
            f"AutoTokenizer.from_pretrained(<base model>).save_pretrained({name!r})"
        )
    try:
        return AutoTokenizer.from_pretrained(name)
    except (OSError, ValueError, KeyError) as error:
        raise ModelError(f"cannot load a tokenizer from {name!r}: {_first_line(error)}") from error


def load_causal_lm(name: str, *, dtype: str, device: str = "cpu") -> Any:
    """A causal language model in eval mode; the adapter of a LoRA folder is merged into its base.

    Raises:
        ModelError: absent or broken weights.
    """
    from transformers import AutoModelForCausalLM

    folder = model_folder(name)
    base = adapter_base(folder) if folder else None
    if folder and not base and not (folder / "config.json").is_file():
        raise ModelError(f"model folder {name!r} has no config.json: it is not a transformers checkpoint")
    try:
        model: Any = AutoModelForCausalLM.from_pretrained(base or name, dtype=dtype)
        if base:
            from peft import PeftModel

            model = PeftModel.from_pretrained(model, name).merge_and_unload()
    except Exception as error:  # transformers, safetensors and hub each raise their own
        raise ModelError(f"cannot load the model {name!r}: {_first_line(error)}") from error
    return model.to(device).eval()


def model_folder(name: str) -> Path | None:
    """The folder that `name` is, or None if it can only be a hub name.

    Raises:
        ModelError: `name` is written like a path and does not exist.
    """
    path = Path(name).expanduser()
    if path.is_dir():
        return path
    if path.is_absolute() or name.startswith(("./", "../", "~", "data/", "runs/")) or name.count("/") > 1:
        raise ModelError(f"model folder {name!r} does not exist (looked in {Path.cwd()})")
    return None


def adapter_base(folder: Path) -> str | None:
    """Name of the base model if the folder holds a LoRA adapter."""
    config = folder / "adapter_config.json"
    if not config.is_file():
        return None
    return str(json.loads(config.read_text(encoding="utf-8"))["base_model_name_or_path"])


def model_fingerprint(name: str, model: Any = None) -> str:
    """Fingerprint of a folder's weights, or a hub model's commit."""
    folder = model_folder(name)
    if folder:
        return weights_fingerprint(folder)
    commit = getattr(getattr(model, "config", None), "_commit_hash", None)
    return f"{name}@{commit[:12]}" if commit else name


def pick_device(device: str) -> str:
    """`auto` is the first CUDA device, or the CPU."""
    import torch

    if device == "auto":
        return "cuda" if torch.cuda.is_available() else "cpu"
    if device.startswith("cuda") and not torch.cuda.is_available():
        raise ModelError(f"models.device={device!r}, but torch sees no CUDA device; use models.device=cpu")
    return device


def pick_dtype(dtype: str, device: str) -> str:
    """`auto` is float32 on a CPU (bfloat16 is slower on most and blurs log-probs), bfloat16 on a GPU."""
    if dtype != "auto":
        return dtype
    return "float32" if device.startswith("cpu") else "bfloat16"


def _first_line(error: BaseException) -> str:
    return str(error).strip().splitlines()[0][:300] if str(error).strip() else type(error).__name__
