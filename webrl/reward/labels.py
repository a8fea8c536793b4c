"""`labels.jsonl`: judgements by trajectory. A later line of the same trajectory replaces an earlier one."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path

from webrl.store import read_records
from webrl.types import Label


def read_labels(path: Path, on_error: Callable[[str], None] | None = None) -> dict[str, Label]:
    """Judgement by trajectory id; an unjudged trajectory that was judged on a later try counts as judged.

    Args:
        on_error: called with "path:line: reason" for a bad line; None raises.

    Raises:
        DataError: missing file or malformed line.
    """
    return {label.trajectory_id: label for label in read_records(path, Label, on_error)}
