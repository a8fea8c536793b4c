"""What hostile and vanishing clients do to `webrl serve-env`: nothing reached, no session or memory lost.

`python benchmarks/chaos_server.py [--connections 10000] [--clients 1000]`

A server as users start it, with real browsers, on loopback. First every attempt of `tests/hostile_attempts.py`, as a
client of the server sends it, once with the hosts of the task alone and once with `allowed_hosts: ["*"]`, and messages
that are none; after each, an ordinary episode. `reached` counts the attempts that got to the planted file or the canary
server. Then connections that are opened and closed, left half-open or filled with garbage, and clients whose socket is
cut in mid-episode; and the same once more over plain HTTP (`chaos_http.py`). `--parts` takes some of `attack`, `ws` and
`http`. The last line of the output is one JSON object. `run(...)` gives the same to other code.
"""

from __future__ import annotations

import argparse
import asyncio
import contextlib
import json
import os
import random
import re
import subprocess
import sys
import tempfile
import time
from collections.abc import AsyncIterator, Awaitable, Callable, Sequence
from pathlib import Path
from typing import Any

import psutil
from websockets.asyncio.client import ClientConnection, connect
from websockets.exceptions import WebSocketException

HERE = Path(__file__).parent
sys.path[:0] = [str(HERE), str(HERE.parent), str(HERE.parent / "tests")]

import chaos_http  # noqa: E402
from hostile_attempts import ADDRESSES, ENDLESS, FILES, SECRET, Attempt, Trap, open_trap  # noqa: E402

NUM_SESSIONS = 4
STEP_TIMEOUT_S, ATTEMPT_TIMEOUT_S = 30, 6
"""Deadlines of a step: the server's, and what the attempts ask for."""
START_TIMEOUT_S = 120
ANSWER_TIMEOUT_S = 150
MAX_ANSWER = 1 << 26
"""Bytes that our clients take: with pixels as lists, which is the default, an answer has some 20 MB."""
MAX_VANISHING_S = 1200
"""No new clients after this; `vanished_clients` says how many there were."""
PARTS = ("attack", "ws", "http")
MESSAGES = (
    *("{", "[]", "null", "3", '"reset"', "[" * 50_000, "{}", '{"type": null}', '{"type": ["reset"]}', "\x00"),
    *('{"type": "mcp", "data": {"method": "tools/list"}}', '{"type": "reset", "data": 1}', '{"type": "step"}'),
    *('{"type": "reset", "data": {"seed": "x"}}', '{"type": "reset", "data": {"seed": 1e999}}'),
    *('{"type": "reset", "data": {"task_name": "../../x"}}', '{"type": "reset", "data": {"observation": "all"}}'),
    *('{"type": "reset", "data": {"settle_cap_s": -1}}', '{"type": "reset", "data": {"upload_dir": "/"}}'),
    *('{"type": "reset", "data": {"allowed_hosts": ["a,*"]}}', '{"type": "step", "data": {"action_str": {}}}'),
    *('{"type": "step", "data": {"action_str": "__import__(\'os\')"}}', "x" * 3_000_000),
)
"""Messages that are none."""


