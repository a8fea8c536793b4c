"""What a report says of one run, section by section; each takes the facts and returns figures, tables and words."""

from __future__ import annotations

import math
from collections import Counter, defaultdict
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

from webrl.evaluate import is_decided, is_success, named_rates, rate_of, success_rate
from webrl.reports.run import rate_text
from webrl.reward.labels import judge_report
from webrl.runs.clock import duration
from webrl_report.page.charts import Figure, Table, curve, interval_chart, percent, plain
from webrl_report.page.facts import Attempt, PhaseFacts, RunFacts, in_words, texts
from webrl_report.page.figures import reliability_bins

NUM_EXAMPLES = 5
_FEWEST_LABELS = 4
"""In a bin of the calibration chart: a share of one to three says nothing."""


@dataclass(frozen=True)
class Cell:
    """A table's cell with its own class."""

    text: object
    kind: str
    tip: str = ""


@dataclass(frozen=True)
class FunnelRow:
    """One step of the funnel."""

    name: str
    num: int
    """What is left after it."""
    share: float
    """The same as a share of what the phase began with."""
    reasons: str = ""
    """What was dropped here, counted by reason."""
    examples: tuple[str, ...] = ()
    examples_of: str = ""
    """What the examples are."""


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


def evaluated(phases: Sequence[PhaseFacts]) -> list[tuple[int, dict[str, Any]]]:
    """Return (phase, held-out success) of each evaluation that has finished: what finishes first is no sample."""
    found = [(phase.phase, phase.counts("eval")) for phase in phases]
    return [(number, data) for number, data in found if any(r.get("episodes") for r in named_rates(data).values())]


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
        so_far = rate_text(success_rate(decided).to_json()) or "none with a reward"
        section.lacks += f"The evaluation of phase {number} has not finished, so far {so_far}. "
    found = evaluated(run.phases)
    if not found:
        section.lacks += "No phase has been evaluated to the end."
        return section
    series = [*rates_by_name(found).items()]
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


def curriculum(run: RunFacts) -> Section:
    """Show the funnel of each phase."""
    text = "Tasks proposed, left by each filter, attempted, and judged solved."
    section = Section("curriculum", "Curriculum", text)
    section.funnels = [(phase.phase, sieves) for phase in run.phases if (sieves := funnel(phase))]
    if not section.funnels:
        section.lacks = "No phase has tasks yet."
    rows: list[tuple[object, ...]] = []
    for number, attempts in ((phase.phase, phase.attempts) for phase in run.phases if phase.attempts):
        steps = sum(attempt.num_steps for attempt in attempts) / len(attempts)
        ended = sum(attempt.trajectory.status.finished for attempt in attempts)
        sites = len({attempt.trajectory.task.site for attempt in attempts})
        rows.append((number, len(attempts), sites, f"{steps:.2f}", len(attempts) - ended))
    if rows:
        head = ("phase", "attempts", "task types", "steps per attempt", "unfinished")
        section.tables.append(("Attempts", Table(head, rows)))
    return section


