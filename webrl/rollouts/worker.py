"""A worker process: one Chromium, many environments, driven by messages over stdin and stdout.

Run as `python -m webrl.rollouts.worker`. Messages are JSON with a 4-byte length before them. The
first is the RolloutConfig; then `{"id", "env", "op": "reset"|"step"|"finish"|"close", "arg"}` in any order, each
answered by `{"id", "result"}` or `{"id", "error", "kind"}`. Chromium starts at once, environments are made at their
first reset.

The worker ends, and its Chromium with it, when stdin closes: so neither Ctrl-C nor `kill -9` of the controller
leaves a process behind. A watchdog thread does the same should the event loop hang when its parent has gone.
"""

from __future__ import annotations

import asyncio
import base64
import contextlib
import dataclasses
import gc
import logging
import os
import signal
import sys
import threading
import time
from typing import Any

import orjson

from webrl.config import RolloutConfig
from webrl.config.redaction import guard_output, redact
from webrl.errors import BrowserError, WebRLError
from webrl.rollouts.browser import Browser
from webrl.rollouts.env import BrowserEnv
from webrl.rollouts.interface import Observation, StepResult
from webrl.rollouts.snapshot import PageDetails
from webrl.rollouts.suite import Suite, suite_of
from webrl.runs.machine import restore_python_path
from webrl.runs.text import dump_json
from webrl.types import Task

logger = logging.getLogger(__name__)

MAX_MESSAGE_BYTES = 1 << 30


class Worker:
    """One browser and its environments; also what a Ray actor or a server wraps."""

    def __init__(self, config: RolloutConfig) -> None:
        self._config = config
        self._browser: Browser | None = None
        self._starting = asyncio.Lock()
        self._envs: dict[int, BrowserEnv] = {}
        self._made_for: dict[int, tuple[Suite, dict[str, Any]]] = {}
        self._busy: dict[int, asyncio.Task[Any]] = {}

    async def start(self) -> None:
        """Launch the browser ahead of the first reset, which tries again and reports it where this fails."""
        with contextlib.suppress(Exception):
            await self._running_browser()

    async def handle(self, env_id: int, op: str, arg: Any) -> Any:
        """Carry out one request; return plain JSON. A request that is still running for the same environment has
        been abandoned by the controller (a deadline): it is cancelled. Raises WebRLError.
        """
        given_up = self._busy.get(env_id)
        task = self._busy[env_id] = asyncio.ensure_future(self._handle(env_id, op, arg, given_up))
        try:
            return await task
        finally:
            if self._busy.get(env_id) is task:
                del self._busy[env_id]

    async def answer(self, env_id: int, op: str, arg: Any) -> dict[str, Any]:
        """Call `handle`; return exceptions as `{"error", "kind"}` and results as `{"result"}`."""
        try:
            return {"result": await self.handle(env_id, op, arg)}
        except (WebRLError, ValueError) as error:
            return {"error": redact(str(error)), "kind": type(error).__name__}
        except Exception as error:  # boundary of the process: every error must reach the controller
            logger.exception("request failed")
            return {"error": redact(f"{type(error).__name__}: {error}"), "kind": "BrowserError"}

    async def _handle(self, env_id: int, op: str, arg: Any, given_up: asyncio.Task[Any] | None) -> Any:
        if given_up is not None:
            given_up.cancel()
            await asyncio.gather(given_up, return_exceptions=True)
            if env_id in self._envs:
                await self._envs[env_id].close()
        if op == "reset":
            task = Task.from_json(arg["task"])
            browser, made_for = await self._running_browser(), (suite_of(task), arg["settings"])
            env = self._envs.get(env_id)
            if env is None or self._made_for[env_id] != made_for:
                if env is not None:
                    await env.close()
                suite, settings = made_for
                config = self._config
                if settings:
                    config = RolloutConfig.model_validate(config.model_dump() | settings)
                env = self._envs[env_id] = suite.make_env(browser, config)
                self._made_for[env_id] = made_for
            return observation_to_json(await env.reset(task))
        if op == "close":
            old = self._envs.pop(env_id, None)
            if old is not None:
                await old.close()
            return None
        if env_id not in self._envs:
            raise BrowserError(f"{op}() before reset()")
        if op == "finish":
            return dataclasses.asdict(await self._envs[env_id].finish())
        result = await self._envs[env_id].step(arg)
        return dataclasses.asdict(result) | {"observation": observation_to_json(result.observation)}

    async def _running_browser(self) -> Browser:
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


