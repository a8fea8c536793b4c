"""`webrl constraints`: the versions that this release was tested with, as a constraints file for pip."""

from __future__ import annotations

import argparse

from webrl.config.resources import constraints_text


def add_arguments(parser: argparse.ArgumentParser) -> None:
    """Options of the subcommand."""
    parser.epilog = "webrl constraints > constraints.txt && pip install -c constraints.txt 'webrl[grpo]'"


def main(args: argparse.Namespace) -> int:  # noqa: ARG001 - every subcommand's signature
    """Print the file."""
    print(constraints_text(), end="")
    return 0
