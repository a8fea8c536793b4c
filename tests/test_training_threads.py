"""Rows side by side on a CPU's threads, and float32 products by oneDNN, compute what one row at a time and torch do."""

import pytest
import torch
from torch.nn import functional
from training_builders import make_actor, make_record

from webrl.config import RunConfig
from webrl.llm.loading import load_causal_lm
from webrl.llm.products import has_faster_products, linear, use_products
from webrl.training.devices import add_gradients, num_row_threads, row_threads
from webrl.training.scoring import score_actions, score_values
from webrl.training.update import train_actor, train_critic


@pytest.fixture
def threads():
    """Sets torch's number of threads; back to what it was at the end."""
    before = torch.get_num_threads()
    yield torch.set_num_threads
    torch.set_num_threads(before)


def records(count=12):
    return [make_record(f"t{i}", 0, 1, i % 2) for i in range(count)]


def trained(folder, tmp_path, name):
    """Weights and scores of a short phase."""
    optim = {"max_tokens": 64, "batch_size": 6, "lr": 1e-3}
    config = RunConfig.model_validate({"critic": optim, "actor": {**optim, "objective": "webrl_scaled", "epochs": 2}})
    out = tmp_path / name
    options = {"seed": 0, "metrics_path": out / "metrics.jsonl"}
    scored = score_actions(records(), folder, config)
    train_critic(scored, folder, out / "critic", config, **options)
    scored = score_values(scored, out / "critic", config)
    counts = train_actor(scored, folder, out / "actor", config, **options)
    weights = load_causal_lm(str(out / "actor"), dtype="float32").state_dict()
    return weights, [(r.ref_logprobs, r.value) for r in scored], counts


def test_rows_side_by_side_train_what_rows_one_after_the_other_train(tmp_path, threads):
    folder = make_actor(tmp_path / "model")
    start = load_causal_lm(str(folder), dtype="float32").state_dict()
    threads(1)
    alone, alone_scores, alone_counts = trained(folder, tmp_path, "alone")
    threads(2)
    together, scores, counts = trained(folder, tmp_path, "together")
    assert torch.get_num_threads() == 2
    assert counts["actor_loss"] == pytest.approx(alone_counts["actor_loss"], rel=1e-4)
    assert counts["actor_active"] == alone_counts["actor_active"] == 12
    for name, weight in together.items():
        assert torch.allclose(weight, alone[name], atol=1e-4), name
    assert max(float((together[name] - start[name]).abs().max()) for name in start) > 1e-3
    for (logprobs, value), (alone_logprobs, alone_value) in zip(scores, alone_scores, strict=True):
        assert logprobs == pytest.approx(alone_logprobs, abs=1e-5)
        assert value == pytest.approx(alone_value, abs=1e-3)


@pytest.mark.slow
def test_the_same_rows_by_threads_give_the_same_bits(tmp_path, threads):
    folder = make_actor(tmp_path / "model")
    threads(3)
    first, scores, _ = trained(folder, tmp_path, "first")
    second, again, _ = trained(folder, tmp_path, "second")
    assert scores == again
    assert all(torch.equal(first[name], second[name]) for name in first)


def test_an_error_in_a_thread_is_raised_and_the_number_of_threads_set_back(threads):
    threads(2)

    def work(item):
        assert torch.get_num_threads() == 1
        return 1 / item

    with pytest.raises(ZeroDivisionError), row_threads(2) as over:
        over(work, [1, 0])
    assert torch.get_num_threads() == 2


def test_only_small_models_on_a_cpu_have_rows_side_by_side(threads):
    threads(2)
    with torch.device("meta"):
        large = torch.nn.Linear(10_000, 10_000)
    small = torch.nn.Linear(4, 4)
    assert [num_row_threads(*given) for given in ((small, "cpu"), (large, "cpu"), (small, "cuda"))] == [2, 1, 1]
    threads(16)
    assert num_row_threads(small, "cpu") == 4


def test_gradients_of_parameters_that_a_row_does_not_reach_are_left_out_of_the_sum():
    one, two = torch.ones(2), torch.full((2,), 2.0)
    total = add_gradients(None, [one, None, None])
    total = add_gradients(total, [two, two, None])
    assert [None if g is None else g.tolist() for g in total] == [[3.0, 3.0], [2.0, 2.0], None]


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
