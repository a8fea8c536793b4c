"""Leases and locks across tasks, processes and crashes."""

import asyncio
import errno
import os
import signal
import subprocess
import sys

import pytest

from webrl_site.locks import SiteBusy, hold_sites, holder, lease_sites
from webrl_site.sites import SiteError

ONE = {"reddit": ("http://r",), "map": ("http://m",)}
TWO = {"reddit": ("http://r1", "http://r2")}


def test_readers_share_a_replica_and_a_writer_has_it_alone(tmp_path):
    async def run() -> None:
        first = await lease_sites(ONE, ["reddit"], writing=False, folder=tmp_path)
        second = await lease_sites(ONE, ["reddit"], writing=False, folder=tmp_path)
        with pytest.raises(SiteError, match="no replica of reddit came free for writing: http://r"):
            await lease_sites(ONE, ["reddit"], writing=True, folder=tmp_path, timeout_s=0.1)
        first.release()
        second.release()
        writer = await lease_sites(ONE, ["reddit"], writing=True, folder=tmp_path, timeout_s=5)
        with pytest.raises(SiteError, match="for reading"):
            await lease_sites(ONE, ["reddit"], writing=False, folder=tmp_path, timeout_s=0.1)
        writer.release()
        writer.release()

    asyncio.run(run())


def test_writers_get_different_replicas(tmp_path):
    async def run() -> set[str]:
        leases = [await lease_sites(TWO, ["reddit"], writing=True, folder=tmp_path, timeout_s=1) for _ in range(2)]
        return {lease.urls["reddit"] for lease in leases}

    assert asyncio.run(run()) == {"http://r1", "http://r2"}


def test_a_waiting_writer_is_not_starved_by_readers_that_come_later(tmp_path):
    async def run() -> list[str]:
        order: list[str] = []
        reader = await lease_sites(ONE, ["reddit"], writing=False, folder=tmp_path)

        async def take(name: str, writing: bool) -> None:
            lease = await lease_sites(ONE, ["reddit"], writing=writing, folder=tmp_path, timeout_s=20)
            order.append(name)
            await asyncio.sleep(0.05)
            lease.release()

        writer = asyncio.create_task(take("writer", True))
        await asyncio.sleep(0.3)
        late = [asyncio.create_task(take("late reader", False)) for _ in range(3)]
        await asyncio.sleep(0.3)
        assert order == []
        reader.release()
        await asyncio.gather(writer, *late)
        return order

    assert asyncio.run(run())[0] == "writer"


def test_episodes_that_want_the_same_two_sites_never_wait_for_each_other(tmp_path):
    async def run() -> int:
        done = 0

        async def play(names: list[str]) -> None:
            nonlocal done
            lease = await lease_sites(ONE, names, writing=True, folder=tmp_path, timeout_s=20)
            assert list(lease.urls) == names
            await asyncio.sleep(0.01)
            lease.release()
            done += 1

        await asyncio.gather(*(play(["map", "reddit"] if i % 2 else ["reddit", "map"]) for i in range(8)))
        return done

    assert asyncio.run(run()) == 8


def test_a_second_run_on_a_site_is_told_who_has_it(tmp_path):
    with hold_sites(TWO, ["reddit"], "first", tmp_path):
        assert f"run 'first' (process {os.getpid()} on " in holder("http://r2", tmp_path)
        again = hold_sites(TWO, ["reddit"], "second", tmp_path)
        with pytest.raises(SiteBusy, match=r"http://r1 is in use by run 'first' \(process \d+ on .*, since 20"), again:
            pass
    assert holder("http://r1", tmp_path) == "no run"
    with hold_sites(TWO, ["reddit"], "second", tmp_path):
        pass


def test_a_lock_that_finds_no_room_is_named(tmp_path, monkeypatch):
    def refuse(*_):
        raise OSError(errno.ENOSPC, "No space left on device")

    monkeypatch.setattr("os.write", refuse)
    with pytest.raises(OSError, match=r"r-\w+\.run"), hold_sites(ONE, ["reddit"], "run", tmp_path):
        pass


def test_a_killed_run_leaves_no_lock(tmp_path):
    code = (
        "import sys, time; from pathlib import Path; from webrl_site.locks import hold_sites\n"
        "with hold_sites({'reddit': ('http://r',)}, ['reddit'], 'doomed', Path(sys.argv[1])):\n"
        "    print('held', flush=True); time.sleep(60)\n"
    )
    process = subprocess.Popen([sys.executable, "-c", code, str(tmp_path)], stdout=subprocess.PIPE, text=True)
    assert process.stdout is not None
    assert process.stdout.readline() == "held\n"
    with pytest.raises(SiteBusy, match="doomed"), hold_sites(ONE, ["reddit"], "next", tmp_path):
        pass
    process.send_signal(signal.SIGKILL)
    process.wait()
    process.stdout.close()
    with hold_sites(ONE, ["reddit"], "next", tmp_path):
        pass
