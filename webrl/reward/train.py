"""`webrl train-orm`: an outcome model from judged trajectories, by the trainer that also does SFT; and its report."""

from __future__ import annotations

import asyncio
import logging
import random
from collections import Counter
from typing import Any

from webrl.config import LabelConfig, RunConfig, plugins
from webrl.errors import DataError, ModelError
from webrl.llm import open_model
from webrl.llm.loading import config_of, load_tokenizer
from webrl.llm.pictures import Example
from webrl.llm.tokens import closing_ids
from webrl.reward.data import JudgedExample, read_judged, split_heldout, training_examples
from webrl.reward.labels import count_sites, judge_report
from webrl.reward.orm import answer_tokens, judge_prompt, yes_probability
from webrl.runs.clock import progress
from webrl.runs.problems import ProblemLog
from webrl.runs.store import write_json
from webrl.training.metrics import TrainingPaths

logger = logging.getLogger(__name__)


def check_data(paths: TrainingPaths) -> None:
    """Raise DataError without a judged success to learn from, before a lock is taken; bad lines are logged."""
    for num_shown in (0, 20):
        judged, problems = Counter[int](), ProblemLog(num_shown=num_shown)
        for path in paths.data:
            for example in read_judged(path, problems):
                judged[example.success] += 1
                if judged[1]:
                    break
        if judged[1]:
            return
    if not judged:
        names = ", ".join(map(str, paths.data))
        counts = ", ".join(f"{kind} {number}" for kind, number in problems.counts.items()) or "none at all"
        raise DataError(f"{names}: no finished trajectory with an outcome ({counts}); see `webrl train-orm --help`")
    raise DataError(f"0 successes and {judged[0]} failures: the outcome model needs both; add rollouts")


def train_orm(config: RunConfig, paths: TrainingPaths) -> dict[str, Any]:
    """Train, then report on held-out trajectories; resumes like every training.

    Returns:
        What is in `report.json`: `data` (examples by kind), `losses`, `heldout` (`judge_report`).

    Raises:
        DataError: one class only, or nothing.
        ModelError: unusable starting model, or one with fewer positions than its prompts have tokens.
    """
    from webrl.training.update import train_sft

    rng = random.Random(f"{config.seed}:train-orm")
    with ProblemLog(paths.report / "problems.txt") as problems:
        judged = [item for path in paths.data for item in read_judged(path, problems)]
        problem_counts = dict(problems.counts)
    train, heldout = split_heldout(judged, config.orm.heldout, rng)
    examples, kinds = training_examples(train, config.orm, rng)
    tokenizer = load_tokenizer(paths.init)
    encoded = [encode_example(e, tokenizer, config.label) for e in examples]
    longest = max([len(e.prompt_ids) for e in encoded] + [len(prompt_ids(e, tokenizer, config.label)) for e in heldout])
    positions = getattr(config_of(paths.init).get_text_config(), "max_position_embeddings", None) or longest + 1
    if longest >= positions:  # the page would be cut where a judge refuses, and the report at the end would fail
        raise ModelError(
            f"model {paths.init!r} has {positions} positions, and label.max_prompt_tokens="
            f"{config.label.max_prompt_tokens} allows prompts of up to {longest} tokens: set label.max_prompt_tokens="
            f"{positions - 1}"
        )
    losses = train_sft(
        encoded, paths.init, paths.out, config.orm, name="orm", seed=config.seed,
        metrics_path=paths.report / "metrics.jsonl", device=config.models.device,
    )  # fmt: skip
    report = {"data": kinds, "num_heldout": len(heldout), "problems": problem_counts, "losses": losses}
    if heldout:

        async def score(bar: Any) -> list[float]:
            async with open_model(str(paths.out), config.label.engine, config.models) as model:
                limit, tokens = asyncio.Semaphore(config.label.engine.max_batch), answer_tokens(model.tokenizer)

                async def one(example: JudgedExample) -> float:
                    async with limit:
                        ids = prompt_ids(example, model.tokenizer, config.label)
                        yes, no = await model.choice_logprobs(ids, tokens)
                        bar.update()
                        return yes_probability(yes, no)

                return list(await asyncio.gather(*(one(e) for e in heldout)))

        with progress(len(heldout), "judge held-out", "episodes", leave=False) as bar:
            p_yes = asyncio.run(score(bar))
        truth = [e.success for e in heldout]
        by_site = count_sites([e.site for e in heldout], truth, [int(p > 0.5) for p in p_yes])
        if plot_reliability := plugins.hook("reliability-figure"):
            plot_reliability(truth, {"as trained": p_yes}, paths.report / "reliability.png")
        report["heldout"] = judge_report(truth, p_yes) | {"by_site": by_site}
    write_json(paths.report / "report.json", report)
    return report


def encode_example(example: JudgedExample, tokenizer: Any, config: LabelConfig) -> Example:
    """Return (judge prompt, answer and end token), the page cut by tokens as when judging."""
    yes, no = answer_tokens(tokenizer)
    end = closing_ids(tokenizer, config.prompt_format)
    return Example(prompt_ids(example, tokenizer, config), (yes if example.success else no, *end))


def prompt_ids(example: JudgedExample, tokenizer: Any, config: LabelConfig) -> tuple[int, ...]:
    """[P] the judge's prompt."""
    return judge_prompt(example.instruction, example.responses, example.final_page, tokenizer, config).ids
