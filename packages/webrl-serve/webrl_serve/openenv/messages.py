"""Defines the messages: the fields of OpenEnv's BrowserGym environment, and responses to clients.

Names, types and defaults are those of `envs/browsergym_env/models.py` in OpenEnv's repository, so that its client and
the examples built on it can read our responses. A `screenshot` is nested lists of integers as there, or a base64 PNG,
which is a hundred times smaller: see `Screenshots`.

Their first fields are those of `Action`, `Observation` and `State` of `openenv.core.env_server.types`. They are not
imported because the packages that own that module (`openenv`, formerly `openenv-core`) bring Gradio and an MCP server:
a hundred packages, and ten seconds of CPU at import, for classes that need pydantic alone. A test compares them.
"""

from __future__ import annotations

import asyncio
import base64
import io
import logging
from typing import Annotated, Any, Literal

import orjson
from pydantic import BaseModel, ConfigDict, Field, SkipValidation, ValidationError

from webrl.errors import BrowserError, DataError, WebRLError, problem_text
from webrl.runs.text import dump_json

logger = logging.getLogger(__name__)

Answer = dict[str, Any]
"""A message to the client."""
Screenshots = Literal["list", "png", "none"]
"""How screenshots are sent: lists `[height][width][3]` of 0 to 255, base64 PNG, or not at all."""
MIN_SIDE, MAX_SIDE = 16, 4096
"""Pixels of a page's width and height."""
_Name = Annotated[str, Field(max_length=255)]


class AtCapacity(BrowserError):
    """Raised when all places are taken."""

    def __init__(self, num_active: int, size: int) -> None:
        self.num_active, self.size = num_active, size
        super().__init__(
            f"Server at capacity: {num_active}/{size} sessions active; close some, or start the server with"
            " --sessions N (a TRL trainer opens per_device_train_batch_size x gradient_accumulation_steps of them)"
        )


class NoEpisode(DataError):
    """Raised for a step before a reset, or after the episode was ended."""


class BrowserGymAction(BaseModel):
    """One action of the agent."""

    model_config = ConfigDict(extra="forbid", validate_assignment=True)

    metadata: dict[str, Any] = Field(default_factory=dict, description="Additional metadata for the action")
    action_str: str = Field(description="the action, such as click('12')")


class ResetOptions(BaseModel):
    """Options of a reset; unknown ones are refused by name."""

    model_config = ConfigDict(extra="forbid", strict=True)

    seed: Annotated[int, Field(ge=0, lt=1 << 63)] | None = Field(None, description="the page's state; none: drawn")
    episode_id: _Name | None = Field(None, description="name of the episode")
    task_name: _Name | None = Field(
        None, description="task within `benchmark` (`click-test`), or with it (`miniwob.click-test`)"
    )
    split: _Name | None = Field(None, description="with `index`, a task as `/browsergym_env/tasks` lists them")
    index: int | None = Field(None, description="place in the split, from 0")
    benchmark: _Name | None = Field(None, description="suite of the task; none: that of the server's own task")
    instruction: Annotated[str, Field(max_length=20_000)] | None = Field(None, description="replaces the page's own")
    start_url: Annotated[str, Field(max_length=20_000)] | None = Field(
        None, description="first page of a task that is no MiniWoB page; its host must be one the server allows"
    )
    allowed_hosts: list[_Name] = Field(
        default=[], max_length=100, description="further hosts the pages may reach, of those the server allows"
    )
    screenshots: Screenshots | bool | None = Field(
        None, description="how every observation shows the page; true: png, false: none; null: the server's way"
    )
    viewport: (
        Annotated[list[Annotated[int, Field(ge=MIN_SIDE, le=MAX_SIDE)]], Field(min_length=2, max_length=2)] | None
    ) = Field(None, description="width and height of the page; none: the server's, or with `details` the task's own")
    observation: Literal["axtree", "html"] | None = Field(None, description="form of the text; none: server's")
    every_element: bool | None = Field(None, description="ids for elements that BrowserGym leaves out; none: server's")
    dialect: Literal["browsergym", "webrl"] | None = Field(None, description="action language; none: the server's")
    settle_cap_s: float | None = Field(None, description="longest wait for a quiet page, below the deadline")
    step_timeout_s: float | None = Field(None, description="deadline of a step, at most the server's")
    details: bool = Field(False, description="answer with DetailedObservation")


class BrowserGymObservation(BaseModel):
    """The page after a reset or an action; `done` and `reward` are sent next to it."""

    model_config = ConfigDict(extra="forbid", validate_assignment=True)

    done: bool = Field(default=False, description="Whether the episode has terminated")
    reward: bool | int | float | None = Field(default=None, description="Reward signal from the last action")
    metadata: dict[str, Any] = Field(default_factory=dict, description="Additional metadata for the observation")
    text: str = Field(default="", description="the page as text")
    url: str = Field(default="", description="address of the active tab")
    screenshot: SkipValidation[list[list[list[int]]] | str | None] = Field(
        default=None, description="[height][width][3], or a PNG as base64; see `screenshots` of a reset"
    )
    goal: str = Field(default="", description="the task's instruction")
    axtree_txt: str = Field(default="", description="accessibility tree as text")
    pruned_html: str = Field(default="", description="HTML without what has no use")
    error: str = Field(default="", description="what went wrong with the last action")
    last_action_error: bool = Field(default=False, description="whether anything did")


