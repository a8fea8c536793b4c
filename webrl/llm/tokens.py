"""Text to token ids without letting a page forge a turn, ids back to text, and the tokens that end a turn.

transformers parses a template's control tokens (`<|eot_id|>` …) wherever the string occurs, so that a page, an
instruction or a past answer holding that string would end the turn. Here a guard character is put inside every
such string in content before the template is rendered; the text between the remaining (real) control tokens is then
tokenised as plain text, without the guard. Content that holds no control string is tokenised by the tokenizer's
ordinary path, so the ids are those the model was trained on.

A model may end its turn with several tokens (`end_token_ids`): its tokenizer's, those of its generation config (Gemma's
`<end_of_turn>`, Llama's `<|eom_id|>`), the one its chat template writes after an answer. Sampling stops at any of them;
training targets end with the one that the prompt format writes (`closing_ids`).

Control tokens are the tokenizer's special tokens and those of its other added tokens that structure a conversation
(`</think>`, `<tool_call>`, `<|fim_prefix|>`): not added tokens that are text, such as Gemma's runs of spaces.
"""

from __future__ import annotations

import contextlib
import datetime
import itertools
import re
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any
from weakref import WeakKeyDictionary

from webrl.errors import ModelError, PolicyError
from webrl.llm.interface import Message
from webrl.llm.loading import adapter_base, config_of, library_message, model_folder

_GUARDS = tuple(chr(code) for code in range(0xE000, 0xE020))
"""Private-use characters, none of which a template can produce or treat as white space."""
_TEMPLATE_DATE = datetime.date(2024, 7, 26)
"""Date for templates that write today's (Llama 3.1's own default), so that prompts do not change overnight."""
_DIRECTIVES = ("%-d", "%-m", *map("%{}".format, "aAbBcdFHIjmMpSxXyY"))
_TODAY = "".join(f"|replace({name!r}, {_TEMPLATE_DATE.strftime(name)!r})" for name in _DIRECTIVES)
_STRFTIME_NOW = f"{{% macro strftime_now(form) %}}{{{{ form{_TODAY} }}}}{{% endmacro %}}\n"
"""The function that templates call for today's date; transformers 5.24 hands them none of ours."""
_MARK = "webrl question"
_STRUCTURAL = re.compile(r"<\|.*\|>|<｜.*｜>|</?(think|thinking|tool_\w+)>|\[/?[A-Z_]+\]")
"""Added tokens of this form are control tokens, even where neither tokenizer nor template says so."""


@dataclass(frozen=True)
class _Controls:
    """A tokenizer's control strings."""

    template: str | None
    """The chat template that they were read from."""
    any: re.Pattern[str] | None
    """Every control string; None if there is none. The whole match is one group, for `split`."""
    unflagged: re.Pattern[str] | None
    """Those that are not special tokens, which the tokenizer parses even when told not to."""
    reads_blocks: bool
    """Whether the template reads lists of blocks only: it would silently drop plain text."""


_CACHE: WeakKeyDictionary[Any, _Controls] = WeakKeyDictionary()


def encode_chat(tokenizer: Any, messages: Sequence[Message], *, thinking: bool = False) -> list[int]:
    """Return the token ids of a chat, rendered by the tokenizer's own template up to where the answer begins.

    If the template knows no system role, the system message is put before the first user message.

    Args:
        thinking: for templates that know `enable_thinking`: whether the answer may begin with its reasoning.

    Raises:
        ModelError: the tokenizer has no chat template, or the template refuses the messages.
    """
    guard, contents = protect(tokenizer, [m.content for m in messages])
    chat = [{"role": m.role, "content": c} for m, c in zip(messages, contents, strict=True)]
    return encode_guarded(tokenizer, render_chat(tokenizer, chat, thinking=thinking), guard)


def render_chat(
    tokenizer: Any,
    chat: Sequence[dict[str, str]],
    add_generation_prompt: bool = True,
    thinking: bool = False,
    *,
    with_picture: bool = False,
) -> str:
    """The chat as the template writes it; errors as in `encode_chat`.

    Args:
        with_picture: the last user message begins with a picture.
    """
    if not getattr(tokenizer, "chat_template", None):
        raise ModelError(
            f"tokenizer {tokenizer.name_or_path!r} has no chat template; use models.prompt_format=webrl "
            "(for a judge label.prompt_format=webrl), or add chat_template.jinja to the model folder"
        )
    problem: Exception | None = None
    for attempt in (list(chat), without_system(chat)):
        try:
            template = str(tokenizer.get_chat_template())
            text = str(
                tokenizer.apply_chat_template(
                    in_blocks(attempt, with_picture) if with_picture or controls(tokenizer).reads_blocks else attempt,
                    tokenize=False,
                    add_generation_prompt=add_generation_prompt,
                    enable_thinking=thinking,
                    date_string=_TEMPLATE_DATE.strftime("%d %b %Y"),
                    chat_template=_STRFTIME_NOW + template if "strftime_now" in template else template,
                )
            )
        except Exception as error:  # jinja errors share no base class that transformers exports
            problem = problem or error
        else:
            # A template that drops what it has never heard of is not one that leaves it out on purpose.
            shown = {"user"} if "system" in tokenizer.chat_template else {"user", "system"}
            if all(m["content"].strip() in text for m in attempt if m["role"] in shown):
                return text
            problem = problem or ModelError("it does not write the user's messages as they are")
    raise ModelError(f"chat template of {tokenizer.name_or_path!r} failed: {problem}") from problem


