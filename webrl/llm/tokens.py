"""Text to token ids without letting a page forge a turn, and ids back to text.

transformers parses a template's control tokens (`<|eot_id|>` …) wherever the string occurs, so that a page, an
instruction or a past answer holding that string would end the turn. Here a guard character is put inside every
such string in content before the template is rendered; the text between the remaining (real) control tokens is then
tokenised as plain text, without the guard. Content that holds no control string is tokenised by the tokenizer's
ordinary path, so the ids are those the model was trained on.
"""

from __future__ import annotations

import re
from collections.abc import Iterable, Sequence
from functools import lru_cache
from typing import Any

from webrl.errors import ModelError, PolicyError
from webrl.llm.interface import Message

_GUARDS = tuple(chr(code) for code in range(0xE000, 0xE020))
"""Private-use characters, none of which a template can produce or treat as white space."""


def encode_chat(tokenizer: Any, messages: Sequence[Message], *, add_generation_prompt: bool = True) -> list[int]:
    """Token ids of a chat, rendered by the tokenizer's own template.

    Raises:
        ModelError: the tokenizer has no chat template, or the template refuses the messages.
    """
    guard, contents = protect(tokenizer, [m.content for m in messages])
    chat = [{"role": m.role, "content": c} for m, c in zip(messages, contents, strict=True)]
    if not getattr(tokenizer, "chat_template", None):
        raise ModelError(
            f"tokenizer {tokenizer.name_or_path!r} has no chat template; use models.prompt_format=webrl, "
            "or add chat_template.jinja to the model folder"
        )
    try:
        text = tokenizer.apply_chat_template(chat, tokenize=False, add_generation_prompt=add_generation_prompt)
    except Exception as error:  # jinja errors share no base class that transformers exports
        raise ModelError(f"chat template of {tokenizer.name_or_path!r} failed: {error}") from error
    return encode_guarded(tokenizer, text, guard)


def encode_text(tokenizer: Any, parts: Sequence[tuple[str, bool]]) -> list[int]:
    """Token ids of (text, is_template) parts joined: control strings count only in template parts.

    Tokens that the tokenizer itself puts before every text (BOS) are added.
    """
    guard, contents = protect(tokenizer, [text for text, is_template in parts if not is_template])
    queue = iter(contents)
    text = "".join(text if is_template else next(queue) for text, is_template in parts)
    return list(_prefix_ids(tokenizer)) + encode_guarded(tokenizer, text, guard)


def encode_plain(tokenizer: Any, text: str) -> list[int]:
    """Token ids of content alone: no added tokens, control strings as plain text."""
    return list(tokenizer(text, add_special_tokens=False, split_special_tokens=True)["input_ids"])


def decode_action(tokenizer: Any, ids: Sequence[int], end_ids: Iterable[int]) -> str:
    """Text of sampled ids without the end token; other control tokens stay visible."""
    body = list(ids[:-1]) if ids and ids[-1] in set(end_ids) else list(ids)
    return str(tokenizer.decode(body, skip_special_tokens=False, clean_up_tokenization_spaces=False))


def protect(tokenizer: Any, contents: Sequence[str]) -> tuple[str, list[str]]:
    """Put a guard character inside every control string of `contents`; gives ("", contents) if there is none."""
    pattern = _control_pattern(tokenizer)
    if pattern is None or not any(pattern.search(text) for text in contents):
        return "", list(contents)
    guard = next((g for g in _GUARDS if not any(g in text for text in contents)), None)
    if guard is None:
        raise PolicyError("content holds every private-use guard character (U+E000 to U+E01F) and control strings")
    return guard, [_break_controls(pattern, text, guard) for text in contents]


def encode_guarded(tokenizer: Any, text: str, guard: str) -> list[int]:
    """Tokenise rendered text: controls are read where the guard is absent, then the guard is taken out."""
    pattern = _control_pattern(tokenizer)
    if not guard or pattern is None:
        return list(tokenizer(text, add_special_tokens=False)["input_ids"])
    ids: list[int] = []
    for piece in pattern.split(text):
        if pattern.fullmatch(piece):
            ids.append(int(tokenizer.convert_tokens_to_ids(piece)))
        elif piece:
            ids += encode_plain(tokenizer, piece.replace(guard, ""))
    return ids


def end_token_ids(tokenizer: Any, generation_config: Any = None) -> tuple[int, ...]:
    """Every id that ends an answer: generation config's and tokenizer's eos, and the usual end-of-turn tokens."""
    found: list[int] = []
    eos = getattr(generation_config, "eos_token_id", None)
    found += [eos] if isinstance(eos, int) else list(eos or [])
    if tokenizer is not None:
        found += [tokenizer.eos_token_id] if tokenizer.eos_token_id is not None else []
        added = {token.content: index for index, token in tokenizer.added_tokens_decoder.items()}
        turn_ends = ("<|eot_id|>", "<|im_end|>", "<|end_of_turn|>", "<end_of_turn>", "<|user|>", "<|observation|>")
        found += [added[name] for name in turn_ends if name in added]
    return tuple(dict.fromkeys(found))


def _break_controls(pattern: re.Pattern[str], text: str, guard: str) -> str:
    # Removing a guard must never reveal a control string, so matching restarts inside the broken one.
    while match := pattern.search(text):
        cut = match.start() + 1
        text = text[:cut] + guard + text[cut:]
    return text


def _control_pattern(tokenizer: Any) -> re.Pattern[str] | None:
    names = frozenset(t.content for t in tokenizer.added_tokens_decoder.values() if t.special)
    return _compile_controls(names)


@lru_cache(maxsize=16)
def _compile_controls(names: frozenset[str]) -> re.Pattern[str] | None:
    # One-character control strings cannot be broken by a guard inside; the longest name wins at each place.
    ordered = sorted((name for name in names if len(name) > 1), key=len, reverse=True)
    return re.compile("(" + "|".join(map(re.escape, ordered)) + ")") if ordered else None


def _prefix_ids(tokenizer: Any) -> tuple[int, ...]:
    bare = tokenizer("a", add_special_tokens=False)["input_ids"]
    full = tokenizer("a")["input_ids"]
    for start in range(len(full) - len(bare) + 1):
        if full[start : start + len(bare)] == bare:
            return tuple(full[:start])
    return ()
