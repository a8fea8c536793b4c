"""Finds and runs Chromium: one headless browser per worker, shared by its environments; or one that a person sees."""

from __future__ import annotations

import asyncio
import contextlib
import json
import logging
import os
import re
import shutil
import sys
import tempfile
import time
from collections.abc import Awaitable, Callable, Iterator
from importlib.metadata import version
from pathlib import Path
from typing import TYPE_CHECKING, Any, Self

import psutil

from webrl.errors import BrowserError, BrowserMissing

if TYPE_CHECKING:
    from playwright.async_api import BrowserContext

logger = logging.getLogger(__name__)

LAUNCH_TIMEOUT_S = 30
"""With a DevTools port Playwright does not notice that the executable has ended; its own limit is three minutes."""
MISSING = (
    "no Chromium found; run `playwright install chromium`, or `apt-get install chromium-headless-shell` (Debian), "
    "or set WEBRL_CHROMIUM to an executable"
)
UNKNOWN_PLAYWRIGHT = (
    "webrl does not see what Playwright {version} tells the browser, and cannot keep its cache on: pages would load "
    "again and going back send forms again; run `webrl constraints > constraints.txt`, then "
    "`pip install -c constraints.txt playwright`"
)
_KEEP_CACHE = Path(__file__).parent / "js" / "keep_cache.cjs"
_FOLDER = "webrl-browser-"
"""Name of a browser's temporary directory, before its process id."""
_FEATURES_OFF = (
    # Scrollbars take room on the page: BrowserGym shows them, so pages are laid out the same way here.
    "OverlayScrollbars",
    "ExtendedOverlayScrollbars",
    # Behind Playwright's routes most of what pages send as they are left (`pagehide`: beacons, kept-alive requests) is
    # lost while the browser, not the page, keeps it alive (Chromium 138, and 150 without the next).
    "KeepAliveInBrowserMigration",
    "RenderDocument",  # a step in the arena takes an eighth less CPU time without it
)
_ARGS = (
    f"--disable-features={','.join(_FEATURES_OFF)}",
    # Neither WebRTC nor QUIC goes through an HTTP proxy, which is what pages are held to.
    "--force-webrtc-ip-handling-policy=disable_non_proxied_udp",
    "--disable-quic",
)
NO_WINDOW = (
    "no Chromium with a window found (chromium-headless-shell has none); run `playwright install chromium`, or "
    "`apt-get install chromium` (Debian), or set WEBRL_CHROMIUM to an executable"
)


def _report(loop: asyncio.AbstractEventLoop, context: dict[str, Any]) -> None:
    """Report as asyncio does, except for errors of Playwright calls that were abandoned when their step ended."""
    if not type(context.get("exception")).__module__.startswith("playwright."):
        loop.default_exception_handler(context)


def find_chromium(*, visible: bool = False) -> Path:
    """The Chromium to run: `WEBRL_CHROMIUM`, Playwright's download, Debian's packages, then macOS applications;
    `visible`: one that can open a window. Raises BrowserMissing, which tells how to get one.
    """
    candidates: list[Path] = []
    if chosen := os.environ.get("WEBRL_CHROMIUM"):
        candidates.append(Path(chosen))
    else:
        downloads = "~/Library/Caches/ms-playwright" if sys.platform == "darwin" else "~/.cache/ms-playwright"
        root = Path(os.environ.get("PLAYWRIGHT_BROWSERS_PATH") or downloads).expanduser()
        for pattern in (
            "chromium_headless_shell-*/*/headless_shell",
            "chromium_headless_shell-*/*/chrome-headless-shell",
            "chromium-*/chrome-linux*/chrome",
            "chromium-*/chrome-mac*/Chromium.app/Contents/MacOS/Chromium",
        ):
            candidates += sorted(root.glob(pattern), reverse=True)
        names = ("chromium-headless-shell", "chromium", "chromium-browser", "google-chrome")
        candidates += [Path(path) for path in map(shutil.which, names) if path]
        if sys.platform == "darwin":
            apps = ("Google Chrome", "Chromium")
            candidates += [Path(f"/Applications/{app}.app/Contents/MacOS/{app}") for app in apps]
    for candidate in candidates:
        if visible and re.search(r"headless[-_]shell", str(candidate)):
            continue
        if os.access(candidate, os.X_OK) and candidate.is_file():
            return candidate
    if chosen:
        window = " that opens windows" if visible else ""
        raise BrowserMissing(f"WEBRL_CHROMIUM={chosen}: no executable{window} there; name another, or unset it")
    raise BrowserMissing(NO_WINDOW if visible else MISSING)


