"""What the pages of an environment may reach: one rule for navigation, frames, requests, sockets and new tabs.

API: `guard = NavigationGuard(hosts, public_hosts)`; `await guard.open()` gives the options of a browser context that
is held to it, `await guard.attach(context)`, `guard.allows(url)`, `guard.blocked`, `await guard.close()`.

Two layers hold it. Chromium's own requests go through a proxy of ours (`webrl/rollouts/egress.py`) unless their host
and port are named (and nothing is routed): nothing on the network is reached past it, redirects, WebSockets and workers
included. Schemes that are not the network's (`file:`, `chrome:`, `view-source:`, …) are refused where the browser asks
before each request.
`Limits` are held in both: no requests that would change a site, no addresses that are not to be opened.
"""

from __future__ import annotations

import contextlib
import logging
import re
from collections.abc import Iterable, Mapping
from typing import TYPE_CHECKING, Any
from urllib.parse import urlsplit

from webrl.rollouts.egress import Admission, Egress
from webrl.rollouts.limits import NO_LIMITS, Limits
from webrl.rollouts.miniwob import miniwob_root

if TYPE_CHECKING:
    from playwright.async_api import BrowserContext, Route

logger = logging.getLogger(__name__)

# Beside a port of its own a loopback host without a port would admit the browser's DevTools.
_LOOPBACK = re.compile(r"localhost|.*\.localhost|127\.[0-9.]+|0\.0\.0\.0|\[::1?\]")
_PLAIN_SCHEMES = r"about:(blank|srcdoc)([?#]|$)|data:|blob:"
_ONLY_READS = """
for (const name of ['WebSocketStream', 'WebTransport', 'fetchLater']) delete globalThis[name];
globalThis.WebSocket = class WebSocket extends EventTarget {
  static CONNECTING = 0; static OPEN = 1; static CLOSING = 2; static CLOSED = 3;
  CONNECTING = 0; OPEN = 1; CLOSING = 2; CLOSED = 3;
  readyState = 0; bufferedAmount = 0; binaryType = 'blob'; extensions = ''; protocol = '';
  onopen = null; onmessage = null; onerror = null; onclose = null;
  constructor(url) {
    super();
    this.url = new URL(url, document.baseURI).href.replace(/^http/, 'ws');
    if (globalThis.__webrl) __webrl.refusedSocket = this.url.split('?')[0];
    for (const type of ['error', 'close']) this.addEventListener(type, (event) => this[`on${type}`]?.(event));
    setTimeout(() => {
      this.readyState = 3;
      this.dispatchEvent(new Event('error'));
      this.dispatchEvent(new CloseEvent('close', { code: 1006 }));
    }, 0);
  }
  send() { if (!this.readyState) throw new DOMException('Still in CONNECTING state.', 'InvalidStateError'); }
  close() {}
};
Navigator.prototype.sendBeacon = () => false;
((fetch, { send } = XMLHttpRequest.prototype) => {
  let left = false;
  addEventListener('pagehide', () => { left = true; }, true);
  addEventListener('pageshow', () => { left = false; }, true);
  globalThis.fetch = (input, init) => {
    if (left) return Promise.reject(new TypeError('Failed to fetch'));
    return init?.keepalive ?? input?.keepalive ? fetch(input, { ...init, keepalive: false }) : fetch(input, init);
  };
  XMLHttpRequest.prototype.send = function (...body) { if (!left) send.apply(this, body); };
})(fetch);
"""
"""Of sockets and what outlives its page the browser does not ask: pages have none of it, and one that is left asks for
nothing. Programs that live on a socket (JupyterLab, Node-RED) find its server down, and go on."""
_DEFAULT_PORTS = {"80": "http", "443": "https"}


