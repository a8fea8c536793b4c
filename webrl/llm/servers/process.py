"""One server of our own in a process group of its own: start, wait until healthy, watch, stop completely."""

from __future__ import annotations

import asyncio
import contextlib
import logging
import os
import re
import signal
import subprocess
import sys
import time
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

import httpx

from webrl.errors import ModelError

logger = logging.getLogger(__name__)

_GUARD = Path(__file__).with_name("guard.py")
_POLL_S = 0.25
_STOP_GRACE_S = 15.0
_LOG_TAIL_CHARS = 1500
_NUM_ERROR_LINES = 8
_ERROR_LINE = re.compile(r"\b\w*(Error|Exception): ")


class ServerProcess:
    """A command that serves HTTP on a port of this machine and writes its output to `log`.

    The process group dies with this process, even if this process is killed (`webrl/llm/servers/guard.py`).
    """

    def __init__(self, command: Sequence[str], *, port: int, log: Path, env: Mapping[str, str]) -> None:
        self.port, self.base_url = port, f"http://127.0.0.1:{port}"
        self.log = log
        self._command = list(command)
        self._env = dict(env)
        self._process: subprocess.Popen[bytes] | None = None

    @property
    def alive(self) -> bool:
        """True while the command runs."""
        return self._process is not None and self._process.poll() is None

    def start(self) -> None:
        """Start the command; its output is appended to the log."""
        self.log.parent.mkdir(parents=True, exist_ok=True)
        with self.log.open("ab") as log:
            self._process = subprocess.Popen(
                [sys.executable, str(_GUARD), *self._command],
                stdin=subprocess.PIPE,
                stdout=log,
                stderr=subprocess.STDOUT,
                env={**os.environ, **self._env},
                start_new_session=True,
            )

    async def wait_healthy(self, timeout_s: float) -> None:
        """Wait until `/health` answers 200.

        Raises:
            ModelError: the command ended, or the time is up (the end of its log is quoted).
        """
        deadline = time.monotonic() + timeout_s
        async with httpx.AsyncClient(timeout=5.0, trust_env=False) as client:
            while time.monotonic() < deadline:
                if not self.alive:
                    raise ModelError(f"the model server ended while it started; {self.log_tail()}")
                with contextlib.suppress(httpx.TransportError):
                    if (await client.get(f"{self.base_url}/health")).status_code == 200:
                        return
                await asyncio.sleep(_POLL_S)
        raise ModelError(f"the model server was not healthy within {timeout_s:g} s; {self.log_tail()}")

    async def post(self, path: str, body: dict[str, Any] | None, *, api_key: str, timeout_s: float) -> str:
        """POST JSON to the server; returns the text of its answer.

        Raises:
            ModelError: anything but 200, or no answer.
        """
        headers = {"Authorization": f"Bearer {api_key}"}
        async with httpx.AsyncClient(timeout=timeout_s, trust_env=False, headers=headers) as client:
            try:
                response = await client.post(self.base_url + path, json=body)
            except httpx.TransportError as error:
                raise ModelError(f"{self.base_url}{path}: {error!r}; {self.log_tail()}") from error
        if response.status_code != 200:
            raise ModelError(f"{self.base_url}{path} answered {response.status_code}: {response.text[:500]}")
        return response.text

    async def stop(self) -> None:
        """Stop the whole process group: terminate, then kill what is left."""
        process = self._process
        if process is None:
            return
        self._process = None
        _signal_group(process.pid, signal.SIGTERM)
        deadline = time.monotonic() + _STOP_GRACE_S
        while time.monotonic() < deadline:
            process.poll()  # reap the leader, or the group never empties
            try:
                os.killpg(process.pid, 0)
            except (ProcessLookupError, PermissionError):
                break
            await asyncio.sleep(0.1)
        _finish(process)

    def kill(self) -> None:
        """Stop at once, without an event loop (interpreter exit)."""
        if self._process is not None:
            process, self._process = self._process, None
            _finish(process)

    def log_tail(self) -> str:
        """The errors in the log and its end, with its path."""
        try:
            text = self.log.read_text(encoding="utf-8", errors="replace")
        except OSError as error:
            return f"its log {self.log} cannot be read: {error}"
        # A worker's error, which is the cause, comes long before the end of the log.
        errors = list(dict.fromkeys(line for line in text.splitlines() if _ERROR_LINE.search(line)))[:_NUM_ERROR_LINES]
        return f"its log {self.log} says:\n" + "\n".join([*errors, "…", text[-_LOG_TAIL_CHARS:]])


def _finish(process: subprocess.Popen[bytes]) -> None:
    _signal_group(process.pid, signal.SIGKILL)
    process.wait()
    if process.stdin:
        process.stdin.close()


def _signal_group(group: int, number: signal.Signals) -> None:
    with contextlib.suppress(ProcessLookupError, PermissionError):
        os.killpg(group, number)
