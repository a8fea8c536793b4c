"""`webrl doctor`."""

from __future__ import annotations

import argparse
import asyncio

from webrl.cli.checks import CHECKS, MISSING, OK, Check, run_checks, show
from webrl.errors import UsageError


def add_arguments(parser: argparse.ArgumentParser) -> None:
    """Options of the subcommand."""
    parser.add_argument("checks", nargs="*", metavar="CHECK", help=f"default: all of {', '.join(CHECKS)}")
    parser.add_argument("--sites", action="store_true", help="check the WebArena sites instead (reachable, log-in)")
    parser.add_argument("--config", metavar="CONFIG", help="with --sites: where they are (default: WA_* variables)")
    parser.add_argument("--json", action="store_true", help="print the findings as JSON")


def main(args: argparse.Namespace) -> int:
    """Print the findings; 1 if a core piece is missing, or with `--sites` a site."""
    if args.config and not args.sites:
        raise UsageError(f"--config {args.config} says where sites are: it goes with --sites")
    if args.sites and args.checks:
        raise UsageError(f"--sites checks the WebArena sites only; leave {' '.join(args.checks)!r} out, or --sites")
    checks = _site_checks(args.config) if args.sites else run_checks(args.checks)
    show(checks, as_json=args.json)
    return int(any(check.state == MISSING for check in checks))


def _site_checks(config: str | None) -> list[Check]:
    from webrl.config import load_config, plugins
    from webrl.config.resources import find_config

    check_sites = plugins.load(plugins.HOOKS, "check-sites")
    found = asyncio.run(check_sites(load_config(find_config(config) if config else None).webarena))
    if not found:
        fix = "set rollout.webarena.sites in a config (--config), or WA_SHOPPING, WA_GITLAB, … (docs/webarena.md)"
        return [Check("sites", MISSING, "no WebArena site is configured", fix)]
    return [
        Check(
            name=site.site,
            state=OK if site.ok else MISSING,
            detail=f"{site.url}, version {site.version}, used by {site.held_by}",
            fix=site.problem,
        )
        for site in found
    ]
