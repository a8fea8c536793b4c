"""Formats a run for the terminal: a table per phase, and an overview."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

from rich import box
from rich.table import Table

from webrl.config import flatten
from webrl.evaluate import difference_text, named_rates
from webrl.reward.labels import undecided_sites

Summary = Mapping[str, Any]
"""One phase of `summary.json` (schema: data/README.md)."""

_TRAINING_SHOWN = ("loss", "accuracy", "advantage", "kl", "perplexity", "samples", "steps", "tokens_per_s")


def phase_table(phase: Summary) -> Table:
    """Show everything one phase did, stage by stage."""
    table = Table(box=box.SIMPLE_HEAD, pad_edge=False)
    table.add_column(f"phase {phase['phase']}", no_wrap=True)
    table.add_column("supervised start" if phase["phase"] == 0 else "")
    for name, text in phase_rows(phase):
        table.add_row(name, text)
    return table


def phase_rows(phase: Summary) -> list[tuple[str, str]]:
    """Return (quantity, text) of a phase; what a phase does not have is left out."""
    peaks = phase.get("peak_mib") or {}
    peak = max(peaks, key=lambda stage: peaks[stage]) if peaks else ""
    by_type = list(((phase.get("replay") or {}).get("by_type") or {}).items())
    others = {f"{len(by_type) - 8} other types": sum(num for _, num in by_type[8:])} if by_type[8:] else {}
    losses: Summary = phase.get("losses") or {}
    trained = {}  # the numbers worth a glance; all of them are in summary.json
    for job in ("critic", "actor"):
        keys = {name: f"{job}_{name}" for name in _TRAINING_SHOWN}
        trained[job] = _parts({name: losses[key] for name, key in keys.items() if _is_number(losses.get(key))})
    rows = [
        ("generated", str(phase.get("num_generated") or "")),
        ("kept", _with_parts(phase.get("num_kept"), phase.get("dropped"), "dropped: ")),
        ("rollouts", _with_parts(phase.get("num_rollouts"), phase.get("rollout_status"), "")),
        ("labelled success", labelled_text(phase)),
        ("labels", agreement_text(phase)),
        ("groups", groups_text(phase)),
        ("replayed steps", _with_parts(phase.get("num_replayed") or None, dict(by_type[:8]) | others, "")),
        *trained.items(),
        ("update", update_text(phase)),
        *(
            row
            for name, rate in named_rates(phase.get("eval") or {}).items()
            for row in ((name, rate_text(rate)), ("  over the start", difference_text(rate.get("over_start"))))
        ),
        ("seconds", _parts({k: round(v) for k, v in (phase.get("seconds") or {}).items()})),
        ("peak memory", f"{peaks[peak] / 1024:.2f} GiB ({peak})" if peak else ""),
    ]
    return [(name, text) for name, text in rows if text]


def update_text(phase: Summary) -> str:
    """Say where the update was ended early, and how the actors before and after it did on the probe."""
    losses, probe = phase.get("losses") or {}, phase.get("accept") or {}
    parts = []
    if "actor_trust_kl" in losses:
        moved, rise = losses["actor_trust_kl"], -losses["actor_trust_success_drop"]
        parts.append(f"last check: KL {moved:.3f} nats, successful actions {rise:+.3f} nats")
    if stopped := losses.get("actor_stopped"):
        parts.append(f"{losses['actor_kept_steps']} of {losses['actor_steps']} steps kept ({stopped})")
    if "accepted" in probe:
        pages, p_value = probe["pages"], probe["p_value"]
        verdict = "accepted" if probe["accepted"] else "NOT ACCEPTED, the old actor stays"
        parts.append(f"{verdict}: {probe['before']} -> {probe['after']} of {pages} probe pages (p {p_value:.2g})")
        if (before := probe["unreadable"][0]) != (after := probe["unreadable"][1]):
            parts.append(f"unreadable answers on {before} -> {after} pages (p {probe['unreadable_p_value']:.2g})")
    if skipped := probe.get("skipped"):
        parts.append(f"no probe: {skipped}")
    if (factor := probe.get("rate_factor", 1)) != 1:
        parts.append(f"next learning rate x {factor:g}")
    return "; ".join(parts)


def overview_table(phases: Sequence[Summary]) -> Table:
    """Show a line per phase: how success moved."""
    table = Table(box=box.SIMPLE_HEAD, pad_edge=False)
    rates = [named_rates(phase.get("eval") or {}) for phase in phases]
    names = rate_names(rates)
    for column in ("phase", "tasks", "labelled success", "replayed", *names, "minutes"):
        table.add_column(column, justify="left" if column in names else "right")
    for phase, found in zip(phases, rates, strict=True):
        table.add_row(
            str(phase["phase"]),
            str(phase.get("num_rollouts", 0)),
            labelled_text(phase),
            str(phase.get("num_replayed", 0)),
            *(rate_text(found.get(name) or {}) for name in names),
            f"{sum((phase.get('seconds') or {}).values()) / 60:.1f}",
        )
    return table


def rate_names(rates: Sequence[Mapping[str, Summary]]) -> list[str]:
    """Return the columns of phases' `named_rates`: those of the phases that were evaluated, if one was."""
    evaluated = [found for found in rates if any(found.values())]
    return list(dict.fromkeys(name for found in evaluated or rates for name in found))


