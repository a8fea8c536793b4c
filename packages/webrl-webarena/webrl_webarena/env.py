"""An environment on the WebArena sites: `BrowserEnv` with sites leased, logged in, and a validation at the end.

API:

    env = WebArenaEnv(browser, config.rollout)
    trajectory = await run_episode(env, policy, task, ...)
    trajectory = await score_episode(env, trajectory)      # env_reward, env_error; gives the sites back

`score_episode` must follow every episode, however it ended: a writing episode has its sites to itself until then.
"""

from __future__ import annotations

import contextlib
import dataclasses
import json
import logging
import re
from typing import TYPE_CHECKING
from weakref import WeakKeyDictionary

from webrl.config import RolloutConfig
from webrl.errors import BrowserError
from webrl.rollouts.actions import ActionError, parse_call
from webrl.rollouts.browser import Browser
from webrl.rollouts.env import BrowserEnv
from webrl.rollouts.interface import Observation, Score, StepResult
from webrl.rollouts.sites import Site
from webrl.types import Task
from webrl_site.locks import Lease, lease_sites
from webrl_site.sites import resolve
from webrl_webarena.evaluator import Evaluator, capture
from webrl_webarena.login import LoginStore
from webrl_webarena.settings import WebArenaConfig
from webrl_webarena.sites import SITES, Sites, find_sites, host_of
from webrl_webarena.tasks import config_of, instruction_of, is_scored, sites_of, writes

if TYPE_CHECKING:
    from playwright.async_api import Page

logger = logging.getLogger(__name__)

_INFEASIBLE = re.compile(r"report_infeasible\b")
_OPTION = """([number, part]) => {
  const list = window[Symbol.for("webrl.html")]?.labels.get(number)?.options ?? [];
  return [...list].map((option) => option.text.trim()).find((text) => text.toLowerCase().includes(part.toLowerCase()));
}"""
_SEPARATOR = " |AND| "  # between the start pages of tasks that begin with several tabs


async def hide_scrollbars(page: Page) -> None:
    """Lay the page out as in the released harness, whose browser hides scroll bars (BrowserGym's shows them)."""
    from playwright.async_api import Error

    with contextlib.suppress(Error):  # a page that closes at once
        session = await page.context.new_cdp_session(page)  # the setting lasts as long as the session
        await session.send("Emulation.setScrollbarsHidden", {"hidden": True})


class SiteAccess:
    """What all WebArena environments on one browser share: addresses, minted log-ins, the evaluator."""

    def __init__(self, config: WebArenaConfig) -> None:
        self.config = config
        self.sites: Sites = find_sites(config)
        self.logins = LoginStore(config, self.sites)
        self.evaluator = Evaluator(config, self.sites)


_ACCESS: WeakKeyDictionary[Browser, SiteAccess] = WeakKeyDictionary()
"""The access that belongs to a browser, made at its first reset."""


class WebArenaEnv(BrowserEnv):
    """See the module docstring.

    Raises, in addition to what `BrowserEnv` raises:
        SiteError (a BrowserError): a site is down, refuses the log-in, or did not come free in time.
        UsageError: a site of the task has no address.
    """

    def __init__(self, browser: Browser, config: RolloutConfig, access: SiteAccess | None = None) -> None:
        super().__init__(browser, config)
        self._access = access
        self._resets = 0
        self._lease: Lease | None = None
        self._played: Task | None = None
        self._ended: StepResult | None = None

    async def reset(self, task: Task) -> Observation:
        """Lease the task's sites, log in, open its start pages."""
        self._release()
        self._resets = number = self._resets + 1
        self._profile_options = {}
        access = self._access or _ACCESS.get(self._browser)
        if access is None or access.config != self._config.webarena:
            access = _ACCESS[self._browser] = SiteAccess(self._config.webarena)
        self._access = access
        access.sites.require(sites_of(task))
        folder = access.config.lock_dir
        lease = await lease_sites(access.sites.urls, sites_of(task), writing=writes(task), folder=folder)
        try:
            if number != self._resets:
                raise BrowserError(f"task {task.task_id!r} was given up while it waited for its sites")
            observation = await self._start(task, access, lease.urls)
        except BaseException:
            lease.release()
            raise
        self._lease, self._played = lease, task  # only now: opening a page closes the old profile, and `close` frees
        return observation

    async def _start(self, task: Task, access: SiteAccess, urls: dict[str, str]) -> Observation:
        config = config_of(task)
        starts = resolve(config["start_url"], urls, f"task {task.task_id!r}", SITES).split(_SEPARATOR)
        self._profile_options = {"storage_state": await access.logins.state(urls, self._browser)}
        if config.get("geolocation"):
            self._profile_options |= {"geolocation": config["geolocation"], "permissions": ["geolocation"]}
        await super().close()  # a profile of its own for every episode: the log-in is part of it
        observation = await super().reset(
            dataclasses.replace(
                task,
                instruction=instruction_of(task),
                start_url=starts[0],
                extra={"allowed_hosts": [host_of(url) for url in urls.values()]},
            )
        )
        if len(starts) == 1:
            return observation
        async with self._deadline("opening the task's tabs"):
            for url in starts[1:]:
                page = await self.context.new_page()
                await page.goto(url)
        return (await super().step("tab_focus(0)")).observation  # the first one stays active, as in VAB-WebArena-Lite

    async def step(self, action_text: str) -> StepResult:
        """As `BrowserEnv.step`; a drop-down list takes the first option that contains the argument, as in VAB."""
        result = await super().step(action_text)
        try:
            name, _, values = parse_call(result.action) if result.error else ("", (), {})
        except ActionError:
            name, values = "", {}
        if name == "do" and values.get("action") == "Select Dropdown Option":
            async with self._deadline("looking for an option"):
                wanted = json.dumps([str(values.get("element")), str(values.get("argument"))])
                found = await self.tab.evaluate(f"({_OPTION})({wanted})")
            if found:
                better = f"do(action='Select Dropdown Option', argument={found!r}, element={values['element']!r})"
                result = dataclasses.replace(await super().step(better), action=result.action)
        self._ended = result if result.agent_done else None
        return result

    async def finish(self) -> Score:
        """Validate the final state and release the sites; call it once the episode is over.

        Training tasks get no reward and no note: the outcome model judges them.
        """
        from playwright.async_api import Error

        task, lease, access = self._played, self._lease, self._access
        try:
            if task is None or lease is None or access is None or not is_scored(task):
                return Score(None)
            ended = self._ended
            answer = ended.message if ended else None
            infeasible = ended is not None and bool(_INFEASIBLE.match(ended.action))
            state = await capture(self.context, self.page, answer=answer, infeasible=infeasible)
            return await access.evaluator.validate(task, lease.urls, state)
        except Error as error:
            return Score(None, f"the page was gone before it could be read: {str(error).splitlines()[0]}")
        finally:
            self._release()

    async def _new_profile(self, site: Site) -> None:
        """As `BrowserEnv`; scroll bars are hidden on pages that are shown as simplified HTML."""
        await super()._new_profile(site)
        if self._config.observation == "html":
            self.context.on("page", hide_scrollbars)
            for page in self.context.pages:
                await hide_scrollbars(page)

    async def close(self) -> None:
        """Close the profile and give the sites back; a `reset` that still waits for them is given up."""
        self._resets += 1
        self._release()
        await super().close()

    def _release(self) -> None:
        lease, self._lease, self._played, self._ended = self._lease, None, None, None
        if lease is not None:
            lease.release()
