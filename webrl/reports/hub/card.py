"""The model card: what was trained from what, how and on which data, and how often it succeeds, with intervals."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import webrl
from webrl.config.redaction import redact
from webrl.evaluate import is_evaluated, named_rates
from webrl.reports.hub.ancestry import Ancestry
from webrl.reports.markdown import escaped, table
from webrl.reports.page.compare import settings_table
from webrl.reports.page.facts import PhaseFacts, RunFacts
from webrl.reports.run import agreement_text, rate_names, rate_text, standing_text
from webrl.runs.spelling import visible


def model_card(
    run: RunFacts, phase: int, repo_id: str, license_id: str, origin: Ancestry, adapter_rank: int | None
) -> str:
    """README.md of the model after a phase.

    Args:
        run: with all its phases up to this one.
        adapter_rank: of the LoRA adapter that is uploaded; None: whole weights.
        license_id: as the Hub spells licenses (`apache-2.0`, `llama3.1`); `unknown` if nobody said.
    """
    from huggingface_hub import ModelCardData

    phases = [facts for facts in run.phases if facts.phase <= phase]
    start, base = str(run.option("models.actor", "not known")), origin.base if origin.on_hub else None
    sees = run.option("rollout.image_size") is not None
    kind = "" if start == base else " (a folder of the machine that trained it)"
    data = ModelCardData(
        base_model=base,
        base_model_relation="adapter" if adapter_rank else None,
        library_name="peft" if adapter_rank else "transformers",
        license=license_id,
        pipeline_tag="image-text-to-text" if sees else "text-generation",
        tags=["webrl", "web-agent", "browser", "reinforcement-learning"],
        model_name=repo_id.rpartition("/")[2],
        eval_results=list(_results(run, phases[-1])) or None,
    )
    parts = [
        f"# {escaped(repo_id.rpartition('/')[2])}",
        f"A web agent after phase {phase} of {run.option('num_phases', '?')} of a "
        f"[WebRL](https://arxiv.org/abs/2411.02337) run, {_what(base, adapter_rank)}, trained from "
        f"`{_code(start)}`{kind} with webrl {webrl.__version__}.",
        "## Results",
        _success(run, phases),
        "## How it was trained",
        *_training(run, phases),
        "## Data",
        _data(run, phases),
        "## Use",
        _use(repo_id, sees=sees) if adapter_rank is None else _use_adapter(repo_id, str(base), len(origin.trained)),
        "`report.html` shows the whole run, `config.yaml` is its configuration (secrets are masked).",
    ]
    text = "\n\n".join(parts)
    return f"---\n{data.to_yaml()}\n---\n\n{redact(visible(text))}\n"


def _results(run: RunFacts, phase: PhaseFacts) -> Iterator[Any]:
    """The rates as the Hub's metadata has them."""
    from huggingface_hub import EvalResult

    found = phase.counts("eval")
    suite = _suite(run)
    for name, rate in named_rates(found).items():
        if rate.get("episodes"):
            yield EvalResult(
                task_type="reinforcement-learning", task_name="Web tasks", dataset_type=suite,
                dataset_name=f"{suite}, {name}", dataset_config=name, metric_type="success_rate",
                metric_value=rate["rate"], metric_name=f"Success rate, {rate_text(rate)}",
            )  # fmt: skip


def _suite(run: RunFacts) -> str:
    names = run.option("tasks.suite", "tasks")
    return ", ".join(names) if isinstance(names, list) else str(names)


def _success(run: RunFacts, phases: list[PhaseFacts]) -> str:
    found = {facts.phase: named_rates(data) for facts in phases if is_evaluated(data := facts.counts("eval"))}
    if not found:
        return "No phase of this run has been evaluated to the end."
    names = rate_names(list(found.values()))
    rows = [
        (f"{phase}: supervised start" if phase == 0 else str(phase), *(standing_text(rates[name]) for name in names))
        for phase, rates in found.items()
    ]
    lacks = "" if phases[-1].phase in found else " **This very phase has not been evaluated.**"
    measured = (
        "Success on held-out pages, by the environment's own reward, with 95 % Wilson intervals of the episodes "
        "(differences: Newcombe's, paired by task); "
        f"one run, seed {run.option('seed', '?')}.{lacks}"
    )
    return f"{measured}\n\n{table(('phase', *names), rows)}"


