"""Perplexity's model pass: log-probabilities under the current actor, from the cache or on all local GPUs."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Sequence
from concurrent.futures import ProcessPoolExecutor
from multiprocessing import get_context
from pathlib import Path

from webrl.config import RunConfig
from webrl.llm.fingerprint import weights_fingerprint
from webrl.replay.cache import ScoreCache, ScoreCounts, score_cached
from webrl.types import StepRecord


class Scorer:
    """Scores step records under one actor; context manager that owns the cache file.

    Args:
        actor: model folder (or hub name, which then is its own fingerprint).
        cache: SQLite file that is shared by all actors of a run.
    """

    def __init__(self, actor: str, config: RunConfig, cache: Path) -> None:
        self.counts = ScoreCounts()
        self._actor = actor
        self._config = config
        self._fingerprint = weights_fingerprint(actor) if Path(actor).is_dir() else actor
        self._cache = ScoreCache(cache)

    def stream(self, records: Iterable[StepRecord]) -> Iterator[StepRecord]:
        """The records in order, with `ref_logprobs` under this actor; stale ones are replaced."""
        return score_cached(records, self._score, self._cache, self._fingerprint, self.counts)

    def close(self) -> None:
        """Close the cache."""
        self._cache.close()

    def __enter__(self) -> Scorer:
        return self

    def __exit__(self, *exc: object) -> None:
        self.close()

    def _score(self, records: Sequence[StepRecord]) -> list[StepRecord]:
        import torch

        devices = torch.cuda.device_count() if self._config.models.device == "auto" else 1
        # A process per GPU pays for its start only where there is work for it.
        if devices > 1 and len(records) >= 64 * devices and not torch.distributed.is_initialized():
            return score_on_devices(records, self._actor, self._config, [f"cuda:{i}" for i in range(devices)])
        return _score_on_one(records, self._actor, self._config)


def _score_on_one(records: Sequence[StepRecord], actor: str, config: RunConfig) -> list[StepRecord]:
    from webrl.training.scoring import score_actions

    return list(score_actions(records, actor, config))


def score_on_devices(
    records: Sequence[StepRecord], actor: str, config: RunConfig, devices: Sequence[str]
) -> list[StepRecord]:
    """Score with one process per device, in the order given; every device gets the same mix of lengths."""
    order = sorted(range(len(records)), key=lambda i: len(records[i].prompt_ids) + len(records[i].action_ids))
    scored: list[StepRecord] = list(records)
    with ProcessPoolExecutor(len(devices), mp_context=get_context("spawn")) as pool:
        jobs = []
        for number, device in enumerate(devices):
            models = config.models.model_copy(update={"device": device})
            own = config.model_copy(update={"models": models})
            shard = order[number :: len(devices)]
            jobs.append((shard, pool.submit(_score_on_one, [records[i] for i in shard], actor, own)))
        for shard, job in jobs:
            for position, record in zip(shard, job.result(), strict=True):
                scored[position] = record
    return scored
