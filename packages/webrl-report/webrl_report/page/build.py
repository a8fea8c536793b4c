"""The page itself: one run or several side by side, rendered into one file that loads nothing else."""

from __future__ import annotations

import base64
import hashlib
import re
from collections.abc import Iterator, Sequence
from datetime import UTC, datetime
from importlib.resources import files
from pathlib import Path
from typing import Any

import yaml
from jinja2 import Environment, StrictUndefined
from markupsafe import Markup

import webrl
from webrl.config import SHARED, RunConfig, flatten, share
from webrl.config.redaction import redact
from webrl.errors import UsageError
from webrl.evaluate import difference_text
from webrl.runs.clock import duration
from webrl.runs.store import write_text
from webrl.runs.text import visible
from webrl_report.page.charts import Table, interval_chart
from webrl_report.page.facts import RunFacts, in_words, read_run
from webrl_report.page.sections import (
    Cell,
    Section,
    curriculum,
    evaluated,
    judge,
    rates_by_name,
    replay,
    resources,
    statuses,
    success,
    tokens,
    training,
)

SHOWN_CHARS = 1500
"""Characters of a page or an answer that are shown; what is longer is cut with a note."""
MAX_RUNS = 6
"""Runs side by side: as many as there are distinguishable colours."""
_PLACE_KEYS = ("name", "runs_dir")
"""Settings that locate a run and do not change what it does."""
_SECTIONS = (success, curriculum, judge, replay, training, resources, tokens)


def write_report(paths: Sequence[Path], out: Path) -> list[str]:
    """Write the report of one or several runs; returns what it lacks, by run.

    Raises:
        UsageError: a path is not a run folder, a run is named twice, or `out` is a folder.
        OSError: `out` cannot be written.
    """
    if out.is_dir():
        raise UsageError(f"--out {str(out)!r} is a folder; name a file in it, such as {str(out / 'report.html')!r}")
    known = [path.absolute().resolve() for path in paths]
    if twice := next((path for path, full in zip(paths, known, strict=True) if known.count(full) > 1), None):
        raise UsageError(f"{str(twice)!r} is named twice; a run is not compared with itself")
    if len(paths) > MAX_RUNS:
        raise UsageError(f"{len(paths)} runs; a report shows {MAX_RUNS} at most")
    runs = [read_run(path) for path in paths]
    write_text(out, render(runs))
    return [f"{run.name}: {text}" for run in runs for text in run.missing]


def render(runs: Sequence[RunFacts]) -> str:
    """Render the report as HTML: no script, nothing fetched, everything that a run holds escaped."""
    environment = Environment(autoescape=True, undefined=StrictUndefined, trim_blocks=True, lstrip_blocks=True)
    environment.filters["short"] = short
    environment.filters["words"] = in_words
    environment.tests["cell"] = lambda value: isinstance(value, Cell)
    here = files("webrl_report.page")
    css = here.joinpath("page.css").read_text(encoding="utf-8")
    digest = base64.b64encode(hashlib.sha256(css.encode()).digest()).decode()
    shown = []
    for run in runs:
        sections = [section(run) for section in _SECTIONS]
        shown.append({
            "name": run.name, "path": run.path, "missing": run.missing, "verdicts": list(verdicts(run)),
            "tiles": _tiles(run), "sections": [*sections, _configuration(run)],
        })  # fmt: skip
    comparison = None
    if len(runs) > 1:
        series = [
            (run.name if name == "held-out seeds" else f"{run.name}, {name}", rates)
            for run in runs
            for name, rates in rates_by_name(evaluated(run.phases)).items()
            if name.endswith("held-out seeds")
        ]
        note = "Held-out seeds by the environment's own reward, with 95 % Wilson intervals."
        figures = [interval_chart("Success by phase, run by run", note, series)] if series else []
        comparison = {"figures": figures, "settings": differences(runs)}
    html = environment.from_string(here.joinpath("page.html.j2").read_text(encoding="utf-8")).render(
        css=Markup(css),
        style_source=f"'sha256-{digest}'",
        runs=shown,
        comparison=comparison,
        version=webrl.__version__,
        made=datetime.now(UTC).strftime("%Y-%m-%d %H:%M UTC"),
    )
    # Piece by piece, since a token in an address ends where its tag begins.
    return "".join(map(redact, re.split("(<[^>]*>)", visible(html))))


def short(text: object, limit: int = SHOWN_CHARS) -> str:
    """Return the start of a text, and how long it is if that is not all of it."""
    start = str(text)
    return start if len(start) <= limit else f"{start[:limit]} … [cut: {len(start):,} characters in all]"


