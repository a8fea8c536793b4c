"""`webrl constraints`: the versions that this release was tested with, as a constraints file for pip."""

from __future__ import annotations

import argparse
from pathlib import Path

import webrl
from webrl.errors import UsageError


def add_arguments(parser: argparse.ArgumentParser) -> None:
    """Options of the subcommand."""
    parser.epilog = "webrl constraints > constraints.txt && pip install -c constraints.txt 'webrl[grpo]'"


def main(args: argparse.Namespace) -> int:  # noqa: ARG001 - every subcommand's signature
    """Print the file.

    Raises:
        UsageError: it is not there (a broken installation).
    """
    package = Path(webrl.__file__).parent
    for path in (package / "constraints.txt", package.parent / "constraints.txt"):
        if path.is_file():
            print(path.read_text(encoding="utf-8"), end="")
            return 0
    raise UsageError(f"constraints.txt is missing in {package}; reinstall webrl")
