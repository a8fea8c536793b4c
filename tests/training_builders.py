"""Tiny real models and records for the training tests."""

import dataclasses
import random
from pathlib import Path

import torch
from tokenizers import Tokenizer
from tokenizers.models import WordLevel
from transformers import LlamaConfig, LlamaForCausalLM, PreTrainedTokenizerFast

from webrl.config import OptimConfig, RunConfig
from webrl.training.packing import Item
from webrl.training.scoring import score_actions
from webrl.types import StepRecord

VOCAB = 64
FAR: dict[str, object] = {"max_kl": None, "max_success_drop": None}
"""No trust region: a few records are learnt by heart."""


def make_tokenizer(extra: str = "") -> PreTrainedTokenizerFast:
    vocab = {f"w{i}{extra}": i for i in range(VOCAB)}
    return PreTrainedTokenizerFast(
        tokenizer_object=Tokenizer(WordLevel(vocab, unk_token="w0" + extra)), eos_token="w1" + extra
    )


def make_actor(folder: Path, *, tied: bool = True, kv_heads: int = 2, seed: int = 0) -> Path:
    """A Llama of 12 k parameters with tokenizer."""
    torch.manual_seed(seed)
    size = {"vocab_size": VOCAB, "hidden_size": 16, "intermediate_size": 32, "num_hidden_layers": 2}
    heads = {"num_attention_heads": 4, "num_key_value_heads": kv_heads, "max_position_embeddings": 128}
    tokens = {"eos_token_id": 1, "bos_token_id": None}
    config = LlamaConfig(**size, **heads, **tokens, tie_word_embeddings=tied, initializer_range=0.3)
    LlamaForCausalLM(config).save_pretrained(folder)
    make_tokenizer().save_pretrained(folder)
    return folder


def make_record(trajectory: str, index: int, num_steps: int, outcome: int | None, **fields: object) -> StepRecord:
    rng = random.Random(f"{trajectory}:{index}")
    values: dict[str, object] = {
        "prompt_ids": tuple(rng.randrange(2, VOCAB) for _ in range(rng.randrange(9, 40))),
        "action_ids": (*(rng.randrange(2, VOCAB) for _ in range(rng.randrange(1, 6))), 1),
    } | fields
    named = (f"{trajectory}:{index}", trajectory, f"do {trajectory}", "miniwob.click-button")
    return StepRecord(*named, 1, index, num_steps, outcome=outcome, **values)  # type: ignore[arg-type]


def make_records(num_trajectories: int = 6, num_steps: int = 3) -> list[StepRecord]:
    """Every other trajectory succeeds."""
    return [make_record(f"t{t}", i, num_steps, t % 2) for t in range(num_trajectories) for i in range(num_steps)]


def make_items(num_trajectories: int = 6) -> list[Item]:
    return [Item((*r.prompt_ids, *r.action_ids), len(r.action_ids)) for r in make_records(num_trajectories)]


def make_config(**train: object) -> RunConfig:
    """A run on the CPU whose critic and outcome model are trained like its actor."""
    shared = {"lr": 1e-2, "batch_size": 8, "max_tokens": 128, "epochs": 3.0} | train
    others = {k: v for k, v in shared.items() if k in OptimConfig.model_fields}
    return RunConfig.model_validate({"models": {"device": "cpu"}, "actor": shared, "critic": others, "orm": others})


def make_scored(folder: Path, config: RunConfig) -> list[StepRecord]:
    """`make_records` with the actor's log-probabilities, and values of one half."""
    records = score_actions(make_records(), folder, config)
    return [dataclasses.replace(r, value=0.5, next_value=0.0 if r.is_last else 0.5) for r in records]
