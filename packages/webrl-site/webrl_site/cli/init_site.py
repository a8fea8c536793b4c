"""`webrl init-site URL`: a config and first instructions for your own site, tried once."""

from __future__ import annotations

import argparse
import asyncio
import os
import re
from collections.abc import Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any

from webrl.errors import BrowserError, DataError, UsageError

if TYPE_CHECKING:
    from webrl.rollouts.browser import Browser

_SHOWN_LINES = 12
_LOGIN_PAGES = 4
"""Number of pages searched for a log-in that is not on the start page."""


def add_arguments(parser: argparse.ArgumentParser) -> None:
    """Add the options."""
    parser.add_argument("url", metavar="URL", help="start page, such as http://127.0.0.1:5000/")
    parser.add_argument(
        "--out", type=Path, metavar="FILE", help="config to write, instructions next to it (default: NAME.yaml)"
    )
    parser.add_argument("--name", help="the site's name (default: from --out, else the address)")
    parser.add_argument("--pages", type=int, default=12, metavar="N", help="pages to visit at most (default: 12)")
    parser.add_argument(
        "--user",
        metavar="NAME",
        help="log in as this user, through the form on the start page or on the log-in page that it links to",
    )
    parser.add_argument(
        "--password-env",
        metavar="VARIABLE",
        help="variable with that password (default: PASSWORD); leave --user out if the form asks only for a password",
    )
    parser.add_argument(
        "--login-state", type=Path, metavar="FILE", help="a browser storage state to explore with, logged in"
    )
    parser.add_argument(
        "--writes",
        action="store_true",
        help="let pages send POST and WebSocket requests as they open, and write `read_only: false`: for programs that "
        "load their content that way",
    )
    parser.add_argument("--basic-user", metavar="NAME", help="user for HTTP Basic authentication")
    parser.add_argument(
        "--basic-password-env", metavar="VARIABLE", help="with --basic-user: its password (default: BASIC_PASSWORD)"
    )


def main(args: argparse.Namespace) -> int:
    """Look around, write, try; returns the exit code."""
    from webrl_site.starter import starter_files

    if args.basic_password_env is not None and not args.basic_user:
        raise UsageError(f"--basic-password-env {args.basic_password_env} needs --basic-user NAME")
    host = args.url.partition("://")[2].partition("/")[0].rpartition("@")[2]
    text = args.name or (args.out.stem if args.out else host)
    name = re.sub(r"[^a-z0-9_-]+", "-", text.lower()).strip("-_") or "site"
    out: Path = args.out or Path(f"{name}.yaml")
    if taken := [str(path) for path in (out, *starter_files(out)) if path.exists()]:
        raise UsageError(f"{', '.join(taken)}: already there; choose another --out, or move it away")
    asyncio.run(_write_and_try(args, out, name))
    return 0


async def _write_and_try(args: argparse.Namespace, out: Path, name: str) -> None:
    from webrl.config import load_config
    from webrl.rollouts.browser import Browser
    from webrl.runs.text import visible
    from webrl_site.starter import num_elements, start_config, try_site

    # refuses what is no address before a browser starts
    config = start_config(args.url, name, args.pages, {}, writes=args.writes)
    async with Browser(max_page_mb=config.rollout.max_page_mb) as browser:
        await _write_site(browser, args, out, name)
        try:
            trial, held = await try_site(browser, load_config(out))
        except BrowserError as error:
            text = f"{error}; {out} is written but untried: look at it before `webrl run {out}`"
            raise BrowserError(text) from None
    seen = trial.steps[0].observation
    print(visible(f"tried {trial.task.task_id}: {trial.instruction}"))
    print(f"the agent sees {len(seen)} characters, {num_elements(seen)} elements it can act on:")
    for line in seen.splitlines()[:_SHOWN_LINES]:
        print(visible(f"  {line:.110}"))
    if not num_elements(seen):
        print("nothing that it can act on: is the page drawn (a canvas), or slower than rollout.settle_cap_s?")
    verdict = "no reward: the instruction has no checks, the outcome model judges"
    if trial.env_reward is not None:
        verdict = "reward 1" if trial.env_reward else "reward 0, as it should"
    print(f"an agent that does nothing gets {verdict}")
    if held:
        print(visible(f"the checks of {', '.join(held)} already hold at the start: fix them"))
    print(f"next: read {out}, write instructions, then `webrl run {out}`")
    print(f"to show it how: `webrl record-demos {out} --by-hand`")


