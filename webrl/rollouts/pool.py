"""Worker processes with many environments each; the controller's core stays free for the model.

A worker that dies, hangs, or has served `recycle_after` episodes is replaced; requests it had not answered raise
BrowserError. Leaving the pool ends all workers and browsers. A worker is a process of this machine (`WorkerProcess`) or
a Ray actor (webrl-serve); which of them are used, retried or replaced is decided by the pool.

To start a worker, its Chromium and its pages takes five CPU-seconds, and three stages of a phase need them: within
`keep_browsers` the stages share one pool. It belongs to an event loop, on which they run, by `run`; a stage that loads
a model first has the browsers started before it, by `start_early`.
"""

from __future__ import annotations

import asyncio
import contextlib
import contextvars
import itertools
import logging
import os
import signal
import threading
from abc import ABC, abstractmethod
from collections.abc import AsyncIterator, Callable, Coroutine, Iterator
from typing import Any, TypeVar

from webrl.config import RolloutConfig
from webrl.config.redaction import revealed
from webrl.errors import BrowserError
from webrl.rollouts.browser import remove_abandoned
from webrl.rollouts.interface import Observation, Score, StepResult
from webrl.rollouts.suite import suite_of
from webrl.rollouts.worker import encode, read_message
from webrl.runs.clock import spent_on
from webrl.runs.machine import own_environment, own_python
from webrl.types import Task

T = TypeVar("T")

logger = logging.getLogger(__name__)

GRACE_S = 15.0
"""A worker that has not answered this long after its own deadline is killed."""
START_TIMEOUT_S = 60.0
"""The first reset on a worker also starts Chromium."""
VALIDATION_TIMEOUT_S = 300.0
"""Scoring an episode may ask a language model."""
CLOSE_TIMEOUT_S = 5.0
"""A worker that has not ended in order by then is killed."""


class WorkerHandle(ABC):
    """One worker; environments are numbered by the pool and made by the worker at their first reset."""

    pid: int | None = None
    """Process id, if the worker is a process of this machine."""

    def __init__(self, config: RolloutConfig) -> None:
        self._config = config
        self.users = 0
        """Environments that are in use."""
        self.episodes = 0
        """Episodes started so far."""
        self.failed = False
        """True once it must not be used again."""

    @abstractmethod
    async def start(self) -> None:
        """Launch the worker; Chromium follows, at the first reset at the latest."""

    @abstractmethod
    async def _ask(self, env_id: int, op: str, arg: Any) -> Any:
        """Send a request and wait for the answer, which may be an error; may wait for ever."""

    @abstractmethod
    def kill(self) -> None:
        """End it at once; its Chromium ends with it."""

    @abstractmethod
    async def close(self) -> None:
        """Let it end in order, or kill it after a few seconds."""

    async def request(self, env_id: int, op: str, arg: Any = None) -> Any:
        """Ask and wait for the answer. Raises the error the worker reports, BrowserError if it is gone or hangs."""
        if self.failed:
            raise BrowserError("the browser worker has ended")
        allowed = self._config.step_timeout_s + GRACE_S
        if op == "finish":
            allowed += VALIDATION_TIMEOUT_S
        elif op == "reset":
            allowed += START_TIMEOUT_S + suite_of(arg[0]).reset_allowance_s(self._config)
        try:
            with spent_on("browsers"):
                async with asyncio.timeout(allowed):
                    answer = await self._ask(env_id, op, arg)
        except TimeoutError:
            self.kill()
            raise BrowserError(f"the browser worker did not answer {op!r} in {allowed:g} s; killed") from None
        if isinstance(answer, Exception):
            raise answer
        return answer