def _training(run: RunFacts, phases: list[PhaseFacts]) -> Iterator[str]:
    judge = run.option("label.judge", "orm")
    told = "the environment's own reward" if judge == "environment" else f"the labels of `{_code(judge)}` alone"
    yield (
        f"Objective `{_code(run.option('actor.objective', '?'))}`; training saw {told}. "
        "Tasks: the suite's own in phase 0, later ones "
        f"{'written from failures' if run.option('tasks.source') == 'curriculum' else 'of the suite'}."
    )
    agreements = [(p.phase, text) for p in phases if (text := agreement_text({"label": p.counts("label")}))]
    if agreements:
        yield "Labels held against the truth:\n\n" + table(("phase", "labels"), agreements)
    yield "What its configuration sets otherwise than webrl's defaults:"
    settings = settings_table(run)
    yield table(settings.head, settings.rows)
    marker = next(iter(reversed(phases[-1].stages.values())), {})
    versions = ", ".join(f"{name} {version}" for name, version in dict(marker.get("versions") or {}).items())
    if versions:
        yield f"Made with {escaped(versions)}; commit `{_code(marker.get('git_commit') or 'not known')}`."


def _data(run: RunFacts, phases: list[PhaseFacts]) -> str:
    """Counts by phase; the episodes themselves are not uploaded."""
    rows: list[tuple[object, ...]] = []
    for facts in phases:
        played, judged, replayed = (facts.counts(stage) for stage in ("rollout", "label", "replay"))
        steps = (replayed.get("num_current", "–"), replayed.get("num_replayed", "–"))
        rows.append((facts.phase, played.get("num_rollouts", "–"), judged.get("num_success", "–"), *steps))
    where = f"Episodes of the suite `{_code(_suite(run))}`, played by the model itself in a real browser"
    head = ("phase", "episodes", "labelled successful", "own steps trained on", "replayed steps")
    return f"{where}. They are not part of this repository.\n\n{table(head, rows)}"


def _what(base: str | None, adapter_rank: int | None) -> str:
    if adapter_rank is None:
        return "whole weights"
    return f"a LoRA adapter of rank {adapter_rank} for [{base}](https://huggingface.co/{base})"


def _use_adapter(repo_id: str, base: str, num_trained: int) -> str:
    joined = ""
    if num_trained > 1:
        joined = (
            f"\n\nThe run trained {num_trained} adapters one after the other; this is their sum. It merged each into "
            "the weights before the next, so that the last digits of those differ by the rounding."
        )
    return (
        "```python\nfrom peft import PeftModel\nfrom transformers import AutoModelForCausalLM, AutoTokenizer\n\n"
        f'tokenizer = AutoTokenizer.from_pretrained("{repo_id}")\n'
        f'base = AutoModelForCausalLM.from_pretrained("{base}", dtype="float32")  # as it was trained\n'
        f'model = PeftModel.from_pretrained(base, "{repo_id}")\n```\n\n'
        f"In webrl: `hf download {repo_id} --local-dir agent`, then `webrl eval agent/config.yaml models.actor=agent "
        f"name=again`.{joined}"
    )


def _use(repo_id: str, *, sees: bool) -> str:
    reader, model = ("AutoTokenizer", "AutoModelForCausalLM")
    if sees:
        reader, model = ("AutoProcessor", "AutoModelForImageTextToText")
    return (
        f"```python\nfrom transformers import {model}, {reader}\n\n"
        f'{reader.removeprefix("Auto").lower()} = {reader}.from_pretrained("{repo_id}")\n'
        f'model = {model}.from_pretrained("{repo_id}")\n```\n\n'
        f"In webrl: `webrl eval config.yaml models.actor={repo_id} name=again`, with this repository's `config.yaml`."
    )


def _code(value: object) -> str:
    """What may stand between backticks."""
    return str(value).replace("`", "'").replace("\n", " ")
