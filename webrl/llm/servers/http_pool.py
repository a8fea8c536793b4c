"""JSON from one of several servers: least busy first, failing ones rested, everything bounded in time.

A request is retried, on another server where there is one, after a timeout, a dropped or refused connection, 408,
429, 5xx, or an answer that is not the expected JSON. Nothing here waits longer than
`(max_retries + 1) * timeout_s` plus the pauses between attempts.
"""

from __future__ import annotations

import asyncio
import json
import logging
import random
import ssl
import time
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any, TypeVar
from urllib.parse import urlsplit

import httpx

from webrl.config.redaction import SecretUrl, redact, with_path
from webrl.errors import ModelError, PolicyError

logger = logging.getLogger(__name__)
T = TypeVar("T")

_FIRST_PAUSE_S = 0.25
_LONGEST_PAUSE_S = 8.0
_LONGEST_RETRY_AFTER_S = 60.0
_CONNECT_TIMEOUT_S = 10.0
_MAX_ERROR_CHARS = 300
_MAX_ANSWER_BYTES = 64 << 20  # 4,096 tokens with 20 log-probabilities each take less than 10 MiB
_TOO_LARGE = f"the answer is larger than {_MAX_ANSWER_BYTES >> 20} MiB: check the address, or ask for fewer tokens"


class MalformedAnswer(Exception):
    """The answer is not the expected JSON; raised by the `parse` function of `HttpPool.ask`."""


class Refused(Exception):
    """The server understood and refused (a 4xx that no retry can fix)."""

    def __init__(self, url: str, status: int, text: str) -> None:
        super().__init__(redact(f"{url} answered {status}: {text[:_MAX_ERROR_CHARS]}"))
        self.status = status
        self.text = text


@dataclass
class _Server:
    address: str
    """With password or token."""
    url: str
    """The address for display."""
    num_open: int = 0
    num_failures: int = 0
    """Failures in a row."""
    rests_until: float = 0.0
    """Monotonic time before which other servers are preferred."""


