"""Critic, actor and supervised training: records in, Hugging Face folders out.

A finished output folder is left alone, so that an interrupted phase resumes where it stopped.
"""

from __future__ import annotations

import dataclasses
import logging
from collections.abc import Callable, Sequence
from functools import partial
from pathlib import Path
from typing import Any

import torch
from torch import Tensor

from webrl.config import ActorConfig, OptimConfig, RunConfig
from webrl.config.resources import load_plan
from webrl.errors import DataError, TrainingError, UsageError
from webrl.llm.loading import config_of, mark_folder, pick_device
from webrl.llm.pictures import Example, Picture
from webrl.runs.store import read_json, read_records, write_json
from webrl.training.architectures import apply_memory_policy
from webrl.training.critic import critic_loss, load_critic
from webrl.training.devices import send
from webrl.training.lora import add_adapters, merge_adapters
from webrl.training.models import PackedActor, PackedCritic, check_tokenizer, context_limit, load_actor
from webrl.training.objectives import OBJECTIVES, LossInput, LossOutput, Objective, outcome_of
from webrl.training.packing import Item, Pack, make_item
from webrl.training.scoring import check_pictures, examples_of
from webrl.training.topology import broadcast, is_main, world
from webrl.training.trainer import Job, train
from webrl.training.trust import RETRIES, RETRY_FACTOR, make_region
from webrl.types import StepRecord

logger = logging.getLogger(__name__)
Records = Path | Sequence[StepRecord]
Save = Callable[[dict[str, Tensor], Path], None]
"""Takes trained weights by name, and the folder to write."""


def train_critic(
    records: Records, init_dir: str | Path, out_dir: Path, config: RunConfig, *, seed: int, metrics_path: Path
) -> dict[str, Any]:
    """Train V(s_t, I) on the outcome of each step's trajectory (paper Eq. 9) and write it to `out_dir`.

    Args:
        records: `StepRecord`s, or their file; each with an outcome.
        init_dir: the previous phase's critic, or an actor folder (its model plus a fresh value head).

    Returns:
        `critic_loss`, `critic_samples`, …; {} if `out_dir` was finished already, or off the main process.

    Raises:
        DataError: no records.
        TrainingError: a record without outcome or of another tokenizer; any raised by `train`.
    """
    if _is_finished(out_dir):
        return {}
    samples = _read(records, "critic")
    check_pictures(samples, config)
    targets = torch.tensor([outcome_of(r) for r in samples])  # [S]; refused without outcome before a model is loaded
    tokenizer = check_tokenizer(init_dir, {r.tokenizer for r in samples})
    device = pick_device(config.models.device)
    load = partial(load_critic, fresh=True, seed=seed)
    model, save = open_start(
        load, init_dir, tokenizer, config.critic, sees=config.rollout.sees, seed=seed, prompt=config.models.prompt
    )
    states = [Example(r.prompt_ids, (), Picture.of(r, config.run_dir)) for r in samples]
    items = cut_items(states, context_limit(model.lm, config.critic.max_tokens), "critic")

    def loss(logits: Tensor, _row: Pack, indices: list[int]) -> LossOutput:
        wanted = targets[indices].to(logits.device)
        values = logits.detach()[:, 0].sigmoid()
        accuracy = ((values > 0.5) == (wanted > 0.5)).float()
        return LossOutput(critic_loss(logits, wanted), {"value": values, "outcome": wanted, "accuracy": accuracy})

    job = Job(
        name="critic", model=model, items=items, active=[True] * len(items), ids=[r.step_id for r in samples],
        loss=loss, save=save,
    )  # fmt: skip
    return train(job, config.critic, out=out_dir, seed=seed, metrics_path=metrics_path, device=device)


