"""A gymnasium environment with the observations, actions and options of `browsergym.core.env.BrowserEnv`.

What differs: Chromium is shared and a MiniWoB++ page reused, a step waits until the page is quiet instead of half a
second, pages reach no other hosts than the task's (`rollout.allowed_hosts`), and there is no chat window. BrowserGym's
options that need what is not here are refused unless they have their defaults.
"""

from __future__ import annotations

import copy
import re
import time
from collections.abc import Callable, Mapping
from typing import Any, Literal, cast

import gymnasium
import numpy as np
from browsergym.core.action.highlevel import HighLevelActionSet
from browsergym.core.env import BrowserEnv as StockEnv
from browsergym.core.task import OpenEndedTask

from webrl.config import RolloutConfig
from webrl.errors import UsageError
from webrl.rollouts.blocking import BlockingEnv
from webrl.rollouts.sites import open_site
from webrl.types import Task
from webrl_serve.gym import OPENENDED
from webrl_serve.gym.page import ActionReader, RawEnv, RawObservation

GREETING = "Hi! I am your UI assistant, I can perform web tasks for you. What can I help you with?"
"""BrowserGym's first message of every conversation."""
_SEEDS = 2**32
_BROWSERGYMS_OWN = HighLevelActionSet().to_python_code
# BrowserGym's option -> (its default, why another value is refused)
_FIXED: dict[str, tuple[Any, str]] = {
    "slow_mo": (None, "actions are not slowed down"),
    "timeout": (None, "use rollout=RolloutConfig(step_timeout_s=…)"),
    "locale": (None, "pages have Chromium's own"),
    "timezone_id": (None, "pages have this machine's"),
    "tags_to_mark": ("standard_html", "other elements have no ids"),
    "headless": (True, "the browser has no window"),
    "wait_for_user_message": (False, "there is no chat window to write in"),
    "resizeable_window": (False, "the browser has no window"),
    "record_video_dir": (None, "nothing is filmed"),
    "pw_chromium_kwargs": ({}, "Chromium is shared; WEBRL_CHROMIUM= names another"),
    "pw_context_kwargs": ({}, "each environment has a fresh profile"),
    "use_raw_page_output": (False, "pages are driven over an asynchronous line, there is no `page` to hand out"),
    "pre_observation_delay": (0.5, "a step waits until the page is quiet, at most rollout.settle_cap_s"),
}


class Chat:
    """The conversation of an episode, as agents and their loops use BrowserGym's."""

    def __init__(self) -> None:
        self.messages: list[dict[str, Any]] = []
        """`role`, `timestamp` (seconds since the epoch) and `message` of each."""

    def add_message(self, role: Literal["user", "user_image", "assistant", "info", "infeasible"], msg: str) -> None:
        """Add one; those of `info` are for a chat window and not kept, as in BrowserGym. Raises ValueError."""
        if role not in ("user", "user_image", "assistant", "info", "infeasible"):
            raise ValueError(f"Invalid role: {role}")
        if role != "info":
            self.messages.append({"role": role, "timestamp": time.time(), "message": msg})


