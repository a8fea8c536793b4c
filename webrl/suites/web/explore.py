"""A short look around one's own site: pages that can be reached by links, as the agent would see them.

API: `await explore(config, max_pages) -> Exploration`. Nothing is sent but GET and HEAD, the log-in aside; links that
look as if they logged out or removed something are not followed, nor are more than a few pages of one form (`/notes/1`,
`/notes/2`).
"""

from __future__ import annotations

import re
from collections import Counter, deque
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any
from urllib.parse import urlsplit

from webrl.config import RolloutConfig
from webrl.config.redaction import redact
from webrl.config.web import WebConfig
from webrl.errors import BrowserError
from webrl.rollouts.browser import Browser, first_line
from webrl.rollouts.devtools import ChannelClosed, ChannelError
from webrl.suites.web.env import WebEnv
from webrl.suites.web.tasks import require_start, task_at

_PER_FORM = 2
LOGIN_LINK = re.compile(r"(?i)log-?_?\s?(in|on)\b|sign-?_?\s?in\b")
"""Links that look as if they led to a log-in."""
_SETTLE_CAP_S = 6.0
"""A page that is seen once, before anything is known of the site, is waited for longer."""
_VISITS_PER_PAGE = 3
_MAX_LINKS = 200
_UNSAFE = re.compile(
    r"(?i)log-?_?\s?(out|off)|sign-?_?\s?(out|off)|delete|remove|destroy|purge|unsubscribe|deactivate|reset|drop\b"
)
_NOT_PAGES = re.compile(r"(?i)\.(zip|gz|tar|pdf|png|jpe?g|gif|svg|ico|css|js|json|xml|csv|rss|atom|mp[34]|webm|exe)$")
_SCRIPT = """() => {
  const short = (words) => [...(words ?? '').replace(/\\s+/g, ' ').trim()].slice(0, 80).join('');
  const text = (e) => short(e?.innerText);
  const plain = (e) => short(e?.textContent);
  const all = (() => {
    try {
      return __webrl.allElements(); // in shadow roots too
    } catch {
      return [...document.querySelectorAll('*')];
    }
  })();
  // A field called `method` or `elements` hides the form's own.
  const own = (form, name) => Object.getOwnPropertyDescriptor(HTMLFormElement.prototype, name).get.call(form);
  const label = (e) => {
    const copy = e.labels?.[0]?.cloneNode(true);
    copy?.querySelectorAll('input, select, textarea').forEach((part) => part.remove());
    return plain(copy);
  };
  const name = (e) => label(e) || e.placeholder || e.getAttribute('aria-label') || e.name || e.id || '';
  const isField = (e) =>
    e.matches('input:not([type=hidden]):not([type=submit]):not([type=button]), select, textarea');
  const describe = (action, method, fields, submit) => ({
    action, method, fields: fields.map(name),
    password: fields.filter((e) => e.type === 'password').map(name)[0] ?? null, submit,
  });
  const shown = (form) => text(form.querySelector('button:not([type=button])')) ||
    form.querySelector('input[type=submit]')?.value || null;
  // A program may ask for a password without a form, or in a component of its own.
  const loose = all.filter((e) => isField(e) && !e.form && e.checkVisibility());
  const last = all.indexOf(loose.filter((e) => e.type === 'password').at(-1));
  const buttons = all.slice(last + 1).filter((e) => e.matches('button, [role=button]') && e.checkVisibility())
    .map((e) => text(e) || text(e.getRootNode().host)).filter(Boolean);
  const pressed = buttons.find((words) => /log.?[io]n|sign.?in|continue|submit|^ok$/i.test(words)) ?? null;
  const asked = last < 0 ? [] : [describe(location.href, 'POST', loose, pressed)];
  // A name of the site beside the page's own (docsify has it in every sidebar) is not the page's heading.
  const headings = all.filter((e) => e.matches('h1') && text(e) && !e.closest(
    'aside, nav, [role=complementary], [role=navigation]'));
  return {
    title: document.title.trim(),
    heading: headings.length === 1 ? text(headings[0]) : '',
    links: all.filter((e) => (e instanceof HTMLAnchorElement || e instanceof HTMLAreaElement) && e.href).map((a) => [
      a.href, text(a) || a.getAttribute('aria-label') || a.title || plain(a)]),
    forms: all.filter((e) => e instanceof HTMLFormElement).map((form) => describe(own(form, 'action'),
      own(form, 'method').toUpperCase(), [...own(form, 'elements')].filter(isField), shown(form))).concat(asked),
  };
}"""


@dataclass(frozen=True)
class Form:
    """A form of a page."""

    action: str
    """Where it goes."""
    method: str
    """GET or POST."""
    fields: tuple[str, ...]
    """Labels, else placeholders or names, of what can be filled in."""
    password: str | None
    """The password field among them: a log-in, or a registration."""
    submit: str | None
    """Text of its button."""