class DetailedObservation(BrowserGymObservation):
    """Observation for our own client (`details` of a reset): the page once, and the rest of a StepResult."""

    action: str = Field(default="", description="the action in canonical form; empty if it could not be read")
    page_done: bool = Field(default=False, description="the page has ended the episode")
    agent_done: bool = Field(default=False, description="the agent has ended the episode")
    message: str = Field(default="", description="the agent's final message")
    blocked: int = Field(default=0, description="requests blocked by the navigation guard during this step")


class BrowserGymState(BaseModel):
    """State of an episode."""

    model_config = ConfigDict(extra="allow", validate_assignment=True)

    episode_id: str | None = Field(default=None, description="Unique identifier for the current episode")
    step_count: int = Field(default=0, ge=0, description="Number of steps taken in the current episode")
    benchmark: str = Field(default="", description="suite, such as miniwob")
    task_name: str = Field(default="", description="task within it, such as click-test")
    task_id: str | None = Field(default=None, description="number of an evaluation task")
    goal: str = Field(default="", description="the task's instruction")
    current_url: str = Field(default="", description="address of the active tab")
    max_steps: int | None = Field(default=None, description="step limit; None: the client's business")
    cum_reward: float = Field(default=0.0, description="sum of the episode's rewards")


class ClientMessage(BaseModel):
    """A message of a client over a WebSocket."""

    model_config = ConfigDict(extra="forbid")

    type: str
    data: dict[str, Any] = {}


class StepRequest(BaseModel):
    """Body of a step over HTTP; only `action` matters here."""

    model_config = ConfigDict(extra="forbid")

    action: dict[str, Any]
    timeout_s: float | None = Field(None, gt=0)
    request_id: str | None = None
    episode_id: str | None = None


def observation_answer(observation: BrowserGymObservation) -> Answer:
    """Return the response to a reset or a step."""
    apart = {"reward", "done", "screenshot"} | ({"metadata"} if isinstance(observation, DetailedObservation) else set())
    fields = observation.model_dump(exclude=apart) | {"screenshot": observation.screenshot}
    data = {"observation": fields, "reward": observation.reward, "done": observation.done}
    return {"type": "observation", "data": data}


def error_answer(text: str, code: str, **more: int) -> Answer:
    """Return an error response."""
    return {"type": "error", "data": {"message": text, "code": code} | more}


def explain(error: Exception, request: str) -> Answer:
    """Return the response to an exception, which is logged if it is neither the client's fault nor the browser's."""
    if isinstance(error, ValidationError):
        problem = error.errors()[0]
        text = problem_text(problem)
        if problem["type"] == "missing":
            text = f"{problem['loc'][-1]} is missing in {problem['input']!r:.200}"
        return error_answer(f"{request}: {text}", "VALIDATION_ERROR")
    if isinstance(error, AtCapacity):
        return error_answer(str(error), "CAPACITY_REACHED", active_sessions=error.num_active, max_sessions=error.size)
    if not isinstance(error, WebRLError):
        logger.error("request failed", exc_info=error)
        return error_answer(f"{type(error).__name__}: {error}", "EXECUTION_ERROR")
    return error_answer(str(error), "EXECUTION_ERROR")


async def encode(png: bytes | None, form: Screenshots) -> str | orjson.Fragment | None:
    """Return a PNG as base64 text, or as the JSON of lists of pixels; None if there is none."""
    if png is None or form == "none":
        return None
    return base64.b64encode(png).decode() if form == "png" else await asyncio.to_thread(_pixel_lists, png)


def _pixel_lists(png: bytes) -> orjson.Fragment:
    """Return the JSON of an image's rows, 10 MB at 1280x720; most rows of a page repeat one, whose text is reused."""
    import numpy as np
    from PIL import Image

    pixels = np.asarray(Image.open(io.BytesIO(png)).convert("RGB"))  # [H, W, 3]
    texts: dict[bytes, bytes] = {}
    rows = []
    for row in pixels:
        key = row.tobytes()
        if key not in texts:
            texts[key] = orjson.dumps(row, option=orjson.OPT_SERIALIZE_NUMPY)
        rows.append(texts[key])
    return orjson.Fragment(b"[" + b",".join(rows) + b"]")


async def as_json(answer: Answer) -> bytes:
    """Return the JSON of an answer or of its data. Raises TypeError for what JSON does not know."""
    options = orjson.OPT_PASSTHROUGH_DATACLASS | orjson.OPT_SERIALIZE_NUMPY
    screenshot = answer.get("data", answer).get("observation", {}).get("screenshot")
    if isinstance(screenshot, orjson.Fragment):
        # Lists of pixels are tens of megabytes, which would keep every other session waiting.
        return await asyncio.to_thread(dump_json, answer, options)
    return dump_json(answer, option=options)


def tool_answer(request: Any) -> dict[str, Any]:
    """Return OpenEnv's answer to a JSON-RPC request where an environment has no tools."""
    number = request.get("id") if isinstance(request, dict) else None
    error = {"code": -32603, "message": "Environment does not support MCP", "data": None}
    return {"jsonrpc": "2.0", "id": number if isinstance(number, str | int) else None, "error": error}
