"""What a report says of one run, section by section; each takes the facts and gives figures, tables and words."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

from webrl.evaluate import is_decided, is_evaluated, named_rates, rate_of, success_rate
from webrl.reports.page.charts import Figure, Point, Series, Table, histogram, interval_chart, plain, shade, strips
from webrl.reports.page.facts import RunFacts
from webrl.reports.page.families import FunnelRow, Node, families, funnel, num_judged, num_solved
from webrl.reports.page.words import in_words
from webrl.reports.run import rate_text, standing_text
from webrl.suites.mix import by_suite

_BIN = 0.05


@dataclass(frozen=True)
class Cell:
    """A table's cell with a class of its own."""

    text: object
    kind: str
    tip: str = ""


@dataclass
class Section:
    """A part of the report; what it lacks it says in `lacks`."""

    key: str
    title: str
    text: str = ""
    figures: list[Figure] = field(default_factory=list)
    tables: list[tuple[str, Table]] = field(default_factory=list)
    funnels: list[tuple[int, list[FunnelRow]]] = field(default_factory=list)
    trees: list[Node] = field(default_factory=list)
    folded: list[tuple[str, Table]] = field(default_factory=list)
    """Long tables, closed until they are opened."""
    lacks: str = ""


def evaluated(run: RunFacts) -> list[tuple[int, dict[str, Any]]]:
    """(phase, held-out success) of each evaluation that has finished: what finishes first is no sample."""
    return [(phase.phase, data) for phase in run.phases if is_evaluated(data := phase.counts("eval"))]


def rates_by_name(found: Sequence[tuple[int, dict[str, Any]]]) -> dict[str, list[tuple[int, Mapping[str, Any]]]]:
    """(phase, rate) of evaluations, by what was measured."""
    lines: dict[str, list[tuple[int, Mapping[str, Any]]]] = defaultdict(list)
    for phase, data in found:
        for name, rate in named_rates(data).items():
            if rate.get("episodes"):
                lines[name].append((phase, rate))
    return lines


def success(run: RunFacts) -> Section:
    """Held-out success by phase and by task type."""
    section = Section("success", "Success", "By the environment's own reward, on pages that are never trained on.")
    unfinished = {p.phase: p.evaluated for p in run.phases if p.evaluated and not p.counts("eval")}
    for number, attempts in unfinished.items():
        tried = [attempt.trajectory for attempt in attempts]
        decided = [t for t in tried if is_decided(t)]
        rates = {
            suite: success_rate(each).to_json() for suite, each in by_suite(decided, run.option("tasks.suite")).items()
        }
        texts = [f"{suite}: {text}" if suite else text for suite, rate in rates.items() if (text := rate_text(rate))]
        so_far = ", ".join(texts) or "none with a reward"
        section.lacks += f"The evaluation of phase {number} has not finished, so far {so_far}. "
    found = evaluated(run)
    if not found:
        section.lacks += "No phase has been evaluated to the end."
        return section
    series = [success_series(name, rates) for name, rates in rates_by_name(found).items()]
    note = "Points with 95 % Wilson intervals; phase 0 is the supervised start, differences from it are paired by task."
    section.figures.append(interval_chart("Success by phase", note, series))
    section.tables.append(("Success by task type", _heat_map(found)))
    return section


def success_series(name: str, rates: Sequence[tuple[float, Mapping[str, Any]]]) -> Series:
    """(phase, or what was predicted; rate with interval) as a line."""
    points = []
    for x, rate in rates:
        low, high = rate["ci95"]
        points.append(Point(float(x), rate["rate"], low, high, standing_text(rate)))
    return Series(name, points)


def curriculum(run: RunFacts) -> Section:
    """The funnel of each phase, and families of tasks."""
    text = "What was proposed, what each filter left, what was attempted, and what the outcome model judged solved."
    section = Section("curriculum", "Curriculum", text)
    section.funnels = [(phase.phase, sieves) for phase in run.phases if (sieves := funnel(phase))]
    section.trees = families(run)
    if not section.funnels:
        section.lacks = "No phase has tasks yet."
    return section


