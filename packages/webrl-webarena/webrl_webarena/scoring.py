"""The bridge to BrowserGym's validation; runs in the evaluator's thread (`evaluator.py`), imports WebArena's code.

BrowserGym reads site addresses from the environment at import, has the judge's model built in, and sleeps 3 s after
each navigation. `score` sets these three for one validation and leaves everything else as it is.
"""

from __future__ import annotations

import contextlib
import importlib
import importlib.util
import json
import os
import sys
import tempfile
import time
import types
import warnings
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any

from webrl.errors import JudgeError
from webrl.rollouts.interface import Score
from webrl.types import Task
from webrl_site.sites import resolve
from webrl_webarena.judge import AnswerJudge
from webrl_webarena.sites import SITES, host_of
from webrl_webarena.tasks import config_of

if TYPE_CHECKING:
    from playwright.sync_api import Page

SETTLE_MS = 3000
"""The evaluators' pause after a navigation; here the longest wait for the network to become idle."""
_NO_SITE = "http://{}.invalid"
_VARIABLES = (*(site.upper() for site in SITES), "HOMEPAGE")


@dataclass(frozen=True)
class FinalState:
    """The end of an episode.

    Example: `FinalState("http://host:3000/search", "<!DOCTYPE html>…", ("http://host:3000/search",), {…}, "42 min")`
    """

    url: str
    """Address of the active tab."""
    html: str
    """Its document, form contents included, scripts left out."""
    tabs: tuple[str, ...]
    """Addresses of all tabs."""
    storage: dict[str, Any]
    """Cookies and local storage (Playwright's storage state)."""
    answer: str | None = None
    """The agent's message; None if it was stopped (step limit, repeated action, parse failures)."""
    infeasible: bool = False
    """The agent said that the task cannot be done."""


def score(
    task: Task,
    urls: Mapping[str, str],
    accounts: Mapping[str, Mapping[str, str]],
    state: FinalState,
    page: Page,
    judge: AnswerJudge,
) -> Score:
    """BrowserGym's score of a final state.

    Args:
        page: shows the agent's last document; is navigated.
    """
    import requests
    from beartype.roar import BeartypeException
    from playwright.sync_api import Error

    allowed = {"", "newtab", *map(host_of, urls.values())}  # BrowserGym's safeguard over all tabs
    if not all(host_of(tab) in allowed for tab in state.tabs):
        return Score(0.0, f"left the sites: {', '.join(state.tabs)[:300]}")
    modules = _browsergym(urls, accounts, page, judge)
    # BrowserGym's task over our own config instead of one of its lists; only what its `validate` reads.
    config = resolve(config_of(task), urls, f"task {task.task_id!r}", SITES)
    handle, path = tempfile.mkstemp(suffix=".json")
    with os.fdopen(handle, "w") as file:
        json.dump(config, file)
    instance = object.__new__(modules.task.WebArenaInstance)
    instance.urls, instance.home_url = dict(urls), ""
    browser_task = object.__new__(modules.task.GenericWebArenaTask)
    browser_task.webarena_instance, browser_task.config, browser_task.config_file = instance, config, path
    evaluators = modules.full if task.task_id.startswith("webarena.") else modules.lite
    browser_task.evaluator = evaluators.evaluator_router(path)
    chat = [] if state.answer is None else [{"role": "assistant", "message": state.answer}]
    if state.infeasible:
        chat = [{"role": "infeasible", "message": state.answer or ""}]
    try:
        reward, *_ = browser_task.validate(page, chat)
    except JudgeError as error:
        return Score(None, str(error))
    except (Error, requests.RequestException) as error:
        reason = str(error).strip().splitlines()[0]
        return Score(None, f"a site failed during validation: {type(error).__name__}: {reason}"[:500])
    except (LookupError, TypeError, ValueError, AttributeError, BeartypeException) as error:
        # What the evaluator looks for is not there (no order, no such element): it has not been achieved.
        return Score(0.0, f"the evaluator found nothing to read: {type(error).__name__}: {error}"[:500])
    finally:
        Path(path).unlink(missing_ok=True)
    return Score(float(reward))


def _browsergym(
    urls: Mapping[str, str], accounts: Mapping[str, Mapping[str, str]], page: Page, judge: AnswerJudge
) -> types.SimpleNamespace:
    """BrowserGym's modules with our sites, judge and pauses."""
    from playwright.sync_api import Error

    addresses = {name: urls.get(name.lower(), _NO_SITE.format(name.lower().replace("_", "-"))) for name in _VARIABLES}
    modules = _import(addresses)
    for module in modules.holding_addresses:
        for name, url in addresses.items():
            setattr(module, name, url)
        module.ACCOUNTS = {**module.ACCOUNTS, **accounts}
        if "shopping_admin" in accounts:  # the shop's REST interface wants the administrator's
            module.ACCOUNTS["shopping_site_admin"] = accounts["shopping_admin"]
    for module in modules.asking:
        module.generate_from_openai_chat_completion = lambda messages, **_: judge.ask(messages)

    def sleep(seconds: float) -> None:
        """Wait at most `seconds`, until the newest page's network is idle."""
        with contextlib.suppress(Error):
            newest = page.context.pages[-1]
            newest.wait_for_load_state("networkidle", timeout=min(seconds * 1000, SETTLE_MS))

    for module in modules.sleeping:
        module.time = types.SimpleNamespace(**vars(time) | {"sleep": sleep})
    return modules


def _import(addresses: Mapping[str, str]) -> types.SimpleNamespace:
    """WebArena's modules; several seconds at the first call."""
    names = {
        "task": "browsergym.webarena.task",
        "lite": "browsergym.webarenalite.evaluators",
        "full": "webarena.evaluation_harness.evaluators",
        "lite_helpers": "browsergym.webarenalite.helper_functions",
        "full_helpers": "webarena.evaluation_harness.helper_functions",
        "env_config": "webarena.browser_env.env_config",
    }
    if all(name in sys.modules for name in names.values()):
        found = {key: sys.modules[name] for key, name in names.items()}
    else:
        # BrowserGym and libwebarena cannot be imported unless all of their variables are set
        values = {**addresses, **{f"WA_{name}": url for name, url in addresses.items()}}
        before = dict(os.environ)
        os.environ.update(values)
        try:
            with warnings.catch_warnings():
                warnings.simplefilter("ignore")  # beartype's, over type hints of 2023
                found = {key: importlib.import_module(name) for key, name in names.items()}
        finally:
            for name in values.keys() - before.keys():
                os.environ.pop(name, None)
            os.environ.update({name: before[name] for name in values.keys() & before.keys()})
    modules = types.SimpleNamespace(**found)
    modules.holding_addresses = (modules.env_config, modules.lite_helpers, modules.full_helpers)
    modules.asking = (modules.lite_helpers, modules.full_helpers)
    modules.sleeping = (modules.lite, modules.full)
    return modules
