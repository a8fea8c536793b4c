"""Reading the JSON that OpenAI-compatible servers answer; whatever is missing or odd raises `MalformedAnswer`."""

from __future__ import annotations

from typing import Any, Literal

from webrl.llm.servers.http_pool import MalformedAnswer

_TOKEN_PREFIX = "token_id:"


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


def parse_chat(answer: Any) -> tuple[str, Literal["stop", "length"]]:
    """(text, finish reason) of the first choice."""
    choice = _choice(answer)
    message = choice.get("message")
    text = message.get("content") if isinstance(message, dict) else None
    if not isinstance(text, str):
        raise MalformedAnswer(f"no message content in {str(choice)[:200]}")
    # JSON can spell half a surrogate pair, which no file of ours can hold.
    text = text.encode("utf-8", "replace").decode()
    return text, "length" if choice.get("finish_reason") == "length" else "stop"


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
