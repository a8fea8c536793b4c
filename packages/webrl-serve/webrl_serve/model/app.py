"""Serves a model: OpenAI's models, chats and completions, and actions from the model's own prompt.

API: `await serve(checkpoint, context, options, on_ready)` runs until SIGINT or SIGTERM; `make_app(service)` is its
application without access control.
"""

from __future__ import annotations

import asyncio
import dataclasses
import logging
import time
import uuid
from collections.abc import Awaitable, Callable, Coroutine, Sequence
from dataclasses import dataclass, field
from typing import Any, TypeVar

from starlette.applications import Starlette
from starlette.requests import Request
from starlette.responses import JSONResponse, Response
from starlette.routing import Route

from webrl.config import RunConfig
from webrl.errors import ModelError, PolicyError, PromptTooLong, StageError
from webrl.llm import open_model
from webrl.llm.interface import Completion, LanguageModel, Message, Turn
from webrl.llm.loading import prompt_of
from webrl.llm.pictures import shrink
from webrl.llm.policy import ModelPolicy, with_tokenizer
from webrl.llm.tokens import encode_chat, render_chat
from webrl.net import (
    MODEL_TOKEN,
    Access,
    BodyError,
    ClientGone,
    address_of,
    check_address,
    listen,
    read_body,
    run_app,
    stop_on_signals,
    unless_gone,
)
from webrl.rollouts.actions import ActionError
from webrl.rollouts.answers import Dialect, read_answer
from webrl_serve.model.checkpoint import Checkpoint
from webrl_serve.model.requests import (
    ActionRequest,
    ChatRequest,
    CompletionRequest,
    RequestBody,
    RequestError,
    read,
    read_picture,
)

logger = logging.getLogger(__name__)

MAX_BODY_BYTES = 8 << 20
"""Bound of a request's body; pages are cut to the prompt here, not by the client."""
_MAX_CONNECTIONS = 512
"""Further ones are closed."""
_SEES = "the model that is served sees, and is asked nothing without a picture:"
_TOO_LONG = "context_length_exceeded"
B = TypeVar("B", bound=RequestBody)


@dataclass(frozen=True)
class ServerOptions:
    """Where `webrl serve-model` listens, and to whom."""

    host: str = "127.0.0.1"
    """Address."""
    port: int = 8000
    """Port; 0 takes a free one."""
    token: str | None = None
    """Token that clients must send; None admits everybody, which is possible on loopback only."""


@dataclass(frozen=True)
class Service:
    """A model that is served."""

    model: LanguageModel
    """The model; with `rollout.image_size` a vision-language model."""
    alias: str
    """Its name for clients."""
    config: RunConfig
    """Its prompt, action language and sampling."""
    context: int | None
    """Tokens that prompt and answer may have together; None: no limit is known."""
    created: int = field(default_factory=lambda: int(time.time()))
    """Time of the server's start, seconds since the epoch."""


async def serve(
    checkpoint: Checkpoint, context: int | None, options: ServerOptions, on_ready: Callable[[str], None]
) -> None:
    """Serve a checkpoint.

    Args:
        context: result of `check_context`.
        on_ready: called with the address, without `/v1`, once the model is loaded.

    Raises:
        UsageError: no token although others can connect, or an address that cannot be used.
        ModelError: unusable weights, or a vLLM server that does not start.
    """
    check_address(options.host, options.port, options.token, MODEL_TOKEN)
    config = checkpoint.config
    sees = config.rollout.image_size is not None
    with listen(options.host, options.port) as listener:  # loading may take minutes
        async with open_model(checkpoint.name, config.rollout.engine, config.models, sees=sees) as model:
            app = make_app(Service(model, checkpoint.alias, config, context))
            on_ready(address_of(listener))
            await run_app(Access(app, options.token, refuse), listener, _MAX_CONNECTIONS, stop_on_signals())


def refuse(status: int) -> Response:
    """Returns the response to a request without the token (401), or of a web page (403)."""
    if status == 401:
        text = "the token of this server is needed, as API key"
        return error_response(RequestError(text, status=401, code="invalid_api_key"))
    return error_response(RequestError("web pages may not ask", status=status))


def make_app(service: Service) -> Starlette:
    """Returns the application."""
    endpoints = _Endpoints(service)
    routes = [
        Route("/health", lambda _: JSONResponse({"status": "ok"})),
        Route("/v1/models", _with_errors(endpoints.models)),
        Route("/v1/models/{name:path}", _with_errors(endpoints.models)),
        Route("/v1/chat/completions", _with_errors(endpoints.chat), methods=["POST"]),
        Route("/v1/completions", _with_errors(endpoints.complete), methods=["POST"]),
        Route("/v1/actions", _with_errors(endpoints.act), methods=["POST"]),
    ]
    paths = ", ".join(route.path for route in routes)
    handlers: dict[Any, Any] = {
        404: lambda request, _: error_response(RequestError(f"no {request.url.path!r:.100} here; {paths}", status=404)),
        405: lambda request, _: error_response(RequestError(f"{request.method} is not for this path", status=405)),
    }
    return Starlette(routes=routes, exception_handlers=handlers)


