"""`webrl init-site URL`: a config and first instructions for a site of one's own, tried once.

`webrl init-site FOLDER` does it for an app of WebArena-Infinity, whose tasks are its instructions.
"""

from __future__ import annotations

import argparse
import asyncio
import os
from pathlib import Path
from typing import Any
from urllib.parse import urlsplit

from webrl.errors import BrowserError, DataError, UsageError

_SHOWN_LINES = 12
_LOGIN_PAGES = 4
"""So many pages are looked at for a log-in that is not on the start page."""


def add_arguments(parser: argparse.ArgumentParser) -> None:
    """Options of the subcommand."""
    parser.add_argument("url", metavar="URL", help="start page, such as http://127.0.0.1:5000/, or folder of an app")
    parser.add_argument(
        "--out", type=Path, metavar="FILE", help="config to write, instructions beside it (default: NAME.yaml)"
    )
    parser.add_argument("--name", help="the site's name (default: that of --out, else the address)")
    parser.add_argument("--pages", type=int, default=12, metavar="N", help="pages to visit at most (default: 12)")
    parser.add_argument(
        "--user",
        metavar="NAME",
        help="log in as this user, through the form on the start page, or behind its link to a log-in",
    )
    parser.add_argument(
        "--password-env", metavar="VARIABLE", help="with --user: variable with the password (default: PASSWORD)"
    )
    parser.add_argument(
        "--login-state", type=Path, metavar="FILE", help="a browser storage state to look around with, logged in"
    )
    parser.add_argument(
        "--basic-user", metavar="NAME", help="user of HTTP's own log-in, which the server itself asks for"
    )
    parser.add_argument(
        "--basic-password-env", metavar="VARIABLE", help="with --basic-user: its password (default: BASIC_PASSWORD)"
    )


def main(args: argparse.Namespace) -> int:
    """Look around, write, try; gives the exit code."""
    from webrl.suites.web.starter import choose_name, starter_files

    if args.password_env is not None and not args.user:
        raise UsageError(f"--password-env {args.password_env} goes with --user NAME, who logs in with that password")
    if args.basic_password_env is not None and not args.basic_user:
        raise UsageError(f"--basic-password-env {args.basic_password_env} goes with --basic-user NAME")
    app = Path(args.url)
    named = args.name or (args.out.stem if args.out else app.resolve().name if app.is_dir() else _host(args.url))
    name = choose_name(named or "site")
    out: Path = args.out or Path(f"{name}.yaml")
    if taken := [str(path) for path in (out, *starter_files(out)) if path.exists()]:
        raise UsageError(f"{', '.join(taken)}: there already; choose another --out, or move it away")
    if app.is_dir():
        _write_app(args, app, out, name)
    else:
        _write_site(args, out, name)
    try:
        _try(out)
    except BrowserError as error:
        raise BrowserError(f"{error}; {out} is written, and not tried: look at it before `webrl run {out}`") from None
    return 0


def _host(url: str) -> str:
    try:
        return urlsplit(url).netloc.rpartition("@")[2]
    except ValueError as error:
        raise UsageError(
            f"{url!r} is not a web address: {error}; a start page has the form http://host:port/path"
        ) from None


def _write_app(args: argparse.Namespace, app: Path, out: Path, name: str) -> None:
    from webrl.suites.web.infinity import is_app, write_app

    if not is_app(app):
        raise UsageError(f"{app} is no app: a folder of WebArena-Infinity has server.py and real-tasks.json")
    if args.user or args.login_state or args.basic_user:
        raise UsageError(
            "--user, --basic-user and --login-state go with a URL: an app of WebArena-Infinity has no log-in"
        )
    print(f"wrote {', '.join(map(str, write_app(app, out, name)))}")