def without_system(chat: Sequence[dict[str, str]]) -> list[dict[str, str]]:
    """Messages with the system message put before the first of the others, for templates that know no such role."""
    if len(chat) < 2 or chat[0]["role"] != "system":
        return list(chat)
    return [{"role": chat[1]["role"], "content": f"{chat[0]['content']}\n\n{chat[1]['content']}"}, *chat[2:]]


def in_blocks(chat: Sequence[dict[str, str]], with_picture: bool) -> list[dict[str, Any]]:
    """Messages as templates of vision-language models take them: lists of text and picture blocks."""
    blocks = [{**m, "content": [{"type": "text", "text": m["content"]}]} for m in chat]
    if with_picture:
        last = max(i for i, m in enumerate(chat) if m["role"] == "user")
        blocks[last]["content"].insert(0, {"type": "image"})  # type: ignore[attr-defined]
    return blocks


def encode_text(tokenizer: Any, parts: Sequence[tuple[str, bool]], *, add_prefix: bool = True) -> list[int]:
    """Token ids of (text, is_template) parts joined: control strings count only in template parts.

    Args:
        add_prefix: begin with the tokens that the tokenizer itself puts before every text (BOS).
    """
    guard, contents = protect(tokenizer, [text for text, is_template in parts if not is_template])
    queue = iter(contents)
    text = "".join(text if is_template else next(queue) for text, is_template in parts)
    ids = encode_guarded(tokenizer, text, guard)
    if not add_prefix:
        return ids
    bare = tokenizer("a", add_special_tokens=False)["input_ids"]
    full = tokenizer("a")["input_ids"]
    starts = range(len(full) - len(bare) + 1)
    return [*full[: next((n for n in starts if full[n : n + len(bare)] == bare), 0)], *ids]


def encode_plain(tokenizer: Any, text: str) -> list[int]:
    """Token ids of content alone: no added tokens, control strings as plain text."""
    ids: list[int] = []
    pattern = controls(tokenizer).unflagged
    pieces = []
    while pattern and (match := pattern.search(text)):  # tokenised apart, the parts of a control string stay parts
        cut = match.start() + 1
        pieces.append(text[:cut])
        text = text[cut:]
    for piece in (*pieces, text):
        ids += tokenizer(piece, add_special_tokens=False, split_special_tokens=True)["input_ids"]
    return ids


def decode_action(tokenizer: Any, ids: Sequence[int], end_ids: Iterable[int]) -> str:
    """Text of sampled ids without the end token; other control tokens stay visible."""
    body = list(ids[:-1]) if ids and ids[-1] in set(end_ids) else list(ids)
    return str(tokenizer.decode(body, skip_special_tokens=False, clean_up_tokenization_spaces=False))


def refuse_image(name: str, image: bytes | None) -> None:
    """Raises ModelError: an image for a text model."""
    if image is not None:
        raise ModelError(f"model {name!r} reads text only: it cannot be shown an image")


def protect(tokenizer: Any, contents: Sequence[str]) -> tuple[str, list[str]]:
    """Put a guard character inside every control string of `contents`; returns ("", contents) if there is none."""
    pattern = controls(tokenizer).any
    if pattern is None or not any(pattern.search(text) for text in contents):
        return "", list(contents)
    guard = next((g for g in _GUARDS if not any(g in text for text in contents)), None)
    if guard is None:
        raise PolicyError("content holds every private-use guard character (U+E000 to U+E01F) and control strings")
    broken = []
    for text in contents:
        # Removing a guard must never reveal a control string, so matching restarts inside the broken one.
        pieces, start = [], 0
        while match := pattern.search(text, start):
            pieces.append(text[start : match.start() + 1])
            start = match.start() + 1
        broken.append(guard.join([*pieces, text[start:]]))
    return guard, broken


def encode_guarded(tokenizer: Any, text: str, guard: str) -> list[int]:
    """Tokenise rendered text: controls are read where the guard is absent, then the guard is taken out."""
    pattern = controls(tokenizer).any
    if not guard or pattern is None:
        return list(tokenizer(text, add_special_tokens=False)["input_ids"])
    ids: list[int] = []
    for piece in pattern.split(text):
        if pattern.fullmatch(piece):
            ids.append(int(tokenizer.convert_tokens_to_ids(piece)))
        elif piece:
            ids += encode_plain(tokenizer, piece.replace(guard, ""))
    return ids


