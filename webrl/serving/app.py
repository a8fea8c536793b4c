"""The answers: OpenAI's models, chats and completions, and actions from the model's own prompt.

API: `make_app(service) -> Starlette`. It says nothing about who may ask (`server.py`).
"""

from __future__ import annotations

import asyncio
import dataclasses
import logging
import time
import uuid
from collections.abc import Awaitable, Callable, Coroutine, Sequence
from dataclasses import dataclass, field
from typing import Any

from starlette.applications import Starlette
from starlette.requests import Request
from starlette.responses import JSONResponse, Response
from starlette.routing import Route

from webrl.config import RunConfig
from webrl.errors import ModelError, PolicyError, PromptTooLong, StageError
from webrl.llm.interface import Completion, LanguageModel, Policy, Turn
from webrl.llm.pictures import shrink
from webrl.llm.policy import ModelPolicy
from webrl.llm.trained_prompt import prompt_of
from webrl.net import BodyError, ClientGone, read_body, unless_gone
from webrl.rollouts.actions import ActionError
from webrl.rollouts.answers import Dialect, read_answer
from webrl.serving.prompts import chat_ids, text_ids
from webrl.serving.requests import ActionRequest, ChatRequest, CompletionRequest, RequestError, read, read_picture

logger = logging.getLogger(__name__)

MAX_BODY_BYTES = 8 << 20
"""Pages are cut here, not by who sends them."""
_SEES = "the model that is served sees, and is asked nothing without a picture:"
_TOO_LONG = "context_length_exceeded"


@dataclass(frozen=True)
class Service:
    """What is served."""

    model: LanguageModel
    """Answers; with `rollout.image_size` one that sees."""
    alias: str
    """What clients call it."""
    config: RunConfig
    """Its prompt, action language and sampling."""
    context: int | None
    """Tokens that prompt and answer may have together; None: no limit is known."""
    created: int = field(default_factory=lambda: int(time.time()))
    """When it was first served, seconds since the epoch."""


def make_app(service: Service) -> Starlette:
    """The application."""
    answers = _Answers(service)
    routes = [
        Route("/health", _health),
        Route("/v1/models", answers.models),
        Route("/v1/models/{name:path}", answers.one_model),
        Route("/v1/chat/completions", _guarded(answers.chat), methods=["POST"]),
        Route("/v1/completions", _guarded(answers.complete), methods=["POST"]),
        Route("/v1/actions", _guarded(answers.act), methods=["POST"]),
    ]
    paths = ", ".join(route.path for route in routes)
    known: dict[Any, Any] = {
        404: lambda request, _: error_response(RequestError(f"no {request.url.path!r:.100} here; {paths}", status=404)),
        405: lambda request, _: error_response(RequestError(f"{request.method} is not for this path", status=405)),
    }
    return Starlette(routes=routes, exception_handlers=known)


def error_response(error: RequestError, headers: dict[str, str] | None = None) -> JSONResponse:
    """An error in OpenAI's form."""
    kind = "invalid_request_error" if error.status < 500 else "server_error"
    said = {"message": str(error), "type": kind, "param": error.param, "code": error.code}
    return JSONResponse({"error": said}, error.status, headers)


def describe_answer(text: str, dialect: Dialect) -> dict[str, Any]:
    """What an answer does: `action` and `note` as the model's history shows them, `calls` of BrowserGym, `error`."""
    try:
        action = read_answer(text, dialect)
    except ActionError as error:
        return {"action": "", "note": "", "calls": [], "error": str(error)}
    calls = [dataclasses.replace(part, written="", rest=()).canonical for part in (action, *action.rest)]
    return {"action": action.canonical, "note": action.note, "calls": calls, "error": ""}


