"""`webrl train-orm`: an outcome model from judged trajectories, by the trainer that also does SFT; and its report.

A policy that is trained on a judge's verdicts finds what the judge takes for success (docs/one_gpu.md has figures). So
with `orm.refresh_every` (the paper's judge stays as it is) the newest actor plays, every few phases, tasks whose reward
the environment knows, and the judge is trained further on these episodes and on as many of those that it was trained on
before (`refresh`). Actor and critic never see them.
"""

from __future__ import annotations

import asyncio
import logging
import random
import shutil
from collections.abc import Sequence
from pathlib import Path
from typing import Any

from webrl.config import LabelConfig, RunConfig, plugins
from webrl.errors import DataError
from webrl.evaluate import is_success
from webrl.interop.problems import ProblemLog
from webrl.llm import open_model
from webrl.llm.loading import load_tokenizer
from webrl.llm.tokens import closing_ids
from webrl.reward.data import JudgedExample, read_judged, split_heldout, training_examples
from webrl.reward.orm import answer_tokens, outcome_prompt, yes_probability
from webrl.reward.report import count_sites, judge_report
from webrl.runs.progress import progress
from webrl.runs.store import read_json, read_records, write_json
from webrl.training.metrics import TrainingPaths
from webrl.types import Trajectory

logger = logging.getLogger(__name__)


def train_orm(config: RunConfig, paths: TrainingPaths, *, compare: bool = False) -> dict[str, Any]:
    """Train, then report on held-out trajectories; resumes like every training.

    Args:
        compare: whether the model that it starts from, a judge already, is reported on too.

    Returns:
        What is in `report.json`: `data` (examples by kind), `num_rehearsed`, `losses`, `heldout` (`judge_report`),
        `start`.

    Raises:
        DataError: nothing judged, or one class only.
        ModelError: unusable starting model.
    """
    from webrl.training import train_sft

    rng = random.Random(f"{config.seed}:train-orm")
    with ProblemLog(paths.report / "problems.txt") as problems:
        judged = [item for path in paths.data for item in read_judged(path, problems)]
        earlier = [item for path in paths.rehearsed for item in read_judged(path, problems)]
        problem_counts = dict(problems.counts)
    if not judged:
        names = ", ".join(map(str, paths.data))
        raise DataError(f"{names}: no finished trajectory with an outcome: {problem_counts}")
    train, heldout = split_heldout(judged, config.orm.heldout, rng)
    # Of the earlier trajectories as many as the new ones are, none of an instruction that is held out whole.
    trained, tested = ({(item.example.site, item.example.instruction) for item in part} for part in (train, heldout))
    closed = tested - trained
    free = [item for item in earlier if (item.example.site, item.example.instruction) not in closed]
    rehearsed = rng.sample(free, min(len(train) + len(heldout), len(free)))
    train += rehearsed
    examples, kinds = training_examples(train, config.orm, rng)
    tokenizer = load_tokenizer(paths.init)
    losses = train_sft(
        [encode_example(e, tokenizer, config.label) for e in examples],
        paths.init,
        paths.out,
        config.orm,
        seed=config.seed,
        metrics_path=paths.report / "metrics.jsonl",
        name="orm",
        device=config.models.device,
    )
    report = {
        "data": kinds,
        "num_rehearsed": len(rehearsed),
        "num_heldout": len(heldout),
        "problems": problem_counts,
        "losses": losses,
    }
    if held := [item.example for item in heldout]:
        truth, p_yes = [e.success for e in held], score_examples(config, str(paths.out), held)
        by_site = count_sites([e.site for e in held], truth, [int(p > 0.5) for p in p_yes])
        if plot_reliability := plugins.hook("reliability-figure"):
            plot_reliability(truth, {"as trained": p_yes}, paths.report / "reliability.png")
        report["heldout"] = judge_report(truth, p_yes) | {"by_site": by_site}
        if compare:
            report["start"] = judge_report(truth, score_examples(config, paths.init, held))
    write_json(paths.report / "report.json", report)
    return report