class NavigationGuard:
    """Blocks and counts what is outside an allow-list.

    Always allowed: `about:blank`, `data:`, `blob:` and the MiniWoB pages' own files. Hosts are compared exactly;
    `example.org:8080` allows one port only, `example.org` all of them. A named host may have any address; `*` allows
    every host that has none but public ones, and so does an entry of `public_hosts`, which counts before `hosts`.
    """

    def __init__(
        self,
        hosts: Iterable[str],
        public_hosts: Iterable[str] = (),
        *,
        devtools_port: int = 0,
        limits: Limits = NO_LIMITS,
        routes: Mapping[str, int] | None = None,
    ) -> None:
        named = {host.lower() for host in hosts}
        self.public_hosts = frozenset(host.lower() for host in public_hosts) | (named & {"*"})
        self.hosts = frozenset(named - self.public_hosts)
        self.blocked = 0
        """Requests blocked so far."""
        self.reason = ""
        """Why the last one was, where limits say so."""
        self.proxy = ""
        """Address of the proxy while it is open."""
        self._limits = limits
        self._routes = routes or {}
        self._devtools_port = devtools_port
        self._stack = contextlib.AsyncExitStack()
        self._local = self._local_pattern()

    async def open(self) -> dict[str, Any]:
        """Start the proxy; gives the options of a browser context that reaches the allowed hosts only."""
        egress = await self._stack.enter_async_context(Egress(self._admit, self._count, self._limits, self._routes))
        self.proxy = f"http://127.0.0.1:{egress.port}"
        direct = sorted(host for host in self.hosts if ":" in host.rpartition("]")[2] or not _LOOPBACK.fullmatch(host))
        if self._limits or self._routes:
            direct = []
        proxy = {"server": self.proxy, "bypass": ",".join(("<-loopback>", *direct))}
        # What a service worker sends is not asked for.
        return {"proxy": proxy} | ({"service_workers": "block"} if self._limits else {})

    async def close(self) -> None:
        """End the proxy and what goes through it."""
        await self._stack.aclose()

    async def attach(self, context: BrowserContext) -> None:
        """Watch all requests of a context, from the first page on."""
        if self._limits.read_only:
            await context.add_init_script(_ONLY_READS)
        if self._limits:
            await context.route(re.compile(""), self._hold)
        await context.route(self._foreign(), self._refuse)

    def allows(self, url: str) -> bool:
        """Whether a request to `url` may be tried; what it then connects to is judged by the proxy."""
        try:
            parts = urlsplit(url.strip())
            netloc = parts.netloc.lower()
        except ValueError:
            return False
        if re.search(r"[\x00-\x1f\x7f]", url.strip()):
            return False  # browsers drop some of these, so the address would be another one
        if parts.scheme in ("http", "https") and not re.fullmatch(r"[a-z0-9._:\[\]-]+", netloc):
            return False
        written = f"{parts.scheme}://{netloc}{parts.path}" if parts.scheme in ("http", "https") else url.strip()
        return not self._foreign().match(written)

    def _foreign(self) -> re.Pattern[str]:
        # One expression, so that allowed requests are let through inside the driver and never reach Python.
        if "*" in self.public_hosts:
            return re.compile(rf"^(?!{self._local}|https?:\/\/)")
        hosts = "|".join(map(_host_pattern, sorted(self.hosts | self.public_hosts)))
        web = rf"({hosts})([\/?#]|$)" if hosts else "(?!)"
        return re.compile(rf"^(?!{self._local}|{web})")

    def _local_pattern(self) -> str:
        files = re.escape(f"{miniwob_root().as_uri()}/")
        # No way back up, whichever way `..` and `/` are written.
        return rf"{files}(?![^?#]*(\.\.(\/|$)|%2e|%2E|%2f|%2F|%5c|%5C|%00|\\))|{_PLAIN_SCHEMES}"

    def _admit(self, host: str, port: int) -> Admission:
        name = f"[{host}]" if ":" in host else host.lower()
        entries = {name, f"{name}:{port}"}
        if entries & self.public_hosts:
            return Admission.PUBLIC
        if entries & self.hosts and port != self._devtools_port:
            return Admission.ANY
        return Admission.PUBLIC if "*" in self.public_hosts else Admission.NONE

    def _count(self, reason: str) -> None:
        self.blocked += 1
        self.reason = reason

    async def _hold(self, route: Route) -> None:
        from playwright.async_api import Error

        reason = self._limits.refusal(route.request.method, route.request.url)
        with contextlib.suppress(Error):  # the page has been closed meanwhile
            if reason is None:
                await route.fallback()
                return
            self._count(reason)
            await route.abort("aborted")  # a page that would have been left stays

    async def _refuse(self, route: Route) -> None:
        self._count("")
        logger.debug("blocked %s", route.request.url)
        await route.abort("blockedbyclient")


def _host_pattern(entry: str) -> str:
    """Expression of the start of all URLs on a host; a scheme's own port is not written in them."""
    host, colon, port = entry.rpartition(":")
    if not colon or entry.endswith("]"):
        return rf"https?:\/\/{re.escape(entry)}(:[0-9]+)?"
    if port in _DEFAULT_PORTS:
        own, other = _DEFAULT_PORTS[port], "https" if port == "80" else "http"
        return rf"{own}:\/\/{re.escape(host)}(:{port})?|{other}:\/\/{re.escape(host)}:{port}"
    return rf"https?:\/\/{re.escape(host)}:{port}"
