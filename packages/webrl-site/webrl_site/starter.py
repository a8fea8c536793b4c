"""What `webrl init-site` writes: a config with comments, and first instructions from the pages found, both tried.

API: `start_config(url, ...)` to look around with, `starter_instructions(pages)`, of which `await prove(browser, config,
starters)` keeps those that their own answers solve; `write_starter(out, found, ...)`; `await try_site(browser, config)`
plays one instruction without doing anything: does the site open, what is seen (`num_elements(text)`), and is that no
success.
"""

from __future__ import annotations

import json
import re
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from itertools import groupby
from pathlib import Path
from typing import Any
from urllib.parse import urljoin, urlsplit

from webrl.config import RolloutConfig, RunConfig, validate_config
from webrl.errors import BrowserError, UsageError
from webrl.llm.interface import PolicyOutput, Turn
from webrl.rollouts.browser import Browser
from webrl.rollouts.episode import run_episode
from webrl.runs.store import write_text
from webrl.types import Trajectory
from webrl_site.env import LEAVES, WebEnv, changes
from webrl_site.explore import DiscoveredPage, Exploration, plain_name, without_token
from webrl_site.settings import WebConfig
from webrl_site.suite import OwnSite
from webrl_site.tasks import checks_of, has_checks, heldout_tasks, site_name, task_at, training_tasks

_TEMPLATE = Path(__file__).with_name("starter.yaml.template")
_HELDOUT_EVERY = 3
_MAX_NAME = 100
_ELEMENT = re.compile(
    r"\[[a-zA-Z]*\d+\] (?:button|link|checkbox|radio|textbox|searchbox|combobox|tab|menuitem|switch|"
    r"generic .*(?:clickable|editable)|generic, (?:clickable|editable))"
)


@dataclass(frozen=True)
class Starter:
    """A first instruction with its own answer."""

    entry: dict[str, Any]
    """As written to a file."""
    page: DiscoveredPage
    """Where it is solved."""
    answer: str = ""
    """What is to be said there, as that page shows it; "": that one is done."""


def start_config(url: str, name: str, num_pages: int, login: Mapping[str, Any], *, writes: bool = False) -> RunConfig:
    """Settings to look around with, read-only unless pages may write. Raises UsageError: no web address."""
    web = {"name": name, "start_urls": [url], "explore_pages": num_pages, "login": login, "read_only": not writes}
    return validate_config({"tasks": {"suite": "web"}, "rollout": {"web": web}}, "init-site")


def guess_login(page: DiscoveredPage, url: str, user: str | None, variable: str) -> dict[str, Any] | None:
    """The log-in through the page's form; None without such a form.

    Args:
        page: what one sees who opens `url` without being logged in; being let in there is the proof of the log-in if
            one is sent elsewhere before.
        user: None if the form asks for a password alone.
        variable: environment variable with the password.

    Raises:
        UsageError: it asks for a user and none is given, or the other way round.
    """
    form = page.login
    if form is None or form.password is None:
        return None
    if form.user and not user:
        raise UsageError(f"{page.url}: its log-in asks for {form.user!r} too: give --user NAME")
    if user and not form.user:
        raise UsageError(
            f"{page.url}: its log-in asks for {form.password!r} alone: leave --user out and name the variable that has "
            "it, --password-env PASSWORD"
        )
    fields = {"fields": {form.user: user} if user else {}, "secrets": {form.password: f"${{{variable}}}"}}
    submit = {"submit": form.submit} if form.submit else {}
    proof = {"proof_url": url} if urlsplit(page.url).path != urlsplit(url).path else {}
    return {"form": {"url": page.url, **fields, **submit}, **proof}


