"""Any OpenAI-compatible servers: token ids through `/completions` if the server takes them, else text through chat."""

from __future__ import annotations

import contextlib
import logging
import math
import os
import random
import re
from collections.abc import Iterator, Sequence
from typing import Any, Literal

from webrl.config import EngineConfig
from webrl.config.redaction import remember
from webrl.errors import ModelError, PolicyError
from webrl.llm.interface import Completion, Message, Sampling
from webrl.llm.loading import load_tokenizer
from webrl.llm.servers.http_pool import HttpPool, MalformedAnswer, Refused
from webrl.llm.tokens import decode_action, encode_chat, end_token_ids, refuse_image, without_system
from webrl.runs.clock import spent_on
from webrl.runs.text import valid_text

logger = logging.getLogger(__name__)

_NO_SYSTEM = re.compile(r"system.*role|role.*system|roles must alternate", re.IGNORECASE | re.DOTALL)
"""What servers say if a model's chat template refuses the system role."""
_TOKEN_PREFIX = "token_id:"
_BROKEN_OFF = ("abort", "error", "content_filter", "insufficient_system_resource")
"""Finish reasons of answers that neither the model nor our limit ended."""


class OpenAIModel:
    """`LanguageModel` over a list of servers of the same model.

    With a tokenizer (the model's folder or hub name is given and loads) and a server that answers `/completions` with
    token ids (vLLM, SGLang), prompts and answers are exact token ids. Otherwise only `chat` works.
    """

    def __init__(self, name: str, pool: HttpPool, served_name: str, tokenizer: Any, thinking: bool = False) -> None:
        # A server that does not take a tokenizer's ids (None) serves another model than the one named.
        self.name = served_name if tokenizer is None else name
        self.eyes = None
        self._tokenizer_name = name
        self.fingerprint = f"{served_name}@{','.join(pool.urls)}"
        self.tokenizer = tokenizer
        self.served_name = served_name
        self._pool = pool
        self._end_ids = () if tokenizer is None else end_token_ids(name, tokenizer)
        self._thinking = thinking
        self._limit_key = "max_tokens"
        self._has_system_role = True

    @classmethod
    async def connect(cls, name: str, engine: EngineConfig, *, thinking: bool = False) -> OpenAIModel:
        """Find out which model the servers offer and whether they take token ids.

        Args:
            name: folder or hub name of the model, for its tokenizer.
            engine: deadlines, retries, model name, servers, the environment variable that holds their key.
            thinking: whether chats are rendered with `enable_thinking`, where we render them.

        Raises:
            ModelError: no URL, no server answers, or none serves `engine.model_name`; or several models are served, and
                neither that nor `name` says which is meant.
        """
        key = os.environ.get(engine.api_key_env)
        remember(key or "")
        pool = HttpPool(engine.urls, timeout_s=engine.timeout_s, max_retries=engine.max_retries, api_key=key)
        try:
            served_name = await _served_name(pool, engine, name)
            tokenizer, why_not = None, ""
            try:
                tokenizer = load_tokenizer(name)
            except ModelError as error:
                why_not = str(error)
            if tokenizer is not None:
                body = {"model": served_name, "prompt": [1], "max_tokens": 1, "temperature": 0.0, "logprobs": 1}
                body |= {"return_token_ids": True, "return_tokens_as_token_ids": True}
                try:
                    parse_completion(await pool.ask("/completions", body, lambda answer: answer))
                except (MalformedAnswer, Refused) as error:
                    if isinstance(error, Refused) and error.status in (401, 403):
                        raise _as_error(error) from error
                    tokenizer, why_not = None, str(error)
                except PolicyError as error:
                    raise ModelError(f"{served_name!r} does not answer: {error}") from error
        except BaseException:
            await pool.close()
            raise
        if tokenizer is None:
            text = "%s: no exact token ids from this server (%s); only chat works, nothing to train on"
            logger.warning(text, served_name, why_not)
        return cls(name, pool, served_name, tokenizer, thinking)

    async def generate(self, prompt_ids: Sequence[int], sampling: Sampling, image: bytes | None = None) -> Completion:
        """Continue token ids (`LanguageModel.generate`)."""
        refuse_image(self.name, image)
        self._need_ids()
        prompt = list(prompt_ids)
        body = self._completion_body(prompt, sampling) | {"logprobs": 1, "stop_token_ids": list(self._end_ids)}
        with spent_on("sampling"):
            ids, logprobs, reason = await self.ask("/completions", body, parse_completion)
        return Completion(
            ids=tuple(ids),
            logprobs=tuple(logprobs),
            text=decode_action(self.tokenizer, ids, self._end_ids),
            finish_reason=reason,
            prompt_ids=tuple(prompt),
        )

    async def chat(self, messages: Sequence[Message], sampling: Sampling) -> Completion:
        """Answer chat messages (`LanguageModel.chat`); by token ids if the server takes them."""
        if self.tokenizer is not None:
            return await self.generate(encode_chat(self.tokenizer, messages, thinking=self._thinking), sampling)
        chat = [{"role": m.role, "content": m.content} for m in messages]
        body: dict[str, Any] = {
            "model": self.served_name,
            "messages": chat if self._has_system_role else without_system(chat),
            "temperature": sampling.temperature,
            "seed": _seed(sampling),
            self._limit_key: sampling.max_new_tokens,
        }
        if sampling.top_p < 1.0:
            body["top_p"] = sampling.top_p
        with spent_on("sampling"):
            text, reason = await self.ask("/chat/completions", body, parse_chat)
        return Completion(ids=(), logprobs=(), text=text, finish_reason=reason)

    async def choice_logprobs(self, prompt_ids: Sequence[int], token_ids: Sequence[int]) -> list[float]:
        """Return log-probabilities of some tokens at the first answer position (`LanguageModel.choice_logprobs`).

        Takes one request where the server reports the requested tokens (or has them among its top 20); otherwise one
        more per token, which is scored as the last token of the prompt.
        """
        self._need_ids()
        prompt = list(prompt_ids)
        extra = {"logprobs": 20, "logprob_token_ids": list(token_ids)}
        body = self._completion_body(prompt, Sampling(temperature=0.0, max_new_tokens=1)) | extra
        with spent_on("scoring"):
            found = await self.ask("/completions", body, parse_first_position)
            for token in (t for t in token_ids if t not in found):
                body = self._completion_body([*prompt, token], Sampling(temperature=0.0, max_new_tokens=1))
                last = await self.ask("/completions", body | {"prompt_logprobs": 0}, parse_prompt_logprobs)
                if str(token) not in last:
                    raise ModelError(f"{self.served_name!r} reports no prompt_logprobs for token {token}")
                found[token] = last[str(token)]
        return [found[token] for token in token_ids]

    async def close(self) -> None:
        """Close the connections."""
        await self._pool.close()

    def _completion_body(self, prompt: list[int], sampling: Sampling) -> dict[str, Any]:
        return {
            "model": self.served_name,
            "prompt": prompt,
            "return_token_ids": True,
            "return_tokens_as_token_ids": True,
            "skip_special_tokens": False,
            # everything that a model's generation_config.json could turn on behind our back
            "max_tokens": sampling.max_new_tokens,
            "temperature": sampling.temperature,
            "top_p": sampling.top_p,
            "top_k": sampling.top_k,
            "min_p": 0.0,
            "repetition_penalty": 1.0,
            "seed": _seed(sampling),
        }

    async def ask(self, path: str, body: dict[str, Any], parse: Any) -> Any:
        """Return the servers' answer to a request, read by `parse`.

        Raises:
            PolicyError, ModelError: no answer, or a refusal.
        """
        try:
            return await self._pool.ask(path, body, parse)
        except Refused as error:
            # By the request's own key: another request may have learned the new one while this was on its way.
            if error.status == 400 and "max_completion_tokens" in error.text and "max_tokens" in body:
                self._limit_key = "max_completion_tokens"
                rest = {key: value for key, value in body.items() if key != "max_tokens"}
                return await self.ask(path, rest | {self._limit_key: body["max_tokens"]}, parse)
            chat = without_system(body.get("messages", []))
            if error.status == 400 and chat != body.get("messages", []) and _NO_SYSTEM.search(error.text):
                answer = await self.ask(path, body | {"messages": chat}, parse)
                self._has_system_role = False  # only now: an error may quote messages, and be of something else
                return answer
            raise _as_error(error) from error

    def _need_ids(self) -> None:
        if self.tokenizer is None:
            raise ModelError(
                f"{self.served_name!r} at {', '.join(self._pool.urls)} supports only chat (no token ids, or "
                f"no tokenizer could be loaded from {self._tokenizer_name!r}); use vLLM and the model's own folder or "
                "hub name"
            )


