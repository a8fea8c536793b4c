"""What a row of the tables of bad input says, and the files that it needs."""

from __future__ import annotations

import json
import os
import shutil
import socket
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field, replace
from pathlib import Path

Content = str | bytes | Callable[[Path], None]
"""Text or bytes of a file, or a function that makes what is to be at the path."""


@dataclass(frozen=True)
class BadInput:
    """A command with something wrong in it, and what its error must hold.

    Example: `BadInput("webrl run actor.lr=-1", 2, "-1", "actor.lr", "greater than 0")`
    """

    command: str
    """As typed in a folder with `data/` and `hostile/`; `{here}`: that folder, `{address}`: the hostile endpoints."""
    code: int
    """Exit code: 2 if the command line or config is at fault, else 1."""
    value: str
    """What is wrong, as the error must quote it."""
    place: str
    """File, line, option or address, as the error must name it."""
    fix: str = ""
    """A piece of the advice that the error must give."""
    files: Mapping[str, Content] = field(default_factory=dict)
    """Written first, by path."""
    variables: Mapping[str, str] = field(default_factory=dict)
    """Environment variables."""

    def filled_in(self, **words: str) -> BadInput:
        """The same with `{word}` replaced in command, value and place."""

        def fill(text: str) -> str:
            for word, value in words.items():
                text = text.replace(f"{{{word}}}", value)
            return text

        return replace(self, command=fill(self.command), value=fill(self.value), place=fill(self.place))

    def write_files(self, folder: Path) -> None:
        """Make the case's files below `folder`."""
        for name, content in self.files.items():
            path = folder / name
            path.parent.mkdir(parents=True, exist_ok=True)
            if callable(content):
                content(path)
            else:
                path.write_bytes(content.encode() if isinstance(content, str) else content)


def a_folder(path: Path) -> None:
    """A folder where a file should be."""
    path.mkdir()


def a_fifo(path: Path) -> None:
    """A pipe that nobody writes to: whoever opens it waits for ever."""
    os.mkfifo(path)


def a_socket(path: Path) -> None:
    """A socket's name."""
    # Such names are at most 108 bytes long.
    before = Path.cwd()
    os.chdir(path.parent)
    try:
        with socket.socket(socket.AF_UNIX) as server:
            server.bind(path.name)
    finally:
        os.chdir(before)


def link_to(target: str) -> Callable[[Path], None]:
    """A symbolic link."""
    return lambda path: path.symlink_to(target)


def copy_of(source: str, **changes: Content | None) -> Callable[[Path], None]:
    """A folder copied from the repository with some of its files (`_` stands for a dot) replaced, or removed (None)."""

    def make(path: Path) -> None:
        shutil.copytree(Path(__file__).parent.parent / source, path)
        for name, content in changes.items():
            stem, _, suffix = name.rpartition("_")
            target = path / f"{stem}.{suffix}"
            if content is None:
                target.unlink()
            elif callable(content):
                content(target)
            else:
                target.write_bytes(content.encode() if isinstance(content, str) else content)

    return make


def a_run(*done: str, config: str = "", phase: int = 0, **files: Content) -> dict[str, Content]:
    """Run folder `runs/r`, in whose `phase` the stages `done` have finished; `files` are the phase's JSONL files."""
    folder = f"runs/r/phase_{phase:02d}"
    made: dict[str, Content] = {"runs/r/config.yaml": f"name: r\ntrackers: []\n{config}"}
    for stage in done:
        made[f"{folder}/stages/{stage}.json"] = json.dumps(
            {"stage": stage, "phase": phase, "counts": {}, "seconds": 1.0, "peak_mib": 1.0}
        )
    for name, content in files.items():
        made[f"{folder}/{name}.jsonl"] = content
    return made