def difficulty(run: RunFacts) -> Section:
    """How hard the tasks are from phase to phase."""
    section = Section("difficulty", "Difficulty", "Whether the tasks of later phases are harder, and for whom.")
    lines, rows = [], []
    for phase in run.phases:
        judged, solved = num_judged(phase), num_solved(phase)
        if judged:
            lines.append((phase.phase, rate_of(solved, judged).to_json()))
        if phase.attempts:
            steps = sum(a.num_steps for a in phase.attempts) / len(phase.attempts)
            ended = sum(a.trajectory.status.finished for a in phase.attempts)
            sites = len({a.task.site for a in phase.attempts})
            rows.append((phase.phase, len(phase.attempts), sites, f"{steps:.2f}", len(phase.attempts) - ended))
    if lines:
        note = "Share of the phase's own tasks that the outcome model judged solved, with 95 % Wilson intervals."
        section.figures.append(
            interval_chart(
                "Tasks judged solved", note, [success_series("training tasks", lines)], y_label="judged solved"
            )
        )
    bins = [(f"phase {p.phase}", h) for p in run.phases if (h := _whole_numbers(p.filters.get("value_histogram")))]
    if bins:
        band = _band(run, "filter.value_low", "filter.value_high")
        note = "Of the proposals that reached that filter; darker is more."
        if band:
            note += f" Kept between the lines, at {plain(band[0])} and {plain(band[1])}."
        section.figures.append(strips("What the critic expects of proposals", note, bins, band))
    if rows:
        head = ("phase", "attempts", "task types", "steps an attempt", "unfinished")
        section.tables.append(("Attempts", Table(head, rows)))
    if not (lines or bins or rows):
        section.lacks = "Nothing has been attempted, or the trajectories are not in this folder."
    return section


def replay(run: RunFacts) -> Section:
    """Perplexity of what is trained on, and the replay band."""
    band = _band(run, "replay.perplexity_low", "replay.perplexity_high")
    section = Section("replay", "Replay", "Own steps are trained on as they come.")
    if band:
        span = f"from {plain(band[0])} to {plain(band[1])} (shaded)"
        section.text += (
            f" Earlier successes join them at a perplexity {span} under the actor that the phase starts from."
        )
    edges = [1 + _BIN * k for k in range(31)]
    for phase in run.phases:
        if not phase.perplexities:
            continue
        names = {"current": "of this phase", "replay": "replayed", "demonstration": "demonstrations"}
        groups = [(name, values) for key, name in names.items() if (values := phase.perplexities.get(key))]
        note = f"Of the steps that were trained on; what is above {plain(edges[-1])} is in the last bar."
        title = f"Perplexity, phase {phase.phase}"
        section.figures.append(histogram(title, note, groups, edges, x_label="perplexity of the action", band=band))
    reasons = [(phase, phase.counts("replay").get("history") or {}) for phase in run.phases]
    why = list(dict.fromkeys(name for _, counts in reasons for name in counts))
    if why:
        rows: list[tuple[object, ...]] = [(p.phase, *(c.get(name, 0) for name in why)) for p, c in reasons if c]
        table = Table(("phase", *map(in_words, why)), rows, is_wide=len(why) > 5)
        section.tables.append(("Earlier steps by what became of them", table))
    if not section.figures:
        section.lacks = "No training records with log-probabilities are in this folder."
    return section


def _heat_map(found: Sequence[tuple[int, dict[str, Any]]]) -> Table:
    rates: dict[str, dict[int, dict[str, Any]]] = defaultdict(dict)
    apart = set()
    for phase, data in found:
        for name, part in named_rates({**data, "at_temperature": {}}).items():
            for site, rate in (part.get("by_task") or {}).items():
                rates[site][phase] = rate
                if name.endswith("held-out types"):
                    apart.add(site)
    rows: list[tuple[object, ...]] = []
    for site in sorted(rates, key=lambda name: (name in apart, name)):
        cells = []
        for phase, _ in found:
            rate = rates[site].get(phase)
            text = f"{rate['successes']}/{rate['episodes']}" if rate else "–"
            cells.append(Cell(text, f"heat h{shade(rate['rate'])}" if rate else "", rate_text(rate) if rate else ""))
        rows.append((f"{site} (held‑out type)" if site in apart else site, *cells))
    head = ("task type", *(f"phase {phase}" for phase, _ in found))
    return Table(head, rows, is_wide=len(head) > 5)


def _band(run: RunFacts, low: str, high: str) -> tuple[float, float] | None:
    edges = run.option(low), run.option(high)
    return edges if all(isinstance(edge, int | float) for edge in edges) else None


def _whole_numbers(values: Any) -> list[int]:
    good = isinstance(values, list) and all(isinstance(v, int) for v in values)
    return list(values) if good and sum(values) else []
