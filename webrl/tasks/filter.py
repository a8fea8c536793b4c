"""The filter stage: which generated instructions are worth trying (arXiv 2411.02337 §3.1).

Filters run in this order, cheap ones first, each on what the ones before it kept: malformed, exact and near
duplicates of anything attempted, leakage of the evaluation sets, feasibility, the critic's band, budget. Every drop has
a reason and a detail.

Feasibility is the language model's verdict with rules for each site (paper, appendix), which the generator is told as
well: those of `configs/feasibility.yaml` and of `filter.rules`. A rule is a sentence for the model, or `on_page:
<regular expression>`, checked without one: what its group matches in the instruction (parts of a list apart) must be on
the initial page as whole words.
"""

from __future__ import annotations

import logging
import re
from collections import Counter
from collections.abc import Awaitable, Callable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from fnmatch import fnmatchcase
from pathlib import Path
from typing import Any

from webrl.config import FilterConfig, RunConfig
from webrl.config.resources import configs_dir
from webrl.config.yaml_file import read_yaml
from webrl.errors import UsageError
from webrl.llm.interface import LanguageModel, Sampling
from webrl.rollouts.suite import suite_of
from webrl.tasks.answers import ask_all
from webrl.tasks.dedupe import find_duplicates, state_of
from webrl.tasks.prompts import THINKING, feasibility_prompt, malformed_reason
from webrl.types import Record, Task

logger = logging.getLogger(__name__)

_LIST = re.compile(r",\s+(?:and\s+)?|\s+and\s+")
_FIRST_WORD = re.compile(r"\W*(yes|no)\b", re.IGNORECASE)
_EVERY_SITE = "all"


Drop = tuple[str, str] | None
"""(reason, detail) of a drop, or None for a task that stays."""
Rule = str | re.Pattern[str]
"""A rule in words for the model; or a pattern, which needs none: the page must have what its group matches."""


def load_rules(extension: str | Path | None = None) -> dict[str, tuple[Rule, ...]]:
    """Return the rules by site pattern: the shipped ones, followed by those of the user's own file. Raises UsageError:
    it is missing, or not a mapping of patterns to lists of rules.
    """
    merged: dict[str, tuple[Rule, ...]] = {}
    for path in (configs_dir() / "feasibility.yaml", extension):
        data = (read_yaml(Path(path), "feasibility rules") or {}) if path else {}
        if not isinstance(data, dict) or not all(isinstance(rules, list) for rules in data.values()):
            raise UsageError(f"{path}: expected a mapping of sites to lists of rules, found {data!r:.80}")
        for site, rules in data.items():
            merged[str(site)] = (*merged.get(str(site), ()), *(_read_rule(rule, f"{path}: {site}") for rule in rules))
    return merged


def rules_for(rules: Mapping[str, Sequence[Rule]], site: str) -> list[str]:
    """Return the sentences that apply to a site, those for every site first; a task on `a+b` has the rules of both."""
    return list(dict.fromkeys(rule for rule in _applying(rules, site) if isinstance(rule, str)))


def missing_from_page(task: Task, page: str, rules: Mapping[str, Sequence[Rule]]) -> str | None:
    """What the instruction names although it is not on the page, by the site's `on_page` rules; None if all is there,
    or the page is not known.
    """
    if not page:
        return None
    for rule in _applying(rules, task.site):
        match = rule.search(task.instruction or "") if isinstance(rule, re.Pattern) else None
        if match is None:
            continue
        for name in _LIST.split(match.group(1).strip()):
            if not re.search(rf"(?<!\w){re.escape(name)}(?!\w)", page):
                return name
    return None


def _applying(rules: Mapping[str, Sequence[Rule]], site: str) -> list[Rule]:
    names = [site, *site.split("+")]
    found = list(rules.get(_EVERY_SITE, ()))
    for pattern, entries in rules.items():
        if pattern != _EVERY_SITE and any(fnmatchcase(name, pattern) for name in names):
            found += entries
    return found


