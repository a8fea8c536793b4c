"""Endpoints that misbehave. Columns: command, exit code, value, place, fix (`BadInput`)."""

from __future__ import annotations

import asyncio
import contextlib
import json
import threading
from collections.abc import Awaitable, Callable, Iterator
from pathlib import Path

from chaos_inputs_case import BadInput

_PATIENCE_S = 30


def _gen(path: str) -> str:
    failures = "--failures data/samples/failures.jsonl --num_tasks 1 --output_path o.jsonl"
    timeout_s = 1 if "/hang/" in path or "/trickle/" in path else _PATIENCE_S
    engine = f"--setting generate.engine.timeout_s={timeout_s} --setting generate.engine.max_retries=0"
    return f"python scripts/gen_task.py {failures} {engine} --base_url {path}"


def _label(path: str) -> str:
    timeout_s = 1 if "/hang/" in path else _PATIENCE_S
    engine = f"label.judge=llm label.engine.kind=openai label.engine.timeout_s={timeout_s} label.engine.max_retries=0"
    return f"webrl label demo trackers=[] --run runs/r --phase 0 models.orm=x {engine} label.engine.urls=[{path}]"


def _openenv(path: str) -> str:
    return f"webrl rollout demo trackers=[] --run runs/r --phase 0 rollout.env=openenv rollout.urls=[{path}]"


_TRAJECTORIES = Path(__file__).parent.parent / "data/samples/experience/trajectories.jsonl"
_JUDGED = {
    "runs/r/phase_00/stages/rollout.json": '{"counts": {}, "seconds": 1, "peak_mib": 1}',
    "runs/r/phase_00/trajectories.jsonl": b"".join(_TRAJECTORIES.read_bytes().splitlines(keepends=True)[:8]),
}
_TASKS = {
    "runs/r/phase_00/stages/filter-tasks.json": '{"counts": {}, "seconds": 1, "peak_mib": 1}',
    "runs/r/phase_00/tasks.jsonl": '{"task_id": "a", "site": "miniwob.click-test"}\n',
}
_CLOSED = "http://127.0.0.1:9"