class Browser:
    """One running Chromium with its Playwright driver. Raises BrowserMissing, or BrowserError if it does not start."""

    def __init__(self, *, own_session: bool = True, max_page_mb: int | None = None, visible: bool = False) -> None:
        """Prepare; see `start`.

        Args:
            visible: with windows, on this machine's display.
            max_page_mb: end the process of a page that takes more memory; the page then counts as crashed.
            own_session: keep Ctrl-C in a terminal, which goes to the whole process group, from the driver, so that
                it is still there to be closed in order. Not for a process that has its own session already.
        """
        self._own_session = own_session
        self._visible = visible
        self.max_page_mb = max_page_mb
        self._watching: asyncio.Task[None] | None = None
        self._stack = contextlib.AsyncExitStack()
        self._browser: Any = None
        self._lost = False
        self._folder: Path | None = None
        self.port = 0
        """Port of the DevTools server, bound to loopback."""

    async def start(self) -> Self:
        """Launch; must be closed with `close`."""
        launching = asyncio.ensure_future(self._launch())
        try:
            await asyncio.shield(launching)
        except asyncio.CancelledError:
            # A driver that is left alone half-way prints a trace when its pipe breaks.
            await asyncio.gather(launching, return_exceptions=True)
            await self.close()
            raise
        return self

    async def _launch(self) -> None:
        from playwright.async_api import Error, async_playwright

        executable = find_chromium(visible=self._visible)
        await asyncio.to_thread(remove_abandoned)
        self._folder = Path(tempfile.mkdtemp(prefix=f"{_FOLDER}{os.getpid()}-"))
        try:
            with _driver_processes(self._folder, own_session=self._own_session):
                playwright = await self._stack.enter_async_context(async_playwright())
            playwright.selectors.set_test_id_attribute("bid")
            loop = asyncio.get_running_loop()
            if loop.get_exception_handler() is None:
                loop.set_exception_handler(_report)
            self._browser = await playwright.chromium.launch(
                executable_path=executable,
                timeout=LAUNCH_TIMEOUT_S * 1000,
                headless=not self._visible,
                # The hint: a Wayland desktop without X.
                args=[*_ARGS, *(["--ozone-platform-hint=auto"] if self._visible else []), "--remote-debugging-port=0"],
                ignore_default_args=["--hide-scrollbars"],
                handle_sigint=False,
                handle_sigterm=False,
                handle_sighup=False,
            )
        except Error as error:
            await self.close()
            raise BrowserError(f"{executable} does not start: {first_line(error)}") from None
        if not (self._folder / "keeps-cache").exists():  # `_KEEP_CACHE` writes it where it works
            await self.close()
            raise BrowserError(UNKNOWN_PLAYWRIGHT.format(version=version("playwright")))
        self.port = await asyncio.to_thread(_listening_port, self._folder)
        if not self.port:
            await self.close()
            raise BrowserError(f"{executable} opened no DevTools port within {LAUNCH_TIMEOUT_S} s")
        if self.max_page_mb:
            self._watching = asyncio.create_task(_end_large_renderers(self._folder, self.max_page_mb))

    @property
    def alive(self) -> bool:
        """False once Chromium has gone."""
        return self._browser is not None and not self._lost and self._browser.is_connected()

    async def new_context(self, **options: Any) -> BrowserContext:
        """A fresh profile. Raises BrowserError if the browser has gone."""
        from playwright.async_api import Error

        try:
            context: BrowserContext = await self._browser.new_context(accept_downloads=False, **options)
        except Error as error:
            raise BrowserError(f"the browser is gone: {first_line(error)}") from None
        except Exception as error:
            if "Connection closed" not in str(error):
                raise
            self._lost = True  # the driver has gone; Playwright raises a plain Exception and does not note it
            raise BrowserError(f"the browser's driver is gone: {first_line(error)}") from None
        return context

    def on_close(self, callback: Callable[[], Awaitable[None]]) -> None:
        """Have something that goes with this browser closed when it ends."""
        self._stack.push_async_callback(callback)

    async def close(self) -> None:
        """End Chromium and its driver; a browser that does not answer is left to die with the driver."""
        if self._watching is not None:
            self._watching.cancel()
        if self._browser is not None:
            with contextlib.suppress(Exception):
                await asyncio.wait_for(self._browser.close(), 5)
            self._browser = None
        with contextlib.suppress(Exception):
            await asyncio.wait_for(self._stack.aclose(), 5)
        folder, self._folder = self._folder, None
        if folder is not None:
            await asyncio.to_thread(_remove, folder)

    async def __aenter__(self) -> Self:
        return await self.start()

    async def __aexit__(self, *exc: object) -> None:
        await self.close()


