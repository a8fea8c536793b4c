"""The arena's server, and an expert's episode in it, for the tests of its tasks."""

from __future__ import annotations

import contextlib
from collections.abc import Iterator
from pathlib import Path

import pytest
from arena_server import share_templates

from webrl.arena import running
from webrl.cli import main
from webrl.config import RunConfig


def patient(folder: Path) -> RunConfig:
    """A config that plays in the arena of `folder`.

    A page that is looked at before its scripts have run, which a busy machine may need long for, is another one.
    """
    waits = {"step_timeout_s": 120, "settle_cap_s": 60}
    return RunConfig(tasks={"suite": "arena"}, rollout={"arena": {"folder": folder}, **waits})


@contextlib.contextmanager
def arena(folder: Path, factory: pytest.TempPathFactory) -> Iterator[RunConfig]:
    """A running arena, and a config that plays in it."""
    share_templates(folder, factory)
    assert main(["arena", "up", "--folder", str(folder), "--port", "0", "--workers", "2"]) == 0
    try:
        yield patient(folder)
    finally:
        running.stop(folder)
