"""An environment on your own site: `BrowserEnv` logged in, within the site's limits, and scored by checks at the end.

API: `WebEnv(browser, config)`; each episode has its own profile, because the log-in is part of it.
"""

from __future__ import annotations

import dataclasses
import re
from collections.abc import Sequence
from typing import Any

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
from webrl_site.sites import SiteError
from webrl_site.tasks import Check, checks_of

_ASKS = "; if the server itself asks for a password: rollout.web.login.basic (init-site --basic-user)"
_STOPPED = "net::ERR_ABORTED"
"""What the browser says of a page that the limits have kept from being opened."""
_STATUS = "[performance.getEntriesByType('navigation')[0]?.responseStatus || 0, document.body?.innerText ?? '']"


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
        self._limits = Limits(config.web.read_only, tuple(map(re.compile, config.web.forbidden_urls)))
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