async def check_feasibility(
    tasks: Sequence[Task], pages: Sequence[str], model: LanguageModel, config: RunConfig, cache: Path
) -> tuple[list[Drop], str]:
    """Apply the `on_page` rules (`pages`: each task's initial page, or ""), and ask the model about those that pass;
    only a clear NO drops one. Raises ModelError: the model is unusable or its endpoint is down.

    Returns the drops, one a task; and why the model was not used as a judge (it answers neither YES nor NO), or "".
    """
    rules = load_rules(config.filter.rules)
    missing = [missing_from_page(task, page, rules) for task, page in zip(tasks, pages, strict=True)]
    asked = [i for i, name in enumerate(missing) if name is None]
    sampling = Sampling(temperature=0.0, max_new_tokens=config.generate.max_new_tokens)
    questions = []
    for i in asked:
        site, instruction = tasks[i].site, tasks[i].instruction or ""
        questions.append((feasibility_prompt(site, instruction, pages[i], rules_for(rules, site)), sampling))
    drops: list[Drop] = [("infeasible", f"{name!r} is not on the page") if name else None for name in missing]
    # a few first, to see whether the model answers YES or NO at all
    probe = [answer.text for answer in (await ask_all(model, questions[:16], config, cache))[0] if answer]
    if sum(read_verdict(text) is not None for text in probe) * 2 < len(probe):
        skipped = f"{model.name} answers neither YES nor NO ({probe[0][:60]!r}) and was not asked further"
        logger.warning("feasibility: %s", skipped)
        return drops, skipped
    for i, answer in zip(asked, (await ask_all(model, questions, config, cache))[0], strict=True):
        if answer and read_verdict(answer.text) is False:
            drops[i] = "infeasible", f"answer {answer.text.strip()[:80]!r}"
    return drops, ""


def read_verdict(answer: str) -> bool | None:
    """Return True for an answer that starts with YES, False for NO, None for anything else."""
    match = _FIRST_WORD.match(THINKING.sub("", answer))
    return match.group(1).lower() == "yes" if match else None


def _read_rule(rule: Any, where: str) -> Rule:
    if isinstance(rule, str) and rule.strip():
        return rule
    if not isinstance(rule, dict) or set(rule) != {"on_page"} or not isinstance(rule["on_page"], str):
        raise UsageError(f"{where}: a rule is text or `on_page: <regular expression>`, found {rule!r:.80}")
    try:
        pattern = re.compile(rule["on_page"])
    except re.error as error:
        raise UsageError(f"{where}: {rule['on_page']!r} is not a regular expression: {error}") from None
    if pattern.groups != 1:
        raise UsageError(f"{where}: {rule['on_page']!r} has {pattern.groups} groups; it needs one, around the name")
    return pattern


NUM_EXAMPLES = 5
"""Dropped examples of each filter that go into the report."""


@dataclass(frozen=True)
class Dropped(Record):
    """One task that a filter dropped; `dropped.jsonl` holds these."""

    task: Task
    """The task."""
    reason: str
    """Filter: `malformed`, `exact_duplicate`, `near_duplicate`, `leakage`, `infeasible`, `value_low`, `value_high`,
    `budget`."""
    detail: str
    """What exactly was wrong: the instruction that it repeats, the critic's value, the judge's answer."""


@dataclass
class FilterReport:
    """What the filters kept, dropped, and why; between two of them, so far."""

    kept: list[Task]
    """In input order."""
    dropped: list[Dropped] = field(default_factory=list)
    """In the order of filters, then of input."""
    stages: list[dict[str, Any]] = field(default_factory=list)
    """Of each filter, in order: `name`, `num_in` and `num_kept` tasks, `dropped_examples` (instructions with details),
    and in `note` why it was skipped, or ""."""

    @property
    def counts(self) -> dict[str, int]:
        """Dropped tasks by reason."""
        return dict(Counter(drop.reason for drop in self.dropped))

    def apply(self, name: str, drops: Sequence[Drop], note: str = "") -> None:
        """Take a filter's drops, one a task that is kept so far."""
        kept, dropped = [], []
        for task, drop in zip(self.kept, drops, strict=True):
            if drop is None:
                kept.append(task)
            else:
                dropped.append(Dropped(task, *drop))
        examples = [f"{(d.task.instruction or '')[:200]} ({d.detail})" for d in dropped[:NUM_EXAMPLES]]
        counts = {"num_in": len(self.kept), "num_kept": len(kept), "dropped_examples": examples, "note": note}
        self.stages.append({"name": name} | counts)
        self.kept = kept
        self.dropped += dropped


