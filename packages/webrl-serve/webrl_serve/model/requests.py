"""Reads the bodies of requests strictly: what is unknown, or not supported here, is refused by name.

API: `read(ChatRequest, body) -> ChatRequest`, and so on; `RequestError` holds the reason of a refusal in OpenAI's form.
"""

from __future__ import annotations

import base64
import contextlib
import io
import random
from typing import Annotated, Any, Literal, NamedTuple, Self, TypeVar

from pydantic import BaseModel, ConfigDict, Field, ValidationError, field_validator, model_validator

from webrl.errors import problem_text
from webrl.llm.interface import Message, Sampling
from webrl.types import Step

_MIN_TEMPERATURE = 0.01
_MAX_STOPS = 4
_NOT_DONE = "this server does not do that; leave it out"
MAX_PICTURE_BYTES = 4 << 20
"""Bound of the file in a `data:` URL."""
MAX_PICTURE_PIXELS = 1 << 24
"""Bound of width times height: 50 MB once it is unpacked, for a file of any size."""
_COMPLETION_TOKENS = 16
"""OpenAI's default length of a plain completion."""


class RequestError(Exception):
    """Raised for a request that is refused."""

    def __init__(self, message: str, *, status: int = 400, param: str | None = None, code: str | None = None) -> None:
        super().__init__(message)
        self.status = status
        self.param = param
        self.code = code


class RequestBody(BaseModel):
    """What all bodies have."""

    model_config = ConfigDict(extra="forbid", strict=True)

    model: str
    temperature: float | None = Field(None, ge=0, le=2, allow_inf_nan=False)
    seed: int | None = Field(None, ge=-(2**63), lt=2**63)

    @field_validator("temperature")
    @classmethod
    def _check_temperature(cls, value: float | None) -> float | None:
        if value and value < _MIN_TEMPERATURE:
            raise ValueError(f"0 is greedy, and {_MIN_TEMPERATURE} the lowest above it")
        return value

    @property
    def draw_seed(self) -> int:
        """The seed, or a random one."""
        return random.getrandbits(62) if self.seed is None else self.seed


class _Unsupported(RequestBody):
    """What OpenAI's API has and this server does not: accepted with its neutral values only."""

    n: Literal[1] | None = None
    stream: Literal[False] | None = None
    stream_options: None = None
    frequency_penalty: Annotated[float, Field(ge=0, le=0)] | None = None
    presence_penalty: Annotated[float, Field(ge=0, le=0)] | None = None
    logit_bias: Annotated[dict[str, Any], Field(max_length=0)] | None = None
    logprobs: Literal[False] | None = None
    top_logprobs: Literal[0] | None = None
    tools: Annotated[list[Any], Field(max_length=0)] | None = None
    tool_choice: Literal["none", "auto"] | None = None
    response_format: dict[Literal["type"], Literal["text"]] | None = None
    store: Literal[False] | None = None
    echo: Literal[False] | None = None
    best_of: Literal[1] | None = None
    suffix: None = None


class _Generation(_Unsupported):
    """Fields of chats and completions."""

    top_p: float | None = Field(None, gt=0, le=1, allow_inf_nan=False)
    top_k: int | None = Field(None, ge=0)
    max_tokens: int | None = Field(None, ge=1)
    stop: str | list[str] | None = None
    user: str | None = None  # identifies the user, which changes no answer

    @property
    def stops(self) -> list[str]:
        """Texts that end an answer."""
        return [self.stop] if isinstance(self.stop, str) else self.stop or []

    @field_validator("stop")
    @classmethod
    def _check_stops(cls, value: str | list[str] | None) -> str | list[str] | None:
        stops = [value] if isinstance(value, str) else value or []
        if len(stops) > _MAX_STOPS or not all(stops):
            raise ValueError(f"expected at most {_MAX_STOPS} texts, none of them empty")
        return value

    def sampling(self, max_new_tokens: int) -> Sampling:
        """Return how to sample the answer, with OpenAI's defaults."""
        return Sampling(
            temperature=1.0 if self.temperature is None else self.temperature,
            top_p=1.0 if self.top_p is None else self.top_p,
            top_k=self.top_k or 0,
            max_new_tokens=max_new_tokens,
            seed=self.draw_seed,
        )


class _Content(NamedTuple):
    text: str
    picture: bytes | None = None


class _ChatMessage(BaseModel):
    model_config = ConfigDict(extra="forbid", strict=True)

    role: Literal["system", "user", "assistant"]
    content: _Content

    @field_validator("content", mode="before")
    @classmethod
    def _join(cls, value: Any) -> _Content:
        """The text of a list of text parts, the first of which may be a picture."""
        if isinstance(value, str):
            return _Content(value)
        parts, picture = value if isinstance(value, list) else [value], None
        match parts[:1]:
            case [{"type": "image_url", "image_url": {"url": str(url), **more}, **rest}] if not (more or rest):
                picture, parts = read_picture(url), parts[1:]
        texts = []
        for part in parts:
            match part:
                case {"type": "text", "text": str(text), **rest} if not rest:
                    texts.append(text)
        if len(texts) < len(parts) or not (texts or picture):
            raise ValueError(
                "only text is accepted here, in parts of the form {'type': 'text', 'text': …}, and before it one "
                "picture, {'type': 'image_url', 'image_url': {'url': 'data:image/png;base64,…'}}"
            )
        return _Content("\n".join(texts), picture)


