"""How far the outcome model can be trusted: its probabilities, its mistakes, and each mistake to read."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

from webrl.evaluate import is_success, rate_of
from webrl.reports.page.charts import Figure, Point, Series, Table, interval_chart
from webrl.reports.page.facts import Attempt, RunFacts
from webrl.reports.page.families import num_judged
from webrl.reports.page.sections import Section
from webrl.reports.run import rate_text
from webrl.reward.report import judge_report, reliability_bins
from webrl.types import Label

NUM_DISAGREEMENTS = 20
MIN_IN_BIN = 4
"""Observations from which on a bin of a calibration chart is a point of its line."""


@dataclass(frozen=True)
class Disagreement:
    """A trajectory that the outcome model judged otherwise than the environment."""

    phase: int
    attempt: Attempt
    label: Label

    @property
    def title(self) -> str:
        """Who said what."""
        said, truth = ("solved", "failed") if self.label.reward else ("failed", "solved")
        sure = "" if self.label.p_yes is None else f" (P(YES) {self.label.p_yes:.3f})"
        return f"judged {said}{sure}, in truth {truth}"


@dataclass
class JudgeSection(Section):
    """The section with its mistakes."""

    mistakes: tuple[Disagreement, ...] = ()
    num_mistakes: int = 0


def judge(run: RunFacts) -> JudgeSection:
    """The labels against the environment's own reward, where it has one."""
    section = JudgeSection("judge", "Outcome model")
    known = [(p.phase, a, label) for p in run.phases for a in p.attempts if (label := _judged(a, p.labels)) is not None]
    with_truth = [(k, a, label) for k, a, label in known if a.trajectory.env_reward is not None]
    if with_truth:
        section.text = (
            f"{len(with_truth)} of {len(known)} judged trajectories have a reward of the environment's own to be held "
            "against (instructions that a model wrote have none). Training never sees that reward."
        )
        _add_truth(section, with_truth)
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
    if bins := _critic_bins(run):
        section.figures.append(bins)
    return section


def _judged(attempt: Attempt, labels: dict[str, Label]) -> Label | None:
    label = labels.get(attempt.trajectory.trajectory_id)
    return label if label is not None and label.reward is not None else None


def _add_truth(section: JudgeSection, rows: Sequence[tuple[int, Attempt, Label]]) -> None:
    truth = [int(is_success(a.trajectory)) for _, a, _ in rows]
    report = judge_report(truth, [float(label.reward or 0) for _, _, label in rows])
    scored = [(t, label.p_yes) for t, (_, _, label) in zip(truth, rows, strict=True) if label.p_yes is not None]
    if scored:
        note = (
            "Share that was truly solved among trajectories of a similar P(YES); a calibrated model is on the diagonal."
            f" Hollow: fewer than {MIN_IN_BIN} trajectories."
        )
        line = _calibration("trajectories", reliability_bins([t for t, _ in scored], [p for _, p in scored]))
        figure = interval_chart("Calibration", note, [line], x_label="P(YES)", y_label="truly solved", diagonal=True)
        section.figures.append(figure)
    counts: list[tuple[object, ...]] = [
        ("judged solved", report.true_positive, report.false_positive),
        ("judged failed", report.false_negative, report.true_negative),
    ]
    section.tables.append(("Labels against the truth", Table(("judgement", "truly solved", "truly failed"), counts)))
    shares: list[tuple[object, ...]] = []
    for name in ("accuracy", "balanced_accuracy", "precision", "recall"):
        found = getattr(report, name)
        if found.value is not None:
            low, high = found.ci95
            text = f"{100 * found.value:.1f} % [{100 * low:.1f}, {100 * high:.1f}]"
            shares.append((name.replace("_", " "), text, found.num))
    section.tables.append(("How often it is right", Table(("measure", "share, 95 %", "of"), shares)))
    wrong = [
        Disagreement(phase, attempt, label)
        for t, (phase, attempt, label) in zip(truth, rows, strict=True)
        if t != label.reward
    ]
    wrong.sort(key=lambda d: -abs((d.label.p_yes if d.label.p_yes is not None else 0.5) - 0.5))
    section.mistakes, section.num_mistakes = tuple(wrong[:NUM_DISAGREEMENTS]), len(wrong)


def _critic_bins(run: RunFacts) -> Figure | None:
    """The critic's calibration on the last phase that trained one."""
    for phase in reversed(run.phases):
        bins = (phase.counts("train").get("critic_calibration") or {}).get("bins")
        if not isinstance(bins, list) or not bins:
            continue
        counted = [(one["value"], round(one["outcome"] * one["count"]), int(one["count"])) for one in bins]
        note = (
            f"Outcome of the steps of phase {phase.phase} that the critic was trained on, by the value it gives them. "
            f"Hollow: fewer than {MIN_IN_BIN} steps."
        )
        line = _calibration("steps", counted)
        return interval_chart(
            "The critic's calibration", note, [line], x_label="value", y_label="outcome", diagonal=True
        )
    return None


def _calibration(name: str, bins: Sequence[tuple[float, int, int]]) -> Series:
    """(predicted, solved, number) of each bin as a line; bins of a few are points that no line goes through."""
    points = []
    for x, solved, num in bins:
        rate = rate_of(solved, num).to_json()
        low, high = rate["ci95"]
        points.append(Point(x, rate["rate"], low, high, rate_text(rate), is_thin=num < MIN_IN_BIN))
    return Series(name, points)
