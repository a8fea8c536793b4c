"""Chats and texts as token ids, and what the model would be asked without its knowing refused.

API: `await chat_ids(model, chat, png, thinking)`, `await text_ids(tokenizer, prompt)`.
"""

from __future__ import annotations

from typing import Any

from webrl.errors import ModelError, PolicyError
from webrl.llm.interface import LanguageModel, Message
from webrl.llm.threads import with_tokenizer
from webrl.llm.tokens import encode_chat, render_chat
from webrl.serving.requests import RequestError


async def chat_ids(model: LanguageModel, chat: list[Message], png: bytes | None, thinking: bool) -> list[int]:
    """A chat through the model's own template.

    Args:
        png: what its last user message begins with, as the model is shown it; None: the model is one of text.
        thinking: whether the answer may begin with its reasoning.

    Raises:
        RequestError: no template, one that refuses these messages, or one that leaves a message out.
    """

    def encode(tokenizer: Any) -> list[int]:
        ids = encode_chat(tokenizer, chat, thinking=thinking)
        _check_all_are_read(tokenizer, chat)
        return ids

    try:
        eyes = model.eyes
        if eyes is None or png is None:
            return await with_tokenizer(model.tokenizer, encode)
        ids: list[int] = eyes.encode(chat, eyes.look(png))
        _check_all_are_read(eyes.tokenizer, chat, sees=True)
    except (ModelError, PolicyError) as error:
        raise RequestError(str(error), param="messages") from error
    return ids


async def text_ids(tokenizer: Any, prompt: str | list[int]) -> list[int]:
    """A text, in which control tokens are read as such, or token ids. Raises RequestError."""
    ids = prompt if isinstance(prompt, list) else await with_tokenizer(tokenizer, lambda own: _read(own, prompt))
    if not ids:
        raise RequestError("the prompt is empty", param="prompt")
    if not 0 <= min(ids) <= max(ids) < len(tokenizer):
        raise RequestError(f"a token id is outside the vocabulary, 0 … {len(tokenizer) - 1}", param="prompt")
    return ids


def _read(tokenizer: Any, text: str) -> list[int]:
    return list(tokenizer(text)["input_ids"])


def _check_all_are_read(tokenizer: Any, chat: list[Message], *, sees: bool = False) -> None:
    """Raises RequestError: the template writes nothing of a message, as the tiny models' does with the system's."""
    marks = [f"mark{i}." for i in range(len(chat))]
    marked = [{"role": message.role, "content": mark} for message, mark in zip(chat, marks, strict=True)]
    shown = render_chat(tokenizer, marked, with_picture=sees)
    for i, (message, mark) in enumerate(zip(chat, marks, strict=True)):
        if mark not in shown:
            raise RequestError(
                f"messages.{i}: this model's chat template leaves {message.role} messages out; "
                "say it in a user message",
                param=f"messages.{i}",
            )
