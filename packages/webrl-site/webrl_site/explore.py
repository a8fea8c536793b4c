"""A short look around your own site: pages that can be reached by links, as the agent would see them.

API: `await explore(browser, config, max_pages) -> Exploration`. Nothing is clicked; pages of a site that is
`read_only` send nothing but GET and HEAD, the log-in aside.
Links that look as if they changed something (`webrl.rollouts.guard.changes`) are not followed, nor are more than a few
pages of one form (`/notes/1`, `/notes/2`), nor links of a shape that has brought nothing new (`/lang/fr`, `/lang/de`).
"""

from __future__ import annotations

import ast
import re
from collections import Counter, defaultdict, deque
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import NamedTuple
from urllib.parse import parse_qsl, unquote, urlsplit

from webrl.config import RolloutConfig
from webrl.config.redaction import redact
from webrl.errors import BrowserError
from webrl.rollouts.browser import Browser, first_line
from webrl.rollouts.devtools import ChannelClosed, ChannelError
from webrl_site.checks import evaluate_in_frames
from webrl_site.env import LEAVES, WebEnv, changes
from webrl_site.settings import WebConfig
from webrl_site.tasks import require_start, task_at

_PER_FORM = 2
_IN_VAIN = 4
"""So many links of a shape may bring no new page, and two more for each that does."""
LOGIN_LINK = re.compile(r"(?i)log-?_?\s?(in|on)\b|sign-?_?\s?in\b")
"""Links that look as if they led to a log-in."""
_SETTLE_CAP_S = 6.0
"""A page that is seen once, before anything is known of the site, is waited for longer."""
_VISITS_PER_PAGE = 3
_NAMES_PAGE = re.compile(
    r"(?i)\W*(p|page|view|tab|template|tpl|module|mod|section|screen|area|menu|option|controller|route|action|do|op|cmd)"
)
"""Parameters by which one program shows different pages (`index.php?page=users`)."""
_NOT_PAGES = re.compile(r"(?i)\.(zip|gz|tar|pdf|png|jpe?g|gif|svg|ico|css|js|json|xml|csv|rss|atom|mp[34]|webm|exe)$")
_PAGE_TYPES = ("text/html", "application/xhtml+xml")
_ASKS_BACK = re.compile(r"(?i)\bare you sure\b|\bcan(?:not|'t|\\'t) be undone\b|\bplease confirm\b")
_AGREES = re.compile(r"(?i)\W*(yes|ok|confirm|continue)\b")
_SAVES = re.compile(r"(?i)\b(save|update|change|apply|set|regenerate|create|register|sign.?up|join|add|send)\b")
_SECRET = re.compile(r"(?i)token|secret|passw|auth|signature|credential|session|csrf|(^|[_.-]|api)key$")
"""Parameters of an address that are not written down."""
_LOGIN_FIELDS = 3
"""A form with more fields says that it is a log-in."""
_ACCOUNT = re.compile(
    rf"{LOGIN_LINK.pattern}|register|sign-?_?\s?up|forgot|password|account|verif|about|help|terms|privacy|imprint|language"
)
_NAMED = re.compile(r"^\s*\[(\w+)\] \w+ ('(?:[^'\\]|\\.)*'|\"(?:[^\"\\]|\\.)*\")", re.MULTILINE)
_ICON = re.compile(r"[\ue000-\uf8ff]")
_SCRIPT = Path(__file__).with_name("explore.js")


@dataclass(frozen=True)
class Form:
    """A form of a page."""

    action: str
    """Where it goes."""
    fields: tuple[str, ...]
    """Labels, else placeholders or names, of what can be filled in."""
    password: str | None
    """The one field among them that asks for a password."""
    submit: str | None
    """Text of its button."""
    user: str | None = None
    """The field before it that asks who one is."""

    @property
    def is_login(self) -> bool:
        """Whether it asks for a password to log in, rather than to save one among other settings."""
        if self.password is None or _SAVES.search(self.submit or ""):
            return False
        return len(self.fields) <= _LOGIN_FIELDS or bool(LOGIN_LINK.search(self.submit or ""))

    @property
    def options(self) -> str:
        """The options of `webrl init-site` that try it as a log-in."""
        if self.user:
            return "--user NAME, with the password in the variable PASSWORD"
        return "--password-env PASSWORD, the variable with the password"


