"""The prompts of a policy: what never changes comes first.

The instructions to a policy (`models.prompt`) are `brief` for models trained on them, and `examples` for others.

Formats: `chat` is ours, through the tokenizer's chat template, with goal, history, page in this order;
`chat_history_last` is the same with goal, page, history, so that a server's prefix cache also holds what a step left of
its page (docs/figures.md); `webrl` is that of the released WebRL checkpoints (always Llama headers, one
newline after the last header, two after each past response).
"""

from __future__ import annotations

import itertools
import re
from bisect import bisect_left, bisect_right
from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from functools import cache
from pathlib import Path
from typing import TYPE_CHECKING, Any

import yaml

from webrl.config import Dialect, PromptFormat, RunConfig
from webrl.errors import PromptTooLong, StageError
from webrl.llm.interface import Message
from webrl.llm.loading import PromptName, prompt_of
from webrl.llm.tokens import encode_chat, encode_plain, encode_text, without_thinking
from webrl.types import Step

_PAGE_SHARE = 0.25
"""History is cut (oldest first) only where it would leave the page less than this share of the prompt."""
_LIKELY_CHARS_PER_TOKEN = 4
"""A page of more characters a token of the budget is not tried whole first."""
_NOTE_TOKENS = 24
"""About what the note on left-out lines takes; more is seen at the seams."""
_MAX_CHARS_PER_TOKEN = 32
"""Beyond this many characters a token, the page's tail is cut before it is tokenised: it cannot fit."""

INTERACTIVE = re.compile(
    r"^\s*\[\w+\] (button|link|textbox|searchbox|checkbox|radio|combobox|listbox|option|menuitem\w*|tab|switch|"
    r"slider|spinbutton|treeitem|gridcell|Date|DateTime|InputTime|ColorWell)\b|"
    r"clickable|focused|, (draggable|droppable|editable)$"
)


@dataclass(frozen=True)
class Prompt:
    """A prompt that fits.

    Example: `Prompt(ids=(0, 1, …), observation="RootWebArea …")`
    """

    ids: tuple[int, ...]
    """[P] token ids, the answer's header included."""
    observation: str
    """The page text that it contains."""
    image: bytes | None = None
    """PNG that the image tokens among `ids` represent; None for a text-only prompt."""