async def _served_name(pool: HttpPool, engine: EngineConfig, name: str) -> str:
    try:
        listing = await pool.ask("/models", None, lambda answer: answer)
    except (PolicyError, Refused) as error:
        if engine.model_name and isinstance(error, Refused) and error.status == 404:
            return engine.model_name
        is_locked = isinstance(error, Refused) and error.status in (401, 403)
        hint = "; is the key in engine.api_key_env right?" if is_locked else "; does engine.urls end in /v1?"
        raise ModelError(f"no model server: {error}{hint}") from error
    models = listing.get("data") if isinstance(listing, dict) else None
    names = [str(m["id"]) for m in models if isinstance(m, dict) and "id" in m] if isinstance(models, list) else []
    if engine.model_name is None:
        if len(names) != 1 and name not in names:
            found = ", ".join(names[:20]) or f"no model: {str(listing)[:200]}"
            raise ModelError(
                f"{pool.urls[0]}/models lists {found}; set engine.model_name (and does engine.urls end in /v1?)"
            )
        return name if name in names else names[0]
    if names and engine.model_name not in names:
        raise ModelError(f"engine.model_name={engine.model_name!r} is not served; served: {', '.join(names[:20])}")
    return engine.model_name


def _as_error(error: Refused) -> ModelError | PolicyError:
    if error.status in (401, 403):
        return ModelError(f"{error}; is the key in engine.api_key_env right?")
    if error.status == 404:
        return ModelError(f"{error}; is engine.model_name served, and does the URL end in /v1?")
    return PolicyError(str(error))