def funnel(phase: PhaseFacts) -> list[FunnelRow]:
    """Count from the phase's proposals (or its tasks, if it has none) to what was judged solved."""
    ways = statuses(phase)
    attempted, judged = sum(ways.values()), num_judged(phase)
    solved = sum(label.reward == 1 for label in phase.labels.values())
    start = max(len(phase.generated), len(phase.tasks), 1)
    found = []
    if phase.generated:
        proposals = _examples([task.instruction or task.task_id for task in phase.generated])
        num = len(phase.generated)
        found.append(FunnelRow("generated", num, num / start, "", proposals, "generated"))
    stages = phase.filters.get("stages")
    for stage in stages if isinstance(stages, list) else ():
        if not isinstance(stage, dict) or not all(isinstance(stage.get(k), int) for k in ("num_in", "num_kept")):
            continue
        left, lost = stage["num_kept"], stage["num_in"] - stage["num_kept"]
        if lost:  # a filter that dropped nothing is no step down
            dropped = _examples([str(text) for text in stage.get("dropped_examples", ())])
            name = in_words(stage["name"])
            found.append(FunnelRow(f"after: {name}", left, left / start, f"−{lost}", dropped, f"dropped: {name}"))
    if phase.tasks:
        reasons = _counted(Counter(each.reason for each in phase.dropped))
        found.append(FunnelRow("tasks of the phase", len(phase.tasks), len(phase.tasks) / start, reasons))
    if attempted:
        failed = _examples([a.trajectory.instruction for a in phase.attempts if _reward(phase, a) == 0])
        share = min(1.0, attempted / start)
        found.append(FunnelRow("attempted", attempted, share, _counted(ways), failed, "judged failed"))
    if judged:
        of_judged = f"of {judged} judged" + (f", {attempted - judged} not judged" if attempted > judged else "")
        texts = _examples([a.trajectory.instruction for a in phase.attempts if _reward(phase, a) == 1])
        found.append(FunnelRow("judged solved", solved, min(1.0, solved / start), of_judged, texts, "judged solved"))
    return found


def _counted(numbers: Counter[str]) -> str:
    return ", ".join(f"{in_words(name)} {number}" for name, number in numbers.most_common())


def statuses(phase: PhaseFacts) -> Counter[str]:
    """Count attempts by how they ended; as the stage counted them where the trajectories are not there."""
    if phase.attempts:
        return Counter(attempt.trajectory.status.value for attempt in phase.attempts)
    counted = phase.counts("rollout").get("status")
    return Counter({str(k): n for k, n in counted.items() if isinstance(n, int)} if isinstance(counted, dict) else {})


def num_judged(phase: PhaseFacts) -> int:
    """Count labels that are judgements."""
    return sum(label.reward is not None for label in phase.labels.values())


def _reward(phase: PhaseFacts, attempt: Attempt) -> int | None:
    label = phase.labels.get(attempt.trajectory.trajectory_id)
    return label.reward if label else None


def _examples(texts: Sequence[str]) -> tuple[str, ...]:
    return tuple(list(dict.fromkeys(texts))[:NUM_EXAMPLES])


def replay(run: RunFacts) -> Section:
    """Show what became of earlier steps."""
    section = Section("replay", "Replay", "The phase's own steps are all trained on; earlier successes may join them.")
    low, high = (run.option(f"replay.perplexity_{edge}") for edge in ("low", "high"))
    if isinstance(low, int | float) and isinstance(high, int | float):
        section.text += f" Their perplexity must be from {plain(low)} to {plain(high)}, under the phase's first actor."
    reasons = [(phase, phase.counts("replay").get("history") or {}) for phase in run.phases]
    why = list(dict.fromkeys(name for _, counts in reasons for name in counts))
    if why:
        rows: list[tuple[object, ...]] = [(p.phase, *(c.get(name, 0) for name in why)) for p, c in reasons if c]
        table = Table(("phase", *map(in_words, why)), rows, is_wide=len(why) > 5)
        section.tables.append(("What became of earlier steps", table))
    else:
        section.lacks = "No phase has looked at earlier steps."
    return section


