"""Where an architecture keeps its decoder and the layers of it."""

from __future__ import annotations

from typing import Any

from torch import nn


def decoder_of(lm: Any) -> Any:
    """The model below the output layer: takes token ids, returns hidden states."""
    return lm.model if lm.base_model is lm else lm.base_model  # Llama 4's text model has a prefix of another model


def layers_of(lm: Any) -> nn.ModuleList | None:
    """The decoder's layers, whatever they are called; None if there is no such list."""
    count = getattr(lm.config.get_text_config(), "num_hidden_layers", 0)
    lists = [m for m in decoder_of(lm).modules() if isinstance(m, nn.ModuleList) and len(m) == count > 0]
    return lists[0] if lists else None
