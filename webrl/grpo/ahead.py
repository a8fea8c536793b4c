"""GRPO with episodes collected ahead: while one generation batch is trained on, the next ones are played.

With `max_staleness=s`, batch k is played by the weights that batches 0 … k-s-1 have trained, in another process
(`collector.py`), and trained on with the ratio of its tokens' probabilities to those that they were sampled with,
exactly as recorded. TRL's loss clips that ratio as PPO does, and truncates it at `RATIO_CAP` where the clipping leaves
it open (advantage below 0): TRL's `delta`, the two-sided clipping of INTELLECT-2, arXiv 2505.07291.

TRL's own asynchronous trainer (trl.experimental.async_grpo) has the same loss without the cap. It samples from a vLLM
server of its own, takes one token sequence an episode, needs FlashAttention 3, and drops what is too stale.
"""

from __future__ import annotations

import itertools
import time
from collections.abc import Iterator
from typing import Any

from webrl.grpo.collector import Collector
from webrl.grpo.play import Episode
from webrl.grpo.trl_trainer import EpisodeTrainer

RATIO_CAP = 3.0
"""Largest probability ratio that a token counts with."""


class AheadTrainer(EpisodeTrainer):
    """`EpisodeTrainer` whose player is a `Collector`.

    The last batches of an epoch have none after them to be played ahead, so that every epoch begins with a batch that
    is played while nothing trains.
    """

    def __init__(self, *args: Any, **kwargs: Any) -> None:
        self.staleness: list[int] = []
        """For each generation batch, how many batches behind its weights were."""
        self.waited_s: list[float] = []
        """For every generation batch: how long the training waited for its episodes."""
        self._ahead: list[Any] = []  # batches of the data loader that are read and not trained on
        self._window: list[Any] = []  # the same, and those of the optimizer step that is under way
        self._window_start = 0
        super().__init__(*args, **kwargs)

    @property
    def _is_off_policy(self) -> bool:
        return True

    @property
    def _generate_every(self) -> int:
        """Micro-batches that a generation batch is trained in."""
        return int(self.args.steps_per_generation * self.num_iterations)

    def get_batch_samples(self, epoch_iterator: Iterator[Any], num_batches: int, device: Any) -> tuple[Any, Any]:
        """The trainer's; reads on far enough to know the pages of the batches to be played ahead."""
        num_wanted = num_batches + self._settings.max_staleness * self._generate_every
        self._ahead += itertools.islice(epoch_iterator, max(0, num_wanted - len(self._ahead)))
        self._window, self._window_start = self._ahead, self._step
        self._ahead = self._window[num_batches:]
        return super().get_batch_samples(iter(self._window[:num_batches]), num_batches, device)  # type: ignore[no-any-return]

    def _collect(self) -> list[Episode]:
        """Return the episodes of this generation batch and request those that the current weights may play."""
        collector = self._player
        assert isinstance(collector, Collector)
        upcoming = self._window[self._step - self._window_start :: self._generate_every]
        to_ask = upcoming[collector.num_asked : self._settings.max_staleness + 1]
        version = len(self.staleness)
        if to_ask:
            collector.hand_over(self._fingerprint, self.accelerator.unwrap_model(self.model))
        for rows in to_ask:
            collector.ask(version, self._attempts([self._tasks[row["task"]] for row in rows]))
        begun = time.perf_counter()
        episodes, staleness = collector.take(version)
        self.staleness.append(staleness)
        self._metrics["train"]["sampling/staleness"].append(float(staleness))
        self.waited_s.append(time.perf_counter() - begun)
        self._metrics["train"]["sampling/waited_s"].append(self.waited_s[-1])
        return episodes