class _Answers:
    def __init__(self, service: Service) -> None:
        self._service = service
        self._model = service.model

    async def models(self, request: Request) -> Response:  # noqa: ARG002 - starlette's signature
        """What is served."""
        return JSONResponse({"object": "list", "data": [self._card()]})

    async def one_model(self, request: Request) -> Response:
        """The model of that name."""
        name = request.path_params["name"]
        return JSONResponse(self._card()) if name == self._service.alias else error_response(self._no_model(name))

    async def chat(self, request: Request) -> dict[str, Any]:
        """Messages as they are, through the model's chat template."""
        asked = read(ChatRequest, await read_body(request, MAX_BODY_BYTES))
        self._check_model(asked.model)
        png = await self._shown(asked.picture, "messages")
        thinking = self._service.config.models.enable_thinking
        ids = await chat_ids(self._model, asked.chat, png, thinking)
        done = await self._generate(request, ids, asked, asked.limit, png)
        text, reason = _cut(done, asked.stops)
        choice = {"index": 0, "message": {"role": "assistant", "content": text}, "logprobs": None}
        return self._reply("chat.completion", "chatcmpl", done) | {"choices": [choice | {"finish_reason": reason}]}

    async def complete(self, request: Request) -> dict[str, Any]:
        """A text or token ids, continued."""
        asked = read(CompletionRequest, await read_body(request, MAX_BODY_BYTES))
        self._check_model(asked.model)
        if self._service.config.rollout.image_size is not None:
            raise RequestError(f"{_SEES} a plain completion has no place for one", param="prompt")
        ids = await text_ids(self._model.tokenizer, asked.prompt)
        done = await self._generate(request, ids, asked, asked.limit)
        text, reason = _cut(done, asked.stops)
        choice = {"index": 0, "text": text, "logprobs": None, "finish_reason": reason}
        return self._reply("text_completion", "cmpl", done) | {"choices": [choice]}

    async def act(self, request: Request) -> dict[str, Any]:
        """The next action on a page: prompt, cutting and action language are those of the model's training."""
        asked = read(ActionRequest, await read_body(request, MAX_BODY_BYTES))
        self._check_model(asked.model)
        config = self._service.config
        greedy_or_not = config.evaluate.temperature[0] if asked.temperature is None else asked.temperature
        try:
            picture = None if asked.screenshot is None else read_picture(asked.screenshot)
        except ValueError as error:
            raise RequestError(str(error), param="screenshot") from error
        png = await self._shown(picture, "screenshot")
        policy = self._policy(greedy_or_not)
        turn = Turn(asked.goal, asked.steps, asked.observation, asked.draw_seed, png)
        try:
            output = await unless_gone(request.receive, policy.act(turn))
        except PromptTooLong as error:
            raise RequestError(str(error), param="goal", code=_TOO_LONG) from error
        except StageError as error:  # a picture that leaves no room
            raise RequestError(str(error), param="screenshot", code=_TOO_LONG) from error
        usage = _usage(len(output.prompt_ids), len(output.action_ids))
        reply = {"object": "webrl.action", "model": self._service.alias, "usage": usage, "text": output.text}
        return reply | describe_answer(output.text, config.rollout.dialect)

    async def _shown(self, picture: bytes | None, param: str) -> bytes | None:
        """The picture as the model is shown it; None for a model of text. Raises RequestError."""
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

    def _policy(self, temperature: float) -> Policy:
        return ModelPolicy(self._model, self._service.config, temperature=temperature)

    async def _generate(
        self,
        request: Request,
        ids: list[int],
        asked: ChatRequest | CompletionRequest,
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
        sampling = asked.sampling(limit or room)
        return await unless_gone(request.receive, self._model.generate(ids, sampling, png))

    def _check_model(self, name: str) -> None:
        if name != self._service.alias:
            raise self._no_model(name)

    def _no_model(self, name: str) -> RequestError:
        text = f"model {name!r:.100} is not served; {self._service.alias!r} is"
        return RequestError(text, status=404, param="model", code="model_not_found")

    def _card(self) -> dict[str, Any]:
        """The model as `/v1/models` lists it; `webrl` is what whoever uses `/v1/actions` has to know."""
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
        return card | {"max_model_len": service.context, "webrl": own}

    def _reply(self, kind: str, prefix: str, done: Completion) -> dict[str, Any]:
        return {
            "id": f"{prefix}-{uuid.uuid4().hex}",
            "object": kind,
            "created": int(time.time()),
            "model": self._service.alias,
            "usage": _usage(len(done.prompt_ids), len(done.ids)),
        }


async def _health(request: Request) -> Response:  # noqa: ARG001 - starlette's signature
    return JSONResponse({"status": "ok"})


def _guarded(
    work: Callable[[Request], Coroutine[Any, Any, dict[str, Any]]],
) -> Callable[[Request], Awaitable[Response]]:
    """The endpoint that sends what `work` gives, or says why there is nothing."""

    async def endpoint(request: Request) -> Response:
        try:
            return JSONResponse(await work(request))
        except RequestError as error:
            return error_response(error)
        except (ModelError, PolicyError) as error:
            logger.error("%s", error)
            return error_response(RequestError(str(error), status=500))
        except BodyError as error:
            return error_response(RequestError(str(error), status=error.status))
        except ClientGone:
            return Response(status_code=499)  # heard by nobody

    return endpoint


def _cut(done: Completion, stops: Sequence[str]) -> tuple[str, str]:
    """(text up to the first of `stops`, why it ends there)."""
    ends = [end for stop in stops if (end := done.text.find(stop)) >= 0]
    return (done.text[: min(ends)], "stop") if ends else (done.text, done.finish_reason)


def _usage(num_prompt: int, num_answer: int) -> dict[str, int]:
    total = num_prompt + num_answer
    return {"prompt_tokens": num_prompt, "completion_tokens": num_answer, "total_tokens": total}
