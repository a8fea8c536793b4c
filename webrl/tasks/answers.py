"""Asking a language model many questions: concurrent, rate-limited, cached on disk.

Every answer is appended to a JSONL file before it is used, under a key made of the prompt, the model's
weights and the sampling settings, with their seed. A stage that was killed therefore asks only what is missing, and
a second run asks nothing. Retries of one request are the engine's (`EngineConfig.max_retries`).
"""

from __future__ import annotations

import asyncio
import hashlib
import logging
from collections.abc import Callable, Sequence
from dataclasses import astuple, dataclass, replace
from pathlib import Path

from webrl.config import RunConfig
from webrl.errors import ModelError, PolicyError
from webrl.llm.interface import LanguageModel, Sampling
from webrl.llm.prompts import cut_lines, fit_prompt
from webrl.llm.tokens import encode_chat, without_thinking
from webrl.runs.store import Appender, read_records
from webrl.tasks.prompts import ChatPrompt
from webrl.types import Record

logger = logging.getLogger(__name__)

MAX_FAILURES_IN_A_ROW = 8
"""After this many requests have failed one after the other, the endpoint is taken to be down."""
_CHARS_PER_TOKEN = 4
"""Estimate for servers whose tokenizer is unknown: what OpenAI gives for English text."""


@dataclass(frozen=True)
class Answer(Record):
    """One answer as kept in the cache.

    Example: `Answer("5f…", 'Click on the "ok" button.', "stop", prompt_tokens=210, completion_tokens=12)`
    """

    key: str
    """SHA-256 (first 32 hex digits) of prompt, model and sampling."""
    text: str
    """The answer without its end token."""
    finish_reason: str
    """`stop`, or `length` if it was cut at the token limit."""
    prompt_tokens: int = 0
    """Length of the prompt in tokens; 0 where the server takes text only."""
    completion_tokens: int = 0
    """Length of the answer in tokens, end token included; the same."""


async def ask_all(
    model: LanguageModel,
    questions: Sequence[tuple[ChatPrompt, Sampling]],
    config: RunConfig,
    cache: Path,
    on_answer: Callable[[], None] | None = None,
) -> tuple[list[Answer | None], int, list[str]]:
    """Answer all questions, from the cache if it has them; pages are cut so that prompts fit.

    Returns:
        Answers in the order of their questions (None if a request failed after all retries), how many of them are
        from the cache, and the texts of the failed requests.

    Raises:
        ModelError: the model cannot do this at all, or `MAX_FAILURES_IN_A_ROW` requests failed in a row; the answers
            so far are in the cache, and the same call resumes from there.
    """
    known = {a.key: a for a in read_records(cache, Answer, logger.warning)} if cache.exists() else {}
    limit, keys = config.models.max_prompt_tokens, []
    for prompt, sampling in questions:
        parts = prompt.digest, model.fingerprint, astuple(sampling), limit
        keys.append(hashlib.sha256(repr(parts).encode()).hexdigest()[:32])
    waiting = {key: question for key, question in zip(keys, questions, strict=True) if key not in known}
    num_cached = sum(key in known for key in keys)
    queue = iter(waiting.items())
    errors: list[str] = []
    in_a_row = 0

    async def work(file: Appender) -> None:
        nonlocal in_a_row
        for key, question in queue:
            try:
                known[key] = await _ask(model, key, *question, limit)
            except PolicyError as error:
                errors.append(str(error))
                in_a_row += 1
                if in_a_row >= MAX_FAILURES_IN_A_ROW:
                    text = f"{model.name}: {in_a_row} requests in a row failed, the last with: {error}. {len(known)} "
                    raise ModelError(f"{text}answers are saved in {cache}; the same command resumes there") from error
                continue
            in_a_row = 0
            file.append(known[key])
            if on_answer:
                on_answer()

    if waiting:
        try:
            with Appender(cache) as file:
                async with asyncio.TaskGroup() as group:
                    for _ in range(min(config.generate.engine.max_batch, len(waiting))):
                        group.create_task(work(file))
        except* (ModelError, OSError) as failures:  # the first ends all, and is raised as itself
            raise failures.exceptions[0] from None
    return [known.get(key) for key in keys], num_cached, errors


async def _ask(model: LanguageModel, key: str, prompt: ChatPrompt, sampling: Sampling, limit: int) -> Answer:
    if model.tokenizer is None:
        room = _CHARS_PER_TOKEN * limit - len(prompt.system) - len(prompt.head) - len(prompt.tail)
        completion = await model.chat(replace(prompt, page=prompt.page[: max(0, room)]).messages, sampling)
        return Answer(key, without_thinking(completion.text), completion.finish_reason)

    def encode(_: int, page: str) -> list[int]:
        return encode_chat(model.tokenizer, replace(prompt, page=page).messages)

    fitted = fit_prompt(model.tokenizer, encode, prompt.page, 0, limit, cut_lines)
    completion = await model.generate(fitted.ids, sampling)
    text = without_thinking(completion.text)
    return Answer(key, text, completion.finish_reason, len(fitted.ids), len(completion.ids))