@dataclass(frozen=True)
class Seen:
    """One page."""

    url: str
    """Its address, after redirects."""
    title: str
    """Its title."""
    heading: str
    """Its one main heading (`h1`, not in a sidebar); "" where it has none or several."""
    link: str
    """Text of the link that led there, "" for start pages."""
    text: str
    """What the agent sees (`rollout.observation`)."""
    forms: tuple[Form, ...]
    """Its forms."""
    socket: str = ""
    """A WebSocket that it asked for, which pages that only read do not get."""
    refused: str = ""
    """Why a request of it was refused, "" if none was."""

    @property
    def asks_for_password(self) -> bool:
        """Whether one of its forms has a password field."""
        return any(form.password for form in self.forms)


@dataclass(frozen=True)
class Exploration:
    """What was found."""

    pages: tuple[Seen, ...]
    """In the order of the visits."""
    skipped: tuple[str, ...]
    """Links that were not followed, or did not open, each with the reason."""


async def explore(config: RolloutConfig, max_pages: int, first: re.Pattern[str] | None = None) -> Exploration:
    """Visit the start pages and what they link to on the site's own hosts, nearest first.

    Args:
        first: links whose path or text contains a match are followed before the others.

    Raises:
        UsageError: no start page.
        SiteError, BrowserError: the first start page does not open, or refuses the log-in.
        BrowserMissing: no Chromium.
    """
    require_start(config)
    web = config.web.model_copy(update={"read_only": True})
    config = config.model_copy(update={"web": web, "settle_cap_s": max(config.settle_cap_s, _SETTLE_CAP_S)})
    walk = _Walk(config.web, first)
    async with Browser(max_page_mb=config.max_page_mb) as browser:
        env = WebEnv(browser, config)
        try:
            left = _VISITS_PER_PAGE * max_pages  # links may lead back to a log-in, all of them
            while walk.waiting and len(walk.pages) < max_pages and left:
                left -= 1
                url, link = walk.waiting.popleft()
                try:
                    walk.enter(*await _visit(env, config, url, link))
                except BrowserError as error:
                    if not walk.pages and url == config.web.start_urls[0]:
                        raise
                    why = str(error).removeprefix(f"start page {url} of '{config.web.name}.look' ")
                    walk.skipped.append(f"{url}: {why}")
        finally:
            await env.close()
    return Exploration(tuple(walk.pages.values()), tuple(map(redact, walk.skipped)))


class _Walk:
    """Where one has been, and where to go next."""

    def __init__(self, web: WebConfig, first: re.Pattern[str] | None = None) -> None:
        self._hosts = web.hosts
        self._first = first
        self._known = {_key(url) for url in web.start_urls}
        self._forms: Counter[str] = Counter()
        self.waiting: deque[tuple[str, str]] = deque((url, "") for url in web.start_urls)
        self.pages: dict[str, Seen] = {}
        self.skipped: list[str] = []

    def enter(self, page: Seen, links: Sequence[tuple[str, str]]) -> None:
        """A page has been opened; one that redirected to a known page brings nothing."""
        if _host(page.url) not in self._hosts or _key(page.url) in self.pages:
            return
        self.pages[_key(page.url)] = page
        for url, text in links[:_MAX_LINKS]:
            if _key(url) in self._known or _host(url) not in self._hosts or _NOT_PAGES.search(urlsplit(url).path):
                continue
            self._known.add(_key(url))
            if _UNSAFE.search(f"{urlsplit(url).path} {urlsplit(url).query} {_route(url)} {text}"):
                self.skipped.append(f"{url}: looks as if it removed something or logged out")
            elif self._forms[_form(url)] < _PER_FORM:
                self._forms[_form(url)] += 1
                urgent = self._first is not None and self._first.search(f"{urlsplit(url).path} {_route(url)} {text}")
                (self.waiting.appendleft if urgent else self.waiting.append)((url, text))


async def _visit(env: WebEnv, config: RolloutConfig, url: str, link: str) -> tuple[Seen, list[tuple[str, str]]]:
    observation = await env.reset(task_at(config, f"{config.web.name}.look", url, "look around"))
    try:
        found: dict[str, Any] = await env.tab.evaluate(f"({_SCRIPT})()")
        socket: str = await env.tab.evaluate_in_page("window.__webrl?.refusedSocket ?? ''")
    except (ChannelError, ChannelClosed) as error:
        raise BrowserError(first_line(error)) from None
    forms = tuple(Form(**form | {"fields": tuple(form["fields"])}) for form in found["forms"])
    told = (observation.text, forms, socket, env.refusal)
    seen = Seen(env.page.url, found["title"], found["heading"], link, *told)
    return seen, [(target, text) for target, text in found["links"]]


def _host(url: str) -> str:
    return urlsplit(url).netloc.lower()


def _key(url: str) -> str:
    return url.partition("#")[0].rstrip("/") + _route(url)


def _route(url: str) -> str:
    """The page that a program of one document shows: a fragment that is a path, such as `#/users/3`."""
    fragment = urlsplit(url).fragment.rstrip("/")
    return f"#{fragment}" if fragment.startswith(("/", "!/")) else ""


def _form(url: str) -> str:
    """Addresses that differ in numbers, or in their query alone, show pages of one form."""
    parts = urlsplit(url)
    return f"{parts.netloc}{re.sub('[0-9]+', '0', parts.path + _route(url).partition('?')[0])}"
