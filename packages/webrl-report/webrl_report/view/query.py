"""A selection of trajectories: what an address asks for, as SQL over the index."""

from __future__ import annotations

import dataclasses
import sqlite3
from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from typing import Any
from urllib.parse import urlencode

from webrl.errors import UsageError
from webrl_report.view.index import Index, Place, TrajectoryNotFound

PAGE_SIZE = 50
_MAX_WORDS = 20

_TRAJECTORIES = "trajectory t JOIN file f ON f.id = t.file"
_LABEL = "LEFT JOIN label l ON l.judged = t.file AND l.trajectory_id = t.trajectory_id"
_FROM = f"""FROM {_TRAJECTORIES} {_LABEL}
LEFT JOIN hand h ON h.run = f.run AND h.trajectory_id = t.trajectory_id"""
_DISAGREES = "(t.truth IS NOT NULL AND l.reward IS NOT NULL AND t.truth <> l.reward)"
_AGREES = "(t.truth IS NOT NULL AND l.reward IS NOT NULL AND t.truth = l.reward)"
_ORDER = "f.run, t.phase DESC, f.kind DESC, f.name, t.line"
ORDERS = {
    "disagreements": ("label against truth first", f"{_DISAGREES} DESC, {_ORDER}"),
    "newest": ("newest phase first", _ORDER),
    "oldest": ("oldest phase first", "f.run, t.phase, f.kind DESC, f.name, t.line"),
    "unsure": ("least certain label first", f"l.p_yes IS NULL, abs(l.p_yes - 0.5), {_ORDER}"),
    "longest": ("most steps first", f"t.num_steps DESC, {_ORDER}"),
}
"""Name -> (what it says, SQL)."""
CHOICES: dict[str, dict[str, tuple[str, str]]] = {
    "label": {
        "success": ("success", "l.reward = 1"),
        "failure": ("failure", "l.reward = 0"),
        "unjudged": ("could not be judged", "(l.trajectory_id IS NOT NULL AND l.reward IS NULL)"),
        "none": ("no label", "l.trajectory_id IS NULL"),
    },
    "truth": {
        "success": ("success", "t.truth = 1"),
        "failure": ("failure", "t.truth = 0"),
        "none": ("not known", "t.truth IS NULL"),
    },
    "match": {
        "disagree": ("label against truth", _DISAGREES),
        "agree": ("label as truth", _AGREES),
        "unknown": ("one of them missing", "(t.truth IS NULL OR l.reward IS NULL)"),
    },
    "hand": {
        "success": ("success", "h.success = 1"),
        "failure": ("failure", "h.success = 0"),
        "any": ("any", "h.success IS NOT NULL"),
        "none": ("none", "h.success IS NULL"),
        "against": ("against the label", "(h.success IS NOT NULL AND l.reward IS NOT NULL AND h.success <> l.reward)"),
    },
}
"""Filters with fixed values: value -> (what it says, SQL)."""
COLUMNS = {"run": "f.run", "kind": "f.kind", "phase": "t.phase", "site": "t.site", "split": "t.split",
           "status": "t.status"}  # fmt: skip
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
        """Read an address's query.

        Raises:
            UsageError: an unknown name or value.
        """
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

    def address(self, **changes: Any) -> str:
        """Return the query that selects this, with some fields changed; pages count from 1 again if others change."""
        changed = dataclasses.replace(self, **({"page": 1} | changes if changes else {}))
        defaults = Selection()
        parts = {f.name: getattr(changed, f.name) for f in dataclasses.fields(changed)}
        return urlencode({name: value for name, value in parts.items() if value != getattr(defaults, name)})

    @property
    def is_everything(self) -> bool:
        """Whether nothing is left out."""
        return dataclasses.replace(self, sort="disagreements", page=1) == Selection()


def _where(selection: Selection) -> tuple[str, list[Any]]:
    terms, values = ["1"], list[Any]()
    for name, column in COLUMNS.items():
        if value := getattr(selection, name):
            terms.append(f"{column} = ?")
            values.append(int(value) if name in ("run", "phase") else value)
    for name, choices in CHOICES.items():
        if value := getattr(selection, name):
            terms.append(choices[value][1])
    for word in selection.q.casefold().split()[:_MAX_WORDS]:
        terms.append("instr(t.words, ?)")
        values.append(word)
    return " AND ".join(terms), values


def page_rows(index: Index, selection: Selection) -> list[sqlite3.Row]:
    """Return the rows of one page."""
    where, values = _where(selection)
    return index.query(
        f"""SELECT f.run, f.name, f.kind, t.line, t.trajectory_id, t.instruction, t.site, t.phase, t.status,
        t.num_steps, t.truth, l.reward, l.p_yes, l.trajectory_id IS NOT NULL AS has_label, h.success AS hand,
        {_DISAGREES} AS disagrees {_FROM} WHERE {where} ORDER BY {ORDERS[selection.sort][1]} LIMIT ? OFFSET ?""",
        [*values, PAGE_SIZE, (selection.page - 1) * PAGE_SIZE],
    )


