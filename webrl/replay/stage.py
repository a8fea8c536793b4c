"""Stage "replay": this phase's training records, scored under π_{k-1}, plus earlier successes (paper §3.4).

Which steps are replayed, in the order of the released code: successes only; one trajectory per task; the perplexity
band, step by step; then a seeded draw of at most `max_ratio` x the current steps. Two things differ from the released
code. A task is an instruction on the first page that came with it (`task_key`): with one trajectory per instruction,
four of 13 task types that ask the same few things of many pages ("Close the dialog") had 2 % of the replayed steps. And
the draw is by need (`draw`), not uniform.

A replayed step whose successor is not replayed carries that state along (`next_prompt_ids`), so that the file alone is
enough to train on. Memory holds one chunk of records, and a few bytes for each admitted history step and task.
"""

from __future__ import annotations

import logging
import math
import random
import shutil
import sys
from array import array
from collections import Counter
from collections.abc import Collection, Iterable, Iterator, Mapping, Sequence
from dataclasses import replace
from hashlib import blake2b
from itertools import chain, groupby, pairwise
from pathlib import Path
from tempfile import TemporaryFile
from typing import Any, Literal

import orjson

from webrl.config import ReplayConfig, RunConfig
from webrl.errors import DataError, ModelError
from webrl.replay.sources import Source, Tools, open_tools, read_steps
from webrl.reward.labels import count_failures, failure_rates
from webrl.runs.disk import atomic_path
from webrl.runs.folder import PhaseFolder
from webrl.runs.problems import ProblemLog
from webrl.runs.store import dump_line, read_records, write_records
from webrl.types import StepRecord

logger = logging.getLogger(__name__)

