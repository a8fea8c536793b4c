"""LoRA and activation checkpointing: the same results by other means."""

import dataclasses
import json
from pathlib import Path

import pytest
import torch
from safetensors.torch import load_file
from training_builders import make_config, make_items, make_records
from transformers import AutoConfig, AutoModelForCausalLM

from webrl.config import OptimConfig
from webrl.errors import TrainingError
from webrl.training.architectures import apply_memory_policy, layers_of
from webrl.training.critic import load_critic
from webrl.training.lora import add_adapters, merge_adapters
from webrl.training.models import load_actor
from webrl.training.objectives import LossOutput
from webrl.training.packing import Item, Pack, pack
from webrl.training.scoring import score_actions
from webrl.training.trainer import Job, memory_errors, train
from webrl.training.update import train_actor, train_critic


@pytest.mark.parametrize("policy", ["full", "selective"])
def test_checkpointing_changes_no_gradient(actor: Path, policy: str) -> None:
    row = pack(make_items(4))
    gradients = []
    for checkpointing in ("none", policy):
        model = load_actor(actor)
        apply_memory_policy(model, OptimConfig.model_validate({"checkpointing": checkpointing}))
        model.train()
        model(row).square().sum().backward()
        gradients.append({name: p.grad for name, p in model.named_parameters()})
    for name, grad in gradients[0].items():
        torch.testing.assert_close(gradients[1][name], grad)


@pytest.mark.parametrize("kind", ["gpt_neox", "opt"])
def test_a_model_that_is_not_known_is_checkpointed_and_its_value_is_read_at_the_last_token(tmp_path, kind):
    config = AutoConfig.for_model(
        kind, vocab_size=64, hidden_size=32, intermediate_size=64, ffn_dim=64, word_embed_proj_dim=32,
        num_hidden_layers=2, num_attention_heads=4, pad_token_id=1, architectures=["X"],
    )  # fmt: skip
    AutoModelForCausalLM.from_config(config).save_pretrained(tmp_path)
    critic = load_critic(tmp_path, fresh=True)
    assert critic.route == "plain"
    rows = [pack([Item(ids, 0)]) for ids in ((5, 9), (5, 9, 1))]  # 1 is the padding's token
    values = [critic.eval()(row).item() for row in rows]
    assert values[0] != values[1]
    apply_memory_policy(critic, OptimConfig(checkpointing="full"))
    critic.train()
    modes = []
    for layer in layers_of(critic.lm) or ():
        next(layer.children()).register_forward_pre_hook(lambda module, _: modes.append(module.training))
    critic(rows[0]).sum().backward()
    assert modes == [False] * 4, "twice a layer, as for inference"


@pytest.mark.parametrize("precision", ["fp32", "bf16"])
def test_every_row_that_is_trained_is_checkpointed(actor: Path, tmp_path: Path, precision: str) -> None:
    """transformers' layers keep everything, without a word, as long as they are not told that they train."""
    model, items = load_actor(actor), make_items(4)
    config = OptimConfig.model_validate(
        {"precision": precision, "checkpointing": "full", "batch_size": 4, "epochs": 2.0, "lr": 1e-3}
    )
    apply_memory_policy(model, config)
    rows, passes = [], []
    *whole, _ = model.lm.model.layers  # the last is trimmed: transformers 5.24 does not checkpoint it
    for layer in whole:
        layer.mlp.register_forward_pre_hook(lambda *_: passes.append(torch.is_grad_enabled()))

    def loss(logprobs: torch.Tensor, row: Pack, _indices: list[int]) -> LossOutput:
        rows.append(torch.is_grad_enabled())
        return LossOutput(-torch.zeros(row.num_samples).index_add(0, row.target_sample, logprobs), {})

    job = Job(
        name="actor", model=model, items=items, active=[True] * len(items), ids=[""] * len(items),
        loss=loss, save=lambda _, folder: folder.mkdir(), heldout=items[:2], watch_every=1,
    )  # fmt: skip
    train(job, config, out=tmp_path / "new", seed=0, metrics_path=tmp_path / "metrics.jsonl", device="cpu")
    assert passes.count(True) == 2 * len(whole) * rows.count(True) > 0


def test_fresh_adapters_change_nothing_and_merge_exactly(actor: Path) -> None:
    model = load_actor(actor)
    row = pack(make_items(4))
    before = model(row).detach()
    torch.manual_seed(0)
    add_adapters(model, OptimConfig(lora_rank=4))
    torch.testing.assert_close(model(row).detach(), before)
    trained = {n for n, p in model.named_parameters() if p.requires_grad}
    assert trained
    assert all("lora_" in name for name in trained)
    assert any(".layers.1.mlp." in name for name in trained)
    for name, parameter in model.named_parameters():
        if "lora_B" in name:
            torch.nn.init.normal_(parameter, std=0.1)
    adapted = model(row).detach()
    assert (adapted - before).abs().max() > 1e-2
    merge_adapters(model.lm)
    assert not any("lora" in n for n, _ in model.named_parameters())
    torch.testing.assert_close(model(row).detach(), adapted, rtol=1e-4, atol=1e-4)