def read_picture(text: str) -> bytes:
    """Returns the file in a `data:` URL; nothing is fetched.

    Raises:
        ValueError: not such a URL, not a PNG or JPEG, or larger than MAX_PICTURE_BYTES or MAX_PICTURE_PIXELS.
    """
    from PIL.JpegImagePlugin import JpegImageFile
    from PIL.PngImagePlugin import PngImageFile

    head, _, data = text.partition(",")
    if head not in ("data:image/png;base64", "data:image/jpeg;base64"):
        raise ValueError(f"a picture is 'data:image/png;base64,…' (or jpeg), found {text[:60]!r}")
    try:
        picture = base64.b64decode(data, validate=True)
    except ValueError:
        raise ValueError(f"the picture is not base64: {text[:60]!r}") from None
    if len(picture) > MAX_PICTURE_BYTES:
        raise ValueError(f"the picture's file has {len(picture)} bytes; at most {MAX_PICTURE_BYTES} are accepted")
    # The size is in the file's header: nothing is unpacked.
    for kind in (PngImageFile, JpegImageFile):
        with contextlib.suppress(SyntaxError, OSError), kind(io.BytesIO(picture)) as image:
            width, height = image.size
            break
    else:
        raise ValueError("the screenshot is not a readable image: neither PNG nor JPEG")
    if width * height > MAX_PICTURE_PIXELS:
        raise ValueError(f"the picture has {width}x{height} pixels; at most {MAX_PICTURE_PIXELS} are accepted")
    return picture


class ChatRequest(_Generation):
    """Body of `/v1/chat/completions`."""

    messages: list[_ChatMessage] = Field(min_length=1)
    max_completion_tokens: int | None = Field(None, ge=1)

    @model_validator(mode="after")
    def _check_combination(self) -> Self:
        if self.max_tokens and self.max_completion_tokens and self.max_tokens != self.max_completion_tokens:
            raise ValueError(
                f"max_tokens={self.max_tokens} and max_completion_tokens={self.max_completion_tokens} differ; send one"
            )
        if sum(m.content.picture is not None for m in self.messages) != (self.picture is not None):
            raise ValueError("at most one picture is accepted, at the start of the last user message")
        return self

    @property
    def limit(self) -> int | None:
        """Longest answer; None: what the context leaves."""
        return self.max_completion_tokens or self.max_tokens

    @property
    def chat(self) -> list[Message]:
        """The messages."""
        return [Message(m.role, m.content.text) for m in self.messages]

    @property
    def picture(self) -> bytes | None:
        """Image at the start of the last user message; None: there is none."""
        return next((m.content.picture for m in reversed(self.messages) if m.role == "user"), None)


class CompletionRequest(_Generation):
    """Body of `/v1/completions`."""

    prompt: str | list[int]
    logprobs: None = None

    @field_validator("prompt", mode="before")
    @classmethod
    def _check_prompt(cls, value: Any) -> Any:
        if isinstance(value, str) or (isinstance(value, list) and all(type(i) is int for i in value)):
            return value
        raise ValueError("expected text or a list of token ids; send several prompts as several requests")

    @property
    def limit(self) -> int:
        """Longest answer."""
        return self.max_tokens or _COMPLETION_TOKENS


class _PastStep(BaseModel):
    model_config = ConfigDict(extra="forbid", strict=True)

    response: str
    action: str = ""
    error: str = ""
    note: str = ""


class ActionRequest(RequestBody):
    """Body of `/v1/actions`: a page, for the model's own prompt."""

    goal: str = Field(min_length=1)
    observation: str
    screenshot: str | None = None
    history: list[_PastStep] = []

    @property
    def steps(self) -> tuple[Step, ...]:
        """The episode so far."""
        return tuple(
            Step(index=i, observation="", response=past.response, action=past.action, error=past.error, note=past.note)
            for i, past in enumerate(self.history)
        )


R = TypeVar("R", bound=RequestBody)


def read(kind: type[R], body: bytes) -> R:
    """Parse the body of a request. Raises RequestError, which names the first parameter that is not understood."""
    try:
        return kind.model_validate_json(body)
    except ValidationError as error:
        problem = error.errors()[0]
    param = ".".join(map(str, problem["loc"][:3])) or None
    name = str(problem["loc"][0]) if problem["loc"] else ""
    if problem["type"] == "extra_forbidden":
        raise RequestError(f"unknown parameter {param!r:.100}; {_NOT_DONE}", param=param, code="unknown_parameter")
    if name in _Unsupported.__annotations__:
        raise RequestError(f"{param}={problem['input']!r:.100}: {_NOT_DONE}", param=name, code="unsupported_parameter")
    if problem["type"] == "missing":
        raise RequestError(f"{param} is missing", param=param)
    raise RequestError(problem_text(problem), param=param)
