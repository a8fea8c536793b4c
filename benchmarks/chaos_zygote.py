"""A process that has imported everything already, and forks a child for each command it is sent.

Importing torch and transformers takes three CPU seconds, more than most of the lives that chaos.py takes. A child runs
the very function that the console script calls; the first life of every run is the plain command instead.

Started by chaos_lives.py: one JSON line a command on standard input (`module`, `argv`, `env`, `log`), one line on
standard output when a child has started (`started`) and when it has ended (`ended`, `code`).
"""

from __future__ import annotations

import ctypes
import importlib
import json
import os
import select
import sys
import tempfile
import traceback
from typing import Any

WARM = (
    "torch", "transformers.models.llama.modeling_llama", "accelerate", "matplotlib.pyplot", "sklearn.metrics",
    "playwright.async_api", "websockets.asyncio.client", "aiohttp.web", "webrl.cli", "webrl.cli.run",
    "webrl_serve.cli.serve_env", "webrl.llm.local.model", "webrl.llm.policy", "webrl.rollouts.collect",
    "webrl_serve.openenv.client", "webrl.tasks.curriculum", "webrl.reward.stage", "webrl.replay.stage",
    "webrl.training", "webrl.training.trainer",
)  # fmt: skip


def main() -> int:
    """Serve until standard input ends; gives the exit code (a child's own, in a child)."""
    for name in WARM:
        importlib.import_module(name)
    say({"ready": os.getpid()})
    rest = b""
    while True:
        reap()
        if not select.select([0], [], [], 0.03)[0]:
            continue
        block = os.read(0, 1 << 16)
        if not block:
            return 0
        *lines, rest = (rest + block).split(b"\n")
        for line in lines:
            order = json.loads(line)
            pid = os.fork()
            if pid == 0:
                return become(order)
            say({"started": pid})


def reap() -> None:
    """Report children that have ended."""
    while True:
        try:
            pid, status = os.waitpid(-1, os.WNOHANG)
        except ChildProcessError:
            return
        if not pid:
            return
        say({"ended": pid, "code": os.waitstatus_to_exitcode(status)})


def become(order: dict[str, Any]) -> int:
    """In the child: take the order's environment, and run it."""
    os.setsid()
    log = os.open(order["log"], os.O_WRONLY | os.O_APPEND | os.O_CREAT, 0o600)
    nothing = os.open(os.devnull, os.O_RDONLY)
    os.dup2(nothing, 0)
    os.dup2(log, 1)
    os.dup2(log, 2)
    os.environ.clear()
    os.environ.update(order["env"])
    tempfile.tempdir = None  # found anew, by the new variables
    if "CHAOS_ROOT" in order["env"]:
        ctypes.CDLL(None).chaos_configure()
    sys.argv = [order["module"], *order["argv"]]
    try:
        code: int = importlib.import_module(order["module"]).main(order["argv"])
    except Exception:  # the boundary of the process, as the interpreter's own
        traceback.print_exc()
        return 1
    return code


def say(message: dict[str, Any]) -> None:
    """One line to the harness."""
    os.write(1, json.dumps(message).encode() + b"\n")


if __name__ == "__main__":
    sys.exit(main())
