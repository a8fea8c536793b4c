"""A worker process: one Chromium, many environments, driven by messages over stdin and stdout.

Run as `python -m webrl.rollouts.worker`. Messages are pickled, with a 4-byte length before them: both ends are ours.
The first is the RolloutConfig; then `(id, environment, "reset" | "step" | "finish" | "close", argument)` in any order,
each answered by `(id, result or error)`. Chromium starts at once, environments are made at their first reset.

The worker ends, and its Chromium with it, when stdin closes: so neither Ctrl-C nor `kill -9` of the controller
leaves a process behind. A watchdog thread does the same should the event loop hang when its parent has gone.
"""

from __future__ import annotations

import asyncio
import contextlib
import gc
import logging
import os
import pickle
import signal
import sys
import threading
import time
from typing import Any

from webrl import errors
from webrl.config import RolloutConfig
from webrl.config.redaction import guard_output, redact
from webrl.errors import BrowserError, WebRLError
from webrl.rollouts.browser import Browser
from webrl.rollouts.env import BrowserEnv
from webrl.rollouts.suite import Suite, suite_of
from webrl.runs.machine import restore_python_path

logger = logging.getLogger(__name__)


class Worker:
    """One browser and its environments; Ray actors and servers wrap it too."""

    def __init__(self, config: RolloutConfig) -> None:
        self._config = config
        self._browser: Browser | None = None
        self._starting = asyncio.Lock()
        self._envs: dict[int, BrowserEnv] = {}
        self._made_for: dict[int, tuple[Suite, dict[str, Any]]] = {}
        self._busy: dict[int, asyncio.Task[Any]] = {}

    async def answer(self, env_id: int, op: str, arg: Any) -> Any:
        """Carry out one request; return its result, or the error that it ended with. One that still runs for the same
        environment has been abandoned by the controller (a deadline): it is cancelled.
        """
        task = self._busy[env_id] = asyncio.ensure_future(self.handle(env_id, op, arg, self._busy.get(env_id)))
        try:
            return await task
        except (WebRLError, ValueError) as error:
            return getattr(errors, type(error).__name__, BrowserError)(redact(str(error)))
        except asyncio.CancelledError:
            return BrowserError(f"{op!r} was given up")
        except Exception as error:  # boundary of the process: every error must reach the controller
            logger.exception("request failed")
            return BrowserError(redact(f"{type(error).__name__}: {error}"))
        finally:
            if self._busy.get(env_id) is task:
                del self._busy[env_id]

    async def handle(self, env_id: int, op: str, arg: Any, given_up: asyncio.Task[Any] | None = None) -> Any:
        """Carry out one request; the argument of a reset is (task, settings), that of a step the action's text."""
        if given_up is not None:
            given_up.cancel()
            await asyncio.gather(given_up, return_exceptions=True)
            if env_id in self._envs:
                await self._envs[env_id].close()
        if op == "reset":
            task, settings = arg
            browser, made_for = await self.browser(), (suite_of(task), settings)
            env = self._envs.get(env_id)
            if env is None or self._made_for[env_id] != made_for:
                if env is not None:
                    await env.close()
                config = self._config
                if settings:
                    config = RolloutConfig.model_validate(config.model_dump() | settings)
                env = self._envs[env_id] = made_for[0].make_env(browser, config)
                self._made_for[env_id] = made_for
            return await env.reset(task)
        if op == "close":
            old = self._envs.pop(env_id, None)
            if old is not None:
                await old.close()
            return None
        if env_id not in self._envs:
            raise BrowserError(f"{op}() before reset()")
        return await (self._envs[env_id].finish() if op == "finish" else self._envs[env_id].step(arg))

    async def browser(self) -> Browser:
        """The running browser, launched if need be. Raises BrowserError, BrowserMissing."""
        async with self._starting:
            if self._browser is None or not self._browser.alive:
                await self.close()
                self._browser = await Browser(own_session=False, max_page_mb=self._config.max_page_mb).start()
            return self._browser

    async def close(self) -> None:
        """End the browser."""
        left = list(self._envs.values())
        self._envs.clear()
        browser, self._browser = self._browser, None
        if browser is not None:
            await browser.close()
        # They hold more than pages: a server of the episode, a session, a lease.
        await asyncio.gather(*(env.close() for env in left), return_exceptions=True)


def encode(message: Any) -> bytes:
    """One message with its length before it."""
    body = pickle.dumps(message)
    return len(body).to_bytes(4, "big") + body


async def read_message(reader: asyncio.StreamReader) -> Any:
    """Next message. Raises asyncio.IncompleteReadError when the other side has gone."""
    return pickle.loads(await reader.readexactly(int.from_bytes(await reader.readexactly(4), "big")))


def _watch_parent(parent: int) -> None:
    """End the whole process group soon after the parent has gone, even if the event loop hangs."""
    while os.getppid() == parent:
        time.sleep(1)
    time.sleep(10)
    os.killpg(os.getpgrp(), signal.SIGKILL)


async def main() -> None:
    """Answer requests on stdin until it ends; everything else that prints goes to stderr."""
    out = os.fdopen(os.dup(1), "wb", buffering=0)
    os.dup2(2, 1)
    loop = asyncio.get_running_loop()
    reader = asyncio.StreamReader(limit=1 << 24)
    await loop.connect_read_pipe(lambda: asyncio.StreamReaderProtocol(reader), sys.stdin)
    transport, _ = await loop.connect_write_pipe(asyncio.BaseProtocol, out)
    threading.Thread(target=_watch_parent, args=(os.getppid(),), daemon=True).start()
    worker = Worker(RolloutConfig.model_validate(await read_message(reader)))
    # Chromium starts ahead of the first reset, which tries again and reports it where this fails.
    running: set[asyncio.Task[Any]] = {asyncio.create_task(worker.browser())}

    async def answer(number: int, *request: Any) -> None:
        answered = encode((number, await worker.answer(*request)))
        if not transport.is_closing():  # else the controller has gone
            transport.write(answered)

    try:
        while True:
            task = asyncio.create_task(answer(*await read_message(reader)))
            running.add(task)
            task.add_done_callback(running.discard)
    except asyncio.IncompleteReadError:
        pass
    finally:
        for task in running:
            task.cancel()
        await asyncio.gather(*running, return_exceptions=True)
        await worker.close()


if __name__ == "__main__":
    guard_output()
    restore_python_path()
    gc.set_threshold(20_000)  # one page's tree has more new objects than the default
    for number in (signal.SIGINT, signal.SIGHUP):
        signal.signal(number, signal.SIG_IGN)
    with contextlib.suppress(KeyboardInterrupt, BrokenPipeError):
        asyncio.run(main())
