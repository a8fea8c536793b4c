"""`webrl init-site URL`: a config and first instructions for a site of one's own, tried once."""

from __future__ import annotations

import argparse
import asyncio
from pathlib import Path
from urllib.parse import urlsplit

from webrl.errors import UsageError

_SHOWN_LINES = 12


def add_arguments(parser: argparse.ArgumentParser) -> None:
    """Options of the subcommand."""
    parser.add_argument("url", metavar="URL", help="start page, such as http://127.0.0.1:5000/")
    parser.add_argument(
        "--out", type=Path, metavar="FILE", help="config to write, instructions beside it (default: NAME.yaml)"
    )
    parser.add_argument("--name", help="the site's name (default: from the address)")
    parser.add_argument("--pages", type=int, default=12, metavar="N", help="pages to visit at most (default: 12)")
    parser.add_argument(
        "--login-state", type=Path, metavar="FILE", help="a browser storage state to look around with, logged in"
    )


def main(args: argparse.Namespace) -> int:
    """Look around, write, try; gives the exit code."""
    from webrl.config import load_config
    from webrl.suites.web.explore import explore
    from webrl.suites.web.starter import choose_name, start_config, starter_files, write_starter
    from webrl.suites.web.trial import try_site

    name = choose_name(args.name or urlsplit(args.url).hostname or "site")
    out: Path = args.out or Path(f"{name}.yaml")
    if taken := [str(path) for path in (out, *starter_files(out)) if path.exists()]:
        raise UsageError(f"{', '.join(taken)}: there already; choose another --out, or move it away")
    config = start_config(args.url, name, args.pages, args.login_state)
    found = asyncio.run(explore(config.rollout, args.pages))
    files = write_starter(out, found, args.url, name, args.login_state)
    for page in found.pages:
        print(f"  {page.url}  {page.title!r:.60}  {len(page.text)} characters")
    for line in found.skipped[:_SHOWN_LINES]:
        print(f"  not visited: {line}")
    if len(found.skipped) > _SHOWN_LINES:
        print(f"  and {len(found.skipped) - _SHOWN_LINES} more")
    trial = asyncio.run(try_site(load_config(out)))
    print(f"wrote {', '.join(map(str, files))}")
    print(f"tried {trial.task_id}: {trial.instruction}")
    print(f"the agent sees {trial.num_chars} characters, {trial.num_elements} elements it can act on:")
    for line in trial.text.splitlines()[:_SHOWN_LINES]:
        print(f"  {line:.110}")
    print(f"an agent that does nothing gets {trial.verdict}")
    print(f"next: read {out}, write instructions, then `webrl run {out}`")
    return 0
