#!/usr/bin/env python3
"""A run folder as one small file, to continue elsewhere: `carry_run.py pack RUN OUT.zip`, `… unpack OUT.zip DIR`.

Merged weights are not packed: with lora_rank > 0 they are made again from the adapters, bit for bit. Then
`webrl run CONFIG --run DIR` continues (docs/one_gpu.md).
"""

from __future__ import annotations

import argparse
import logging
import math
import os
import sys
from collections.abc import Sequence
from pathlib import Path

from webrl.cli.end import end_clearly
from webrl.cli.parser import Parser

_BASE = "model that the run started from, where it is not where the run's config says; repeatable"
_WHOLE = "carry weights that were trained whole (lora_rank=0) as they are, the newest of each model"


def build_parser() -> argparse.ArgumentParser:
    """Two commands."""
    parser = Parser(description=__doc__)
    commands = parser.add_subparsers(dest="command", required=True)
    pack = commands.add_parser("pack", help="a run folder into one file")
    pack.add_argument("run", type=Path, metavar="RUN", help="run folder that no process works in")
    pack.add_argument("out", type=Path, metavar="OUT.zip", help="file; `split -b 50M` cuts it, `cat` joins it")
    pack.add_argument("--whole", action="store_true", help=_WHOLE)
    unpack = commands.add_parser("unpack", help="a packed run into a new run folder")
    unpack.add_argument("archive", type=Path, metavar="OUT.zip", help="what `pack` wrote")
    unpack.add_argument("run", type=Path, metavar="DIR", help="new folder, with the run's name: runs/NAME")
    unpack.add_argument("--max-gib", type=_gib, default=64.0, metavar="N", help="largest folder (default: 64)")
    for command in (pack, unpack):
        command.add_argument("--base", action="append", default=[], metavar="DIR", help=_BASE)
    return parser


def main(argv: Sequence[str] | None = None) -> int:
    """Parse, pack or unpack, say what came of it; gives the exit code (2: usage, 1: anything else)."""
    args = build_parser().parse_args(argv)
    os.environ.setdefault("HF_HUB_DISABLE_PROGRESS_BARS", "1")
    os.environ.setdefault("DS_ACCELERATOR", "cpu")  # weights are merged there; unset, DeepSpeed says what it guesses
    logging.basicConfig(level=logging.WARNING, format="%(message)s", stream=sys.stderr)
    logging.getLogger("webrl.runs.progress").setLevel(logging.INFO)
    return end_clearly("carry_run", lambda: _pack(args) if args.command == "pack" else _unpack(args))


def _gib(text: str) -> float:
    """Type of an amount of disk: a number above 0."""
    try:
        number = float(text)
    except ValueError:
        number = 0.0
    if not 0 < number < math.inf:
        raise argparse.ArgumentTypeError(f"{text!r} is not a number of GiB above 0")
    return number


def _pack(args: argparse.Namespace) -> int:
    from webrl.carry.pack import pack

    packed = pack(args.run, args.out, bases=args.base, whole=args.whole)
    for title, names in (("carried whole", packed.carried), ("weights left out", packed.left_out)):
        if names:
            print(f"{title}: {', '.join(names)}")
    for name in packed.manifest.bases.values():
        print(f"starts from {name}, which is not in the file")
    size = args.out.stat().st_size
    print(f"{args.out}  {size / 2**20:.1f} MiB of {packed.manifest.total_bytes / 2**20:.1f} MiB")
    return 0


def _unpack(args: argparse.Namespace) -> int:
    from webrl.carry.unpack import unpack

    manifest = unpack(args.archive, args.run, bases=args.base, max_bytes=int(args.max_gib * 2**30))
    print(f"{args.run}  {len(manifest.files)} files, {manifest.total_bytes / 2**20:.1f} MiB, as they were")
    print(f"continue with: webrl run CONFIG --run {args.run}")
    return 0


if __name__ == "__main__":
    sys.exit(main())
