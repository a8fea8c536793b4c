"""`webrl train-orm`: an outcome model from judged trajectories, by the trainer that also does SFT; and its report."""

from __future__ import annotations

import asyncio
import random
from collections.abc import Sequence
from pathlib import Path
from typing import Any

from webrl.config import LabelConfig, RunConfig, plugins
from webrl.errors import DataError
from webrl.interop.problems import ProblemLog
from webrl.llm import LanguageModel, open_model
from webrl.llm.loading import load_tokenizer
from webrl.llm.turns import closing_ids
from webrl.reward.calibration import fit_calibration
from webrl.reward.data import JudgedExample, JudgedTrajectory, read_judged, split_heldout, training_examples
from webrl.reward.orm import answer_tokens, outcome_prompt, yes_probability
from webrl.reward.report import count_sites, judge_report
from webrl.runs.progress import progress
from webrl.runs.store import write_json
from webrl.training.paths import TrainingPaths


def train_orm(config: RunConfig, paths: TrainingPaths, *, compare: bool = False) -> dict[str, Any]:
    """Train, then report on held-out trajectories; resumes like every training.

    Args:
        compare: whether the model that it starts from, a judge already, is reported on too.

    Returns:
        What is in `report.json`: `data` (examples by kind), `num_rehearsed`, `losses`, `heldout` (`JudgeReport`),
        `calibrated`, `start`.

    Raises:
        DataError: nothing judged, or one class only.
        ModelError: unusable starting model.
    """
    from webrl.training import train_sft

    rng = random.Random(f"{config.seed}:train-orm")
    judged, earlier, problem_counts = _read(paths)
    train, heldout = split_heldout(judged, config.orm.heldout, rng)
    train += (rehearsed := _rehearsed(earlier, train, heldout, rng))
    if config.orm.calibrate and not heldout:
        raise DataError(
            f"orm.calibrate needs held-out trajectories: orm.heldout={config.orm.heldout:g} of {len(judged)} are none"
        )
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
    report |= _evaluate(config, paths.out, paths.report, heldout)
    if compare and heldout:
        examples = [item.example for item in heldout]
        scores = score_examples(config, paths.init, examples)
        report["start"] = judge_report([e.success for e in examples], scores).to_json()
    write_json(paths.report / "report.json", report)
    return report


def _read(paths: TrainingPaths) -> tuple[list[JudgedTrajectory], list[JudgedTrajectory], dict[str, int]]:
    """What to learn from, what is rehearsed, and how many lines of either could not be used, by reason."""
    with ProblemLog(paths.report / "problems.txt") as problems:
        judged = [item for path in paths.data for item in read_judged(path, problems)]
        earlier = [item for path in paths.rehearsed for item in read_judged(path, problems)]
        counts = dict(problems.counts)
    if not judged:
        raise DataError(f"{', '.join(map(str, paths.data))}: no finished trajectory with an outcome: {counts}")
    return judged, earlier, counts


def _rehearsed(
    earlier: Sequence[JudgedTrajectory],
    train: Sequence[JudgedTrajectory],
    heldout: Sequence[JudgedTrajectory],
    rng: random.Random,
) -> list[JudgedTrajectory]:
    """As many of the earlier trajectories as the new ones are, none of an instruction that is held out whole."""
    trained, tested = ({(item.example.site, item.example.instruction) for item in part} for part in (train, heldout))
    closed = tested - trained
    free = [item for item in earlier if (item.example.site, item.example.instruction) not in closed]
    return rng.sample(free, min(len(train) + len(heldout), len(free)))


def encode_example(
    example: JudgedExample, tokenizer: Any, config: LabelConfig
) -> tuple[tuple[int, ...], tuple[int, ...]]:
    """(judge prompt, answer and end token), the page cut by tokens as when judging."""
    tokens = answer_tokens(tokenizer)
    end = closing_ids(tokenizer, config.prompt_format)
    return prompt_ids(example, tokenizer, config), (tokens.yes if example.success else tokens.no, *end)


def prompt_ids(example: JudgedExample, tokenizer: Any, config: LabelConfig) -> tuple[int, ...]:
    """[P] the judge's prompt."""
    return outcome_prompt(example.instruction, example.responses, example.final_page, tokenizer, config).ids


def score_examples(config: RunConfig, model_dir: str, examples: Sequence[JudgedExample]) -> list[float]:
    """P(YES) at temperature 1 of each example."""

    async def work(bar: Any) -> list[float]:
        async with open_model(model_dir, config.label.engine, config.models) as model:
            limit = asyncio.Semaphore(config.label.engine.max_batch)

            async def one(example: JudgedExample) -> float:
                async with limit:
                    value = await _p_yes(model, example, config.label)
                    bar.update()
                    return value

            return list(await asyncio.gather(*(one(e) for e in examples)))

    with progress(len(examples), "judge held-out", "trajectories", leave=False) as bar:
        return asyncio.run(work(bar))


async def _p_yes(model: LanguageModel, example: JudgedExample, config: LabelConfig) -> float:
    tokens = answer_tokens(model.tokenizer)
    ids = prompt_ids(example, model.tokenizer, config)
    yes, no = await model.choice_logprobs(ids, (tokens.yes, tokens.no))
    return yes_probability(yes, no)


def _evaluate(
    config: RunConfig, model: Path, folder: Path, heldout: Sequence[JudgedTrajectory]
) -> dict[str, dict[str, Any]]:
    if not heldout:
        return {}
    examples = [item.example for item in heldout]
    truth, p_yes = [e.success for e in examples], score_examples(config, str(model), examples)
    by_site = count_sites([e.site for e in examples], truth, [int(p > 0.5) for p in p_yes])
    result: dict[str, dict[str, Any]] = {"heldout": judge_report(truth, p_yes).to_json() | {"by_site": by_site}}
    curves: dict[str, Sequence[float]] = {"as trained": p_yes}
    if config.orm.calibrate:
        # Fitted on every other trajectory and judged on the rest, so that the report is not about its own fit.
        fit, rest = slice(0, None, 2), slice(1, None, 2)
        calibration = fit_calibration(truth[fit], p_yes[fit])
        calibration.save(model)
        values = [calibration.apply(p) for p in p_yes]
        report = judge_report(truth[rest], values[rest], calibration.threshold).to_json()
        result["calibrated"] = report | {"calibration": calibration.to_json()}
        truth, curves = truth[rest], {"as trained": p_yes[rest], "calibrated": values[rest]}
    if plot_reliability := plugins.hook("reliability-figure"):
        plot_reliability(truth, curves, folder / "reliability.png")
    return result
