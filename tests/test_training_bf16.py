"""bfloat16 weights over float32 masters: what is learnt, what is exact, what is kept small."""

from __future__ import annotations

import dataclasses
import json
from pathlib import Path

import pytest
import torch
from training_builders import make_actor, make_records

from webrl.config import OptimConfig, RunConfig
from webrl.errors import TrainingError
from webrl.training import score_actions, train_actor, train_critic
from webrl.training.engines import open_engine
from webrl.training.engines.ddp import Engine
from webrl.training.models import PackedActor, load_actor
from webrl.training.packing import Item, actor_inputs, pack
from webrl.training.update import prepare


def open_actor(folder: Path, **options: object) -> tuple[PackedActor, Engine]:
    config = OptimConfig.model_validate({"precision": "bf16"} | options)
    model = load_actor(folder)
    prepare(model, config, 0)
    return model, open_engine(model, config, "cpu")


def make_items(count: int = 4) -> list[Item]:
    return [Item((*r.prompt_ids, *r.action_ids), len(r.action_ids)) for r in make_records(count)]


def accumulate(model: PackedActor, engine: Engine, rows: list[list[Item]]) -> None:
    for row in rows:
        engine.backward(-model(**actor_inputs(pack(row))).sum())


def gradients(model: torch.nn.Module) -> torch.Tensor:
    return torch.cat([p.grad.flatten().float() for p in model.parameters() if p.grad is not None])


def test_steps_smaller_than_a_rounding_of_bfloat16_are_not_lost(tmp_path: Path) -> None:
    folder = make_actor(tmp_path / "actor")
    model, engine = open_actor(folder, lr=1e-6, betas=(0.0, 0.0))
    before = {name: value.clone() for name, value in engine.full_state().items()}
    start = {name: p.detach().clone() for name, p in model.named_parameters()}
    for _ in range(3):
        accumulate(model, engine, [make_items()])
        engine.step(1e-6)
    moved = {name: (value - before[name]).abs() for name, value in engine.full_state().items()}
    unseen = "lm.model.embed_tokens.weight"  # rows of tokens that occur nowhere move through the softmax alone
    assert all(m.max() > 2e-6 for m in moved.values())
    assert all((m > 0).float().mean() > 0.9 for name, m in moved.items() if name != unseen)
    # what computes is the master rounded; three such steps hardly ever reach the next bfloat16
    assert {p.dtype for p in model.parameters()} == {torch.bfloat16}
    same = [torch.equal(p, start[name]) for name, p in model.named_parameters()]
    assert sum(same) > 0
    for name, p in model.named_parameters():
        assert torch.equal(p, engine.full_state()[name].to(torch.bfloat16))


def test_the_gradient_is_that_of_float32_up_to_rounding_and_rows_add_up_in_float32(tmp_path: Path) -> None:
    folder, items = make_actor(tmp_path / "actor"), make_items(8)
    exact, plain = open_actor(folder, precision="fp32")
    accumulate(exact, plain, [items])
    expected = gradients(exact)
    model, engine = open_actor(folder)
    accumulate(model, engine, [items[i : i + 2] for i in range(0, len(items), 2)])
    found = gradients(engine.masters)
    assert found.dtype == torch.float32
    assert all(p.grad is None for p in model.parameters())
    assert (found - expected).norm() / expected.norm() < 0.06
    # summed in bfloat16 it would hold no value between two of its roundings
    assert not torch.equal(found, found.to(torch.bfloat16).float())


def test_training_computes_what_scoring_computed(tmp_path: Path) -> None:
    folder = make_actor(tmp_path / "actor")
    config = RunConfig.model_validate(
        {
            "models": {"device": "cpu", "dtype": "bfloat16"},
            "actor": {"precision": "bf16", "objective": "sft", "batch_size": 64, "lr": 1e-3},
        }
    )
    records = score_actions(make_records(), folder, config)
    train_actor(records, folder, tmp_path / "new", config, seed=0, metrics_path=tmp_path / "m.jsonl")
    first = json.loads((tmp_path / "m.jsonl").read_text().splitlines()[0])
    assert first["actor/log_ratio"] == pytest.approx(0, abs=2e-2)  # rows are packed otherwise, products rounded so
    _, engine = open_actor(folder)
    item = [make_items()[0]]
    scored = load_actor(folder, torch.bfloat16)(**actor_inputs(pack(item)))
    assert torch.equal(engine.model(**actor_inputs(pack(item))), scored)


def test_a_state_without_masters_is_refused(tmp_path: Path) -> None:
    folder = make_actor(tmp_path / "actor")
    open_actor(folder, precision="fp32")[1].save_state(tmp_path / "state" / "step_1")
    with pytest.raises(TrainingError, match=r"step_1 does not hold this model's float32 masters.*delete .*state"):
        open_actor(folder)[1].load_state(tmp_path / "state" / "step_1")


def test_a_frozen_base_has_no_float32_copy(tmp_path: Path) -> None:
    model, engine = open_actor(make_actor(tmp_path / "actor"), lora_rank=2)
    frozen = [p for p in model.parameters() if not p.requires_grad]
    trained = [p for p in model.parameters() if p.requires_grad]
    assert frozen
    assert {p.dtype for p in frozen} == {torch.bfloat16}
    assert sum(m.numel() for m in engine.masters) == sum(p.numel() for p in trained)
    assert set(engine.full_state()) == {n for n, p in model.named_parameters() if p.requires_grad}


def test_a_tied_weight_stays_tied_and_gets_both_gradients(tmp_path: Path) -> None:
    model, engine = open_actor(make_actor(tmp_path / "actor", tied=True))
    head, table = model.lm.get_output_embeddings().weight, model.lm.get_input_embeddings().weight
    assert head is table
    accumulate(model, engine, [make_items()])
    grad = engine.masters[engine.names.index("lm.model.embed_tokens.weight")].grad
    assert (grad.abs().sum(1) > 0).all()  # the head's reaches every token, the table's only those that occur


def test_critic_and_adapters_learn_in_bfloat16(tmp_path: Path) -> None:
    shared = {"precision": "bf16", "lr": 5e-3, "batch_size": 8, "epochs": 6.0}
    config = RunConfig.model_validate(
        {"models": {"device": "cpu"}, "critic": shared, "actor": shared | {"lora_rank": 4, "objective": "sft"}}
    )
    folder, records = make_actor(tmp_path / "actor"), make_records()
    arguments = {"seed": 0, "metrics_path": tmp_path / "m.jsonl"}
    train_critic(records, folder, tmp_path / "critic", config, **arguments)
    scored = [dataclasses.replace(r, outcome=1) for r in score_actions(records, folder, config)]
    train_actor(scored, folder, tmp_path / "new", config, **arguments)
    lines = [json.loads(line) for line in (tmp_path / "m.jsonl").read_text().splitlines()]
    for name in ("critic", "actor"):
        losses = [line[f"{name}/loss"] for line in lines if line["name"] == name]
        assert losses[-1] < 0.8 * losses[0], name
