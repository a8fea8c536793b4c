"""Answers to clients, whichever way they ask: OpenEnv's messages, as data and as JSON.

API: `observation_answer(observation)`, `error_answer(text, code)`, `explain(error, asked)`; `as_json(answer)`.
"""

from __future__ import annotations

import logging
import secrets
from collections.abc import Iterator
from typing import Any

import orjson
from pydantic import ValidationError

from webrl.errors import WebRLError, problem_text
from webrl.openenv.hub import AtCapacity
from webrl.openenv.models import BrowserGymObservation, DetailedObservation
from webrl.openenv.pictures import PixelRows
from webrl.runs.text import dump_json

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


def as_json(answer: Answer) -> bytes | Iterator[bytes]:
    """JSON of an answer or of its data; with lists of pixels in pieces, which are made as they are sent."""
    screenshot = answer.get("data", answer).get("observation", {}).get("screenshot")
    return _with_rows(answer, screenshot) if isinstance(screenshot, PixelRows) else _dump(answer)


def _with_rows(answer: Answer, rows: PixelRows) -> Iterator[bytes]:
    place = secrets.token_hex()  # which no page can contain
    before, _, after = _dump(answer, place).partition(f'"{place}"'.encode())
    yield before
    yield from rows.chunks()
    yield after


def _dump(answer: Answer, rows: str = "") -> bytes:
    """JSON with a text in the place of pixels. Raises TypeError for what JSON does not know."""

    def in_place(found: object) -> str:
        if isinstance(found, PixelRows):
            return rows
        raise TypeError(f"an answer holds {type(found).__name__}, which is no JSON")

    return dump_json(answer, in_place, orjson.OPT_PASSTHROUGH_DATACLASS | orjson.OPT_SERIALIZE_NUMPY)
