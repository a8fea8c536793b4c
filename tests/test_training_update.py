"""Whole updates with a tiny real model on the CPU: what is learned, in what order, what is written, what is refused."""

import dataclasses
import json
from itertools import chain
from pathlib import Path
from typing import Any

import pytest
import torch
from safetensors.torch import load_file
from training_builders import FAR, make_config, make_record, make_records, make_scored, make_tokenizer
from transformers import AutoModelForCausalLM, AutoModelForSequenceClassification

from webrl.config import OptimConfig
from webrl.errors import DataError, ModelError, TrainingError, UsageError
from webrl.llm.loading import tokenizer_fingerprint
from webrl.llm.pictures import Example
from webrl.training import trainer
from webrl.training.critic import critic_loss, load_critic
from webrl.training.scoring import score_actions, score_values
from webrl.training.trainer import learning_rate, sample_batches
from webrl.training.update import train_actor, train_critic, train_sft


def test_scores_are_the_models_own_logprobs_and_keep_the_order(actor: Path) -> None:
    records = make_records(2)
    scored = score_actions(records, actor, make_config())
    assert [r.step_id for r in scored] == [r.step_id for r in records]
    record = scored[3]
    logits = AutoModelForCausalLM.from_pretrained(actor)(
        torch.tensor([[*record.prompt_ids, *record.action_ids]])
    ).logits
    own = logits[0].log_softmax(-1)[len(record.prompt_ids) - 1 : -1]
    expected = own.gather(1, torch.tensor(record.action_ids)[:, None])[:, 0].tolist()
    assert record.ref_logprobs == pytest.approx(expected, abs=1e-4)


def test_ids_that_the_model_does_not_have_are_named(actor: Path) -> None:
    records = make_records(2)
    records[1] = dataclasses.replace(records[1], action_ids=(1, 987654))
    with pytest.raises(TrainingError, match=rf"{records[1].step_id}.*token id 987654"):
        score_actions(records, actor, make_config())


def test_a_critic_learns_outcomes_and_its_values_are_chained(actor: Path, tmp_path: Path) -> None:
    config, records = make_config(), make_records()
    losses = train_critic(records, actor, tmp_path / "critic", config, seed=0, metrics_path=tmp_path / "metrics.jsonl")
    assert losses["critic_samples"] == 18
    assert 0 <= losses["critic_accuracy"] <= 1
    lines = [json.loads(line) for line in (tmp_path / "metrics.jsonl").read_text().splitlines()]
    assert [line["step"] for line in lines] == list(range(1, 10))  # 3 epochs of 18 in batches of 8
    assert lines[-1]["critic/loss"] < lines[0]["critic/loss"]
    scored = score_values(records, tmp_path / "critic", config)
    assert scored[0].next_value == scored[1].value
    assert scored[2].next_value == 0.0
    good, bad = ([r.value for r in scored if r.outcome == outcome] for outcome in (1, 0))
    assert sum(good) / len(good) > sum(bad) / len(bad) + 0.1
    again = train_critic(
        records, tmp_path / "critic", tmp_path / "critic2", config, seed=0, metrics_path=tmp_path / "m2.jsonl"
    )
    assert again["critic_loss"] < losses["critic_loss"]


def test_a_value_is_the_prompts_last_token_s_and_the_next_one_the_next_step_s_or_unknown(actor, tmp_path):
    config, records = make_config(epochs=1.0), make_records()
    train_critic(records, actor, tmp_path / "c", config, seed=0, metrics_path=tmp_path / "m")
    scored = score_values(records, tmp_path / "c", config)
    plain = AutoModelForSequenceClassification.from_pretrained(tmp_path / "c")
    for record in scored[:4]:
        value = plain(torch.tensor([record.prompt_ids])).logits[0, 0].sigmoid().item()
        assert record.value == pytest.approx(value, abs=1e-5)
    (alone,) = score_values(records[:1], tmp_path / "c", config)
    carried = dataclasses.replace(records[0], next_prompt_ids=records[1].prompt_ids)
    (helped,) = score_values([carried], tmp_path / "c", config)
    assert alone.next_value is None
    assert helped.next_value == pytest.approx(scored[1].value, abs=1e-6)


def test_critic_losses_by_hand() -> None:
    single = critic_loss(torch.tensor([[0.0], [2.0]]), torch.tensor([1.0, 0.0]))
    assert single.tolist() == pytest.approx([0.693147, 2.126928])