def train_actor(
    records: Records,
    init_dir: str | Path,
    out_dir: Path,
    config: RunConfig,
    *,
    seed: int,
    metrics_path: Path,
    demonstrations: Sequence[Example] = (),
    rate_factor: float = 1.0,
) -> dict[str, Any]:
    """Train π_k from π_{k-1} (`init_dir`) with the configured objective and write it to `out_dir`.

    Args:
        records: `StepRecord`s, or their file; scored by `score_actions` and `score_values` as the objective needs.
        demonstrations: steps that are imitated in addition to the objective, with weight `actor.imitation`.
        rate_factor: multiplies `actor.lr`. Where the update leaves its trust region early, a quarter of that is tried
            (`webrl/training/trust.py`).

    Returns:
        Counts and means: `actor_loss`, `actor_log_ratio`, `actor_rate_factor`, …, and where the update ended early
        `actor_stopped` (why) and `actor_kept_steps`; {} if `out_dir` was finished already, or off the main process.
    """
    if _is_finished(out_dir):
        return {}
    samples = _read(records, "actor")
    tokenizer = check_tokenizer(init_dir, {r.tokenizer for r in samples})
    device = pick_device(config.models.device)
    examples = examples_of(samples, config)
    attempts = out_dir.with_name(f"{out_dir.name}_attempts.json")
    rate = config.actor.lr * rate_factor
    known = broadcast(read_json(attempts) if attempts.exists() else {})
    stopped: list[str] = known["stopped"] if known.get("rate") == rate else []
    while True:
        factor = rate_factor * RETRY_FACTOR ** len(stopped)
        optim = config.actor.model_copy(update={"lr": config.actor.lr * factor})
        model, save = open_start(
            load_actor, init_dir, tokenizer, optim, sees=config.rollout.sees, seed=seed, prompt=config.models.prompt
        )
        job = actor_job(model, samples, optim, save, examples, demonstrations)
        if job.trust:
            job.trust.may_retry = len(stopped) < RETRIES
        counts = train(job, optim, out=out_dir, seed=seed, metrics_path=metrics_path, device=device)
        if not job.trust or not job.trust.retries:
            return counts | {"actor_rate_factor": factor} if counts else counts
        stopped.append(f"learning rate {optim.lr:g}: {job.trust.stopped}")
        if is_main():
            write_json(attempts, {"rate": rate, "stopped": stopped})


def actor_job(
    model: PackedActor,
    samples: Sequence[StepRecord],
    config: ActorConfig,
    save: Save,
    examples: Sequence[Example] | None = None,
    demonstrations: Sequence[Example] = (),
) -> Job:
    """Make the job of `train_actor`: the objective's samples with their advantages, and any demonstrations.

    Args:
        model: after `prepare`.
        save: as in `Job`.
        examples: one a sample, for a model that sees; None: the samples' own tokens.
    """
    objective = OBJECTIVES[config.objective]
    advantages = objective.advantages(samples, config)
    chosen = list(range(len(samples)))
    if objective.batches_active:
        chosen = [i for i in chosen if objective.trains(advantages[i])] or chosen
        if len(chosen) < 0.1 * len(samples):
            logger.warning(
                "actor: %d of %d steps train; the attempts of each other group all ended alike, so there is nothing to "
                "compare. Refill groups (rollout.refill), play more attempts of each task (rollout.num_generations), "
                "or draw tasks that are sometimes solved (tasks.shares=learnability)",
                len(chosen), len(samples),
            )  # fmt: skip
    samples, advantages = [samples[i] for i in chosen], [advantages[i] for i in chosen]
    limit = context_limit(model.lm, config.max_tokens)
    shown = cut_items(demonstrations, limit, "actor, demonstrations")
    if config.objective == "imitation" and not shown:
        raise DataError("actor.objective=imitation learns from demonstrations only, and there are none")
    own = [examples[i] for i in chosen] if examples else [Example(r.prompt_ids, r.action_ids) for r in samples]
    items = cut_items(own, limit, "actor")
    return Job(
        name="actor", model=model, items=[*items, *shown],
        active=[*(objective.trains(a) for a in advantages), *(True for _ in shown)],
        ids=[*(r.step_id for r in samples), *(f"demonstration step {i}" for i in range(len(shown)))],
        loss=policy_loss_function(samples, advantages, objective, config, shown), save=save,
        histograms=("advantage", "log_ratio"), beside=range(len(items), len(items) + len(shown)),
        beside_weight=config.imitation, trust=make_region(samples, items, config),
    )  # fmt: skip