@dataclass(frozen=True)
class DiscoveredPage:
    """One page."""

    url: str
    """Its address, after redirects."""
    title: str
    """Its title."""
    heading: str
    """Its one main heading (`h1`, not in a sidebar) as the agent sees it; "" if it has none or several."""
    link: str
    """Name of the link that led there as the agent sees it; "" for start pages, and where it leads elsewhere too."""
    text: str
    """What the agent sees (`rollout.observation`)."""
    forms: tuple[Form, ...]
    """Its forms."""
    socket: str = ""
    """A WebSocket that it asked for, which pages that only read do not get."""
    refused: str = ""
    """Why a request of it was refused, "" if none was."""
    target: str = ""
    """Where that link leads, before redirects."""

    @property
    def login(self) -> Form | None:
        """The log-in form."""
        return next((form for form in self.forms if form.is_login), None)


@dataclass(frozen=True)
class Exploration:
    """What was found."""

    pages: tuple[DiscoveredPage, ...]
    """In the order of the visits."""
    skipped: tuple[str, ...]
    """Links that were not followed, or did not open, each with the reason."""
    unsafe: tuple[str, ...] = ()
    """Addresses of links and forms that look as if they changed something."""
    left: tuple[str, ...] = ()
    """Links that were not followed because enough was visited."""


class _Link(NamedTuple):
    url: str
    words: str
    """All that the page calls it."""
    bid: str
    asks: bool
    """Whether the page asks back when it is clicked, or sends something else than GET."""


async def explore(
    browser: Browser, config: RolloutConfig, max_pages: int, first: re.Pattern[str] | None = None
) -> Exploration:
    """Visit the start pages and what they link to on the site's own hosts, nearest first.

    Args:
        first: links whose path or text contains a match are followed before the others.

    Raises:
        UsageError: no start page.
        SiteError, BrowserError: the first start page does not open, or refuses the log-in.
    """
    require_start(config)
    patience_s = max(config.settle_cap_s, min(_SETTLE_CAP_S, config.step_timeout_s / 2))
    config = config.model_copy(update={"settle_cap_s": patience_s})
    walk = _Walk(config.web, first)
    env = WebEnv(browser, config)
    try:
        visits_left = _VISITS_PER_PAGE * max_pages  # links may lead back to a log-in, all of them
        while len(walk.pages) < max_pages and visits_left and (waiting := walk.next()):
            visits_left -= 1
            url, link = waiting
            try:
                walk.enter(url, *await _visit(env, config, url, link))
            except BrowserError as error:
                if not walk.pages and url == config.web.start_urls[0]:
                    raise
                why = str(error).removeprefix(f"start page {url} of '{config.web.name}.look' ")
                walk.skip(url, why)
                walk.count(url, is_new=False)
    finally:
        await env.close()
    return walk.result()


