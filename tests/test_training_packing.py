"""Packing changes nothing but speed: positions, log-probs and gradients equal those of one sample at a time."""

from __future__ import annotations

from pathlib import Path

import pytest
import torch
from training_builders import make_actor, make_items
from transformers import AutoModelForCausalLM

from webrl.training.models import load_actor
from webrl.training.packing import HEADER_TOKENS, Item, cut_to, pack, plan_rows


def test_pack_lays_samples_end_to_end() -> None:
    row = pack([Item((5, 6, 7), 1), Item((8, 9), 0), Item((2, 3, 4, 1), 2)])
    assert row.input_ids.tolist() == [[5, 6, 8, 9, 2, 3, 4]]  # a sample's last target is never read
    assert row.position_ids.tolist() == [[0, 1, 0, 1, 0, 1, 2]]
    assert row.layout.cu_seq_lens.tolist() == [0, 2, 4, 7]
    assert row.layout.keep.tolist() == [1, 3, 5, 6]  # a sample without targets is read at its last token
    assert row.layout.cu_keep_lens.tolist() == [0, 1, 2, 4]
    assert row.targets.tolist() == [7, 4, 1]
    assert row.target_sample.tolist() == [0, 2, 2]


def test_pack_refuses_samples_without_context() -> None:
    with pytest.raises(ValueError, match="cannot have 2 targets"):
        pack([Item((1, 2), 2)])


def test_cutting_takes_the_end_of_the_page_and_keeps_header_and_action() -> None:
    prompt = tuple(range(100, 130))
    ids = cut_to(prompt, (1, 2, 3), 20)
    assert len(ids) == 20
    assert ids == (*prompt[:9], *prompt[-HEADER_TOKENS:], 1, 2, 3)
    assert cut_to(prompt, (1,), 31) == (*prompt, 1)
    with pytest.raises(ValueError, match="action of 15 tokens"):
        cut_to(prompt, tuple(range(15)), 20)


def test_rows_are_even_complete_and_within_the_budget() -> None:
    lengths = [7, 3, 9, 4, 4, 8, 2, 6, 5, 1]
    shares = plan_rows(lengths, max_tokens=13, num_ranks=2)
    rows = [row for share in shares for row in share]
    assert sorted(i for row in rows for i in row) == list(range(10))
    assert len(shares[0]) == len(shares[1]) == 2
    assert all(sum(lengths[i] for i in row) <= 13 for row in rows)


def test_a_sample_longer_than_the_budget_gets_its_own_row() -> None:
    shares = plan_rows([50, 3, 3], max_tokens=10)
    assert [0] in shares[0]
    assert plan_rows([], max_tokens=10, num_ranks=2) == [[[]], [[]]]


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


def test_packed_logprobs_equal_transformers_own_logits(tmp_path: Path) -> None:
    folder = make_actor(tmp_path / "actor")
    items = make_items(2)
    row = pack(items)
    ours = load_actor(folder)(row).detach()
    plain = AutoModelForCausalLM.from_pretrained(folder)
    theirs = []
    for item in items:
        logprobs = plain(torch.tensor([item.ids])).logits[0].log_softmax(-1)
        theirs += [logprobs[-i - 1, item.ids[-i]].item() for i in range(item.num_targets, 0, -1)]
    torch.testing.assert_close(ours, torch.tensor(theirs), rtol=1e-4, atol=1e-5)
