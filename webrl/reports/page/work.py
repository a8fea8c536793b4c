"""What a report says of a run's work: training, time and memory, tokens."""

from __future__ import annotations

import math
from collections import defaultdict
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

from webrl.phase import STAGES
from webrl.reports.page.charts import Table, curve, gantt, histogram, percent, plain
from webrl.reports.page.facts import PhaseFacts, RunFacts
from webrl.reports.page.sections import Section
from webrl.runs.clock import duration


def training(run: RunFacts) -> Section:
    """Losses, distance from the reference, gradients and advantages."""
    section = Section("training", "Training", "Faint: every optimizer step; bold: the mean of the phase.")
    for trainer, key, title, note in _CURVES:
        parts = [
            (phase.phase, [_number(line.get(f"{trainer}/{key}")) for line in phase.metrics.get(trainer, ())])
            for phase in run.phases
        ]
        if figure := curve(title, note, parts):
            section.figures.append(figure)
    advantages = [(phase.phase, _listed(phase, "actor/advantage_values")) for phase in run.phases]
    advantages = [(phase, values) for phase, values in advantages if values]
    if advantages:
        last, values = advantages[-1]
        edges = [-1 + 0.1 * k for k in range(21)]
        note = f"Of the samples of phase {last}; the table has the other phases."
        groups = [(f"phase {last}", values)]
        figure = histogram("Advantages", note, groups, [round(e, 10) for e in edges], x_label="advantage")
        section.figures.append(figure)
        rows: list[tuple[object, ...]] = [(phase, len(v), *map(plain, _quartiles(v))) for phase, v in advantages]
        head = ("phase", "samples", "lowest", "lower quarter", "median", "upper quarter", "highest")
        section.tables.append(("Advantages by phase", Table(head, rows, is_wide=True)))
    if not section.figures:
        section.lacks = "No metrics.jsonl with training steps is in this folder."
    return section


_CURVES = (
    ("actor", "loss", "Actor loss", "The objective's own scale."),
    ("critic", "loss", "Critic loss", "Cross-entropy of the outcome."),
    ("actor", "kl", "KL to the reference", "Estimated on the trained samples, in nats."),
    ("actor", "trust_kl", "KL of the update", "On a fixed sample of the phase's own steps; it ends at actor.max_kl."),
    (
        "actor",
        "trust_success_drop",
        "Fall in log-probability of successful actions",
        "In nats on that sample; below 0: a rise.",
    ),
    ("actor", "imitation_loss", "Imitation loss", "Of the demonstrations in each batch."),
    ("actor", "log_ratio", "Log-ratio", "Mean of log π/π_ref over the trained samples, in nats an action."),
    ("actor", "grad_norm", "Gradient norm, actor", "Before clipping."),
    ("critic", "grad_norm", "Gradient norm, critic", "Before clipping."),
    ("actor", "advantage", "Mean advantage", "Of the samples of each step."),
    ("actor", "perplexity", "Perplexity of trained actions", "Under the actor as it is trained."),
)
"""(trainer, metric, title, note)."""


@dataclass
class _Total:
    """A stage over all phases."""

    seconds: float = 0.0
    known: float = 0.0
    """Seconds of which is known what they were spent on."""
    browsers: float = 0.0
    """Seconds in which a browser worked; `models`: a model."""
    models: float = 0.0
    peak_mib: float = 0.0

    def add(self, seconds: float, spent: dict[str, float], peak_mib: float) -> None:
        self.seconds += seconds
        self.known += sum(spent.values())
        self.browsers += sum(part for kind, part in spent.items() if "browsers" in kind)
        self.models += sum(part for kind, part in spent.items() if kind not in ("", "browsers", "model files"))
        self.peak_mib = max(self.peak_mib, peak_mib)

    def idle(self, busy: float) -> str:
        """Share of the known time without such work; a dash for a stage that has none."""
        return f"{100 * (1 - busy / self.known):.0f} %" if busy else "–"


def resources(run: RunFacts) -> Section:
    """Where time and memory went."""
    section = Section(
        "time", "Time and memory", "Each stage from its start to its end; colours say what it was spent on."
    )
    bars: list[tuple[str, int, float, dict[str, float]]] = []
    totals: dict[str, _Total] = defaultdict(_Total)
    for phase in run.phases:
        for name in (spec.name for spec in STAGES if spec.name in phase.stages):
            marker = phase.stages[name]
            parts = marker.get("spent_on") or {}
            spent = {kind: float(part) for kind, part in parts.items() if isinstance(part, int | float)}
            bars.append((name, phase.phase, float(marker["seconds"]), spent))
            totals[name].add(float(marker["seconds"]), spent, float(marker["peak_mib"]))
    if not bars:
        section.lacks = "No stage has finished."
        return section
    work = sum(total.seconds for total in totals.values()) or 1.0
    rows = [
        (
            name, duration(total.seconds), percent(total.seconds / work),
            total.idle(total.browsers), total.idle(total.models), f"{total.peak_mib / 1024:.2f} GiB",
        )
        for name, total in totals.items()
    ]  # fmt: skip
    head = ("stage", "time", "share of the time", "browsers idle", "models idle", "peak memory")
    each = [(name, p.phase, m["seconds"], m["peak_mib"]) for p in run.phases for name, m in p.stages.items()]
    table = Table(("stage", "phase", "seconds", "peak MiB"), each)
    section.figures.append(gantt("Stages over time", f"{duration(work)} of work in all.", bars, table))
    section.tables.append(("All phases together", Table(head, rows, is_wide=True)))
    return section


def tokens(run: RunFacts) -> Section:
    """Tokens of each phase."""
    section = Section("tokens", "Tokens", "Tokens that models read and wrote; training reads them again.")
    rows: list[tuple[object, ...]] = []
    for phase in run.phases:
        wrote, trained = phase.counts("gen-tasks"), 0
        for lines in phase.metrics.values():
            for line in lines:
                name = line["name"]
                trained += round(_zero(line.get(f"{name}/tokens_per_s")) * _zero(line.get(f"{name}/seconds")))
        rows.append((
            phase.phase, _sum(wrote.get("prompt_tokens")), _sum(wrote.get("completion_tokens")),
            _sum(sum(a.prompt_tokens for a in phase.attempts)), _sum(sum(a.answer_tokens for a in phase.attempts)),
            _sum(sum(a.prompt_tokens for a in phase.evaluated)), _sum(sum(a.answer_tokens for a in phase.evaluated)),
            _sum(trained),
        ))  # fmt: skip
    head = (
        "phase", "generator read", "wrote", "rollouts read", "wrote", "evaluation read", "wrote", "trained on",
    )  # fmt: skip
    if rows:
        section.tables.append(("Tokens by phase", Table(head, rows, is_wide=True)))
    else:
        section.lacks = "No phase has started."
    return section


def _listed(phase: PhaseFacts, key: str) -> list[float]:
    values = [v for line in phase.metrics.get("actor", ()) for v in line.get(key) or () if isinstance(v, int | float)]
    return [v for v in values if math.isfinite(v)]


def _quartiles(values: Sequence[float]) -> list[float]:
    ordered = sorted(values)
    return [ordered[round(share * (len(ordered) - 1))] for share in (0, 0.25, 0.5, 0.75, 1)]


def _number(value: Any) -> float:
    return float(value) if isinstance(value, int | float) else math.nan


def _zero(value: Any) -> float:
    number = _number(value)
    return number if math.isfinite(number) else 0.0


def _sum(value: Any) -> str:
    return f"{value:,}".replace(",", "\u202f") if isinstance(value, int) and value else "–"
