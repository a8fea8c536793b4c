"""Norms by torch's kernel: which are replaced, and that they compute the same."""

from __future__ import annotations

import copy

import pytest
import torch
from torch import nn
from transformers.models.gemma3.modeling_gemma3 import Gemma3RMSNorm
from transformers.models.llama.modeling_llama import LlamaRMSNorm

from webrl.training.layers.norms import FusedNorm, fuse_norms


class Centred(nn.Module):
    """Subtracts the mean as well."""

    def __init__(self) -> None:
        super().__init__()
        self.weight, self.eps = nn.Parameter(torch.ones(8)), 1e-6

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return nn.functional.layer_norm(x, (8,), self.weight, eps=self.eps)


def holder(norm: nn.Module) -> nn.Module:
    with torch.no_grad():
        norm.weight.copy_(torch.linspace(-0.5, 1.5, 8))
    return nn.Sequential(norm)


def value_and_gradients(model: nn.Module, x: torch.Tensor) -> list[torch.Tensor]:
    x = x.clone().requires_grad_()
    out = model(x)
    (out.float() * torch.linspace(0, 1, 8)).sum().backward()
    return [out, x.grad, model[0].weight.grad]


@pytest.mark.parametrize("norm", [LlamaRMSNorm(8, eps=1e-5), Gemma3RMSNorm(8, eps=1e-3)])
@pytest.mark.parametrize(("dtype", "tolerance"), [(torch.float32, 1e-6), (torch.bfloat16, 1e-2)])
def test_a_replaced_norm_computes_value_and_gradients_as_before(
    norm: nn.Module, dtype: torch.dtype, tolerance: float
) -> None:
    plain = holder(copy.deepcopy(norm)).to(dtype)
    fused = copy.deepcopy(plain)
    assert fuse_norms(fused) == 1
    assert fuse_norms(fused) == 0
    x = torch.randn(2, 5, 8, generator=torch.Generator().manual_seed(0)).to(dtype)
    for expected, found in zip(value_and_gradients(plain, x), value_and_gradients(fused, x), strict=True):
        assert found.dtype == expected.dtype
        torch.testing.assert_close(found, expected, rtol=tolerance, atol=tolerance)


def test_one_plus_a_small_weight_is_not_rounded_away() -> None:
    model = nn.Sequential(Gemma3RMSNorm(8)).to(torch.bfloat16)
    with torch.no_grad():
        model[0].weight.fill_(1e-3)  # 1.001 is 1 in bfloat16
    plain = copy.deepcopy(model)
    fuse_norms(model)
    x = torch.randn(400, 8, generator=torch.Generator().manual_seed(0)).to(torch.bfloat16)
    assert torch.equal(model(x), plain(x))
    with torch.no_grad():
        model[0].weight.zero_()
    assert not torch.equal(model(x), plain(x))


def test_a_norm_that_computes_something_else_stays() -> None:
    model = holder(Centred())
    assert fuse_norms(model) == 0
    assert not isinstance(model[0], FusedNorm)
