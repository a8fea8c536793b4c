"""A real OpenAI-compatible chat server on loopback whose answers a test writes, and small records."""

import asyncio
import threading
from collections.abc import Callable
from contextlib import asynccontextmanager, contextmanager
from typing import Any

from aiohttp import web
from llm_loopback import ModelServer

from webrl.config import EngineConfig
from webrl.llm.servers.openai import OpenAIModel
from webrl.tasks.failures import Failure, FailureSet
from webrl.types import Task

PAGE = "RootWebArea 'Click Button Task', focused\n\t[13] button 'ok'\n\t[14] button 'Next page'\n\t[15] textbox ''"


class ChatServer(ModelServer):
    """Answers `/v1/chat/completions` with `answer(user message, number of the request)`; an int is a status, a list
    the whole body.
    """

    def __init__(self, answer: Callable[[str, int], str | int | list[Any]]) -> None:
        self.answer = answer
        self.prompts: list[str] = []

    @asynccontextmanager
    async def model(self):
        """A model that asks this server; one quick retry."""
        engine = EngineConfig(kind="openai", urls=(self.url,), max_retries=1, timeout_s=20)
        model = await OpenAIModel.connect("no-such-tokenizer", engine)
        try:
            yield model
        finally:
            await model.close()

    async def _chat(self, request: web.Request) -> web.Response:
        body = await request.json()
        user = body["messages"][-1]["content"]
        self.prompts.append(user)
        answer = self.answer(user, len(self.prompts))
        await asyncio.sleep(0)
        if isinstance(answer, int):
            return web.json_response({"error": {"message": "told to fail"}}, status=answer)
        if isinstance(answer, list):
            return web.json_response(answer)
        message: dict[str, Any] = {"role": "assistant", "content": answer}
        return web.json_response({"choices": [{"message": message, "finish_reason": "stop"}]})


@contextmanager
def serving(server):
    """The server in a thread of its own, for code that has its own event loop."""
    loop, ready, done = asyncio.new_event_loop(), threading.Event(), asyncio.Event()

    async def work():
        async with server.running():
            ready.set()
            await done.wait()

    thread = threading.Thread(target=loop.run_until_complete, args=(work(),))
    thread.start()
    try:
        assert ready.wait(20)
        yield server.url
    finally:
        loop.call_soon_threadsafe(done.set)
        thread.join()
        loop.close()


def build_task(instruction: str | None, site: str = "miniwob.click-button", seed: int = 0, **fields: Any) -> Task:
    """A task; its id is made of the rest."""
    fields.setdefault("task_id", f"{site}.{seed}.{instruction}")
    return Task(site=site, seed=seed, instruction=instruction, **fields)


def build_failure(instruction: str, site: str = "miniwob.click-button", seed: int = 0, page: str = PAGE) -> Failure:
    """A failure that clicked the wrong button."""
    return Failure(build_task(instruction, site, seed), page)


def build_failures(number: int = 3, site: str = "miniwob.click-button") -> FailureSet:
    """So many different failures on one site."""
    return FailureSet(tuple(build_failure(f'Click on the "label{i}" button.', site, i) for i in range(number)))
