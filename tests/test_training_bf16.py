"""bfloat16 weights over float32 masters: what is learnt, what is exact, what is kept small."""

import dataclasses
import json
import math
from pathlib import Path

import pytest
import torch
from training_builders import FAR, make_items, make_records

from webrl.config import OptimConfig, RunConfig
from webrl.errors import TrainingError
from webrl.training.engines import open_engine
from webrl.training.engines.ddp import Engine
from webrl.training.models import PackedActor, load_actor
from webrl.training.packing import Item, pack
from webrl.training.scoring import score_actions
from webrl.training.update import prepare, train_actor, train_critic


def open_actor(folder: Path, **options: object) -> tuple[PackedActor, Engine]:
    config = OptimConfig.model_validate({"precision": "bf16"} | options)
    model = load_actor(folder)
    prepare(model, config, 0)
    return model, open_engine(model, config, "cpu")


def accumulate(model: PackedActor, engine: Engine, rows: list[list[Item]]) -> None:
    for row in rows:
        engine.backward(-model(pack(row)).sum())


def master_gradients(engine: Engine) -> dict[str, torch.Tensor]:
    return {n: g for b in engine.buckets for n, g in zip(b.names, b.parts(b.master.grad), strict=True)}


class Experts(torch.nn.Module):
    """Two matrices, a vector and a scalar; one matrix may be left out."""

    def __init__(self) -> None:
        super().__init__()
        torch.manual_seed(0)
        self.first, self.second = torch.nn.Linear(4, 3, bias=False), torch.nn.Linear(4, 3, bias=False)
        self.shift, self.scale = torch.nn.Parameter(torch.ones(3)), torch.nn.Parameter(torch.tensor(2.0))

    def forward(self, x: torch.Tensor, both: bool = True) -> torch.Tensor:
        x = x.to(self.shift.dtype)
        y = self.first(x) + self.shift * self.scale
        return (y + self.second(x) if both else y).float().square().sum()


def experts(**options: object) -> tuple[Experts, Engine]:
    settings = {"precision": "bf16", "lr": 1e-2, "weight_decay": 0.1} | options
    model = Experts()
    return model, open_engine(model, OptimConfig.model_validate(settings), "cpu")


def test_steps_smaller_than_a_rounding_of_bfloat16_are_not_lost(actor: Path) -> None:
    model, engine = open_actor(actor, lr=1e-6, betas=(0.0, 0.0))
    before = {name: value.clone() for name, value in engine.full_state().items()}
    start = {name: p.detach().clone() for name, p in model.named_parameters()}
    for _ in range(3):
        accumulate(model, engine, [make_items(4)])
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


def test_the_gradient_is_that_of_float32_up_to_rounding_and_rows_add_up_in_float32(actor: Path) -> None:
    items = make_items(8)
    exact, plain = open_actor(actor, precision="fp32")
    accumulate(exact, plain, [items])
    of_exact = dict(exact.named_parameters())
    model, engine = open_actor(actor)
    accumulate(model, engine, [items[i : i + 2] for i in range(0, len(items), 2)])
    found = torch.cat([g.flatten() for g in master_gradients(engine).values()])
    expected = torch.cat([of_exact[name].grad.flatten() for name in master_gradients(engine)])
    assert found.dtype == torch.float32
    assert all(p.grad is None for p in model.parameters())
    assert (found - expected).norm() / expected.norm() < 0.06
    # summed in bfloat16 it would hold no value between two of its roundings
    assert not torch.equal(found, found.to(torch.bfloat16).float())


def test_training_computes_what_scoring_computed(actor: Path, tmp_path: Path) -> None:
    optim = {"precision": "bf16", "objective": "sft", "batch_size": 64, "lr": 1e-3}
    config = RunConfig.model_validate({"models": {"device": "cpu", "dtype": "bfloat16"}, "actor": optim})
    records = score_actions(make_records(), actor, config)
    train_actor(records, actor, tmp_path / "new", config, seed=0, metrics_path=tmp_path / "m.jsonl")
    first = json.loads((tmp_path / "m.jsonl").read_text().splitlines()[0])
    assert first["actor/log_ratio"] == pytest.approx(0, abs=2e-2)  # rows are packed otherwise, products rounded so
    _, engine = open_actor(actor)
    item = [make_items(4)[0]]
    scored = load_actor(actor, torch.bfloat16)(pack(item))
    assert torch.equal(engine.model(pack(item)), scored)


def test_a_state_without_masters_is_refused(actor: Path, tmp_path: Path) -> None:
    open_actor(actor, precision="fp32")[1].save_state(tmp_path / "state" / "step_1")
    with pytest.raises(TrainingError, match=r"step_1 does not hold this model's float32 masters.*delete .*state"):
        open_actor(actor)[1].load_state(tmp_path / "state" / "step_1")


def test_a_frozen_base_has_no_float32_copy(actor: Path) -> None:
    model, engine = open_actor(actor, lora_rank=2)
    frozen = [p for p in model.parameters() if not p.requires_grad]
    trained = [p for p in model.parameters() if p.requires_grad]
    assert frozen
    assert {p.dtype for p in frozen} == {torch.bfloat16}
    assert sum(b.master.numel() for b in engine.buckets) == sum(p.numel() for p in trained)
    assert set(engine.full_state()) == {n for n, p in model.named_parameters() if p.requires_grad}


def test_a_tied_weight_stays_tied_and_gets_both_gradients(actor: Path) -> None:
    model, engine = open_actor(actor)
    head, table = model.lm.get_output_embeddings().weight, model.lm.get_input_embeddings().weight
    assert head is table
    accumulate(model, engine, [make_items(4)])
    grad = master_gradients(engine)["lm.model.embed_tokens.weight"]
    assert (grad.abs().sum(1) > 0).all()  # the head's reaches every token, the table's only those that occur


