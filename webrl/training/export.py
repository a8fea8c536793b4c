"""Writing a trained model as a Hugging Face folder that transformers and vLLM load.

With LoRA the folder also holds what was trained, small, in `lora/state.safetensors`, from which `webrl push --adapter`
makes an adapter. It lies one level down because vLLM loads every `*.safetensors` file next to the weights.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Literal

import torch
from pydantic import Field, ValidationError
from safetensors import SafetensorError, safe_open
from safetensors.torch import save_file
from torch import Tensor

from webrl.config import OptimConfig
from webrl.config.section import Section
from webrl.errors import ModelError, problem_text
from webrl.llm.fingerprint import base_fingerprint
from webrl.llm.loading import HUB_NAME, mark_folder
from webrl.training.critic import open_critic
from webrl.training.lora import add_adapters, merge_adapters
from webrl.training.models import PackedActor, PackedCritic, load_actor

STATE = Path("lora", "state.safetensors")
"""In a model folder: the trained weights as the trainer names them, float32."""
_DTYPES = {"fp32": torch.float32, "bf16": torch.bfloat16}
_KEY = "webrl"


@dataclass(frozen=True)
class Start:
    """The model that a training starts from."""

    folder: str
    """Folder or hub name."""
    heads: str | None = None
    """A critic's value heads; None: an actor."""
    seed: int = 0
    """Of fresh heads."""
    sees: bool = False
    """A vision-language model."""

    def load(self, *, skeleton: bool = False) -> PackedActor | PackedCritic:
        """The model, on the CPU; `skeleton` as of `load_actor`."""
        if self.heads:
            return open_critic(self.folder, self.heads, self.seed, skeleton=skeleton, sees=self.sees)
        return load_actor(self.folder, skeleton=skeleton, sees=self.sees)


class Origin(Section):
    """The base that a folder's merged weights were made from, and how."""

    base: str
    """Starting model: a hub name, or a folder, written so that it cannot be taken for a hub name."""
    base_weights: str
    """Its `base_fingerprint`."""
    heads: Literal["single", "double"] | None
    """A critic's value heads; None: an actor."""
    lora_rank: int = Field(ge=1)
    lora_alpha: float = Field(gt=0)
    export_dtype: Literal["fp32", "bf16"]


def exporter(
    start: Start, tokenizer: Any, config: OptimConfig, prompt: str = "auto"
) -> Callable[[dict[str, Tensor], Path], None]:
    """A function (trained weights by name, folder) that writes config, safetensors and tokenizer (or processor).

    The trained model may be sharded over ranks, cast or wrapped; so the starting model is loaded once more, on the
    CPU, and the trained weights are put into it. Adapters are merged, and written on their own as well.

    Args:
        prompt: `models.prompt` of the training, where it is not the tokenizer's.
    """

    def save(state: dict[str, Tensor], folder: Path) -> None:
        model = start.load()
        add_adapters(model, config)
        own = dict(model.named_parameters())
        for name, value in state.items():
            own[name].data.copy_(value)
        lm = merge_adapters(model.lm) if config.lora_rank else model.lm
        lm.to(_DTYPES[config.export_dtype]).save_pretrained(folder)
        tokenizer.save_pretrained(folder)
        mark_folder(folder, prompt)
        if config.lora_rank:
            merge = config.model_dump(include={"lora_rank", "lora_alpha", "export_dtype"})
            is_ambiguous = Path(start.folder).is_dir() and HUB_NAME.fullmatch(start.folder)  # `models/llama`
            base = f"./{start.folder}" if is_ambiguous else start.folder
            origin = Origin(base=base, base_weights=base_fingerprint(start.folder), heads=start.heads, **merge)
            (folder / STATE).parent.mkdir()
            save_file(
                {name: value.float().contiguous() for name, value in state.items()},
                folder / STATE,
                metadata={_KEY: origin.model_dump_json()},
            )

    return save


def read_origin(folder: Path) -> Origin | None:
    """Read what a model folder's adapters were trained on; None if its weights were trained whole.

    Raises:
        ModelError: the file is damaged, or another program's.
    """
    return _read(folder / STATE)[0] if (folder / STATE).is_file() else None


def stacked_adapter(folders: Sequence[Path]) -> tuple[dict[str, Tensor], int]:
    """The adapters of model folders that were trained one from the other, as one adapter, and its rank.

    W + s₁B₁A₁ + s₂B₂A₂ + … = W + [s₁B₁ s₂B₂ …] [A₁; A₂; …]: ranks add up, and the scale is 1.

    Returns:
        float32 tensors under peft's names; (rank) with `lora_alpha` = rank.

    Raises:
        ModelError: a state that is damaged, or not of the same matrices as the others.
    """
    parts = [_read(folder / STATE) for folder in folders]
    names = sorted(name for name in parts[0][1] if ".lora_A." in name)
    both = {*names, *(name.replace(".lora_A.", ".lora_B.") for name in names)}
    if other := next((folder for folder, (_, s) in zip(folders, parts, strict=True) if s.keys() != both), None):
        raise ModelError(f"{other / STATE}: its adapters are not of the same matrices as those of {folders[0]}")
    stacked = {}
    for down in names:
        up = down.replace(".lora_A.", ".lora_B.")
        scaled = [state[up] * (origin.lora_alpha / origin.lora_rank) for origin, state in parts]
        stacked[down] = torch.cat([state[down] for _, state in parts])  # [ΣR, D]
        stacked[up] = torch.cat(scaled, dim=1)  # [E, ΣR]
    named = {f"base_model.model.{k.removeprefix('lm.').replace('.default.', '.')}": v for k, v in stacked.items()}
    return named, sum(origin.lora_rank for origin, _ in parts)


def _read(path: Path) -> tuple[Origin, dict[str, Tensor]]:
    try:
        with safe_open(path, "pt") as file:
            origin = Origin.model_validate_json((file.metadata() or {})[_KEY])
            state = {name: file.get_tensor(name) for name in file.keys()}  # noqa: SIM118
    except ValidationError as error:
        raise ModelError(f"{path}: damaged ({problem_text(error.errors()[0])})") from None
    except (OSError, SafetensorError, KeyError) as error:
        raise ModelError(f"{path}: not a trained state of webrl's, or damaged ({str(error)[:200]})") from None
    ranks = {len(value) for name, value in state.items() if ".lora_A." in name}
    if ranks != {origin.lora_rank}:  # before memory is taken for adapters of the rank that it claims
        raise ModelError(f"{path}: damaged: it claims lora_rank={origin.lora_rank}, its adapters have {sorted(ranks)}")
    return origin, state
