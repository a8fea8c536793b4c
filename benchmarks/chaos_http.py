"""Clients of `webrl serve-env` that play over plain HTTP and vanish; `benchmarks/chaos_server.py` runs it.

Nothing tells a server that a client of OpenEnv's `/reset` and `/step` has gone: an episode's place is given to whoever
waits once `--idle-timeout` has passed in silence, here 2 s. API: `WAY`; `knock_often` and `vanish_often` are the two
floods with whatever clients.
"""

from __future__ import annotations

import asyncio
import itertools
import os
import random
import time
from collections.abc import Awaitable, Callable
from typing import TYPE_CHECKING, Any

import httpx

if TYPE_CHECKING:
    from chaos_server import Server

IDLE_TIMEOUT_S = 2
NUM_AT_A_TIME = 100
"""Connections at once."""
_TIMEOUT = httpx.Timeout(60.0)
_TASK = {"task_name": "click-button", "screenshots": "none"}
_COOKIE = b"Cookie: webrl_session="
_BLIND = b'{"screenshots": "none"}'
_TURN = b'{"action": {"action_str": "noop(1)"}}'


def client(server: Server) -> httpx.AsyncClient:
    """One that keeps its cookie, as `requests.Session` does."""
    return httpx.AsyncClient(base_url=f"http://127.0.0.1:{server.port}", timeout=_TIMEOUT, trust_env=False)


async def begin(http: httpx.AsyncClient, seed: int, patience_s: float = 120.0) -> bool:
    """Start an episode; tries again while the server is full."""
    end = time.monotonic() + patience_s
    while time.monotonic() < end:
        answer = await http.post("/reset", json=_TASK | {"seed": seed})
        if answer.status_code == 200:
            return True
        if answer.status_code != 503:
            raise RuntimeError(f"a reset was answered with {answer.status_code}: {answer.text}")
    return False


async def play(server: Server) -> bool:
    """Whether an ordinary episode can be played to its end; it returns its place."""
    async with client(server) as http:
        if not await begin(http, 0):
            return False
        answer = await http.post("/step", json={"action": {"action_str": "send_msg_to_user('bye')"}})
        return answer.status_code == 200 and answer.json()["done"] is True


async def knock(server: Server, number: int) -> None:
    """One connection that plays nothing: invented cookies, bodies that end early, a reset that nobody waits for."""
    invented = (b"POST /step", _COOKIE + b"invented", _TURN, len(_TURN))
    alone = (b"POST /reset", b"X: y", _BLIND, len(_BLIND))
    bodies = {
        0: invented,
        1: (b"POST /reset", b"X: y", b"{", 900_000),
        2: (b"GET /state", _COOKIE + os.urandom(40).hex().encode() * 50, b"", 0),
        3: (b"POST /reset", b"X: y", b"[" * 100_000, 100_000),
        4: (b"POST /step", _COOKIE + b'"; webrl_session=', b'{"action": 3}', 13),
        5: alone if number % 60 == 5 else invented,
    }
    kind = number % 6
    line, header, body, length = bodies[kind]
    try:
        reader, writer = await asyncio.open_connection("127.0.0.1", server.port)
    except OSError:
        return
    try:
        writer.write(line + b" HTTP/1.1\r\nHost: 127.0.0.1\r\n" + header)
        writer.write(b"\r\nContent-Length: %d\r\n\r\n" % length + body)
        async with asyncio.timeout(5):
            await writer.drain()
            if kind not in (1, 5):
                await reader.read(500)
            elif kind == 1:
                await asyncio.sleep(random.random() / 2)
    except (OSError, TimeoutError):
        pass
    finally:
        writer.transport.abort()


async def vanish(server: Server, number: int) -> bool:
    """A client that is cut off: in its first reset, after it, in mid-step, or in its second reset; gives True."""
    async with client(server) as http:
        if number % 4 == 0:
            await _cut(http.post("/reset", json=_TASK | {"seed": number}))
            return True
        if not await begin(http, number):
            raise RuntimeError("the server stays full: places of clients that have gone are not given to others")
        if number % 4 == 2:
            await _cut(http.post("/step", json={"action": {"action_str": "noop(2000)"}}))
        if number % 4 == 3:
            await _cut(http.post("/reset", json=_TASK))
    return True


async def _cut(request: Any) -> None:
    """Send a request and close its connection before the answer."""
    try:
        async with asyncio.timeout(0.05 + random.random() / 4):
            await request
    except (TimeoutError, httpx.TransportError):
        pass


async def knock_often(knock: Callable[[int], Awaitable[object]], num: int) -> None:
    """Connections by number, `NUM_AT_A_TIME` at once."""
    numbers = iter(range(num))

    async def knocker() -> None:
        for number in numbers:
            await knock(number)

    await asyncio.gather(*(knocker() for _ in range(NUM_AT_A_TIME)))


async def vanish_often(
    vanish: Callable[[int], Awaitable[bool]], num: int, max_s: float, at_once: int, report: Callable[[int], object]
) -> int:
    """How many clients have vanished (those that say so, reported by the hundred): `num`, or fewer after `max_s`."""
    vanished, end = 0, time.monotonic() + max_s
    numbers = itertools.count()

    async def vanisher() -> None:
        nonlocal vanished
        while vanished < num and time.monotonic() < end:
            if await vanish(next(numbers)):
                vanished += 1
                if vanished % 100 == 0:
                    report(vanished)

    await asyncio.gather(*(vanisher() for _ in range(at_once)))
    return vanished


async def settle(server: Server, places: int, sockets_before: int) -> tuple[int, int]:
    """Episodes that cannot be had again, and sockets that stay open, after at most a minute."""
    async with asyncio.TaskGroup() as group:
        clients = [client(server) for _ in range(places)]
        begun = [group.create_task(begin(http, 0, 60.0)) for http in clients]
    free = sum(task.result() for task in begun)
    for http in clients:
        await http.aclose()
    end = time.monotonic() + 60
    while True:
        await asyncio.sleep(0.5)
        sockets = server.num_sockets
        if sockets <= sockets_before or time.monotonic() > end:
            return places - free, sockets


WAY = (play, knock, vanish, settle)
"""What `flood` of chaos_server.py does with a server."""
