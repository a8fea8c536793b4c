"""`webrl report`: one or several runs as one HTML file."""

from __future__ import annotations

import argparse
import sys
from pathlib import Path


def add_arguments(parser: argparse.ArgumentParser) -> None:
    """Add the options."""
    parser.add_argument("runs", nargs="+", type=Path, metavar="RUN", help="run folder; several are shown side by side")
    parser.add_argument(
        "--out",
        type=Path,
        metavar="FILE",
        help="file to write (default: report.html in the run folder; of several runs, next to the first)",
    )


def main(args: argparse.Namespace) -> int:
    """Write the report, print its path and what is missing from it; returns the exit code."""
    from webrl_report.page.build import write_report

    first: Path = args.runs[0]
    out = args.out or (first if len(args.runs) == 1 else first.absolute().parent) / "report.html"
    for text in write_report(args.runs, out):
        print(f"webrl: {text}", file=sys.stderr)
    print(out)
    return 0