def controls(tokenizer: Any) -> _Controls:
    """The tokenizer's control strings, read once."""
    template = tokenizer.chat_template
    known = _CACHE.get(tokenizer)
    if known is None or known.template != template:
        added = list(tokenizer.added_tokens_decoder.values())
        flagged = {token.content for token in added if token.special}
        unflagged = {
            token.content
            for token in added
            if token.content.strip() and (_STRUCTURAL.fullmatch(token.content) or token.content in (template or ""))
        } - flagged
        reads_blocks = False
        if template:
            chat = [{"role": "user", "content": _MARK}]
            with contextlib.suppress(Exception):  # jinja errors share no base class that transformers exports
                reads_blocks = _MARK not in tokenizer.apply_chat_template(chat, tokenize=False) and _MARK in (
                    tokenizer.apply_chat_template(in_blocks(chat, with_picture=False), tokenize=False)
                )
        known = _CACHE[tokenizer] = _Controls(
            template, _compile(flagged | unflagged), _compile(unflagged), reads_blocks
        )
    return known


def _compile(names: Iterable[str]) -> re.Pattern[str] | None:
    # One-character control strings cannot be broken by a guard inside. At each place the longest name wins, which sorts
    # after those it begins with. By their beginnings: only at `<un` are Gemma's 6,000 tried one after another.
    long = sorted((name for name in names if len(name) > 1), reverse=True)
    groups = [
        f"{re.escape(beginning)}(?:{'|'.join(re.escape(name[3:]) for name in group)})"
        for beginning, group in itertools.groupby(long, key=lambda name: name[:3])
    ]
    return re.compile(f"({'|'.join(groups)})") if groups else None


OPEN, CLOSE = "<think>", "</think>"
_THINKING = re.compile(rf"\A.*?{CLOSE}\s*|\A\s*{OPEN}.*\Z", re.DOTALL)


def without_thinking(text: str) -> str:
    """An answer without the reasoning before it: all up to `</think>`, or all behind a `<think>` left open.

    (Templates that open the block themselves leave only `</think>` in the answer.)
    """
    return _THINKING.sub("", text, count=1)


RELEASED_END = "<|eot_id|>"
"""The token that ends an action of the released checkpoints, for every model; their recorded actions carry it along."""


def end_token_ids(name: str, tokenizer: Any) -> tuple[int, ...]:
    """Return every id that ends an answer of the model; the first is the tokenizer's own, if it has one.

    Args:
        name: folder (a LoRA folder: its base's settings count too) or hub name.

    Raises:
        ModelError: generation_config.json or config.json name an id outside the vocabulary.
    """
    from transformers import GenerationConfig

    folder = model_folder(name)
    base = adapter_base(folder) if folder else None
    configured: list[Any] = []
    config: Any = None
    with contextlib.suppress(ModelError):  # of a tokenizer alone
        config = config_of(name).get_text_config()
    size = max(len(tokenizer), int(getattr(config, "vocab_size", 0) or 0))
    for source in filter(None, (name, base)):
        try:
            generation: Any = GenerationConfig.from_pretrained(source)
        except Exception as error:  # what is no JSON object raises nearly anything in transformers
            if (file := Path(source) / "generation_config.json").exists():
                raise ModelError(f"{file}: {library_message(error)}; correct or remove it") from None
            generation = None if source != (base or name) else config
        ends = getattr(generation, "eos_token_id", None)
        configured += ends if isinstance(ends, list) else [] if ends is None else [ends]
    for end in configured:
        if type(end) is not int or not 0 <= end < size:
            raise ModelError(
                f"model {name!r}: generation_config.json or config.json names end token {end!r} (eos_token_id), but "
                f"the vocabulary has {size} tokens; correct eos_token_id there"
            )
    found = (tokenizer.eos_token_id, *configured, _template_end(tokenizer), _released_end(tokenizer))
    return tuple(dict.fromkeys(end for end in found if end is not None))


def closing_ids(tokenizer: Any, prompt_format: str) -> tuple[int, ...]:
    """The token that ends an answer in training targets, as a tuple; raises ModelError if there is none.

    `webrl`: that of the released checkpoints; otherwise what the chat template writes behind an answer.
    """
    end = _released_end(tokenizer) if prompt_format == "webrl" else _template_end(tokenizer)
    end = tokenizer.eos_token_id if end is None else end
    if end is None:
        raise ModelError(f"{tokenizer.name_or_path!r} has no end token: set eos_token in its tokenizer_config.json")
    return (end,)


def without_end(text: str) -> str:
    """An imported answer without the text of an end token, which released actions and exported chats carry along."""
    return re.sub(r"(?:(?:<\|(?:eot_id|im_end|end|end_of_text|endoftext)\|>|</s>|<end_of_turn>)\s*)+\Z", "", text)


def _template_end(tokenizer: Any) -> int | None:
    """The first control token that the chat template writes behind an answer."""
    pattern = controls(tokenizer).any
    if not getattr(tokenizer, "chat_template", None) or pattern is None:
        return None
    chat = [{"role": "user", "content": "goal"}, {"role": "assistant", "content": _MARK}]
    match = pattern.match(render_chat(tokenizer, chat, add_generation_prompt=False).rpartition(_MARK)[2].lstrip())
    return int(tokenizer.convert_tokens_to_ids(match.group())) if match else None


def _released_end(tokenizer: Any) -> int | None:
    return next((i for i, token in tokenizer.added_tokens_decoder.items() if token.content == RELEASED_END), None)
