"""Is an instruction feasible on its site? Per-site rules that users extend, and a language model that applies them.

The paper filters infeasible instructions with an LLM and rules for each site (arXiv 2411.02337 §3.1, appendix).
The rules are in `configs/feasibility.yaml`; the generator is told them as well. A rule is a sentence for the model, or
`on_page: <regular expression>`, checked without one: what its group matches in the instruction (parts of a list apart)
must be on the initial page as whole words.
"""

from __future__ import annotations

import logging
import re
from collections.abc import Mapping, Sequence
from fnmatch import fnmatchcase
from pathlib import Path
from typing import Any

from webrl.config import RunConfig
from webrl.config.resources import configs_dir
from webrl.config.yaml_file import read_yaml
from webrl.errors import UsageError
from webrl.llm.interface import LanguageModel, Sampling
from webrl.tasks.answers import ask_all
from webrl.tasks.parsing import THINKING
from webrl.tasks.prompts import feasibility_prompt
from webrl.types import Task

logger = logging.getLogger(__name__)

PROBE_SIZE = 16
"""Number of instructions to check first, to see whether the model answers YES or NO at all."""
_LIST = re.compile(r",\s+(?:and\s+)?|\s+and\s+")
_FIRST_WORD = re.compile(r"\W*(yes|no)\b", re.IGNORECASE)
_EVERY_SITE = "all"


Drop = tuple[str, str] | None
"""(reason, detail) of a drop, or None for a task that stays."""
Rule = str | re.Pattern[str]
"""A rule in words for the model; or a pattern, which needs none: the page must have what its group matches."""


def load_rules(extension: str | Path | None = None) -> dict[str, tuple[Rule, ...]]:
    """Return the rules by site pattern: the shipped ones, followed by those of the user's own file.

    Raises:
        UsageError: a missing file, or one that is not a mapping of patterns to lists of rules.
    """
    merged: dict[str, tuple[Rule, ...]] = {}
    for path in (configs_dir() / "feasibility.yaml", extension):
        data = (read_yaml(Path(path), "feasibility rules") or {}) if path else {}
        if not isinstance(data, dict) or not all(isinstance(rules, list) for rules in data.values()):
            raise UsageError(f"{path}: expected a mapping of sites to lists of rules, found {data!r:.80}")
        for site, rules in data.items():
            read = (_read_rule(rule, f"{path}: {site}") for rule in rules)
            merged[str(site)] = (*merged.get(str(site), ()), *read)
    return merged


def rules_for(rules: Mapping[str, Sequence[Rule]], site: str) -> list[str]:
    """Return the sentences that apply to a site, those for every site first; a task on `a+b` has the rules of both."""
    return list(dict.fromkeys(rule for rule in _applying(rules, site) if isinstance(rule, str)))


def missing_from_page(task: Task, page: str, rules: Mapping[str, Sequence[Rule]]) -> str | None:
    """What the instruction names although it is not on the page, by the site's `on_page` rules; None if all is there.

    Nothing is missing where the page is not known.
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
    """Apply the `on_page` rules, and ask the model about the tasks that pass; only a clear NO drops one.

    Args:
        pages: each task's initial page, or "".
        cache: JSONL of answers, as in generation.

    Returns:
        The drops, one a task; and why the model was not used as a judge (it answers neither YES nor NO), or "".

    Raises:
        ModelError: the model is unusable or its endpoint is down.
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
    probe = [answer.text for answer in (await ask_all(model, questions[:PROBE_SIZE], config, cache))[0] if answer]
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
        raise UsageError(f"{where}: a rule is a text or `on_page: <regular expression>`, found {rule!r:.80}")
    try:
        pattern = re.compile(rule["on_page"])
    except re.error as error:
        raise UsageError(f"{where}: {rule['on_page']!r} is not a regular expression: {error}") from None
    if pattern.groups != 1:
        raise UsageError(f"{where}: {rule['on_page']!r} has {pattern.groups} groups; it needs one, around the name")
    return pattern
