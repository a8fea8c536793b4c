"""Batches concurrent requests in a worker thread."""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Sequence
from typing import Generic, TypeVar

from webrl.errors import PolicyError

Q = TypeVar("Q")
A = TypeVar("A")


class Together(Generic[Q, A]):
    """Collects questions while a batch is being answered.

    Args:
        name: of who answers, for errors.
        answer: answers a batch: one answer a question, or the error that its asker gets.
        max_batch: questions a batch; 0: all.
    """

    def __init__(self, name: str, answer: Callable[[list[Q]], Sequence[A | PolicyError]], max_batch: int = 0) -> None:
        self._name = name
        self._answer = answer
        self._max_batch = max_batch
        self._waiting: list[tuple[Q, asyncio.Future[A]]] = []
        self._draining: asyncio.Task[None] | None = None

    async def ask(self, question: Q) -> A:
        """Wait for the answer.

        Raises:
            PolicyError: whatever `answer` has raised or given.
        """
        future: asyncio.Future[A] = asyncio.get_running_loop().create_future()
        self._waiting.append((question, future))
        if self._draining is None or self._draining.done():
            self._draining = asyncio.create_task(self._drain())
        return await future

    async def _drain(self) -> None:
        """Answer all who wait, and those who have come meanwhile."""
        while self._waiting:
            await asyncio.sleep(0)  # let others ask who are about to
            size = self._max_batch or len(self._waiting)
            batch, self._waiting = self._waiting[:size], self._waiting[size:]
            taken: Sequence[A | PolicyError]
            try:
                taken = await asyncio.to_thread(self._answer, [question for question, _ in batch])
                if len(taken) != len(batch):
                    raise PolicyError(f"{self._name} gave {len(taken)} answers to {len(batch)} prompts")
            except Exception as error:  # boundary: whatever the engine raised becomes the requests' error
                problem = error if isinstance(error, PolicyError) else PolicyError(f"{self._name} failed: {error}")
                taken = [problem] * len(batch)
            for (_, future), answer in zip(batch, taken, strict=True):
                if future.done():
                    continue
                if isinstance(answer, PolicyError):
                    future.set_exception(answer)
                else:
                    future.set_result(answer)

    async def close(self) -> None:
        """Let what is being answered end."""
        if self._draining is not None:
            await asyncio.gather(self._draining, return_exceptions=True)
