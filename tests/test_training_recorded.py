"""Rows as recorded CUDA graphs: what they are filled with changes nothing, and a GPU learns the same."""

from __future__ import annotations

import dataclasses
from pathlib import Path

import pytest
import torch
from training_builders import make_records

from webrl.config import ActorConfig
from webrl.training.attention import Layout
from webrl.training.models import PackedActor, actor_inputs
from webrl.training.packing import Item, Pack, pack
from webrl.training.recorded import FilledRow, RecordedRows, Shape
from webrl.training.selfcheck import attention_of, build
from webrl.training.trainer import _Loop, open_engine
from webrl.training.update import actor_job, prepare

CPU = torch.device("cpu")


def make_items(count: int) -> list[Item]:
    return [Item((*r.prompt_ids, *r.action_ids), len(r.action_ids)) for r in make_records(count)]


def open_qwen(device: str = "cpu") -> PackedActor:
    from transformers import AutoModelForCausalLM, Qwen3Config

    torch.manual_seed(0)
    config = Qwen3Config(
        vocab_size=2048, hidden_size=32, intermediate_size=48, num_hidden_layers=2, num_attention_heads=4,
        num_key_value_heads=2, head_dim=16, tie_word_embeddings=True,
    )  # fmt: skip
    return PackedActor(build(AutoModelForCausalLM, config, torch.float32, attention_of("packed"))).to(device)


def as_it_lies(filled: FilledRow) -> Pack:
    """The filled row with its sequences' true lengths, as a CPU needs them."""
    layout = filled.pack.layout
    lens = tuple(n for n in layout.cu_seq_lens.diff().tolist() if n)
    true = Layout(lens, layout.cu_seq_lens, layout.keep, layout.keep_lens, layout.cu_keep_lens)
    return dataclasses.replace(filled.pack, layout=true)


def test_a_filled_row_computes_what_the_row_does_whatever_was_laid_before_it() -> None:
    model, items = open_qwen(), make_items(8)
    filled = FilledRow(Shape(tokens=800, sequences=60, kept=240, longest=64), CPU)
    for part in (items, items[:2], items[5:]):
        row = pack(part)
        filled.lay(row)
        assert sum(as_it_lies(filled).layout.seq_lens) == 800
        with torch.no_grad():
            expected = model(**actor_inputs(row))
            found = model(**actor_inputs(as_it_lies(filled)))[: len(expected)]
        torch.testing.assert_close(found, expected, rtol=1e-5, atol=1e-5)


def test_a_row_fits_into_the_shape_made_for_it_and_not_into_one_too_small_or_much_too_large() -> None:
    row = pack([Item(tuple(range(500)), 10)] * 40)
    own = Shape.of(row)
    assert own == Shape(tokens=20480, sequences=64, kept=512, longest=512)
    assert own.holds(row)
    for field, value in {"tokens": 19000, "sequences": 40, "kept": 256, "longest": 256}.items():
        assert not dataclasses.replace(own, **{field: value}).holds(row)
    assert not dataclasses.replace(own, tokens=40960).holds(row)


def test_rows_on_a_cpu_are_computed_as_they_come() -> None:
    model, config = open_qwen(), ActorConfig(precision="bf16")
    rows = RecordedRows(model, open_engine(model, config, "cpu"), config)
    assert not rows.enabled
    row = pack(make_items(2))
    assert torch.equal(rows(row), model(**actor_inputs(row)))


def open_loop(folder: Path, *, graphs: bool) -> _Loop:
    config = ActorConfig.model_validate(
        {"objective": "sft", "precision": "bf16", "lr": 1e-3, "batch_size": 8, "cuda_graphs": graphs}
    )
    model = open_qwen("cuda")
    prepare(model, config, 0)
    job = actor_job(model, make_records(8), config, save=lambda *_: None)
    return _Loop(job, config, open_engine(model, config, "cuda"), "cuda", 10, folder)


@pytest.mark.gpu
def test_a_recorded_row_gives_the_gradient_of_the_row_and_rows_add_up(tmp_path: Path) -> None:
    loop = open_loop(tmp_path, graphs=True)
    rows = [pack(make_items(8)[start : start + 4], "cuda") for start in (0, 4)]
    forward, engine = loop.forward, loop.engine

    def gradient(*, recorded: bool) -> torch.Tensor:
        forward.enabled = recorded
        engine.optimizer.zero_grad(set_to_none=not engine.keeps_gradients)
        for row in rows:
            engine.backward(-forward(row).mean())
        return torch.cat([master.grad.flatten().clone() for master in engine.masters])

    for _ in range(4):
        gradient(recorded=True)
    assert forward.recordings
    found, expected = gradient(recorded=True), gradient(recorded=False)
    assert (found - expected).norm() <= 0.02 * expected.norm()


@pytest.mark.gpu
def test_training_with_recorded_rows_learns_what_it_learns_without(tmp_path: Path) -> None:
    losses = []
    for graphs in (False, True):
        loop = open_loop(tmp_path / str(graphs), graphs=graphs)
        losses.append([loop.step(step, list(range(8)), 8)["loss"] for step in range(10)])
        assert bool(loop.forward.recordings) == graphs
    assert losses[0][-1] < losses[0][0] - 0.1
    assert max(abs(a - b) for a, b in zip(*losses, strict=True)) < 0.02
