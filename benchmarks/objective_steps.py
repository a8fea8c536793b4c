"""What each optimizer step does to each sample: log-ratios, residuals, gradients, by outcome and probability.

The training is `webrl train`'s own; a fixed set of its samples is looked at before the first and after each step.
"""

from __future__ import annotations

import dataclasses
import json
import random
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import numpy as np
import torch
from torch import Tensor

from webrl.config import RunConfig
from webrl.llm.pictures import Example
from webrl.training.models import PackedActor, context_limit, load_actor
from webrl.training.objectives import OBJECTIVES, LossOutput
from webrl.training.packing import Item, Pack, pack
from webrl.training.scoring import score_targets
from webrl.training.trainer import Job, sample_batches, train
from webrl.training.update import actor_job, cut_items, policy_loss_function, prepare
from webrl.types import StepRecord


def measure_steps(
    records: Sequence[StepRecord],
    actor: Path,
    config: RunConfig,
    *,
    num_samples: int,
    looks: Sequence[float],
    out: Path,
) -> dict[str, Any]:
    """Train once and record `num_samples` of the records at every step.

    Args:
        records: scored, as in `train_scored.jsonl`.
        looks: shares of the steps (0: before the first) after which single gradients are taken too.
        out: scratch folder.

    Returns:
        `samples` (what each is), `log_ratio` ([steps + 1][samples]), `gradients` (per look), `grad_norm` and
        `update_norm` (per step), `batches` (per step, of each of its samples just before it), `noise` (trainer
        against scorer, nats a token, before the first step).
    """
    chosen = choose(records, num_samples, random.Random(config.seed))
    model = load_actor(actor)
    prepare(model, config.actor, config.seed)
    job = actor_job(model, records, config.actor, lambda _state, folder: folder.mkdir(exist_ok=True))
    observer = _Observer(model, [records[i] for i in chosen], records, chosen, config)
    observer.look(with_gradients=True)
    num_steps = len(sample_batches(len(records), config.actor, config.seed))
    due = {round(share * num_steps) for share in looks}

    def loss(logprobs: Tensor, row: Pack, indices: list[int]) -> LossOutput:
        if not torch.is_grad_enabled():  # the watch, after each step
            with torch.enable_grad():
                observer.look(with_gradients=observer.step in due)
        return job.loss(logprobs, row, indices)

    metrics = out / "metrics.jsonl"
    histograms = (*job.histograms, "loss")
    watched: Job = dataclasses.replace(job, loss=loss, histograms=histograms, heldout=job.items[:1], watch_every=1)
    train(watched, config.actor, out=out / "actor", seed=config.seed + 1, metrics_path=metrics, device="cpu")
    rows = [json.loads(line) for line in metrics.read_text(encoding="utf-8").splitlines()]
    batches = [{key: row[f"actor/{key}_values"] for key in histograms} for row in rows]
    return observer.result() | {"grad_norm": [row["actor/grad_norm"] for row in rows], "batches": batches}


def choose(records: Sequence[StepRecord], count: int, rng: random.Random) -> list[int]:
    """Indices of as many successes as failures."""
    halves = [[i for i, r in enumerate(records) if bool(r.outcome) is wanted] for wanted in (True, False)]
    return [i for half in halves for i in sorted(rng.sample(half, min(len(half), count // 2)))]


class _Observer:
    """Looks at chosen samples of a model that is being trained."""

    def __init__(
        self,
        model: PackedActor,
        samples: Sequence[StepRecord],
        records: Sequence[StepRecord],
        chosen: Sequence[int],
        config: RunConfig,
    ) -> None:
        self.model, self.samples, self.config = model, samples, config
        objective = OBJECTIVES[config.actor.objective]
        every = objective.advantages(records, config.actor)  # some depend on all records
        self.advantages = [every[i] for i in chosen]
        self.loss = policy_loss_function(samples, self.advantages, objective, config.actor)
        limit = context_limit(model.lm, config.actor.max_tokens)
        self.items = cut_items([Example(r.prompt_ids, r.action_ids) for r in samples], limit, "samples")
        self.step = -1
        self.logprobs: list[list[float]] = []
        self.gradients: list[dict[str, Any]] = []
        self.update_norms: list[float] = []
        self.noise: dict[str, float] = {}
        self.weights = [p.detach().clone() for p in model.parameters()]

    def look(self, *, with_gradients: bool) -> None:
        """After a step: log-probabilities, how far the weights went, and gradients where asked for."""
        self.step += 1
        self.model.eval()
        tokens = score_targets(self.model, self.items, self.config.actor.max_tokens, "cpu")
        if self.step == 0:
            self.noise = _difference(tokens, [r.ref_logprobs or () for r in self.samples])
        else:
            moves = [
                (p.detach() - old).square().sum() for p, old in zip(self.model.parameters(), self.weights, strict=True)
            ]
            self.update_norms.append(float(torch.stack(moves).sum().sqrt()))
            self.weights = [p.detach().clone() for p in self.model.parameters()]
        self.logprobs.append([float(t.sum()) for t in tokens])
        if with_gradients:
            self.gradients.append({"step": self.step, **self._gradients()})

    def _gradients(self) -> dict[str, list[float]]:
        """Each sample's gradient alone: norm of log π's, of its loss's, and its share of the sum's square."""
        parameters = [p for p in self.model.parameters() if p.requires_grad]
        norms, slopes, rows = [], [], []
        for index, item in enumerate(self.items):
            log_prob_norm, loss_gradient = self._gradient(index, item, parameters)
            norms.append(log_prob_norm)
            slopes.append(float(loss_gradient.norm()))
            rows.append(loss_gradient)
        total = torch.stack(rows).sum(0)
        square = float(total.square().sum()) or 1.0
        return {"log_prob": norms, "loss": slopes, "share": [float(row @ total) / square for row in rows]}

    def _gradient(self, index: int, item: Item, parameters: list[Tensor]) -> tuple[float, Tensor]:
        row = pack([item], "cpu")
        logprobs = self.model(row)
        plain = torch.autograd.grad(logprobs.sum(), parameters, retain_graph=True)
        norm = float(torch.stack([g.square().sum() for g in plain]).sum().sqrt())
        loss = self.loss(logprobs, row, [index]).loss.sum()
        return norm, torch.cat([g.flatten() for g in torch.autograd.grad(loss, parameters)])

    def result(self) -> dict[str, Any]:
        """All that was seen."""
        reference = [sum(r.ref_logprobs or ()) for r in self.samples]
        samples = [
            {"id": r.step_id, "outcome": r.outcome, "length": len(r.action_ids), "log_p_ref": p, "advantage": a}
            for r, p, a in zip(self.samples, reference, self.advantages, strict=True)
        ]
        ratios = np.array(self.logprobs) - np.array(reference)
        return {
            "samples": samples, "log_ratio": ratios.round(5).tolist(), "gradients": self.gradients,
            "update_norm": self.update_norms, "noise": self.noise,
        }  # fmt: skip


def _difference(found: Sequence[Any], expected: Sequence[Any]) -> dict[str, float]:
    gaps = [np.asarray(a) - np.asarray(b) for a, b in zip(found, expected, strict=True)]  # [tokens] of each sample
    each = np.abs(np.concatenate(gaps))
    return {"mean": float(each.mean()), "max": float(each.max()), "max_action": max(abs(float(g.sum())) for g in gaps)}
