"""What a report says of one run, section by section; each takes the facts and returns figures, tables and words."""

from __future__ import annotations

import math
from collections import defaultdict
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

from webrl.evaluate import is_decided, is_evaluated, is_success, named_rates, rate_of, success_rate
from webrl.phase import STAGES
from webrl.reports.run import rate_text, standing_text
from webrl.reward.report import judge_report, reliability_bins
from webrl.runs.clock import duration
from webrl.suites import by_suite
from webrl_report.page.charts import (
    Figure,
    Point,
    Series,
    Table,
    curve,
    gantt,
    histogram,
    interval_chart,
    percent,
    plain,
)
from webrl_report.page.facts import RunFacts, in_words, texts
from webrl_report.page.funnel import FunnelRow, funnel, num_judged, num_solved

_BIN = 0.05
MIN_IN_BIN = 4
"""Observations from which on a bin of a calibration chart is a point of its line."""


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
    folded: list[tuple[str, Table]] = field(default_factory=list)
    """Long tables, closed until they are opened."""
    lacks: str = ""


def evaluated(run: RunFacts) -> list[tuple[int, dict[str, Any]]]:
    """Return (phase, held-out success) of each evaluation that has finished: what finishes first is no sample."""
    return [(phase.phase, data) for phase in run.phases if is_evaluated(data := phase.counts("eval"))]


def rates_by_name(found: Sequence[tuple[int, dict[str, Any]]]) -> dict[str, list[tuple[int, Mapping[str, Any]]]]:
    """Return (phase, rate) of evaluations, by what was measured."""
    lines: dict[str, list[tuple[int, Mapping[str, Any]]]] = defaultdict(list)
    for phase, data in found:
        for name, rate in named_rates(data).items():
            if rate.get("episodes"):
                lines[name].append((phase, rate))
    return lines


def success(run: RunFacts) -> Section:
    """Show held-out success by phase and by task type."""
    section = Section("success", "Success", "By the environment's own reward, on pages that are never trained on.")
    unfinished = {p.phase: p.evaluated for p in run.phases if p.evaluated and not p.counts("eval")}
    for number, attempts in unfinished.items():
        tried = [attempt.trajectory for attempt in attempts]
        decided = [t for t in tried if is_decided(t)]
        suites = by_suite(decided, run.option("tasks.suite")).items()
        rate_texts = [(suite, rate_text(success_rate(each).to_json())) for suite, each in suites]
        texts = [f"{suite}: {text}" if suite else text for suite, text in rate_texts if text]
        so_far = ", ".join(texts) or "none with a reward"
        section.lacks += f"The evaluation of phase {number} has not finished, so far {so_far}. "
    found = evaluated(run)
    if not found:
        section.lacks += "No phase has been evaluated to the end."
        return section
    series = [success_series(name, rates) for name, rates in rates_by_name(found).items()]
    note = "Points with 95 % Wilson intervals; phase 0 is the supervised start, differences from it are paired by task."
    section.figures.append(interval_chart("Success by phase", note, series))
    rates: dict[str, dict[int, dict[str, Any]]] = defaultdict(dict)
    heldout_types = set()
    for number, data in found:
        for name, part in named_rates({**data, "at_temperature": {}}).items():
            for site, rate in (part.get("by_task") or {}).items():
                rates[site][number] = rate
                if name.endswith("held-out types"):
                    heldout_types.add(site)
    rows: list[tuple[object, ...]] = []
    for site in sorted(rates, key=lambda name: (name in heldout_types, name)):
        cells: list[object] = []
        for number, _ in found:
            rate = rates[site].get(number)
            text = f"{rate['successes']}/{rate['episodes']}" if rate else "–"
            cells.append(
                Cell(text, f"heat h{round(10 * rate['rate'])}" if rate else "", rate_text(rate) if rate else "")
            )
        rows.append((f"{site} (held‑out type)" if site in heldout_types else site, *cells))
    head = ("task type", *(f"phase {number}" for number, _ in found))
    section.tables.append(("Success by task type", Table(head, rows, is_wide=len(head) > 5)))
    return section


def success_series(name: str, rates: Sequence[tuple[float, Mapping[str, Any]]], min_episodes: int = 0) -> Series:
    """Make a line of (phase, or what was predicted; rate with interval); through points of a few goes no line."""
    points = [
        Point(float(x), rate["rate"], low, high, standing_text(rate), is_thin=rate["episodes"] < min_episodes)
        for x, rate in rates
        for low, high in [rate["ci95"]]
    ]
    return name, points


def curriculum(run: RunFacts) -> Section:
    """Show the funnel of each phase."""
    text = "What was proposed, what each filter left, what was attempted, and what the outcome model judged solved."
    section = Section("curriculum", "Curriculum", text)
    section.funnels = [(phase.phase, sieves) for phase in run.phases if (sieves := funnel(phase))]
    if not section.funnels:
        section.lacks = "No phase has tasks yet."
    return section


