"""LoRA through peft, for actor and critic: adapters in every matrix of the decoder, heads trained whole.

The critic is thus adapter and value head on the frozen actor base. Adapters are merged when the model is written, so
that vLLM, transformers and the next phase load an ordinary folder. peft makes, stores and merges them; their forward
pass is ours, which writes no more tensors of an output's size than the frozen matrix does (peft's: three more).
"""

from __future__ import annotations

from types import MethodType
from typing import Any

import torch
from torch import Tensor, nn
from torch.nn import functional

from webrl.config import OptimConfig
from webrl.errors import UsageError
from webrl.training.architectures import layers_of

_ADAPTER = "default"
"""Peft's name of the only adapter."""


def add_adapters(model: Any, config: OptimConfig) -> None:
    """Freeze `model.lm`, put adapters into its decoder in place; a value head stays trainable.

    Raises:
        UsageError: a decoder without a list of layers, or without matrices in them.
    """
    if config.lora_rank == 0:
        return
    from peft import LoraConfig, inject_adapter_in_model
    from peft.tuners.lora import Linear

    layers = layers_of(model.lm)
    if layers is None:
        raise UsageError(f"lora_rank: {type(model.lm).__name__} has no list of layers to adapt; set lora_rank=0")
    names = {name.rpartition(".")[2] for name, module in layers.named_modules() if isinstance(module, nn.Linear)}
    if not names:
        raise UsageError(f"lora_rank: the layers of {type(model.lm).__name__} have no linear maps; set lora_rank=0")
    lora = LoraConfig(
        r=config.lora_rank,
        lora_alpha=config.lora_alpha,  # type: ignore[arg-type]  # peft scales by any number
        lora_dropout=0.0,
        target_modules=sorted(names),
    )
    model.lm.requires_grad_(False)
    inject_adapter_in_model(lora, model.lm)
    for module in list(model.lm.modules()):
        if type(module) is not Linear or module.lora_variant or type(module.lora_B[_ADAPTER]) is not nn.Linear:
            continue
        if module.lora_B[_ADAPTER].bias is None:  # a plain adapter gets our forward pass
            module.forward = MethodType(_adapted, module)  # type: ignore[method-assign]
            module.lora_B[_ADAPTER].forward = MethodType(_adding, module.lora_B[_ADAPTER])
    if hasattr(model.lm, "score"):
        model.lm.score.requires_grad_(True)


def _adapted(self: Any, x: Tensor, *others: Any, **options: Any) -> Tensor:
    """W x + B (s · A x), the sum inside B's own product. [..., D] -> [..., E]."""
    down, up = self.lora_A[_ADAPTER], self.lora_B[_ADAPTER]
    plain = "forward" in vars(up) and x.dtype == down.weight.dtype
    if not plain or self.merged or self.disable_adapters or others or options:
        own: Tensor = type(self).forward(self, x, *others, **options)
        return own
    whole: Tensor = up(down(x) * self.scaling[_ADAPTER], self.base_layer(x))
    return whole


def _adding(self: nn.Linear, x: Tensor, onto: Tensor | None = None) -> Tensor:
    """Add the product to a tensor; engines gather the weight around the call. [..., R] -> [..., E]."""
    if onto is None:
        return functional.linear(x, self.weight)
    return torch.addmm(onto.flatten(0, -2), x.flatten(0, -2), self.weight.t()).view_as(onto)


def merge_adapters(lm: Any) -> Any:
    """Merge every adapter into its matrix, in place: W + s B A."""
    from peft.tuners.lora import LoraLayer

    for name, module in list(lm.named_modules()):
        if isinstance(module, LoraLayer):
            layer: Any = module
            layer.merge()
            setattr(lm.get_submodule(name.rpartition(".")[0]), name.rpartition(".")[2], layer.get_base_layer())
    return lm
