"""Serves a model: OpenAI's models, chats and completions, and actions from the model's own prompt.

API: `await serve(checkpoint, context, on_ready, …)` runs until SIGINT or SIGTERM; `make_app(service)` is its
application without access control.
"""

from __future__ import annotations

import asyncio
import dataclasses
import logging
import time
import uuid
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from typing import Any, TypeVar

from starlette.applications import Starlette
from starlette.exceptions import HTTPException
from starlette.requests import ClientDisconnect, Request
from starlette.responses import JSONResponse, Response
from starlette.routing import Route

from webrl.config import Dialect, RunConfig
from webrl.errors import ModelError, PolicyError, PromptTooLong, StageError
from webrl.llm import open_model
from webrl.llm.interface import LanguageModel, Turn
from webrl.llm.loading import prompt_of
from webrl.llm.pictures import shrink
from webrl.llm.policy import ModelPolicy, with_tokenizer
from webrl.llm.tokens import encode_chat, render_chat
from webrl.rollouts.actions import ActionError, read_answer
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
from webrl_serve.net import (
    Access,
    BodyError,
    ClientGone,
    address_of,
    listen,
    read_body,
    run_app,
    stop_on_signals,
    unless_gone,
)

logger = logging.getLogger(__name__)

MAX_BODY_BYTES = 8 << 20
"""Bound of a request's body; pages are cut to the prompt here, not by the client."""
_MAX_CONNECTIONS = 512
"""Further ones are closed."""
_SEES = "the served model is a vision model, and every request needs a picture:"
_TOO_LONG = "context_length_exceeded"
_TOLD = {"observation", "image_size", "dialect", "max_steps", "max_repeats", "max_parse_failures"}
"""Rollout settings that clients of `/v1/actions` need."""
B = TypeVar("B", bound=RequestBody)


