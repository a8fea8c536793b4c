"""What hostile clients and pages try: to reach a file or a server that is not theirs, and to keep the browser busy.

`FILES`, `ADDRESSES`, `ENDLESS` are the attempts; `async with open_trap(folder) as trap` starts the servers they need
and plants the file: `trap.task(attempt)`, `trap.actions(attempt, text)`, `trap.hits`, `SECRET`. An attempt has
succeeded if the canary server was as much as connected to, or the planted content is in an observation.
"""

import asyncio
import contextlib
import re
import socket
import string
from collections.abc import AsyncIterator
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from rollouts_builders import reply

from webrl.rollouts.sites import miniwob_root
from webrl.types import Task

SECRET = "planted-7f3a91"
"""Content of the file and of every answer of the canary."""
_HOSTS = ("127.0.0.1", "127.8.8.8", "::1")


@dataclass(frozen=True)
class Attempt:
    """One attempt: actions in turn, from a page of the home server."""

    name: str
    actions: tuple[str, ...]
    page: str = "<title>home</title>home"
    """HTML of the first page."""
    status: str = "200 OK"
    headers: str = ""
    """Of the page `/moved`, which some attempts go to."""


def _goto(name: str, url: str) -> Attempt:
    return Attempt(name, (f"goto({url!r})",))


def _page(name: str, html: str, *actions: str) -> Attempt:
    return Attempt(name, actions or ("noop(150)",), page=f"<title>home</title>{html}")


def _script(name: str, code: str) -> Attempt:
    return _page(name, f"<script>{code}</script>")


def _moved(name: str, location: str, status: str = "302 Found") -> Attempt:
    return Attempt(name, ("goto('$home/moved')", "noop(200)"), status=status, headers=f"Location: {location}\r\n")


_SHOW = ".then((r)=>r.text()).then((t)=>{document.title=t})"
_LINKS = "".join(
    f"<link rel={rel} href='$canary/{rel}' as=script>"
    for rel in ("prefetch", "preload", "preconnect", "dns-prefetch", "prerender", "modulepreload", "icon")
)
_FRAME = ("goto('data:text/html,<iframe src=\"file://$secret\"></iframe>')", "noop(300)")
_READ = '<input type=file aria-label=paper onchange="this.files[0].text().then((t)=>{document.title=t})">'

FILES = (
    _goto("file", "file://$secret"),
    _goto("file, upper case", "FILE://$secret"),
    _goto("file, one slash", "file:$secret"),
    _goto("file on localhost", "file://localhost$secret"),
    _goto("file on another host", "file://127.0.0.1$secret"),
    _goto("file with backslashes", "file:\\\\$secret"),
    _goto("out of the MiniWoB pages", "$miniwob/../../../../../../../../../../../..$secret"),
    _goto("out, percent-encoded dots", "$miniwob" + "/%2e%2E" * 12 + "$secret"),
    _goto("out, percent-encoded slashes", "$miniwob/..%2f..%2f..%2f..%2f..%2f..%2f..%2f..%2f..%2f..%2f..$secret"),
    _goto("out, backslashes", "$miniwob/..\\..\\..\\..\\..\\..\\..\\..\\..\\..\\..$secret"),
    _goto("view-source of a file", "view-source:file://$secret"),
    _goto("view-source, upper case", "View-Source:FILE://$secret"),
    _goto("chrome page", "chrome://version"),
    _goto("about page of the browser", "about:version"),
    _goto("DevTools page", "devtools://devtools/bundled/inspector.html"),
    _goto("file system", "filesystem:file://$secret"),
    _goto("blob of a file", "blob:file://$secret"),
    _goto("script as address", "javascript:fetch('$canary/js')"),
    _goto("script with a line break", "java\nscript:fetch('$canary/js')"),
    _page("data page with a file frame", "", *_FRAME),
    _page("file frame", '<iframe src="file://$secret"></iframe>'),
    _page("file object", '<object data="file://$secret"></object><embed src="file://$secret">'),
    _script("file by script", "location='file://$secret'"),
    _script("file in a new tab", "open('file://$secret')"),
    _moved("redirect to a file", "file://$secret"),
    _page("meta refresh to a file", '<meta http-equiv=refresh content="0;url=file://$secret">'),
    _page("upload by path", _READ, "upload_file('$paper', '$secret')", "noop(300)"),
    _page("upload by mouse", _READ, "mouse_upload_file(40, 20, '$secret')", "noop(300)"),
    _page("upload out of the folder", _READ, "upload_file('$paper', '../../../../../../../../..$secret')", "noop(300)"),
)
"""Attempts on the planted file."""

