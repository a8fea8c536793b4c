"""An environment on your own site: `BrowserEnv` logged in, within the site's limits, and scored by checks at the end.

API: `WebEnv(browser, config)`; each episode has its own profile, because the log-in is part of it. `changes` is the one
judgement of whether a link only shows something: a GET request may change a site, and only its address and what the
page calls it tell.
"""

from __future__ import annotations

import dataclasses
import re
from collections.abc import Sequence
from typing import Any
from urllib.parse import parse_qsl, unquote, urlsplit

from webrl.config import RolloutConfig
from webrl.errors import BrowserError
from webrl.rollouts.actions import Action
from webrl.rollouts.browser import Browser
from webrl.rollouts.devtools import ChannelClosed, ChannelError
from webrl.rollouts.env import BrowserEnv, Notices
from webrl.rollouts.execute import ActionFailed
from webrl.rollouts.guard import BLOCKED, UNREACHED, Limits
from webrl.rollouts.interface import Observation, Score, StepResult
from webrl.types import Task
from webrl_site.checks import End, judge, unanswered
from webrl_site.hooks import EpisodeServer, reset_site, take_turn
from webrl_site.login import Logins, forget
from webrl_site.settings import WebConfig
from webrl_site.sites import SiteError
from webrl_site.tasks import Check, checks_of

_ASKS = "; if the server itself asks for a password: rollout.web.login.basic (init-site --basic-user)"
_STOPPED = "net::ERR_ABORTED"
"""What the browser says of a page that the limits have kept from being opened."""
_STATUS = "[performance.getEntriesByType('navigation')[0]?.responseStatus || 0, document.body?.innerText ?? '']"


LEAVES = r"log-?_?\s?(?:out|off)|sign-?_?\s?(?:out|off)"
"""Expression of what ends a session."""
_STRONG = (
    rf"{LEAVES}|delete(?!d\b)|remove(?!d\b)|destroy|purge|erase|wipe|clear|flush|empty|reset|drop|clone|duplicate|unlink|"
    r"detach|regenerate|revoke|unsubscribe|deactivate"
)
# These are names of pages too (`/create-an-account`), and mean an action only where nothing else is said.
_PLAIN = (
    r"create|(?:up|down)?vote|(?:un)?(?:like|follow|ban|mute|pause|publish|approve|subscribe)|reject|cancel|activate|"
    r"enable|disable|restart|reboot|shutdown|kill|trigger|execute|rebuild|reindex|restore|revert|undo|rollback|sync|"
    r"toggle|send|resend|un(?:archive|hide|lock|pin|star|watch)"
)
# `/clear-summary-cache`, `/notes/delete`, `/user-delete`, `/deletenote`; five words are a title (`/clear-your-…`).
_ACTION = re.compile(
    rf"(?i)(?:{_STRONG})(?:-[^-]+){{0,3}}|[^-]+-(?:{_STRONG})|(?:delete|remove)(?!d|r)[a-z]+|(?:{_PLAIN})|"
    r"mark-(?:all|as|(?:un)?read)(?:-[^-]+){0,3}|add-to(?:-[^-]+){0,2}"
)
_SAID = re.compile(rf"(?i)\W*(?:\w+\W+){{0,2}}?({_STRONG})\b")
_FILE = re.compile(r"(?i)\.(css|m?js|map|json|wasm|png|jpe?g|gif|svg|ico|webp|avif|woff2?|ttf|otf|eot|mp[34]|webm)$")
_COMMANDS = ("action", "do", "op", "cmd", "command", "task", "method", "_method", "act", "event", "function")
"""Parameters whose value names the operation."""


def changes(url: str, words: str = "") -> str:
    """Return the part of an address, or of the text of its link or button, that suggests that opening it changes
    something; "" if it looks like a page: `/notes/3`, `/search?q=delete`, `/reset.css`.
    """
    parts = urlsplit(url)
    found = _SAID.match(words)
    if _FILE.search(parts.path):
        return ""
    route, _, inner = parts.fragment.partition("?")
    steps: list[str] = [*parts.path.split("/"), *(route.split("/") if route.startswith(("/", "!/")) else ())]
    for query in (parts.query, inner):
        for key, value in parse_qsl(query, keep_blank_values=True):
            steps += [key, *([value] if key.lower() in _COMMANDS else ())]
    for step in steps:
        if _ACTION.fullmatch(re.sub(r"(?<=[a-z])(?=[A-Z])|[-_.\s]+", "-", unquote(step)).strip("-")):
            return step
    return found.group(1) if found else ""