def _write_site(args: argparse.Namespace, out: Path, name: str) -> None:
    from webrl.runs.spelling import visible
    from webrl.suites.web.explore import explore
    from webrl.suites.web.starter import start_config, write_starter

    login = _login(args, name)
    found = asyncio.run(explore(start_config(args.url, name, args.pages, login).rollout, args.pages))
    files = write_starter(out, found, args.url, name, login)
    for page in found.pages:
        print(visible(f"  {page.url}  {page.title!r:.60}  {len(page.text)} characters"))
    for line in found.skipped[:_SHOWN_LINES]:
        print(visible(f"  not visited: {line}"))
    if len(found.skipped) > _SHOWN_LINES:
        print(f"  and {len(found.skipped) - _SHOWN_LINES} more")
    if socket := next((page.socket for page in found.pages if page.socket), ""):
        print(f"pages asked for {visible(socket):.200}, which read_only keeps from them")
        print(f"  if they stay empty without it, set read_only: false in {out}; agents may then change the site")
    if not socket and (refused := next((page.refused for page in found.pages if page.refused), "")):
        print(f"requests of pages were refused: {visible(refused):.200}")
        print(f"  if something is missing without them, set read_only: false in {out}; agents may then change the site")
    asking = next((page for page in found.pages if page.asks_for_password), None)
    if asking is not None and not login.keys() - {"basic"}:
        what = "the start page" if asking is found.pages[0] else visible(asking.url)
        print(f"{what} is a log-in: move the files away and run again with --user NAME")
    print(f"wrote {', '.join(map(str, files))}")


def _try(out: Path) -> None:
    from webrl.config import load_config
    from webrl.runs.spelling import visible
    from webrl.suites.web.trial import try_site

    trial = asyncio.run(try_site(load_config(out)))
    print(visible(f"tried {trial.task_id}: {trial.instruction}"))
    print(f"the agent sees {trial.num_chars} characters, {trial.num_elements} elements it can act on:")
    for line in trial.text.splitlines()[:_SHOWN_LINES]:
        print(visible(f"  {line:.110}"))
    if not trial.num_elements:
        print("nothing that it can act on: is the page drawn (a canvas), or slower than rollout.settle_cap_s?")
    print(f"an agent that does nothing gets {trial.verdict}")
    print(f"next: read {out}, write instructions, then `webrl run {out}`")
    print(f"to show it how: `webrl record-demos {out} --by-hand`")


def _login(args: argparse.Namespace, name: str) -> dict[str, Any]:
    """The log-ins that the options describe, a form looked up on the start page; {} without one.

    Raises:
        UsageError: two ways at once, or no password in the environment.
        DataError: no form with a password on the start page, nor where its links to a log-in lead.
    """
    if args.login_state and args.user:
        raise UsageError("--login-state and --user: choose one way to log in")
    if args.login_state:
        return _basic(args) | {"state_file": str(args.login_state)}
    if not args.user:
        return _basic(args)
    variable = args.password_env or "PASSWORD"
    _require_variable(f"--user {args.user}", variable)
    from webrl.suites.web.explore import LOGIN_LINK, explore
    from webrl.suites.web.starter import guess_login, start_config

    config = start_config(args.url, name, 1, _basic(args)).rollout
    start = asyncio.run(explore(config, 1)).pages[0]
    guess = guess_login(start, args.url, args.user, variable)
    if guess is None:
        pages = asyncio.run(explore(config, _LOGIN_PAGES, LOGIN_LINK)).pages
        guess = next(filter(None, (guess_login(page, page.url, args.user, variable) for page in pages)), None)
    if guess is None:
        raise DataError(f"{start.url}: no password field there or behind a link to a log-in; use --login-state FILE")
    return _basic(args) | guess


def _basic(args: argparse.Namespace) -> dict[str, Any]:
    """HTTP's own log-in; {} without one. Raises UsageError: no password in the environment."""
    if not args.basic_user:
        return {}
    variable = args.basic_password_env or "BASIC_PASSWORD"
    _require_variable(f"--basic-user {args.basic_user}", variable)
    return {"basic": {"user": args.basic_user, "password": f"${{{variable}}}"}}


def _require_variable(option: str, variable: str) -> None:
    if not os.environ.get(variable):
        raise UsageError(f"{option}: the environment variable {variable!r} is not set; export it")
