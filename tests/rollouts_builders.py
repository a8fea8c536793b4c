"""Builders for the rollout tests: small web sites on loopback, scripted policies, short runs in a real browser."""

import asyncio
import contextlib
import dataclasses
import re
from collections.abc import AsyncIterator, Awaitable, Callable
from typing import Any

from browsers import open_env, run

from webrl.config import RolloutConfig
from webrl.llm.interface import PolicyOutput, Turn
from webrl.rollouts.actions import Action
from webrl.rollouts.env import BrowserEnv
from webrl.rollouts.interface import StepResult
from webrl.types import Task


def miniwob(page: str, seed: int = 0, **more: Any) -> Task:
    return Task(task_id=f"miniwob.{page}.{seed}", site=f"miniwob.{page}", seed=seed, **more)


def at(url: str, instruction: str = "look around", **more: Any) -> Task:
    return Task(task_id=url, site="web", start_url=url, instruction=instruction, **more)


def in_browser(play: Callable[[BrowserEnv], Awaitable[Any]], *, own_browser: bool = False, **settings: Any) -> Any:
    """Run `play` with an environment of its own, on the shared browser or on one of its own; gives its result."""

    async def in_environment() -> Any:
        deadline = {"step_timeout_s": max(30, 2 * settings.get("settle_cap_s", 0))}
        async with open_env(RolloutConfig(**deadline | settings), own_browser=own_browser) as env:
            return await play(env)

    return (asyncio.run if own_browser else run)(in_environment())


def on_page(
    page: str | dict[str, Any], *actions: str, evaluate: str = "", **settings: Any
) -> tuple[list[str], list[StepResult], Any]:
    """Texts before and after each action, its results, and at the end the value of an expression in the page.

    `{words}` in an action is the id of the line with these words. An action of several lines is one of several parts,
    as BrowserGym's agents may give.
    """

    async def play(env: BrowserEnv) -> tuple[list[str], list[StepResult], Any]:
        parse = env._parse

        def parse_lines(text: str) -> Action:
            first, *rest = map(parse, text.splitlines())
            return dataclasses.replace(first, rest=tuple(rest))

        env._parse = parse_lines  # type: ignore[method-assign]
        async with serve({"/": page} if isinstance(page, str) else page) as url:
            texts, results = [(await env.reset(at(url + "/"))).text], []
            for action in actions:
                results.append(await env.step(re.sub(r"\{([^}]+)\}", lambda m: id_of(texts[-1], m[1]), action)))
                texts.append(results[-1].observation.text)
            return texts, results, await env.page.evaluate(evaluate) if evaluate else None

    found: tuple[list[str], list[StepResult], Any] = in_browser(play, **settings)
    return found


def carry_out(page: str | dict[str, Any], *actions: str, **settings: Any) -> list[str]:
    """Texts before and after each action of `on_page`, none of which has an error."""
    texts, results, _ = on_page(page, *actions, **settings)
    assert not any(result.error for result in results), [result.error for result in results]
    return texts


def visit(pages: str | dict[str, Any], play: Callable[[BrowserEnv, str, str], Awaitable[Any]], **settings: Any) -> Any:
    """Run `play(env, url, text)` on the first page, for what is no list of actions; gives its result."""

    async def visited(env: BrowserEnv) -> Any:
        async with serve({"/": pages} if isinstance(pages, str) else pages) as url:
            return await play(env, url, (await env.reset(at(url + "/"))).text)

    return in_browser(visited, **settings)


def id_of(text: str, words: str) -> str:
    """The id of the line with these words or, if it has none, of the nearest line above that has."""
    lines = text.splitlines()
    at = next((number for number, line in enumerate(lines) if words in line), None)
    assert at is not None, f"no {words!r} in:\n{text}"
    return next(found[1] for line in reversed(lines[: at + 1]) if (found := re.match(r"\s*\[(\w+)\]", line)))


def bid_of(text: str, role: str, name: str) -> str:
    """The bid of the first element with this role and name."""
    found = re.search(rf"\[([a-zA-Z]*\d+)\] {role} {re.escape(repr(name))}", text)
    assert found, f"no {role} {name!r} in:\n{text}"
    return found.group(1)


class Scripted:
    """A policy that gives prepared answers, the last one again and again; `{role:name}` becomes that element's bid."""

    fingerprint = "scripted"

    def __init__(self, *answers: str, wait_s: float = 0) -> None:
        self.answers = answers
        self.wait_s = wait_s

    async def act(self, turn: Turn) -> PolicyOutput:
        await asyncio.sleep(self.wait_s)
        answer = self.answers[min(len(turn.history), len(self.answers) - 1)]
        answer = re.sub(r"\{(\w+):([^}]*)\}", lambda m: bid_of(turn.observation, m[1], m[2]), answer)
        return PolicyOutput((1, 2), (3,), (-0.5,), answer, turn.observation)


class ClickNamedButton:
    """Does what the click-button page asks for."""

    fingerprint = "expert"

    def __init__(self, wait_s: float = 0) -> None:
        self.wait_s = wait_s

    async def act(self, turn: Turn) -> PolicyOutput:
        await asyncio.sleep(self.wait_s)
        name = re.search(r'"(.*)"', turn.instruction).group(1)
        return PolicyOutput((), (), (), f"click('{bid_of(turn.observation, 'button', name)}')", turn.observation)


Handler = Callable[[str, asyncio.StreamWriter], Awaitable[None]]


@contextlib.asynccontextmanager
async def serve(pages: dict[str, str | Handler]) -> AsyncIterator[str]:
    """A web server on loopback; a page is HTML, or a handler that writes the whole answer itself."""
    running: set[asyncio.Task[None] | None] = set()

    async def answer(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        running.add(asyncio.current_task())
        with contextlib.suppress(ConnectionError, IndexError):
            path = (await reader.readline()).split()[1].decode().partition("?")[0]
            while (await reader.readline()).strip():
                pass
            page = pages.get(path, "<title>nothing here</title>")
            if isinstance(page, str):
                await reply(writer, page)
            else:
                await page(path, writer)
        writer.close()

    server = await asyncio.start_server(answer, "127.0.0.1", 0)
    try:
        yield f"http://127.0.0.1:{server.sockets[0].getsockname()[1]}"
    finally:
        server.close()
        for task in running:
            if task is not None:
                task.cancel()


def answers(body: str = "", *status: str, wait_s: float = 0, **how: str) -> Handler:
    """A page that comes after a while, with a status, headers and kind of its own."""

    async def answer(_: str, writer: asyncio.StreamWriter) -> None:
        await asyncio.sleep(wait_s)
        await reply(writer, body, *status, **how)

    return answer


NEVER = answers(wait_s=3600)


async def reply(
    writer: asyncio.StreamWriter, body: str, status: str = "200 OK", headers: str = "", kind: str = "text/html"
) -> None:
    data = body.encode()
    head = f"HTTP/1.1 {status}\r\nContent-Type: {kind}; charset=utf-8\r\nConnection: close\r\n{headers}"
    writer.write(f"{head}Content-Length: {len(data)}\r\n\r\n".encode() + data)
    await writer.drain()
