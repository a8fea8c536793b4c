"""`labels.jsonl`: judgements by trajectory. A later line of the same trajectory replaces an earlier one."""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable
from hashlib import blake2b
from pathlib import Path

from webrl.runs.store import Appender, read_records
from webrl.types import Label


def keep_label(label: Label, file: Appender, counts: Counter[str], on_label: Callable[[Label], None] | None) -> None:
    """Append a new label, count it (`judged` or `unjudged`; `success`), and tell of it."""
    file.append(label)
    counts["unjudged" if label.reward is None else "judged"] += 1
    counts["success"] += label.reward == 1
    if on_label:
        on_label(label)


def read_labels(path: Path, on_error: Callable[[str], None] | None = None) -> dict[str, Label]:
    """Judgement by trajectory id; an unjudged trajectory that was judged on a later try counts as judged.

    Args:
        on_error: called with "path:line: reason" for a bad line; None raises.

    Raises:
        DataError: missing file or malformed line.
    """
    return {label.trajectory_id: label for label in read_records(path, Label, on_error)}


def read_outcomes(path: Path, on_error: Callable[[str], None] | None = None) -> dict[bytes, int | None]:
    """Reward by `outcome_key(trajectory_id)`: what is left of the labels when there are millions of them."""
    return {outcome_key(label.trajectory_id): label.reward for label in read_records(path, Label, on_error)}


def outcome_key(trajectory_id: str) -> bytes:
    """[8] bytes that identify a trajectory id."""
    return blake2b(trajectory_id.encode("utf-8", "surrogatepass"), digest_size=8).digest()
