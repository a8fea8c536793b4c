"""Is an instruction feasible on its site? Asked of a language model, with per-site rules that users extend.

The paper filters infeasible instructions with an LLM and rules for each site (arXiv 2411.02337 §3.1, appendix).
The rules are in `configs/feasibility.yaml`; the generator is told them as well.
"""

from __future__ import annotations

import logging
import re
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from fnmatch import fnmatchcase
from pathlib import Path

import yaml

from webrl.config import GenerateConfig
from webrl.errors import UsageError
from webrl.llm.interface import LanguageModel, Sampling
from webrl.resources import configs_dir
from webrl.tasks.answers import Question, ask_all
from webrl.tasks.parsing import strip_thinking
from webrl.tasks.prompts import feasibility_prompt
from webrl.types import Task

logger = logging.getLogger(__name__)

PROBE_SIZE = 16
"""So many instructions are asked about first, to see whether the model answers YES or NO at all."""
_FIRST_WORD = re.compile(r"\W*(yes|no)\b", re.IGNORECASE)
_EVERY_SITE = "all"


@dataclass(frozen=True)
class Feasibility:
    """Verdicts of a check, one a task."""

    verdicts: tuple[bool | None, ...]
    """True, False, or None where the model gave no readable answer."""
    answers: tuple[str, ...]
    """What it said."""
    skipped: str = ""
    """Why nothing was judged, or ""."""
    prompt_tokens: int = 0
    """Of all prompts."""
    completion_tokens: int = 0
    """Of all answers."""


def load_rules(extension: str | Path | None = None) -> dict[str, tuple[str, ...]]:
    """Rules by site pattern: the shipped ones, and those of an own file after them.

    Raises:
        UsageError: a missing file, or one that is not a mapping of patterns to lists of texts.
    """
    merged: dict[str, tuple[str, ...]] = {}
    for path in (configs_dir() / "feasibility.yaml", extension):
        for pattern, rules in (_read_rules(Path(path)) if path else {}).items():
            merged[pattern] = (*merged.get(pattern, ()), *rules)
    return merged


def rules_for(rules: Mapping[str, Sequence[str]], site: str) -> list[str]:
    """The rules that apply to a site, those for every site first; a task on `a+b` has the rules of both."""
    names = [site, *site.split("+")]
    found = list(rules.get(_EVERY_SITE, ()))
    for pattern, texts in rules.items():
        if pattern != _EVERY_SITE and any(fnmatchcase(name, pattern) for name in names):
            found += texts
    return list(dict.fromkeys(found))


async def check_feasibility(
    tasks: Sequence[Task],
    pages: Sequence[str],
    model: LanguageModel,
    rules: Mapping[str, Sequence[str]],
    config: GenerateConfig,
    cache: Path,
    max_prompt_tokens: int = 15872,
) -> Feasibility:
    """Ask about each task; a model that does not answer YES or NO is not used as a judge, and that is said.

    Args:
        pages: each task's initial page, or "".
        cache: JSONL of answers, as in generation.

    Raises:
        ModelError: the model is unusable or its endpoint is down.
    """
    sampling = Sampling(temperature=0.0, max_new_tokens=config.max_new_tokens)
    questions = [
        Question(
            feasibility_prompt(task.site, task.instruction or "", page, rules_for(rules, task.site)),
            sampling,
            max_prompt_tokens=max_prompt_tokens,
        )
        for task, page in zip(tasks, pages, strict=True)
    ]
    options = {"concurrency": config.concurrency, "requests_per_minute": config.requests_per_minute}
    probe = await ask_all(model, questions[:PROBE_SIZE], cache, **options)  # type: ignore[arg-type]
    verdicts = [read_verdict(answer.text) for answer in probe.answers if answer]
    if questions and sum(v is not None for v in verdicts) * 2 <= len(verdicts):
        example = next((answer.text for answer in probe.answers if answer), "")
        reason = f"{model.name} answers neither YES nor NO ({example[:60]!r}); feasibility was not checked"
        logger.warning("%s", reason)
        return Feasibility((None,) * len(tasks), ("",) * len(tasks), reason)
    replies = await ask_all(model, questions, cache, **options)  # type: ignore[arg-type]
    answers = [answer for answer in replies.answers if answer]
    return Feasibility(
        verdicts=tuple(read_verdict(answer.text) if answer else None for answer in replies.answers),
        answers=tuple(answer.text if answer else "" for answer in replies.answers),
        prompt_tokens=sum(answer.prompt_tokens for answer in answers),
        completion_tokens=sum(answer.completion_tokens for answer in answers),
    )


def read_verdict(answer: str) -> bool | None:
    """True for an answer that starts with YES, False for NO, None for anything else."""
    match = _FIRST_WORD.match(strip_thinking(answer))
    return match.group(1).lower() == "yes" if match else None


def _read_rules(path: Path) -> dict[str, tuple[str, ...]]:
    try:
        data = yaml.safe_load(path.read_text(encoding="utf-8")) or {}
    except OSError as error:
        raise UsageError(f"cannot read feasibility rules {str(path)!r}: {error.strerror}") from None
    except (yaml.YAMLError, UnicodeDecodeError) as error:
        raise UsageError(f"{path}: not valid YAML: {error}") from None
    if not isinstance(data, dict):
        raise UsageError(f"{path}: expected a mapping of sites to lists of rules, found {type(data).__name__}")
    for pattern, rules in data.items():
        if not isinstance(rules, list) or not all(isinstance(rule, str) and rule.strip() for rule in rules):
            raise UsageError(f"{path}: the rules of {pattern!r} must be a list of texts, found {rules!r:.80}")
    return {str(pattern): tuple(rules) for pattern, rules in data.items()}