def phase_metrics(phase: Summary) -> dict[str, float]:
    """Return the numbers of a phase under flat names, for trackers."""
    skipped = {"phase", "by_task", "by_type", "ci95"}
    return {name: value for name, value in flatten(phase) if _is_number(value) and skipped.isdisjoint(name.split("."))}


def rate_text(rate: Summary) -> str:
    """Return `96/240 = 40.0 % [34.0, 46.3]`, or "" without episodes."""
    if not rate.get("episodes"):
        return ""
    low, high = rate["ci95"]
    errors = f", {rate['errors']} crashed" if rate.get("errors") else ""
    interval = f"[{100 * low:.1f}, {100 * high:.1f}]"
    return f"{rate['successes']}/{rate['episodes']} = {100 * rate['rate']:.1f} % {interval}{errors}"


def labelled_text(phase: Summary) -> str:
    """Say how many trajectories were judged successful, of those that were judged."""
    judged = (phase.get("label") or {}).get("num_labelled", phase.get("num_rollouts"))
    return _share(phase.get("num_labelled_success"), judged)


def agreement_text(phase: Summary) -> str:
    """Report how many labels the environment's own reward confirms, if it has one (it is never trained on)."""
    found = (phase.get("label") or {}).get("agreement")
    if not found:
        return ""
    right = found["true_positive"] + found["true_negative"]
    balanced = found["balanced_accuracy"]["value"]
    balance = "" if balanced is None else f", balanced accuracy {100 * balanced:.1f} %"
    text = f"agree with the environment's reward: {_share(right, found['num'])}{balance}"
    sites = found.get("by_site", {})
    undecided = undecided_sites(sites)
    return f"{text}, no better than a constant on {len(undecided)} of {len(sites)} sites" if undecided else text


def groups_text(phase: Summary) -> str:
    """Report how the groups of attempts at one task ended, if tasks were attempted several times."""
    groups = (phase.get("label") or {}).get("groups")
    if not groups:
        return ""
    kinds = _parts({name: groups[f"num_{name}"] for name in ("mixed", "succeeded", "failed", "single")})
    masked = f"; {groups['num_masked']} attempts without outcome" if groups["num_masked"] else ""
    passed = [
        f"; pass@{k} {100 * found['any']:.1f} %, pass^{k} {100 * found['all']:.1f} % of {found['tasks']}"
        for k, found in list(groups.get("passed", {}).items())[-1:]
    ]
    return f"{groups['num']} ({kinds}){masked}; without signal {100 * groups['no_signal']:.1f} %" + "".join(passed)


def _is_number(value: Any) -> bool:
    return isinstance(value, int | float) and not isinstance(value, bool)


def _share(part: int | None, whole: int | None) -> str:
    return f"{part or 0} of {whole} ({100 * (part or 0) / whole:.1f} %)" if whole else ""


def _with_parts(total: int | None, parts: Mapping[str, float] | None, lead: str) -> str:
    if total is None and not parts:
        return ""
    detail = _parts({name: n for name, n in (parts or {}).items() if n})
    return f"{total or 0}" + (f" ({lead}{detail})" if detail else "")


def _parts(parts: Mapping[str, float]) -> str:
    return ", ".join(f"{name} {v if isinstance(v, int) else f'{v:.4g}'}" for name, v in parts.items())