def train_sft(
    examples: Sequence[Example],
    init_dir: str | Path,
    out_dir: Path,
    optim: OptimConfig,
    *,
    seed: int,
    metrics_path: Path,
    name: str = "sft",
    device: str = "auto",
    heldout: Sequence[Example] = (),
    watch_every: int = 0,
    prompt: str = "auto",
) -> dict[str, Any]:
    """Maximise the likelihood of each example's action ids given its prompt ids (SFT of π_0, and the ORM).

    Args:
        examples: made with the tokenizer of `init_dir`; all of them have pictures, or none.
        heldout: of the same kind, for the validation loss.
        watch_every: optimizer steps between looks; 0: at the end only.
        prompt: `models.prompt` that the examples were made with.
    """
    if _is_finished(out_dir):
        return {}
    if not examples:
        raise DataError(f"nothing to train the {name} on: no examples")
    sees = {example.picture is not None for example in (*examples, *heldout)}
    if len(sees) > 1:
        raise DataError(f"{name}: some examples have a screenshot and others have none; give each one, or none")
    objective, config = OBJECTIVES["sft"], ActorConfig()
    tokenizer = check_tokenizer(init_dir, set())
    device = pick_device(device)
    model, save = open_start(load_actor, init_dir, tokenizer, optim, sees=sees == {True}, seed=seed, prompt=prompt)
    limit = context_limit(model.lm, optim.max_tokens)
    items = cut_items(examples, limit, name)
    held = cut_items(heldout, limit, f"{name}, held out")

    def loss(logprobs: Tensor, row: Pack, _indices: list[int]) -> LossOutput:
        zeros = torch.zeros_like(logprobs)
        weights = torch.ones(row.num_samples, device=logprobs.device)
        return objective.loss(LossInput(logprobs, zeros, zeros, row.target_sample, weights), config)

    job = Job(
        name=name, model=model, items=items, active=[True] * len(items), ids=[str(i) for i in range(len(items))],
        loss=loss, save=save, heldout=held, watch_every=watch_every,
    )  # fmt: skip
    return train(job, optim, out=out_dir, seed=seed, metrics_path=metrics_path, device=device)


def prepare(model: Any, config: OptimConfig, seed: int) -> None:
    """Adapters (seeded), checkpointing and compilation, in the order in which they must be applied."""
    with torch.random.fork_rng(devices=[]):
        torch.manual_seed(seed)
        add_adapters(model, config)
    apply_memory_policy(model, config)


def policy_loss_function(
    samples: Sequence[StepRecord],
    advantages: Sequence[float],
    objective: Objective,
    config: ActorConfig,
    demonstrations: Sequence[Item] = (),
) -> Callable[[Tensor, Pack, list[int]], LossOutput]:
    """The objective as the trainer's loss, with the metrics that every objective logs.

    Args:
        demonstrations: samples after the others, which have the SFT loss instead.

    Raises:
        TrainingError: reference log-probs are needed and missing.
    """
    if objective.needs_reference:
        missing = next((r for r in samples if r.ref_logprobs is None), None)
        if missing:
            raise TrainingError(f"step {missing.step_id!r} has no reference log-probs; run score_actions first")
    zeros = [(0.0,) * len(r.action_ids) for r in samples]
    shown = [torch.zeros(item.num_targets) for item in demonstrations]
    reference = [torch.tensor(r.ref_logprobs or z) for r, z in zip(samples, zeros, strict=True)] + shown
    old = [torch.tensor(r.logprobs or r.ref_logprobs or z) for r, z in zip(samples, zeros, strict=True)] + shown
    advantage = torch.tensor([*advantages, *(0.0 for _ in demonstrations)])
    sft = OBJECTIVES["sft"]

    def loss(logprobs: Tensor, row: Pack, indices: list[int]) -> LossOutput:
        device = logprobs.device
        batch = LossInput(
            logprobs=logprobs,
            ref_logprobs=send(torch.cat([reference[i] for i in indices]), device),
            old_logprobs=send(torch.cat([old[i] for i in indices]), device),
            sample=row.target_sample,
            advantage=send(advantage[indices], device),
        )
        if not demonstrations:
            return _policy_loss(batch, objective, config)
        is_own = send(torch.tensor([i < len(samples) for i in indices]), device)  # [B]
        # no ratio if the reference is not known
        known = is_own[batch.sample]  # [N]
        ref, before = (torch.where(known, p, logprobs.detach()) for p in (batch.ref_logprobs, batch.old_logprobs))
        policy = _policy_loss(dataclasses.replace(batch, ref_logprobs=ref, old_logprobs=before), objective, config)
        imitated = sft.loss(dataclasses.replace(batch, advantage=torch.ones_like(batch.advantage)), config).loss
        if config.objective == "grpo":  # in its unit
            imitated = imitated * batch.num_tokens() / config.length_norm
        metrics = {name: value * is_own for name, value in policy.metrics.items()}
        metrics["imitation_loss"] = imitated.detach() * is_own.logical_not()
        return LossOutput(torch.where(is_own, policy.loss, imitated), metrics)

    return loss