def encode_example(
    example: JudgedExample, tokenizer: Any, config: LabelConfig
) -> tuple[tuple[int, ...], tuple[int, ...]]:
    """Return (judge prompt, answer and end token), the page cut by tokens as when judging."""
    yes, no = answer_tokens(tokenizer)
    end = closing_ids(tokenizer, config.prompt_format)
    return prompt_ids(example, tokenizer, config), (yes if example.success else no, *end)


def prompt_ids(example: JudgedExample, tokenizer: Any, config: LabelConfig) -> tuple[int, ...]:
    """[P] the judge's prompt."""
    return outcome_prompt(example.instruction, example.responses, example.final_page, tokenizer, config).ids


def score_examples(config: RunConfig, model_dir: str, examples: Sequence[JudgedExample]) -> list[float]:
    """P(YES) of each example."""

    async def work(bar: Any) -> list[float]:
        async with open_model(model_dir, config.label.engine, config.models) as model:
            limit, tokens = asyncio.Semaphore(config.label.engine.max_batch), answer_tokens(model.tokenizer)

            async def one(example: JudgedExample) -> float:
                async with limit:
                    ids = prompt_ids(example, model.tokenizer, config.label)
                    yes, no = await model.choice_logprobs(ids, tokens)
                    bar.update()
                    return yes_probability(yes, no)

            return list(await asyncio.gather(*(one(e) for e in examples)))

    with progress(len(examples), "judge held-out", "episodes", leave=False) as bar:
        return asyncio.run(work(bar))


def refresh(config: RunConfig, practice: Path, earlier: Sequence[Path], out: Path, *, seed: int) -> dict[str, Any]:
    """Train `models.orm` further, into `out`, unless nothing can be learnt or it errs more often then; resumes.

    Args:
        practice: trajectories of the newest actor, with the environment's reward.
        earlier: what the judge was trained on before (as for `webrl train-orm --data`).
        seed: of the draws and of the training.

    Returns:
        `num_practice`, `num_success`: finished practice episodes; `num_rehearsed`; of held-out ones `num_heldout`, and
        `before`, `after`: the share that each judge is right about, with its interval (`judge_report`); and
        `kept`: why the judge stays as it was ("" where `out` is the new one).

    Raises:
        ModelError: unusable judge.
    """
    outcomes = [is_success(t) for t in read_records(practice, Trajectory) if t.status.finished]
    counts: dict[str, Any] = {"num_practice": len(outcomes), "num_success": sum(outcomes)}
    if len(set(outcomes)) < 2:
        kept = f"{sum(outcomes)} of {len(outcomes)} practice episodes are successes: there is nothing to tell apart"
        logger.warning("the judge stays as it was: %s", kept)
        return counts | {"num_rehearsed": 0, "num_heldout": 0, "before": None, "after": None, "kept": kept}
    paths = TrainingPaths((practice,), config.models.orm, out, tuple(earlier))
    done = paths.report / "report.json"
    report = read_json(done) if done.is_file() else None
    if report is None or not (out.is_dir() or _is_worse(report)):
        report = train_orm(config.model_copy(update={"seed": seed}), paths, compare=True)
    before, after = report.get("start", {}).get("accuracy"), report.get("heldout", {}).get("accuracy")
    logger.info("judge trained further: %s of held-out verdicts right, %s before", _share(after), _share(before))
    kept = ""
    if _is_worse(report):
        kept = "it was right more often before"
        logger.warning("the judge stays as it was: %s", kept)
        shutil.rmtree(out, ignore_errors=True)
    counts |= {name: report[name] for name in ("num_rehearsed", "num_heldout")}
    return counts | {"before": before, "after": after, "kept": kept}


def _is_worse(report: dict[str, Any]) -> bool:
    """Return whether the judge errs more often than before beyond chance: the intervals are apart."""
    before, after = report.get("start", {}).get("accuracy"), report.get("heldout", {}).get("accuracy")
    return bool(before and after and after["ci95"][1] < before["ci95"][0])


def _share(accuracy: dict[str, Any] | None) -> str:
    if not accuracy:
        return "none"
    low, high = accuracy["ci95"]
    return f"{100 * accuracy['value']:.1f} % [{100 * low:.1f}, {100 * high:.1f}]"
