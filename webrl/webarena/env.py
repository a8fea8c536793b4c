"""An environment on the WebArena sites: `BrowserEnv` with sites leased, logged in, and a validation at the end.

API:

    env = WebArenaEnv(browser, config.rollout)
    trajectory = await run_episode(env, policy, task, ...)
    trajectory = await finish_episode(env, trajectory)     # env_reward, env_error; gives the sites back

Tasks of other worlds are played as by `BrowserEnv`. `finish_episode` must follow every episode, however it ended:
a writing episode has its sites to itself until then.
"""

from __future__ import annotations

import contextlib
import dataclasses
import logging
import re
from typing import TYPE_CHECKING, Any
from weakref import WeakKeyDictionary

from webrl.config import RolloutConfig, WebArenaConfig
from webrl.errors import BrowserError
from webrl.rollouts.actions import ActionError
from webrl.rollouts.browser import Browser
from webrl.rollouts.env import BrowserEnv, Observation, StepResult
from webrl.types import Task, Trajectory
from webrl.webarena.evaluator import Evaluator, Verdict
from webrl.webarena.final_state import capture
from webrl.webarena.html import hide_scrollbars, observe_html
from webrl.webarena.locks import Lease, lease_sites
from webrl.webarena.login import LoginStore
from webrl.webarena.numbered import translate
from webrl.webarena.sites import Sites, find_sites, host_of, resolve
from webrl.webarena.tasks import config_of, instruction_of, is_scored, is_webarena, sites_of, writes

if TYPE_CHECKING:
    from playwright.async_api import BrowserContext

logger = logging.getLogger(__name__)

_INFEASIBLE = re.compile(r"report_infeasible\b")
_LOOK = "noop(0)"
_SEPARATOR = " |AND| "  # between the start pages of tasks that begin with several tabs


class SiteAccess:
    """What all WebArena environments on one browser share: addresses, minted log-ins, the evaluator."""

    def __init__(self, config: WebArenaConfig) -> None:
        self.config = config
        self.sites: Sites = find_sites(config)
        self.logins = LoginStore(config, self.sites)
        self.evaluator = Evaluator(config, self.sites)

    async def close(self) -> None:
        """End the evaluator's browser."""
        await self.evaluator.close()


_ACCESS: WeakKeyDictionary[Browser, SiteAccess] = WeakKeyDictionary()


def site_access(browser: Browser, config: WebArenaConfig) -> SiteAccess:
    """The access that belongs to a browser; made at the first call. Raises UsageError for a bad address."""
    access = _ACCESS.get(browser)
    if access is None or access.config != config:
        access = _ACCESS[browser] = SiteAccess(config)
    return access


