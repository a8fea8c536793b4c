"""Score once: per-token log-probs of every action under π_{k-1}, and one value per state.

The log-probs serve the replay filter's perplexity and the KL term alike. The value of s' is the next step's
value, so each state passes through the critic once.
"""

from __future__ import annotations

import dataclasses
import logging
from collections.abc import Callable, Iterable, Sequence
from pathlib import Path
from typing import TypeVar

import torch
from torch import Tensor

from webrl.config import RunConfig
from webrl.errors import TrainingError
from webrl.llm.loading import pick_device, pick_dtype
from webrl.llm.pictures import Example, Picture
from webrl.llm.products import use_products
from webrl.runs.clock import progress, spent_on
from webrl.training.architectures import compile_layers
from webrl.training.critic import load_critic, states_of
from webrl.training.devices import num_row_threads, row_threads
from webrl.training.models import PackedActor, PackedCritic, check_tokenizer, context_limit, load_actor
from webrl.training.packing import Item, Pack, make_item, pack, plan_rows
from webrl.training.topology import gather, world
from webrl.types import StepRecord

logger = logging.getLogger(__name__)
Model = TypeVar("Model", PackedActor, PackedCritic)

CPU_ROW_TOKENS = 2048
"""Rows longer than this are no faster on a CPU, and take memory."""


def score_actions(records: Iterable[StepRecord], model_dir: str | Path, config: RunConfig) -> list[StepRecord]:
    """Fill `ref_logprobs` under the model, in the order given.

    Raises:
        TrainingError: records made with another tokenizer, or with ids that the model does not have.
        ModelError: unusable model folder.
    """
    items = list(records)
    check_tokenizer(model_dir, {record.tokenizer for record in items})
    device = pick_device(config.models.device)
    dtype = scoring_dtype(config, device)
    examples = examples_of(items, config)
    model = _ready(load_actor(model_dir, dtype, sees=config.rollout.sees), device)
    vocab_size = model.lm.config.get_text_config().vocab_size
    for record in items:  # one whose tokenizer is not known may hold ids that the model does not have
        ids = *record.prompt_ids, *record.action_ids, 0
        if wrong := [i for i in (min(ids), max(ids)) if not 0 <= i < vocab_size]:
            raise TrainingError(
                f"step {record.step_id!r} holds token id {wrong[0]}, but {str(model_dir)!r} has {vocab_size} tokens: "
                "it was recorded with another model; remove its token ids to have its text tokenised again"
            )
    if config.actor.compile:
        compile_layers(model.lm)
    limit = context_limit(model.lm, config.actor.max_tokens)
    samples = [make_item(example, limit) for example in examples]
    scored = score_targets(model, samples, config.actor.max_tokens, device)
    return [dataclasses.replace(r, ref_logprobs=tuple(s.tolist())) for r, s in zip(items, scored, strict=True)]


def score_samples(
    samples: Sequence[Example], model_dir: str | Path, dtype: torch.dtype, device: str = "cpu"
) -> list[list[float]]:
    """Return the log-probabilities of the samples' actions."""
    items = [Item((*prompt, *action), len(action)) for prompt, action, _ in samples]
    model = _ready(load_actor(model_dir, dtype), device)
    return [s.tolist() for s in score_targets(model, items, CPU_ROW_TOKENS, device)]


def score_targets(model: PackedActor, samples: Sequence[Item], max_tokens: int, device: str) -> list[Tensor]:
    """Log-probabilities of each sample's targets, in the order given; [num_targets] float32 on the CPU each."""
    return run_rows(
        model,
        samples,
        lambda row: model(row).cpu().split(torch.bincount(row.target_sample, minlength=row.num_samples).tolist()),
        max_tokens,
        device,
        "score actions",
    )


def _ready(model: Model, device: str) -> Model:
    use_products(model)
    return model.to(device).eval()