def difficulty(run: RunFacts) -> Section:
    """Show how hard the tasks are from phase to phase."""
    section = Section("difficulty", "Difficulty", "Whether the tasks of later phases are harder, and for whom.")
    lines, rows = [], []
    for phase in run.phases:
        judged, solved = num_judged(phase), num_solved(phase)
        if judged:
            lines.append((phase.phase, rate_of(solved, judged).to_json()))
        if phase.attempts:
            steps = sum(a.num_steps for a in phase.attempts) / len(phase.attempts)
            ended = sum(a.trajectory.status.finished for a in phase.attempts)
            sites = len({a.trajectory.task.site for a in phase.attempts})
            rows.append((phase.phase, len(phase.attempts), sites, f"{steps:.2f}", len(phase.attempts) - ended))
    if lines:
        note = "Share of the phase's own tasks that the outcome model judged solved, with 95 % Wilson intervals."
        section.figures.append(
            interval_chart(
                "Tasks judged solved", note, [success_series("training tasks", lines)], y_label="judged solved"
            )
        )
    expected: list[tuple[object, ...]] = []
    for phase in run.phases:
        counts = phase.filters.get("value_histogram")
        if isinstance(counts, list) and all(isinstance(n, int) for n in counts) and (total := sum(counts)):
            mean = sum(n * (k + 0.5) / len(counts) for k, n in enumerate(counts)) / total
            expected.append((phase.phase, total, plain(mean)))
    if expected:
        band = _band(run, "filter.value_low", "filter.value_high")
        name = "What the critic expects of proposals"
        name += f" (kept from {plain(band[0])} to {plain(band[1])})" if band else ""
        section.tables.append((name, Table(("phase", "proposals", "mean value (by bins)"), expected)))
    if rows:
        head = ("phase", "attempts", "task types", "steps an attempt", "unfinished")
        section.tables.append(("Attempts", Table(head, rows)))
    if not (lines or expected or rows):
        section.lacks = "Nothing has been attempted, or the trajectories are not in this folder."
    return section


def replay(run: RunFacts) -> Section:
    """Show the perplexity of what is trained on, and the replay band."""
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


def _band(run: RunFacts, low: str, high: str) -> tuple[float, float] | None:
    edges = run.option(low), run.option(high)
    return edges if all(isinstance(edge, int | float) for edge in edges) else None


def judge(run: RunFacts) -> Section:
    """Hold the labels against the environment's own reward, where it has one: how far the outcome model is right."""
    section = Section("judge", "Outcome model")
    known = [
        (attempt.trajectory, label)
        for phase in run.phases
        for attempt in phase.attempts
        if (label := phase.labels.get(attempt.trajectory.trajectory_id)) is not None and label.reward is not None
    ]
    with_truth = [(label, int(is_success(tried))) for tried, label in known if tried.env_reward is not None]
    if with_truth:
        section.text = (
            f"{len(with_truth)} of {len(known)} judged trajectories have a reward from the environment to compare with "
            "(instructions that a model wrote have none). Training never sees that reward."
        )
        scored = [(truth, label.p_yes) for label, truth in with_truth if label.p_yes is not None]
        if scored:
            note = (
                "Share that was truly solved among trajectories of a similar P(YES); a calibrated model is on the "
                f"diagonal. Hollow: fewer than {MIN_IN_BIN} trajectories."
            )
            line = _calibration("trajectories", reliability_bins([t for t, _ in scored], [p for _, p in scored]))
            section.figures.append(
                interval_chart("Calibration", note, [line], x_label="P(YES)", y_label="truly solved", diagonal=True)
            )
        report = judge_report([t for _, t in with_truth], [float(label.reward or 0) for label, _ in with_truth])
        counts: list[tuple[object, ...]] = [
            ("judged solved", report["true_positive"], report["false_positive"]),
            ("judged failed", report["false_negative"], report["true_negative"]),
        ]
        head = ("judgement", "truly solved", "truly failed")
        section.tables.append(("Labels against the truth", Table(head, counts)))
        shares: list[tuple[object, ...]] = []
        for name in ("accuracy", "balanced_accuracy", "precision", "recall"):
            found = report[name]
            if found["value"] is not None:
                interval = (
                    " [{:.1f}, {:.1f}]".format(*(100 * limit for limit in found["ci95"])) if found["ci95"] else ""
                )
                text = f"{100 * found['value']:.1f} %{interval}"
                shares.append((name.replace("_", " "), text, found["num"]))
        section.tables.append(("How often it is right", Table(("measure", "share, 95 %", "of"), shares)))
    elif known:
        section.lacks = (
            f"{len(known)} trajectories were judged; none has a reward of the environment's own to compare with."
        )
    elif num := sum(num_judged(phase) for phase in run.phases):
        section.lacks = (
            f"{num} trajectories were judged, but they are not in this folder, so nothing shows who was right."
        )
    else:
        section.lacks = "Nothing has been judged."
    return section


def _calibration(name: str, bins: Sequence[tuple[float, int, int]]) -> Series:
    return success_series(name, [(x, rate_of(solved, num).to_json()) for x, solved, num in bins], MIN_IN_BIN)