class WebEnv(gymnasium.Env[dict[str, Any], str]):
    """See the module docstring."""

    metadata: dict[str, Any] = {"render_modes": []}  # noqa: RUF012 (as gymnasium declares it)

    def __init__(
        self,
        site: str,
        task_kwargs: Mapping[str, Any] | None = None,
        viewport: Mapping[str, int] | None = None,
        terminate_on_infeasible: bool = True,
        action_mapping: Callable[[str], str] | None = _BROWSERGYMS_OWN,
        rollout: RolloutConfig | None = None,
        **options: Any,
    ) -> None:
        """Nothing starts before the first reset.

        Args:
            site: set by the id.
            task_kwargs: `start_url` and `goal` of `webrl/openended`; MiniWoB++ pages have none.
            viewport: `width` and `height` of the page of `webrl/openended`.
            action_mapping: `to_python_code` of the agent's `HighLevelActionSet`.
            rollout: deadlines, hosts, memory and upload folder of the pages.
            options: BrowserGym's other options, at their defaults.

        Raises:
            UsageError: an option or value that is not known here.
        """
        for name, value in options.items():
            if name not in _FIXED:
                raise UsageError(f"unknown option {name!r}; BrowserGym's are known, and rollout=RolloutConfig(…)")
            default, reason = _FIXED[name]
            if value != default:
                raise UsageError(f"{name}={value!r:.200}: {reason}; leave it out")
        self._site = site
        self._task_kwargs = dict(task_kwargs or {})
        known = ("start_url", "goal") if site == OPENENDED else ()
        for name in self._task_kwargs.keys() - set(known):
            raise UsageError(f"task_kwargs: {name!r} is not known; webrl/{site} has {', '.join(known) or 'none'}")
        for name in known:
            if not isinstance(given := self._task_kwargs.get(name), str) or not given:
                raise UsageError(
                    f"webrl/{site} needs task_kwargs={{'start_url': 'http://…', 'goal': '…'}}, found no {name}"
                )
        self._terminates = terminate_on_infeasible
        reader = ActionReader(action_mapping)
        config = _settings(site, rollout or RolloutConfig(), viewport)
        self._env = BlockingEnv(lambda _, browser, settings: RawEnv(browser, settings, reader), config)
        self.chat = Chat()
        self._goal = ""
        self._started = 0.0
        self._is_infeasible = False
        stock = StockEnv(OpenEndedTask)  # starts nothing
        self.observation_space = stock.observation_space
        self.action_space = stock.action_space

    def reset(
        self, *, seed: int | None = None, options: dict[str, Any] | None = None
    ) -> tuple[dict[str, Any], dict[str, Any]]:
        """Start an episode; without a seed the next one of the environment's own generator.

        Raises:
            UsageError: options, or a seed of more than 32 bits.
            DataError: an address that cannot be opened.
            BrowserError: page or browser failed.
        """
        if options:
            raise UsageError(f"reset(options={options!r:.200}): there are none; leave them out")
        super().reset(seed=seed)
        seed = int(self.np_random.integers(_SEEDS)) if seed is None else int(seed)
        if seed >= _SEEDS:
            raise UsageError(f"seed={seed}: a page's seed is below 2**32")
        task = Task(task_id=f"{self._site}.{seed}", site=self._site, seed=seed)
        if self._site == OPENENDED:
            url, goal = self._task_kwargs["start_url"], self._task_kwargs["goal"]
            task = Task(task_id=OPENENDED, site=OPENENDED, seed=seed, start_url=url, instruction=goal)
        first = cast("RawObservation", self._env.reset(task))
        self.chat = Chat()
        self.chat.add_message("assistant", GREETING)
        self.chat.add_message("user", first.goal)
        self._goal = first.goal
        self._is_infeasible = False
        self._started = time.time()
        return self._describe(first, "", ""), {"task_info": first.info["task_info"]}

    def step(self, action: str) -> tuple[dict[str, Any], float, bool, bool, dict[str, Any]]:
        """Carry out what the agent has written; errors are reported in `last_action_error`.

        Raises:
            BrowserError: page or browser failed; `reset` starts a new one.
        """
        result = self._env.step(action)
        seen = cast("RawObservation", result.observation)
        for role, text in seen.said:
            self.chat.add_message(cast("Any", role), text)
            self._is_infeasible |= role == "infeasible"
        waited = re.match(r"TimeoutError: .*?(\d+)ms exceeded", result.error)
        info = {
            **seen.info,
            "action_exec_timeout": float(waited[1]) / 1000 if waited else 0,
        }
        terminated = result.done or (self._terminates and self._is_infeasible)
        return self._describe(seen, action, result.error), result.reward, terminated, False, info

    def close(self) -> None:
        """Close the page, and Chromium if no other environment uses it."""
        self._env.close()

    def _describe(self, seen: RawObservation, action: str, error: str) -> dict[str, Any]:
        return {
            "chat_messages": tuple(copy.deepcopy(self.chat.messages)),
            "goal": self._goal,
            "goal_object": ({"type": "text", "text": self._goal},),
            **seen.fields,
            "last_action": action,
            "last_action_error": error,
            "elapsed_time": np.asarray([time.time() - self._started]),
        }


def _settings(site: str, config: RolloutConfig, viewport: Mapping[str, int] | None) -> RolloutConfig:
    """The settings of the pages. Raises UsageError: what observations and actions here do not have."""
    for name in ("observation", "random_ids", "dialect", "viewport", "screenshots", "page_details", "env", "backend"):
        if getattr(config, name) != getattr(RolloutConfig(), name):
            raise UsageError(
                f"rollout.{name}={getattr(config, name)!r}: observations here are BrowserGym's; leave it out"
            )
    if viewport is None:
        return config
    if site != OPENENDED:
        size = open_site(Task(task_id=site, site=site)).viewport
        raise UsageError(f"viewport={viewport!r:.200}: a MiniWoB page has its own, {size[0]} x {size[1]}; leave it out")
    sides = viewport if isinstance(viewport, Mapping) else {}
    if set(sides) != {"width", "height"} or not all(type(side) is int and side > 0 for side in sides.values()):
        raise UsageError(f"viewport={viewport!r:.200}: expected {{'width': …, 'height': …}} in whole pixels above 0")
    return RolloutConfig.model_validate(config.model_dump() | {"viewport": (sides["width"], sides["height"])})
