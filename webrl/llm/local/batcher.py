"""A thread that answers many prompts at once: requests join and leave between decoding steps.

Prompts are prefilled in groups, with logits at each prompt's last position only. Their keys and values then move into
a `SlotCache`, where one forward pass a step advances every open answer by one token.
"""

from __future__ import annotations

import logging
import random
import threading
from collections import deque
from collections.abc import Callable, Sequence
from concurrent.futures import Future
from dataclasses import dataclass, field
from typing import Generic, TypeVar

import torch

from webrl.errors import PolicyError
from webrl.llm.interface import Sampling
from webrl.llm.local.runner import Rows, Runner
from webrl.llm.sampling import draw_tokens

logger = logging.getLogger(__name__)

_MAX_PREFILL_TOKENS = 16384
"""Tokens, padding included, in one prefill pass (at least one prompt)."""

Answer = tuple[list[int], list[float]]
C = TypeVar("C", bound=Rows)


@dataclass(eq=False)
class Request:
    """One prompt waiting for, or in, generation."""

    prompt_ids: list[int]
    sampling: Sampling
    choices: list[int] | None = None
    """Score these tokens at the first answer position instead of generating."""
    future: Future[Answer] = field(default_factory=Future)
    """Result: (sampled ids, log-probs), or ([], log-probs of the choices)."""
    generator: random.Random = field(default_factory=random.Random)
    ids: list[int] = field(default_factory=list)
    logprobs: list[float] = field(default_factory=list)
    abandoned: bool = False
    """Set by whoever no longer waits: the row is freed at the next step."""


