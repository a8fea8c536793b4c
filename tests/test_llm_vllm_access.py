"""The key that vLLM's routes want, in front of a real ASGI application."""

import asyncio

import httpx
import pytest
from starlette.applications import Starlette
from starlette.responses import PlainTextResponse
from starlette.routing import Route

from webrl.llm.vllm_access import RequireKey


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