def judge(run: RunFacts) -> Section:
    """Hold the labels against the environment's own reward, if it has one: how far the outcome model is right."""
    section = Section("judge", "Judge")
    known = [
        (attempt.trajectory, label)
        for phase in run.phases
        for attempt in phase.attempts
        if (label := phase.labels.get(attempt.trajectory.trajectory_id)) is not None and label.reward is not None
    ]
    with_truth = [(label, int(is_success(tried))) for tried, label in known if tried.env_reward is not None]
    if with_truth:
        section.text = (
            f"{len(with_truth)} of {len(known)} judged episodes have a reward from the environment to compare with "
            "(instructions that a model wrote have none). "
            + ("It is the label." if run.option("label.judge") == "environment" else "Training never sees that reward.")
        )
        scored = [(truth, label.p_yes) for label, truth in with_truth if label.p_yes is not None]
        bins = reliability_bins([t for t, _ in scored], [p for _, p in scored])
        rates = [(x, rate_of(solved, num).to_json()) for x, solved, num in bins if num >= _FEWEST_LABELS]
        if rates:
            note = (
                "Share of episodes truly solved, by the judge's P(YES); a calibrated judge is on the "
                f"diagonal. Bins of fewer than {_FEWEST_LABELS} episodes are left out."
            )
            line = "episodes", rates
            section.figures.append(
                interval_chart("Calibration", note, [line], x_label="P(YES)", y_label="truly solved", diagonal=True)
            )
        report = judge_report([t for _, t in with_truth], [float(label.reward or 0) for label, _ in with_truth])
        rows: list[tuple[object, ...]] = [
            ("judged solved", report["true_positive"], report["false_positive"]),
            ("judged failed", report["false_negative"], report["true_negative"]),
        ]
        section.tables.append(("Labels against the truth", Table(("judgement", "truly solved", "truly failed"), rows)))
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
        section.lacks = f"{len(known)} episodes were judged; none has a reward from the environment to compare with."
    elif num := sum(num_judged(phase) for phase in run.phases):
        section.lacks = f"{num} episodes were judged, but they are not in this folder, so the labels cannot be checked."
    else:
        section.lacks = "Nothing has been judged."
    return section


def training(run: RunFacts) -> Section:
    """Show losses, distance from the reference, gradients and mean advantages."""
    section = Section("training", "Training", "Faint: every optimizer step; bold: the mean of the phase.")
    for trainer, key, title, note in texts()["curves"]:
        parts = [
            (phase.phase, [_number(line.get(f"{trainer}/{key}")) for line in phase.metrics.get(trainer, ())])
            for phase in run.phases
        ]
        if figure := curve(title, note, parts):
            section.figures.append(figure)
    if not section.figures:
        section.lacks = "No metrics.jsonl with training steps is in this folder."
    return section


def resources(run: RunFacts) -> Section:
    """Show where time and memory went."""
    section = Section("time", "Time and memory")
    found: dict[str, list[dict[str, Any]]] = defaultdict(list)
    for phase in run.phases:
        for name, marker in phase.stages.items():
            found[name].append(marker)
    if not found:
        section.lacks = "No stage has finished."
        return section
    work = sum(float(marker["seconds"]) for markers in found.values() for marker in markers) or 1.0
    section.text = f"{duration(work)} of work in all, pauses between stages left out."
    rows: list[tuple[object, ...]] = []
    for name, markers in found.items():
        seconds, peak = sum(float(m["seconds"]) for m in markers), max(float(m["peak_mib"]) for m in markers)
        spans = [
            span for m in markers for span in (m.get("spent_on") or {}).items() if isinstance(span[1], int | float)
        ]
        known = sum(part for _, part in spans)
        browsers = sum(part for kind, part in spans if "browsers" in kind)
        models = sum(part for kind, part in spans if kind not in ("", "browsers", "model files"))
        # Share of the known time without such work; a dash for a stage that has none.
        idle = [f"{100 * (1 - busy / known):.0f} %" if busy else "–" for busy in (browsers, models)]
        rows.append((name, duration(seconds), percent(seconds / work), *idle, f"{peak / 1024:.2f} GiB"))
    head = ("stage", "time", "share of the time", "browsers idle", "models idle", "peak memory")
    section.tables.append(("All phases together", Table(head, rows, is_wide=True)))
    numbers = [phase.phase for phase in run.phases]
    by_phase = {p.phase: {name: duration(float(m["seconds"])) for name, m in p.stages.items()} for p in run.phases}
    times: list[tuple[object, ...]] = [(name, *(by_phase[n].get(name, "–") for n in numbers)) for name in found]
    table = Table(("stage", *(f"phase {number}" for number in numbers)), times, is_wide=len(numbers) > 5)
    section.tables.append(("Time by phase", table))
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
