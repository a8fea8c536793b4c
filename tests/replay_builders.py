"""Replay of records that a test has in memory: through files, as everywhere."""

import random
import tempfile
from collections.abc import Collection, Sequence
from dataclasses import replace
from pathlib import Path
from typing import NamedTuple

from webrl.config import ReplayConfig, RunConfig, validate_config
from webrl.replay.sources import Source, Tools
from webrl.replay.stage import add_history
from webrl.runs.problems import ProblemLog
from webrl.runs.store import read_records, write_records
from webrl.types import Label, Status, Step, StepRecord, Task, Trajectory


class Selection(NamedTuple):
    records: tuple[StepRecord, ...]
    counts: dict[str, int]
    by_type: dict[str, int]


def select_replay(
    history: Sequence[StepRecord],
    num_current: int,
    config: ReplayConfig,
    rng: random.Random,
    end_token_ids: Collection[int],
    tokenizer: str = "",
    current: Sequence[StepRecord] = (),
) -> Selection:
    """What `add_history` takes from these steps beside so many current ones, of which some are known."""
    with tempfile.TemporaryDirectory() as name:
        folder = Path(name)
        write_records(folder / "history.jsonl", history)
        write_records(folder / "train.jsonl", current)
        sources = [Source(folder / "history.jsonl", "records")]
        tools = Tools(ProblemLog(), tokenizer=tokenizer, end_token_ids=tuple(end_token_ids))
        found = add_history(folder / "train.jsonl", num_current, sources, tools, config, rng, folder / "out.jsonl")
        replayed = (step for step in read_records(folder / "out.jsonl", StepRecord) if step.source == "replay")
        return Selection(tuple(replayed), *found)


def make_trajectory(name, num_steps=2, *, status=Status.PAGE_ENDED, ids=True, instruction=None, phase=0):
    rng = random.Random(name)
    steps = []
    for i in range(num_steps):
        action = (rng.randrange(5, 300), rng.randrange(5, 300), 3)
        sampled = {"prompt_ids": (0, *(rng.randrange(5, 300) for _ in range(20))), "action_ids": action,
                   "logprobs": (-0.1, -0.25, -0.0)}  # fmt: skip
        steps.append(Step(i, f"page {i} of {name}", f"click('{i}')", f"click('{i}')", **(sampled if ids else {})))
    instruction = instruction or f"do {name}"
    return Trajectory(name, Task(f"task-{name}", "site"), instruction, phase, tuple(steps), "end", status)


def write_phase(folder, trajectories, rewards=None):
    rewards = rewards if rewards is not None else [1] * len(trajectories)
    write_records(folder / "trajectories.jsonl", trajectories)
    labels = [
        Label(t.trajectory_id, None if r is None else float(r), r) for t, r in zip(trajectories, rewards, strict=True)
    ]
    write_records(folder / "labels.jsonl", labels)
    return folder


def make_config(tmp_path, model, replay=None, **sections):
    """Made-up log-probs are no model's: how far they are from the actor's is not looked at."""
    sections["replay"] = {"sampler_tolerance": 1000.0, **(replay or {})}
    data = {"name": "run", "runs_dir": str(tmp_path / "runs"), "models": {"actor": str(model), "orm": str(model),
            "device": "cpu", "max_prompt_tokens": 2000}, **sections}  # fmt: skip
    return validate_config(data, "test")


def shown(name: str, reward: float | None = 1.0, **changes) -> Trajectory:
    """A recorded attempt with somebody else's token ids, of a later phase than the buffer's first."""
    return replace(make_trajectory(name, phase=3, **changes), env_reward=reward)


def replaying(tmp_path: Path, actor: Path, *demos: Path, **replay) -> RunConfig:
    replay = {"strategy": "all", "demos": list(map(str, demos)), **replay}
    return make_config(tmp_path, actor, replay=replay, actor={"imitation": 0.0})
