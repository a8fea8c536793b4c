"""What the site's owner provides: commands and requests that reset it or log in; the turn-taking of the rate limit.

API: `await run_command(command, timeout_s, what)`, `await reset_site(config)`, `await take_turn(config)`.
"""

from __future__ import annotations

import asyncio
import contextlib
import os
import re
import signal
import tempfile
import time
from collections.abc import Mapping, Sequence
from typing import TYPE_CHECKING

from webrl.config.redaction import redact
from webrl_site.locks import exclusive
from webrl_site.settings import WebConfig
from webrl_site.sites import SiteError

if TYPE_CHECKING:
    import httpx

_POLL_S = 0.2
_SHOWN_CHARS = 300
_MAX_BYTES = 16 << 20


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
            raise SiteError(f"{where} took more than {timeout_s:g} s; ended") from None
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
            await await_answer(client, config.start_urls[0])
    except TimeoutError:
        raise SiteError(f"{config.start_urls[0]} does not answer {reset.timeout_s:g} s after its reset") from None


async def await_answer(client: httpx.AsyncClient, url: str) -> None:
    """Wait until an address answers, and no server's error."""
    import httpx

    while True:
        with contextlib.suppress(httpx.HTTPError):
            if (await client.get(url)).status_code < 500:
                return
        await asyncio.sleep(_POLL_S)


async def take_turn(config: WebConfig) -> None:
    """Wait until `max_actions_per_s` allows another action; all processes of the machine take turns."""
    if config.max_actions_per_s is None:
        return
    path = config.state_dir / f"{config.name}.turn"
    async with exclusive(path.with_suffix(".turn.lock")):
        now = turn = time.time()
        with contextlib.suppress(OSError, ValueError):
            earliest = float(path.read_text(encoding="utf-8"))
            if earliest < now + 60:  # a clock that was set back, or a torn file, delays no one
                turn = max(now, earliest)
        path.write_text(repr(turn + 1 / config.max_actions_per_s), encoding="utf-8")
    await asyncio.sleep(turn - now)