def score_values(records: Iterable[StepRecord], critic_dir: str | Path, config: RunConfig) -> list[StepRecord]:
    """Fill `value` and `next_value`, in the order given.

    `next_value` is the value of the trajectory's next step, or of `next_prompt_ids` where that step is not among
    `records`; without either it is 0 after the last step and stays None elsewhere.
    """
    wanted = list(records)
    check_pictures(wanted, config)
    states = states_of(wanted, config.run_dir)
    check_tokenizer(critic_dir, {record.tokenizer for record in wanted})
    values = dict(zip(states, state_values(list(states.values()), critic_dir, config), strict=True))
    return [
        dataclasses.replace(
            r,
            value=values[r.trajectory_id, r.index],
            next_value=values.get((r.trajectory_id, r.index + 1), 0.0 if r.is_last else None),
            # From here on its value is enough.
            next_prompt_ids=r.next_prompt_ids if r.is_last else (),
            next_screenshot=r.next_screenshot if r.is_last else "",
            next_screenshot_sha256=r.next_screenshot_sha256 if r.is_last else "",
        )
        for r in wanted
    ]


def state_values(states: Sequence[Example], critic_dir: str | Path, config: RunConfig) -> list[float]:
    """V of each prompt with its picture, one pass, in the order given."""
    device = pick_device(config.models.device)
    model = _ready(load_critic(critic_dir, scoring_dtype(config, device), sees=config.rollout.sees), device)
    limit = context_limit(model.lm, config.critic.max_tokens)
    items = [make_item(state, limit) for state in states]
    budget = config.critic.max_tokens
    values = run_rows(model, items, lambda row: model(row)[:, 0].sigmoid().cpu(), budget, device, "score values")
    return [float(value) for value in values]


def run_rows(
    model: PackedActor | PackedCritic,
    items: Sequence[Item],
    score: Callable[[Pack], Iterable[Tensor]],
    max_tokens: int,
    device: str,
    what: str,
) -> list[Tensor]:
    """Pack, run `score` on every row without gradient, return its per-sample results in the order of `items`.

    Under a process group each rank takes its share of the rows and all get all results.
    """
    if not items:
        return []
    ranks, rank = world()
    lengths = [len(item.ids) for item in items]
    budget = min(max_tokens, CPU_ROW_TOKENS) if device == "cpu" else max_tokens
    rows = plan_rows(lengths, budget, ranks, packs=model.packs)[rank]
    with (
        spent_on("scoring"),
        row_threads(num_row_threads(model, device)) as over,
        progress(len(rows), what, "rows", leave=False) as bar,
    ):

        def run(row: list[int]) -> list[Tensor]:
            with torch.inference_mode():
                results = list(score(pack([items[i] for i in row], device))) if row else []
            bar.update()
            return results

        parts = over(run, rows)
    own = {i: result for row, part in zip(rows, parts, strict=True) for i, result in zip(row, part, strict=True)}
    results = {i: result for part in gather(own) for i, result in part.items()}
    bad = next((i for i, result in results.items() if not torch.isfinite(result).all()), None)
    if bad is not None:
        raise TrainingError(
            f"{what}: sample {bad} gave a non-finite result: "
            "the model folder is damaged, or its training diverged (lower lr)"
        )
    return [results[i] for i in range(len(items))]


def scoring_dtype(config: RunConfig, device: str) -> torch.dtype:
    """float32 on the CPU, bfloat16 on a GPU, unless the config names one."""
    dtype: torch.dtype = getattr(torch, pick_dtype(config.models.dtype, device))
    return dtype


def examples_of(records: Sequence[StepRecord], config: RunConfig) -> list[Example]:
    """Prompt, action and picture of each step. Raises as `check_pictures`."""
    check_pictures(records, config)
    return [Example(r.prompt_ids, r.action_ids, Picture.of(r, config.run_dir)) for r in records]


def check_pictures(records: Sequence[StepRecord], config: RunConfig) -> None:
    """Raise TrainingError unless every step was played with a screenshot where the run's actor sees, else without."""
    size = config.rollout.image_size
    for record in records:
        if bool(record.screenshot_sha256) != (size is not None):
            raise TrainingError(
                f"step {record.step_id!r} was played {'with' if size is None else 'without'} a screenshot, and "
                f"rollout.image_size={size}: training input must be the input that was played"
            )
