"""`webrl record-demos --by-hand`: a person plays training tasks in a visible browser."""

from __future__ import annotations

import argparse
import asyncio
import os
import sys
import threading

from webrl.cli.options import split_settings
from webrl.config import RunConfig
from webrl.errors import UsageError

_KEYS = """\
Do the task in the browser; each step is shown here. Click, type (Tab, Enter or the next click submits what you
typed), choose, drag, press keys; Alt+Left goes back. In this terminal:
  done [ANSWER]   the task is done; ANSWER is what the agent tells the user
  again, skip, quit
  or an action as an agent writes it: new_tab(), tab_close(), scroll(0, 500), dblclick('12'), goto('http://...')"""


def main(args: argparse.Namespace, config: RunConfig) -> int:
    """Record until the tasks are done or the person quits; returns the exit code."""
    from webrl.rollouts.browser import Browser
    from webrl.runs.lock import hold_output
    from webrl.runs.text import visible
    from webrl_site.by_hand import Inbox, Recorder, hand_tasks

    if args.per_type is not None:
        raise UsageError("--per-type is for the scripted experts; by hand tasks.num_seed_tasks tasks are played")
    tasks = hand_tasks(config)
    out = (args.out or config.run_dir / "demos_by_hand") / "trajectories.jsonl"
    print(f"record {len(tasks)} tasks by hand to {out}", flush=True)
    if args.dry_run:
        return 0
    if sys.platform == "linux" and not (os.environ.get("DISPLAY") or os.environ.get("WAYLAND_DISPLAY")):
        raise UsageError(
            f"--by-hand opens a browser window, but there is no display (DISPLAY={os.environ.get('DISPLAY', '')!r}, "
            f"WAYLAND_DISPLAY={os.environ.get('WAYLAND_DISPLAY', '')!r}); run it on a desktop, or over `ssh -X`"
        )
    print(_KEYS, flush=True)

    async def record() -> None:
        inbox: Inbox = asyncio.Queue()
        loop = asyncio.get_running_loop()

        def listen() -> None:
            for line in iter(sys.stdin.readline, ""):
                loop.call_soon_threadsafe(inbox.put_nowait, line)
            loop.call_soon_threadsafe(inbox.put_nowait, "quit")

        threading.Thread(target=listen, daemon=True).start()
        async with Browser(visible=True) as shown, Browser() as unseen:
            say = lambda line: print(visible(line), flush=True)  # noqa: E731
            await Recorder(config, out, say, inbox, shown, unseen, args.keep_all).record(tasks)

    with hold_output(out.parent):
        asyncio.run(record())
    if out.stat().st_size:
        print(f"next: webrl sft {split_settings(args.settings)[0] or 'demo'} --data {out.parent}")
    return 0
