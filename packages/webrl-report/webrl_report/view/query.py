"""A selection of trajectories: what an address asks for, over the rows of the index."""

from __future__ import annotations

import dataclasses
from collections import Counter
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any
from urllib.parse import urlencode

from webrl.errors import UsageError
from webrl_report.view.index import EPISODES, Index, Row

PAGE_SIZE = 50
_MAX_WORDS = 20
ORDERS: dict[str, tuple[str, Callable[[Row], Any]]] = {
    "disagreements": ("label against truth first", lambda row: row.agrees is not False),
    "newest": ("newest phase first", lambda _: 0),
    "oldest": ("oldest phase first", lambda row: (row.file.run, row.trajectory.phase)),
    "unsure": ("least certain label first", lambda row: 1.0 if row.p_yes is None else abs(row.p_yes - 0.5)),
    "longest": ("most steps first", lambda row: -row.num_steps),
}
"""Name -> (what it says, what is sorted by); of what is alike there, the newest is first."""
CHOICES: dict[str, dict[str, tuple[str, Callable[[Row], bool]]]] = {
    "label": {
        "success": ("success", lambda row: row.reward == 1),
        "failure": ("failure", lambda row: row.reward == 0),
        "unjudged": ("could not be judged", lambda row: row.label is not None and row.reward is None),
        "none": ("no label", lambda row: row.label is None),
    },
    "truth": {
        "success": ("success", lambda row: row.truth == 1),
        "failure": ("failure", lambda row: row.truth == 0),
        "none": ("not known", lambda row: row.truth is None),
    },
    "match": {
        "disagree": ("label against truth", lambda row: row.agrees is False),
        "agree": ("label as truth", lambda row: row.agrees is True),
        "unknown": ("one of them missing", lambda row: row.agrees is None),
    },
    "hand": {
        "success": ("success", lambda row: row.hand == 1),
        "failure": ("failure", lambda row: row.hand == 0),
        "any": ("any", lambda row: row.hand is not None),
        "none": ("none", lambda row: row.hand is None),
        "against": ("against the label", lambda row: None not in (row.hand, row.reward) and row.hand != row.reward),
    },
}
"""Filters with fixed values: value -> (what it says, whether a row has it)."""
COLUMNS: dict[str, Callable[[Row], str | int]] = {
    "run": lambda row: row.file.run,
    "kind": lambda row: row.file.kind,
    "phase": lambda row: row.trajectory.phase,
    "site": lambda row: row.trajectory.task.site,
    "split": lambda row: row.trajectory.task.split,
    "status": lambda row: row.trajectory.status.value,
}
"""Filters whose values are those that occur."""


@dataclass(frozen=True)
class Selection:
    """Which trajectories, and in what order; "" selects all."""

    q: str = ""
    run: str = ""
    kind: str = ""
    phase: str = ""
    site: str = ""
    split: str = ""
    status: str = ""
    label: str = ""
    truth: str = ""
    match: str = ""
    hand: str = ""
    sort: str = "disagreements"
    page: int = 1

    @classmethod
    def from_query(cls, query: Mapping[str, str]) -> Selection:
        """Read an address's query. Raises UsageError for an unknown name or value."""
        names = [field.name for field in dataclasses.fields(cls)]
        for name, value in query.items():
            if name not in names:
                raise UsageError(f"unknown filter {name!r:.80}; known: {', '.join(names)}")
            known = CHOICES.get(name, ORDERS if name == "sort" else None)
            if known is not None and value and value not in known:
                raise UsageError(f"{name}={value!r:.80}: expected one of {', '.join(known)}")
            is_number = value.removeprefix("-").isdecimal() and len(value) < 10
            if name in ("page", "run", "phase") and value and not is_number:
                raise UsageError(f"{name}={value!r:.80}: expected a number")
        given = {name: value for name, value in query.items() if value}
        page = max(1, int(given.pop("page", "1")))
        return cls(**given, page=page)

    def fields(self) -> dict[str, Any]:
        """Return what is not as it is by default."""
        return {name: value for name, value in vars(self).items() if value != getattr(Selection(), name)}

    def address(self, **changes: Any) -> str:
        """Return the query that selects this, with some fields changed; pages count from 1 again if others change."""
        return urlencode(dataclasses.replace(self, **({"page": 1} | changes if changes else {})).fields())

    @property
    def is_everything(self) -> bool:
        """Whether nothing is left out."""
        return self.fields().keys() <= {"sort", "page"}


def select(index: Index, selection: Selection) -> list[Row]:
    """Return all trajectories of a selection, in its order."""
    tests = [choices[value][1] for name, choices in CHOICES.items() if (value := getattr(selection, name))]
    columns = [(column, value) for name, column in COLUMNS.items() if (value := getattr(selection, name))]
    words = selection.q.casefold().split()[:_MAX_WORDS]
    rows = [
        row
        for row in index.rows()
        if all(str(column(row)) == value for column, value in columns)
        and all(test(row) for test in tests)
        and all(word in row.words for word in words)
    ]
    kinds = [*EPISODES.values()]
    rows.sort(key=lambda r: (r.file.run, -r.trajectory.phase, kinds.index(r.file.kind), r.file.name, r.line))
    return sorted(rows, key=ORDERS[selection.sort][1])


def totals(rows: Sequence[Row]) -> dict[str, int]:
    """Count trajectories.

    `num`; `judged`, `labelled` (as successes); `known` truth, `successes` by it; `agree`, `disagree`; `hand` labels.
    """
    pairs = Counter((row.reward, row.truth) for row in rows).items()
    return {
        "num": len(rows),
        "agree": sum(num for (reward, truth), num in pairs if reward == truth is not None),
        "disagree": sum(num for (reward, truth), num in pairs if {reward, truth} == {0, 1}),
        "judged": sum(num for (reward, _), num in pairs if reward is not None),
        "labelled": sum(num for (reward, _), num in pairs if reward == 1),
        "known": sum(num for (_, truth), num in pairs if truth is not None),
        "successes": sum(num for (_, truth), num in pairs if truth == 1),
        "hand": sum(row.hand is not None for row in rows),
    }


def options(index: Index) -> dict[str, list[tuple[str, int]]]:
    """Return filter -> (value, number of trajectories) of all that occur."""
    rows = index.rows()
    counted = {name: Counter(map(column, rows)) for name, column in COLUMNS.items()}
    return {name: [(str(value), number) for value, number in sorted(found.items())] for name, found in counted.items()}


def same_task(index: Index, own: Row) -> list[Row]:
    """Return other attempts at the same task (site and instruction), of any phase and run; the same page first."""
    site, instruction, task_id = own.trajectory.task.site, own.trajectory.instruction, own.trajectory.task.task_id
    rows = [row for row in index.rows() if row is not own and row.trajectory.instruction == instruction]
    return sorted(
        (row for row in rows if row.trajectory.task.site == site),
        key=lambda r: (
            r.trajectory.task.task_id != task_id, r.file.run, r.trajectory.phase, r.file.kind, r.line,
        ),
    )  # fmt: skip
