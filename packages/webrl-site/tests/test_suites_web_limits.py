"""Limits on requests: what a read-only or partly forbidden site is asked, whichever way a page tries."""

import asyncio
import contextlib
from urllib.parse import urlsplit

import pytest
from browsers import run, shared_browser
from rollouts_builders import reply

from webrl.rollouts.guard import NavigationGuard
from webrl_site.env import limits_of
from webrl_site.settings import WebConfig

READ_ONLY = limits_of(WebConfig(read_only=True))
WORKER = "onmessage = (e) => fetch(e.data, {method: 'POST', body: 'x'}).catch(() => 0).then(() => postMessage('over'))"
TRIES = {
    "form": "document.body.innerHTML = '<form method=post action=/got></form>'; document.forms[0].submit()",
    "fetch": "fetch('/got', {method: 'POST', body: 'x'}).catch(() => 0)",
    "delete": "fetch('/got', {method: 'DELETE'}).catch(() => 0)",
    "kept alive": "fetch('/got', {method: 'PUT', body: 'x', keepalive: true}).catch(() => 0)",
    "beacon": "navigator.sendBeacon('/got', 'x')",
    "past its page": "addEventListener('pagehide', () => fetch('/got', {method: 'PUT', body: 'x', keepalive: true}));"
    "location.href = '/other'",
    "beacon past its page": "addEventListener('pagehide', () => navigator.sendBeacon('/got', 'x'));"
    "location.href = '/other'",
    "later": "fetchLater('/got', {method: 'POST', body: 'x'}); location.href = '/other'",
    "XMLHttpRequest": "const r = new XMLHttpRequest(); r.open('POST', '/got'); r.send('x')",
    "ping of a link": "document.body.innerHTML = '<a href=#x ping=/got>a</a>'; document.links[0].click()",
    "worker": f"const w = new Worker(URL.createObjectURL(new Blob([`{WORKER}`])));"
    "new Promise((over) => { w.onmessage = over; w.postMessage(location.origin + '/got'); })",
    "shared worker": "const s = new SharedWorker(URL.createObjectURL(new Blob(["
    "`onconnect = (c) => { const p = c.ports[0]; p.onmessage = (e) => fetch(e.data, {method: 'POST'})"
    ".catch(() => 0).then(() => p.postMessage('over')) }`])));"
    "new Promise((over) => { s.port.onmessage = over; s.port.postMessage(location.origin + '/got'); })",
    "service worker": "navigator.serviceWorker.register('/worker.js')"
    ".then(() => new Promise((over) => navigator.serviceWorker.oncontrollerchange = over))"
    ".then(() => fetch('/got')).catch(() => 0)",
    "service worker by another name": "ServiceWorkerContainer.prototype.register.call(navigator.serviceWorker, "
    "'/worker.js').then(() => new Promise((over) => navigator.serviceWorker.oncontrollerchange = over))"
    ".then(() => fetch('/got')).catch(() => 0)",
    "frame": "const f = document.createElement('iframe'); document.body.append(f);"
    "f.contentWindow.fetch(location.origin + '/got', {method: 'POST'}).catch(() => 0)",
    "socket": "new WebSocket('ws://' + location.host + '/got')",
    "socket of a frame": "const f = document.createElement('iframe'); document.body.append(f);"
    "new f.contentWindow.WebSocket('ws://' + location.host + '/got')",
    "socket of a worker": "new Worker(URL.createObjectURL(new Blob(["
    "`new WebSocket('ws://' + '${location.host}' + '/got')`])))",
}
ABSENT = (
    *("service worker", "service worker by another name", "socket", "socket of a frame"),
    *("beacon", "past its page", "beacon past its page", "later"),
)
"""What read-only pages do not have, so that nothing is blocked."""
WITHOUT_PROXY = (
    *("form", "kept alive", "worker", "service worker", "service worker by another name", "socket of a frame"),
    *("past its page", "beacon past its page", "later"),
)
"""What the browser alone holds back, as inside of TLS."""
QUICK = ("form", "shared worker", "service worker by another name", "socket of a worker")
SERVICE_WORKER = "onactivate = (e) => e.waitUntil(clients.claim());"
SERVICE_WORKER += "onfetch = (e) => e.respondWith(fetch(e.request.url, {method: 'POST', body: 'x'}))"