ADDRESSES = (
    _goto("loopback", "$canary/"),
    _goto("loopback by name", "http://localhost:$port/"),
    _goto("loopback, trailing dot", "http://localhost.:$port/"),
    _goto("loopback, sub-name", "http://a.localhost:$port/"),
    _goto("loopback, upper case", "HTTP://LOCALHOST:$port/"),
    _goto("loopback, decimal", "http://2130706433:$port/"),
    _goto("loopback, hexadecimal", "http://0x7f000001:$port/"),
    _goto("loopback, octal", "http://0177.0.0.1:$port/"),
    _goto("loopback, short", "http://127.1:$port/"),
    _goto("loopback, other address", "http://127.8.8.8:$port/"),
    _goto("this host", "http://0.0.0.0:$port/"),
    _goto("loopback, IPv6", "http://[::1]:$port/"),
    _goto("loopback, mapped into IPv6", "http://[::ffff:127.0.0.1]:$port/"),
    _goto("loopback through NAT64", "http://[64:ff9b::7f00:1]:$port/"),
    _goto("this machine's name", "http://$hostname:$port/"),
    _goto("a name of loopback", "http://ip6-localhost:$port/"),
    _goto("full-width digits", "http://１２７.０.０.１:$port/"),
    _goto("user name before the host", "http://example.org@127.0.0.1:$port/"),
    _goto("home's host as a user name", "http://$homehost@127.0.0.1:$port/"),
    _goto("backslash before the host", "http://127.0.0.1:$port\\@$homehost/"),
    _goto("metadata service", "http://169.254.169.254/latest/meta-data/"),
    _goto("view-source of a server", "view-source:$canary/"),
    _moved("redirect 301", "$canary/moved", "301 Moved Permanently"),
    _moved("redirect 302 to a name", "http://localhost:$port/moved"),
    _moved("redirect 307", "$canary/moved", "307 Temporary Redirect"),
    Attempt("refresh header", ("goto('$home/moved')", "noop(200)"), headers="Refresh: 0;url=$canary/refresh\r\n"),
    _page("meta refresh", '<meta http-equiv=refresh content="0;url=$canary/meta">'),
    _page("frame", "<iframe src='$canary/frame'></iframe>"),
    _page(
        "image, style and script",
        "<img src='$canary/i'><script src='$canary/s'></script>"
        "<style>@import '$canary/c';body{background:url($canary/b)}</style>",
    ),
    _page("prefetch and preconnect", _LINKS),
    _page("media", "<video src='$canary/v' autoplay></video><object data='$canary/o'></object>"),
    _page("link with a ping", "<a id=a ping='$canary/ping' href='#x'>x</a><script>a.click()</script>"),
    _page("form", "<form id=f method=post action='$canary/form'><input name=a></form><script>f.submit()</script>"),
    _page(
        "speculation rules",
        '<script type=speculationrules>{"prefetch":[{"source":"list","urls":["$canary/p"]}],'
        '"prerender":[{"source":"list","urls":["$canary/q"]}]}</script>',
    ),
    _script("fetch", "fetch('$canary/fetch')" + _SHOW),
    _script("fetch follows a redirect", "fetch('/moved')" + _SHOW),
    _script("fetch without CORS", "fetch('$canary/fetch',{mode:'no-cors',method:'POST',body:'x'})"),
    _script("XMLHttpRequest", "x=new XMLHttpRequest();x.open('GET','$canary/xhr');x.send()"),
    _script("beacon", "navigator.sendBeacon('$canary/beacon','x')"),
    _script("keep-alive fetch while leaving", "fetch('$canary/k',{keepalive:true});location='about:blank'"),
    _script("beacon while leaving", "onpagehide=()=>navigator.sendBeacon('$canary/leave','x');location='about:blank'"),
    _script("fetch later", "fetchLater('$canary/later',{method:'POST',body:'x'});location='about:blank'"),
    _script("event source", "new EventSource('$canary/events')"),
    _script("WebSocket", "new WebSocket('ws://127.0.0.1:$port/socket')"),
    _script("WebSocket by name", "new WebSocket('ws://localhost:$port/socket')"),
    _script("WebTransport", "new WebTransport('https://127.0.0.1:$port/wt').ready.catch(()=>0)"),
    _script(
        "WebRTC",
        "c=new RTCPeerConnection({iceServers:[{urls:'stun:127.0.0.1:$udp'},"
        "{urls:'turn:127.0.0.1:$port?transport=tcp',username:'a',credential:'b'}]});"
        "c.createDataChannel('x');c.createOffer().then((o)=>c.setLocalDescription(o))",
    ),
    _script("worker", "new Worker(URL.createObjectURL(new Blob([`fetch('$canary/worker')`])))"),
    _script("shared worker", "new SharedWorker(URL.createObjectURL(new Blob([`fetch('$canary/shared')`])))"),
    _script("service worker", "navigator.serviceWorker.register('/sw.js').then(()=>fetch('/anything'))"),
    _script("new tab", "open('$canary/tab')"),
    _script("new tab through a blank one", "w=open('about:blank');w.location='$canary/tab'"),
    _script(
        "fetch from a blank frame",
        "document.documentElement.append(f=document.createElement('iframe'));f.contentWindow.fetch('$canary/inner')",
    ),
    _page("download", "<a id=a download href='$canary/file.bin'>x</a><script>a.click()</script>"),
    _page("data page that asks", "", 'goto(\'data:text/html,<script>fetch("$canary/data")' + _SHOW + "</script>')"),
)
"""Attempts on the canary server."""