class HttpPool:
    """Base URLs that all serve the same model; use from one event loop."""

    def __init__(
        self, urls: Sequence[str | SecretUrl], *, timeout_s: float, max_retries: int, api_key: str | None = None
    ) -> None:
        if not urls:
            raise ModelError("no server URL; set engine.urls, e.g. engine.urls=[http://localhost:8000/v1]")
        self._servers: list[_Server] = []
        for url in urls:
            secret = url if isinstance(url, SecretUrl) else SecretUrl(url)
            address = secret.reveal()
            if urlsplit(address).scheme not in ("http", "https") or not urlsplit(address).hostname:
                raise ModelError(f"server URL {str(secret)!r} is not of the form http://host:port/v1")
            self._servers.append(_Server(address, str(secret).rstrip("/")))
        self.urls = [server.url for server in self._servers]
        """Base URLs for display."""
        self._timeout_s = timeout_s
        self._max_retries = max_retries
        self._jitter = random.Random(0)
        self._api_key = api_key
        self._tls = ssl.create_default_context()
        self._clients: list[httpx.AsyncClient] = []
        self._free: list[httpx.AsyncClient] = []
        self._is_closed = False

    async def ask(self, path: str, body: Mapping[str, Any] | None, parse: Callable[[Any], T]) -> T:
        """POST JSON to the best server and parse its answer; without a body GET it, trying each server.

        Args:
            path: below the base URL, e.g. `/completions`.
            parse: turns the decoded answer into the result; raises MalformedAnswer if it is not as expected.

        Raises:
            PolicyError: no answer after all retries (the last failure of each server is quoted).
            Refused: a 4xx answer other than 408 and 429.
        """
        attempts = (self._max_retries + 1) * (len(self._servers) if body is None else 1)
        reasons: dict[str, str] = {}
        for attempt in range(attempts):
            # the rested server with the fewest open requests, else the one that has rested longest
            rested = [s for s in self._servers if s.rests_until <= time.monotonic()]
            by_load = min(rested, key=lambda s: s.num_open, default=None)
            server = by_load or min(self._servers, key=lambda s: s.rests_until)
            pause = min(_LONGEST_PAUSE_S, _FIRST_PAUSE_S * 2**attempt) * self._jitter.uniform(0.5, 1.0)
            server.num_open += 1
            try:
                answer = parse(await self._request(with_path(server.address, path), body))
            except _Retry as failure:
                reasons[server.url] = str(failure)
                pause = max(pause, failure.retry_after_s)
            except MalformedAnswer as failure:
                reasons[server.url] = f"malformed answer: {failure}"
            else:
                server.num_failures = 0
                server.rests_until = 0.0
                return answer
            finally:
                server.num_open -= 1
            server.num_failures += 1
            server.rests_until = time.monotonic() + min(10.0, 2.0 ** (server.num_failures - 1))
            logger.warning("%s failed (%d in a row): %s", server.url, server.num_failures, reasons[server.url])
            # Another server may be tried at once; the same one only after a pause.
            has_rested = any(s.rests_until <= time.monotonic() for s in self._servers)
            if attempt + 1 < attempts and not has_rested:
                await asyncio.sleep(pause)
        raise PolicyError(
            f"no answer after {attempts} attempts: " + "; ".join(f"{url}: {reason}" for url, reason in reasons.items())
        )

    async def close(self) -> None:
        """Close all connections; open requests fail."""
        self._is_closed = True
        await asyncio.gather(*[client.aclose() for client in self._clients])

    async def _request(self, url: str, body: Mapping[str, Any] | None) -> Any:
        try:
            # httpx's own timeouts are per read: a server that trickles bytes would hold us for ever.
            async with asyncio.timeout(self._timeout_s):
                response, content = await self._exchange(url, body)
        except TimeoutError:
            raise _Retry(f"no answer within {self._timeout_s:g} s") from None
        except httpx.RequestError as error:
            raise _Retry(f"{type(error).__name__}: {error}".rstrip(": ")) from error
        except RuntimeError as error:  # httpx: the client has been closed
            raise PolicyError(redact(f"the connection to {url} was closed: {error}")) from error
        text = content.decode(errors="replace")
        if response.status_code >= 500 or response.status_code in (408, 429):
            asked = response.headers.get("Retry-After", "")  # seconds, or a date
            pause_s = min(_LONGEST_RETRY_AFTER_S, float(asked)) if asked.replace(".", "", 1).isdecimal() else 0.0
            raise _Retry(f"{response.status_code} {text[:_MAX_ERROR_CHARS]}", pause_s)
        if response.status_code >= 300:
            where = response.headers.get("Location", "")
            raise Refused(url, response.status_code, f"redirects are not followed: {where}" if where else text)
        try:
            return json.loads(content)
        except (json.JSONDecodeError, UnicodeDecodeError, RecursionError) as error:
            raise _Retry(f"malformed JSON ({error}): {text[:80]!r}") from error

    async def _exchange(self, url: str, body: Mapping[str, Any] | None) -> tuple[httpx.Response, bytearray]:
        """One request, and its whole answer unpacked.

        A server may close a connection that was kept open just when it is used again, which says nothing about the
        server: a client that has been used is then thrown away, and another takes its place, in the end a fresh one.

        Each client has one request at a time: one for all would look at every connection before and after every
        request (httpcore 1.0), at 64 requests at once most of this process's work. How much runs at once is for the
        engine to decide.
        """
        while True:
            if self._is_closed:
                raise RuntimeError("the pool is closed")
            if is_fresh := not self._free:
                local = all(urlsplit(s.address).hostname in ("localhost", "127.0.0.1", "::1") for s in self._servers)
                client = httpx.AsyncClient(
                    headers={"Authorization": f"Bearer {self._api_key}"} if self._api_key else {},
                    timeout=httpx.Timeout(self._timeout_s, connect=min(self._timeout_s, _CONNECT_TIMEOUT_S)),
                    trust_env=not local,  # a proxy from the environment must not see requests to this machine
                    verify=self._tls,
                )
                self._clients.append(client)
            else:
                client = self._free.pop()
            try:
                async with client.stream("GET" if body is None else "POST", url, json=body) as response:
                    content = bytearray()
                    async for part in response.aiter_bytes():
                        content += part
                        if len(content) > _MAX_ANSWER_BYTES:
                            raise _Retry(_TOO_LARGE)
                    return response, content
            except (httpx.RemoteProtocolError, httpx.ReadError, httpx.WriteError):
                self._clients.remove(client)
                await client.aclose()
                if is_fresh:
                    raise
            finally:
                if not client.is_closed:
                    self._free.append(client)


class _Retry(Exception):
    """A failure that another attempt may mend."""

    def __init__(self, reason: str, retry_after_s: float = 0.0) -> None:
        super().__init__(redact(reason))
        self.retry_after_s = retry_after_s
