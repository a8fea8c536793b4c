"""Writes `train.jsonl` (current steps) and `train_filter.jsonl` (current and replayed steps), as streams.

Memory holds one chunk of records, and a few bytes for each admitted history step and each instruction.
"""

from __future__ import annotations

import random
import shutil
from array import array
from collections import Counter
from collections.abc import Callable, Iterable, Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path
from tempfile import TemporaryFile
from typing import IO, Any

import orjson

from webrl.config import ReplayConfig
from webrl.disk import atomic_path
from webrl.interop.problems import ProblemLog
from webrl.replay.records import NextPrompt, StepEncoder
from webrl.replay.scorer import Scorer
from webrl.replay.select import ReplayFilter, TrajectorySampler, draw
from webrl.replay.sources import Reading, Source, StepObject, labelled_outcomes, read_steps
from webrl.types import StepRecord


@dataclass
class History:
    """What `add_history` needs to know beside the current steps."""

    sources: Sequence[Source]
    """Earlier experience, oldest first."""
    config: ReplayConfig
    rng: random.Random
    end_token_ids: Sequence[int]
    tokenizer: str = ""
    encode: StepEncoder | None = None
    next_prompt: NextPrompt | None = None
    scorer: Scorer | None = None
    """Scores the candidates under the current actor; None takes the `ref_logprobs` that are stored."""


def write_steps(steps: Iterable[StepObject], out: Path, scorer: Scorer | None = None) -> int:
    """Write step records atomically, with `ref_logprobs` if there is a scorer; gives their number."""
    count = 0
    with atomic_path(out) as temporary, temporary.open("wb", buffering=1 << 20) as file:
        for step in _scored(steps, scorer):
            file.write(orjson.dumps(step, option=orjson.OPT_APPEND_NEWLINE))
            count += 1
    return count


def add_history(
    current: Path, num_current: int, history: History, out: Path, problems: ProblemLog,
    on_bytes: Callable[[int], Any] = lambda _: None,
) -> dict[str, int]:  # fmt: skip
    """Write `out`: all current steps and the replayed ones; gives the number of history steps by `Reason`.

    The first replayed step comes first and the others last, so that a reader that takes column types from the
    first rows (`datasets`) sees a current and a replayed one there. Training shuffles.
    """
    counts: Counter[str] = Counter()
    # The spool has no name, so that a kill leaves nothing behind.
    with atomic_path(out) as temporary, TemporaryFile(dir=out.parent, buffering=1 << 20) as spool:
        offsets, phases = _admit(history, spool, counts, problems, on_bytes)
        chosen = draw(phases, num_current, history.config, history.rng)
        counts["kept"] = len(chosen)
        if len(chosen) < len(phases):
            counts["over_ratio"] = len(phases) - len(chosen)
        with temporary.open("wb", buffering=1 << 20) as target, current.open("rb") as source:
            _copy_lines(spool, offsets, chosen[:1], target)
            shutil.copyfileobj(source, target, 1 << 20)
            _copy_lines(spool, offsets, chosen[1:], target)
    return dict(counts)


def _admit(
    history: History, spool: IO[bytes], counts: Counter[str], problems: ProblemLog, on_bytes: Callable[[int], Any]
) -> tuple[array[int], array[int]]:
    """Append admitted steps to the spool; gives [N + 1] line borders and [N] phases."""
    replay_filter = ReplayFilter(history.config, frozenset(history.end_token_ids), history.tokenizer)
    if history.config.per_instruction == "sampled" and history.config.strategy != "none":
        sampler = TrajectorySampler(history.rng)
        for step in _read(history, ProblemLog(), on_bytes):
            if step["outcome"] == 1:
                sampler.offer(step["site"], step["instruction"], step["trajectory_id"])
        replay_filter.chosen = sampler.chosen
    offsets, phases = array("Q", [0]), array("i")
    candidates = _candidates(_read(history, problems, on_bytes), replay_filter, counts)
    needs_scores = history.config.strategy == "perplexity"
    for step in _scored(candidates, history.scorer if needs_scores else None):
        reason = replay_filter.check_step(step["action_ids"], step.get("ref_logprobs"))
        if reason != "kept":
            counts[reason] += 1
            continue
        step["source"] = "replay"
        length = spool.write(orjson.dumps(step, option=orjson.OPT_APPEND_NEWLINE))
        offsets.append(offsets[-1] + length)
        phases.append(step["phase"])
    return offsets, phases


def _read(history: History, problems: ProblemLog, on_bytes: Callable[[int], Any]) -> Iterator[StepObject]:
    for source in history.sources:
        outcomes = labelled_outcomes(source, problems)
        reading = Reading(
            problems, Counter(), outcomes, history.encode, history.tokenizer, history.next_prompt, on_bytes
        )
        yield from read_steps(source, reading)


def _candidates(steps: Iterable[StepObject], replay_filter: ReplayFilter, counts: Counter[str]) -> Iterator[StepObject]:
    """Steps that are worth scoring: chosen trajectories, this tokenizer."""
    for step in steps:
        reason = replay_filter.choose(step["outcome"], step["site"], step["instruction"], step["trajectory_id"])
        if reason == "kept" and not replay_filter.same_tokenizer(step.get("tokenizer", "")):
            reason = "other_tokenizer"
        if reason == "kept":
            yield step
        else:
            counts[reason] += 1


def _scored(steps: Iterable[StepObject], scorer: Scorer | None) -> Iterator[StepObject]:
    if scorer is None:
        yield from steps
        return
    for record in scorer.stream(StepRecord.from_json(step) for step in steps):
        yield record.to_json()


def _copy_lines(spool: IO[bytes], offsets: Sequence[int], chosen: Sequence[int], target: IO[Any]) -> None:
    for position in chosen:
        spool.seek(offsets[position])
        target.write(spool.read(offsets[position + 1] - offsets[position]))
