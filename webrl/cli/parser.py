"""argparse with the nearest known option for one that is not known.

API: `Parser`, which its subcommands are of, too.
"""

from __future__ import annotations

import argparse
import difflib
from collections.abc import Sequence
from typing import Any


class Parser(argparse.ArgumentParser):
    """Refuses unknown options by name, with the nearest known one; no option may be abbreviated."""

    def __init__(self, *args: Any, **kwargs: Any) -> None:
        # A command that takes a config has a --help of its own (`add_section_help`).
        super().__init__(*args, **{"allow_abbrev": False, "conflict_handler": "resolve", **kwargs})

    def parse_known_args(  # type: ignore[override]  # its overloads are argparse's
        self, args: Sequence[str] | None = None, namespace: argparse.Namespace | None = None
    ) -> tuple[argparse.Namespace, list[str]]:
        """Arguments without a dash may be left over, as in argparse; options end the program."""
        found, rest = super().parse_known_args(args, namespace)
        unknown = [argument for argument in rest if argument.startswith("-")]
        if unknown:
            near = self._nearest(unknown[0].partition("=")[0])
            hint = f"did you mean {near}? " if near else ""
            self.error(f"unrecognized arguments: {' '.join(rest)}; {hint}`{self.prog} --help` lists the known ones")
        return found, rest

    def _nearest(self, option: str) -> str:
        if "." in option:
            return f"{option.lstrip('-')}=…"  # of the config
        return next(iter(difflib.get_close_matches(option, self._option_string_actions, n=1, cutoff=0.6)), "")