def training(run: RunFacts) -> Section:
    """Show losses, distance from the reference, gradients and advantages."""
    section = Section("training", "Training", "Faint: every optimizer step; bold: the mean of the phase.")
    for trainer, key, title, note in texts()["curves"]:
        parts = [
            (phase.phase, [_number(line.get(f"{trainer}/{key}")) for line in phase.metrics.get(trainer, ())])
            for phase in run.phases
        ]
        if figure := curve(title, note, parts):
            section.figures.append(figure)
    advantages = []
    for phase in run.phases:
        listed = [v for line in phase.metrics.get("actor", ()) for v in line.get("actor/advantage_values") or ()]
        if values := [v for v in listed if isinstance(v, int | float) and math.isfinite(v)]:
            advantages.append((phase.phase, values))
    if advantages:
        last, values = advantages[-1]
        edges = [-1 + 0.1 * k for k in range(21)]
        note = f"Of the samples of phase {last}; the table has the other phases."
        groups = [(f"phase {last}", values)]
        figure = histogram("Advantages", note, groups, [round(e, 10) for e in edges], x_label="advantage")
        section.figures.append(figure)
        rows: list[tuple[object, ...]] = []
        for number, values in advantages:
            ordered = sorted(values)
            quartiles = [ordered[round(share * (len(ordered) - 1))] for share in (0, 0.25, 0.5, 0.75, 1)]
            rows.append((number, len(values), *map(plain, quartiles)))
        head = ("phase", "samples", "lowest", "lower quarter", "median", "upper quarter", "highest")
        section.tables.append(("Advantages by phase", Table(head, rows, is_wide=True)))
    if not section.figures:
        section.lacks = "No metrics.jsonl with training steps is in this folder."
    return section


def resources(run: RunFacts) -> Section:
    """Show where time and memory went."""
    section = Section(
        "time", "Time and memory", "Each stage from its start to its end; colours show what the time was spent on."
    )
    bars: list[tuple[str, int, float, dict[str, float]]] = []
    peaks: dict[str, float] = defaultdict(float)
    for phase in run.phases:
        for name in (spec.name for spec in STAGES if spec.name in phase.stages):
            marker = phase.stages[name]
            parts = marker.get("spent_on") or {}
            spent = {kind: float(part) for kind, part in parts.items() if isinstance(part, int | float)}
            bars.append((name, phase.phase, float(marker["seconds"]), spent))
            peaks[name] = max(peaks[name], float(marker["peak_mib"]))
    if not bars:
        section.lacks = "No stage has finished."
        return section
    work = sum(seconds for _, _, seconds, _ in bars) or 1.0
    rows: list[tuple[object, ...]] = []
    for name, peak in peaks.items():
        seconds = sum(bar[2] for bar in bars if bar[0] == name)
        spans = [span for bar in bars if bar[0] == name for span in bar[3].items()]
        known = sum(part for _, part in spans)
        browsers = sum(part for kind, part in spans if "browsers" in kind)
        models = sum(part for kind, part in spans if kind not in ("", "browsers", "model files"))
        # Share of the known time without such work; a dash for a stage that has none.
        idle = [f"{100 * (1 - busy / known):.0f} %" if busy else "–" for busy in (browsers, models)]
        rows.append((name, duration(seconds), percent(seconds / work), *idle, f"{peak / 1024:.2f} GiB"))
    head = ("stage", "time", "share of the time", "browsers idle", "models idle", "peak memory")
    each = [(name, p.phase, m["seconds"], m["peak_mib"]) for p in run.phases for name, m in p.stages.items()]
    table = Table(("stage", "phase", "seconds", "peak MiB"), each)
    section.figures.append(gantt("Stages over time", f"{duration(work)} of work in all.", bars, table))
    section.tables.append(("All phases together", Table(head, rows, is_wide=True)))
    return section


def tokens(run: RunFacts) -> Section:
    """Count the tokens of each phase."""
    section = Section("tokens", "Tokens", "Tokens that models read and wrote; training reads them again.")
    rows: list[tuple[object, ...]] = []
    for phase in run.phases:
        wrote, trained = phase.counts("gen-tasks"), 0
        for lines in phase.metrics.values():
            for line in lines:
                read = math.prod(_number(line.get(f"{line['name']}/{key}")) for key in ("tokens_per_s", "seconds"))
                trained += round(read) if math.isfinite(read) else 0
        numbers = [wrote.get("prompt_tokens"), wrote.get("completion_tokens")]
        for played in (phase.attempts, phase.evaluated):
            numbers += [sum(a.prompt_tokens for a in played), sum(a.answer_tokens for a in played)]
        numbers.append(trained)
        texts = [f"{n:,}".replace(",", "\u202f") if isinstance(n, int) and n else "–" for n in numbers]
        rows.append((phase.phase, *texts))
    head = (
        "phase", "generator read", "wrote", "rollouts read", "wrote", "evaluation read", "wrote", "trained on",
    )  # fmt: skip
    if rows:
        section.tables.append(("Tokens by phase", Table(head, rows, is_wide=True)))
    else:
        section.lacks = "No phase has started."
    return section


def _number(value: Any) -> float:
    return float(value) if isinstance(value, int | float) else math.nan
