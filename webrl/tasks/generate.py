"""The generation stage: failed instructions in, new instructions with their lineage out (arXiv 2411.02337 §3.1).

`plan_requests` decides what to ask (site, seeds), the caller gives each planned request that needs one an initial state
(`target`, `page`), and `generate_tasks` asks the model. The paper's strategy is `in_breadth`: new and more varied
instructions of the same domain as some failed ones.

Where seeds make pages (MiniWoB), each prompt requests one instruction for the page that it shows; elsewhere
one prompt requests many, as in the paper.
"""

from __future__ import annotations

import logging
import random
from collections import Counter
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

from webrl.config import GenerateConfig, RunConfig
from webrl.errors import ModelError
from webrl.llm.interface import LanguageModel, Sampling
from webrl.rollouts.suite import suite_of
from webrl.runs.clock import progress
from webrl.tasks.answers import ask_all
from webrl.tasks.dedupe import state_of
from webrl.tasks.failures import Failure, FailureSet
from webrl.tasks.filter import load_rules, rules_for
from webrl.tasks.prompts import ChatPrompt, in_breadth_prompt, parse_instructions
from webrl.types import Lineage, Task

logger = logging.getLogger(__name__)


@dataclass(frozen=True)
class GenerationRequest:
    """One prompt to be: seeds, and the initial state of the tasks that come out.

    Example: `GenerationRequest("miniwob.click-button", failures=(…,), target=Task(…, seed=99),
    page="[12] button 'ok'")`
    """

    site: str
    """Site of seeds and target."""
    failures: tuple[Failure, ...]
    """Seeds of `in_breadth`; none for `exploration`, which starts from the page."""
    target: Task | None = None
    """Its site, seed, start_url and extra become the new tasks'; None: not chosen yet."""
    page: str = ""
    """Initial page at the target, or "" (not conditioned on a page)."""
    num_tasks: int = 1
    """Number of instructions to request."""

    def prompt(self, rules: Sequence[str] = ()) -> ChatPrompt:
        """Return the prompt for the model; `rules` are the site's."""
        instructions = [failure.task.instruction or "" for failure in self.failures]
        return in_breadth_prompt(self.site, instructions, self.page, self.num_tasks, rules)


def plan_requests(
    failures: FailureSet, config: GenerateConfig, rng: random.Random, *, per_page: Callable[[str], bool]
) -> list[GenerationRequest]:
    """Share `config.num_tasks` among the sites by `config.shares`, and draw seeds. Sites that are `per_page` get one
    request per task, its target left open; others up to `tasks_per_prompt` tasks a request, at the first seed's own
    state.
    """
    by_site = failures.by_site()
    shares = split_evenly(config.num_tasks, failures.shares(config.shares))
    requests: list[GenerationRequest] = []
    for site, group in by_site.items():
        open_target = per_page(site)
        most = 1 if open_target else config.tasks_per_prompt
        for start in range(0, shares[site], most):
            distinct = {failure.task.instruction: failure for failure in rng.sample(group, len(group))}
            seeds = tuple(list(distinct.values())[: config.num_seeds])
            target = None if open_target else seeds[0].task
            requests.append(GenerationRequest(site, seeds, target, "", min(most, shares[site] - start)))
    return requests


def exploration_requests(config: RunConfig, seen: Sequence[tuple[Task, str]]) -> list[GenerationRequest]:
    """Share `tasks.num_seed_tasks` evenly among explored pages, at most `generate.tasks_per_prompt` a prompt."""
    shares = split_evenly(config.tasks.num_seed_tasks, {target.task_id: 1.0 for target, _ in seen})
    most = config.generate.tasks_per_prompt
    return [
        GenerationRequest(target.site, (), target, text, min(most, shares[target.task_id] - start))
        for target, text in seen
        for start in range(0, shares[target.task_id], most)
    ]


