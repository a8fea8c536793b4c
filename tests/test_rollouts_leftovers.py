"""Browsers that are killed leave nothing in the temporary directory; each has a DevTools port of its own."""

import asyncio
import os
import subprocess
import sys
import tempfile
from pathlib import Path

import httpx
import psutil
import pytest
from processes import descendants, kill

from webrl.errors import BrowserError
from webrl.rollouts.browser import Browser

pytestmark = pytest.mark.browser


@pytest.fixture
def temporary(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    monkeypatch.setenv("TMPDIR", str(tmp_path))
    monkeypatch.setattr(tempfile, "tempdir", str(tmp_path))
    return tmp_path


def test_a_browser_that_is_killed_with_its_driver_leaves_no_files_and_removes_those_of_processes_that_are_no_more(
    temporary: Path,
) -> None:
    ended = subprocess.Popen([sys.executable, "-c", ""])
    ended.wait()
    (temporary / f"webrl-browser-{ended.pid}-x" / "profile").mkdir(parents=True)
    ours = temporary / f"webrl-browser-{os.getpid()}-x"
    ours.mkdir()

    async def play() -> None:
        async with Browser() as browser:
            context = await browser.new_context()
            await context.new_page()
            assert not list(temporary.glob(f"webrl-browser-{ended.pid}-*"))
            assert len(list(temporary.iterdir())) > 1
            kill(descendants(os.getpid()))

    asyncio.run(play())
    psutil.wait_procs(descendants(os.getpid()), timeout=20)
    assert list(temporary.iterdir()) == [ours]


def test_a_playwright_with_which_the_cache_would_be_off_is_refused_and_leaves_no_files(
    temporary: Path, tmp_path_factory: pytest.TempPathFactory, monkeypatch: pytest.MonkeyPatch
) -> None:
    blind = tmp_path_factory.mktemp("hook") / "sees_no_message.cjs"
    blind.write_text("")
    monkeypatch.setattr("webrl.rollouts.browser._KEEP_CACHE", blind)
    with pytest.raises(
        BrowserError, match=r"what Playwright 1\.\S+ tells the browser, .* `pip install -c constraints\.txt playwright`"
    ):
        asyncio.run(Browser().start())
    psutil.wait_procs(descendants(os.getpid()), timeout=20)
    assert list(temporary.iterdir()) == []


def test_the_devtools_port_is_one_that_the_browser_itself_has_taken() -> None:
    async def play() -> tuple[int, int]:
        async with Browser() as one, Browser() as other:
            async with httpx.AsyncClient(trust_env=False) as client:
                for browser in (one, other):
                    answer = await client.get(f"http://127.0.0.1:{browser.port}/json/version")
                    assert "Chrome" in answer.json()["User-Agent"]
            return one.port, other.port

    assert len(set(asyncio.run(play()))) == 2
