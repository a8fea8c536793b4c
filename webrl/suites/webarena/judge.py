"""The language model that compares answers with references (`fuzzy_match` in 40 of the 165 tasks).

API: `AnswerJudge(config, folder).ask(messages) -> str`. BrowserGym's evaluators have the OpenAI model of 2023 built
in; here model and endpoint come from the config (a local vLLM serves as well), every call is kept in
`judge.jsonl`, and a question asked before is answered from there. Raises JudgeError where there is no usable
answer: the episode is then unjudged, never failed.
"""

from __future__ import annotations

import hashlib
import json
import logging
import os
import threading
import time
from pathlib import Path
from typing import Any

from webrl.config import ServerConfig
from webrl.config.redaction import SecretUrl, redact, remember, with_path
from webrl.errors import JudgeError
from webrl.llm.thinking import without_thinking
from webrl.runs.store import cut_torn_line, read_lines

logger = logging.getLogger(__name__)

_OPENAI = "https://api.openai.com/v1"
_MAX_ANSWER_TOKENS = 768
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
        self._lock = threading.Lock()
        self._model = config.model_name
        self.calls = 0
        """Questions put to the endpoint."""

    @property
    def url(self) -> SecretUrl:
        """Base URL of the endpoint."""
        return self._config.urls[0] if self._config.urls else SecretUrl(os.environ.get("OPENAI_BASE_URL") or _OPENAI)

    def ask(self, messages: list[dict[str, str]]) -> str:
        """The model's answer to a chat, at temperature 0.

        Raises:
            JudgeError: endpoint down after all retries, refusal, or an answer that decides nothing.
        """
        with self._lock:
            model = self._model = self._model or self._first_model()
            key = hashlib.sha256(json.dumps([model, messages]).encode()).hexdigest()
            answers = self._load()
            if key in answers:
                return answers[key]
            start = time.monotonic()
            answer = self._call(model, messages)
            self.calls += 1
            if not _decides(messages, answer):
                raise JudgeError(f"judge {model} at {self.url} gave no verdict: {answer[:_SHORT]!r}")
            answers[key] = answer
            self._log({"key": key, "model": model, "url": str(self.url), "messages": messages, "answer": answer}, start)
            return answer

    def _call(self, model: str, messages: list[dict[str, str]]) -> str:
        body = {"model": model, "messages": messages, "temperature": 0, "max_tokens": _MAX_ANSWER_TOKENS, "top_p": 1}
        data = self._request("POST", "/chat/completions", body)
        try:
            content = data["choices"][0]["message"]["content"]
        except (KeyError, IndexError, TypeError):
            raise JudgeError(f"judge at {self.url} answered without a message: {str(data)[:_SHORT]}") from None
        if not isinstance(content, str):
            raise JudgeError(f"judge at {self.url} answered {content!r}")
        return without_thinking(content)

    def _first_model(self) -> str:
        data = self._request("GET", "/models", None)
        try:
            return str(data["data"][0]["id"])
        except (KeyError, IndexError, TypeError):
            raise JudgeError(f"judge at {self.url} lists no model: {str(data)[:_SHORT]}") from None

    def _request(self, method: str, path: str, body: dict[str, Any] | None) -> Any:
        """One request with retries after timeouts, dropped connections, 429 and server errors."""
        import httpx

        key = os.environ.get(self._config.api_key_env)
        remember(key or "")
        headers = {"Authorization": f"Bearer {key}"} if key else {}
        problem = ""
        for attempt in range(self._config.max_retries + 1):
            if attempt:
                time.sleep(min(2 ** (attempt - 1), 30))
            try:
                answer = httpx.request(
                    method,
                    with_path(self.url.reveal(), path),
                    json=body,
                    headers=headers,
                    timeout=self._config.timeout_s,
                )
            except httpx.HTTPError as error:
                problem = f"{type(error).__name__}: {error}"
                continue
            problem = f"{answer.status_code}: {answer.text[:_SHORT]}"
            if answer.status_code == 429 or answer.status_code >= 500:
                continue
            if answer.status_code != 200:
                break
            try:
                return answer.json()
            except ValueError:
                problem = f"not JSON: {answer.text[:_SHORT]!r}"
        raise JudgeError(f"judge at {self.url} does not answer ({redact(problem)})")

    def _load(self) -> dict[str, str]:
        if self._answers is None:
            self._answers = {}
            if self._path.exists():
                for _, line in read_lines(self._path, on_error=logger.warning):
                    self._answers[line["key"]] = line["answer"]
        return self._answers

    def _log(self, call: dict[str, Any], start: float) -> None:
        self._path.parent.mkdir(parents=True, exist_ok=True)
        if not self.calls:
            cut_torn_line(self._path)
        call |= {"seconds": round(time.monotonic() - start, 3), "time": time.strftime("%Y-%m-%dT%H:%M:%S")}
        with self._path.open("a", encoding="utf-8") as file:  # one write: workers share the file
            file.write(json.dumps(call, ensure_ascii=False) + "\n")


def _decides(messages: list[dict[str, str]], answer: str) -> bool:
    """Whether the answer holds one of the words that BrowserGym's evaluators look for."""
    asked = messages[-1]["content"]
    words = ("same", "different") if "respond with 'same'" in asked else ("correct",)
    return any(word in answer.lower() for word in words)