async def generate_tasks(
    requests: Sequence[GenerationRequest],
    model: LanguageModel,
    config: RunConfig,
    *,
    phase: int,
    rng: random.Random,
    cache: Path,
) -> tuple[list[Task], dict[str, Any]]:
    """Send all requests to the model, each with the rules of its site, and turn its answers into tasks.

    Returns:
        The tasks in the order of the requests, not yet filtered; and counts: `num_requests`, `num_cached`, `num_failed`
        (without an answer after all retries), `answer_problems` (of `parse_instructions`), `by_site`, `prompt_tokens`
        and `completion_tokens` (cached ones included), the first few `errors`.

    Args:
        rng: source of the sampling seeds; with the same state and requests a call finds its earlier answers in `cache`.

    Raises:
        ValueError: a request without a target.
        ModelError: the model is unusable, its endpoint is down (the answers so far are kept), or it answered nothing.
    """
    for request in requests:
        if request.target is None:
            raise ValueError(f"request on {request.site!r} has no initial state; set its `target`")
    base, ours, rules = rng.getrandbits(31), config.generate, load_rules(config.filter.rules)
    questions = [
        (request.prompt(rules_for(rules, request.site)), Sampling(ours.temperature, 1.0, 0, ours.max_new_tokens, seed))
        for seed, request in enumerate(requests, base)
    ]
    with progress(len(requests), "generate", "prompts") as bar:
        replies, num_cached, errors = await ask_all(model, questions, config, cache, bar.update)
    if requests and not any(replies):
        raise ModelError(f"{model.name} answered none of {len(requests)} prompts, the last with: {errors[-1]}")
    problems: Counter[str] = Counter()
    tasks: list[Task] = []
    for request, (prompt, _), answer in zip(requests, questions, replies, strict=True):
        if answer is None:
            continue
        found, counts = parse_instructions(answer.text, request.num_tasks, answer.finish_reason == "length")
        problems += counts
        assert request.target is not None
        parents = tuple(failure.task.task_id for failure in request.failures)
        lineage = Lineage("in_breadth" if parents else "exploration", parents, model.name, prompt.digest, phase)
        for instruction in found:
            name = f"{request.site}.g{phase:02d}-{len(tasks):05d}"
            task = replace(request.target, task_id=name, instruction=instruction, split="train", lineage=lineage)
            tasks.append(replace(task, extra=suite_of(task).without_reference(task.extra)))
    answers = [answer for answer in replies if answer]
    return tasks, {
        "num_requests": len(requests),
        "num_cached": num_cached,
        "num_failed": len(requests) - len(answers),
        "answer_problems": dict(problems),
        "by_site": dict(Counter(task.site for task in tasks)),
        "prompt_tokens": sum(answer.prompt_tokens for answer in answers),
        "completion_tokens": sum(answer.completion_tokens for answer in answers),
        "errors": errors[:5],
    }


def initial_page_texts(requests: Sequence[GenerationRequest], tasks: Sequence[Task]) -> list[str]:
    """Each task's initial page: the one a request was made for, or what an agent saw of the same state when it failed;
    "" if neither is known.

    (WebArena's start pages are the same, log-in included, after each reset; they need not be opened again.)
    """
    texts: dict[tuple[str, int, str], str] = {}
    for request in requests:
        if request.target is not None and request.page:
            texts[state_of(request.target)] = request.page
    for request in requests:
        for failure in request.failures:
            if failure.page:
                texts.setdefault(state_of(failure.task), failure.page)
    return [texts.get(state_of(task), "") for task in tasks]


def split_evenly(total: int, weights: Mapping[str, float]) -> dict[str, int]:
    """Whole shares of `total` in proportion to the weights (largest remainder, ties in the mapping's order)."""
    whole = sum(weights.values())
    exact = {name: total * weight / whole for name, weight in weights.items()} if whole else {}
    shares = {name: int(value) for name, value in exact.items()}
    by_remainder = sorted(exact, key=lambda name: shares[name] - exact[name])
    for name in by_remainder[: total - sum(shares.values())]:
        shares[name] += 1
    return shares