def test_the_actor_moves_towards_successes_and_away_from_failures(actor: Path, tmp_path: Path) -> None:
    config = make_config(lr=1e-3, epochs=10.0)
    records = make_scored(actor, config)
    losses = train_actor(records, actor, tmp_path / "new", config, seed=0, metrics_path=tmp_path / "m.jsonl")
    assert losses["actor_active"] == 18
    after = score_actions(records, tmp_path / "new", config)
    moved = [sum(new.ref_logprobs) - sum(old.ref_logprobs) for old, new in zip(records, after, strict=True)]
    up = [m for m, r in zip(moved, records, strict=True) if r.outcome]
    down = [m for m, r in zip(moved, records, strict=True) if not r.outcome]
    # advantages are 0.25 or 0.5 of either sign: with beta 1 the log-ratio is drawn there
    assert sum(up) / len(up) > 0.1
    assert sum(down) / len(down) < -0.1


def test_steps_of_zero_loss_get_no_pass_but_count_in_the_mean(actor: Path, tmp_path: Path) -> None:
    config = make_config(objective="webrl_released", epochs=1.0)
    losses = train_actor(
        make_scored(actor, config), actor, tmp_path / "new", config, seed=0, metrics_path=tmp_path / "m.jsonl"
    )
    assert losses["actor_active"] == 9
    assert losses["actor_active_fraction"] == pytest.approx(0.5)


def test_sft_learns_its_examples_and_leaves_alone_what_is_finished_or_no_model(actor: Path, tmp_path: Path) -> None:
    config = make_config()
    examples = [Example(r.prompt_ids, r.action_ids) for r in make_records()]
    options: dict[str, Any] = {"seed": 0, "metrics_path": tmp_path / "m.jsonl", "device": "cpu"}
    assert train_sft(examples, actor, tmp_path / "sft", config.orm, **options)
    lines = [json.loads(line) for line in (tmp_path / "m.jsonl").read_text().splitlines()]
    assert lines[-1]["sft/loss"] < 0.8 * lines[0]["sft/loss"]
    assert train_sft(examples, actor, tmp_path / "sft", config.orm, **options) == {}
    mine = tmp_path / "mine" / "thesis.tex"
    mine.parent.mkdir()
    mine.touch()
    for out in (mine.parent, mine):
        with pytest.raises(UsageError, match=r"holds thesis\.tex but no model; .* name another --out"):
            train_sft(examples, actor, out, config.orm, **options)
    assert mine.is_file()


def test_bad_input_is_refused_with_the_reason(actor: Path, tmp_path: Path) -> None:
    config = make_config()
    arguments = {"seed": 0, "metrics_path": tmp_path / "m.jsonl"}
    with pytest.raises(DataError, match="no records"):
        train_actor([], actor, tmp_path / "x", config, **arguments)
    unscored = [dataclasses.replace(r, value=0.5, next_value=0.0) for r in make_records()]
    with pytest.raises(TrainingError, match="run score_actions first"):
        train_actor(unscored, actor, tmp_path / "x", config, **arguments)
    with pytest.raises(TrainingError, match="has no outcome"):
        train_critic([make_record("t", 0, 1, None)], actor, tmp_path / "x", config, **arguments)
    with pytest.raises(ModelError, match="not a critic"):
        load_critic(actor)
    other = tokenizer_fingerprint(make_tokenizer("x"))
    with pytest.raises(TrainingError, match=other):
        train_critic([make_record("t", 0, 1, 1, tokenizer=other)], actor, tmp_path / "x", config, **arguments)


def test_a_non_finite_loss_stops_and_names_the_records(actor: Path, tmp_path: Path) -> None:
    config = make_config(**FAR)
    records = make_scored(actor, config)
    broken = [dataclasses.replace(records[0], value=float("nan")), *records[1:]]
    with pytest.raises(TrainingError, match="loss is nan"):
        train_actor(broken, actor, tmp_path / "new", config, seed=0, metrics_path=tmp_path / "m.jsonl")
    report = json.loads((tmp_path / "new_nonfinite_rank0.json").read_text())
    assert records[0].step_id in [sample["id"] for sample in report["samples"] if sample["loss"] == "nan"]
    assert not (tmp_path / "new").exists()


class Interrupted(Exception):
    """Raised in the middle of a run."""


