"""What every command shares: `Command` names a subcommand with its own module, `Parser` reads arguments, and
`end_clearly` turns an error into one line and an exit code.

A package adds a subcommand by a row in the entry-point group `webrl.commands` that names a `Command`. The module that
holds the object is imported for `webrl --help`, so it should import nothing else.
"""

from __future__ import annotations

import argparse
import difflib
import errno
import os
import sys
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Literal

from webrl.config.redaction import guard_output, redact
from webrl.errors import UsageError, WebRLError
from webrl.runs.disk import DISK_FULL

Group = Literal["run", "look", "serve", "make"]
GROUPS: tuple[Group, ...] = ("run", "look", "serve", "make")
"""How `webrl --help` groups the commands, in this order."""

RESUMES = "the same command resumes from here"
"""After Ctrl-C, of a command that keeps all that it has finished."""


@dataclass(frozen=True)
class Command:
    """A subcommand.

    Example: `Command("browse a run's episodes", "webrl_report.cli.view", "look", uses_torch=False)`
    """

    help: str
    """What it does, in a line."""
    module: str
    """The module with `add_arguments(parser)` and `main(args) -> int`, imported when the command is run."""
    group: Group
    """Where `webrl --help` lists it."""
    uses_torch: bool = True
    """Whether it computes with torch, which then gets the settings for this machine's CPU."""
    after_ctrl_c: str = ""
    """Printed after Ctrl-C: how to continue. Empty if there is nothing to continue, or the module says it itself."""


def end_clearly(name: str, work: Callable[[], int | None]) -> int:
    """Do a command's work; gives its exit code: 2 for usage errors, 1 for failures, 130 after Ctrl-C.

    A `KeyboardInterrupt` with a text says how to continue what was interrupted; without one there is nothing to say.
    What the system refuses (a full disk, a name that is too long) is an error of the user's, too, as long as it names
    the file. Anything else is a defect of ours and keeps its traceback.
    """
    guard_output()
    try:
        try:
            Path.cwd()
        except FileNotFoundError:  # no browser would start, and no path means anything
            raise UsageError("the working directory no longer exists; change to another one (cd)") from None
        return work() or 0
    except WebRLError as error:
        print(f"{name}: {redact(str(error))}", file=sys.stderr)
        return error.exit_code
    except KeyboardInterrupt as stop:
        print("; ".join([f"{name}: interrupted", *map(str, stop.args)]), file=sys.stderr)
        return 130
    except BrokenPipeError:
        # The reader of our output has gone (`webrl … | head`); keep Python from complaining again at exit.
        os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())
        return 141
    except OSError as error:
        if error.filename is None and error.errno not in DISK_FULL:
            raise
        fix = "raise the limit (ulimit -f)" if error.errno == errno.EFBIG else "free some space"
        advice = f"; {fix}, the same command then resumes" if error.errno in DISK_FULL else ""
        print(f"{name}: {error.filename or 'a file or standard output'}: {error.strerror}{advice}", file=sys.stderr)
        return 1


class Parser(argparse.ArgumentParser):
    """Refuses unknown options by name, with the nearest known one; none may be abbreviated; texts keep their lines."""

    def __init__(self, *args: Any, **kwargs: Any) -> None:
        # A command that takes a config has its own --help (`add_section_help`).
        ours: dict[str, Any] = {"allow_abbrev": False, "conflict_handler": "resolve"}
        super().__init__(*args, **ours | {"formatter_class": argparse.RawTextHelpFormatter} | kwargs)

    def parse_known_args(  # type: ignore[override]  # its overloads are argparse's
        self, args: Sequence[str] | None = None, namespace: argparse.Namespace | None = None
    ) -> tuple[argparse.Namespace, list[str]]:
        """Arguments without a dash may be left over, as in argparse; options end the program."""
        found, rest = super().parse_known_args(args, namespace)
        unknown = [argument for argument in rest if argument.startswith("-")]
        if unknown:
            option = unknown[0].partition("=")[0]
            places = (str(action.metavar).split()[0] for action in self._actions if not action.option_strings)
            close = [f"{place} without {option}" for place in places if option == f"--{place.lower()}"]
            close += difflib.get_close_matches(option, self._option_string_actions, n=1, cutoff=0.6)
            near = f"{option.lstrip('-')}=…" if "." in option else next(iter(close), "")  # with a dot: of the config
            hint = f"did you mean {near}? " if near else ""
            self.error(f"unrecognized arguments: {' '.join(rest)}; {hint}`{self.prog} --help` lists the known ones")
        return found, rest