def write_starter(
    out: Path, found: Exploration, web: WebConfig, login: Mapping[str, Any], instructions: Sequence[Mapping[str, Any]]
) -> list[Path]:
    """Write the config and the instructions, of which every third is held out; return the files, the config first.

    What pages say of themselves is written to the config as quoted ASCII, so that none of it is YAML.
    """
    url = web.start_urls[0]
    heldout = instructions[_HELDOUT_EVERY - 1 :: _HELDOUT_EVERY]
    parts = ([entry for entry in instructions if entry not in heldout], heldout)
    written = {path: entries for path, entries in zip(starter_files(out), parts, strict=True) if entries}
    for path, entries in written.items():
        write_text(path, "".join(json.dumps(entry, ensure_ascii=False) + "\n" for entry in entries))
    train_file, heldout_file = (json.dumps(str(path)) if path in written else "" for path in starter_files(out))
    pages = [f"#   {json.dumps(without_token(page.url))} {json.dumps(page.title)}" for page in found.pages]
    seen = (url, *(page.url for page in found.pages))
    log_out = f"(?i){LEAVES}"
    unsafe = [_pattern(address) for address in found.unsafe if not re.search(log_out, address)]
    forbidden = dict.fromkeys((log_out, *(p for p in unsafe if not any(re.search(p, page) for page in seen))))
    text = _TEMPLATE.read_text(encoding="utf-8").format(
        name=web.name,
        read_only=json.dumps(web.read_only),
        url=json.dumps(url),
        origin=urljoin(url, "/").rstrip("/"),
        train=train_file,
        heldout=heldout_file,
        login=_login(found, url, login),
        forbidden="\n".join(f"      - {json.dumps(pattern)}" for pattern in forbidden),
        pages="\n".join(pages),
    )
    write_text(out, text)
    return [out, *written]


def _login(found: Exploration, url: str, login: Mapping[str, Any]) -> str:
    """The log-in that was used, or as a comment a guess."""
    if login:
        return f"    login: {json.dumps(login)}"
    page = next((page for page in found.pages if page.login), None)
    if page is None or page.login is None:
        return '    # login: {form: {url: /login, fields: {User: ann}, secrets: {Password: "${PASSWORD}"}}}'
    user = "NAME" if page.login.user else None
    guess = guess_login(page, url if page is found.pages[0] else page.url, user, "PASSWORD")
    return f"    # This looks like the log-in (init-site {page.login.options}):\n    # login: {json.dumps(guess)}"


def _pattern(url: str) -> str:
    """An expression for an address, and for that of other entries (`/notes/3/delete`)."""
    parts = urlsplit(url)
    in_path = changes(parts._replace(query="", fragment="").geturl()) or not parts.query
    text = parts.path if in_path else f"{parts.path}?{parts.query}"
    open_ends = re.sub(r"[^/?&=]*[0-9*][^/?&=]*", "\0", without_token(text))
    return f"^[a-z]+://[^/]+{_escape(open_ends).replace(chr(0), '[^/?&]+')}{'([?#]|$)' if in_path else ''}"


def _escape(text: str) -> str:
    """A regular expression for the text itself; unlike `re.escape` it leaves spaces and dashes readable."""
    return re.sub(r"[.^$*+?{}\[\]\\|()]", r"\\\g<0>", text)


def starter_files(out: Path) -> tuple[Path, Path]:
    """Return the instruction files next to a config: training, held out."""
    return out.with_name(f"{out.stem}_train.jsonl"), out.with_name(f"{out.stem}_heldout.jsonl")


def starter_instructions(pages: Sequence[DiscoveredPage]) -> list[Starter]:
    """Make instructions from names that the agent sees: open a page, and report its heading."""
    found: list[Starter] = []
    for number, page in enumerate(pages):
        name = plain_name(page.link)
        if page.url == pages[0].url or not _says_something(name):
            continue
        there = [{"url": f"^{_escape(page.url)}$"}]
        found.append(Starter({"id": f"go-{number}", "instruction": f'Go to the page "{name}".', "checks": there}, page))
        if _says_something(page.heading) and page.heading.casefold() not in name.casefold():  # it would say the answer
            text = f'What is the main heading of the page "{name}"? Answer with its text.'
            check = [{"answer": _escape(page.heading)}]
            entry = {"id": f"heading-{number}", "instruction": text, "checks": check}
            found.append(Starter(entry, page, page.heading))
    return found or [title_instruction(pages[0], is_checked=_says_something(pages[0].title))]