class _Walk:
    """Where one has been, and where to go next."""

    def __init__(self, web: WebConfig, first: re.Pattern[str] | None = None) -> None:
        self._web = web
        self._first = first
        self._known = {_key(url) for url in web.start_urls}
        self._forms: Counter[str] = Counter()
        self._old: Counter[str] = Counter()
        """By shape: links that have brought no new page, less two for each that has."""
        self._named: defaultdict[str, set[str]] = defaultdict(set)
        self._waiting: deque[tuple[str, str]] = deque((url, "") for url in web.start_urls)
        self._skipped: list[str] = []
        self._vain: Counter[str] = Counter()
        """By shape: links that are not followed for that."""
        self._alike: defaultdict[str, list[str]] = defaultdict(list)
        """By form: links that are not followed because enough of the form were."""
        self._unsafe: list[str] = []
        self._left_out_log_out = False
        """Said once: many sites have a log-out on every page that leads back there."""
        self.pages: dict[str, DiscoveredPage] = {}

    def next(self) -> tuple[str, str] | None:
        """The next link and its name; None if there is none."""
        while self._waiting:
            url, link = self._waiting.popleft()
            if not self._is_spent(url):
                return url, link
        return None

    def _is_spent(self, url: str) -> bool:
        """Whether enough links of its shape have brought nothing; it is counted then."""
        spent = [shape for shape in _shapes(url) if self._old[shape] >= _IN_VAIN]
        self._vain.update(spent[:1])
        return bool(spent) and url not in self._web.start_urls

    def count(self, url: str, *, is_new: bool) -> None:
        """Note whether a link has brought a new page."""
        self._old.update(dict.fromkeys(_shapes(url), -2 if is_new else 1))

    def skip(self, url: str, why: str) -> None:
        """A link is not followed, or did not open."""
        self._skipped.append(f"{without_token(url)}: {redact(why)}")

    def enter(self, url: str, page: DiscoveredPage, links: Sequence[_Link], names: dict[str, str]) -> None:
        """A page has been opened; one that is known, or asks back, or whose address is a key, brings nothing."""
        fresh = urlsplit(page.url).netloc.lower() in self._web.hosts and _key(page.url) not in self.pages
        fresh = fresh and all(page.text != seen.text for seen in self.pages.values())
        said = [*(form.submit or "" for form in page.forms), *(link.words for link in links)]
        agrees = any(_AGREES.match(text) or changes("", text) for text in said)
        if fresh and self.pages and agrees and _ASKS_BACK.search(page.text):
            self.skip(page.url, "asks for a confirmation")
            self._unsafe.append(url)
            fresh = False
        if fresh and self.pages and _has_token(page.url):
            self.skip(page.url, "its address holds a token")
            fresh = False
        self.count(url, is_new=fresh)
        if not fresh:
            return
        self.pages[_key(page.url)] = page
        forms = {_key(form.action): form.submit or "" for form in page.forms}
        self._unsafe += [form.action for form in page.forms if changes(form.action, form.submit or "")]
        for link in links:
            name, href = names.get(link.bid, ""), link.url
            host, path = urlsplit(href).netloc.lower(), urlsplit(href).path
            self._named[plain_name(name).casefold()].add(_key(href))
            if _key(href) in self._known or host not in self._web.hosts or _NOT_PAGES.search(path):
                continue
            self._known.add(_key(href))
            words = f"{link.words}\n{forms.get(_key(href), '')}"
            word = next(filter(None, (changes(href, said) for said in words.splitlines())), "")
            if word or link.asks:
                if not (leaves := re.search(f"(?i){LEAVES}", href)) or not self._left_out_log_out:
                    self.skip(href, f"looks as if it changed something ({word or 'the page asks back'})")
                self._left_out_log_out |= bool(leaves)
                self._unsafe.append(href)
            elif _has_token(href):
                self.skip(href, "its address holds a token")
            elif self._forms[_form(href)] < _PER_FORM:
                self._forms[_form(href)] += 1
                urgent = self._first is not None and self._first.search(f"{path} {_route(href)} {words}")
                (self._waiting.appendleft if urgent else self._waiting.append)((href, name))
            else:
                self._alike[_form(href)].append(href)

    def result(self) -> Exploration:
        """What was found."""
        left = [without_token(url) for url, _ in self._waiting if not self._is_spent(url)]
        vain = [f"{n} links like {shape}: those before brought no new page" for shape, n in self._vain.items()]
        alike = []
        for first, *more in self._alike.values():
            others = f" and {len(more)} more like it" if more else ""
            alike.append(f"{without_token(first)}{others}: {_PER_FORM} such links were enough")
        pages = (
            page if len(self._named[plain_name(page.link).casefold()]) < 2 else replace(page, link="")
            for page in self.pages.values()
        )
        unsafe = dict.fromkeys(url for url in self._unsafe if not _route(url))  # a route is never asked for
        return Exploration(tuple(pages), (*vain, *self._skipped, *alike), tuple(unsafe), tuple(left))


