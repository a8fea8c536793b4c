"""`webrl constraints`: the versions that this release was tested with, as a constraints file for pip."""

from __future__ import annotations

import argparse
from pathlib import Path

import webrl
from webrl.config.resources import find_shipped
from webrl.errors import UsageError


def add_arguments(parser: argparse.ArgumentParser) -> None:
    """Options of the subcommand."""
    parser.epilog = "webrl constraints > constraints.txt && pip install -c constraints.txt 'webrl[grpo]'"


def main(args: argparse.Namespace) -> int:  # noqa: ARG001 - every subcommand's signature
    """Print the file; UsageError if it is not there (a broken installation)."""
    path = find_shipped("constraints.txt")
    if path is None:
        raise UsageError(f"constraints.txt is missing in {Path(webrl.__file__).parent}; reinstall webrl")
    print(path.read_text(encoding="utf-8"), end="")
    return 0
