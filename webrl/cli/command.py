"""A subcommand with a module of its own: what `webrl --help` says of it, and where it lives.

A package adds one by a row in the entry-point group `webrl.commands` that names an object of this class. The module
that holds the object is imported for `webrl --help`, so it should import nothing else.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Literal

Group = Literal["run", "look", "serve", "make"]
GROUPS: tuple[Group, ...] = ("run", "look", "serve", "make")
"""How `webrl --help` groups the commands, in this order."""


@dataclass(frozen=True)
class Command:
    """A subcommand.

    Example: `Command("browse a run's trajectories", "webrl_report.cli.view", "look", uses_torch=False)`
    """

    help: str
    """What it does, in a line."""
    module: str
    """The module with `add_arguments(parser)` and `main(args) -> int`, imported when the command is run."""
    group: Group
    """Where `webrl --help` lists it."""
    uses_torch: bool = True
    """Whether it computes with torch, which then gets the settings for this machine's CPU."""