@dataclass(frozen=True)
class Page:
    """A page's text and where its tokens end, so that it is tokenised only once, even if it is cut repeatedly."""

    text: str
    ends: Sequence[int]
    """[T] character positions, ascending."""

    @classmethod
    def of(cls, tokenizer: Any, text: str) -> Page:
        """Tokenise a page (a slow tokenizer, which knows no positions: line by line, evenly within a line)."""
        if tokenizer.is_fast:
            found = tokenizer(text, add_special_tokens=False, split_special_tokens=True, return_offsets_mapping=True)
            return cls(text, [end for _, end in found["offset_mapping"]])
        ends, start = [], 0
        for line in text.splitlines(keepends=True):
            count = len(encode_plain(tokenizer, line))
            ends += [start + len(line) * (i + 1) // count for i in range(count)]
            start += len(line)
        return cls(text, ends)


def fit_prompt(
    tokenizer: Any,
    encode: Callable[[int, str], list[int]],
    page: str,
    num_history: int,
    max_tokens: int,
    cut: Callable[[Page, int], str],
) -> Prompt:
    """Make a prompt of at most `max_tokens`: the page gives way first, then the oldest history.

    Args:
        encode: (oldest history entry shown, page text) -> ids of the whole prompt.
        num_history: number of history entries; the last one always stays.
        cut: `cut_tail` or `cut_lines`.

    Raises:
        PromptTooLong: instruction, last history entry and headers alone do not fit.
    """
    if len(page) <= _LIKELY_CHARS_PER_TOKEN * max_tokens:
        ids = encode(0, page)
        if len(ids) <= max_tokens:
            return Prompt(tuple(ids), page)
    tokenised = Page.of(tokenizer, page[: _MAX_CHARS_PER_TOKEN * max_tokens])
    num_tokens, is_clipped = len(tokenised.ends), len(tokenised.text) < len(page)
    # The fewest oldest entries to leave out, so that what is left and the page's share fit; the last one stays.
    past_room = max_tokens - min(num_tokens, int(max_tokens * _PAGE_SHARE))
    start = bisect_left(range(max(0, num_history - 1)), True, key=lambda n: len(encode(n, "")) <= past_room)
    fixed = len(encode(start, ""))
    if fixed > max_tokens:
        raise PromptTooLong(
            f"the prompt without its page takes {fixed} tokens, more than max_prompt_tokens={max_tokens}: "
            "shorten the instruction or raise models.max_prompt_tokens"
        )
    room = max_tokens - fixed
    while True:
        shown = cut(tokenised, room) if num_tokens > room or is_clipped else page
        ids = encode(start, shown)
        if len(ids) <= max_tokens:
            return Prompt(tuple(ids), shown)
        # Tokens at the seams may not add up; take the excess off the page and try again.
        room -= len(ids) - max_tokens


def cut_tail(page: Page, room: int) -> str:
    """The first `room` tokens of the page, ending at a character border."""
    if room <= 0:
        return ""
    return page.text if len(page.ends) <= room else page.text[: page.ends[room - 1]]


def cut_lines(page: Page, room: int) -> str:
    """Leave out whole lines, last first: lines without an interactive element go before those with one.

    A last line says how many were left out. Falls back to `cut_tail` where not even one line fits.
    """
    lines = page.text.split("\n")
    borders = list(itertools.accumulate((len(line) + 1 for line in lines), initial=0))
    tokens = [bisect_right(page.ends, border) for border in borders]  # up to each line's start
    interactive = [INTERACTIVE.search(line) is not None for line in lines]
    total = len(page.ends) + _NOTE_TOKENS
    dropped: set[int] = set()
    for index in sorted(range(len(lines)), key=lambda i: (interactive[i], -i)):
        if total <= room:
            break
        dropped.add(index)
        total -= tokens[index + 1] - tokens[index]
    if len(dropped) == len(lines):
        return cut_tail(page, room)
    if not dropped:
        return page.text
    kept = [line for i, line in enumerate(lines) if i not in dropped]
    num_interactive = sum(interactive[i] for i in dropped)
    return "\n".join([*kept, f"… {len(dropped)} lines left out, {num_interactive} of them with interactive elements"])


if TYPE_CHECKING:
    from webrl.llm.eyes import Eyes

_USER = "<|eot_id|><|start_header_id|>user<|end_header_id|>\n"
_ASSISTANT = "<|eot_id|><|start_header_id|>assistant<|end_header_id|>\n"
_MAX_NOTE_CHARS = 200
"""Unreadable answers and error texts in the history are clipped to this length."""


@cache
def load_texts() -> dict[str, Any]:
    """The instructions to models, by name and dialect (`prompts.yaml`)."""
    texts: dict[str, Any] = yaml.safe_load(Path(__file__).with_name("prompts.yaml").read_text(encoding="utf-8"))
    return texts


def build_policy_prompt(
    tokenizer: Any,
    instruction: str,
    history: Sequence[Step],
    observation: str,
    config: RunConfig,
    *,
    eyes: Eyes | None = None,
    image: bytes | None = None,
) -> Prompt:
    """The policy's prompt, at most `models.max_prompt_tokens` long; the page's text gives way first.

    Args:
        eyes: processor of a vision-language model.
        image: PNG of the page for that model.

    Raises:
        PolicyError: the instruction alone does not fit.
        StageError: the image is larger than `rollout.image_size`, or leaves no room for the rest.
        ModelError: `chat` without a chat template.
    """
    models, rollout, image_size = config.models, config.rollout, config.rollout.image_size or 0
    look = eyes.look(image) if eyes and image is not None else None
    if eyes and look:
        size = "{}x{}".format(*look.size)
        if 0 < image_size < max(look.size):
            raise StageError(
                f"a screenshot of {size} pixels is larger than rollout.image_size={image_size}: show it, and record "
                "demonstrations, at that size"
            )
        if look.num_tokens >= models.max_prompt_tokens:
            raise StageError(
                f"a screenshot of {size} pixels is {look.num_tokens} tokens of model {eyes.name!r}, and "
                f"models.max_prompt_tokens is {models.max_prompt_tokens}: lower rollout.image_size, or raise it"
            )
    shows_text = look is None or rollout.show_text
    name = prompt_of(tokenizer, models.prompt) if shows_text else "brief"

    is_released = models.prompt_format == "webrl"

    def encode(start: int, page: str) -> list[int]:
        if is_released:
            return encode_text(tokenizer, released_parts(instruction, history, page, start))
        messages = policy_messages(instruction, history[start:], page, rollout.dialect, models.prompt_format, name)
        if eyes and look:
            return eyes.encode(messages if shows_text else by_coordinates(messages), look)
        return encode_chat(tokenizer, messages, thinking=models.enable_thinking)

    cut = cut_tail if is_released else cut_lines
    page = observation if shows_text else ""
    return replace(fit_prompt(tokenizer, encode, page, len(history), models.max_prompt_tokens, cut), image=image)


def by_coordinates(messages: Sequence[Message]) -> list[Message]:
    """A chat whose system message also says how to act on a screenshot without text."""
    return [Message("system", f"{messages[0].content}\n\n{load_texts()['coordinates']}"), *messages[1:]]


def policy_messages(
    instruction: str,
    history: Sequence[Step],
    observation: str,
    dialect: Dialect = "browsergym",
    prompt_format: PromptFormat = "chat",
    prompt: PromptName = "brief",
) -> list[Message]:
    """Messages of the `chat` formats; the assistant answers with the action alone.

    `rounds` begins with rounds of other tasks, and has the page before the history.

    Raises:
        StageError: `rounds` in another dialect than browsergym's.
    """
    texts = load_texts()
    if prompt == "rounds" and dialect != "browsergym":
        raise StageError(
            f"prompt 'rounds' shows answers in browsergym's actions, but rollout.dialect is {dialect!r}: set "
            "models.prompt=examples, or rollout.dialect=browsergym"
        )
    rounds = texts["rounds"] if prompt == "rounds" else None

    def ask(goal: str, past: Sequence[str], page: str) -> Message:
        parts = ["History:\n" + ("\n".join(past) or "none"), f"Page:\n{page}"]
        if prompt_format == "chat_history_last" or rounds:
            parts.reverse()
        if prompt != "brief":
            parts += [f"Done last, and shown in the page above: {past[-1]}"] if past else []
            parts.append(texts["ask"])
        return Message("user", "\n".join([f"Goal: {goal}", *parts]))

    brief = f"{texts['role']}\n\n{texts['actions'][dialect]}"
    told = rounds["told"] if rounds else brief if prompt == "brief" else texts["examples"][dialect]
    messages = [Message("system", told)]
    for shown in rounds["shown"] if rounds else ():
        past, page = shown["history"].splitlines(), shown["page"].rstrip()
        messages += [ask(shown["goal"], past, page), Message("assistant", shown["answer"])]
    lines = []
    for step in history:
        shown = step.action or _one_line(without_thinking(step.response))
        shown = f"{shown} # taken: {_one_line(step.note)}" if step.note else shown
        lines.append(f"{shown} # error: {_one_line(step.error)}" if step.error else shown)
    return [*messages, ask(instruction, lines, observation)]


def released_parts(
    instruction: str, history: Sequence[Step], observation: str, start: int = 0
) -> list[tuple[str, bool]]:
    """(text, is_template) parts of the `webrl` format (THUDM/WebRL's policy prompt); joined they are it.

    Args:
        start: oldest round shown; round numbers stay those of the episode.
    """
    parts = [("Task Instruction: ", True), (instruction, False), ("\n\n", True)]
    for index, step in enumerate(history[start:], start):
        page = (instruction, False) if index == 0 else ("** Simplified html **", True)
        parts += [(f"Round {index}\n\n{_USER}", True), page, (f"\n\n{_ASSISTANT}", True)]
        parts += [(step.response, False), ("\n\n", True)]
    return [*parts, (f"Round {len(history)}\n\n{_USER}", True), (observation, False), (f"\n\n{_ASSISTANT}", True)]


def _one_line(text: str) -> str:
    flat = " ".join(text.split())
    return flat if len(flat) <= _MAX_NOTE_CHARS else flat[: _MAX_NOTE_CHARS - 1] + "…"
