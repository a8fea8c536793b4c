"""Rows are computed exactly for every architecture, or it is refused by name; packing changes nothing but speed."""

import sys
from pathlib import Path

import pytest
import torch
from training_builders import make_actor, make_items
from transformers import GPT2Config, GPT2LMHeadModel

from webrl.llm.pictures import Example
from webrl.training.layers.attention import Layout, packed_attention
from webrl.training.layers.head import token_logprobs
from webrl.training.models import load_actor
from webrl.training.packing import HEADER_TOKENS, Item, make_item, pack, plan_rows

BENCHMARKS = Path(__file__).resolve().parents[1] / "benchmarks"
ROUTES = {  # how the rows of families are computed
    "packed": ("Mistral, window", "Gemma 3", "Cohere 2", "Phi", "DeepSeek V3"),
    "plain": ("Gemma 2", "gpt-oss", "HyperCLOVA X", "Nemotron"),
    "single": ("Phi-3, long rope", "LFM2", "Qwen3-Next", "Mamba 2"),
    "refused": ("Phi-3.5 MoE", "Llama, rope scaled with length"),
}
FAMILIES = {name: route for route, names in ROUTES.items() for name in names}


def try_family(name: str, folder: Path, device: str) -> object:
    sys.path.insert(0, str(BENCHMARKS))
    try:
        import families
    finally:
        sys.path.remove(str(BENCHMARKS))
    kind, options = next(row[1:] for row in families.FAMILIES if row[0] == name)
    return families.try_family(name, folder, device, kind, options)


@pytest.mark.slow
@pytest.mark.filterwarnings("ignore")
@pytest.mark.parametrize(("name", "route"), FAMILIES.items(), ids=FAMILIES)
def test_an_architecture_is_exact_beyond_its_window_or_refused(name: str, route: str, tmp_path: Path) -> None:
    result = try_family(name, tmp_path, "cpu")
    assert (result.status, result.route) == ("refused" if route == "refused" else "exact", route), result


@pytest.mark.gpu
@pytest.mark.filterwarnings("ignore")
@pytest.mark.parametrize("name", ["Llama", "Mistral, window", "Gemma 2", "Gemma 3", "gpt-oss", "DeepSeek V3", "LFM2"])
def test_an_architecture_on_a_gpu_strays_no_further_than_in_transformers(name: str, tmp_path: Path) -> None:
    result = try_family(name, tmp_path, "cuda")
    assert result.status == "exact", result


def make_heads(length: int) -> list[torch.Tensor]:
    generator = torch.Generator().manual_seed(0)
    return [torch.randn(1, 2, length, 8, generator=generator) for _ in range(3)]


def by_hand(lengths: tuple[int, ...], window: int | None) -> torch.Tensor:
    query, key, value = make_heads(sum(lengths))
    out = torch.zeros(1, sum(lengths), 2, 8)
    start = 0
    for length in lengths:
        for i in range(start, start + length):
            first = start if window is None else max(start, i - window + 1)
            for head in range(2):
                scores = key[0, head, first : i + 1] @ query[0, head, i] / 8**0.5
                out[0, i, head] = scores.softmax(0) @ value[0, head, first : i + 1]
        start += length
    return out


@pytest.mark.parametrize("window", [None, 3, 50])
def test_attention_of_packed_sequences_by_hand(window: int | None) -> None:
    lengths = (5, 1, 9)
    layout = Layout.of(lengths, (2, 1, 3), "cpu")
    options = {"layout": layout, "sliding_window": window}
    expected = by_hand(lengths, window)
    whole, _ = packed_attention(torch.nn.Module(), *make_heads(15), None, **options)
    torch.testing.assert_close(whole, expected)
    query, key, value = make_heads(15)
    kept, _ = packed_attention(torch.nn.Module(), query[:, :, layout.keep], key, value, None, kept_only=True, **options)
    torch.testing.assert_close(kept, expected[:, layout.keep])


@pytest.mark.parametrize("unknown", [{"softcap": 0.7}, {"s_aux": torch.ones(2)}, {"dropout": 1}, {"is_causal": False}])
def test_an_attention_keyword_that_is_not_known_is_refused_by_name(unknown: dict[str, object]) -> None:
    with pytest.raises(ValueError, match=next(iter(unknown))):
        packed_attention(torch.nn.Module(), *make_heads(4), None, **unknown)


@pytest.mark.parametrize("autocast", [True, False])
def test_queries_and_keys_that_are_still_in_float32_take_autocasts_or_the_values_precision(autocast: bool) -> None:
    query, key, value = make_heads(4)
    with torch.autocast("cpu", torch.bfloat16, enabled=autocast):
        out, _ = packed_attention(torch.nn.Module(), query, key, value if autocast else value.bfloat16(), None)
    assert out.dtype == torch.bfloat16