@dataclass(frozen=True)
class Service:
    """A model that is served; its methods are the endpoints."""

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

    async def models(self, request: Request) -> Response:
        """Describe the model, in a list or by its name; `webrl` holds what clients of `/v1/actions` need."""
        config = self.config
        own = {
            **config.rollout.model_dump(include=_TOLD),
            "prompt_format": config.models.prompt_format,
            "prompt": prompt_of(self.model.tokenizer, config.models.prompt),
            "max_prompt_tokens": config.models.max_prompt_tokens,
            "temperature": config.evaluate.temperature[0],
            "fingerprint": self.model.fingerprint,
        }
        card = {"id": self.alias, "object": "model", "created": self.created, "owned_by": "webrl"}
        card |= {"max_model_len": self.context, "webrl": own}
        if "name" not in request.path_params:
            return JSONResponse({"object": "list", "data": [card]})
        self._check_name(request.path_params["name"])
        return JSONResponse(card)

    async def chat(self, request: Request) -> Response:
        """Answer messages as they are, through the model's chat template."""
        body = await self._read(ChatRequest, request)
        png = await self._shrink(body.picture, "messages")  # at the start of the last user message
        eyes, chat = self.model.eyes, body.chat

        def encode(tokenizer: Any) -> list[int]:
            ids: list[int]
            if eyes is not None and png is not None:
                ids = eyes.encode(chat, eyes.look(png))
            else:
                ids = encode_chat(tokenizer, chat, thinking=self.config.models.enable_thinking)
            # A template may skip messages, as the tiny models' skips the system's.
            marked = [{"role": message.role, "content": f"mark{i}."} for i, message in enumerate(chat)]
            rendered = render_chat(tokenizer, marked, with_picture=png is not None)
            for i, mark in enumerate(marked):
                if mark["content"] not in rendered:
                    raise RequestError(
                        f"messages.{i}: this model's chat template leaves {mark['role']} messages out; "
                        "say it in a user message",
                        param=f"messages.{i}",
                    )
            return ids

        try:
            if eyes is not None and png is not None:
                ids = encode(eyes.tokenizer)
            else:
                ids = await with_tokenizer(self.model.tokenizer, encode)
        except (ModelError, PolicyError) as error:  # no template, or one that refuses these messages
            raise RequestError(str(error), param="messages") from error
        text, reply = await self._generate(request, ids, body, png)
        reply["choices"][0]["message"] = {"role": "assistant", "content": text}
        return JSONResponse({"id": f"chatcmpl-{uuid.uuid4().hex}", "object": "chat.completion", **reply})

    async def complete(self, request: Request) -> Response:
        """Continue a text, in which control tokens are read as such, or token ids."""
        body = await self._read(CompletionRequest, request)
        if self.config.rollout.sees:
            raise RequestError(f"{_SEES} a plain completion has no place for one", param="prompt")
        prompt, tokenizer = body.prompt, self.model.tokenizer
        if isinstance(prompt, list):
            ids = prompt
        else:
            ids = await with_tokenizer(tokenizer, lambda own: list(own(prompt)["input_ids"]))
        if not ids:
            raise RequestError("the prompt is empty", param="prompt")
        if not 0 <= min(ids) <= max(ids) < len(tokenizer):
            raise RequestError(f"a token id is outside the vocabulary, 0 … {len(tokenizer) - 1}", param="prompt")
        text, reply = await self._generate(request, ids, body)
        reply["choices"][0]["text"] = text
        return JSONResponse({"id": f"cmpl-{uuid.uuid4().hex}", "object": "text_completion", **reply})

    async def act(self, request: Request) -> Response:
        """Choose the next action on a page: prompt, cutting and action language are those of the model's training."""
        body = await self._read(ActionRequest, request)
        temperature = self.config.evaluate.temperature[0] if body.temperature is None else body.temperature
        try:
            picture = None if body.screenshot is None else read_picture(body.screenshot)
        except ValueError as error:
            raise RequestError(str(error), param="screenshot") from error
        png = await self._shrink(picture, "screenshot")
        policy = ModelPolicy(self.model, self.config, temperature=temperature)
        turn = Turn(body.goal, body.steps, body.observation, body.draw_seed, png)
        try:
            output = await unless_gone(request.receive, policy.act(turn))
        except PromptTooLong as error:
            raise RequestError(str(error), param="goal", code=_TOO_LONG) from error
        except StageError as error:  # an image that leaves no room
            raise RequestError(str(error), param="screenshot", code=_TOO_LONG) from error
        usage = _usage(output.prompt_ids, output.action_ids)
        reply = {"object": "webrl.action", "model": self.alias, "usage": usage, "text": output.text}
        return JSONResponse(reply | describe_answer(output.text, self.config.rollout.dialect))

    async def _read(self, kind: type[B], request: Request) -> B:
        """Return the body of a request for this model. Raises RequestError."""
        body = read(kind, await read_body(request, MAX_BODY_BYTES))
        self._check_name(body.model)
        return body

    def _check_name(self, name: str) -> None:
        if name != self.alias:
            text = f"model {name!r:.100} is not served; {self.alias!r} is"
            raise RequestError(text, status=404, param="model", code="model_not_found")

    async def _shrink(self, picture: bytes | None, param: str) -> bytes | None:
        """Return the image in the size that the model sees; None for a text model. Raises RequestError."""
        size = self.config.rollout.image_size
        if picture is None and size is not None:
            raise RequestError(f"{_SEES} there is none in {param}", param=param)
        if picture is None:
            return None
        if size is None:
            raise RequestError("the served model reads text only: leave the picture out", param=param)
        try:
            return await asyncio.to_thread(shrink, picture, size)
        except ValueError as error:
            raise RequestError(str(error), param=param) from error

    async def _generate(
        self, request: Request, ids: list[int], body: ChatRequest | CompletionRequest, png: bytes | None = None
    ) -> tuple[str, dict[str, Any]]:
        """Return the model's text up to the first of the request's stops, and the response but for its form."""
        room = self.context - len(ids) if self.context else self.config.rollout.max_new_tokens
        if self.context and (body.limit or 1) > room:
            more = f" and an answer of up to {body.limit}" if body.limit else ""
            raise RequestError(
                f"the context has {self.context} tokens at most; the prompt has {len(ids)}{more}", code=_TOO_LONG
            )
        sampling = body.sampling(body.limit or room)
        done = await unless_gone(request.receive, self.model.generate(ids, sampling, png))
        ends = [end for stop in body.stops if (end := done.text.find(stop)) >= 0]
        choice: dict[str, Any] = {"index": 0, "logprobs": None, "finish_reason": "stop" if ends else done.finish_reason}
        usage = _usage(done.prompt_ids, done.ids)
        reply = {"created": int(time.time()), "model": self.alias, "usage": usage, "choices": [choice]}
        return done.text[: min(ends, default=None)], reply


