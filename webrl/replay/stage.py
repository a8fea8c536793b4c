"""Stage "replay": this phase's training records, scored under π_{k-1}, plus earlier successes.

A replayed step whose successor is not replayed carries that state along (`next_prompt_ids`), so that the file alone is
enough to train on. Memory holds one chunk of records, and a few bytes for each admitted history step and task.
"""

from __future__ import annotations

import logging
import random
import shutil
import sys
from array import array
from collections import Counter
from collections.abc import Iterator, Sequence
from dataclasses import replace
from itertools import chain, groupby, pairwise
from pathlib import Path
from tempfile import TemporaryFile
from typing import Any

import orjson

from webrl.config import ReplayConfig, RunConfig
from webrl.errors import DataError, ModelError
from webrl.interop.problems import ProblemLog
from webrl.replay.select import Reason, ReplayFilter, draw, need_of
from webrl.replay.sources import Source, Tools, labelled_outcomes, open_tools, read_steps
from webrl.reward.labels import read_outcomes
from webrl.runs.disk import atomic_path
from webrl.runs.folder import PhaseFolder
from webrl.runs.store import dump_line, read_records, write_records
from webrl.types import StepRecord

logger = logging.getLogger(__name__)

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
        DataError: no trajectory was judged.
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
    replay_filter = ReplayFilter(config, frozenset(tools.end_token_ids), tools.tokenizer)

    def read() -> Iterator[StepRecord]:
        for source in sources:
            own = tools.judged(labelled_outcomes(source, tools.problems))
            yield from read_steps(source, own)
            counts.update({reason: n for reason, n in own.counts.items() if reason not in ("trajectories", "steps")})

    def candidates() -> Iterator[StepRecord]:
        """Stream the steps of chosen trajectories, which are worth scoring."""
        place = ("", 0)
        reason: Reason = "kept"
        for step, after in pairwise(chain(read(), [None])):
            assert step
            if step.trajectory_id != place[0] or step.index <= place[1]:  # also a trajectory after its own copy
                reason = replay_filter.choose(step)
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

    scorer = tools.scorer if config.strategy == "perplexity" else None
    for step in scorer.stream(candidates()) if scorer else candidates():
        reason = replay_filter.check_step(step.action_ids, step.ref_logprobs)
        if reason == "kept":
            yield replace(step, source="replay")
        else:
            counts[reason] += 1