ENDPOINTS = (
    BadInput(_gen("localhost"), 2, "'localhost'", "generate.engine.urls", "http://"),
    BadInput(_gen("ftp://h/v1"), 2, "'ftp://h/v1'", "generate.engine.urls", "http://"),
    BadInput(_gen("http://"), 2, "'http://'", "generate.engine.urls", "http://"),
    BadInput(_gen("http://h:99999/v1"), 2, "'http://h:99999/v1'", "generate.engine.urls", "http://"),
    BadInput(_gen("http://[::1/v1"), 2, "'***'", "generate.engine.urls", "http://"),
    BadInput(_gen(f"{_CLOSED}/v1"), 1, f"{_CLOSED}/v1", "no model server", "ConnectError"),
    BadInput(_gen("http://name.invalid/v1"), 1, "http://name.invalid/v1", "no model server", "ConnectError"),
    BadInput(_gen("{address}/close/v1"), 1, "{address}/close/v1", "no model server", ""),
    BadInput(_gen("{address}/hang/v1"), 1, "{address}/hang/v1", "no model server", "within 1 s"),
    BadInput(_gen("{address}/trickle/v1"), 1, "{address}/trickle/v1", "no model server", "within 1 s"),
    BadInput(_gen("{address}/garbage/v1"), 1, "{address}/garbage/v1", "no model server", ""),
    BadInput(_gen("{address}/status500/v1"), 1, "{address}/status500/v1", "500", ""),
    BadInput(_gen("{address}/status404/v1"), 1, "{address}/status404/v1", "404", "/v1"),
    BadInput(_gen("{address}/status401/v1"), 1, "{address}/status401/v1", "401", "api_key_env"),
    BadInput(_gen("{address}/status429/v1"), 1, "{address}/status429/v1", "429", ""),
    BadInput(_gen("{address}/redirect/v1"), 1, "{address}/redirect/v1", "302", "not followed: file:///etc/passwd"),
    BadInput(_gen("{address}/loop/v1"), 1, "{address}/loop/v1", "302", "/loop/v1/models"),
    BadInput(_gen("{address}/html/v1"), 1, "{address}/html/v1", "malformed JSON", "<html>"),
    BadInput(_gen("{address}/list/v1"), 1, "{address}/list/v1", "lists no model", "model_name"),
    BadInput(_gen("{address}/null/v1"), 1, "{address}/null/v1", "lists no model", "model_name"),
    BadInput(_gen("{address}/strings/v1"), 1, "{address}/strings/v1", "lists no model", "model_name"),
    BadInput(_gen("{address}/endless/v1"), 1, "{address}/endless/v1", "larger than 64 MiB", "check the address"),
    BadInput(_gen("{address}/zip_bomb/v1"), 1, "{address}/zip_bomb/v1", "larger than 64 MiB", "check the address"),
    BadInput(_gen("{address}/endless_answers/v1"), 1, "{address}/endless_answers/v1", "larger than 64 MiB", "fewer tokens"),
    BadInput(_gen("{address}/chat/v1") + " --model other", 1, "'other'", "model_name", "served: "),
    BadInput(_gen("{address}/no_answers/v1"), 1, "answered none of 1 prompts, the last with: ", "{address}/no_answers/v1", ""),
    BadInput(_gen("{address}/blank_answers/v1"), 1, "odd", "none of 1 answers of", "holds an instruction"),
    BadInput(_label(f"{_CLOSED}/v1"), 1, f"{_CLOSED}/v1", "no model server", "ConnectError", files=_JUDGED),
    BadInput(_label("{address}/status401/v1"), 1, "{address}/status401/v1", "401", "api_key_env", files=_JUDGED),
    BadInput(_label("{address}/hang/v1"), 1, "{address}/hang/v1", "no model server", "within 1 s", files=_JUDGED),
    BadInput(_label("{address}/no_answers/v1"), 1, "{address}/no_answers/v1", "could be judged", "", files=_JUDGED),
    BadInput(_label("{address}/odd_answers/v1"), 1, "odd_answers", "could be judged", "", files=_JUDGED),
    BadInput(_openenv("http://h:99999"), 2, "'http://h:99999'", "rollout.urls", "http://", files=_TASKS),
    BadInput(_openenv(_CLOSED), 2, _CLOSED, "no OpenEnv server", "rollout.urls", files=_TASKS),
    BadInput(_openenv("{address}/close"), 2, "{address}/close", "no OpenEnv server", "rollout.urls", files=_TASKS),
    BadInput(_openenv("{address}/garbage"), 2, "{address}/garbage", "no OpenEnv server", "rollout.urls", files=_TASKS),
    BadInput(_openenv("{address}/status401"), 2, "{address}/status401", "401", "WEBRL_ENV_TOKEN", files=_TASKS),
    BadInput(_openenv("{address}/status500"), 2, "{address}/status500", "500", "rollout.urls", files=_TASKS),
    BadInput(_openenv("{address}/html"), 2, "{address}/html", "200", "rollout.urls", files=_TASKS),
    BadInput(_openenv("{address}/redirect"), 2, "{address}/redirect", "no OpenEnv server", "rollout.urls", files=_TASKS),
    BadInput(_openenv("{address}/hang"), 2, "{address}/hang", "no OpenEnv server", "rollout.urls", files=_TASKS),
)  # fmt: skip

_MODELS = {"object": "list", "data": [{"id": "odd", "object": "model"}]}


def _http(status: str, body: bytes, *headers: str) -> bytes:
    lines = (f"HTTP/1.1 {status}", f"Content-Length: {len(body)}", "Connection: close", *headers, "", "")
    return "\r\n".join(lines).encode() + body


def _json(data: object) -> bytes:
    return _http("200 OK", json.dumps(data).encode(), "Content-Type: application/json")


