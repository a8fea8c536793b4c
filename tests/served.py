"""A server command as users start it."""

import contextlib
import re
import subprocess
import sys


@contextlib.contextmanager
def served(arguments, pattern, *, stderr=None, environment=None):
    """`webrl ARGUMENTS` until the block ends; gives the group of `pattern` in its first line, and the process."""
    command = [sys.executable, "-m", "webrl.cli", *arguments]
    process = subprocess.Popen(command, stdout=subprocess.PIPE, stderr=stderr, text=True, env=environment)
    try:
        line = process.stdout.readline()
        found = re.fullmatch(pattern, line)
        assert found, f"webrl {arguments[0]} said {line!r}"
        yield found[1], process
    finally:
        process.terminate()
        process.wait(20)
        process.stdout.close()
        if process.stderr is not None:
            process.stderr.close()