def error_response(error: RequestError) -> JSONResponse:
    """Returns an error in OpenAI's form."""
    kind = "invalid_request_error" if error.status < 500 else "server_error"
    fields = {"message": str(error), "type": kind, "param": error.param, "code": error.code}
    return JSONResponse({"error": fields}, error.status)


def _with_errors(
    endpoint: Callable[[Request], Coroutine[Any, Any, dict[str, Any]]],
) -> Callable[[Request], Awaitable[Response]]:
    """Return the endpoint with its result, or its exception, as a response."""

    async def answer(request: Request) -> Response:
        try:
            return JSONResponse(await endpoint(request))
        except RequestError as error:
            return error_response(error)
        except (ModelError, PolicyError) as error:
            logger.error("%s", error)
            return error_response(RequestError(str(error), status=500))
        except BodyError as error:
            return error_response(RequestError(str(error), status=error.status))
        except ClientGone:
            return Response(status_code=499)  # nobody reads it

    return answer


def describe_answer(text: str, dialect: Dialect) -> dict[str, Any]:
    """Returns an answer's `action` and `note` as in the model's history, its `calls` of BrowserGym, and its `error`."""
    try:
        action = read_answer(text, dialect)
    except ActionError as error:
        return {"action": "", "note": "", "calls": [], "error": str(error)}
    calls = [dataclasses.replace(part, written="", rest=()).canonical for part in (action, *action.rest)]
    return {"action": action.canonical, "note": action.note, "calls": calls, "error": ""}


class _Endpoints:
    def __init__(self, service: Service) -> None:
        self._service = service
        self._model = service.model

    async def models(self, request: Request) -> dict[str, Any]:
        """Describe the model, in a list or by its name; `webrl` holds what clients of `/v1/actions` need."""
        service, config = self._service, self._service.config
        own = {
            "observation": config.rollout.observation,
            "image_size": config.rollout.image_size,
            "dialect": config.rollout.dialect,
            "prompt_format": config.models.prompt_format,
            "prompt": prompt_of(self._model.tokenizer, config.models.prompt),
            "max_prompt_tokens": config.models.max_prompt_tokens,
            "temperature": config.evaluate.temperature[0],
            "max_steps": config.rollout.max_steps,
            "max_repeats": config.rollout.max_repeats,
            "max_parse_failures": config.rollout.max_parse_failures,
            "fingerprint": self._model.fingerprint,
        }
        card = {"id": service.alias, "object": "model", "created": service.created, "owned_by": "webrl"}
        card |= {"max_model_len": service.context, "webrl": own}
        if "name" not in request.path_params:
            return {"object": "list", "data": [card]}
        self._check_name(request.path_params["name"])
        return card

    async def chat(self, request: Request) -> dict[str, Any]:
        """Answer messages as they are, through the model's chat template."""
        body = await self._read(ChatRequest, request)
        png = await self._shrink(body.picture, "messages")
        ids = await _chat_ids(self._model, body.chat, png, self._service.config.models.enable_thinking)
        done = await self._generate(request, ids, body, body.limit, png)
        text, reason = _cut(done, body.stops)
        choice = {"index": 0, "message": {"role": "assistant", "content": text}, "logprobs": None}
        return self._reply("chat.completion", "chatcmpl", done) | {"choices": [choice | {"finish_reason": reason}]}

    async def complete(self, request: Request) -> dict[str, Any]:
        """Continue a text, in which control tokens are read as such, or token ids."""
        body = await self._read(CompletionRequest, request)
        if self._service.config.rollout.image_size is not None:
            raise RequestError(f"{_SEES} a plain completion has no place for one", param="prompt")
        prompt, tokenizer = body.prompt, self._model.tokenizer
        if isinstance(prompt, list):
            ids = prompt
        else:
            ids = await with_tokenizer(tokenizer, lambda own: list(own(prompt)["input_ids"]))
        if not ids:
            raise RequestError("the prompt is empty", param="prompt")
        if not 0 <= min(ids) <= max(ids) < len(tokenizer):
            raise RequestError(f"a token id is outside the vocabulary, 0 … {len(tokenizer) - 1}", param="prompt")
        done = await self._generate(request, ids, body, body.limit)
        text, reason = _cut(done, body.stops)
        choice = {"index": 0, "text": text, "logprobs": None, "finish_reason": reason}
        return self._reply("text_completion", "cmpl", done) | {"choices": [choice]}

    async def act(self, request: Request) -> dict[str, Any]:
        """Choose the next action on a page: prompt, cutting and action language are those of the model's training."""
        body = await self._read(ActionRequest, request)
        config = self._service.config
        temperature = config.evaluate.temperature[0] if body.temperature is None else body.temperature
        try:
            picture = None if body.screenshot is None else read_picture(body.screenshot)
        except ValueError as error:
            raise RequestError(str(error), param="screenshot") from error
        png = await self._shrink(picture, "screenshot")
        policy = ModelPolicy(self._model, config, temperature=temperature)
        turn = Turn(body.goal, body.steps, body.observation, body.draw_seed, png)
        try:
            output = await unless_gone(request.receive, policy.act(turn))
        except PromptTooLong as error:
            raise RequestError(str(error), param="goal", code=_TOO_LONG) from error
        except StageError as error:  # an image that leaves no room
            raise RequestError(str(error), param="screenshot", code=_TOO_LONG) from error
        usage = _usage(len(output.prompt_ids), len(output.action_ids))
        reply = {"object": "webrl.action", "model": self._service.alias, "usage": usage, "text": output.text}
        return reply | describe_answer(output.text, config.rollout.dialect)

    async def _read(self, kind: type[B], request: Request) -> B:
        """Return the body of a request for this model. Raises RequestError."""
        body = read(kind, await read_body(request, MAX_BODY_BYTES))
        self._check_name(body.model)
        return body

    def _check_name(self, name: str) -> None:
        if name != self._service.alias:
            text = f"model {name!r:.100} is not served; {self._service.alias!r} is"
            raise RequestError(text, status=404, param="model", code="model_not_found")

    async def _shrink(self, picture: bytes | None, param: str) -> bytes | None:
        """Return the image in the size that the model sees; None for a text model. Raises RequestError."""
        size = self._service.config.rollout.image_size
        if picture is None and size is not None:
            raise RequestError(f"{_SEES} there is none in {param}", param=param)
        if picture is None:
            return None
        if size is None:
            raise RequestError("the model that is served reads text alone: leave the picture out", param=param)
        try:
            return await asyncio.to_thread(shrink, picture, size)
        except ValueError as error:
            raise RequestError(str(error), param=param) from error

    async def _generate(
        self,
        request: Request,
        ids: list[int],
        body: ChatRequest | CompletionRequest,
        limit: int | None,
        png: bytes | None = None,
    ) -> Completion:
        context = self._service.context
        room = context - len(ids) if context else self._service.config.rollout.max_new_tokens
        if context and (limit or 1) > room:
            more = f" and an answer of up to {limit}" if limit else ""
            raise RequestError(
                f"the context has {context} tokens at most; the prompt has {len(ids)}{more}", code=_TOO_LONG
            )
        return await unless_gone(request.receive, self._model.generate(ids, body.sampling(limit or room), png))

    def _reply(self, kind: str, prefix: str, done: Completion) -> dict[str, Any]:
        return {
            "id": f"{prefix}-{uuid.uuid4().hex}",
            "object": kind,
            "created": int(time.time()),
            "model": self._service.alias,
            "usage": _usage(len(done.prompt_ids), len(done.ids)),
        }


