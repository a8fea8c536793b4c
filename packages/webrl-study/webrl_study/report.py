"""`study.csv`, `outcomes.csv`, `study.md` and the figure of a study folder."""

from __future__ import annotations

import csv
import io
import os
import platform
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

import numpy as np

from webrl.evaluate import wilson_interval
from webrl.runs.folder import git_commit, package_versions
from webrl.runs.machine import visible_gpus
from webrl.runs.store import read_json, write_json, write_text
from webrl_report.page.figures import COLOURS, clean_axes, margins, new_figure, save_figure
from webrl_study.plan import SPLITS, Study
from webrl_study.results import CellResult
from webrl_study.statistics import MIN_SEEDS, Comparison, compare, rate_by_phase, spread

MACHINE = "study.json"
"""Where and from what the cells were run last."""
Rows = Sequence[Sequence[str]]
_BUDGET = ("cell", "state", "episodes", "env steps", "critic steps", "actor steps", "min")
_NOTE = "mean over seeds, 95 % bootstrap intervals over seeds and tasks"
_EQUAL = {"episodes": "training episodes", "critic_steps": "critic steps", "actor_steps": "actor steps"}
"""What a budget is made of."""


def write_report(study: Study, results: Sequence[CellResult]) -> list[str]:
    """Write tables and figures into the study's folder; returns the names of the files."""
    write_text(study.folder / "study.csv", csv_text(phase_rows, results))
    write_text(study.folder / "outcomes.csv", csv_text(outcome_rows, results))
    found = comparisons(study, results)
    write_text(study.folder / "study.md", markdown_text(study, results, found))
    names = ["study.csv", "outcomes.csv", "study.md"]
    return names + draw_comparison(study, found, compared_phase(study, results), study.folder / "comparison")


def record_machine(study: Study, parallel: int) -> None:
    """Note where the cells are run, for the report's header."""
    versions = dict(package_versions())
    machine = {
        "platform": platform.platform(), "cores": os.cpu_count(), "gpus": len(visible_gpus()), "parallel": parallel,
        "git_commit": git_commit(), "versions": {name: versions[name] for name in ("webrl", "python", "torch")},
        "date": datetime.now(UTC).isoformat(timespec="seconds"),
    }  # fmt: skip
    write_json(study.folder / MACHINE, machine)


def csv_text(rows_of: Callable[[CellResult], Iterable[dict[str, Any]]], results: Sequence[CellResult]) -> str:
    """Write CSV of the rows of all cells, `phase_rows` or `outcome_rows`."""
    out = io.StringIO()
    rows = [row for result in results for row in rows_of(result)]
    writer = csv.DictWriter(out, list(dict.fromkeys(name for row in rows for name in row)), lineterminator="\n")
    writer.writeheader()
    writer.writerows(rows)
    return out.getvalue()


def outcome_rows(result: CellResult) -> Iterator[dict[str, Any]]:
    """Yield one row a phase, temperature and evaluation page: what every table here can be computed from."""
    main, *_ = result.cell.config.evaluate.temperature
    for phase in result.phases:
        for temperature, parts in {f"{main:g}": phase.outcomes, **phase.at_temperature}.items():
            for split, outcomes in parts.items():
                for page, won in outcomes.items():
                    yield {
                        "method": result.cell.method, "seed": result.cell.seed, "phase": phase.phase, "split": split,
                        "page": page, "temperature": temperature, "outcome": int(won),
                    }  # fmt: skip


def phase_rows(result: CellResult) -> Iterator[dict[str, Any]]:
    """Yield one row a phase; a cell without phases has one with its state alone."""
    about = {"method": result.cell.method, "seed": result.cell.seed, "state": result.state}
    if not result.phases:
        yield about
    for phase in result.phases:
        row: dict[str, Any] = about | {"phase": phase.phase}
        for split, name in SPLITS.items():
            won, played = sum(phase.outcomes[split].values()), len(phase.outcomes[split])
            low, high = wilson_interval(won, played)
            key = name.replace(" ", "_").replace("-", "_")
            row |= {f"{key}_successes": won, f"{key}_episodes": played}
            row |= {f"{key}_low": round(low, 4), f"{key}_high": round(high, 4)}
        yield row | {
            "training_episodes": phase.episodes, "env_steps": phase.env_steps,
            "labelled_success": phase.labelled_success, "replayed": phase.replayed,
            "critic_steps": phase.critic_steps, "actor_steps": phase.actor_steps, "actor_kl": phase.kl,
            "seconds": phase.seconds,
        }  # fmt: skip