def verdicts(run: RunFacts) -> Iterator[tuple[str, str]]:
    """Yield (`better`, `worse`, `same` or `open`, sentence): the newest actor against the start."""
    rates = evaluated(run.phases)
    if not rates:
        yield "open", "No phase has been evaluated yet."
        return
    phase, rate = rates[-1]
    if not rate.get("episodes"):
        return
    reached = f"{100 * rate['rate']:.1f} % of {rate['episodes']} held-out episodes solved"
    if phase == rates[0][0]:
        yield "open", f"{reached} in phase {phase}; no later phase has been evaluated yet."
    elif not rate.get("over_start"):
        yield "open", f"{reached} after phase {phase}; not compared with the start, which played other tasks."
    else:
        low, high = rate["over_start"]["ci95"]
        kind, words = (
            ("better", "Better than the start") if low > 0
            else ("worse", "Worse than the start") if high < 0
            else ("same", "No clear difference from the start")
        )  # fmt: skip
        yield kind, f"{words} after phase {phase}: {difference_text(rate['over_start'])} by task (95 % interval)."


def _tiles(run: RunFacts) -> list[tuple[str, str, str]]:
    """Return (what, figure, more) of the numbers to begin with."""
    rates = evaluated(run.phases)
    tiles = []
    if rates:
        (first, began), (last, rate) = rates[0], rates[-1]
        if rate.get("episodes"):
            low, high = rate["ci95"]
            more = f"{rate['successes']} of {rate['episodes']} [{100 * low:.1f}, {100 * high:.1f}]"
            tiles.append((f"success after phase {last}", f"{100 * rate['rate']:.1f} %", more))
            if first != last:
                more = f"{began['successes']} of {began['episodes']}"
                tiles.append((f"at the start, phase {first}", f"{100 * began['rate']:.1f} %", more))
    attempts = sum(statuses(phase).total() for phase in run.phases)
    episodes = attempts + sum(len(phase.evaluated) for phase in run.phases)
    if episodes:
        tiles.append(("episodes", f"{episodes:,}".replace(",", "\u202f"), f"{attempts} of them to learn from"))
    markers = [marker for phase in run.phases for marker in phase.stages.values()]
    if markers:
        peak = max(float(marker["peak_mib"]) for marker in markers) / 1024
        tiles.append(("time in stages", duration(sum(float(m["seconds"]) for m in markers)), f"{len(markers)} stages"))
        tiles.append(("peak memory", f"{peak:.1f} GiB", "all processes together"))
    return tiles


def _configuration(run: RunFacts) -> Section:
    section = Section("config", "Configuration", "Settings that differ from the defaults.")
    if run.config:
        section.tables.append(("Settings", settings_table(run)))
        text = yaml.safe_dump(run.config, sort_keys=False, allow_unicode=True)
        section.folded.append(("All of config.yaml", Table(("",), [(text,)])))
    else:
        section.text, section.lacks = "", "There is no readable config.yaml in this folder."
    newest = next((m for phase in reversed(run.phases) for m in reversed(list(phase.stages.values()))), None)
    if newest:
        rows: list[tuple[object, ...]] = [
            ("finished", newest.get("finished_at", "–")), ("commit", newest.get("git_commit") or "–"),
            ("platform", newest.get("platform", "–")), ("command", " ".join(map(str, newest.get("command") or ()))),
            *((name, version) for name, version in dict(newest.get("versions") or {}).items()),
        ]  # fmt: skip
        section.folded.append(("Machine and versions (of the newest stage)", Table(("what", "value"), rows)))
    return section


def settings_table(run: RunFacts) -> Table:
    """Return what a run's config sets otherwise than the defaults."""
    defaults = dict(flatten(share(RunConfig().model_dump(mode="json"))))
    shared = dict(flatten(share({name: run.config[name] for name in SHARED if name in run.config})))
    expected = defaults | {key: value for key, value in shared.items() if key.partition(".")[0] not in SHARED}
    rows: list[tuple[object, ...]] = [
        (key, _text(value), _text(defaults[key]) if key in defaults else "no such setting today")
        for key, value in flatten(share(run.config))
        if key not in _PLACE_KEYS and (key not in expected or expected[key] != value)
    ]
    return Table(("setting", "this run", "default"), rows, is_wide=True)


def differences(runs: Sequence[RunFacts]) -> Table:
    """Return settings that are not the same in all runs."""
    flat = [dict(flatten(share(run.config))) for run in runs]
    keys = dict.fromkeys(key for run in runs for key, _ in flatten(run.config) if key not in _PLACE_KEYS)
    rows: list[tuple[object, ...]] = []
    for key in keys:
        texts = [_text(config[key]) if key in config else "not set" for config in flat]
        if len(set(texts)) > 1:
            rows.append((key, *texts))
    return Table(("setting", *(run.name for run in runs)), rows)


def _text(value: Any) -> str:
    if isinstance(value, list):
        return ", ".join(map(str, value)) or "none"
    if value is None:
        return "null"
    return f"{value:.6g}" if isinstance(value, float) else str(value)
