"""Worker processes with many environments each; the controller's core stays free for the model.

API:

    async with EnvPool(config.rollout) as pool:        # num_workers processes, started as they are needed
        async with pool.env() as env:                  # waits for a free environment (back-pressure); an `Env`
            trajectory = await run_episode(env, ...)

A worker that dies, hangs, or has served `recycle_after` episodes is replaced; requests it had not answered raise
BrowserError. Leaving the pool ends all workers and browsers.

`WorkerHandle` is the controller's end of a worker of any kind: requests with deadlines, and whether it
may be used. `WorkerProcess` is one on this machine, `RayWorker` in `ray_workers.py` one on a cluster.
"""

from __future__ import annotations

import asyncio
import contextlib
import itertools
import logging
import os
import signal
from abc import ABC, abstractmethod
from collections.abc import AsyncIterator, Callable
from typing import Any, Self

from webrl import errors
from webrl.config import RolloutConfig
from webrl.config.redaction import revealed
from webrl.errors import BrowserError
from webrl.rollouts.browser import remove_abandoned
from webrl.rollouts.interface import Observation, Score, StepResult
from webrl.rollouts.suite import suite_of
from webrl.rollouts.worker import encode, observation_from_json, read_message, result_from_json
from webrl.runs.clock import spent_on
from webrl.runs.machine import own_environment, own_python
from webrl.types import Task

logger = logging.getLogger(__name__)

GRACE_S = 15.0
"""A worker that has not answered this long after its own deadline is killed."""
START_TIMEOUT_S = 60.0
"""The first reset on a worker also starts Chromium."""
VALIDATION_TIMEOUT_S = 300.0
"""Scoring an episode may ask a language model."""


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
        """Send a request and wait for the answer; may wait for ever. Raises what the worker reports."""

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
            allowed += START_TIMEOUT_S + suite_of(Task.from_json(arg["task"])).reset_allowance_s(self._config)
        try:
            with spent_on("browsers"):
                async with asyncio.timeout(allowed):
                    return await self._ask(env_id, op, arg)
        except TimeoutError:
            self.kill()
            raise BrowserError(f"the browser worker did not answer {op!r} in {allowed:g} s; killed") from None


def error_of(reply: dict[str, Any]) -> Exception:
    """The error that a worker's reply reports."""
    kind = getattr(errors, reply["kind"], BrowserError)
    error: Exception = kind(reply["error"])
    return error