async def _chat_ids(model: LanguageModel, chat: list[Message], png: bytes | None, thinking: bool) -> list[int]:
    """Encode a chat through the model's own template.

    Args:
        png: image at the start of the last user message, as the model sees it; None for a text model.
        thinking: whether the answer may begin with its reasoning.

    Raises:
        RequestError: no template, one that refuses these messages, or one that leaves a message out.
    """
    eyes = model.eyes

    def encode(tokenizer: Any) -> list[int]:
        ids: list[int]
        if eyes is not None and png is not None:
            ids = eyes.encode(chat, eyes.look(png))
        else:
            ids = encode_chat(tokenizer, chat, thinking=thinking)
        # A template may skip messages, as the tiny models' skips the system's.
        marks = [f"mark{i}." for i in range(len(chat))]
        marked = [{"role": message.role, "content": mark} for message, mark in zip(chat, marks, strict=True)]
        rendered = render_chat(tokenizer, marked, with_picture=png is not None)
        for i, (message, mark) in enumerate(zip(chat, marks, strict=True)):
            if mark not in rendered:
                raise RequestError(
                    f"messages.{i}: this model's chat template leaves {message.role} messages out; "
                    "say it in a user message",
                    param=f"messages.{i}",
                )
        return ids

    try:
        if eyes is not None and png is not None:
            return encode(eyes.tokenizer)
        return await with_tokenizer(model.tokenizer, encode)
    except (ModelError, PolicyError) as error:
        raise RequestError(str(error), param="messages") from error


def _cut(done: Completion, stops: Sequence[str]) -> tuple[str, str]:
    """Return the text up to the first of `stops`, and the reason why it ends there."""
    ends = [end for stop in stops if (end := done.text.find(stop)) >= 0]
    return (done.text[: min(ends)], "stop") if ends else (done.text, done.finish_reason)


def _usage(num_prompt: int, num_answer: int) -> dict[str, int]:
    total = num_prompt + num_answer
    return {"prompt_tokens": num_prompt, "completion_tokens": num_answer, "total_tokens": total}