async def filter_tasks(
    tasks: Sequence[Task],
    *,
    known: Sequence[Task],
    heldout: Sequence[Task],
    config: FilterConfig,
    judge: Callable[[Sequence[Task]], Awaitable[tuple[list[Drop], str]]] | None = None,
    values: Callable[[Sequence[Task]], Sequence[float | None]] | None = None,
) -> FilterReport:
    """Run all filters that `config` and the arguments allow; those left out say why.

    Args:
        known: everything ever attempted, each with the instruction that the agent was given.
        judge: the feasibility check; called once with what the cheaper filters kept.
        values: gives the critic's value at the real initial observation of each task that is left; band
            [value_low, value_high], both edges kept. None if that observation is not known: such a task passes,
            and is counted in the filter's note.

    Raises:
        ValueError: values do not match the tasks in number, or one is not a number in [0, 1].
    """
    run = FilterReport(list(tasks))
    malformed = [malformed_reason(task.instruction or "") for task in run.kept]
    run.apply("malformed", [("malformed", reason) if reason else None for reason in malformed])
    new, old = ([replace(task, site=suite_of(task).dedupe_key(task)) for task in group] for group in (run.kept, known))
    drops: list[Drop] = []
    for match in find_duplicates(new, old, config.duplicate_threshold, config.max_states):
        reason = "exact_duplicate" if match and match.exact else "near_duplicate"
        drops.append((reason, f"similarity {match.similarity:.2f}: {match.instruction}") if match else None)
    run.apply("duplicate", drops)
    run.apply("leakage", leaks(run.kept, heldout, config.duplicate_threshold))
    if not config.feasibility or judge is None:
        why = "off by config" if not config.feasibility else "no model to judge with"
        run.apply("feasibility", [None] * len(run.kept), why)
    else:
        run.apply("feasibility", *(await judge(run.kept) if run.kept else ([], "")))
    if not config.critic_band or values is None:
        run.apply("critic", [None] * len(run.kept), "off by config" if not config.critic_band else "no critic")
    else:
        drops, numbers = [], values(run.kept)
        for value in numbers:
            if value is not None and not 0.0 <= value <= 1.0:
                why = "is the critic trained, and its output a probability?"
                raise ValueError(f"value {value!r} is not in [0, 1]: {why}")
            if value is not None and value < config.value_low:
                drops.append(("value_low", f"value {value:.4g} < {config.value_low:g}"))
            elif value is not None and value > config.value_high:
                drops.append(("value_high", f"value {value:.4g} > {config.value_high:g}"))
            else:
                drops.append(None)
        unknown = numbers.count(None)
        run.apply("critic", drops, f"not applied to {unknown} tasks: initial page unknown" if unknown else "")
    if config.max_tasks is not None:
        # Evenly spaced over the order, which goes by site; a site that this leaves out gets one from the site that
        # keeps most, as long as that one keeps another.
        sites, most = [task.site for task in run.kept], config.max_tasks
        kept = {i for i in range(len(sites)) if (i + 1) * most // len(sites) > i * most // len(sites)}
        for first in {site: i for i, site in reversed(list(enumerate(sites)))}.values():
            counts = Counter(sites[i] for i in kept)
            largest, number = counts.most_common(1)[0]
            if sites[first] not in counts and number > 1:
                kept.remove(min(i for i in kept if sites[i] == largest))
                kept.add(first)
        over = ("budget", f"{len(sites)} passed, {most} are wanted")
        run.apply("budget", [None if i in kept else over for i in range(len(sites))])
    return run


def leaks(tasks: Sequence[Task], heldout: Sequence[Task], threshold: float) -> list[Drop]:
    """Drop tasks that overlap with the evaluation's.

    That is everything of a held-out task type. On a site whose seeds make its pages it is a held-out (site, seed), too;
    on other sites a held-out instruction or a near duplicate of one, at any initial state; one that needs several
    sites counts on each of them.
    """
    states = {state_of(task)[:2] for task in heldout if suite_of(task).is_seeded(task)}
    closed = {task.site for task in heldout if task.split == "eval_heldout"}
    candidates = _on_each_site(tasks)
    found = find_duplicates(candidates, _on_each_site(heldout), threshold, max_states=None)
    copies = zip(candidates, found, strict=True)
    asked = {task.task_id: match.instruction for task, match in copies if match is not None}
    drops: list[Drop] = []
    for task in tasks:
        suite = suite_of(task)
        if (kind := suite.task_type(task)) in closed:
            drops.append(("leakage", f"site {kind} is held out"))
        elif suite.is_seeded(task) and state_of(task)[:2] in states:
            drops.append(("leakage", f"seed {task.seed} of {task.site} is held out"))
        elif task.task_id in asked:
            drops.append(("leakage", f"held-out instruction: {asked[task.task_id]}"))
        else:
            drops.append(None)
    return drops


def _on_each_site(tasks: Sequence[Task]) -> list[Task]:
    """Return the tasks on sites that are addressed by URL; a cross-site task once for each of its sites."""
    return [
        replace(task, site=site, instruction=suite.instruction_of(task))
        for task in tasks
        if not (suite := suite_of(task)).is_seeded(task)
        for site in suite.sites_of(task)
    ]
