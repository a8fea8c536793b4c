"""A server of one's own site for one episode: on a free port, ended with the episode, whatever happens to webrl.

API: `server = await EpisodeServer.start(config)`, `server.port`, `server.folder`, `await server.stop()`.
"""

from __future__ import annotations

import asyncio
import contextlib
import fcntl
import os
import shutil
import signal
import socket
import stat
import sys
import tempfile
from pathlib import Path
from typing import IO, Self

from webrl.config.redaction import redact
from webrl.config.web import WebConfig
from webrl.llm.servers import guard
from webrl.suites.web.hooks import await_answer, filled
from webrl.suites.webarena.sites import SiteError

_TRIES = 3
_SHOWN_CHARS = 300


class EpisodeServer:
    """See the module docstring."""

    def __init__(
        self, port: int, folder: str, claim: IO[str], process: asyncio.subprocess.Process, log: IO[bytes]
    ) -> None:
        self.port = port
        self.folder = folder
        """Its own, removed with it."""
        self._claim = claim
        self._process = process
        self._log = log

    @classmethod
    async def start(cls, config: WebConfig) -> Self:
        """Start `rollout.web.serve.command`, and wait until the start page answers.

        Raises:
            SiteError: it does not start, ends (its last words are quoted) or does not answer in time.
        """
        problem = ""
        for _ in range(_TRIES):  # a program outside of webrl may take the port in between
            server = await cls._launch(config)
            try:
                problem = await server._await_answer(config)
            except BaseException:
                await server.stop()
                raise
            if not problem:
                return server
            await server.stop()
        raise SiteError(problem)

    @classmethod
    async def _launch(cls, config: WebConfig) -> Self:
        port, claim = _claim_port()
        log = tempfile.TemporaryFile()  # noqa: SIM115 (`stop` closes it); not a pipe, which would fill up
        folder = tempfile.mkdtemp(prefix="webrl-serve-")
        fill = {"{port}": str(port), "{python}": sys.executable, "{folder}": folder}
        command = [filled(part, fill) for part in config.serve.command]
        try:
            # The guard ends the server's whole process group with this process.
            process = await asyncio.create_subprocess_exec(
                sys.executable, guard.__file__, *command, cwd=config.serve.folder, start_new_session=True,
                stdin=asyncio.subprocess.PIPE, stdout=log, stderr=asyncio.subprocess.STDOUT,
            )  # fmt: skip
        except (OSError, ValueError) as error:
            claim.close()
            log.close()
            shutil.rmtree(folder)
            raise SiteError(f"rollout.web.serve does not start in {str(config.serve.folder)!r}: {error}") from None
        return cls(port, folder, claim, process, log)

    async def _await_answer(self, config: WebConfig) -> str:
        """Why it does not serve; "" if it does."""
        import httpx

        url = config.start_urls[0].replace(config.hosts[0], f"127.0.0.1:{self.port}", 1)
        async with httpx.AsyncClient(timeout=config.serve.timeout_s, trust_env=False) as client:
            answer = asyncio.ensure_future(await_answer(client, url))
            end = asyncio.ensure_future(self._process.wait())
            await asyncio.wait((answer, end), timeout=config.serve.timeout_s, return_when=asyncio.FIRST_COMPLETED)
            ended, answered = end.done(), answer.done()
            for waiting in (answer, end):
                waiting.cancel()
            await asyncio.gather(answer, end, return_exceptions=True)
        if answered and not ended:
            answer.result()  # raises what kept it from being asked
            return ""
        what = "ended" if ended else f"does not answer at {url} after {config.serve.timeout_s:g} s"
        return f"rollout.web.serve {redact(' '.join(config.serve.command))!r:.200} {what}: {self._last_words()}"

    def _last_words(self) -> str:
        self._log.seek(0)
        said = self._log.read().decode("utf-8", "replace").strip()
        return redact(said[-_SHOWN_CHARS:]) or "it said nothing"

    async def stop(self) -> None:
        """End it and what it has started."""
        with contextlib.suppress(ProcessLookupError):
            os.killpg(self._process.pid, signal.SIGKILL)
        await self._process.wait()
        if self._process.stdin:
            self._process.stdin.close()
        self._log.close()
        self._claim.close()
        shutil.rmtree(self.folder, ignore_errors=True)


def _claim_port() -> tuple[int, IO[str]]:
    """A free port that no other environment of this user takes while the file is open."""
    folder = Path(tempfile.gettempdir()) / f"webrl-ports-{os.getuid()}"
    folder.mkdir(mode=0o700, exist_ok=True)
    found = folder.lstat()
    if not stat.S_ISDIR(found.st_mode) or found.st_uid != os.getuid() or found.st_mode & 0o022:
        raise SiteError(f"{folder} is not this user's own folder: others could have files emptied by it; remove it")
    while True:
        with socket.socket() as probe:
            probe.bind(("127.0.0.1", 0))
            port = probe.getsockname()[1]
        claim = (folder / str(port)).open("w")
        try:
            fcntl.flock(claim, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except BlockingIOError:
            claim.close()
        else:
            return port, claim
