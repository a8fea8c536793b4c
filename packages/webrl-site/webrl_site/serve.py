"""A server of your own site for one episode: on a free port, ended with the episode even if webrl is killed.

API: `server = await EpisodeServer.start(config)`, `server.port`, `server.folder`, `await server.stop()`.

The guard ends a server with webrl, no matter how that ends; the folder of a webrl that was killed is removed by the
next start. Of two servers that get the same port the second exits, and is started again.
"""

from __future__ import annotations

import asyncio
import contextlib
import os
import shutil
import signal
import socket
import sys
import tempfile
import time
from pathlib import Path
from typing import IO, Self

from webrl.config.redaction import redact
from webrl.llm.servers import guard
from webrl.runs.machine import free_port
from webrl_site.hooks import await_answer, filled
from webrl_site.settings import WebConfig
from webrl_site.sites import SiteError

_PREFIX = f".webrl-episode-{socket.gethostname()}-"
"""Hosts may share a folder for temporary files; process ids are a host's own."""
_TRIES = 3
_SHOWN_CHARS = 300


class EpisodeServer:
    """See the module docstring."""

    def __init__(self, folder: str, process: asyncio.subprocess.Process, port: int, log: IO[bytes]) -> None:
        self.port = port
        self.folder = folder
        """Its own, removed with it."""
        self._process = process
        self._log = log

    @classmethod
    async def start(cls, config: WebConfig) -> Self:
        """Start `rollout.web.serve.command`, and wait until the start page answers.

        Raises:
            SiteError: it does not start, ends (its last words are quoted) or does not answer in time.
        """
        deadline = time.monotonic() + config.serve.timeout_s
        for tries_left in reversed(range(_TRIES)):  # a program outside of webrl may take the port in between
            server = await cls._launch(config)
            try:
                problem = await server._await_answer(config, deadline)
            except BaseException:
                await server.stop()
                raise
            if not problem:
                return server
            await server.stop()
            if not tries_left or time.monotonic() >= deadline:
                break
        raise SiteError(problem)

    @classmethod
    async def _launch(cls, config: WebConfig) -> Self:
        await asyncio.to_thread(_remove_orphans)
        with contextlib.ExitStack() as undo:  # on any failure, and if this is cancelled
            folder = tempfile.mkdtemp(prefix=f"{_PREFIX}{os.getpid()}-")
            undo.callback(shutil.rmtree, folder, ignore_errors=True)
            log = undo.enter_context(tempfile.TemporaryFile())  # not a pipe, which would fill up
            port = free_port()
            fill = {"{port}": str(port), "{python}": sys.executable, "{folder}": folder}
            command = [filled(part, fill) for part in config.serve.command]
            # The guard ends the server's whole process group with this process.
            launching = asyncio.ensure_future(asyncio.create_subprocess_exec(
                sys.executable, guard.__file__, *command, cwd=config.serve.folder, start_new_session=True,
                stdin=asyncio.subprocess.PIPE, stdout=log, stderr=asyncio.subprocess.STDOUT,
            ))  # fmt: skip
            try:
                process = await asyncio.shield(launching)
            except asyncio.CancelledError:
                # asyncio would kill the guard alone, and leave what it has started.
                (begun,) = await asyncio.gather(launching, return_exceptions=True)
                if not isinstance(begun, BaseException):
                    await _end(begun)
                raise
            except (OSError, ValueError) as error:
                raise SiteError(f"rollout.web.serve does not start in {str(config.serve.folder)!r}: {error}") from None
            undo.pop_all()
        return cls(folder, process, port, log)

    async def _await_answer(self, config: WebConfig, deadline: float) -> str:
        """Why it does not serve; "" if it does: if its start page answers, and one of its own processes listens."""
        import httpx

        url = config.start_urls[0].replace(config.hosts[0], f"127.0.0.1:{self.port}", 1)
        async with httpx.AsyncClient(timeout=config.serve.timeout_s, trust_env=False) as client:
            answer = asyncio.ensure_future(await_answer(client, url))
            end = asyncio.ensure_future(self._process.wait())
            left = max(0.0, deadline - time.monotonic())
            await asyncio.wait((answer, end), timeout=left, return_when=asyncio.FIRST_COMPLETED)
            ended, answered = end.done(), answer.done()
            for waiting in (answer, end):
                waiting.cancel()
            await asyncio.gather(answer, end, return_exceptions=True)
        if answered and not ended:
            answer.result()  # raises what kept it from being asked
            if await asyncio.to_thread(_listens, self._process.pid, self.port):
                return ""
            what = f"is not what answers at {url}: none of its own processes (no daemon, no container) does"
        elif ended:
            what = "ended"
        else:
            what = f"does not answer at {url} after {config.serve.timeout_s:g} s"
        return f"rollout.web.serve {redact(' '.join(config.serve.command))!r:.200} {what}: {self._last_words()}"

    def _last_words(self) -> str:
        self._log.seek(0)
        said = self._log.read().decode("utf-8", "replace").strip()
        return redact(said[-_SHOWN_CHARS:]) or "it said nothing"

    async def stop(self) -> None:
        """End it and what it has started."""
        await _end(self._process)
        self._log.close()
        shutil.rmtree(self.folder, ignore_errors=True)


async def _end(process: asyncio.subprocess.Process) -> None:
    with contextlib.suppress(ProcessLookupError):
        os.killpg(process.pid, signal.SIGKILL)
    await process.wait()
    if process.stdin:
        process.stdin.close()


def _remove_orphans() -> None:
    """Remove the folders of processes that are gone."""
    import psutil

    for folder in Path(tempfile.gettempdir()).glob(f"{_PREFIX}*-*"):
        number = folder.name.removeprefix(_PREFIX).partition("-")[0]
        if number.isdecimal() and not psutil.pid_exists(int(number)):
            shutil.rmtree(folder, ignore_errors=True)


def _listens(session: int, port: int) -> bool:
    """Whether a process of this session (its leader's id) listens on that port of 127.0.0.1, or of all addresses."""
    import psutil

    for pid in psutil.pids():
        with contextlib.suppress(psutil.Error, OSError):
            if os.getsid(pid) == session and any(
                connection.status == psutil.CONN_LISTEN and connection.laddr.port == port
                for connection in psutil.Process(pid).net_connections("tcp")
            ):
                return True
    return False