class WorkerProcess(WorkerHandle):
    """A worker in a process of this machine."""

    def __init__(self, config: RolloutConfig) -> None:
        super().__init__(config)
        self._process: asyncio.subprocess.Process | None = None
        self._reader: asyncio.Task[None] | None = None
        self._waiting: dict[int, asyncio.Future[Any]] = {}
        self._ids = itertools.count()

    async def start(self) -> None:
        """Launch the process, which launches Chromium."""
        self._process = await asyncio.create_subprocess_exec(
            *own_python("webrl.rollouts.worker"),
            stdin=asyncio.subprocess.PIPE,
            stdout=asyncio.subprocess.PIPE,
            limit=1 << 24,
            start_new_session=True,  # Ctrl-C reaches the controller alone, which then ends the workers
            env=own_environment(),
        )
        self.pid = self._process.pid
        self._send(revealed(self._config))
        self._reader = asyncio.create_task(self._read())

    async def _ask(self, env_id: int, op: str, arg: Any) -> Any:
        number = next(self._ids)
        future: asyncio.Future[Any] = asyncio.get_running_loop().create_future()
        self._waiting[number] = future
        try:
            self._send({"id": number, "env": env_id, "op": op, "arg": arg})
            return await future
        finally:
            self._waiting.pop(number, None)

    def _send(self, message: dict[str, Any]) -> None:
        assert self._process is not None
        assert self._process.stdin is not None
        try:
            self._process.stdin.write(encode(message))
        except (BrokenPipeError, ConnectionResetError):
            self._fail("the browser worker has ended")
            raise BrowserError("the browser worker has ended") from None

    async def _read(self) -> None:
        assert self._process is not None
        assert self._process.stdout is not None
        try:
            while True:
                reply = await read_message(self._process.stdout)
                future = self._waiting.get(reply["id"])
                if future is None or future.done():
                    continue
                if "error" in reply:
                    future.set_exception(error_of(reply))
                else:
                    future.set_result(reply["result"])
        except (asyncio.IncompleteReadError, ConnectionResetError):
            self._fail("the browser worker has ended")

    def _fail(self, reason: str) -> None:
        self.failed = True
        for future in self._waiting.values():
            if not future.done():
                future.set_exception(BrowserError(reason))

    def kill(self) -> None:
        """End it at once; Chromium and its driver end when their pipes close."""
        self._fail("the browser worker was killed")
        if self._process is not None and self._process.returncode is None:
            with contextlib.suppress(ProcessLookupError):
                os.killpg(self._process.pid, signal.SIGKILL)

    async def close(self) -> None:
        """Let it end in order, or kill it after five seconds."""
        process = self._process
        if process is None:
            return
        self._fail("the environment pool was closed")
        assert process.stdin is not None
        process.stdin.close()
        try:
            await asyncio.wait_for(process.wait(), 5)
        except TimeoutError:
            self.kill()
            await process.wait()
        if self._reader is not None:
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
        arg = {"task": task.to_json(), "settings": settings or {}}
        return observation_from_json(await self._worker.request(self._id, "reset", arg))

    async def step(self, action_text: str) -> StepResult:
        """Act in the worker."""
        return result_from_json(await self._worker.request(self._id, "step", action_text))

    async def finish(self) -> Score:
        """Have the episode scored in the worker."""
        return Score(**await self._worker.request(self._id, "finish"))

    async def close(self) -> None:
        """Close the pages; the pool calls this only for environments in doubt."""
        with contextlib.suppress(BrowserError):
            await self._worker.request(self._id, "close")


class EnvPool:
    """`num_workers` x `envs_per_worker` environments in workers; see the module docstring."""

    def __init__(
        self, config: RolloutConfig, make_worker: Callable[[RolloutConfig], WorkerHandle] = WorkerProcess
    ) -> None:
        self.config = config
        """What its environments were made for."""
        self._make_worker = make_worker
        self._slots: asyncio.LifoQueue[int] = asyncio.LifoQueue()  # warm pages first
        self._workers: dict[int, WorkerHandle] = {}
        self._locks = [asyncio.Lock() for _ in range(config.num_workers)]
        self._all: set[WorkerHandle] = set()
        self._closing: set[asyncio.Task[None]] = set()
        for env_id in range(config.envs_per_worker):
            for worker_id in range(config.num_workers):
                self._slots.put_nowait(env_id * config.num_workers + worker_id)

    @property
    def size(self) -> int:
        """Number of environments."""
        return self.config.num_workers * self.config.envs_per_worker

    @property
    def worker_pids(self) -> list[int]:
        """Process ids of the workers that run now on this machine."""
        return [worker.pid for worker in self._all if worker.pid is not None and not worker.failed]

    async def start(self, num_episodes: int) -> None:
        """Launch the workers of so many episodes now; without it they are launched as environments are wanted."""
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
                self._all.add(worker)
                self._workers[worker_id] = worker
                with spent_on("browsers"):
                    await worker.start()
            return worker

    def _end(self, worker: WorkerHandle) -> None:
        """Begin to close a worker that was replaced, unless an episode still runs in it, which does so at its end."""

        async def close() -> None:
            await worker.close()
            self._all.discard(worker)

        if not worker.users:
            task = asyncio.create_task(close())
            self._closing.add(task)
            task.add_done_callback(self._closing.discard)

    async def close(self) -> None:
        """End all workers."""
        await asyncio.gather(*self._closing, return_exceptions=True)
        await asyncio.gather(*(worker.close() for worker in self._all))
        self._all.clear()
        self._workers.clear()
        await asyncio.to_thread(remove_abandoned)  # of workers that were killed

    async def __aenter__(self) -> Self:
        return self

    async def __aexit__(self, *exc: object) -> None:
        await asyncio.shield(self.close())
