"""Float32 products by oneDNN compute what torch's do."""

import pytest
import torch
from torch.nn import functional

from webrl.llm.products import has_faster_products, linear, use_products


@pytest.mark.parametrize("shape", [(1, 40, 48), (40, 48), (3, 48), (1, 2, 48)])
def test_products_and_their_gradients_are_those_of_float64(shape):
    torch.manual_seed(0)
    x, weight = torch.randn(shape, requires_grad=True), torch.randn(72, 48, requires_grad=True)
    slope = torch.randn(*shape[:-1], 72)
    out = linear(x, weight)
    out.backward(slope)
    wide_x, wide_weight = (t.detach().double().requires_grad_() for t in (x, weight))
    expected = functional.linear(wide_x, wide_weight)
    expected.backward(slope.double())
    found = (out, x.grad, weight.grad)
    for value, wanted in zip(found, (expected, wide_x.grad, wide_weight.grad), strict=True):
        assert value.dtype == torch.float32
        assert torch.allclose(value.double(), wanted, atol=1e-4)


def test_frozen_weights_get_no_gradient_and_other_precisions_stay_torchs():
    x, weight = torch.randn(32, 48, requires_grad=True), torch.randn(24, 48)
    linear(x, weight).sum().backward()
    assert torch.allclose(x.grad, weight.sum(0).expand(32, -1), atol=1e-4)
    assert linear(x.bfloat16(), weight.bfloat16()).dtype == torch.bfloat16
    with torch.autocast("cpu", torch.bfloat16):
        assert linear(x, weight).dtype == torch.bfloat16


def test_layers_with_a_bias_keep_it():
    model = torch.nn.Sequential(torch.nn.Linear(48, 32, bias=False), torch.nn.Linear(32, 16))
    x = torch.randn(20, 48)
    before = model(x)
    use_products(model)
    assert torch.allclose(model(x), before, atol=1e-5)
    assert ("forward" in vars(model[0])) == has_faster_products()
    assert "forward" not in vars(model[1])
    assert list(model.state_dict()) == ["0.weight", "1.weight", "1.bias"]
