"""The guard: what hostile pages and agents try reaches neither a file nor a server, and the browser outlives it."""

import asyncio
import contextlib
import re

import pytest
from hostile_attempts import ADDRESSES, ENDLESS, FILES, SECRET, open_trap
from rollouts_builders import bid_of, miniwob

from webrl.config import RolloutConfig
from webrl.errors import BrowserError
from webrl.rollouts.browser import Browser
from webrl.rollouts.env import MAX_TABS, BrowserEnv
from webrl.rollouts.guard import NavigationGuard, is_public
from webrl.rollouts.sites import miniwob_root

ROOT = miniwob_root().as_uri()


@pytest.fixture(scope="module")
def world(tmp_path_factory):
    """A loop, a browser and the trap's servers, for all tests of this file."""
    with asyncio.Runner() as runner:
        stack = contextlib.AsyncExitStack()

        async def start():
            browser = await stack.enter_async_context(Browser(max_page_mb=1000))
            return browser, await stack.enter_async_context(open_trap(tmp_path_factory.mktemp("trap")))

        browser, trap = runner.run(start())
        yield runner.run, browser, trap
        runner.run(stack.aclose())


def attack(world, attempt, *, then_play=False, **settings):
    """Play an attempt, then perhaps an ordinary episode in the same environment; gives the answers to the attempt."""
    run, browser, trap = world

    async def play():
        # `*` is the most that a server can allow; the home server is named because it is on loopback.
        hosts = ("*", trap.words["homehost"])
        env = BrowserEnv(browser, RolloutConfig(**({"allowed_hosts": hosts, "step_timeout_s": 20} | settings)))
        trap.hits.clear()
        results = []
        try:
            with contextlib.suppress(BrowserError):
                text = (await env.reset(trap.task(attempt))).text
                for action in trap.actions(text):
                    results.append(await env.step(action))
                    assert len(env.context.pages) <= MAX_TABS + 1
            if then_play:
                ordinary = await reset_as_collect_does(env)
                last = await env.step(f"click('{bid_of(ordinary.text, 'button', 'no')}')")
                assert last.reward == 1.0
        finally:
            await env.close()
        return results

    return run(play())


async def reset_as_collect_does(env):
    """An ordinary page; on a busy machine, as in a rollout, the short deadline may pass once or twice before."""
    for _ in range(RolloutConfig().max_retries):
        with contextlib.suppress(BrowserError):
            return await env.reset(miniwob("click-button"))
    return await env.reset(miniwob("click-button"))


QUICK = (
    *("file", "out of the MiniWoB pages", "data page with a file frame", "redirect to a file"),
    *("upload out of the folder", "loopback", "loopback, mapped into IPv6", "a name of loopback"),
    *("redirect 302 to a name", "frame", "fetch", "WebSocket", "new tab", "download", "endless loop"),
    "endless alerts",
)
"""One attempt of each way; the others are slow tests."""


def each(attempts):
    """Attempts as parameters."""
    return [pytest.param(a, id=a.name, marks=[] if a.name in QUICK else pytest.mark.slow) for a in attempts]


@pytest.mark.browser
@pytest.mark.parametrize("attempt", each([*FILES, *ADDRESSES]))
def test_nothing_is_reached(world, attempt):
    results = attack(world, attempt)
    assert world[2].hits == []
    assert results
    assert not any(SECRET in result.observation.text + result.observation.url for result in results)


CUT = {
    "too many elements": "Not shown: more than 50000 elements",
    "long text": r"Cut: the page has 30000\d\d characters\.'$",
}


@pytest.mark.browser
@pytest.mark.parametrize("attempt", each(ENDLESS))
def test_no_page_keeps_the_environment(world, attempt):
    # these leave a browser busy, which the ordinary episode after them has to wait for on two shared cores
    lasting = attempt.name in ("endless history", *CUT)
    results = attack(world, attempt, then_play=True, step_timeout_s=60 if lasting else 4)
    if attempt.name in CUT:
        assert re.search(CUT[attempt.name], results[-1].observation.text)


@pytest.mark.browser
def test_a_frame_that_the_browser_refuses_does_not_hold_the_step_up(world):
    attempt = next(a for a in FILES if a.name == "data page with a file frame")
    assert [r.error for r in attack(world, attempt, step_timeout_s=10)] == ["", ""]


OUTSIDE = (
    *(f"{ROOT}/{up}etc/passwd" for up in ("../../", "%2e%2e/", "a/..%2f", "a/..%5c", "a\\..\\", "%2E./")),
    *("file:///etc/passwd", "FILE:///etc/passwd", "file:/etc/passwd", f"file://host{ROOT[7:]}/x", "file:etc"),
    *("view-source:http://ok.example/", "chrome://version", "about:version", "filesystem:http://ok.example/x"),
    *("javascript:1", "java\nscript:1", "jav\tascript:1", "devtools://x", "ftp://ok.example/", "", "ok.example"),
    *("http://ok.example@evil.example/", "http://evil.example\\@ok.example/", "http://ok.example.evil.example/"),
    *("http://ok.example./", "http://OK.example:81@evil.example", "http://%6fk.example/", "http://[::1", "http://"),
    *("http://port.example/", "http://port.example:81/", "https://web.example/", "ws://ok.example/"),
)
INSIDE = (
    *(f"{ROOT}/miniwob/click-test.html", f"{ROOT}/miniwob/click-test.html?from=../x#..", "about:blank"),
    *("data:text/html,x", "http://ok.example", "http://OK.example:81/a?b#c", "https://ok.example/../x"),
    *("http://port.example:8080/x", "http://web.example/", "http://web.example:80/", " http://ok.example/a b"),
)
STAR = ("https://any.example/", "file:///etc/passwd", "chrome://version", "ftp://any.example/")


@pytest.mark.parametrize(
    ("host", "url", "allowed"),
    [
        *(("ok.example", url, url in INSIDE) for url in (*OUTSIDE, *INSIDE)),
        *(("*", url, url.startswith("https")) for url in STAR),
    ],
)
def test_addresses_within_the_rule_alone_are_allowed(host, url, allowed):
    assert NavigationGuard([host, "port.example:8080", "web.example:80"]).allows(url) is allowed


@pytest.mark.parametrize(
    ("address", "public"),
    [
        *((a, True) for a in ("8.8.8.8", "1.1.1.1", "2606:4700::1111", "::ffff:8.8.8.8", "64:ff9b::808:808")),
        *((a, False) for a in ("127.0.0.1", "10.0.0.1", "192.168.1.1", "172.16.0.1", "169.254.169.254", "0.0.0.0")),
        *((a, False) for a in ("100.64.0.1", "224.0.0.1", "255.255.255.255", "::1", "::", "fe80::1%eth0", "fd00::1")),
        *((a, False) for a in ("::ffff:10.0.0.1", "64:ff9b::7f00:1", "2002:7f00:1::", "ff02::1", "198.18.0.1")),
    ],
)
def test_internal_addresses_are_told_from_public_ones(address, public):
    assert is_public(address) is public
