"""What a step with a screenshot costs a public client: steps a second and bytes a step, as PNG and as lists.

`python benchmarks/rollout_screenshots.py [--seconds 20] [--public FOLDER]`. One client plays click-test at 1280x720
with `noop(1)` over OpenEnv's WebSocket protocol and parses every answer's JSON, on `webrl serve-env --screenshots png`,
then `list`. With `--public`, a folder with the package `browsergym_env` of OpenEnv's repository (`envs/`; not part of
webrl), its own server plays the same in the same run, in this environment's BrowserGym; `ratio_png` and `ratio_list`
are how many times as many steps a second webrl's server does. The last line is JSON.
"""

from __future__ import annotations

import argparse
import contextlib
import json
import os
import subprocess
import sys
import tempfile
import time
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from rollout_openenv import server
from websockets.exceptions import WebSocketException
from websockets.sync.client import ClientConnection, connect

from webrl.rollouts.browser import find_chromium
from webrl.rollouts.sites import miniwob_root
from webrl.runs.machine import free_port

ROUNDS = 3
START_S = 180.0
"""Longest wait for a server."""
ANSWER_S = 300.0
"""Longest wait for an answer."""


@dataclass
class Count:
    """What one server has answered."""

    steps: int = 0
    seconds: float = 0.0
    num_bytes: int = 0
    """Of all answers to steps."""

    @property
    def steps_per_s(self) -> float:
        """Steps a second."""
        return self.steps / self.seconds


def ask(connection: ClientConnection, count: Count, kind: str, **data: Any) -> dict[str, Any]:
    """Send a message; its answer, counted."""
    start = time.perf_counter()
    connection.send(json.dumps({"type": kind, "data": data}))
    raw = connection.recv(timeout=ANSWER_S)
    answer: dict[str, Any] = json.loads(raw)
    end = time.perf_counter()
    if answer["type"] == "error":
        raise RuntimeError(answer["data"]["message"])
    if not answer["data"]["observation"].get("screenshot"):
        raise RuntimeError("an answer came without the image that was asked for")
    if kind == "step":
        count.steps += 1
        count.seconds += end - start
        count.num_bytes += len(raw.encode()) if isinstance(raw, str) else len(raw)
    return answer


def begin(url: str, count: Count, stack: contextlib.ExitStack) -> ClientConnection:
    """A session in its episode; the reset and the first step after it are not counted."""
    address = f"{url.replace('http', 'ws')}/ws"
    connection = stack.enter_context(connect(address, max_size=None, open_timeout=60, ping_interval=None))
    ask(connection, count, "reset", seed=0)
    ask(connection, count, "step", action_str="noop(1)")
    count.steps, count.seconds, count.num_bytes = 0, 0.0, 0
    return connection


def play(connection: ClientConnection, count: Count, seconds: float) -> None:
    """Steps for about `seconds`, one at least."""
    end = time.perf_counter() + seconds
    ask(connection, count, "step", action_str="noop(1)")
    while time.perf_counter() < end:
        ask(connection, count, "step", action_str="noop(1)")


@contextlib.contextmanager
def public(folder: Path) -> Iterator[str]:
    """OpenEnv's own BrowserGym server on this machine's Chromium; gives its URL once it answers."""
    with tempfile.TemporaryDirectory() as browsers:
        port = free_port()
        # Playwright 1.44, which BrowserGym pins, looks for its own Chromium alone.
        link = Path(browsers, "chromium-1117", "chrome-linux", "chrome")
        link.parent.mkdir(parents=True)
        link.symlink_to(find_chromium())
        process = subprocess.Popen(
            [sys.executable, "-m", "uvicorn", "browsergym_env.server.app:app", "--port", str(port)],
            stdout=subprocess.DEVNULL,
            env=os.environ
            | {
                "PYTHONPATH": str(folder),
                "PLAYWRIGHT_BROWSERS_PATH": browsers,
                "BROWSERGYM_TASK_NAME": "click-test",
                "MINIWOB_URL": f"{(miniwob_root() / 'miniwob').as_uri()}/",
            },
        )
        try:
            url = f"http://127.0.0.1:{port}"
            _await_answer(url, process)
            yield url
        finally:
            process.terminate()
            process.wait()


def _await_answer(url: str, process: subprocess.Popen[Any]) -> None:
    end = time.monotonic() + START_S
    while process.poll() is None and time.monotonic() < end:
        with contextlib.suppress(OSError, WebSocketException), connect(f"{url.replace('http', 'ws')}/ws"):
            return
        time.sleep(1)
    raise RuntimeError(f"OpenEnv's server did not come up (exit code {process.poll()})")


def measure(seconds: float, folder: Path | None) -> dict[str, Any]:
    """All servers in turns, so that what else the machine does falls on each."""
    with contextlib.ExitStack() as stack:
        options = ("--sessions", "1", "--viewport", "1280x720", "--screenshots")
        urls = {way: stack.enter_context(server(1, *options, way)) for way in ("png", "list")}
        if folder is not None:
            urls["public"] = stack.enter_context(public(folder))
        counts = {name: Count() for name in urls}
        connections = {name: begin(url, counts[name], stack) for name, url in urls.items()}
        for _ in range(ROUNDS):
            for name, connection in connections.items():
                play(connection, counts[name], seconds / ROUNDS)
    figures: dict[str, Any] = {}
    for name, count in counts.items():
        print(
            f"{name}: {count.steps_per_s:.3g} steps/s, {count.num_bytes / count.steps / 1000:.0f} kB a step,"
            f" {count.steps} steps",
            flush=True,
        )
        figures[f"{name}_steps_per_s"] = round(count.steps_per_s, 4)
        figures[f"{name}_bytes_per_step"] = round(count.num_bytes / count.steps)
    if "public" in counts:
        for way in ("png", "list"):
            figures[f"ratio_{way}"] = round(counts[way].steps_per_s / counts["public"].steps_per_s, 1)
    return figures


if __name__ == "__main__":
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--seconds", type=float, default=20, help="length of each measurement")
    parser.add_argument("--public", type=Path, metavar="FOLDER", help="folder with OpenEnv's package browsergym_env")
    arguments = parser.parse_args()
    print(json.dumps(measure(arguments.seconds, arguments.public)))