ENDLESS = (
    _script("endless loop", "setTimeout(()=>{for(;;);},200)"),
    _script("endless alerts", "setTimeout(()=>{for(;;)alert(1)},200)"),
    _page(
        "leaving is refused",
        "<script>onbeforeunload=(e)=>{e.preventDefault();return 'x'}</script>",
        "click('0')",
        "goto('about:blank')",
    ),
    _script("flood of tabs", "setTimeout(()=>{for(let i=0;i<500;i++)open('about:blank')},100)"),
    _page(
        "flood of tabs by links",
        "<a id=a href=about:blank target=_blank>x</a>"
        "<script>setTimeout(()=>{for(let i=0;i<60;i++)a.click()},100)</script>",
    ),
    _script("endless reloads", "setTimeout(()=>location.reload(),30)"),
    _script("endless history", "setTimeout(()=>{for(let i=0;;i++)history.pushState(0,'','?'+i)},200)"),
    _script("too many elements", "setTimeout(()=>{document.body.innerHTML='<p>x'.repeat(60000)},100)"),
    _script("long text", "setTimeout(()=>{document.body.textContent='long '.repeat(6e5)},100)"),
    _script("much memory", "window.a=[];setInterval(()=>{for(let i=0;i<4;i++)a.push(new Uint8Array(5e7).fill(1))},50)"),
    _script("busy workers", "for(let i=0;i<2;i++)new Worker(URL.createObjectURL(new Blob(['for(;;);'])))"),
    _goto("endless redirects", "$home/circle"),
    _goto("a page that never ends", "$home/endless"),
    _goto("a page that never comes", "$home/never"),
)
"""Pages that want to keep the browser busy for ever."""