class Batcher(Generic[C]):
    """Owns a thread that runs a model. All methods may be called from any thread.

    `num_threads` (0: torch's own) is set for that thread, but MKL's part of it for the whole process: whoever closes
    the batcher sets it back.
    """

    def __init__(
        self,
        runner: Runner[C],
        new_cache: Callable[[], C],
        end_ids: Sequence[int],
        max_batch: int,
        num_threads: int,
    ) -> None:
        self._runner = runner
        self._new_cache = new_cache
        self._end_ids = frozenset(end_ids)
        self._max_batch = max_batch
        self._num_threads = num_threads
        self._waiting: deque[Request] = deque()
        self._active: list[Request] = []
        self._cache = new_cache()
        self._wake = threading.Condition()
        self._closing = False
        self._thread = threading.Thread(target=self._run, name="webrl-llm", daemon=True)
        self._thread.start()

    @property
    def num_open(self) -> int:
        """Requests waiting or in generation."""
        return len(self._waiting) + len(self._active)

    def submit(self, request: Request) -> Future[Answer]:
        """Queue a request; cancelling its future takes it out of the queue, `abandoned` out of the batch."""
        with self._wake:
            if self._closing:
                raise PolicyError("the model is closed")
            self._waiting.append(request)
            self._wake.notify()
        return request.future

    def close(self) -> None:
        """Stop after the current pass; open requests fail with PolicyError."""
        with self._wake:
            self._closing = True
            self._wake.notify()
        self._thread.join()

    def _run(self) -> None:
        if self._num_threads:
            torch.set_num_threads(self._num_threads)
        try:
            with torch.inference_mode():
                while self._wait():
                    self._turn()
        finally:
            self._fail_all(PolicyError("the model was closed while it answered"))

    def _wait(self) -> bool:
        """Sleep until there is something to do; False when closing."""
        with self._wake:
            while not (self._closing or self._active or self._waiting):
                self._wake.wait()
            return not self._closing

    def _turn(self) -> None:
        """One admission and one decoding step."""
        try:
            for group in self._next_groups():
                self._prefill(group)
            if self._active:
                self._decode()
        except Exception as error:  # boundary: whatever the model raised becomes the requests' error
            logger.exception("the in-process model failed")
            self._fail_active(_as_policy_error(error))

    def _next_groups(self) -> list[list[Request]]:
        """Take waiting requests into free rows, grouped by kind and similar length."""
        with self._wake:
            free = self._max_batch - len(self._active)
            taken = [self._waiting.popleft() for _ in range(min(free, len(self._waiting)))]
        taken = [r for r in taken if r.future.set_running_or_notify_cancel()]
        taken.sort(key=lambda r: len(r.prompt_ids))
        groups = []
        for scored in (True, False):
            alike = [r for r in taken if (r.choices is not None) == scored]
            for group in self._runner.group([len(r.prompt_ids) for r in alike], scored=scored):
                size = max(1, _MAX_PREFILL_TOKENS // len(alike[group[-1]].prompt_ids))
                groups += [[alike[i] for i in group[start : start + size]] for start in range(0, len(group), size)]
        return groups

    def _prefill(self, group: list[Request]) -> None:
        try:
            (self._open_answers if group[0].choices is None else self._score)(group)
        except Exception as error:  # this group fails alone; answers already open go on
            logger.exception("prefill failed")
            for request in group:
                if not request.future.done() and request not in self._active:
                    request.future.set_exception(_as_policy_error(error))

    def _score(self, group: list[Request]) -> None:
        log_probs = torch.log_softmax(self._runner.score([r.prompt_ids for r in group]).float(), dim=-1)
        for row, request in zip(log_probs, group, strict=True):
            request.future.set_result(([], row[request.choices].tolist()))

    def _open_answers(self, group: list[Request]) -> None:
        """Prefill, draw the first tokens, and give a row to those that go on."""
        prefilled = self._runner.prefill([r.prompt_ids for r in group])
        finished = self._take_tokens(group, prefilled.logits)
        for row, (request, done) in enumerate(zip(group, finished, strict=True)):
            if done:
                request.future.set_result((request.ids, request.logprobs))
            else:
                prefilled.admit(self._cache, row, len(request.prompt_ids))
                self._active.append(request)

    def _decode(self) -> None:
        """Advance every open answer by one token."""
        self._drop_cancelled()
        if not self._active:
            return
        logits = self._runner.decode([r.ids[-1] for r in self._active], self._cache)
        finished = self._take_tokens(self._active, logits)
        for row in reversed(range(len(finished))):
            if finished[row]:
                request = self._release(row)
                request.future.set_result((request.ids, request.logprobs))

    def _take_tokens(self, requests: list[Request], logits: torch.Tensor) -> list[bool]:
        """Draw one token for each request; tells which answers are complete."""
        tokens, logprobs = draw_tokens(logits, [r.sampling for r in requests], [r.generator for r in requests])
        finished = []
        for request, token, logprob in zip(requests, tokens, logprobs, strict=True):
            request.ids.append(token)
            request.logprobs.append(logprob)
            finished.append(token in self._end_ids or len(request.ids) >= request.sampling.max_new_tokens)
        return finished

    def _drop_cancelled(self) -> None:
        for row in reversed(range(len(self._active))):
            if self._active[row].abandoned:
                self._release(row)

    def _release(self, row: int) -> Request:
        """Take a row out; the last row takes its place, in the cache and here."""
        request = self._active[row]
        self._cache.release(row)
        self._active[row] = self._active[-1]
        self._active.pop()
        return request

    def _fail_active(self, error: Exception) -> None:
        for request in self._active:
            request.future.set_exception(error)
        self._active.clear()
        self._cache = self._new_cache()

    def _fail_all(self, error: Exception) -> None:
        self._fail_active(error)
        with self._wake:
            waiting = list(self._waiting)
            self._waiting.clear()
        for request in waiting:
            if request.future.set_running_or_notify_cancel():
                request.future.set_exception(error)


def _as_policy_error(error: Exception) -> PolicyError:
    hint = "; lower engine.max_batch" if isinstance(error, torch.OutOfMemoryError) else ""
    return PolicyError(f"the in-process model failed: {error}{hint}")
