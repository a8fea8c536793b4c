#!/usr/bin/env python3
"""GRPO in the browser: `python scripts/train_grpo.py`, which is `webrl grpo` with the public scripts' options.

Without options it trains the tiny actor on click tasks, on two CPU cores, in less than ten minutes.
"""

from __future__ import annotations

import sys

from webrl import cli


def main() -> int:
    """The subcommand on this script's arguments; gives the exit code."""
    return cli.main(["grpo", *sys.argv[1:]])


if __name__ == "__main__":
    sys.exit(main())
