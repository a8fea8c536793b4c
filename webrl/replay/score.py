"""Score once: log-probabilities of steps under the current actor, from disk or on all local GPUs.

They are kept by (actor fingerprint, step id): a second run over the same steps computes nothing. SQLite keeps memory
constant and survives a kill or power failure.
"""

from __future__ import annotations

import array
import dataclasses
import sqlite3
from collections.abc import Callable, Iterable, Iterator, Sequence
from concurrent.futures import ProcessPoolExecutor
from hashlib import blake2b
from multiprocessing import get_context
from pathlib import Path
from typing import Self

from webrl.config import RunConfig
from webrl.errors import DataError
from webrl.llm.loading import weights_fingerprint
from webrl.runs.disk import full_disk_named
from webrl.types import StepRecord

ScoreFunction = Callable[[Sequence[StepRecord]], Iterable[StepRecord]]
"""Gives the records back in order with `ref_logprobs` under the current actor."""

_SCHEMA = """CREATE TABLE IF NOT EXISTS scores (
    fingerprint TEXT, step_id TEXT, digest BLOB, logprobs BLOB, PRIMARY KEY (fingerprint, step_id)
) WITHOUT ROWID"""


class ScoreCache:
    """Log-probabilities by (actor fingerprint, step id).

    Step ids are unique in one run only, so a row also holds a digest of the token ids and the picture; a row whose
    digest differs is not used.
    """

    def __init__(self, path: Path) -> None:
        """Open or create the file.

        Raises:
            DataError: not writable, or not a score cache.
            OSError: the disk is full.
        """
        self._path = path
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

    def get(self, fingerprint: str, record: StepRecord) -> tuple[float, ...] | None:
        """[A] stored log-probabilities of the step's action tokens, or None."""
        row = self._database.execute(
            "SELECT digest, logprobs FROM scores WHERE fingerprint = ? AND step_id = ?", (fingerprint, record.step_id)
        ).fetchone()
        if row is None or row[0] != _digest_of(record):
            return None
        return tuple(array.array("d", row[1]))

    def put(self, fingerprint: str, records: Iterable[StepRecord]) -> None:
        """Store `ref_logprobs` of scored records, in one transaction.

        Raises:
            DataError: the disk is read-only.
            OSError: it is full.
        """
        rows = [
            (
                fingerprint,
                r.step_id,
                _digest_of(r),
                array.array("d", r.ref_logprobs).tobytes(),
            )
            for r in records
            if r.ref_logprobs is not None
        ]
        with full_disk_named(self._path):
            try:
                with self._database:
                    self._database.executemany("INSERT OR REPLACE INTO scores VALUES (?, ?, ?, ?)", rows)
            except sqlite3.Error as error:
                raise DataError(f"{self._path}: cannot store scores: {error}") from None

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *exc: object) -> None:
        self._database.close()


def score_cached(
    records: Iterable[StepRecord],
    score: ScoreFunction,
    cache: ScoreCache,
    fingerprint: str,
    counts: dict[str, int],
    chunk_tokens: int = 8_000_000,
) -> Iterator[StepRecord]:
    """Stream records with `ref_logprobs`, in order; only steps unknown to the cache are computed.

    Args:
        score: the model pass.
        counts: is counted up: `computed` steps went through the model, `cached` ones were answered from disk.
        chunk_tokens: `score` is called with about this many tokens at once: some 300 MB of ids, minutes of
            work for an 8B model (which is loaded once a call), and enough to batch by length.
        fingerprint: of the actor's weights.

    Raises:
        ValueError: `score` gave another number of records back, or none for a step.
    """
    records, num_tokens = iter(records), 0
    chunk: list[StepRecord] = []
    while True:
        record = next(records, None)
        if record is not None:
            chunk.append(record)
            num_tokens += len(record.prompt_ids) + len(record.action_ids)
            if num_tokens < chunk_tokens:
                continue
        known = [cache.get(fingerprint, step) for step in chunk]
        missing = [step for step, logprobs in zip(chunk, known, strict=True) if logprobs is None]
        fresh = list(score(missing)) if missing else []
        if [r.step_id for r in fresh] != [r.step_id for r in missing] or any(r.ref_logprobs is None for r in fresh):
            raise ValueError(f"scoring gave {len(fresh)} records for {len(missing)}, or left some without log-probs")
        cache.put(fingerprint, fresh)
        counts["computed"] += len(fresh)
        counts["cached"] += len(chunk) - len(fresh)
        new = iter(fresh)
        for step, logprobs in zip(chunk, known, strict=True):
            yield dataclasses.replace(step, ref_logprobs=next(new).ref_logprobs if logprobs is None else logprobs)
        if record is None:
            return
        chunk, num_tokens = [], 0


def _digest_of(record: StepRecord) -> bytes:
    return _digest(record.prompt_ids, record.action_ids, record.screenshot_sha256)


def _digest(prompt_ids: Sequence[int], action_ids: Sequence[int], picture: str) -> bytes:
    """Tell a step's tokens and picture from another's under the same step id."""
    data = blake2b(array.array("q", prompt_ids).tobytes(), digest_size=12)
    data.update(b"|" + array.array("q", action_ids).tobytes())
    if picture:
        data.update(b"|" + picture.encode())
    return data.digest()


class Scorer(ScoreCache):
    """Scores step records under one actor, each once.

    Args:
        actor: model folder (or hub name, which then is its own fingerprint).
        cache: SQLite file that is shared by all actors of a run.
    """

    def __init__(self, actor: str, config: RunConfig, cache: Path) -> None:
        # may raise, so before a file is made
        self._fingerprint = weights_fingerprint(actor) if Path(actor).is_dir() else actor
        super().__init__(cache)
        self.counts = {"computed": 0, "cached": 0}
        self._actor = actor
        self._config = config

    def stream(self, records: Iterable[StepRecord]) -> Iterator[StepRecord]:
        """Yield the records in order, with `ref_logprobs` under this actor; stale ones are replaced."""
        return score_cached(records, self._score, self, self._fingerprint, self.counts)

    def _score(self, records: Sequence[StepRecord]) -> list[StepRecord]:
        import torch

        from webrl.training.scoring import score_actions

        devices = torch.cuda.device_count() if self._config.models.device == "auto" else 1
        # A process per GPU pays for its start only where there is work for it.
        if devices > 1 and len(records) >= 64 * devices and not torch.distributed.is_initialized():
            return score_on_devices(records, self._actor, self._config, [f"cuda:{i}" for i in range(devices)])
        return score_actions(records, self._actor, self._config)


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
