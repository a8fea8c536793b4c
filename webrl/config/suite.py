"""Settings that several suites of tasks have."""

from __future__ import annotations

from pathlib import Path

from pydantic import Field

from webrl.config.section import Section

STATE_DIR = "minted log-ins; the turn-taking of the rate limit (web), the judge's cache and log (webarena)"


class TaskFiles(Section):
    """Tasks that are read from files."""

    train_files: tuple[Path, ...] = Field(
        (),
        description="instructions to train on (web: JSONL, JSON or text, none: the generator proposes them; webarena: "
        "phase 0's, docs/webarena.md; arena: JSONL, none: the training templates')",
    )


class SuiteConfig(TaskFiles):
    """A suite that logs in to sites."""

    state_dir: Path = Field(Path("runs"), description=STATE_DIR)
