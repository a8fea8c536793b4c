"""What chaos.py counts."""

from __future__ import annotations

from dataclasses import dataclass, field
from pathlib import Path

from chaos_lives import Lives
from chaos_loop import Audit, differences

FAULTS = ("lost", "doubled", "hung", "left_running", "left_files", "differing", "failed")
"""The lists of a tally."""


@dataclass
class Tally:
    """Of one kind of kill; every list holds one line a case, for the report."""

    kind: str
    kills: int = 0
    runs: int = 0
    lost: list[str] = field(default_factory=list)
    """Episodes or labels that were finished and are no longer there as they were."""
    doubled: list[str] = field(default_factory=list)
    """Episodes, labels or training steps that are there twice."""
    hung: list[str] = field(default_factory=list)
    """Commands that did nothing for `PATIENCE_S`."""
    left_running: list[str] = field(default_factory=list)
    """Processes that outlived what had started them."""
    left_files: list[str] = field(default_factory=list)
    """Temporary files of a finished run, in its folder or in the temporary directory."""
    differing: list[str] = field(default_factory=list)
    """Files that differ from the uninterrupted run's where they must not."""
    failed: list[str] = field(default_factory=list)
    """Commands that ended otherwise than they should have: the same command did not go on, or a message is unclear."""
    skipped: str = ""
    """Why this kind was left out."""

    def close(
        self, audit: Audit, lives: Lives, temporary: Path, reference: Path | None, *, strict: bool = True
    ) -> None:
        """Look at a finished run."""
        self.runs += 1
        audit.look()
        self.lost += audit.lost()
        self.doubled += audit.doubled()
        self.left_running += lives.survivors()
        self.left_files += audit.temporary() + left_behind(temporary)
        if reference is not None:
            self.differing += differences(audit.run, reference, strict=strict)

    def counts(self) -> dict[str, int | str]:
        """Numbers alone; what is nought is left out."""
        found: dict[str, int | str] = {"kills": self.kills, "runs": self.runs}
        found |= {name: len(lines) for name in FAULTS if (lines := getattr(self, name))}
        return found | ({"skipped": self.skipped} if self.skipped else {})

    def details(self) -> list[str]:
        """One line for everything that should not be."""
        return [f"  {self.kind} {name}: {line}" for name in FAULTS for line in getattr(self, name)]


def left_behind(temporary: Path) -> list[str]:
    """What is in a temporary directory, but for what is there to be kept: torch's cache of compiled code, and the log
    of a vLLM server that died.
    """
    return [str(path) for path in temporary.iterdir() if not path.name.startswith(("torchinductor_", "webrl-vllm-"))]