class WorkerProcess(WorkerHandle):
    """A worker in a process of this machine."""

    def __init__(self, config: RolloutConfig) -> None:
        super().__init__(config)
        self._waiting: dict[int, asyncio.Future[Any]] = {}
        self._ids = itertools.count()

    async def start(self) -> None:
        """Launch the process, which launches Chromium."""
        self._process = process = await asyncio.create_subprocess_exec(
            *own_python("webrl.rollouts.worker"),
            stdin=asyncio.subprocess.PIPE,
            stdout=asyncio.subprocess.PIPE,
            limit=1 << 24,
            start_new_session=True,  # Ctrl-C reaches the controller alone, which then ends the workers
            env=own_environment(),
        )
        assert process.stdin is not None
        assert process.stdout is not None
        self.pid, self._stdin = process.pid, process.stdin
        self._send(revealed(self._config))
        self._reader = asyncio.create_task(self._read(process.stdout))

    async def _ask(self, env_id: int, op: str, arg: Any) -> Any:
        number = next(self._ids)
        future: asyncio.Future[Any] = asyncio.get_running_loop().create_future()
        self._waiting[number] = future
        try:
            self._send((number, env_id, op, arg))
            return await future
        finally:
            self._waiting.pop(number, None)

    def _send(self, message: Any) -> None:
        try:
            self._stdin.write(encode(message))
        except (BrokenPipeError, ConnectionResetError):
            self._fail("the browser worker has ended")
            raise BrowserError("the browser worker has ended") from None

    async def _read(self, answers: asyncio.StreamReader) -> None:
        try:
            while True:
                number, answer = await read_message(answers)
                future = self._waiting.get(number)
                if future is not None and not future.done():
                    future.set_result(answer)
        except (asyncio.IncompleteReadError, ConnectionResetError):
            self._fail("the browser worker has ended")

    def _fail(self, reason: str) -> None:
        self.failed = True
        for future in self._waiting.values():
            if not future.done():
                future.set_result(BrowserError(reason))

    def kill(self) -> None:
        """End it at once; Chromium and its driver end when their pipes close."""
        self._fail("the browser worker was killed")
        if self._process.returncode is None:
            with contextlib.suppress(ProcessLookupError):
                os.killpg(self._process.pid, signal.SIGKILL)

    async def close(self) -> None:
        """Let it end in order, or kill it after a few seconds."""
        self._fail("the environment pool was closed")
        self._stdin.close()
        try:
            await asyncio.wait_for(self._process.wait(), CLOSE_TIMEOUT_S)
        except TimeoutError:
            self.kill()
            await self._process.wait()
        self._reader.cancel()
        await asyncio.gather(self._reader, return_exceptions=True)


class PoolEnv:
    """An environment in a worker; implements `Env`."""

    def __init__(self, worker: WorkerHandle, env_id: int) -> None:
        self._worker = worker
        self._id = env_id

    async def reset(self, task: Task, settings: dict[str, Any] | None = None) -> Observation:
        """Start an episode in the worker; `settings` are options of RolloutConfig that differ for this one."""
        self._worker.episodes += 1
        observation: Observation = await self._worker.request(self._id, "reset", (task, settings or {}))
        return observation

    async def step(self, action_text: str) -> StepResult:
        """Act in the worker."""
        result: StepResult = await self._worker.request(self._id, "step", action_text)
        return result

    async def finish(self) -> Score:
        """Have the episode scored in the worker."""
        score: Score = await self._worker.request(self._id, "finish")
        return score

    async def close(self) -> None:
        """Close the pages; the pool calls this only for environments in doubt."""
        with contextlib.suppress(BrowserError):
            await self._worker.request(self._id, "close")