@contextlib.contextmanager
def _driver_processes(folder: Path, *, own_session: bool) -> Iterator[None]:
    """Patch how Playwright's driver starts, with `folder` its temporary directory: Playwright has no such options."""
    loop: Any = asyncio.get_running_loop()
    start = loop.subprocess_exec

    def start_driver(*args: Any, env: dict[str, str] | None = None, **options: Any) -> Any:
        # A page that opens and closes tabs quickly makes the driver reject a promise that nothing awaits, which
        # would end it and with it all environments.
        node_options = f"--unhandled-rejections=none --require {json.dumps(str(_KEEP_CACHE))}"
        ours = {"NODE_OPTIONS": node_options, "TMPDIR": str(folder)}
        environment = (os.environ.copy() if env is None else env) | ours
        return start(*args, env=environment, **options, start_new_session=own_session)

    loop.subprocess_exec = start_driver
    try:
        yield
    finally:
        vars(loop).pop("subprocess_exec", None)


def _processes(folder: Path) -> Iterator[tuple[psutil.Process, list[str]]]:
    """The processes of the browser with its profile in `folder`, each with its command line; its own comes first."""
    own: set[int] = set()
    for process in psutil.Process().children(recursive=True):
        with contextlib.suppress(psutil.Error):
            command = process.cmdline()
            if process.ppid() in own or any(word.startswith(f"--user-data-dir={folder}/") for word in command):
                own.add(process.pid)
                yield process, command


async def _end_large_renderers(folder: Path, limit_mb: int) -> None:
    """Kill, again and again, the page processes that take more memory."""
    while True:
        await asyncio.sleep(2)
        for process, command in await asyncio.to_thread(lambda: list(_processes(folder))):
            with contextlib.suppress(psutil.Error):
                if "--type=renderer" in command and process.memory_info().rss > limit_mb * 1_000_000:
                    logger.warning("a page used more than %d MB; its process was ended", limit_mb)
                    process.kill()


def _listening_port(folder: Path) -> int:
    """The port that Chromium chose (a port chosen for it might be taken by then); 0: none."""
    end = time.monotonic() + LAUNCH_TIMEOUT_S
    while time.monotonic() < end:
        for file in folder.glob("*/DevToolsActivePort"):
            port, _, path = file.read_text().partition("\n")
            if path:
                return int(port)
        for process, _ in _processes(folder):  # a snap's files are out of sight: it has a /tmp of its own
            with contextlib.suppress(psutil.Error):
                for connection in process.net_connections("tcp"):
                    if connection.status == psutil.CONN_LISTEN:
                        return int(connection.laddr.port)
        time.sleep(0.05)
    return 0


def remove_abandoned() -> None:
    """Remove what the browsers of processes that are no more have left in the temporary directory."""
    for folder in Path(tempfile.gettempdir()).glob(f"{_FOLDER}*"):
        pid = folder.name.removeprefix(_FOLDER).partition("-")[0]
        if pid.isdecimal() and not psutil.pid_exists(int(pid)):
            _remove(folder)


def _remove(folder: Path) -> None:
    # Processes of a browser that was killed may still write for a moment.
    for _ in range(20):
        shutil.rmtree(folder, ignore_errors=True)
        if not folder.exists():
            return
        time.sleep(0.1)
    logger.warning("%s: cannot be removed", folder)


def first_line(error: BaseException) -> str:
    """The first line of an error's text: Playwright appends whole call logs."""
    return (str(error).strip() or type(error).__name__).splitlines()[0]
