"""Writing a trained model as a Hugging Face folder that transformers and vLLM load."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import torch
from torch import Tensor

from webrl.config import OptimConfig
from webrl.llm.loading import mark_folder
from webrl.training.critic import open_critic
from webrl.training.lora import add_adapters, merge_adapters
from webrl.training.models import PackedActor, PackedCritic, load_actor

_DTYPES = {"fp32": torch.float32, "bf16": torch.bfloat16}


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


def exporter(
    start: Start, tokenizer: Any, config: OptimConfig, prompt: str = "auto"
) -> Callable[[dict[str, Tensor], Path], None]:
    """A function (trained weights by name, folder) that writes config, safetensors and tokenizer (or processor).

    The trained model may be sharded over ranks, cast or wrapped; so the starting model is loaded once more, on the
    CPU, and the trained weights are put into it. Adapters are merged.

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

    return save