def _policy_loss(batch: LossInput, objective: Objective, config: ActorConfig) -> LossOutput:
    """Compute the objective's loss, and the [B] metrics that every objective logs."""
    result = objective.loss(batch, config)
    with torch.no_grad():
        ratio = batch.ref_logprobs - batch.logprobs  # [N] log(π_ref/π)
        mean = batch.sum_tokens(batch.logprobs) / batch.num_tokens().clamp(min=1)
        common = {
            "log_ratio": -batch.sum_tokens(ratio),
            # k3 estimate of KL(π_ref || π), summed over the action: never negative; unbiased where π_ref sampled the
            # action at temperature 1 (not for replayed steps)
            "kl": batch.sum_tokens((-ratio).exp() - 1 + ratio),
            "perplexity": (-mean).exp(),
            "advantage": batch.advantage,
        }
    return LossOutput(result.loss, {**common, **result.metrics})


def cut_items(examples: Sequence[Example], limit: int, what: str) -> list[Item]:
    """Samples of at most `limit` tokens; how many pages were cut is logged."""
    cut = sum(len(example.prompt_ids) + len(example.action_ids) > limit for example in examples)
    if cut:
        logger.warning("%s: %d of %d samples exceed %d tokens; their pages were cut", what, cut, len(examples), limit)
    return [make_item(example, limit) for example in examples]


def open_start(
    load: Callable[..., PackedActor | PackedCritic],
    folder: str | Path,
    tokenizer: Any,
    optim: OptimConfig,
    *,
    sees: bool,
    seed: int,
    prompt: str,
) -> tuple[Any, Save]:
    """Load the model to train, with adapters; returns it, and a function that writes the trained one.

    The trained model may be sharded over ranks, cast or wrapped; so the starting model is loaded once more, on the
    CPU, and the trained weights are put into it. Adapters are merged.

    Args:
        load: `load_actor`, or `load_critic` with the seed of a fresh head.
        seed: of the adapters.
        prompt: `models.prompt` of the training, where it is not the tokenizer's.

    Raises:
        TrainingError: options that have not been tried with screenshots.
    """
    if sees:
        untried = [*optim.untried_with_screenshots, *(["several processes"] if world()[0] > 1 else [])]
        if untried:
            raise TrainingError(f"training on screenshots is untested with {', '.join(untried)}: leave that out")
    # FSDP2 deals out the main process's weights: the others need none, unless some are tied
    is_dealt_to = not is_main() and load_plan(optim.engine).kind == "fsdp2"
    skeleton = not sees and is_dealt_to and not config_of(str(folder)).tie_word_embeddings
    model = load(folder, sees=sees, skeleton=skeleton)
    prepare(model, optim, seed)
    processor = model.eyes.processor if model.eyes else tokenizer

    def save(state: dict[str, Tensor], out: Path) -> None:
        whole = load(folder, sees=sees)
        add_adapters(whole, optim)
        own = dict(whole.named_parameters())
        for name, value in state.items():
            own[name].data.copy_(value)
        lm = merge_adapters(whole.lm) if optim.lora_rank else whole.lm
        lm.to(torch.bfloat16 if optim.export_dtype == "bf16" else torch.float32).save_pretrained(out)
        processor.save_pretrained(out)
        mark_folder(out, prompt)

    return model, save


def _read(records: Records, what: str) -> list[StepRecord]:
    samples = list(read_records(records, StepRecord)) if isinstance(records, Path) else list(records)
    if not samples:
        raise DataError(f"nothing to train the {what} on: {records if isinstance(records, Path) else 'no records'}")
    empty = next((r for r in samples if not r.prompt_ids or (what == "actor" and not r.action_ids)), None)
    if empty:
        raise DataError(f"step {empty.step_id!r} has no {'prompt' if not empty.prompt_ids else 'action'} tokens")
    return samples


def _is_finished(out_dir: Path) -> bool:
    """Whether the model is there already; UsageError for other files, which its folder would replace."""
    found = sorted(path.name for path in out_dir.iterdir()) if out_dir.is_dir() else []
    if out_dir.is_file():
        found = [out_dir.name]
    found = broadcast(found)  # shared disks show a new file at different times
    if found and "config.json" not in found:
        raise UsageError(
            f"{str(out_dir)!r} holds {', '.join(found[:3])} but no model; training would replace it; name another --out"
        )
    return bool(found)