def title_instruction(page: DiscoveredPage, *, is_checked: bool) -> Starter:
    """Make an instruction that fits any page; the outcome model judges it where the title cannot be checked."""
    checks = [{"answer": _escape(page.title)}] if is_checked else []
    text = "What is the title of this page? Answer with its text."
    return Starter({"id": "title", "instruction": text, "checks": checks}, page, page.title)


def _says_something(name: str) -> bool:
    """Check whether a name is usable in a sentence: `0`, `›` or `#! ?` would not identify a page."""
    return name[:1].isalnum() and any(map(str.isalpha, name)) and len(name) <= _MAX_NAME


class Visitor:
    """Opens a page, then says an answer if the page shows it; without either it does nothing and is done."""

    fingerprint = "visitor"

    def __init__(self, target: str = "", answer: str = "") -> None:
        self._target, self._answer = target, answer

    async def act(self, turn: Turn) -> PolicyOutput:
        """The page's address first, then what is to be said."""
        answer = self._answer
        said = answer if not answer or f" {answer!r}" in turn.observation else "The page does not show it."
        action = f"send_msg_to_user({said or 'done'!r})" if turn.history else "noop()"
        if not turn.history and self._target:
            action = f"goto({self._target!r})"
        return PolicyOutput((), (), (), action, turn.observation)


async def prove(
    browser: Browser, config: RolloutConfig, starters: Sequence[Starter]
) -> tuple[list[Starter], list[str]]:
    """Return the instructions that are solved by their own answers, and why the others are not.

    The instructions of one page are played together, its last one left out until the rest is solved.
    """
    kept: list[Starter] = []
    dropped: list[str] = []
    env = WebEnv(browser, config)
    try:
        for _, group in groupby(starters, lambda starter: starter.page.url):
            together = list(group)
            while together:
                last = together[-1]
                task = task_at(config, f"{site_name(config)}.{last.entry['id']}", config.web.start_urls[0], "prove")
                checks = [check for starter in together for check in starter.entry["checks"]]
                task = replace(task, extra={"checks": checks})
                visitor = Visitor(last.page.target, last.answer)
                played = await run_episode(env, visitor, task, config, trajectory_id="proof")
                finished = played.status.finished
                why = (await env.finish()).note if finished else f"{played.status}: {played.message}"
                if not why:
                    break
                dropped.append(f"{together.pop().entry['instruction']} {why}")
            kept += together
    finally:
        await env.close()
    return kept, dropped


async def try_site(browser: Browser, config: RunConfig) -> tuple[Trajectory, list[str]]:
    """Play the first instruction without doing anything, and look at the start pages of all others.

    Returns:
        The episode, and the ids of all instructions whose checks hold already where they start.

    Raises:
        BrowserError: the episode failed, or a start page does not open, with its error.
    """
    first, *others = [*training_tasks(config), *heldout_tasks(config)]
    suite = OwnSite()
    suite.check(first, config.rollout)
    env = WebEnv(browser, config.rollout)
    try:
        trajectory = await run_episode(env, Visitor(), first, config.rollout, trajectory_id="trial")
        trajectory = await suite.finish(env, trajectory)
        if not trajectory.status.finished:
            raise BrowserError(f"{first.task_id}: {trajectory.status}: {trajectory.message}")
        held = [first.task_id] if trajectory.env_reward else []
        for _, group in groupby(filter(has_checks, others), lambda task: task.start_url):
            together = list(group)
            await env.reset(together[0])
            held += [task.task_id for task in together if (await env.score(checks_of(task))).reward]
    finally:
        await env.close()
    return trajectory, held


def num_elements(text: str) -> int:
    """Elements of a page's text that can be acted on (in the axtree form)."""
    return len(_ELEMENT.findall(text))