class WebArenaEnv(BrowserEnv):
    """See the module docstring.

    Raises, beside what `BrowserEnv` raises:
        SiteError (a BrowserError): a site is down, refuses the log-in, or did not come free in time.
        UsageError: a site of the task has no address.
    """

    def __init__(self, browser: Browser, config: RolloutConfig, access: SiteAccess | None = None) -> None:
        self._profile = _ProfileMaker(browser)
        self._dialect = config.dialect
        self._numbered = config.observation == "html"
        if self._numbered:  # elements are found by their bids all the same; numbers and text are put on top
            config = config.model_copy(update={"observation": "axtree", "dialect": "browsergym"})
        super().__init__(self._profile, config)  # type: ignore[arg-type]
        self._real_browser = browser
        self._access = access
        self._lease: Lease | None = None
        self._played: Task | None = None
        self._ended: StepResult | None = None

    async def reset(self, task: Task) -> Observation:
        """Lease the task's sites, log in, open its start pages."""
        self._release()
        self._profile.options = {}
        if not is_webarena(task):
            return await super().reset(task)
        access = self._access = self._access or site_access(self._real_browser, self._config.webarena)
        lease = await lease_sites(
            access.sites,
            sites_of(task),
            writing=writes(task),
            folder=access.config.lock_dir,
            timeout_s=access.config.lease_timeout_s,
        )
        try:
            observation = await self._start(task, access, lease.urls)
        except BaseException:
            lease.release()
            raise
        self._lease, self._played = lease, task  # only now: opening a page closes the old profile, and `close` frees
        return observation

    async def _start(self, task: Task, access: SiteAccess, urls: dict[str, str]) -> Observation:
        config = config_of(task)
        starts = resolve(config["start_url"], urls, f"task {task.task_id!r}").split(_SEPARATOR)
        self._profile.options = {"storage_state": await access.logins.state(urls, self._real_browser)}
        if config.get("geolocation"):
            self._profile.options |= {"geolocation": config["geolocation"], "permissions": ["geolocation"]}
        await super().close()  # a profile of its own for every episode: the log-in is part of it
        self._profile.hide_scrollbars = self._numbered
        observation = await super().reset(
            dataclasses.replace(
                task,
                instruction=instruction_of(task),
                start_url=starts[0],
                extra={"allowed_hosts": [host_of(url) for url in urls.values()]},
            )
        )
        if len(starts) > 1:
            observation = await self._open_more(starts[1:])
        return await self._as_shown(observation)

    async def _open_more(self, urls: list[str]) -> Observation:
        """Further tabs; the first one stays active, as in VAB-WebArena-Lite."""
        async with self._deadline("opening the task's tabs"):
            for url in urls:
                page = await self.context.new_page()
                await page.goto(url)
        return (await super().step("tab_focus(0)")).observation

    async def step(self, action_text: str) -> StepResult:
        """As `BrowserEnv.step`; on simplified HTML, elements are its numbers."""
        if not self._numbered or self._played is None:
            result = await super().step(action_text)
        else:
            result = await self._act_on_numbers(action_text)
            result = dataclasses.replace(result, observation=await self._as_shown(result.observation))
        self._ended = result if result.agent_done else None
        return result

    async def _act_on_numbers(self, action_text: str) -> StepResult:
        """An action whose elements are the numbers of the simplified HTML."""
        try:
            async with self._deadline(f"step {action_text!r:.60}"):
                action = await translate(self.page, action_text, self._dialect)
        except ActionError as error:
            result = await super().step(_LOOK)
            return dataclasses.replace(result, action="", error=str(error))
        if action.error:
            result = await super().step(_LOOK)
            return dataclasses.replace(result, action=action.written, error=action.error)
        blocked = 0
        for call in action.calls:
            result = await super().step(call)
            blocked += result.blocked
            if result.error:
                break
        return dataclasses.replace(result, action=action.written, blocked=blocked)

    async def _as_shown(self, observation: Observation) -> Observation:
        """The observation as the config asks for it."""
        if not self._numbered:
            return observation
        async with self._deadline("simplifying the page"):
            return dataclasses.replace(observation, text=(await observe_html(self.page)).text)

    async def finish(self) -> Verdict:
        """Validate the episode as it stands and give its sites back; call it once the episode is over.

        Training tasks get no reward and no note: the outcome model judges them.
        """
        from playwright.async_api import Error

        task, lease, access = self._played, self._lease, self._access
        try:
            if task is None or lease is None or access is None or not is_scored(task):
                return Verdict(None)
            ended = self._ended
            answer = ended.message if ended else None
            infeasible = ended is not None and bool(_INFEASIBLE.match(ended.action))
            state = await capture(self.context, self.page, answer=answer, infeasible=infeasible)
            return await access.evaluator.validate(task, lease.urls, state)
        except Error as error:
            return Verdict(None, f"the page was gone before it could be read: {str(error).splitlines()[0]}")
        finally:
            self._release()

    async def close(self) -> None:
        """Close the profile and give the sites back."""
        self._release()
        await super().close()

    def _release(self) -> None:
        lease, self._lease, self._played, self._ended = self._lease, None, None, None
        if lease is not None:
            lease.release()


class _ProfileMaker:
    """The shared browser, with options of ours in every profile it makes."""

    def __init__(self, browser: Browser) -> None:
        self._browser = browser
        self.options: dict[str, Any] = {}
        self.hide_scrollbars = False

    async def new_context(self, **options: Any) -> BrowserContext:
        context = await self._browser.new_context(**options, **self.options)
        if self.hide_scrollbars:
            context.on("page", hide_scrollbars)
        return context

    def __getattr__(self, name: str) -> Any:
        return getattr(self._browser, name)


async def finish_episode(env: WebArenaEnv, trajectory: Trajectory) -> Trajectory:
    """The trajectory with BrowserGym's score; frees the sites. Unfinished episodes only have their sites freed."""
    if not trajectory.status.finished:
        with contextlib.suppress(BrowserError):
            await env.close()
        return trajectory
    verdict = await env.finish()
    if verdict.note:
        logger.warning("%s: %s", trajectory.trajectory_id, verdict.note)
    return dataclasses.replace(trajectory, env_reward=verdict.reward, env_error=verdict.note)
