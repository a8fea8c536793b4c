"""Writes `train.jsonl` (current steps) and `train_filter.jsonl` (current and replayed steps), as streams.

A replayed step whose successor is not replayed carries that state along (`next_prompt_ids`), so that the file alone is
enough to train on. Memory holds one chunk of records, and a few bytes for each admitted history step and task.
"""

from __future__ import annotations

import logging
import random
import re
import shutil
import sys
from array import array
from collections import Counter
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass, field
from itertools import groupby
from operator import itemgetter
from pathlib import Path
from tempfile import TemporaryFile
from typing import IO, Any

import orjson

from webrl.config import ReplayConfig
from webrl.interop.problems import ProblemLog
from webrl.replay.score import Scorer
from webrl.replay.select import Reason, ReplayFilter, draw, need_of
from webrl.replay.sources import Source, StepObject, Tools, labelled_outcomes, read_steps
from webrl.runs.disk import atomic_path
from webrl.types import StepRecord

logger = logging.getLogger(__name__)

_TRAJECTORY = itemgetter("trajectory_id")
_NEXT_STATE = re.compile(rb'"next_prompt_ids":\[[\d,]*\]')
"""In a line of orjson's; inside a text its quotes would be escaped."""


@dataclass
class _Spool:
    """Admitted steps on disk, and what is known of them."""

    file: IO[bytes]
    offsets: array[int] = field(default_factory=lambda: array("Q", [0]))
    """[N + 1] line borders."""
    phases: array[int] = field(default_factory=lambda: array("i"))
    """[N]."""
    sites: list[str] = field(default_factory=list)
    """[N] each site's name is one object."""
    follows: bytearray = field(default_factory=bytearray)
    """[N] 1 if a step is the successor of the one before it."""
    ends: bytearray = field(default_factory=bytearray)
    """[N] 1 if a step carries no next state."""
    last: tuple[str, int] | None = None
    """Trajectory and index of the step that was appended last."""

    def append(self, step: StepObject, *, wants_next: bool) -> None:
        place = step["trajectory_id"], step["index"]
        self.follows.append(self.last == (place[0], place[1] - 1))
        self.ends.append(wants_next and not step.get("next_prompt_ids"))
        self.phases.append(step["phase"])
        self.sites.append(sys.intern(step["site"]))
        length = self.file.write(orjson.dumps(step, option=orjson.OPT_APPEND_NEWLINE))
        self.offsets.append(self.offsets[-1] + length)
        self.last = place

    def copy(self, chosen: Sequence[int], is_chosen: bytearray, target: IO[Any]) -> None:
        """Copy lines; a step whose successor is copied too leaves the next state to it."""
        for position in chosen:
            self.file.seek(self.offsets[position])
            line = self.file.read(self.offsets[position + 1] - self.offsets[position])
            if self.is_followed(position, is_chosen):
                line = _NEXT_STATE.sub(b'"next_prompt_ids":[]', line, count=1)
            target.write(line)

    def is_followed(self, position: int, is_chosen: bytearray) -> bool:
        after = position + 1
        return after < len(self.follows) and bool(self.follows[after] and is_chosen[after])


def write_steps(steps: Iterable[StepObject], out: Path, scorer: Scorer | None = None) -> int:
    """Write step records atomically, with `ref_logprobs` if there is a scorer; gives their number."""
    count = 0
    with atomic_path(out) as temporary, temporary.open("wb", buffering=1 << 20) as file:
        for step in _scored(steps, scorer):
            file.write(orjson.dumps(step, option=orjson.OPT_APPEND_NEWLINE))
            count += 1
    return count


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
    # The spool has no name, so that a kill leaves nothing behind.
    with atomic_path(out) as temporary, TemporaryFile(dir=out.parent, buffering=1 << 20) as file:
        spool = _admit(sources, tools, config, file, counts)
        need = need_of(set(spool.sites), _attempts(current, tools.problems)) if spool.sites else {}
        chosen = draw(spool.phases, spool.sites, need, num_current, config, rng)
        counts["kept"] = len(chosen)
        if len(chosen) < len(spool.phases):
            counts["over_ratio"] = len(spool.phases) - len(chosen)
        is_chosen = bytearray(len(spool.phases))
        for position in chosen:
            is_chosen[position] = 1
        with temporary.open("wb", buffering=1 << 20) as target, current.open("rb") as source:
            spool.copy(chosen[:1], is_chosen, target)
            shutil.copyfileobj(source, target, 1 << 20)
            spool.copy(chosen[1:], is_chosen, target)
    unknown = sum(spool.ends[p] and not spool.is_followed(p, is_chosen) for p in chosen)
    if unknown:
        logger.warning("%s: %d of %d replayed steps come without their next state", out, unknown, len(chosen))
    by_type = Counter(spool.sites[position] for position in chosen)
    return dict(counts), dict(by_type.most_common())


def _attempts(current: Path, problems: ProblemLog) -> Iterator[tuple[str, str, int | None]]:
    """(site, task id, outcome) of each trajectory of a file of step records."""
    for _, steps in groupby(read_steps(Source(current, "records"), Tools(problems)), key=_TRAJECTORY):
        first = next(steps)
        yield first["site"], first.get("group") or first["trajectory_id"], first["outcome"]


def _admit(
    sources: Sequence[Source],
    tools: Tools,
    config: ReplayConfig,
    file: IO[bytes],
    counts: Counter[str],
) -> _Spool:
    """Append admitted steps to the spool."""
    replay_filter = ReplayFilter(config, frozenset(tools.end_token_ids), tools.tokenizer)
    spool = _Spool(file)
    candidates = _candidates(_with_next_states(_read(sources, tools, counts)), replay_filter, counts)
    for step in _scored(candidates, tools.scorer if config.strategy == "perplexity" else None):
        reason = replay_filter.check_step(step["action_ids"], step.get("ref_logprobs"))
        if reason != "kept":
            counts[reason] += 1
            continue
        step["source"] = "replay"
        is_last = step["index"] == step["num_steps"] - 1
        spool.append(step, wants_next=not is_last or tools.next_prompt is not None)
    return spool


def _with_next_states(steps: Iterable[StepObject]) -> Iterator[StepObject]:
    """The steps, each with the prompt of the step after it, which every source has right behind it."""
    previous: StepObject | None = None
    for step in steps:
        if previous is not None:
            is_next = step["trajectory_id"] == previous["trajectory_id"] and step["index"] == previous["index"] + 1
            if is_next:
                previous["next_prompt_ids"] = step["prompt_ids"]
                previous["next_screenshot"] = step.get("screenshot", "")
                previous["next_screenshot_sha256"] = step.get("screenshot_sha256", "")
            yield previous
        previous = step
    if previous is not None:
        yield previous


def _read(sources: Sequence[Source], tools: Tools, left_out: Counter[str]) -> Iterator[StepObject]:
    for source in sources:
        own = tools.judged(labelled_outcomes(source, tools.problems))
        yield from read_steps(source, own)
        left_out.update({reason: num for reason, num in own.counts.items() if reason not in ("trajectories", "steps")})


def _candidates(steps: Iterable[StepObject], replay_filter: ReplayFilter, counts: Counter[str]) -> Iterator[StepObject]:
    """Steps that are worth scoring: those of chosen trajectories."""
    before = ("", 0)
    reason: Reason = "kept"
    for step in steps:
        place = step["trajectory_id"], step["index"]
        if place[0] != before[0] or place[1] <= before[1]:  # also where a trajectory follows its own copy
            reason = replay_filter.choose(step)
        before = place
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