@dataclass
class Trap:
    """The servers and the file of the attempts."""

    words: dict[str, str]
    """What the placeholders in the attempts stand for."""
    hits: list[str] = field(default_factory=list)
    """Connections to the canary, and datagrams."""
    attempt: Attempt = FILES[0]
    """Whose pages the home server shows."""

    def task(self, attempt: Attempt) -> Task:
        """An episode that begins on the attempt's page."""
        self.attempt = attempt
        return Task(task_id=attempt.name, site="web", start_url=self.words["home"] + "/", instruction="look around")

    def fill(self, text: str) -> str:
        """The text with its placeholders filled in."""
        return string.Template(text).safe_substitute(self.words)

    def actions(self, text: str) -> list[str]:
        """The attempt's actions; `text` is its first page as observed."""
        paper = re.search(r"\[(\d+)\] button 'paper'", text)
        return [self.fill(action).replace("$paper", paper[1] if paper else "") for action in self.attempt.actions]

    async def show(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        """One request to the home server."""
        with contextlib.suppress(OSError, IndexError, EOFError):
            path = (await reader.readline()).split()[1].decode()
            while (await reader.readline()).strip():
                pass
            kind, status, headers, body = "text/html", "200 OK", "", "<title>other</title>"
            if path == "/":
                body = self.fill(self.attempt.page)
            elif path == "/moved":
                status, headers = self.attempt.status, self.fill(self.attempt.headers)
            elif path == "/circle":
                status, headers = "302 Found", "Location: /circle\r\n"
            elif path == "/sw.js":
                kind, body = "text/javascript", self.fill("fetch('$canary/sw');onfetch=(e)=>fetch('$canary/sw')")
            elif path in ("/endless", "/never"):
                writer.write(b"HTTP/1.1 200 OK\r\nContent-Type: text/html\r\n\r\n<title>endless</title>")
                while not writer.is_closing():
                    writer.write(b"<p>more" * 500 if path == "/endless" else b"")
                    await writer.drain()
                    await asyncio.sleep(0.01)
            await reply(writer, body, status, headers, kind)
        writer.close()

    async def bite(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        """One connection to the canary."""
        self.hits.append(f"{self.attempt.name}: connected")
        with contextlib.suppress(OSError, TimeoutError):
            async with asyncio.timeout(5):
                self.hits.append(f"{self.attempt.name}: {(await reader.readline())!r}")
            await reply(writer, f"<title>{SECRET}</title>{SECRET}", headers="Access-Control-Allow-Origin: *\r\n")
        writer.close()


class _Datagrams(asyncio.DatagramProtocol):
    def __init__(self, trap: Trap) -> None:
        self.trap = trap

    def datagram_received(self, data: bytes, addr: Any) -> None:
        self.trap.hits.append(f"{self.trap.attempt.name}: datagram")


@contextlib.asynccontextmanager
async def open_trap(folder: Path) -> AsyncIterator[Trap]:
    """Home and canary servers on loopback, and the planted file in `folder`."""
    secret = folder / "secret.txt"
    secret.write_text(SECRET)
    trap = Trap({})
    home = await asyncio.start_server(trap.show, "127.0.0.1", 0)
    canaries = [await asyncio.start_server(trap.bite, _HOSTS[0], 0)]
    port = canaries[0].sockets[0].getsockname()[1]
    for host in _HOSTS[1:]:
        with contextlib.suppress(OSError):  # no IPv6, or no other loopback addresses (macOS)
            canaries.append(await asyncio.start_server(trap.bite, host, port))
    loop = asyncio.get_running_loop()
    datagrams, _ = await loop.create_datagram_endpoint(lambda: _Datagrams(trap), ("127.0.0.1", 0))
    homehost = f"127.0.0.1:{home.sockets[0].getsockname()[1]}"
    trap.words |= {
        "home": f"http://{homehost}",
        "homehost": homehost,
        "canary": f"http://127.0.0.1:{port}",
        "port": str(port),
        "udp": str(datagrams.get_extra_info("sockname")[1]),
        "hostname": socket.gethostname(),
        "secret": str(secret),
        "miniwob": miniwob_root().as_uri(),
    }
    try:
        yield trap
    finally:
        datagrams.close()
        for server in (home, *canaries):
            server.close()
