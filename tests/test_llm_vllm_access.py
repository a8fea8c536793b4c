"""The key that vLLM's routes want, in front of a real ASGI application."""

import asyncio

import httpx
import pytest
from starlette.applications import Starlette
from starlette.responses import PlainTextResponse
from starlette.routing import Route

from webrl.llm.servers.vllm_command import server_environment
from webrl.llm.servers.vllm_plugin import RequireKey


@pytest.mark.parametrize(
    ("path", "header", "status"),
    [
        ("/health", None, 200),
        ("/collective_rpc", None, 401),
        ("/collective_rpc", "Bearer wrong", 401),
        ("/collective_rpc", "key", 401),
        ("/collective_rpc", "Bearer key", 200),
        ("//collective_rpc", None, 401),
        ("/health/../collective_rpc", None, 401),
        ("/health/", None, 401),
        ("/v1/models", None, 401),
    ],
)
def test_every_route_but_health_wants_the_key(path, header, status, monkeypatch):
    monkeypatch.setenv("VLLM_API_KEY", "key")

    async def answer(request):
        return PlainTextResponse("ok")

    app = Starlette(routes=[Route("/{rest:path}", answer, methods=["GET", "POST", "OPTIONS"])])
    app.add_middleware(RequireKey)

    async def ask(method):
        async with httpx.AsyncClient(transport=httpx.ASGITransport(app), base_url="http://server") as client:
            headers = {"Authorization": header} if header else {}
            url = httpx.URL("http://server").copy_with(raw_path=path.encode())
            return (await client.request(method, url, headers=headers)).status_code

    assert {asyncio.run(ask(method)) for method in ("GET", "POST", "OPTIONS")} == {status}


def test_two_keys_are_none_and_a_websocket_without_one_is_closed(monkeypatch):
    monkeypatch.setenv("VLLM_API_KEY", "key")
    reached, sent = [], []

    async def app(scope, receive, send):
        reached.append(scope)

    async def send(message):
        sent.append(message)

    async def ask(kind, *keys):
        sent.clear()
        headers = [(b"authorization", b"Bearer " + key) for key in keys]
        await RequireKey(app)({"type": kind, "path": "/v1/realtime", "headers": headers}, None, send)
        return [message.get("status") or message["type"] for message in sent]

    assert asyncio.run(ask("websocket")) == ["websocket.close"]
    assert asyncio.run(ask("http", b"wrong", b"key"))[0] == 401
    assert not reached
    assert asyncio.run(ask("websocket", b"key")) == []
    asyncio.run(RequireKey(app)({"type": "lifespan"}, None, send))
    assert [scope["type"] for scope in reached] == ["websocket", "lifespan"]


def test_a_gpu_server_compiles_no_sampler_unless_it_is_asked_to(monkeypatch, tmp_path):
    monkeypatch.delenv("VLLM_USE_FLASHINFER_SAMPLER", raising=False)
    assert server_environment(["0"], "key", tmp_path)["VLLM_USE_FLASHINFER_SAMPLER"] == "0"
    monkeypatch.setenv("VLLM_USE_FLASHINFER_SAMPLER", "1")
    assert server_environment(["0"], "key", tmp_path)["VLLM_USE_FLASHINFER_SAMPLER"] == "1"