async def _answer(request: str, writer: asyncio.StreamWriter) -> None:
    """Misbehave as the first part of the path says."""
    path = request.split(" ")[1]
    kind = path.split("/")[1]
    whole: dict[str, Callable[[], bytes]] = {
        "close": lambda: b"",
        "garbage": lambda: b"\x00\xff\x13 not HTTP\r\n\r\n" * 3,
        "html": lambda: _http("200 OK", b"<html>Welcome</html>"),
        "list": lambda: _json([1, 2]),
        "null": lambda: _json(None),
        "strings": lambda: _json({"data": ["a", 1]}),
        "redirect": lambda: _http("302 Found", b"", "Location: file:///etc/passwd"),
        "loop": lambda: _http("302 Found", b"", f"Location: {path}"),
    }
    if kind.startswith("status"):
        writer.write(_http(f"{kind[6:]} Told", b'{"error": {"message": "told to"}}'))
    elif kind in whole:
        writer.write(whole[kind]())
    elif path.endswith("/models") and kind in ("chat", "no_answers", "blank_answers", "odd_answers", "endless_answers"):
        writer.write(_json(_MODELS))
    elif path.endswith("/chat/completions") and kind != "endless_answers":
        content: dict[str, object] = {
            "no_answers": None,
            "blank_answers": "",
            "odd_answers": "\x00\u202e\ud800 odd_answers " * 50,
        }
        message = {"role": "assistant", "content": content.get(kind, 'Click on the "ok" button.')}
        writer.write(_json({"choices": [{"message": message, "finish_reason": "stop"}]}))
    elif path.endswith("/completions") and kind != "endless_answers":
        writer.write(_http("404 Not Found", b"{}"))
    else:
        await _SLOW[kind](writer)


async def _hang(writer: asyncio.StreamWriter) -> None:
    await writer.drain()
    await asyncio.sleep(60)


async def _trickle(writer: asyncio.StreamWriter) -> None:
    writer.write(b"HTTP/1.1 200 OK\r\nContent-Length: 1000000\r\n\r\n")
    for _ in range(600):
        writer.write(b" ")
        await writer.drain()
        await asyncio.sleep(0.1)


async def _endless(writer: asyncio.StreamWriter) -> None:
    writer.write(b"HTTP/1.1 200 OK\r\nContent-Type: application/json\r\nConnection: close\r\n\r\n")
    while True:
        writer.write(b"[" * (1 << 20))
        await writer.drain()


async def _zip_bomb(writer: asyncio.StreamWriter) -> None:
    import gzip

    body = gzip.compress(b"[" * (1 << 28), compresslevel=6)  # 256 MiB in 260 KiB
    writer.write(_http("200 OK", body, "Content-Type: application/json", "Content-Encoding: gzip"))
    await writer.drain()


_SLOW: dict[str, Callable[[asyncio.StreamWriter], Awaitable[None]]] = {
    "hang": _hang,
    "trickle": _trickle,
    "endless": _endless,
    "endless_answers": _endless,
    "zip_bomb": _zip_bomb,
}


async def _serve(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
    with contextlib.suppress(OSError, asyncio.IncompleteReadError, asyncio.LimitOverrunError):
        head = (await reader.readuntil(b"\r\n\r\n")).decode("latin-1")
        await _answer(head, writer)
        await writer.drain()
    writer.close()


@contextlib.contextmanager
def hostile_endpoints() -> Iterator[str]:
    """A server on loopback that misbehaves as the path asks; gives its address."""
    loop, ready, address = asyncio.new_event_loop(), threading.Event(), ""

    async def work() -> None:
        nonlocal address
        server = await asyncio.start_server(_serve, "127.0.0.1", 0)
        address = f"http://127.0.0.1:{server.sockets[0].getsockname()[1]}"
        ready.set()
        with contextlib.suppress(asyncio.CancelledError):
            await asyncio.Event().wait()
        server.close()
        for answer in asyncio.all_tasks() - {asyncio.current_task()}:
            answer.cancel()

    task = loop.create_task(work())
    thread = threading.Thread(target=loop.run_until_complete, args=(task,), daemon=True)
    thread.start()
    ready.wait(20)
    try:
        yield address
    finally:
        loop.call_soon_threadsafe(task.cancel)
        thread.join(10)
