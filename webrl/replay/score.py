"""Score once: log-probabilities of steps under the current actor, from disk or on all local GPUs.

They are kept by (actor fingerprint, step id): a second run over the same steps computes nothing. SQLite keeps memory
constant and survives a kill or power failure.
"""

from __future__ import annotations

import array
import sqlite3
from collections import Counter
from collections.abc import Callable, Iterable, Iterator, Sequence
from concurrent.futures import ProcessPoolExecutor
from contextlib import AbstractContextManager
from dataclasses import replace
from hashlib import blake2b
from itertools import chain
from multiprocessing import get_context
from pathlib import Path

from webrl.config import RunConfig
from webrl.errors import DataError
from webrl.runs.disk import full_disk_named
from webrl.types import StepRecord

_SCHEMA = """CREATE TABLE IF NOT EXISTS scores (
    fingerprint TEXT, step_id TEXT, digest BLOB, logprobs BLOB, PRIMARY KEY (fingerprint, step_id)
) WITHOUT ROWID"""
_SELECT = "SELECT digest, logprobs FROM scores WHERE fingerprint = ? AND step_id = ?"


class Scorer(AbstractContextManager["Scorer"]):
    """Scores step records under one actor, each once.

    Step ids are unique in one run only, so a row also holds a digest of the token ids and the picture; a row whose
    digest differs is not used.

    Args:
        path: SQLite file that is shared by all actors of a run.
        score: the model pass: gives the records back in order with `ref_logprobs`.

    Raises:
        DataError: the file cannot be written, or is not a score cache.
        OSError: the disk is full.
    """

    def __init__(
        self, path: Path, fingerprint: str, score: Callable[[Sequence[StepRecord]], Sequence[StepRecord]]
    ) -> None:
        self._path, self._fingerprint, self._score = path, fingerprint, score
        self.counts = Counter(computed=0, cached=0)
        """Steps that went through the model, and steps answered from disk."""
        with full_disk_named(path):
            try:
                path.parent.mkdir(parents=True, exist_ok=True)
                self._database = sqlite3.connect(path)
                # A write-ahead log would need memory that all machines of a shared disk see.
                self._database.execute("PRAGMA journal_mode = DELETE")
                # Rescored steps are packed with others, and differ in their last digits: a commit must last.
                self._database.execute("PRAGMA synchronous = EXTRA")
                self._database.execute(_SCHEMA)
            except (OSError, sqlite3.Error) as error:
                raise DataError(f"{path}: cannot be used as score cache ({error}); delete it or name another") from None

    def __exit__(self, *exc: object) -> None:
        self._database.close()

    def stream(self, records: Iterable[StepRecord], chunk_tokens: int = 8_000_000) -> Iterator[StepRecord]:
        """Yield the records in order, with `ref_logprobs` under this actor; stale ones are replaced.

        Args:
            chunk_tokens: the model is called with about this many tokens at once: some 300 MB of ids, minutes of
                work for an 8B model (which is loaded once a call), and enough to batch by length.

        Raises:
            ValueError: the model pass gave another number of records back, or none for a step.
        """
        chunk: list[StepRecord] = []
        num_tokens = 0
        for record in chain(records, [None]):
            if record is not None:
                chunk.append(record)
                num_tokens += len(record.prompt_ids) + len(record.action_ids)
                if num_tokens < chunk_tokens:
                    continue
            known: list[tuple[float, ...] | None] = []
            for step in chunk:
                row = self._database.execute(_SELECT, (self._fingerprint, step.step_id)).fetchone()
                known.append(tuple(array.array("d", row[1])) if row is not None and row[0] == _digest(step) else None)
            missing = [step for step, logprobs in zip(chunk, known, strict=True) if logprobs is None]
            fresh = list(self._score(missing)) if missing else []
            if [r.step_id for r in fresh] != [r.step_id for r in missing] or any(r.ref_logprobs is None for r in fresh):
                raise ValueError(f"scoring returned {len(fresh)} records for {len(missing)}, or some without log-probs")
            rows = [
                (self._fingerprint, r.step_id, _digest(r), array.array("d", r.ref_logprobs or ()).tobytes())
                for r in fresh
            ]
            with full_disk_named(self._path):
                try:
                    with self._database:  # one transaction
                        self._database.executemany("INSERT OR REPLACE INTO scores VALUES (?, ?, ?, ?)", rows)
                except sqlite3.Error as error:
                    raise DataError(f"{self._path}: cannot store scores: {error}") from None
            self.counts.update(computed=len(fresh), cached=len(chunk) - len(fresh))
            new = iter(fresh)
            for step, logprobs in zip(chunk, known, strict=True):
                yield replace(step, ref_logprobs=next(new).ref_logprobs if logprobs is None else logprobs)
            chunk, num_tokens = [], 0


def _digest(record: StepRecord) -> bytes:
    data = blake2b(array.array("q", record.prompt_ids).tobytes(), digest_size=12)
    data.update(b"|" + array.array("q", record.action_ids).tobytes())
    if record.screenshot_sha256:
        data.update(b"|" + record.screenshot_sha256.encode())
    return data.digest()


def score_steps(records: Sequence[StepRecord], actor: str, config: RunConfig) -> list[StepRecord]:
    """Score steps under an actor, in the order given, with a process for each local GPU if there is work for it."""
    import torch

    from webrl.training.scoring import score_actions

    devices = torch.cuda.device_count() if config.models.device == "auto" else 1
    if devices > 1 and len(records) >= 64 * devices and not torch.distributed.is_initialized():
        return score_on_devices(records, actor, config, [f"cuda:{i}" for i in range(devices)])
    return score_actions(records, actor, config)


def score_on_devices(
    records: Sequence[StepRecord], actor: str, config: RunConfig, devices: Sequence[str]
) -> list[StepRecord]:
    """Score with one process per device, in the order given; every device gets the same mix of lengths."""
    from webrl.training.scoring import score_actions

    order = sorted(range(len(records)), key=lambda i: len(records[i].prompt_ids) + len(records[i].action_ids))
    scored: list[StepRecord] = list(records)
    with ProcessPoolExecutor(len(devices), mp_context=get_context("spawn")) as pool:
        jobs = []
        for number, device in enumerate(devices):
            models = config.models.model_copy(update={"device": device})
            own = config.model_copy(update={"models": models})
            shard = order[number :: len(devices)]
            jobs.append((shard, pool.submit(score_actions, [records[i] for i in shard], actor, own)))
        for shard, job in jobs:
            for position, record in zip(shard, job.result(), strict=True):
                scored[position] = record
    return scored