@contextlib.asynccontextmanager
async def site(*, whole=False):
    """A server that notes (method, path) of all requests, `whole` paths with queries; `/jump` goes to `/private/x`."""
    asked = []

    async def answer(reader, writer):
        with contextlib.suppress(ConnectionError, ValueError, IndexError):
            method, path, _ = (await reader.readline()).decode().split(" ")
            headers = b""
            while (line := await reader.readline()).strip():
                headers += line.lower()
            asked.append(
                ("SOCKET" if b"upgrade: websocket" in headers else method, path if whole else urlsplit(path).path)
            )
            if path == "/jump":
                await reply(writer, "", "302 Found", "Location: /private/x\r\n")
            elif path == "/worker.js":
                await reply(writer, SERVICE_WORKER, headers="Content-Type: text/javascript\r\n")
            else:
                await reply(writer, f"<title>{path}</title><body>here")
        writer.close()

    server = await asyncio.start_server(answer, "127.0.0.1", 0)
    try:
        yield f"http://127.0.0.1:{server.sockets[0].getsockname()[1]}", asked
    finally:
        server.close()


def attempt(script, limits, *, behind_proxy=True, stays=False, until=lambda asked, guard: True):
    """What the site is asked when a page of it runs a script, up to 30 s `until` something; the guard; and the title.

    Only a page that `stays` can be asked for its title: another may be leaving at that moment.
    """

    async def work():
        async with site() as (url, asked), shared_browser() as browser:
            guard = NavigationGuard([urlsplit(url).netloc], limits=limits)
            options = await guard.open()
            if not behind_proxy:  # as inside of TLS, where a proxy sees nothing
                options.pop("proxy")
            context = await browser.new_context(**options)
            await guard.attach(context)
            page = await context.new_page()
            await page.goto(url)
            with contextlib.suppress(Exception):
                await asyncio.wait_for(page.evaluate(f"(async () => {{ await eval({script!r}) }})()"), 1.5)
            await asyncio.sleep(0.3)
            for _ in range(300):  # a worker may take its time to start, and a page that was left to send
                if until(asked, guard):
                    break
                await asyncio.sleep(0.1)
            title = await page.title() if stays else None
            await context.close()
            await guard.close()
            return asked, guard, title

    return run(work())


@pytest.mark.browser
@pytest.mark.parametrize(
    ("way", "behind_proxy"),
    [
        *(pytest.param(w, True, marks=[] if w in QUICK else pytest.mark.slow) for w in TRIES),
        *((way, False) for way in WITHOUT_PROXY),
    ],
)
def test_nothing_but_reading_reaches_a_read_only_site(way, behind_proxy):
    tries = behind_proxy and way not in ABSENT
    found = {"behind_proxy": behind_proxy, "until": lambda _, guard: guard.blocked or not tries}
    asked, guard, _ = attempt(TRIES[way], READ_ONLY, **found)
    assert {method for method, _ in asked} == {"GET"}, asked
    assert guard.blocked or not tries


@pytest.mark.browser
def test_a_page_hears_that_its_service_worker_is_refused():
    script = "await navigator.serviceWorker.register('/worker.js').catch((e) => { document.title = e.name })"
    asked, _, title = attempt(
        f"(async () => {{ {script} }})()", limits_of(WebConfig(forbidden_urls=["/x"])), stays=True
    )
    assert title == "SecurityError"
    assert ("GET", "/worker.js") not in asked


def sent(asked):
    """Whether a site was asked for more than pages."""
    return {method for method, _ in asked} & {"POST", "PUT", "SOCKET"}


@pytest.mark.browser
@pytest.mark.slow
@pytest.mark.parametrize(
    "way", ["form", "beacon", "past its page", "beacon past its page", "frame", "socket", "service worker"]
)
def test_without_limits_the_same_pages_do_send(way):
    """The attempts are attempts."""
    asked, guard, _ = attempt(TRIES[way], None, until=lambda asked, _: sent(asked))
    assert sent(asked), asked
    assert not guard.blocked


@pytest.mark.browser
@pytest.mark.parametrize("send", ["fetch(to, {method: 'PUT', body: 'x', keepalive: true})", "navigator.sendBeacon(to)"])
def test_what_pages_send_as_they_are_left_arrives(send):
    """With Chromium's `KeepAliveInBrowserMigration` it is lost behind a guard's routes; to other sites, too."""
    script = f"addEventListener('pagehide', () => {{ const to = '/got/' + location.search; {send} }})"
    leaves = [f"/got/?{number}" for number in range(10)]

    async def work():
        async with site(whole=True) as (url, asked), shared_browser() as browser:
            other = url.replace("127.0.0.1", "localhost")
            guard = NavigationGuard([urlsplit(url).netloc, urlsplit(other).netloc])
            context = await browser.new_context(**await guard.open())
            await guard.attach(context)
            await context.add_init_script(script)
            page = await context.new_page()
            for number in range(11):
                await page.goto(f"{other if number in (4, 5, 7) else url}/?{number}")
            for _ in range(200):
                arrived = sorted({path for method, path in asked if method != "GET"} & set(leaves))
                if arrived == leaves:
                    break
                await asyncio.sleep(0.05)
            await context.close()
            await guard.close()
            return arrived

    assert run(work()) == leaves


