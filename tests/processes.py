"""Looking at processes that may end while being looked at, and interrupting them."""

import contextlib
import os
import signal
import subprocess
import sys
import time
from collections.abc import Callable, Iterable, Sequence
from pathlib import Path

import psutil

ROOT = Path(__file__).parent.parent
BROWSER = ("chrom", "headless_shell")
"""Names of a browser's processes: Chromium's, and Playwright's and npm's headless shells."""
OF_THE_HUB = [f"models.{name}=of/the-hub" for name in ("orm", "generator", "actor")]
"""Settings of which `--dry-run` opens no model: that takes 12 CPU seconds in a process of its own."""


def descendants(pid: int, names: Sequence[str] = ("",)) -> list[psutil.Process]:
    """Processes below one whose name contains one of `names`; empty if it has ended."""
    found = []
    with contextlib.suppress(psutil.NoSuchProcess):
        for process in psutil.Process(pid).children(recursive=True):
            with contextlib.suppress(psutil.NoSuchProcess):
                if any(name in process.name() for name in names):
                    found.append(process)
    return found


def living(processes: Iterable[psutil.Process]) -> list[psutil.Process]:
    """Those that still run; what has ended and only waits to be collected does not."""
    found = []
    for process in processes:
        with contextlib.suppress(psutil.NoSuchProcess):
            if process.is_running() and process.status() != psutil.STATUS_ZOMBIE:
                found.append(process)
    return found


def has_ended(pid: int) -> bool:
    """Whether no process of this id runs."""
    with contextlib.suppress(psutil.NoSuchProcess):
        return not living([psutil.Process(pid)])
    return True


def kill(processes: Iterable[psutil.Process]) -> None:
    """SIGKILL to each that is still there."""
    for process in processes:
        with contextlib.suppress(psutil.NoSuchProcess):
            process.kill()


def wait_until(condition: Callable[[], object], timeout_s: float = 60.0) -> None:
    """Until something is true; an error where that does not come."""
    end = time.monotonic() + timeout_s
    while not condition():
        assert time.monotonic() < end, "watchdog: the condition never came true"
        time.sleep(0.02)


def python(
    *arguments: object, code: int | None = 0, cwd: Path | None = None, timeout: float = 600, **variables: str
) -> subprocess.CompletedProcess[str]:
    """Run `python ARGUMENTS` with these environment variables too; its exit code is `code`, or any if that is None."""
    command, environment = [sys.executable, *map(str, arguments)], os.environ | variables
    done = subprocess.run(command, cwd=cwd, env=environment, capture_output=True, text=True, timeout=timeout)
    assert code in (None, done.returncode), done.stdout[-3000:] + done.stderr[-3000:]
    return done


def interrupt(arguments: list[str], moment: Callable[[int], bool]) -> tuple[int, list[str]]:
    """Start a command, wait for the moment, press Ctrl-C; gives exit code and the lines of its stderr.

    Nothing that it started may live on.
    """
    command = [sys.executable, "-m", "webrl.cli", *arguments]
    process = subprocess.Popen(
        command, cwd=ROOT, stdout=subprocess.DEVNULL, stderr=subprocess.PIPE, text=True, start_new_session=True,
        preexec_fn=lambda: signal.signal(signal.SIGINT, signal.SIG_DFL),  # ignored where tests run in the background
    )  # fmt: skip
    try:
        wait_until(lambda: moment(process.pid) or process.poll() is not None, 240)
        assert process.poll() is None, process.communicate()[1]
        children = descendants(process.pid)
        os.killpg(process.pid, signal.SIGINT)
        said = process.communicate(timeout=120)[1]
    finally:
        process.kill()
    psutil.wait_procs(children, timeout=20)
    assert living(children) == []
    return process.returncode, said.splitlines()