def observation_to_json(observation: Observation) -> dict[str, Any]:
    """Plain JSON; the screenshot as base64 text."""
    png = observation.screenshot
    return {
        "text": observation.text,
        "url": observation.url,
        "goal": observation.goal,
        "screenshot": base64.b64encode(png).decode() if png is not None else None,
        "details": dataclasses.asdict(observation.details) if observation.details is not None else None,
    }


def observation_from_json(data: dict[str, Any]) -> Observation:
    """Inverse of `observation_to_json`."""
    png, details = data["screenshot"], data["details"]
    return Observation(
        text=data["text"],
        url=data["url"],
        goal=data["goal"],
        screenshot=base64.b64decode(png) if png is not None else None,
        details=PageDetails(**details) if details is not None else None,
    )


def result_from_json(data: dict[str, Any]) -> StepResult:
    """A step's answer as the worker sent it."""
    return StepResult(**(data | {"observation": observation_from_json(data["observation"])}))


def encode(message: dict[str, Any]) -> bytes:
    """One message with its length before it."""
    body = dump_json(message)
    return len(body).to_bytes(4, "big") + body


async def read_message(reader: asyncio.StreamReader) -> dict[str, Any]:
    """Next message. Raises asyncio.IncompleteReadError when the other side has gone."""
    size = int.from_bytes(await reader.readexactly(4), "big")
    if size > MAX_MESSAGE_BYTES:
        raise BrowserError(f"worker message of {size} bytes")
    message: dict[str, Any] = orjson.loads(await reader.readexactly(size))
    return message


async def serve(reader: asyncio.StreamReader, write: Any) -> None:
    """Answer requests until the reader ends."""
    config = RolloutConfig.model_validate(await read_message(reader))
    worker = Worker(config)
    running: set[asyncio.Task[None]] = {asyncio.create_task(worker.start())}

    async def answer(request: dict[str, Any]) -> None:
        with contextlib.suppress(asyncio.CancelledError):
            reply = await worker.answer(request["env"], request["op"], request.get("arg"))
            write(encode({"id": request["id"]} | reply))

    try:
        while True:
            request = await read_message(reader)
            task = asyncio.create_task(answer(request))
            running.add(task)
            task.add_done_callback(running.discard)
    except asyncio.IncompleteReadError:
        pass
    finally:
        for task in running:
            task.cancel()
        await asyncio.gather(*running, return_exceptions=True)
        await worker.close()


def _watch_parent(parent: int) -> None:
    """End the whole process group soon after the parent has gone, even if the event loop hangs."""
    while os.getppid() == parent:
        time.sleep(1)
    time.sleep(10)
    os.killpg(os.getpgrp(), signal.SIGKILL)


async def main() -> None:
    """Serve stdin/stdout; everything else that prints goes to stderr."""
    out = os.fdopen(os.dup(1), "wb", buffering=0)
    os.dup2(2, 1)
    loop = asyncio.get_running_loop()
    reader = asyncio.StreamReader(limit=1 << 24)
    await loop.connect_read_pipe(lambda: asyncio.StreamReaderProtocol(reader), sys.stdin)
    transport, _ = await loop.connect_write_pipe(asyncio.BaseProtocol, out)
    threading.Thread(target=_watch_parent, args=(os.getppid(),), daemon=True).start()
    await serve(reader, transport.write)


if __name__ == "__main__":
    guard_output()
    restore_python_path()
    gc.set_threshold(20_000)  # one page's tree has more new objects than the default
    for number in (signal.SIGINT, signal.SIGHUP):
        signal.signal(number, signal.SIG_IGN)
    with contextlib.suppress(KeyboardInterrupt, BrokenPipeError):
        asyncio.run(main())
