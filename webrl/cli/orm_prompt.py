"""`webrl orm-prompt`: the released outcome model's system text, from a clone of the released code."""

from __future__ import annotations

import argparse
from pathlib import Path

from webrl.reward.system_text import DEFAULT_PATH, describe, extract
from webrl.runs.store import write_text


def add_arguments(parser: argparse.ArgumentParser) -> None:
    """The options."""
    parser.add_argument(
        "clone", type=Path, metavar="CLONE", help="clone of github.com/THUDM/WebRL (parsed; nothing of it is run)"
    )
    parser.add_argument("--out", type=Path, metavar="FILE", default=DEFAULT_PATH, help=f"(default: {DEFAULT_PATH})")


def main(args: argparse.Namespace) -> int:
    """Write the text and say whether it is the known one; gives the exit code."""
    write_text(args.out, extract(args.clone) + "\n")
    print(describe(args.out))
    print(f"use it with label.system_prompt={args.out} label.prompt_format=webrl")
    return 0
