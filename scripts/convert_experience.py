#!/usr/bin/env python3
"""Convert a released experience file: `python scripts/convert_experience.py webarena_lite_sft.pt OUT_DIR`.

Reads the pickle with a restricted unpickler and writes OUT_DIR/trajectories.jsonl and OUT_DIR/labels.jsonl, which
`scripts/process_data.py` takes as --rollout_path or --experience_paths.
"""

from __future__ import annotations

import argparse
import sys
from collections.abc import Sequence
from pathlib import Path

from webrl.cli.command import Parser, end_clearly


def main(argv: Sequence[str] | None = None) -> int:
    """Parse, convert, say where the output went; gives the exit code."""
    parser = Parser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("source", type=Path, metavar="FILE.pt", help="experience file of the released code")
    parser.add_argument("out", type=Path, metavar="OUT_DIR", help="folder for trajectories.jsonl and labels.jsonl")
    args = parser.parse_args(argv)
    return end_clearly("convert_experience", lambda: _convert(args.source, args.out))


def _convert(source: Path, out: Path) -> int:
    from webrl.interop.released import convert_released

    counts = convert_released(source, out)
    print(f"{out}: " + ", ".join(f"{n} {name}" for name, n in counts.items()))
    return 0


if __name__ == "__main__":
    sys.exit(main())