def limits_of(web: WebConfig) -> Limits | None:
    """The limits of a site, None if it has none: GET and HEAD alone to addresses that look like pages where it is
    `read_only`, and no request to an address that contains a match of `forbidden_urls`.
    """
    patterns = [re.compile(pattern) for pattern in web.forbidden_urls]

    def refusal(method: str, url: str) -> str | None:
        if web.read_only and method not in ("GET", "HEAD"):
            return f"this site may only be read, and this would send a {method} request"
        if web.read_only and (word := changes(url)):
            return f"this site may only be read, and {word!r:.60} in an address looks as if it changed something"
        spellings = (url, unquote(url))  # %6Cogout is /logout to the site
        found = (pattern.search(spelling) for pattern in patterns for spelling in spellings)
        match = next(filter(None, found), None)
        return f"addresses with {match.group(0)!r:.100} are not to be opened here" if match else None

    return Limits(refusal, web.read_only) if web.read_only or patterns else None


class WebEnv(BrowserEnv):
    """See the module docstring.

    Raises, in addition to what `BrowserEnv` raises:
        SiteError (a BrowserError): the site is down, its start page answers an error, or it refuses the log-in.
    """

    every_element = True

    def __init__(self, browser: Browser, config: RolloutConfig) -> None:
        super().__init__(browser, config)
        self._web = config.web
        self._logins = Logins(config.web)
        self._notices = Notices(accept=config.web.dialogs == "accept")
        self._limits = limits_of(config.web)
        self._server: EpisodeServer | None = None
        self._played: Task | None = None
        self._ended: StepResult | None = None

    async def reset(self, task: Task) -> Observation:
        """Reset the site if every episode asks for it, or start its server; log in, open the start page."""
        await self.close()
        await take_turn(self._web)
        if self._web.reset.every == "episode":
            await reset_site(self._web)
            forget(self._web)
        state = await self._logins.state(self._browser)
        self._profile_options: dict[str, Any] = {"storage_state": state} if state else {}
        self._profile_options |= self._web.http_credentials
        played = dataclasses.replace(task, extra={"allowed_hosts": list(self._web.hosts)})
        server = await EpisodeServer.start(self._web) if self._web.serve.is_set else None
        self._routes = {self._web.address: server.port} if server else {}
        try:
            observation = await super().reset(played)
            async with self._deadline("looking at the start page"):
                status, text = await self.tab.evaluate(_STATUS)
            if status >= 400:
                url = self.page.url
                await super().close()
                page = f"start page {task.start_url} of {task.task_id!r}"
                if UNREACHED in text[:300]:
                    raise SiteError(f"{page} does not open: {text:.300}")
                if not text.startswith(BLOCKED):
                    raise SiteError(f"{page} answers {status}{_ASKS if status == 401 else ''}")
                raise SiteError(
                    f"{page} leads to {url}. {text:.300} Name that host in rollout.allowed_hosts, or start there"
                )
        except BaseException:
            if server:
                await server.stop()
            raise
        self._played, self._server = task, server
        return observation

    async def step(self, action_text: str) -> StepResult:
        """As `BrowserEnv.step`; tells the agent what the site's limits have prevented."""
        await take_turn(self._web)
        result = await super().step(action_text)
        if result.blocked and self._guard.reason and (not result.error or _STOPPED in result.error):
            result = dataclasses.replace(result, error=f"Blocked: {self._guard.reason}.")
        self._ended = result if result.agent_done else None
        return result

    def _resolve(self, action: Action) -> Action:
        if action.name in self._web.forbidden_actions:
            raise ActionFailed(f"Blocked: {action.name} is not allowed on this site.")
        return super()._resolve(action)

    @property
    def refusal(self) -> str:
        """Why the site's limits have refused the latest request of this episode that they did; "" if none."""
        return self._guard.reason

    async def finish(self) -> Score:
        """The score by the task's checks; none if it has no checks."""
        if self._played is None:
            raise BrowserError("finish() before reset()")
        return await self.score(checks_of(self._played))

    async def score(self, checks: Sequence[Check]) -> Score:
        """The score of the episode so far by any checks."""
        if not checks:
            return Score(None)
        answer = self._ended.message if self._ended else None
        page = self.page if not self.page.is_closed() else next(iter(self.context.pages), None)
        if page is None:
            return Score(None, "all tabs are closed")
        origin = f"http://127.0.0.1:{self._server.port}" if self._server else self._web.origin
        folder = self._server.folder if self._server else ""
        proxy = self._guard.proxy if self._server else None
        allows = self._guard.allows
        end = End(self._browser, self._web, allows, page, answer, self.context, proxy, origin, folder)
        score = await judge(checks, end)
        if score.reward != 0:
            return score
        # Where the agent's page is an error of the connection, what failed is the site.
        try:
            _, text = await self._tabs[page].evaluate(_STATUS)
        except (ChannelError, ChannelClosed, KeyError):  # KeyError: a tab that has not been looked at
            return score
        is_error = page.url.startswith("chrome-error:") or UNREACHED in text[:300]
        down = await unanswered(end) if is_error else ""
        return Score(None, down) if down else score

    async def close(self) -> None:
        """Close the profile, and end its server."""
        self._played = self._ended = None
        server, self._server = self._server, None
        try:
            await super().close()
        finally:
            if server:
                await server.stop()
