"""Replay of records that a test has in memory: through files, as everywhere."""

import random
import tempfile
from collections.abc import Collection, Sequence
from pathlib import Path
from typing import NamedTuple

from webrl.config import ReplayConfig
from webrl.interop.problems import ProblemLog
from webrl.replay.sources import Source, Tools
from webrl.replay.stage import add_history
from webrl.runs.store import read_records, write_records
from webrl.types import StepRecord


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
