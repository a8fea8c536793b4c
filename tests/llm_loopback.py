"""A real HTTP server on loopback that serves a real local model with vLLM's protocol, and fails when told to."""

import asyncio
import json
from collections import deque
from contextlib import asynccontextmanager
from typing import Any

from aiohttp import web

from webrl.llm import LanguageModel, Message, Sampling


class ModelServer:
    """An OpenAI-compatible server of one model, whose answers subclasses give."""

    name = "writer"
    url = ""

    @asynccontextmanager
    async def running(self):
        app = web.Application(client_max_size=1 << 28)
        app.router.add_get("/v1/models", self._models)
        app.router.add_post("/v1/completions", self._completions)
        app.router.add_post("/v1/chat/completions", self._chat)
        runner = web.AppRunner(app, shutdown_timeout=0.1)
        await runner.setup()
        site = web.TCPSite(runner, "127.0.0.1", 0)
        await site.start()
        self.url = f"http://127.0.0.1:{site._server.sockets[0].getsockname()[1]}/v1"
        try:
            yield self
        finally:
            await runner.cleanup()

    async def _models(self, request: web.Request) -> web.StreamResponse:
        return web.json_response({"object": "list", "data": [{"id": self.name, "object": "model"}]})

    async def _completions(self, request: web.Request) -> web.StreamResponse:
        raise web.HTTPNotFound


class LoopbackServer(ModelServer):
    """Faults are used up one request at a time: a status code, `drop`, `hang`, `trickle`, `malformed`, `no_choices`,
    `packed` (it is not what its header says)."""

    def __init__(self, model: LanguageModel, *, name: str = "policy", chat_only: bool = False, token_list: bool = True):
        self.model = model
        self.name = name
        self.chat_only = chat_only
        self.token_list = token_list
        self.faults: deque[str] = deque()
        self.bodies: list[dict[str, Any]] = []

    async def _fail(self, request: web.Request, answer: dict[str, Any]) -> web.StreamResponse:
        fault = self.faults.popleft() if self.faults else ""
        if fault in ("500", "503", "429", "400"):
            headers = {"Retry-After": "0.01"} if fault == "429" else {}
            return web.json_response(
                {"error": {"message": f"told to answer {fault}"}}, status=int(fault), headers=headers
            )
        if fault == "drop":
            request.transport.abort()
        if fault == "hang":
            await asyncio.sleep(3600)
        if fault == "trickle":
            response = web.StreamResponse()
            await response.prepare(request)
            while True:
                await response.write(b" ")
                await asyncio.sleep(0.02)
        if fault == "malformed":
            return web.Response(text=json.dumps(answer)[:-20], content_type="application/json")
        if fault == "packed":
            return web.Response(text=json.dumps(answer), headers={"Content-Encoding": "gzip"})
        if fault == "no_choices":
            return web.json_response({"object": "text_completion"})
        return web.json_response(answer)

    async def _chat(self, request: web.Request) -> web.StreamResponse:
        body = await request.json()
        self.bodies.append(body)
        messages = [Message(m["role"], m["content"]) for m in body["messages"]]
        sampling = Sampling(temperature=body["temperature"], max_new_tokens=body["max_tokens"], seed=body["seed"])
        answer = await self.model.chat(messages, sampling)
        choice = {"message": {"role": "assistant", "content": answer.text}, "finish_reason": answer.finish_reason}
        return await self._fail(request, {"choices": [choice]})

    async def _completions(self, request: web.Request) -> web.StreamResponse:
        body = await request.json()
        self.bodies.append(body)
        if self.chat_only:
            return web.json_response({"error": {"message": "not supported"}}, status=404)
        prompt = body["prompt"]
        sampling = Sampling(
            temperature=body["temperature"],
            top_p=body.get("top_p", 1.0),
            top_k=body.get("top_k", 0),
            max_new_tokens=body["max_tokens"],
            seed=body.get("seed"),
        )
        answer = await self.model.generate(prompt, sampling)
        choice: dict[str, Any] = {"text": answer.text, "finish_reason": answer.finish_reason}
        if body.get("logprobs") is not None:
            top = await self._top(prompt, body)
            choice["logprobs"] = {
                "tokens": [f"token_id:{i}" for i in answer.ids],
                "token_logprobs": list(answer.logprobs),
                "top_logprobs": [top],
            }
        if self.token_list:
            choice["token_ids"] = list(answer.ids)
        if body.get("prompt_logprobs") is not None:
            (value,) = await self.model.choice_logprobs(prompt[:-1], [prompt[-1]])
            choice["prompt_logprobs"] = [None, {str(prompt[-1]): {"logprob": value}}]
        return await self._fail(request, {"choices": [choice]})

    async def _top(self, prompt: list[int], body: dict[str, Any]) -> dict[str, float]:
        """The most probable tokens, as a server that does not know `logprob_token_ids` answers."""
        size = len(self.model.tokenizer)
        values = await self.model.choice_logprobs(prompt, list(range(size)))
        best = sorted(range(size), key=lambda i: -values[i])[: body["logprobs"]]
        return {f"token_id:{i}": values[i] for i in best}