@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16])
def test_adapters_compute_what_pefts_own_compute(actor: Path, dtype: torch.dtype) -> None:
    row = pack(make_items(4))
    outcomes = []
    for own in (False, True):
        model = load_actor(actor)
        torch.manual_seed(0)
        add_adapters(model, OptimConfig(lora_rank=4, lora_alpha=10))
        adapted = [m for m in model.modules() if hasattr(m, "lora_A") and "forward" in vars(m)]
        assert len(adapted) == 14  # seven matrices in each of two layers
        for module in adapted:
            torch.nn.init.normal_(module.lora_B["default"].weight, std=0.1)
            if own:
                del module.forward, module.lora_B["default"].forward
        model.to(dtype)
        logprobs = model(row)
        logprobs.square().sum().backward()
        outcomes.append([logprobs.detach(), *(p.grad for p in model.parameters() if p.grad is not None)])
    assert len(outcomes[0]) == 29
    for found, expected in zip(*outcomes, strict=True):
        assert (found - expected).norm() <= (1e-5 if dtype == torch.float32 else 0.1) * expected.norm()


def test_lora_trains_actor_and_critic_and_writes_ordinary_folders(actor: Path, tmp_path: Path) -> None:
    config, records = make_config(lora_rank=4, lr=2e-3, epochs=8.0), make_records()
    arguments = {"seed": 0, "metrics_path": tmp_path / "m.jsonl"}
    train_critic(records, actor, tmp_path / "critic", config, **arguments)
    scored = [dataclasses.replace(r, value=0.5, next_value=0.5) for r in score_actions(records, actor, config)]
    train_actor(scored, actor, tmp_path / "new", config, **arguments)
    lines = [json.loads(line) for line in (tmp_path / "m.jsonl").read_text().splitlines()]
    for name in ("actor", "critic"):
        losses = [line[f"{name}/loss"] for line in lines if line["name"] == name]
        assert losses[-1] < losses[0]
    start, end = load_file(actor / "model.safetensors"), load_file(tmp_path / "new" / "model.safetensors")
    assert start.keys() == end.keys()
    moved = {name for name in start if not torch.equal(start[name], end[name])}
    assert "model.layers.0.self_attn.q_proj.weight" in moved
    assert "model.embed_tokens.weight" not in moved
    AutoModelForCausalLM.from_pretrained(tmp_path / "new")
    assert load_file(tmp_path / "critic" / "model.safetensors")["score.weight"].shape == (1, 16)


def test_the_log_has_what_the_paper_is_held_against(actor: Path, tmp_path: Path) -> None:
    config = make_config(objective="grpo", length_norm=8.0)
    records = [dataclasses.replace(r, group="g") for r in score_actions(make_records(), actor, config)]
    train_actor(records, actor, tmp_path / "new", config, seed=0, metrics_path=tmp_path / "m.jsonl")
    line = json.loads((tmp_path / "m.jsonl").read_text().splitlines()[-1])
    for key in ("loss", "kl", "perplexity", "log_ratio", "clip_fraction", "active_fraction", "grad_norm", "lr",
                "tokens_per_s", "peak_gib"):  # fmt: skip
        assert isinstance(line[f"actor/{key}"], float), key
    assert len(line["actor/advantage_values"]) == 2  # 18 samples in batches of 8, 8 and 2
    assert set(line["actor/advantage_values"]) <= {0.5, -0.5}


def test_all_zero_advantages_leave_the_model_as_it_is(actor: Path, tmp_path: Path) -> None:
    config = make_config(objective="sft")
    failed = [dataclasses.replace(r, outcome=0) for r in make_records()]
    losses = train_actor(failed, actor, tmp_path / "new", config, seed=0, metrics_path=tmp_path / "m.jsonl")
    assert losses == {"actor_rate_factor": 1.0, "actor_steps": 0, "actor_samples": 18, "actor_active": 0}
    start, end = load_file(actor / "model.safetensors"), load_file(tmp_path / "new" / "model.safetensors")
    assert all(torch.equal(start[name], end[name]) for name in start)


def test_long_pages_are_cut_never_the_action(actor: Path, tmp_path: Path, caplog: pytest.LogCaptureFixture) -> None:
    config = make_config(max_tokens=32)
    records = score_actions(make_records(), actor, config)
    long = sum(len(r.prompt_ids) + len(r.action_ids) > 32 for r in records)
    assert long > 0
    assert all(len(r.ref_logprobs or ()) == len(r.action_ids) for r in records)
    valued = [dataclasses.replace(r, value=0.5, next_value=0.5) for r in records]
    with caplog.at_level("WARNING"):
        losses = train_actor(valued, actor, tmp_path / "new", config, seed=0, metrics_path=tmp_path / "m.jsonl")
    assert f"{long} of 18 samples exceed 32 tokens" in caplog.text
    lines = [json.loads(line) for line in (tmp_path / "m.jsonl").read_text().splitlines()]
    assert lines[0]["actor/log_ratio"] == pytest.approx(0, abs=1e-4)  # scored and trained with the same cut
    assert losses["actor_samples"] == 18


def test_out_of_memory_names_the_options_to_change() -> None:
    def fail() -> None:
        with memory_errors(OptimConfig(max_tokens=4096)):
            torch.empty(1 << 50)

    with pytest.raises(TrainingError, match=r"max_tokens=4096.*checkpointing=full"):
        fail()
