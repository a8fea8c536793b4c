"""Who uses a site: one run at a time, and within it one writing episode, or any number of reading ones, a replica.

API: `hold_sites(urls, names, owner, folder)` (a run's own context manager; `SiteBusy` names the other holder),
`await lease_sites(urls, names, writing, folder, timeout_s) -> Lease`.

All locks are `flock`s on small files, so they hold across worker processes and end with the process that has
them, however it dies. Runs on several machines need `lock_dir` on a file system that they share.
"""

from __future__ import annotations

import asyncio
import contextlib
import fcntl
import hashlib
import json
import os
import random
import re
import socket
import tempfile
import time
from collections.abc import Iterable, Iterator, Mapping, Sequence
from pathlib import Path
from typing import IO

from webrl.config.redaction import redact
from webrl.runs.disk import full_disk_named
from webrl_site.sites import SiteError

LEASE_TIMEOUT_S = 3600.0
"""Longest wait of an episode for a free site."""
_POLL_S = 0.05
_MAX_POLL_S = 0.5


class SiteBusy(SiteError):
    """Another run has the site; the text says which, where and since when."""


def default_lock_dir() -> Path:
    """A folder that all processes of this user on this machine agree on."""
    return Path(tempfile.gettempdir()) / f"webrl-sites-{os.getuid()}"


@contextlib.contextmanager
def hold_sites(
    urls: Mapping[str, Sequence[str]], names: Iterable[str], owner: str, folder: Path | None = None
) -> Iterator[None]:
    """Keep other runs off all replicas of some sites while the block runs.

    Args:
        urls: the replicas' base URLs by site.

    Raises:
        SiteBusy: another run has one of them.
        OSError: the folder cannot be written to; the file is named.
    """
    folder = folder or default_lock_dir()
    with contextlib.ExitStack() as stack:
        for url in sorted({url for name in names for url in urls.get(name, ())}):
            path = _path(folder, url, "run")
            file = stack.enter_context(_open(path))
            if not _try(file, fcntl.LOCK_EX):
                text = f"{url} is in use by {holder(url, folder)}; wait for it, or give this run its own replica"
                raise SiteBusy(text)
            file.truncate(0)
            stack.callback(file.truncate, 0)
            who = {"owner": owner, "pid": os.getpid(), "host": socket.gethostname(), "since": time.time()}
            with full_disk_named(path):
                os.write(file.fileno(), json.dumps(who).encode())
        yield


def holder(url: str, folder: Path | None = None) -> str:
    """Describe the run that holds a site; "no run" if none does."""
    try:
        text = _path(folder or default_lock_dir(), url, "run").read_text(encoding="utf-8")
        if not text:
            return "no run"
        data = json.loads(text)
        since = time.strftime("%Y-%m-%d %H:%M:%S", time.localtime(data["since"]))
        return f"run {data['owner']!r} (process {data['pid']} on {data['host']}, since {since})"
    except FileNotFoundError:
        return "no run"
    except (ValueError, KeyError):
        return "a run that does not say who it is"


class Lease:
    """The replicas of one episode; `release` frees them (so does the end of the process)."""

    def __init__(self) -> None:
        self.urls: dict[str, str] = {}
        """Base URL by site."""
        self.files = contextlib.ExitStack()
        """Open, locked files."""

    def release(self) -> None:
        """Give the replicas back; twice does no harm."""
        self.files.close()


async def lease_sites(
    urls: Mapping[str, Sequence[str]],
    names: Sequence[str],
    *,
    writing: bool,
    folder: Path | None = None,
    timeout_s: float = LEASE_TIMEOUT_S,
) -> Lease:
    """Wait for one replica of each site: shared for reading, alone for writing.

    Args:
        urls: the replicas' base URLs by site.

    Raises:
        SiteError: no replica came free in time.
    """
    lease = Lease()
    deadline = time.monotonic() + timeout_s
    try:
        for name in sorted(set(names)):  # one order for all, so that two episodes never wait for each other
            await _lease_one(lease, name, urls[name], writing, folder or default_lock_dir(), deadline)
    except BaseException:
        lease.release()
        raise
    lease.urls = {name: lease.urls[name] for name in names}
    return lease


async def _lease_one(
    lease: Lease, name: str, urls: Sequence[str], writing: bool, folder: Path, deadline: float
) -> None:
    mode = fcntl.LOCK_EX if writing else fcntl.LOCK_SH
    order = random.sample(urls, len(urls))
    pause, has_gate = _POLL_S, False
    with _open(_path(folder, order[0], "gate")) as gate:
        while True:
            for url in order:
                # A waiting writer holds the gate; readers that arrive later stop there, so it gets its turn.
                with _open(_path(folder, url, "gate")) as passing:
                    if not (has_gate and url == order[0]) and not _try(passing, mode):
                        continue
                    file = _open(_path(folder, url, "lease"))
                    if _try(file, mode):
                        lease.urls[name] = url
                        lease.files.enter_context(file)
                        return
                    file.close()
            has_gate = has_gate or (writing and _try(gate, fcntl.LOCK_EX))
            if time.monotonic() > deadline:
                kind = "writing" if writing else "reading"
                raise SiteError(f"no replica of {name} came free for {kind}: {', '.join(urls)} are all leased")
            await asyncio.sleep(pause)
            pause = min(pause * 1.5, _MAX_POLL_S)


def _path(folder: Path, url: str, kind: str) -> Path:
    url = redact(url)
    readable = re.sub(r"\W+", "-", url.partition("://")[2])[:60].strip("-")
    return folder / f"{readable}-{hashlib.sha256(url.encode()).hexdigest()[:8]}.{kind}"


def _open(path: Path) -> IO[str]:
    path.parent.mkdir(parents=True, exist_ok=True)
    return path.open("a+", encoding="utf-8")


def _try(file: IO[str], mode: int) -> bool:
    try:
        fcntl.flock(file, mode | fcntl.LOCK_NB)
    except BlockingIOError:
        return False
    return True