def shows_only_login(found: Exploration) -> bool:
    """Whether nothing is shown but the log-in and what belongs to it (a forgotten password, a registration)."""
    first = found.pages[0]
    is_asked = len(found.pages) == 1 or _key(first.url) != _key(first.target) or LOGIN_LINK.search(_called(first))
    others = all(page.login or _ACCOUNT.search(_called(page)) for page in found.pages)
    return bool(first.login and is_asked and others)


def _called(page: DiscoveredPage) -> str:
    return f"{urlsplit(page.url).path} {page.link} {page.title} {page.heading}"


async def _visit(
    env: WebEnv, config: RolloutConfig, url: str, link: str
) -> tuple[DiscoveredPage, list[_Link], dict[str, str]]:
    """The page, its links, and the names of its elements as the agent sees them."""
    from playwright.async_api import Error

    observation = await env.reset(task_at(config, f"{config.web.name}.look", url, "look around"))
    try:
        parts = await evaluate_in_frames(env.tab, f"({_SCRIPT.read_text(encoding='utf-8')})()")
        socket: str = await env.tab.evaluate_in_page("window.__webrl?.refusedSocket ?? ''")
    except (Error, ChannelError, ChannelClosed) as error:
        raise BrowserError(first_line(error)) from None
    found = parts[0]
    if found["type"] not in _PAGE_TYPES and url not in config.web.start_urls:
        raise BrowserError(f"is not a page ({found['type']})")
    names = {bid: str(ast.literal_eval(name)) for bid, name in _NAMED.findall(observation.text)}
    forms = tuple(Form(**form | {"fields": tuple(form["fields"])}) for part in parts for form in part["forms"])
    told = (observation.text, forms, socket, env.refusal, url)
    seen = DiscoveredPage(env.page.url, found["title"], names.get(found["heading"], ""), link, *told)
    return seen, [_Link(*given) for part in parts for given in part["links"]], names


def plain_name(name: str) -> str:
    """A link's name without the icons of a font, which no one can read."""
    return _ICON.sub("", name).strip()


def _has_token(url: str) -> bool:
    """Check whether an address logs in anyone who knows it."""
    parts = urlsplit(url)
    given = parse_qsl(parts.query)
    steps = (*re.split("[/.]", parts.path), *(value for _, value in given))
    return any(_SECRET.search(key) for key, _ in given) or any(map(_is_random, steps))


def _is_random(text: str) -> bool:
    """Long, of no words: a signed value, or 32 and more hexadecimal digits."""
    if re.fullmatch(r"[0-9a-f]{32,}", text) or text.startswith("eyJ"):
        return True
    kinds = all(re.search(kind, text) for kind in ("[0-9]", "[a-z]", "[A-Z]"))
    return bool(re.fullmatch(r"[\w-]{20,}", text)) and kinds and not re.search("[a-z]{6}", text)


def without_token(url: str) -> str:
    """An address as it may be written down."""
    return re.sub(r"[^/.?&=]+", lambda step: "***" if _is_random(step[0]) else step[0], redact(url))


def _key(url: str) -> str:
    return url.partition("#")[0].rstrip("/") + _route(url)


def _route(url: str) -> str:
    """The page that a program of one document shows: a fragment that is a path, such as `#/users/3`."""
    fragment = urlsplit(url).fragment.rstrip("/")
    return f"#{fragment}" if fragment.startswith(("/", "!/")) else ""


def _form(url: str) -> str:
    """Addresses that differ in numbers, or in a query that names no page, show pages of one form."""
    parts = urlsplit(url)
    route, _, inner = _route(url).partition("?")
    given = (*parse_qsl(parts.query), *parse_qsl(inner))
    named = sorted(f"{key}={value}" for key, value in given if _NAMES_PAGE.fullmatch(key))
    return f"{parts.netloc}{re.sub('[0-9]+', '0', '?'.join((unquote(parts.path + route), *named)))}"


def _shapes(url: str) -> Iterator[str]:
    """The address's path with each of its parts left open in turn: `/lang/*`, `/*/fr`."""
    parts = [part for part in (urlsplit(url).path + _route(url)).split("/") if part]
    for number in range(len(parts)):
        yield "/" + "/".join((*parts[:number], "*", *parts[number + 1 :]))
