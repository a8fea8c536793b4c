"""LoRA through peft, for actor and critic: adapters in every matrix of the decoder, heads trained whole.

The critic is thus adapter and value head on the frozen actor base. Adapters are merged when the model is written, so
that vLLM, transformers and the next phase load an ordinary folder.
"""

from __future__ import annotations

from typing import Any

from torch import Tensor

from webrl.config import OptimConfig
from webrl.errors import UsageError
from webrl.training.decoder import layers_of


def add_adapters(model: Any, config: OptimConfig) -> None:
    """Freeze `model.lm`, put adapters into its decoder in place; a value head stays trainable."""
    if config.lora_rank == 0:
        return
    from peft import LoraConfig, inject_adapter_in_model

    lora = LoraConfig(
        r=config.lora_rank,
        lora_alpha=config.lora_alpha,  # type: ignore[arg-type]  # peft scales by any number
        lora_dropout=0.0,
        target_modules=_targets(model.lm),
    )
    model.lm.requires_grad_(False)
    inject_adapter_in_model(lora, model.lm)
    if hasattr(model.lm, "score"):
        model.lm.score.requires_grad_(True)


def merge_adapters(lm: Any) -> Any:
    """The plain model with every adapter merged into its matrix, in place."""
    from peft.tuners.lora import LoraLayer

    for name, module in list(lm.named_modules()):
        if isinstance(module, LoraLayer):
            module.merge()
            parent = lm.get_submodule(name.rpartition(".")[0])
            setattr(parent, name.rpartition(".")[2], module.get_base_layer())
    return lm


def load_trained(lm: Any, state: dict[str, Tensor]) -> None:
    """Copy trained weights (names as in `named_parameters`) into a module that has the same ones."""
    own = dict(lm.named_parameters())
    for name, value in state.items():
        own[name].data.copy_(value)


def _targets(lm: Any) -> list[str]:
    """Names of the decoder's matrices."""
    from torch import nn

    layers = layers_of(lm)
    if layers is None:
        raise UsageError(f"lora_rank: {type(lm).__name__} has no list of layers to adapt; set lora_rank=0")
    names = {name.rpartition(".")[2] for name, module in layers.named_modules() if isinstance(module, nn.Linear)}
    if not names:
        raise UsageError(f"lora_rank: the layers of {type(lm).__name__} have no linear maps; set lora_rank=0")
    return sorted(names)
