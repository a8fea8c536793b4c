"""A model in bfloat16, as transformers would load it."""

from __future__ import annotations

import torch
from torch import nn


def cast_weights(model: nn.Module) -> None:
    """Make a model's weights bfloat16 in place, as `from_pretrained(dtype=bfloat16)` does: buffers stay as they are."""
    exempt = getattr(getattr(model, "lm", model), "_keep_in_fp32_modules_strict", None) or ()
    for name, parameter in model.named_parameters():
        if not any(part in name for part in exempt):
            parameter.data = parameter.data.to(torch.bfloat16)