def _usage(prompt: Sequence[int], answer: Sequence[int]) -> dict[str, int]:
    total = len(prompt) + len(answer)
    return {"prompt_tokens": len(prompt), "completion_tokens": len(answer), "total_tokens": total}


async def serve(
    checkpoint: Checkpoint,
    context: int | None,
    on_ready: Callable[[str], None],
    *,
    host: str,
    port: int,
    token: str | None,
) -> None:
    """Serve a checkpoint.

    Args:
        context: result of `check_context`.
        on_ready: called with the address, without `/v1`, once the model is loaded.
        host, port: where to listen; port 0 takes a free one.
        token: what clients must send; None admits everybody, which is for loopback only (`check_address`).

    Raises:
        UsageError: an address that cannot be used.
        ModelError: unusable weights, or a vLLM server that does not start.
    """
    config = checkpoint.config
    with listen(host, port) as listener:  # loading may take minutes
        async with open_model(checkpoint.name, config.rollout.engine, config.models, sees=config.rollout.sees) as model:
            app = make_app(Service(model, checkpoint.alias, config, context))
            on_ready(address_of(listener))
            await run_app(Access(app, token, refuse), listener, _MAX_CONNECTIONS, stop_on_signals())


def refuse(status: int) -> Response:
    """Returns the response to a request without the token (401), or of a web page (403)."""
    if status == 401:
        text = "the token of this server is needed, as API key"
        return error_response(RequestError(text, status=401, code="invalid_api_key"))
    return error_response(RequestError("web pages may not ask", status=status))


def make_app(service: Service) -> Starlette:
    """Returns the application."""
    routes = [
        Route("/health", lambda _: JSONResponse({"status": "ok"})),
        Route("/v1/models", service.models),
        Route("/v1/models/{name:path}", service.models),
        Route("/v1/chat/completions", service.chat, methods=["POST"]),
        Route("/v1/completions", service.complete, methods=["POST"]),
        Route("/v1/actions", service.act, methods=["POST"]),
    ]
    paths = ", ".join(route.path for route in routes)

    async def failed(request: Request, error: Exception) -> Response:
        if isinstance(error, ClientGone | ClientDisconnect):
            return Response(status_code=499)
        if isinstance(error, HTTPException) and error.status_code == 404:
            error = RequestError(f"no {request.url.path!r:.100} here; {paths}", status=404)
        elif isinstance(error, HTTPException):
            error = RequestError(f"{request.method} is not for this path", status=error.status_code)
        elif isinstance(error, BodyError):
            error = RequestError(str(error), status=error.status)
        elif isinstance(error, ModelError | PolicyError):
            logger.error("%s", error)
        return error_response(error if isinstance(error, RequestError) else RequestError(str(error), status=500))

    kinds = (HTTPException, RequestError, BodyError, ClientGone, ClientDisconnect, ModelError, PolicyError)
    return Starlette(routes=routes, exception_handlers=dict.fromkeys(kinds, failed))


def error_response(error: RequestError) -> JSONResponse:
    """Returns an error in OpenAI's form."""
    kind = "invalid_request_error" if error.status < 500 else "server_error"
    fields = {"message": str(error), "type": kind, "param": error.param, "code": error.code}
    return JSONResponse({"error": fields}, error.status)


def describe_answer(text: str, dialect: Dialect) -> dict[str, Any]:
    """Returns an answer's `action` and `note` as in the model's history, its `calls` of BrowserGym, and its `error`."""
    try:
        action = read_answer(text, dialect)
    except ActionError as error:
        return {"action": "", "note": "", "calls": [], "error": str(error)}
    calls = [dataclasses.replace(part, written="", rest=()).canonical for part in (action, *action.rest)]
    return {"action": action.canonical, "note": action.note, "calls": calls, "error": ""}
