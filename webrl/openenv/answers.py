"""Answers to clients, whichever way they ask: OpenEnv's messages, as data and as JSON.

API: `observation_answer(observation)`, `error_answer(text, code)`, `explain(error, asked)`; `await as_json(answer)`.
"""

from __future__ import annotations

import asyncio
import json
import logging
from typing import Any

import orjson
from pydantic import ValidationError

from webrl.errors import WebRLError, problem_text
from webrl.openenv.hub import AtCapacity
from webrl.openenv.models import BrowserGymObservation, DetailedObservation

logger = logging.getLogger(__name__)

Answer = dict[str, Any]
"""A message to the client."""


def observation_answer(observation: BrowserGymObservation) -> Answer:
    """What a reset or a step is answered with."""
    apart = {"reward", "done", "screenshot"} | ({"metadata"} if isinstance(observation, DetailedObservation) else set())
    fields = observation.model_dump(exclude=apart) | {"screenshot": observation.screenshot}
    data = {"observation": fields, "reward": observation.reward, "done": observation.done}
    return {"type": "observation", "data": data}


def error_answer(text: str, code: str, **more: int) -> Answer:
    """What went wrong."""
    return {"type": "error", "data": {"message": text, "code": code} | more}


def explain(error: Exception, asked: str) -> Answer:
    """The answer for an exception, which is logged if it is not one of the client's or the browser's."""
    if isinstance(error, ValidationError):
        return error_answer(f"{asked}: {problem_text(error.errors()[0])}", "VALIDATION_ERROR")
    if isinstance(error, AtCapacity):
        return error_answer(str(error), "CAPACITY_REACHED", active_sessions=error.num_active, max_sessions=error.size)
    if not isinstance(error, WebRLError):
        logger.error("request failed", exc_info=error)
        return error_answer(f"{type(error).__name__}: {error}", "EXECUTION_ERROR")
    return error_answer(str(error), "EXECUTION_ERROR")


async def as_json(answer: Answer) -> bytes:
    """JSON of an answer or of its data; arrays of pixels, which take a while, in a thread."""
    screenshot = answer.get("data", answer).get("observation", {}).get("screenshot")
    small = screenshot is None or isinstance(screenshot, str)
    return _dump(answer) if small else await asyncio.to_thread(_dump, answer)


def _dump(answer: Answer) -> bytes:
    try:
        return orjson.dumps(answer, option=orjson.OPT_SERIALIZE_NUMPY)
    except TypeError:  # lone surrogates in a page's text
        return json.dumps(answer, default=lambda array: array.tolist()).encode()
