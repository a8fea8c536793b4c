"""Stage "replay": this phase's training records, scored under π_{k-1}, and earlier successes beside them."""

from __future__ import annotations

import random
from collections.abc import Sequence
from dataclasses import asdict
from pathlib import Path
from typing import Any

import orjson

from webrl.config import RunConfig
from webrl.errors import DataError, ModelError
from webrl.interop.problems import ProblemLog
from webrl.replay.mix import add_history
from webrl.replay.sources import Source, open_tools, read_steps
from webrl.reward.labels import read_outcomes
from webrl.runs.folder import PhaseFolder
from webrl.runs.store import write_records

SCORE_CACHE = "scores.sqlite"
"""Name of the score cache in a run folder."""


def mix_replay(
    config: RunConfig, folder: PhaseFolder, *, actor: str, history: Sequence[Path], rng: random.Random
) -> dict[str, Any]:
    """Write `train.jsonl` and `train_filter.jsonl` of a phase.

    Args:
        actor: π_{k-1}; both the replay filter's perplexity and the KL term are taken under it.
        history: `train.jsonl` of the earlier phases, oldest first; `replay.demos` come before them.

    Returns:
        `num_current`, `num_replayed`, `by_type` (replayed steps by site, most first), `trajectories` (what became of
        this phase's), `history` (steps by reason), `scored` (steps computed and cached), `sampler` (see
        `sampler_difference`).

    Raises:
        DataError: no judged trajectory at all.
        ModelError: sampler and trainer disagree by more than `replay.sampler_tolerance`.
    """
    with (
        ProblemLog(folder.path / "problems.txt") as problems,
        open_tools(actor, config, folder.path.parent / SCORE_CACHE, problems) as tools,
    ):
        source = Source(folder.trajectories, "trajectories")
        current = tools.judged(read_outcomes(folder.labels, problems.on_line))
        assert tools.scorer
        num_current = write_records(folder.train, tools.scorer.stream(read_steps(source, current)))
        counts = dict(current.counts)
        if not num_current:
            raise DataError(f"{folder.trajectories}: nothing to train on: {counts}; were they all unjudged?")
        sampler = sampler_difference(folder.train)
        refuse_other_weights(actor, sampler, config.replay.sampler_tolerance)
        # phase 0 has no policy to update
        sources = [Source(path, "demonstrations") for path in config.replayed_demos if history]
        sources += [Source(path, "records") for path in history]
        reasons, by_type = add_history(
            folder.train, num_current, sources, tools, config.replay, rng, folder.train_filter
        )
        return {
            "num_current": num_current,
            "num_replayed": reasons["kept"],
            "by_type": by_type,
            "trajectories": counts,
            "history": reasons,
            "scored": asdict(tools.scorer.counts),
            "sampler": sampler,
            "problems": dict(problems.counts),
        }


def refuse_other_weights(actor: str, sampler: dict[str, float], tolerance: float) -> None:
    """Stop before anything is trained on log-probabilities that are not the trainer's."""
    if not sampler["mean"] <= tolerance:  # also NaN
        raise ModelError(
            f"the rollouts' log-probabilities differ from {actor}'s by {sampler['mean']:.3g} nats a token on average "
            f"(largest {sampler['max']:.3g}, {sampler['tokens']:.0f} tokens; replay.sampler_tolerance={tolerance:g}): "
            "the engine answered with other weights, or computes this architecture otherwise; roll out again (for vLLM "
            "with rollout.engine.weight_update=restart), or raise replay.sampler_tolerance"
        )


def sampler_difference(records: Path) -> dict[str, float]:
    """How far the log-probs of sampling are from the trainer's scores of the same tokens: `tokens`, `mean`, `max`.

    Free, since every action is scored anyway; it shows an engine that went on with old weights. Steps without sampled
    log-probs (imported text) are left out.
    """
    count, total, largest = 0, 0.0, 0.0
    with records.open("rb") as file:
        for line in file:
            step = orjson.loads(line)
            sampled, scored = step["logprobs"], step["ref_logprobs"]
            if not sampled or scored is None:
                continue
            differences = [abs(a - b) for a, b in zip(sampled, scored, strict=True)]
            count += len(differences)
            total += sum(differences)
            largest = max(largest, *differences)
    return {"tokens": count, "mean": total / count if count else 0.0, "max": largest}
