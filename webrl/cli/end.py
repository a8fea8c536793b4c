"""How every command ends when something is wrong: one line on standard error, and an exit code."""

from __future__ import annotations

import os
import sys
from collections.abc import Callable
from pathlib import Path

from webrl.config.redaction import guard_output, redact
from webrl.errors import UsageError, WebRLError
from webrl.runs.disk import DISK_FULL


def end_clearly(name: str, work: Callable[[], int]) -> int:
    """Do a command's work; gives its exit code: 2 for usage errors, 1 for failures, 130 after Ctrl-C.

    What the system refuses (a full disk, a name that is too long) is an error of the user's, too, as long as it names
    the file. Anything else is a defect of ours and keeps its traceback.
    """
    guard_output()
    try:
        try:
            Path.cwd()
        except FileNotFoundError:  # no browser would start, and no path means anything
            raise UsageError("the working folder has been removed; go to another one (cd)") from None
        return work()
    except WebRLError as error:
        print(f"{name}: {redact(str(error))}", file=sys.stderr)
        return error.exit_code
    except KeyboardInterrupt:
        print(f"{name}: interrupted; the same command resumes from here", file=sys.stderr)
        return 130
    except BrokenPipeError:
        # The reader of our output has gone (`webrl … | head`); keep Python from complaining again at exit.
        os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())
        return 141
    except OSError as error:
        if error.filename is None and error.errno not in DISK_FULL:
            raise
        advice = "; free some space, the same command then resumes" if error.errno in DISK_FULL else ""
        print(f"{name}: {error.filename or 'a file'}: {error.strerror}{advice}", file=sys.stderr)
        return 1