@contextlib.contextmanager
def _wanted(what: str, answer: Any) -> Iterator[None]:
    """Raise MalformedAnswer if `what` cannot be read from an answer."""
    try:
        yield
    except (AttributeError, IndexError, KeyError, TypeError, ValueError) as error:
        raise MalformedAnswer(f"no {what} in {str(answer)[:200]} ({error})") from error


def parse_completion(answer: Any) -> tuple[list[int], list[float], Literal["stop", "length"]]:
    """(ids, log-probs, finish reason) of the first choice."""
    choice = _choice(answer)
    with _wanted("token ids or log-probs", choice):
        logprobs = [float(x) for x in choice["logprobs"]["token_logprobs"]]
        ids = choice.get("token_ids")
        if ids is None:
            ids = [_token_id(t) for t in choice["logprobs"]["tokens"]]
    if not ids or len(ids) != len(logprobs) or not all(isinstance(i, int) for i in ids):
        raise MalformedAnswer(f"{len(ids)} token ids with {len(logprobs)} log-probs")
    if wrong := [x for x in logprobs if not -math.inf < x < 1e-3]:  # 0, and rounding
        raise MalformedAnswer(f"{wrong[0]} is not a log-probability: NaN weights, or raw logits from the server?")
    return list(ids), logprobs, _finish_reason(choice)


def parse_chat(answer: Any) -> tuple[str, Literal["stop", "length"]]:
    """(text, finish reason) of the first choice."""
    choice = _choice(answer)
    message = choice.get("message")
    text = message.get("content") if isinstance(message, dict) else None
    if text is None and isinstance(message, dict) and (message.get("reasoning_content") or message.get("reasoning")):
        text = ""  # all of it went into reasoning: an answer, if an empty one
    if not isinstance(text, str):
        raise MalformedAnswer(f"no message content in {str(choice)[:200]}")
    return valid_text(text), _finish_reason(choice)


def _finish_reason(choice: dict[str, Any]) -> Literal["stop", "length"]:
    reason = choice.get("finish_reason")
    if reason in _BROKEN_OFF:
        raise MalformedAnswer(f"the server cut the answer off (finish_reason={reason!r})")
    return "length" if re.search("length|max", str(reason), re.IGNORECASE) else "stop"  # MAX_TOKENS, model_length


def parse_first_position(answer: Any) -> dict[int, float]:
    """Token id -> log-probability at the first answer position."""
    with _wanted("top_logprobs", answer):
        top = _choice(answer)["logprobs"]["top_logprobs"][0]
        return {_token_id(token): float(value) for token, value in top.items()}


def parse_prompt_logprobs(answer: Any) -> dict[str, float]:
    """Token id (text) -> log-probability at the prompt's last position."""
    with _wanted("prompt_logprobs", answer):
        last = _choice(answer)["prompt_logprobs"][-1]
        return {token: float(value["logprob"]) for token, value in last.items()}


def _choice(answer: Any) -> dict[str, Any]:
    with _wanted("choices", answer):
        choice = answer["choices"][0]
        if not isinstance(choice, dict):
            raise TypeError(f"choice is {str(choice)[:200]}")
    return choice


def _token_id(token: str) -> int:
    if not token.startswith(_TOKEN_PREFIX):
        raise ValueError(f"{token!r} is not of the form token_id:N")
    return int(token.removeprefix(_TOKEN_PREFIX))


def _seed(sampling: Sampling) -> int:
    return random.getrandbits(62) if sampling.seed is None else sampling.seed % 2**63  # signed in the protocol