async def _write_site(browser: Browser, args: argparse.Namespace, out: Path, name: str) -> None:
    from webrl.runs.text import visible
    from webrl_site.explore import explore, shows_only_login, without_token
    from webrl_site.starter import prove, start_config, starter_instructions, title_instruction, write_starter

    login = await _login(browser, args, name)
    config = start_config(args.url, name, args.pages, login, writes=args.writes).rollout
    found = await explore(browser, config, args.pages)
    asking = None if login.keys() - {"basic"} else next((page for page in found.pages if page.login), None)
    if asking and asking.login and shows_only_login(found):
        raise DataError(
            f"{asking.url} is a log-in, and nothing else is shown without it: give {asking.login.options}, or "
            "--login-state FILE (docs/own_site.md); nothing is written"
        )
    proved, dropped = await prove(browser, config, starter_instructions(found.pages))
    proved = proved or [title_instruction(found.pages[0], is_checked=False)]
    files = write_starter(out, found, config.web, login, [starter.entry for starter in proved])
    for page in found.pages:
        print(visible(f"  {without_token(page.url)}  {page.title!r:.60}  {len(page.text)} characters"))
    if len(found.pages) == 1:
        print("no other page was opened: the one instruction is about this one; write those that you need")
    _print_some("not visited", found.skipped)
    if found.left:
        enough = f"--pages {args.pages}" if len(found.pages) >= args.pages else "too many links led to no new page"
        _print_some(f"not visited ({enough})", found.left)
    _print_some("left out, as its own answer does not solve it", dropped)
    sockets = [
        f"pages asked for {page.socket:.200}, which read_only does not allow" for page in found.pages if page.socket
    ]
    refused = [f"requests of pages were refused: {page.refused:.200}" for page in found.pages if page.refused]
    for told in (*sockets[:1], *refused[:1]):
        print(visible(told))
    if sockets or refused:
        print(
            "  if something is missing without that, move the files away and give --writes; "
            "agents may then change the site"
        )
    if asking and asking.login:
        print(f"{visible(asking.url)} has a log-in: to use it, move the files away and give {asking.login.options}")
    print(f"wrote {', '.join(map(str, files))}")


def _print_some(what: str, lines: Sequence[str]) -> None:
    from webrl.runs.text import visible

    for line in lines[:_SHOWN_LINES]:
        print(visible(f"  {what}: {line:.300}"))
    if len(lines) > _SHOWN_LINES:
        print(f"  and {len(lines) - _SHOWN_LINES} more")


async def _login(browser: Browser, args: argparse.Namespace, name: str) -> dict[str, Any]:
    """Return the log-ins that the options describe, a form looked up on the start page; {} without one.

    Raises:
        UsageError: two ways at once, or no password in the environment.
        DataError: no form with a password on the start page, nor where its links to a log-in lead.
    """
    from webrl_site.explore import LOGIN_LINK, explore
    from webrl_site.starter import guess_login, start_config

    by_form = args.user or args.password_env
    if args.login_state and by_form:
        raise UsageError("--login-state and --user or --password-env: choose one way to log in")
    login: dict[str, Any] = {}
    if args.basic_user:  # HTTP Basic authentication
        variable = args.basic_password_env or "BASIC_PASSWORD"
        _require_variable(f"--basic-user {args.basic_user}", variable)
        login = {"basic": {"user": args.basic_user, "password": f"${{{variable}}}"}}
    if args.login_state:
        return login | {"state_file": str(args.login_state)}
    if not by_form:
        return login
    variable = args.password_env or "PASSWORD"
    _require_variable(f"--user {args.user}" if args.user else f"--password-env {variable}", variable)
    config = start_config(args.url, name, 1, login, writes=args.writes).rollout
    start = (await explore(browser, config, 1)).pages[0]
    guess = guess_login(start, args.url, args.user, variable)
    if guess is None:
        pages = (await explore(browser, config, _LOGIN_PAGES, LOGIN_LINK)).pages
        guess = next(filter(None, (guess_login(page, page.url, args.user, variable) for page in pages)), None)
    if guess is None:
        raise DataError(f"{start.url}: no log-in form there or on a page that it links to; use --login-state FILE")
    return login | guess


def _require_variable(option: str, variable: str) -> None:
    if not os.environ.get(variable):
        raise UsageError(f"{option}: the environment variable {variable!r} is not set; export it")
