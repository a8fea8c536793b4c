"""Writing a trained model as a Hugging Face folder that transformers and vLLM load."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Any

import torch
from torch import Tensor

from webrl.config import OptimConfig
from webrl.training.lora import add_adapters, load_trained, merge_adapters

_DTYPES = {"fp32": torch.float32, "bf16": torch.bfloat16}


def exporter(
    reload: Callable[[], Any], tokenizer: Any, config: OptimConfig
) -> Callable[[dict[str, Tensor], Path], None]:
    """A function (trained weights by name, folder) that writes config, safetensors and tokenizer.

    The trained model may be sharded over ranks, cast or wrapped; so the starting model is loaded once more, on the
    CPU, and the trained weights are put into it. Adapters are merged.

    Args:
        reload: loads the starting model (`PackedActor` or `PackedCritic`).
    """

    def save(state: dict[str, Tensor], folder: Path) -> None:
        model = reload()
        add_adapters(model, config)
        load_trained(model, state)
        lm = merge_adapters(model.lm) if config.lora_rank else model.lm
        lm.to(_DTYPES[config.export_dtype]).save_pretrained(folder)
        tokenizer.save_pretrained(folder)

    return save
