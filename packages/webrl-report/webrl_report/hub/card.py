"""The model card: what was trained from what, how and on which data, and how often it succeeds, with intervals."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from importlib.resources import files
from pathlib import Path
from typing import Any

import webrl
from webrl.config.redaction import redact
from webrl.evaluate import is_evaluated, named_rates
from webrl.reports.run import agreement_text, rate_names, rate_text, standing_text
from webrl.reports.trackers import escaped, table
from webrl.runs.spelling import visible
from webrl_report.page.build import settings_table
from webrl_report.page.facts import PhaseFacts, RunFacts


@dataclass(frozen=True)
class Ancestry:
    """What an actor was made from: the phases before it, the supervised start, and the model that all began with."""

    trained: tuple[Path, ...]
    """Model folders that were trained one from the other, oldest first; the last is the actor."""
    base: str
    """What the first of them was trained from, as it was named."""
    weights: str | None
    """`base_fingerprint` of that; None: not known."""
    on_hub: bool
    """Whether it is a name of the Hub, rather than a folder."""


def model_card(
    run: RunFacts, phase: int, repo_id: str, license_id: str, origin: Ancestry, adapter_rank: int | None
) -> str:
    """Write README.md of the model after a phase, by `card.md.j2`.

    Args:
        run: with all its phases up to this one.
        adapter_rank: of the LoRA adapter that is uploaded; None: whole weights.
        license_id: as the Hub spells licenses (`apache-2.0`, `llama3.1`); `unknown` if it is not known.
    """
    from huggingface_hub import ModelCardData
    from jinja2 import StrictUndefined, Template

    phases = [facts for facts in run.phases if facts.phase <= phase]
    start, base = str(run.option("models.actor", "not known")), origin.base if origin.on_hub else None
    sees = run.option("rollout.image_size") is not None
    name = repo_id.rpartition("/")[2]
    suites = run.option("tasks.suite", "tasks")
    suite = ", ".join(suites) if isinstance(suites, list) else str(suites)
    data = ModelCardData(
        base_model=base,
        base_model_relation="adapter" if adapter_rank else None,
        library_name="peft" if adapter_rank else "transformers",
        license=license_id,
        pipeline_tag="image-text-to-text" if sees else "text-generation",
        tags=["webrl", "web-agent", "browser", "reinforcement-learning"],
        model_name=name,
        eval_results=list(_results(phases[-1], suite)) or None,
    )
    rates = {facts.phase: named_rates(found) for facts in phases if is_evaluated(found := facts.counts("eval"))}
    agreements = [(p.phase, text) for p in phases if (text := agreement_text({"label": p.counts("label")}))]
    settings = settings_table(run)
    names = rate_names(list(rates.values()))
    success: list[tuple[object, ...]] = []
    for number, found in rates.items():
        texts = [standing_text(found[name]) for name in names]
        success.append((f"{number}: supervised start" if number == 0 else str(number), *texts))
    counted: list[tuple[object, ...]] = []
    for facts in phases:
        played, judged, replayed = (facts.counts(stage) for stage in ("rollout", "label", "replay"))
        steps = (replayed.get("num_current", "–"), replayed.get("num_replayed", "–"))
        counted.append((facts.phase, played.get("num_rollouts", "–"), judged.get("num_success", "–"), *steps))
    counted_head = ("phase", "episodes", "labelled successful", "own steps trained on", "replayed steps")
    marker = next(iter(reversed(phases[-1].stages.values())), {})
    versions = ", ".join(f"{package} {version}" for package, version in dict(marker.get("versions") or {}).items())
    # Jinja would write a word from outside as it is: each is escaped, or without the backticks that it is put between.
    text = files("webrl_report.hub").joinpath("card.md.j2").read_text(encoding="utf-8")
    body = Template(text, undefined=StrictUndefined, trim_blocks=True, lstrip_blocks=True).render(
        name=escaped(name), repo_id=repo_id, phase=phase, num_phases=run.option("num_phases", "?"), base=base,
        rank=adapter_rank, sees=sees, num_trained=len(origin.trained), version=webrl.__version__,
        start=_code(start), start_is_folder=start != base,
        success_table=table(("phase", *names), success) if success else "",
        is_evaluated=phase in rates, seed=run.option("seed", "?"),
        objective=_code(run.option("actor.objective", "?")), judge=_code(run.option("label.judge", "orm")),
        later_tasks="written from failures" if run.option("tasks.source") == "curriculum" else "of the suite",
        agreement_table=table(("phase", "labels"), agreements) if agreements else "",
        settings_table=table(settings.head, settings.rows),
        versions=escaped(versions), commit=_code(marker.get("git_commit") or "not known"),
        suite=_code(suite), data_table=table(counted_head, counted),
    )  # fmt: skip
    return f"---\n{data.to_yaml()}\n---\n\n{redact(visible(body)).strip()}\n"


def _results(phase: PhaseFacts, suite: str) -> Iterator[Any]:
    """The rates as the Hub's metadata has them."""
    from huggingface_hub import EvalResult

    for name, rate in named_rates(phase.counts("eval")).items():
        if rate.get("episodes"):
            yield EvalResult(
                task_type="reinforcement-learning", task_name="Web tasks", dataset_type=suite,
                dataset_name=f"{suite}, {name}", dataset_config=name, metric_type="success_rate",
                metric_value=rate["rate"], metric_name=f"Success rate, {rate_text(rate)}",
            )  # fmt: skip


def _code(value: object) -> str:
    """What may stand between backticks."""
    return str(value).replace("`", "'").replace("\n", " ")
