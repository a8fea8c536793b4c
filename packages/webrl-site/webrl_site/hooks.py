"""What the site's owner provides: commands and requests that reset it, and a server for every episode; its rate limit.

API: `await run_command(command, timeout_s, what)`, `await reset_site(config)`, `await take_turn(config)`; `server =
await EpisodeServer.start(config)`, `server.port`, `server.folder`, `await server.stop()`.

The guard ends an episode's server with webrl, no matter how that ends, and removes its folder. Of two servers that get
the same port the second exits, and is started again.
"""

from __future__ import annotations

import asyncio
import contextlib
import os
import re
import shutil
import signal
import subprocess
import sys
import tempfile
import time
from collections.abc import Mapping, Sequence
from typing import TYPE_CHECKING, Self

from filelock import AsyncFileLock

from webrl.config.redaction import redact
from webrl.llm.servers import guard
from webrl.runs.machine import free_port
from webrl_site.settings import WebConfig
from webrl_site.sites import SiteError

if TYPE_CHECKING:
    import httpx

_POLL_S = 0.2
_SHOWN_CHARS = 300
_MAX_BYTES = 16 << 20
_TRIES = 3


async def run_command(command: Sequence[str], timeout_s: float, what: str) -> str:
    """Standard output of a command.

    Raises:
        SiteError: it does not start, fails (its last words are quoted), or passes its deadline.
    """
    where = f"{what} {redact(' '.join(command))!r:.200}"
    # Files, not pipes: a command may leave the site running, which keeps its pipes open.
    with tempfile.TemporaryFile() as out, tempfile.TemporaryFile() as err:
        try:
            process = await asyncio.create_subprocess_exec(
                *command, stdin=asyncio.subprocess.DEVNULL, stdout=out, stderr=err, start_new_session=True
            )
        except (OSError, ValueError) as error:
            raise SiteError(f"{where} does not start: {getattr(error, 'strerror', None) or error}") from None
        try:
            async with asyncio.timeout(timeout_s):
                await process.wait()
        except TimeoutError:
            raise SiteError(f"{where} took more than {timeout_s:g} s and was stopped") from None
        finally:
            if process.returncode is None:
                with contextlib.suppress(ProcessLookupError):
                    os.killpg(process.pid, signal.SIGKILL)
                await process.wait()
        for file in (out, err):
            file.seek(0)
        said, complaint = (file.read(_MAX_BYTES).decode("utf-8", "replace") for file in (out, err))
    if process.returncode:
        words = (complaint or said).strip()[-_SHOWN_CHARS:]
        raise SiteError(f"{where} ended with {process.returncode}: {redact(words) or 'it said nothing'}")
    return said


def filled(text: str, values: Mapping[str, str]) -> str:
    """`text` with each key of `values` replaced; what is put in is not looked at again."""
    return re.sub("|".join(map(re.escape, values)), lambda match: values[match.group(0)], text)


async def reset_site(config: WebConfig) -> None:
    """Put the site back, as `rollout.web.reset` says, and wait until its first start page answers.

    Raises:
        SiteError: the reset fails or passes its deadline.
        UsageError: a secret of it is not there.
    """
    import httpx

    reset = config.reset
    try:
        async with asyncio.timeout(reset.timeout_s), httpx.AsyncClient(timeout=reset.timeout_s) as client:
            if reset.command:
                await run_command(reset.command, reset.timeout_s, "rollout.web.reset.command")
            elif reset.url:
                headers = {name: value.reveal() for name, value in reset.headers.items()}
                try:
                    answer = await client.request(reset.method, reset.url.reveal(), headers=headers)
                except (httpx.HTTPError, httpx.InvalidURL) as error:
                    raise SiteError(f"rollout.web.reset.url {reset.url} does not answer: {error}") from None
                if answer.status_code >= 400:
                    said = " ".join(redact(answer.text).split())[:_SHOWN_CHARS]
                    raise SiteError(f"rollout.web.reset.url {reset.url} answers {answer.status_code}: {said}")
            while not await _answers(client, config.start_urls[0], reset.timeout_s):  # noqa: ASYNC110 - a site sets no event
                await asyncio.sleep(_POLL_S)
    except TimeoutError:
        raise SiteError(f"{config.start_urls[0]} does not answer {reset.timeout_s:g} s after its reset") from None