def test_critic_and_adapters_learn_in_bfloat16(actor: Path, tmp_path: Path) -> None:
    shared = {"precision": "bf16", "lr": 5e-3, "batch_size": 8, "epochs": 6.0}
    config = RunConfig.model_validate(
        {"models": {"device": "cpu"}, "critic": shared, "actor": shared | FAR | {"lora_rank": 4, "objective": "sft"}}
    )
    records = make_records()
    arguments = {"seed": 0, "metrics_path": tmp_path / "m.jsonl"}
    train_critic(records, actor, tmp_path / "critic", config, **arguments)
    scored = [dataclasses.replace(r, outcome=1) for r in score_actions(records, actor, config)]
    train_actor(scored, actor, tmp_path / "new", config, **arguments)
    lines = [json.loads(line) for line in (tmp_path / "m.jsonl").read_text().splitlines()]
    for name in ("critic", "actor"):
        losses = [line[f"{name}/loss"] for line in lines if line["name"] == name]
        assert losses[-1] < 0.8 * losses[0], name


@pytest.mark.parametrize("most", [1, 12, 1 << 28])
@pytest.mark.parametrize("limit", [1e-2, 1e6])
def test_a_step_is_adamws_with_clipped_gradients_whatever_the_buckets(most, limit, monkeypatch):
    monkeypatch.setattr("webrl.training.engines.bf16._BUCKET_WEIGHTS", most)
    model, engine = experts(max_grad_norm=limit)
    assert len(engine.buckets) == {1: 4, 12: 3, 1 << 28: 2}[most]
    plain = {name: torch.nn.Parameter(value.clone()) for name, value in engine.full_state().items()}
    decaying = [p for p in plain.values() if p.ndim >= 2]
    others = [p for p in plain.values() if p.ndim < 2]
    adamw = torch.optim.AdamW(
        [{"params": decaying}, {"params": others, "weight_decay": 0}], 1e-2, (0.9, 0.95), 1e-8, 0.1
    )
    generator = torch.Generator().manual_seed(0)
    for _ in range(3):
        for p in plain.values():
            p.grad = torch.zeros_like(p)
        for x in torch.randn(2, 5, 4, generator=generator):
            loss = model(x)
            for p, g in zip(model.parameters(), torch.autograd.grad(loss, list(model.parameters())), strict=True):
                plain[next(n for n, q in model.named_parameters() if q is p)].grad += g.float()
            engine.backward(model(x))
        norm = torch.nn.utils.clip_grad_norm_(plain.values(), limit)
        adamw.step()
        assert engine.step(1e-2) == pytest.approx(norm.item(), rel=1e-6)
        for name, value in engine.full_state().items():
            torch.testing.assert_close(value, plain[name].detach(), rtol=1e-6, atol=1e-7)
            assert torch.equal(dict(model.named_parameters())[name], value.to(torch.bfloat16))


@pytest.mark.parametrize("value", [float("nan"), float("inf")])
def test_a_gradient_that_is_not_finite_leaves_weights_and_moments_alone(value: float) -> None:
    model, engine = experts()
    x = torch.ones(2, 4)
    engine.backward(model(x))
    engine.step(1e-2)
    before = [p.detach().clone() for p in (*engine.full_state().values(), *model.parameters())]
    state = [[v.clone() for v in engine.optimizer.state[b.master].values()] for b in engine.buckets]
    engine.backward(model(x) * value)
    norm = engine.step(1e-2)
    assert not math.isfinite(norm)
    after = [*engine.full_state().values(), *model.parameters()]
    assert all(torch.equal(a, b) for a, b in zip(after, before, strict=True))
    for bucket, was in zip(engine.buckets, state, strict=True):
        now = engine.optimizer.state[bucket.master].values()
        assert all(torch.equal(a, b) for a, b in zip(now, was, strict=True))
    engine.backward(model(x))
    assert math.isfinite(engine.step(1e-2))
    assert not torch.equal(engine.full_state()["first.weight"], before[0])


def test_weights_that_stay_in_float32_have_buckets_of_their_own() -> None:
    model = Experts()
    model._keep_in_fp32_modules_strict = ["second"]
    engine = open_engine(model, OptimConfig.model_validate({"precision": "bf16"}), "cpu")
    assert {p.dtype for p in (model.first.weight, model.shift)} == {torch.bfloat16}
    assert model.second.weight.dtype == torch.float32
    assert sorted(b.names for b in engine.buckets) == [["first.weight"], ["second.weight"], ["shift", "scale"]]
    x = torch.ones(2, 4)
    y = (model.first(x.bfloat16()) * model.shift * model.scale).float().sum() + model.second(x).sum()
    engine.backward(y)
    engine.step(1e-2)
    assert torch.equal(model.second.weight, engine.full_state()["second.weight"])


def test_a_resumed_state_goes_on_with_the_same_bits(tmp_path: Path) -> None:
    x = torch.randn(3, 4, generator=torch.Generator().manual_seed(0))
    model, engine = experts()
    for both in (True, False):
        engine.backward(model(x, both=both))
        engine.step(1e-2)
    engine.save_state(tmp_path / "state")
    model_2, engine_2 = experts()
    engine_2.load_state(tmp_path / "state")
    assert all(torch.equal(a, b) for a, b in zip(model.parameters(), model_2.parameters(), strict=True))
    for m, e in ((model, engine), (model_2, engine_2)):
        e.backward(m(x))
        e.step(1e-2)
    for name, value in engine.full_state().items():
        assert torch.equal(value, engine_2.full_state()[name])