@pytest.mark.browser
def test_a_page_that_would_have_been_left_by_a_blocked_request_stays():
    _, guard, title = attempt(TRIES["form"], READ_ONLY, stays=True)
    assert title == "/"
    assert guard.reason == "this site may only be read, and this would send a POST request"


@pytest.mark.browser
def test_a_program_that_may_only_read_finds_a_socket_s_server_down_and_goes_on():
    """JupyterLab and Node-RED stay empty without a `WebSocket`."""
    script = """new Promise((over) => {
      const socket = new WebSocket('/got');
      socket.onerror = () => { document.title = `${socket.url.split(':')[0]} error`; };
      socket.addEventListener('close', (e) => { document.title += ` ${e.code} ${socket.readyState}`; over(); });
    })"""
    asked, _, title = attempt(script, READ_ONLY, stays=True)
    assert title == "ws error 1006 3"
    assert {method for method, _ in asked} == {"GET"}, asked


@pytest.mark.browser
@pytest.mark.parametrize("way", ["location.href = '/private/x'", "fetch('/private/x')", "location.href = '/jump'"])
def test_forbidden_addresses_are_not_asked(way):
    forbidden = limits_of(WebConfig(forbidden_urls=["/private/"]))
    asked, guard, _ = attempt(way, forbidden, until=lambda _, guard: guard.blocked)
    assert "/private/x" not in {path for _, path in asked}
    assert guard.blocked
    assert "'/private/'" in guard.reason


@pytest.mark.browser
@pytest.mark.parametrize(
    ("method", "script"), [("SOCKET", TRIES["socket"]), ("POST", "fetch('/got', {method: 'POST'})")]
)
def test_what_is_not_forbidden_is_sent(method, script):
    asked, guard, _ = attempt(script, limits_of(WebConfig(forbidden_urls=["/private/"])))
    assert (method, "/got") in asked
    assert not guard.blocked


def test_a_refused_connection_is_counted_and_not_laid_at_the_agent_s_door():
    """A browser with windows connects to its maker by itself."""

    async def connect():
        guard = NavigationGuard(["a.example"], limits=READ_ONLY)
        port = urlsplit((await guard.open())["proxy"]["server"]).port
        reader, writer = await asyncio.open_connection("127.0.0.1", port)
        writer.write(b"CONNECT maker.example:443 HTTP/1.1\r\n\r\n")
        answer = await reader.read()
        writer.close()
        await guard.close()
        return answer, guard

    answer, guard = asyncio.run(connect())
    assert b"403" in answer
    assert (guard.blocked, guard.reason) == (1, "")


@pytest.mark.browser
def test_a_page_inside_of_tls_passes_and_a_socket_inside_of_tls_does_not():
    """What a server behind TLS would be sent first, in the clear: who opens the connection shows there."""

    async def work(script, limits, seconds):
        reached, sent = [], asyncio.Event()

        async def answer(reader, writer):
            reached.append(await reader.read(1 << 16))
            if reached[-1]:
                sent.set()
            writer.close()

        async with site() as (url, _), shared_browser() as browser:
            server = await asyncio.start_server(answer, "127.0.0.1", 0)
            there = f"127.0.0.1:{server.sockets[0].getsockname()[1]}"
            guard = NavigationGuard([urlsplit(url).netloc, there], limits=limits)
            context = await browser.new_context(**await guard.open())
            await guard.attach(context)
            page = await context.new_page()
            await page.goto(url)
            await page.evaluate(
                f"new Worker(URL.createObjectURL(new Blob([`{script.replace('THERE', there)}`]))).onmessage"
            )
            with contextlib.suppress(TimeoutError):
                await asyncio.wait_for(sent.wait(), seconds)
            await context.close()
            await guard.close()
            server.close()
        return [data[:1] for data in reached], guard.blocked

    socket, fetch = "new WebSocket('wss://THERE/')", "fetch('https://THERE/', {mode: 'no-cors'}).catch(() => 0)"
    sent, blocked = run(work(socket, READ_ONLY, 0.7))
    assert set(sent) <= {b""}
    assert blocked
    for passes, limits in ((fetch, READ_ONLY), (socket, None)):
        sent, _ = run(work(passes, limits, 20))
        assert set(sent) - {b""} == {b"\x16"}, "nothing comes by what browsers open in advance and close unused"


def test_an_address_is_forbidden_however_it_is_written():
    limits = limits_of(WebConfig(forbidden_urls=["(?i)log-?out"]))
    for path in ("/logout", "/log%6Fut", "/LOG%2dOUT"):
        assert "are not to be opened here" in (limits.refusal("GET", f"http://a.example{path}") or "")
    assert limits.refusal("GET", "http://a.example/blog%20about") is None