def markdown_text(study: Study, results: Sequence[CellResult], found: Mapping[str, Mapping[str, Comparison]]) -> str:
    """Write the tables, with where the numbers come from; `found` is what `comparisons` returns."""
    path = study.folder / MACHINE
    machine: Mapping[str, Any] = read_json(path) if path.is_file() else {}
    finished = sum(result.is_finished for result in results)
    gpus = f", {machine['gpus']} GPUs" if machine.get("gpus") else ""
    where = (
        f"{machine['platform']}, {machine['cores']} cores{gpus}, {machine['parallel']} cells at once; "
        f"{machine['date']}; commit {machine['git_commit']}; "
        f"{', '.join(f'{name} {version}' for name, version in machine['versions'].items())}"
        if machine
        else "not run yet"
    )
    parts = [
        f"# {study.config.name}",
        f"Run config `{study.config.config}`, seeds {', '.join(map(str, study.config.seeds))}, "
        f"{study.config.num_phases} phases; {finished} of {len(results)} cells finished.",
        f"{where}.",
        "Success is the environment's own reward. Each number is the mean over seeds of the mean over evaluation "
        "tasks, with a 95 % bootstrap interval over seeds and tasks; differences are paired by seed and task. Won "
        ": lost counts the tasks that only the method, and only the other, solved. Seeds counts those that finished "
        "every phase, over which alone the gain over the start is taken.",
        "SD over seeds is that of the last phase. A difference survives the spread from run to run if zero lies "
        "outside of its interval over pages and of Student's t interval of the seeds' differences (over seeds); with "
        f"fewer than {MIN_SEEDS} seeds the spread is not known. "
        + (
            "Each seed's start is a training of its own."
            if study.sfts
            else "All seeds begin with one model: what another training of it would change is in no interval."
        ),
    ]
    for split, name in SPLITS.items():
        rows = list(_success_rows(study, results, split))
        if rows:
            phases = [f"phase {k}" for k in range(study.config.num_phases + 1)]
            head = ["method", "seeds", *phases, "SD over seeds", "over the start"]
            parts += [f"## Success on {name}, %", table(head, rows)]
    columns = ["method", "seeds"]
    for name in SPLITS.values():
        columns += [f"{name}: points", "over seeds", "verdict", "won : lost"]
    rows = []
    for method, by_split in found.items():
        row = [method, str(next(iter(by_split.values())).difference.seeds)]
        for split in SPLITS:
            if (comparison := by_split.get(split)) is None:
                row += [""] * 4
                continue
            seeds = comparison.over_seeds
            row += [
                comparison.difference.text(signed=True),
                f"[{100 * seeds[0]:+.1f}, {100 * seeds[1]:+.1f}]" if seeds else "not known",
                _verdict(comparison), f"{comparison.won} : {comparison.lost}",
            ]  # fmt: skip
        rows.append(row)
    if rows:
        phase = compared_phase(study, results)
        parts += [f"## Against `{study.config.reference}` after phase {phase}", table(columns, rows)]
    used = []
    for result in results:
        trained = result.phases[1:]
        totals = (
            sum(getattr(p, key) for p in trained) for key in ("episodes", "env_steps", "critic_steps", "actor_steps")
        )
        minutes = f"{sum(phase.seconds for phase in trained) / 60:.1f}"
        used.append([result.cell.name, result.state, *map(str, totals), minutes])
    parts += ["## What each cell used after phase 0", table(_BUDGET, used)]
    ended = [result for result in results if result.is_finished]
    for name, text in _EQUAL.items():
        by_cell = {r.cell.name: sum(getattr(p, name) for p in r.phases[1:]) for r in ended}
        if len(set(by_cell.values())) > 1:
            low, high = (pick(by_cell, key=by_cell.__getitem__) for pick in (min, max))
            parts.append(f"Not equal: {text}, from {by_cell[low]} ({low}) to {by_cell[high]} ({high}).")
    return "\n\n".join(parts) + "\n"


