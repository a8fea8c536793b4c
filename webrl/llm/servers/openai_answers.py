"""Reading the JSON that OpenAI-compatible servers answer; whatever is missing or odd raises `MalformedAnswer`."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any, Literal

from webrl.errors import ModelError
from webrl.llm.servers.http_pool import MalformedAnswer
from webrl.runs.text import valid_text

_TOKEN_PREFIX = "token_id:"
_NO_LOGPROB = -9999.0
"""What vLLM's `/inference/v1/generate` writes for one that is not a number."""


def parse_completion(answer: Any) -> tuple[list[int], list[float], Literal["stop", "length"]]:
    """(ids, log-probs, finish reason) of the first choice."""
    choice = _choice(answer)
    try:
        logprobs = [float(x) for x in choice["logprobs"]["token_logprobs"]]
        ids = choice.get("token_ids")
        if ids is None:
            ids = [_token_id(t) for t in choice["logprobs"]["tokens"]]
    except (AttributeError, KeyError, TypeError, ValueError) as error:
        raise MalformedAnswer(f"no token ids or log-probs in {str(choice)[:200]} ({error})") from error
    if not ids or len(ids) != len(logprobs) or not all(isinstance(i, int) for i in ids):
        raise MalformedAnswer(f"{len(ids)} token ids with {len(logprobs)} log-probs")
    return list(ids), logprobs, "length" if choice.get("finish_reason") == "length" else "stop"


def parse_seen(answer: Any, prompt: Sequence[int], name: str) -> tuple[list[int], list[float]]:
    """(ids, log-probs) of what vLLM's `/inference/v1/generate` continues a prompt with a picture by.

    Raises:
        ModelError: it is not this prompt that it continued.
    """
    try:
        continued, choice = answer["prompt_token_ids"], _choice(answer)
        content = choice["logprobs"]["content"]
        ids, logprobs = list(choice["token_ids"]), [float(each["logprob"]) for each in content]
        if not ids or ids != [each["token_id"] for each in content] or min(logprobs) <= _NO_LOGPROB:
            raise ValueError(f"{len(ids)} token ids with log-probs of {str(content)[:100]}")
        same = [a == b for a, b in zip(continued, prompt, strict=False)]
    except (KeyError, TypeError, ValueError) as error:
        raise MalformedAnswer(f"no token ids or log-probs in {str(answer)[:200]} ({error})") from error
    if not all(same) or len(continued) != len(prompt):
        raise ModelError(
            f"vLLM continued another prompt than model {name!r} is trained on: {len(continued)} tokens for "
            f"{len(prompt)}, and they part at {([*same, False]).index(False)}; its processor writes the screenshot "
            "otherwise. Give vLLM's environment this one's transformers, or set rollout.engine.kind=transformers"
        )
    return ids, logprobs


def parse_chat(answer: Any) -> tuple[str, Literal["stop", "length"]]:
    """(text, finish reason) of the first choice."""
    choice = _choice(answer)
    message = choice.get("message")
    text = message.get("content") if isinstance(message, dict) else None
    if not isinstance(text, str):
        raise MalformedAnswer(f"no message content in {str(choice)[:200]}")
    return valid_text(text), "length" if choice.get("finish_reason") == "length" else "stop"


def parse_first_position(answer: Any) -> dict[int, float]:
    """Token id -> log-probability at the first answer position."""
    try:
        top = _choice(answer)["logprobs"]["top_logprobs"][0]
        return {_token_id(token): float(value) for token, value in top.items()}
    except (KeyError, TypeError, ValueError, IndexError, AttributeError) as error:
        raise MalformedAnswer(f"no top_logprobs ({error}) in {str(answer)[:200]}") from error


def parse_prompt_logprobs(answer: Any) -> dict[str, float]:
    """Token id (text) -> log-probability at the prompt's last position."""
    try:
        last = _choice(answer)["prompt_logprobs"][-1]
        return {token: float(value["logprob"]) for token, value in last.items()}
    except (KeyError, TypeError, ValueError, IndexError, AttributeError) as error:
        raise MalformedAnswer(f"no prompt_logprobs ({error}) in {str(answer)[:200]}") from error


def _choice(answer: Any) -> dict[str, Any]:
    try:
        choice = answer["choices"][0]
    except (KeyError, TypeError, IndexError) as error:
        raise MalformedAnswer(f"no choices in {str(answer)[:200]}") from error
    if not isinstance(choice, dict):
        raise MalformedAnswer(f"choice is {str(choice)[:200]}")
    return choice


def _token_id(token: str) -> int:
    if not token.startswith(_TOKEN_PREFIX):
        raise ValueError(f"{token!r} is not of the form token_id:N")
    return int(token.removeprefix(_TOKEN_PREFIX))
