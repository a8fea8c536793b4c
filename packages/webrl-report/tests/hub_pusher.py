"""Calls `webrl push` for the tests, in one process whose Hub is HF_ENDPOINT: a JSON line in, a JSON line out."""

from __future__ import annotations

import contextlib
import io
import json
import os
import sys

from webrl import cli


def main() -> None:
    for line in sys.stdin:
        asked = json.loads(line)
        os.environ.update(asked["environment"])
        out, err = io.StringIO(), io.StringIO()
        with contextlib.redirect_stdout(out), contextlib.redirect_stderr(err):
            try:
                code = cli.main(["push", *asked["arguments"]])
            except SystemExit as end:
                code = end.code
        print(json.dumps({"code": code, "out": out.getvalue(), "err": err.getvalue()}), flush=True)


if __name__ == "__main__":
    main()
