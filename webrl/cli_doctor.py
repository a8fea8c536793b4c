"""`webrl doctor`."""

from __future__ import annotations

import argparse

from webrl import doctor


def add_arguments(parser: argparse.ArgumentParser) -> None:
    """Options of the subcommand."""
    parser.add_argument("checks", nargs="*", metavar="CHECK", help=f"default: all of {', '.join(doctor.CHECKS)}")
    parser.add_argument("--json", action="store_true", help="print the findings as JSON")


def main(args: argparse.Namespace) -> int:
    """Print the findings; 1 if a core piece is missing."""
    return doctor.main(args.checks, args.json)