async def _answers(client: httpx.AsyncClient, url: str, timeout_s: float) -> bool:
    """Whether an address answers, and no server's error."""
    import httpx

    try:
        return (await client.get(url, timeout=timeout_s)).status_code < 500
    except httpx.HTTPError:
        return False


async def take_turn(config: WebConfig) -> None:
    """Wait until `max_actions_per_s` allows another action; all processes of the machine take turns."""
    if config.max_actions_per_s is None:
        return
    path = config.state_dir / f"{config.name}.turn"
    async with AsyncFileLock(path.with_suffix(".turn.lock"), run_in_executor=False):
        now = turn = time.time()
        with contextlib.suppress(OSError, ValueError):
            earliest = float(path.read_text(encoding="utf-8"))
            if earliest < now + 60:  # a clock that was set back, or a torn file, delays no one
                turn = max(now, earliest)
        path.write_text(repr(turn + 1 / config.max_actions_per_s), encoding="utf-8")
    await asyncio.sleep(turn - now)


class EpisodeServer:
    """A server of the site for one episode, on a free port."""

    def __init__(self, config: WebConfig) -> None:
        """Launch it. Raises SiteError."""
        self._config = config
        self.port = free_port()
        self.folder = tempfile.mkdtemp(prefix="webrl-episode-")
        """Its own, removed with it."""
        self._log = tempfile.TemporaryFile()  # noqa: SIM115 - not a pipe, which would fill up
        fill = {"{port}": str(self.port), "{python}": sys.executable, "{folder}": self.folder}
        command = [filled(part, fill) for part in config.serve.command]
        try:
            # With this process the guard ends the server's whole process group, and removes its folder.
            self._process = subprocess.Popen(
                [sys.executable, guard.__file__, *command], cwd=config.serve.folder, start_new_session=True,
                stdin=subprocess.PIPE, stdout=self._log, stderr=subprocess.STDOUT,
                env={**os.environ, "WEBRL_GUARD_FOLDER": self.folder},
            )  # fmt: skip
        except (OSError, ValueError) as error:
            shutil.rmtree(self.folder, ignore_errors=True)
            raise SiteError(f"rollout.web.serve does not start in {str(config.serve.folder)!r}: {error}") from None

    @classmethod
    async def start(cls, config: WebConfig) -> Self:
        """Start `rollout.web.serve.command`, and wait until the start page answers.

        Raises:
            SiteError: it does not start, ends (its last words are quoted) or does not answer in time.
        """
        deadline = time.monotonic() + config.serve.timeout_s
        problem = ""
        for _ in range(_TRIES):  # a program outside of webrl may take the port in between
            if problem and time.monotonic() >= deadline:
                break
            server = cls(config)
            try:
                problem = await server._await_answer(deadline)
            except BaseException:
                await server.stop()
                raise
            if not problem:
                return server
            await server.stop()
        raise SiteError(problem)

    async def _await_answer(self, deadline: float) -> str:
        """Why it does not serve; "" if it does: if its start page answers, and one of its own processes listens."""
        import httpx

        config, what = self._config, ""
        url = config.start_urls[0].replace(config.hosts[0], f"127.0.0.1:{self.port}", 1)
        async with httpx.AsyncClient(trust_env=False) as client:
            while not what:
                left = deadline - time.monotonic()
                if self._process.poll() is not None:
                    what = "ended"
                elif left <= 0:
                    what = f"does not answer at {url} after {config.serve.timeout_s:g} s"
                elif await _answers(client, url, left):
                    if await asyncio.to_thread(_listens, self._process.pid, self.port):
                        return ""
                    what = f"is not what answers at {url}: none of its own processes (no daemon, no container) does"
                else:
                    await asyncio.sleep(_POLL_S)
        self._log.seek(0)
        said = redact(self._log.read().decode("utf-8", "replace").strip()[-_SHOWN_CHARS:]) or "it said nothing"
        return f"rollout.web.serve {redact(' '.join(config.serve.command))!r:.200} {what}: {said}"

    async def stop(self) -> None:
        """End it and what it has started."""
        with contextlib.suppress(ProcessLookupError):
            os.killpg(self._process.pid, signal.SIGKILL)
        await asyncio.to_thread(self._process.communicate)
        self._log.close()
        shutil.rmtree(self.folder, ignore_errors=True)


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