@pytest.mark.parametrize("precision", ["fp32", "bf16"])
def test_interrupted_and_resumed_equals_uninterrupted_bit_for_bit(actor, tmp_path, monkeypatch, precision):
    config = make_config(epochs=2.0, save_every=2, schedule="cosine", warmup_ratio=0.2, precision=precision)
    records = make_scored(actor, config)
    train_actor(records, actor, tmp_path / "whole", config, seed=3, metrics_path=tmp_path / "whole.jsonl")

    step = trainer._Loop.step

    def die_at_step_4(self: object, number: int, *batch: object) -> dict[str, float]:
        if number == 3:
            raise Interrupted
        return step(self, number, *batch)

    monkeypatch.setattr(trainer._Loop, "step", die_at_step_4)
    with pytest.raises(Interrupted):
        train_actor(records, actor, tmp_path / "parts", config, seed=3, metrics_path=tmp_path / "parts.jsonl")
    assert not (tmp_path / "parts").exists()
    monkeypatch.setattr(trainer._Loop, "step", step)
    train_actor(records, actor, tmp_path / "parts", config, seed=3, metrics_path=tmp_path / "parts.jsonl")
    whole, parts = (load_file(tmp_path / name / "model.safetensors") for name in ("whole", "parts"))
    assert whole.keys() == parts.keys()
    assert all(torch.equal(whole[name], parts[name]) for name in whole)
    curves = [
        [json.loads(line)["actor/loss"] for line in (tmp_path / name).read_text().splitlines()]
        for name in ("whole.jsonl", "parts.jsonl")
    ]
    assert curves[0] == curves[1]
    assert not list(tmp_path.glob(".parts.state*"))


def test_a_state_of_another_config_is_refused(actor: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    config = make_config(epochs=1.0, save_every=1)
    records = make_scored(actor, config)
    monkeypatch.setattr(trainer, "atomic_path", lambda *_: (_ for _ in ()).throw(Interrupted))
    arguments = {"seed": 3, "metrics_path": tmp_path / "m.jsonl"}
    with pytest.raises(Interrupted):
        train_actor(records, actor, tmp_path / "new", config, **arguments)
    with pytest.raises(TrainingError, match="another config"):
        train_actor(records, actor, tmp_path / "new", make_config(epochs=1.0, save_every=1, lr=0.5), **arguments)


def test_each_epoch_visits_every_sample_once_in_an_order_that_depends_on_the_seed_alone() -> None:
    config = OptimConfig(batch_size=2, epochs=2.0)
    batches = sample_batches(5, config, seed=3)
    assert sample_batches(5, config, seed=3) == batches != sample_batches(5, config, seed=4)
    assert [len(b) for b in batches] == [2, 2, 1, 2, 2, 1]
    assert sorted(chain(*batches[:3])) == sorted(chain(*batches[3:])) == [0, 1, 2, 3, 4]
    assert batches[:3] != batches[3:]


def test_epochs_may_be_fractions_and_a_number_of_steps_replaces_them() -> None:
    assert [len(b) for b in sample_batches(10, OptimConfig(batch_size=4, epochs=1.3), seed=0)] == [4, 4, 2, 3]
    assert [len(b) for b in sample_batches(10, OptimConfig(batch_size=4, epochs=0.2), seed=0)] == [2]
    assert sample_batches(0, OptimConfig(), seed=0) == []

    def lengths(steps: int) -> list[int]:
        config = OptimConfig(batch_size=4, epochs=9.0, steps=steps)
        batches = sample_batches(10, config, seed=0)
        assert batches == sample_batches(10, OptimConfig(batch_size=4, epochs=3.0), seed=0)[:steps]
        return [len(batch) for batch in batches]

    assert lengths(2) == [4, 4]
    assert lengths(7) == [4, 4, 2, 4, 4, 2, 4]
    assert sample_batches(0, OptimConfig(steps=3), seed=0) == []


@pytest.mark.parametrize(
    ("schedule", "expected"),
    [("constant", [0.5, 1.0, 1.0, 1.0]), ("linear", [0.5, 1.0, 1.0, 0.5]), ("cosine", [0.5, 1.0, 1.0, 0.5])],
)
def test_learning_rates_warm_up_and_decay(schedule: str, expected: list[float]) -> None:
    config = OptimConfig.model_validate({"lr": 1.0, "schedule": schedule, "warmup_ratio": 0.5})
    assert [learning_rate(step, 4, config) for step in range(4)] == pytest.approx(expected)
