#!/usr/bin/env python3
"""GRPO in the browser: `python scripts/train_grpo.py`, which is `webrl grpo` with the public scripts' options.

Without options it trains the tiny actor on click tasks, on two CPU cores, in less than ten minutes.
"""

from __future__ import annotations

import sys

from webrl import cli


def main() -> int:
    """The subcommand on this script's arguments; gives the exit code."""
    arguments = ["grpo", *sys.argv[1:]]
    if not {"-h", "--help", "--dry-run"} & set(arguments):
        cli.use_cpu_environment()
    return cli.main(arguments)


if __name__ == "__main__":
    sys.exit(main())