class EnvPool(contextlib.AbstractAsyncContextManager["EnvPool"]):
    """`num_workers` x `envs_per_worker` environments in workers; see the module docstring."""

    def __init__(
        self, config: RolloutConfig, make_worker: Callable[[RolloutConfig], WorkerHandle] = WorkerProcess
    ) -> None:
        self.config = config
        """What its environments were made for."""
        self.size = config.num_workers * config.envs_per_worker
        """Number of environments."""
        self._make_worker = make_worker
        self._slots: asyncio.LifoQueue[int] = asyncio.LifoQueue()  # warm pages first
        self._workers: dict[int, WorkerHandle] = {}
        self._locks = [asyncio.Lock() for _ in range(config.num_workers)]
        self._all: set[WorkerHandle] = set()
        self._closing: set[asyncio.Task[None]] = set()
        for slot in range(self.size):
            self._slots.put_nowait(slot)

    @property
    def worker_pids(self) -> list[int]:
        """Process ids of the workers that run now on this machine."""
        return [worker.pid for worker in self._all if worker.pid is not None and not worker.failed]

    async def start(self, num_episodes: int) -> None:
        """Launch the workers of this many episodes now; without it they are launched as environments are wanted."""
        for worker_id in list(reversed(range(self.config.num_workers)))[:num_episodes]:  # in the order of the slots
            await self._worker(worker_id)

    @contextlib.asynccontextmanager
    async def env(self) -> AsyncIterator[PoolEnv]:
        """Borrow an environment; waits until one is free."""
        slot = await self._slots.get()
        env_id, worker_id = divmod(slot, self.config.num_workers)
        try:
            worker = await self._worker(worker_id)
            worker.users += 1
            env = PoolEnv(worker, env_id)
            try:
                yield env
            except BaseException:
                # Cancelled or failed in mid-step: the page's state is unknown.
                if not worker.failed:
                    await asyncio.shield(env.close())
                raise
            finally:
                worker.users -= 1
                if worker is not self._workers.get(worker_id):
                    self._end(worker)
        finally:
            self._slots.put_nowait(slot)

    async def _worker(self, worker_id: int) -> WorkerHandle:
        """The worker of a slot, replaced if it has failed or served long enough."""
        async with self._locks[worker_id]:
            worker = self._workers.get(worker_id)
            if worker is not None and (worker.failed or worker.episodes >= self.config.recycle_after):
                del self._workers[worker_id]
                self._end(worker)
                worker = None
            if worker is None:
                worker = self._make_worker(self.config)
                with spent_on("browsers"):
                    await worker.start()  # may be cancelled: then there is none
                self._all.add(worker)
                self._workers[worker_id] = worker
            return worker

    def _end(self, worker: WorkerHandle) -> None:
        """Begin to close a worker that was replaced, unless an episode still runs in it, which does so at its end."""
        if not worker.users:
            self._all.discard(worker)
            task = asyncio.create_task(worker.close())
            self._closing.add(task)
            task.add_done_callback(self._closing.discard)

    async def close(self) -> None:
        """End all workers."""
        await asyncio.gather(*self._closing, return_exceptions=True)
        await asyncio.gather(*(worker.close() for worker in self._all))
        self._all.clear()
        self._workers.clear()
        await asyncio.to_thread(remove_abandoned)  # of workers that were killed

    async def __aexit__(self, *exc: object) -> None:
        await asyncio.shield(self.close())


class _Kept(threading.local):
    """The browsers of the thread's innermost `keep_browsers`."""

    runner: asyncio.Runner | None = None
    """None outside."""
    pool: EnvPool | None = None
    is_lent = False


_kept = _Kept()


@contextlib.contextmanager
def keep_browsers() -> Iterator[None]:
    """Browsers of this machine that this thread starts within the block live until its end; nests."""
    if _kept.runner is not None:
        yield
        return
    with asyncio.Runner() as runner:
        _kept.runner = runner
        try:
            yield
        finally:
            pool, _kept.runner, _kept.pool = _kept.pool, None, None
            if pool is not None:
                runner.run(pool.close())


def run(work: Coroutine[Any, Any, T]) -> T:
    """Run like `asyncio.run`; within `keep_browsers`, on the loop that its browsers belong to."""
    runner = _kept.runner
    return asyncio.run(work) if runner is None else runner.run(work, context=contextvars.copy_context())


@contextlib.asynccontextmanager
async def borrow(config: RolloutConfig) -> AsyncIterator[EnvPool | None]:
    """Lend the kept environments of these settings, replacing those of others; None if none are kept or free."""
    if _kept.runner is None or _kept.is_lent or asyncio.get_running_loop() is not _kept.runner.get_loop():
        yield None
        return
    _kept.is_lent = True
    try:
        old = _kept.pool
        if old is None or old.config != config:
            _kept.pool = EnvPool(config)
            if old is not None:
                await old.close()
        yield _kept.pool
    finally:
        _kept.is_lent = False


async def start_early(config: RolloutConfig, num_episodes: int) -> None:
    """Launch the browsers that `borrow` would lend for that many episodes, while the caller loads a model."""
    if config.env == "browser" and config.backend != "ray" and num_episodes:
        async with borrow(config) as pool:
            if pool is not None:
                await pool.start(num_episodes)