class Server:
    """`webrl serve-env` as a process."""

    def __init__(self, *settings: str) -> None:
        """Settings of the config, and options such as `--idle-timeout=2`."""
        command = [sys.executable, "-m", "webrl.cli", "serve-env", "--port", "0", "rollout.num_workers=1"]
        options = [f"rollout.envs_per_worker={NUM_SESSIONS}", f"rollout.step_timeout_s={STEP_TIMEOUT_S}", *settings]
        environment = {name: value for name, value in os.environ.items() if name != "WEBRL_ENV_TOKEN"}
        self.process = subprocess.Popen(
            [*command, *options], stdout=subprocess.PIPE, text=True, env=environment, start_new_session=True
        )
        assert self.process.stdout is not None
        line = self.process.stdout.readline()
        found = re.search(r"http://\S+", line)
        if not found:
            raise RuntimeError(f"the server does not start: {line!r}")
        self.url = found[0].replace("http://", "ws://") + "/ws"
        self.port = int(found[0].rpartition(":")[2])

    @property
    def memory_mb(self) -> int:
        """Resident memory of the server's own process."""
        return int(psutil.Process(self.process.pid).memory_info().rss // 1_000_000)

    @property
    def tree_mb(self) -> int:
        """Resident memory of the server, its worker and its browser."""
        total = 0
        for process in [psutil.Process(self.process.pid), *psutil.Process(self.process.pid).children(recursive=True)]:
            with contextlib.suppress(psutil.Error):
                total += process.memory_info().rss
        return int(total // 1_000_000)

    @property
    def num_sockets(self) -> int:
        """Open connections of the server's own process."""
        return len(psutil.Process(self.process.pid).net_connections("tcp"))

    def close(self) -> None:
        """End it."""
        self.process.terminate()
        try:
            self.process.wait(30)
        except subprocess.TimeoutExpired:
            self.process.kill()


Way = tuple[
    Callable[[Server], Awaitable[bool]],
    Callable[[Server, int], Awaitable[object]],
    Callable[[Server, int], Awaitable[bool]],
    Callable[[Server, int, int], Awaitable[tuple[int, int]]],
]
"""How clients play an ordinary episode, knock, and vanish, and how one finds out what is left of them."""


async def ask(socket: ClientConnection, kind: str, **data: Any) -> dict[str, Any]:
    """One request and its answer's data; an error's has `code` and `message`."""
    await socket.send(json.dumps({"type": kind} | ({"data": data} if kind != "state" else {})))
    async with asyncio.timeout(ANSWER_TIMEOUT_S):
        answer: dict[str, Any] = json.loads(await socket.recv())
    return answer["data"]


@contextlib.asynccontextmanager
async def session(server: Server) -> AsyncIterator[ClientConnection]:
    """A session; waits while the server is full."""
    for _ in range(200):
        socket = await connect(server.url, max_size=MAX_ANSWER, ping_interval=None, open_timeout=60, close_timeout=5)
        try:
            if (await ask(socket, "state")).get("code") != "CAPACITY_REACHED":
                yield socket
                return
        finally:
            await socket.close()
        await asyncio.sleep(0.3)
    raise RuntimeError("the server stays full")


async def play_ordinary(server: Server) -> bool:
    """Whether an ordinary episode can be played and won."""
    async with session(server) as socket:
        first = await ask(socket, "reset", task_name="click-button", seed=0)
        bid = re.search(r"\[(\d+)\] button 'no'", first.get("observation", {}).get("text", ""))
        if not bid:
            return False
        last = await ask(socket, "step", action_str=f"click('{bid[1]}')")
        return last.get("reward") == 1.0


async def try_attempt(server: Server, trap: Trap, attempt: Attempt) -> list[str]:
    """Where the attempt has got to."""
    trap.hits.clear()
    task = trap.task(attempt)
    options = {"benchmark": "web", "start_url": task.start_url, "instruction": "look", "screenshots": True}
    options["step_timeout_s"] = ATTEMPT_TIMEOUT_S
    async with session(server) as socket:
        answer = await ask(socket, "reset", **options)
        text = answer.get("observation", {}).get("text", "")
        seen = [json.dumps(await ask(socket, "step", action_str=action)) for action in trap.actions(text)]
    await asyncio.sleep(0.1)
    return [*trap.hits, *(f"{attempt.name}: planted text" for answer in seen if SECRET in answer)]


async def try_message(server: Server, message: str) -> bool:
    """Whether the server answers what is no message with an error, or hangs up."""
    async with session(server) as socket:
        try:
            await socket.send(message)
            async with asyncio.timeout(ANSWER_TIMEOUT_S):
                return json.loads(await socket.recv())["type"] == "error"  # type: ignore[no-any-return]
        except WebSocketException:
            return True


async def attack(folder: Path, attempts: Sequence[Attempt], report: Callable[[str], object]) -> dict[str, Any]:
    """All attempts, against a server that allows the task's hosts only and against one that allows `*`."""
    counts: dict[str, Any] = {"attempts": 0, "reached": 0, "unserved": 0, "accepted_messages": 0, "reached_by": []}
    async with open_trap(folder) as trap:
        for hosts in ([trap.words["homehost"]], [trap.words["homehost"], "*"]):
            server = await asyncio.to_thread(Server, f"rollout.allowed_hosts={json.dumps(hosts)}")
            try:
                for attempt in attempts:
                    got = await try_attempt(server, trap, attempt)
                    counts["attempts"] += 1
                    counts["reached"] += bool(got)
                    counts["reached_by"] += got
                    counts["unserved"] += not await play_ordinary(server)
                    report(f"{attempt.name}: {'REACHED ' + str(got) if got else 'refused'}")
                for message in MESSAGES:
                    counts["attempts"] += 1
                    counts["accepted_messages"] += not await try_message(server, message)
                    counts["unserved"] += not await play_ordinary(server)
                counts["memory_mb_after_attempts"] = server.memory_mb
            finally:
                server.close()
    return counts


async def knock(server: Server, number: int) -> None:
    """One connection of the kinds that come in turn: closed at once, cut, half-open for a while, garbage, a body."""
    try:
        reader, writer = await asyncio.open_connection("127.0.0.1", server.port)
    except OSError:
        return
    try:
        kind = number % 6
        if kind == 1:
            writer.write(b"GET /ws HTTP/1.1\r\nHost: x\r\n")  # never finished
            await asyncio.sleep(random.random() * 2)
        elif kind == 2:
            writer.write(os.urandom(400) + b"\r\n\r\n")
        elif kind == 3:
            writer.write(b"POST /mcp HTTP/1.1\r\nHost: x\r\nContent-Length: 300000000\r\n\r\n" + b"x" * 20_000)
        elif kind == 4:
            writer.write(b"GET /health HTTP/1.1\r\nHost: x\r\n\r\n")
        elif kind == 5:
            writer.write(b"GET /" + b"a" * 20_000 + b" HTTP/1.1\r\n" + b"X: y\r\n" * 1000)
        if kind > 1:
            async with asyncio.timeout(5):
                await writer.drain()
                await reader.read(500)
    except (OSError, TimeoutError):
        pass
    finally:
        if kind == 0:
            writer.close()
        else:
            writer.transport.abort()


async def vanish(server: Server, number: int) -> bool:
    """A client that plays and is cut off: after a reset, in mid-step, or before; whether it had got a place."""
    try:
        socket = await connect(server.url, max_size=MAX_ANSWER, ping_interval=None, open_timeout=60, close_timeout=1)
    except (OSError, WebSocketException, TimeoutError):
        return False
    try:
        if (await ask(socket, "state")).get("code"):
            return False
        if number % 4:
            await ask(socket, "reset", task_name="click-button", seed=number)
        if number % 4 == 2:
            await socket.send('{"type": "step", "data": {"action_str": "noop(5000)"}}')
        if number % 4 == 3:
            await socket.send('{"type": "reset", "data": {}}')
        return True
    except (WebSocketException, TimeoutError, KeyError):
        return False
    finally:
        socket.transport.abort()


async def flood(
    way: Way, name: str, num_connections: int, num_clients: int, report: Callable[[str], object], *options: str
) -> dict[str, Any]:
    """Connections and vanishing clients; what is left of them afterwards, in figures that begin with the name."""
    play, knock, vanish, settle = way
    server = await asyncio.to_thread(Server, *options)
    try:
        assert await play(server)
        before, tree_before, sockets_before = server.memory_mb, server.tree_mb, server.num_sockets
        await chaos_http.knock_often(lambda number: knock(server, number), num_connections)
        report(f"{num_connections} {name}connections: {server.memory_mb} MB")
        served = await play(server)
        vanished = await chaos_http.vanish_often(
            lambda number: vanish(server, number), num_clients, MAX_VANISHING_S, 2 * NUM_SESSIONS,
            lambda n: report(f"{n} {name}vanished clients: {server.memory_mb} MB"),
        )  # fmt: skip
        leaked, sockets = await settle(server, NUM_SESSIONS, sockets_before)
        return {
            f"{name}connections": num_connections,
            f"{name}vanished_clients": vanished,
            f"{name}sessions_leaked": leaked,
            f"{name}sockets_leaked": max(0, sockets - sockets_before),
            f"{name}served_after": bool(served and await play(server)),
            f"{name}memory_mb": [before, server.memory_mb],
            f"{name}memory_tree_mb": [tree_before, server.tree_mb],
        }
    finally:
        server.close()


async def settle(server: Server, places: int, sockets_before: int) -> tuple[int, int]:
    """Sessions that cannot be had again, and sockets that stay open, after at most half a minute."""
    end = time.monotonic() + 30
    while True:
        async with contextlib.AsyncExitStack() as stack:
            free = 0
            for _ in range(places):
                opening = connect(server.url, max_size=MAX_ANSWER, ping_interval=None, open_timeout=60)
                socket = await stack.enter_async_context(opening)
                free += "code" not in await ask(socket, "state")
        await asyncio.sleep(0.5)
        sockets = server.num_sockets
        if (free == places and sockets <= sockets_before) or time.monotonic() > end:
            return places - free, sockets


def run(
    num_connections: int = 10_000,
    num_clients: int = 1000,
    attempts: Sequence[Attempt] = (*FILES, *ADDRESSES, *ENDLESS),
    report: Callable[[str], object] = str,
    parts: Sequence[str] = PARTS,
) -> dict[str, Any]:
    """The figures of the parts, by name; see the module docstring."""
    figures: dict[str, Any] = {}
    if "attack" in parts:
        with tempfile.TemporaryDirectory() as folder:
            figures |= asyncio.run(attack(Path(folder), attempts, report))
    if "ws" in parts:
        over_sockets: Way = (play_ordinary, knock, vanish, settle)
        figures |= asyncio.run(flood(over_sockets, "", num_connections, num_clients, report))
    if "http" in parts:
        idle = f"--idle-timeout={chaos_http.IDLE_TIMEOUT_S}"
        figures |= asyncio.run(flood(chaos_http.WAY, "http_", num_connections, num_clients, report, idle))
    return figures


def main() -> None:
    """Print the figures."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--connections", type=int, default=10_000)
    parser.add_argument("--clients", type=int, default=1000)
    parser.add_argument("--parts", nargs="+", choices=PARTS, default=PARTS)
    args = parser.parse_args()
    figures = run(args.connections, args.clients, parts=args.parts, report=lambda line: print(line, flush=True))
    print(json.dumps(figures))


if __name__ == "__main__":
    main()
