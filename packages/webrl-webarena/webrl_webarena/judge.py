"""The language model that compares answers with references (`fuzzy_match` in 40 of the 165 tasks).

API: `AnswerJudge(config, folder).ask(messages) -> str`. BrowserGym's evaluators have the OpenAI model of 2023 built
in; here model and endpoint come from the config (a local vLLM serves as well), every call is kept in
`judge.jsonl`, and a question asked before is answered from there. Raises JudgeError if there is no usable
answer: the episode is then unjudged, never failed.
"""

from __future__ import annotations

import hashlib
import json
import logging
import os
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

from webrl.config import ServerConfig
from webrl.config.redaction import SecretUrl, redact, remember, with_path
from webrl.errors import JudgeError
from webrl.llm.tokens import without_thinking
from webrl.runs.disk import full_disk_named
from webrl.runs.store import cut_torn_line, read_lines

logger = logging.getLogger(__name__)

_OPENAI = "https://api.openai.com/v1"
_MAX_TOKENS = 768
_SHORT = 300


class AnswerJudge:
    """One endpoint with its cache; used from the evaluator's thread.

    Args:
        config: `urls[0]` (none: `OPENAI_BASE_URL`, else OpenAI), `model_name` (none: the server's first), timeouts.
        folder: where `judge.jsonl` is kept: one line a call with question, answer, model, endpoint and seconds.
    """

    def __init__(self, config: ServerConfig, folder: Path) -> None:
        self._config = config
        self._path = folder / "judge.jsonl"
        self._answers: dict[str, str] | None = None
        self._model = config.model_name
        self._url = config.urls[0] if config.urls else SecretUrl(os.environ.get("OPENAI_BASE_URL") or _OPENAI)

    def ask(self, messages: list[dict[str, str]]) -> str:
        """The model's answer to a chat, at temperature 0.

        Raises:
            JudgeError: endpoint down after all retries, refusal, or an answer that decides nothing.
        """
        if not self._model:
            self._model = self._request("GET", "/models", None, lambda data: str(data["data"][0]["id"]))
        if self._answers is None:
            lines = read_lines(self._path, on_error=logger.warning) if self._path.exists() else ()
            self._answers = {line["key"]: line["answer"] for _, line in lines}
            cut_torn_line(self._path)
        key = hashlib.sha256(json.dumps([self._model, messages]).encode()).hexdigest()
        if key in self._answers:
            return self._answers[key]
        start = time.monotonic()
        body = {"model": self._model, "messages": messages, "max_tokens": _MAX_TOKENS, "temperature": 0, "top_p": 1}
        answer = without_thinking(
            self._request("POST", "/chat/completions", body, lambda data: str(data["choices"][0]["message"]["content"]))
        )
        # BrowserGym's evaluators look for one of these words.
        words = ("same", "different") if "respond with 'same'" in messages[-1]["content"] else ("correct",)
        if not any(word in answer.lower() for word in words):
            raise JudgeError(f"judge {self._model} at {self._url} gave no verdict: {answer[:_SHORT]!r}")
        self._path.parent.mkdir(parents=True, exist_ok=True)
        call = {
            "key": key, "model": self._model, "url": str(self._url), "messages": messages, "answer": answer,
            "seconds": round(time.monotonic() - start, 3), "time": time.strftime("%Y-%m-%dT%H:%M:%S"),
        }  # fmt: skip
        with full_disk_named(self._path), self._path.open("a", encoding="utf-8") as file:
            # one write: workers share the file
            file.write(json.dumps(call, ensure_ascii=False) + "\n")
        self._answers[key] = answer
        return answer

    def _request(self, method: str, path: str, body: dict[str, Any] | None, read: Callable[[Any], str]) -> str:
        """What is read of the response to a request, with retries after timeouts, dropped connections, 429 and server
        errors.
        """
        import httpx

        key = os.environ.get(self._config.api_key_env)
        remember(key or "")
        headers, url = {"Authorization": f"Bearer {key}"} if key else {}, with_path(self._url.reveal(), path)
        problem = ""
        for attempt in range(self._config.max_retries + 1):
            if attempt:
                time.sleep(min(2 ** (attempt - 1), 30))
            try:
                answer = httpx.request(method, url, json=body, headers=headers, timeout=self._config.timeout_s)
                problem = f"{answer.status_code}: {answer.text[:_SHORT]}"
                if answer.status_code == 200:
                    return read(answer.json())
                if answer.status_code != 429 and answer.status_code < 500:
                    break
            except httpx.HTTPError as error:
                problem = f"{type(error).__name__}: {error}"
            except (ValueError, LookupError, TypeError):
                problem = f"not what {path} returns: {answer.text[:_SHORT]!r}"
        raise JudgeError(f"judge at {self._url} does not answer ({redact(problem)})")