SCORE_CACHE = "scores.sqlite"
"""Name of the score cache in a run folder."""
LEAST_NEED = 0.1
"""A site that never fails is replayed as one that fails one task in ten."""
_EDGE = 1e-9
"""Relative tolerance at the band's edges: exp(-log 0.95) must count as 1/0.95 despite rounding of the last bit."""
Reason = Literal[
    "kept", "unjudged", "failed", "repeated_task", "other_tokenizer", "unscored", "empty_action", "too_certain",
    "too_uncertain", "over_ratio", "strategy_none",
]  # fmt: skip
"""The outcome of selecting a history step; every step is counted under exactly one."""


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
        DataError: no trajectory was judged.
        ModelError: sampler and trainer disagree by more than `replay.sampler_tolerance`.
    """
    with (
        ProblemLog(folder.path / "problems.txt") as problems,
        open_tools(actor, config, folder.path.parent / SCORE_CACHE, problems) as tools,
    ):
        source = Source(folder.trajectories, "trajectories")
        current = tools.judged(source, folder.labels)
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
            "scored": tools.scorer.counts,
            "sampler": sampler,
            "problems": dict(problems.counts),
        }


def refuse_other_weights(actor: str, sampler: dict[str, float], tolerance: float) -> None:
    """Stop before anything is trained on log-probabilities that are not the trainer's."""
    if not sampler["mean"] <= tolerance:  # also NaN
        raise ModelError(
            f"the rollouts' log-probabilities differ from {actor}'s by {sampler['mean']:.3g} nats a token on average "
            f"(largest {sampler['max']:.3g}, {sampler['tokens']:.0f} tokens; replay.sampler_tolerance={tolerance:g}): "
            "the engine answered with other weights or computes this architecture differently; roll out again (for "
            "vLLM with rollout.engine.weight_update=restart), or raise replay.sampler_tolerance"
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


def add_history(
    current: Path,
    num_current: int,
    sources: Sequence[Source],
    tools: Tools,
    config: ReplayConfig,
    rng: random.Random,
    out: Path,
) -> tuple[dict[str, int], dict[str, int]]:
    """Write `out`: all current steps and the replayed ones.

    Args:
        sources: earlier experience, oldest first; the steps of a trajectory follow each other.

    Returns:
        History steps by `Reason`, and the replayed ones by site, most first. What gave no step at all is counted as
        `Tools.counts` has it (`unfinished`, `unlabelled`: trajectories).

    The first replayed step comes first and the others last, so that a reader that takes column types from the
    first rows (`datasets`) sees a current and a replayed one there. Training shuffles.
    """
    counts: Counter[str] = Counter()
    # The spool of admitted steps has no name, so that a kill leaves nothing behind.
    with atomic_path(out) as temporary, TemporaryFile(dir=out.parent, buffering=1 << 20) as spool:
        borders = array("Q", [0])  # [N + 1] of the lines in the spool
        sites: list[str] = []  # [N] each site's name is one object
        follows = bytearray()  # [N] 1 if a step is the successor of the one before it
        last = ("", 0)
        for step in _admit(sources, tools, config, counts):
            borders.append(borders[-1] + spool.write(dump_line(step)))
            sites.append(sys.intern(step.site))
            follows.append(last == (step.trajectory_id, step.index - 1))
            last = step.trajectory_id, step.index
        need = {}
        if sites:
            records = read_records(current, StepRecord, tools.problems.on_line)
            firsts = (next(steps) for _, steps in groupby(records, key=lambda step: step.trajectory_id))
            need = need_of(set(sites), ((s.site, s.group or s.trajectory_id, s.outcome) for s in firsts))
        chosen = draw(sites, need, num_current, config, rng)
        counts["kept"] = len(chosen)
        if len(chosen) < len(sites):
            counts["over_ratio"] = len(sites) - len(chosen)
        is_chosen = bytearray(len(sites) + 1)  # [N + 1] 1 if a step is replayed; 0 after the last one
        for position in chosen:
            is_chosen[position] = 1
        num_unknown = 0

        def lines(positions: Sequence[int]) -> Iterator[bytes]:
            """Read lines of the spool; a step whose successor is replayed too leaves the next state to it."""
            nonlocal num_unknown
            for position in positions:
                spool.seek(borders[position])
                data = orjson.loads(spool.read(borders[position + 1] - borders[position]))
                is_last = data["index"] == data["num_steps"] - 1
                if is_chosen[position + 1] and follows[position + 1]:
                    data["next_prompt_ids"] = []
                elif not data["next_prompt_ids"] and (not is_last or tools.next_prompt is not None):
                    num_unknown += 1
                yield orjson.dumps(data, option=orjson.OPT_APPEND_NEWLINE)

        with temporary.open("wb", buffering=1 << 20) as target, current.open("rb") as source:
            target.writelines(lines(chosen[:1]))
            shutil.copyfileobj(source, target, 1 << 20)
            target.writelines(lines(chosen[1:]))
    if num_unknown:
        logger.warning("%s: %d of %d replayed steps come without their next state", out, num_unknown, len(chosen))
    return dict(counts), dict(Counter(sites[position] for position in chosen).most_common())


def _admit(sources: Sequence[Source], tools: Tools, config: ReplayConfig, counts: Counter[str]) -> Iterator[StepRecord]:
    """Stream the history steps that may be replayed, with their next states; count the others by reason."""
    replayed = set[bytes]()  # `task_key` of each task that a success has been admitted of

    def choose(first: StepRecord) -> Reason:
        """Return "kept" if this trajectory may be replayed, else why not; each task's first success is, only once."""
        if config.strategy == "none":
            return "strategy_none"
        if first.outcome is None:
            return "unjudged"
        if first.outcome != 1:
            return "failed"
        if tools.tokenizer and first.tokenizer and first.tokenizer != tools.tokenizer:
            return "other_tokenizer"
        key = task_key(first)
        if key in replayed:
            return "repeated_task"
        replayed.add(key)
        return "kept"

    def read() -> Iterator[StepRecord]:
        for source in sources:
            own = tools.judged(source)
            yield from read_steps(source, own)
            counts.update({reason: n for reason, n in own.counts.items() if reason not in ("trajectories", "steps")})

    def candidates() -> Iterator[StepRecord]:
        """Stream the steps of chosen trajectories, which are worth scoring."""
        place = ("", 0)
        reason: Reason = "kept"
        for step, after in pairwise(chain(read(), [None])):
            assert step
            if step.trajectory_id != place[0] or step.index <= place[1]:  # also a trajectory after its own copy
                reason = choose(step)
            place = step.trajectory_id, step.index
            if reason != "kept":
                counts[reason] += 1
            elif after and (after.trajectory_id, after.index) == (step.trajectory_id, step.index + 1):
                yield replace(
                    step,
                    next_prompt_ids=after.prompt_ids,
                    next_screenshot=after.screenshot,
                    next_screenshot_sha256=after.screenshot_sha256,
                )
            else:
                yield step

    by_band = config.strategy == "perplexity"
    for step in tools.scorer.stream(candidates()) if tools.scorer and by_band else candidates():
        reason = "kept"
        if by_band and step.ref_logprobs is None:
            reason = "unscored"
        elif by_band:
            perplexity = action_perplexity(step.ref_logprobs or (), step.action_ids, tools.end_token_ids)
            if perplexity is None:
                reason = "empty_action"
            elif not in_band(perplexity, config.perplexity_low, config.perplexity_high):
                reason = "too_certain" if perplexity < config.perplexity_low else "too_uncertain"
        if reason == "kept":
            yield replace(step, source="replay")
        else:
            counts[reason] += 1


def task_key(first: StepRecord) -> bytes:
    """Identify the task as it was attempted: by site, instruction, and the first page shown (8 bytes).

    Args:
        first: record of a trajectory's first step; its prompt holds the page, or its screenshot shows it.
    """
    shown = orjson.dumps(first.prompt_ids).decode()
    parts = "\x00".join((first.site, first.instruction, first.screenshot_sha256, shown))
    return blake2b(parts.encode("utf-8", "surrogatepass"), digest_size=8).digest()


def draw(
    sites: Sequence[str], need: Mapping[str, float], num_current: int, config: ReplayConfig, rng: random.Random
) -> list[int]:
    """Positions of the admitted steps that are replayed, ascending: at most `max_ratio` x `num_current`.

    `draw: uniform` takes any. `draw: need` shares the places among the task
    types as seats among parties by their votes (Adams' method): a type's step number k = 0, 1, … in a random order is
    taken at k / need, lowest first. So every type gets one before any gets a second, each about its share by need, and
    where a type has fewer steps than that, the others get the rest.

    Args:
        sites: of each admitted step.
        need: weight of each site, above 0.
    """
    limit = min(len(sites), int(config.max_ratio * num_current + 1e-9))
    if limit == len(sites):
        return list(range(limit))
    order = rng.sample(range(len(sites)), len(sites))
    if config.draw == "need":
        taken: Counter[str] = Counter()
        turns = array("d", bytes(8 * len(order)))
        for position in order:
            turns[position] = taken[sites[position]] / need[sites[position]]
            taken[sites[position]] += 1
        order.sort(key=turns.__getitem__)
    return sorted(order[:limit])


def need_of(sites: Collection[str], attempts: Iterable[tuple[str, str, int | None]]) -> dict[str, float]:
    """Return how much each site of the buffer needs replay: the rate at which the current phase fails there.

    Not below `LEAST_NEED`, so that what is never failed any more is still rehearsed.

    Args:
        attempts: (site, task id, outcome) of each trajectory of the phase. A site without one has the common rate.
    """
    rates = failure_rates(*count_failures(attempts), sites)
    return {site: max(rate, LEAST_NEED) for site, rate in rates.items()}


def action_perplexity(
    logprobs: Sequence[float], action_ids: Sequence[int], end_token_ids: Collection[int]
) -> float | None:
    """exp(-(Σ log p) / n) over the action's tokens, the end token left out (as the released code does).

    Args:
        logprobs: [A] log-probability of each token of `action_ids`.
        action_ids: [A] sampled ids, with or without the end token.

    Returns:
        The perplexity, at least 1; infinity where it does not fit a float; None for an action without tokens.

    Raises:
        ValueError: lengths differ.
    """
    if len(logprobs) != len(action_ids):
        raise ValueError(f"{len(logprobs)} log-probs for {len(action_ids)} action tokens; they must match one to one")
    length = len(action_ids)
    while length and action_ids[length - 1] in end_token_ids:
        length -= 1
    if not length:
        return None
    mean = math.fsum(logprobs[:length]) / length
    return math.inf if mean < -700 else math.exp(-mean)


def in_band(perplexity: float, low: float, high: float) -> bool:
    """Return `low <= perplexity < high`; with the paper's 1/0.95 and 2, token probability in (0.5, 0.95]."""
    return low * (1 - _EDGE) <= perplexity < high * (1 - _EDGE)