@pytest.mark.parametrize("scale", [1.0, 0.5, 3.0])
def test_biased_and_scaled_heads_equal_the_whole_softmax(scale: float, monkeypatch) -> None:
    monkeypatch.setattr("webrl.training.layers.head.CHUNK_ELEMENTS", 150)
    torch.manual_seed(0)
    hidden, weight, bias = (torch.randn(*shape, requires_grad=True) for shape in ((11, 8), (50, 8), (50,)))
    targets, slope = torch.randint(0, 50, (11,)), torch.randn(11)
    logits = (hidden @ weight.t() + bias) * scale
    whole = logits.log_softmax(-1).gather(1, targets[:, None])[:, 0]
    ours = token_logprobs(hidden, weight, targets, bias=bias, scale=scale)
    torch.testing.assert_close(ours, whole)
    expected = torch.autograd.grad((whole * slope).sum(), (hidden, weight, bias))
    actual = torch.autograd.grad((ours * slope).sum(), (hidden, weight, bias))
    for a, e in zip(actual, expected, strict=True):
        torch.testing.assert_close(a, e, rtol=1e-4, atol=1e-5)


def test_dropout_is_off_in_training(tmp_path: Path) -> None:
    config = GPT2Config(vocab_size=64, n_embd=16, n_head=2, n_layer=2, n_positions=64)  # drops a tenth by default
    GPT2LMHeadModel(config).save_pretrained(tmp_path)
    model = load_actor(tmp_path).train()
    row = pack([Item(tuple(range(20)), 3)])
    first, second = (model(row) for _ in range(2))
    assert torch.equal(first, second)


def test_the_demos_model_is_packed_and_trimmed(tmp_path: Path) -> None:
    model = load_actor(make_actor(tmp_path))
    assert model.packs
    assert "forward" in vars(model.lm.base_model.layers[-1])


def test_pack_lays_samples_end_to_end() -> None:
    row = pack([Item((5, 6, 7), 1), Item((8, 9), 0), Item((2, 3, 4, 1), 2)])
    assert row.input_ids.tolist() == [[5, 6, 8, 9, 2, 3, 4]]  # a sample's last target is never read
    assert row.position_ids.tolist() == [[0, 1, 0, 1, 0, 1, 2]]
    assert row.layout.cu_seq_lens.tolist() == [0, 2, 4, 7]
    assert row.layout.keep.tolist() == [1, 3, 5, 6]  # a sample without targets is read at its last token
    assert row.layout.cu_keep_lens.tolist() == [0, 1, 2, 4]
    assert row.targets.tolist() == [7, 4, 1]
    assert row.target_sample.tolist() == [0, 2, 2]
    with pytest.raises(ValueError, match="cannot have 2 targets"):
        pack([Item((1, 2), 2)])


def test_cutting_takes_the_end_of_the_page_and_keeps_header_and_action() -> None:
    prompt = tuple(range(100, 130))
    ids = make_item(Example(prompt, (1, 2, 3)), 20).ids
    assert len(ids) == 20
    assert ids == (*prompt[:9], *prompt[-HEADER_TOKENS:], 1, 2, 3)
    assert make_item(Example(prompt, (1,)), 31).ids == (*prompt, 1)
    with pytest.raises(ValueError, match="action of 15 tokens"):
        make_item(Example(prompt, tuple(range(15))), 20)


def test_rows_are_even_complete_and_within_the_budget_and_hold_one_where_no_more_fits_or_is_taken() -> None:
    lengths = [7, 3, 9, 4, 4, 8, 2, 6, 5, 1]
    shares = plan_rows(lengths, max_tokens=13, num_ranks=2)
    rows = [row for share in shares for row in share]
    assert sorted(i for row in rows for i in row) == list(range(10))
    assert len(shares[0]) == len(shares[1]) == 2
    assert all(sum(lengths[i] for i in row) <= 13 for row in rows)
    assert [0] in plan_rows([50, 3, 3], max_tokens=10)[0]
    assert plan_rows([], max_tokens=10, num_ranks=2) == [[[]], [[]]]
    alone = plan_rows([5, 3, 9, 2, 4], max_tokens=100, num_ranks=2, packs=False)
    assert sorted([row for share in alone for row in share]) == [[], [0], [1], [2], [3], [4]]
    assert len(alone[0]) == len(alone[1]) == 3


@pytest.mark.parametrize(("tied", "kv_heads"), [(True, 4), (False, 2)])
def test_packed_gradients_equal_one_by_one_to_1e_5(tmp_path: Path, tied: bool, kv_heads: int) -> None:
    model = load_actor(make_actor(tmp_path / "actor", tied=tied, kv_heads=kv_heads))
    items = make_items()

    def gradients(rows: list[list[Item]]) -> dict[str, torch.Tensor]:
        model.zero_grad()
        for row in rows:
            packed = pack(row)
            logprobs = model(packed)
            sums = logprobs.new_zeros(packed.num_samples).index_add(0, packed.target_sample, logprobs)
            (sums.square().sum() / len(items)).backward()
        return {name: p.grad.clone() for name, p in model.named_parameters() if p.grad is not None}

    single = gradients([[item] for item in items])
    packed = gradients([items[:7], items[7:]])
    assert single.keys() == packed.keys()
    for name, grad in single.items():
        torch.testing.assert_close(packed[name], grad, rtol=1e-5, atol=1e-5 * float(grad.abs().max()))