def table(columns: Sequence[str], rows: Rows) -> str:
    """Write a Markdown table."""
    lines = [[" ".join(cell.replace("|", "/").split()) for cell in line] for line in (columns, *rows)]
    return "\n".join(f"| {' | '.join(line)} |" for line in (lines[0], ["---"] * len(columns), *lines[1:]))


def compared_phase(study: Study, results: Sequence[CellResult]) -> int:
    """Return the latest phase that the reference has finished with any seed."""
    return max((len(r.phases) - 1 for r in results if r.cell.method == study.config.reference), default=0)


def comparisons(study: Study, results: Sequence[CellResult]) -> dict[str, dict[str, Comparison]]:
    """Compare each other method, by split, with the reference at `compared_phase`, over seeds that both finished."""
    phase = compared_phase(study, results)
    reached = {(r.cell.method, r.cell.seed): r for r in results if len(r.phases) > phase > 0}
    found: dict[str, dict[str, Comparison]] = {}
    for method in study.config.methods:
        seeds = [s for s in study.config.seeds if {(method, s), (study.config.reference, s)} <= reached.keys()]
        if method == study.config.reference or not seeds:
            continue
        for split in SPLITS:
            pairs = [
                [reached[name, seed].phases[phase].outcomes[split] for seed in seeds]
                for name in (method, study.config.reference)
            ]
            if all(pairs[0]):
                found.setdefault(method, {})[split] = compare(pairs[0], pairs[1], np.random.default_rng(0))
    return found


def _success_rows(study: Study, results: Sequence[CellResult], split: str) -> Iterator[list[str]]:
    for method in study.config.methods:
        cells = [r for r in results if r.cell.method == method]
        rates = rate_by_phase(cells, split, np.random.default_rng(0))
        if not any(rates):
            continue
        num_seeds = len(study.config.seeds)
        texts = [
            rate.text() + ("" if rate.seeds == num_seeds else f" ({rate.seeds} of {num_seeds} seeds)") if rate else ""
            for rate in rates
        ]
        texts += [""] * (study.config.num_phases + 1 - len(texts))
        ended = [r for r in cells if r.is_finished]
        deviation = spread(cells, split, study.config.num_phases)
        shown = "not known" if deviation is None else f"{100 * deviation:.1f}"
        gain = ""
        if ended:
            before, after = ([r.phases[k].outcomes[split] for r in ended] for k in (0, -1))
            found = compare(after, before, np.random.default_rng(0))
            gain = f"{found.difference.text(signed=True)}; {_verdict(found)}"
        yield [method, str(len(ended)), *texts, shown, gain]


def _verdict(comparison: Comparison) -> str:
    return {True: "survives", False: "within the spread", None: "spread not known"}[comparison.survives]


def draw_comparison(study: Study, found: Mapping[str, Mapping[str, Comparison]], phase: int, path: Path) -> list[str]:
    """Plot each method's difference from the reference after a phase, with its interval; returns the files' names."""
    if not found:
        return []
    figure = new_figure(7.2, 1.6 + 0.36 * len(found))
    axes = figure.add_subplot()
    for number, (split, name) in enumerate(SPLITS.items()):
        shift = 0.24 * (number - (len(SPLITS) - 1) / 2) * 2 / len(SPLITS)
        rows = [(i, by_split[split].difference) for i, by_split in enumerate(found.values()) if split in by_split]
        if rows:
            bars = margins([(each.value, each.low, each.high) for _, each in rows], 100)
            axes.errorbar(
                [100 * each.value for _, each in rows], [i + shift for i, _ in rows], xerr=bars, fmt="o", capsize=3,
                color=COLOURS[number], label=name, markersize=5,
            )  # fmt: skip
    axes.axvline(0, color="#666666", linewidth=1)
    axes.set_yticks(range(len(found)), list(found))
    axes.set_ylim(len(found) - 0.5, -0.5)
    axes.set_xlabel(f"points above {study.config.reference} after phase {phase}\n{_NOTE}", fontsize=9)
    clean_axes(axes, "x")
    figure.legend(loc="outside upper left", frameon=False, ncols=2)
    targets = [path.with_name(f"{path.name}.{kind}") for kind in ("png", "svg")]
    for target in targets:
        save_figure(figure, target)
    return [target.name for target in targets]