def totals(index: Index, selection: Selection) -> dict[str, int]:
    """Count over the whole selection.

    `num`; `judged`, `labelled` (as successes); `known` truth, `successes` by it; `agree`, `disagree`; `hand` labels.
    """
    where, values = _where(selection)
    row = index.query(
        f"""SELECT count(*) AS num, coalesce(sum({_AGREES}), 0) AS agree, coalesce(sum({_DISAGREES}), 0) AS disagree,
        count(l.reward) AS judged, coalesce(sum(l.reward), 0) AS labelled, count(t.truth) AS known,
        coalesce(sum(t.truth), 0) AS successes, count(h.success) AS hand {_FROM} WHERE {where}""",
        values,
    )[0]
    return dict(row)


def options(index: Index) -> dict[str, list[tuple[str, int]]]:
    """Return filter -> (value, number of trajectories) of all that occur."""
    counted = {}
    for name, column in COLUMNS.items():
        rows = index.query(
            f"SELECT {column} AS value, count(*) AS num FROM {_TRAJECTORIES} GROUP BY value ORDER BY value"
        )
        counted[name] = [(str(row["value"]), row["num"]) for row in rows]
    return counted


def places(index: Index, selection: Selection) -> list[Place]:
    """Return all trajectories of a selection, in its order."""
    where, values = _where(selection)
    order = ORDERS[selection.sort][1]
    rows = index.query(f"SELECT f.run, f.name, t.line {_FROM} WHERE {where} ORDER BY {order}", values)
    return to_places(rows)


def neighbours(index: Index, selection: Selection, place: Place) -> tuple[Place | None, Place | None, int]:
    """Return the ones before and after a trajectory in a selection, and its position from 1.

    Of one that is not in it the position is 0, and the next is the selection's first.
    """
    where, values = _where(selection)
    rows = index.query(
        f"""WITH ordered AS MATERIALIZED (
            SELECT f.run, f.name, t.line, row_number() OVER (ORDER BY {ORDERS[selection.sort][1]}) AS at
            {_FROM} WHERE {where}),
        own AS (SELECT coalesce(max(at), 0) AS at FROM ordered WHERE run = ? AND name = ? AND line = ?)
        SELECT ordered.*, own.at AS own FROM ordered, own WHERE abs(ordered.at - own.at) <= 1""",
        [*values, place.run, place.name, place.line],
    )
    by_position = dict(zip((row["at"] - row["own"] for row in rows), to_places(rows), strict=True))
    return by_position.get(-1), by_position.get(1), rows[0]["own"] if rows else 0


def row_of(index: Index, place: Place) -> sqlite3.Row:
    """Return what the index knows of one trajectory, its label included. Raises TrajectoryNotFound."""
    rows = index.query(
        f"""SELECT f.kind, t.truth, l.reward, l.p_yes, l.judge, l.error, l.trajectory_id IS NOT NULL AS has_label,
        h.success AS hand, {_DISAGREES} AS disagrees {_FROM} WHERE f.run = ? AND f.name = ? AND t.line = ?""",
        (place.run, place.name, place.line),
    )
    if not rows:
        raise TrajectoryNotFound(str(place))
    return rows[0]


def same_task(index: Index, place: Place) -> list[sqlite3.Row]:
    """Return other attempts at the same task (site and instruction), of any phase and run; the same page first."""
    return index.query(
        f"""SELECT f.run, f.name, f.kind, t.line, t.trajectory_id, t.phase, t.num_steps, t.truth, l.reward,
        t.task_id = own.task_id AS same_page FROM trajectory own JOIN file o ON o.id = own.file
        JOIN {_TRAJECTORIES} {_LABEL} WHERE o.run = ? AND o.name = ? AND own.line = ?
        AND t.site = own.site AND t.instruction = own.instruction AND NOT (t.file = own.file AND t.line = own.line)
        ORDER BY same_page DESC, f.run, t.phase, f.kind, t.line LIMIT 200""",
        (place.run, place.name, place.line),
    )


def policy_names(index: Index, run: int) -> dict[str, str]:
    """Return fingerprint of an actor -> what it is: `after phase 1`, `the start`; in the order of training."""
    rows = index.query(
        f"SELECT policy, min(t.phase - (f.kind <> 'eval')) AS trained FROM {_TRAJECTORIES} "
        "WHERE f.run = ? AND policy <> '' GROUP BY policy ORDER BY trained",
        (run,),
    )
    return {row["policy"]: f"after phase {row['trained']}" if row["trained"] > 0 else "the start" for row in rows}


def to_places(rows: Iterable[sqlite3.Row]) -> list[Place]:
    """Return where rows with `run`, `name` and `line` lie."""
    return [Place(row["run"], row["name"], row["line"]) for row in rows]
