"""A judge that answers OpenAI's protocol on a port of loopback; what it says depends on what it is asked, alone."""

from __future__ import annotations

import asyncio
import hashlib
import sys

from aiohttp import web

THINKS_S = 0.1


async def answer(request: web.Request) -> web.Response:
    """One chat completion: YES or NO."""
    body = await request.json()
    asked = "".join(message["content"] for message in body["messages"]).encode()
    await asyncio.sleep(THINKS_S)
    says = "YES" if hashlib.sha256(asked).digest()[0] % 2 else "NO"
    choice = {"index": 0, "message": {"role": "assistant", "content": says}, "finish_reason": "stop"}
    return web.json_response({"object": "chat.completion", "model": body.get("model"), "choices": [choice]})


async def models(_: web.Request) -> web.Response:
    """The models there are."""
    return web.json_response({"object": "list", "data": [{"id": "judge", "object": "model"}]})


if __name__ == "__main__":
    app = web.Application()
    app.router.add_get("/v1/models", models)
    app.router.add_post("/v1/chat/completions", answer)
    web.run_app(app, host="127.0.0.1", port=int(sys.argv[1]), print=lambda _: print("serving", flush=True))
