"""Connections that a server closes between two requests, as servers do after some seconds: no failure of the server."""

import asyncio
import logging
from contextlib import asynccontextmanager

import pytest

from webrl.errors import PolicyError
from webrl.llm.servers.http_pool import HttpPool

ANSWER = b'HTTP/1.1 200 OK\r\ncontent-type: application/json\r\ncontent-length: 7\r\n\r\n{"a":1}'


@asynccontextmanager
async def server(answers_per_connection):
    """Answers so many requests of a connection, then closes it when the next one arrives; counts its connections."""
    seen = {"connections": 0, "dropped": 0}

    async def serve(reader, writer):
        seen["connections"] += 1
        answered = 0
        while head := await reader.readuntil(b"\r\n\r\n"):
            length = next(int(line.split(b":")[1]) for line in head.lower().split(b"\r\n") if b"content-length" in line)
            await reader.readexactly(length)
            if answered == answers_per_connection:
                seen["dropped"] += 1
                break
            writer.write(ANSWER)
            await writer.drain()
            answered += 1
        writer.close()

    async def quietly(reader, writer):
        try:
            await serve(reader, writer)
        except (asyncio.IncompleteReadError, ConnectionError):
            writer.close()

    listener = await asyncio.start_server(quietly, "127.0.0.1", 0)
    async with listener:
        yield f"http://127.0.0.1:{listener.sockets[0].getsockname()[1]}", seen


def ask(answers_per_connection, rounds, max_retries):
    async def main():
        async with server(answers_per_connection) as (url, seen):
            pool = HttpPool([url], timeout_s=30, max_retries=max_retries)
            try:
                for width in rounds:
                    await asyncio.gather(*[pool.ask("/x", {}, lambda answer: answer["a"]) for _ in range(width)])
            finally:
                await pool.close()
        return seen

    return asyncio.run(asyncio.wait_for(main(), 60))


@pytest.mark.parametrize("rounds", [(1, 1, 1), (8, 8)])
def test_a_kept_connection_that_the_server_has_dropped_is_replaced_without_a_word(rounds, caplog):
    with caplog.at_level(logging.WARNING, "webrl"):
        seen = ask(1, rounds, max_retries=0)
    assert seen["dropped"] > 0
    assert caplog.text == ""


def test_a_fresh_connection_that_is_dropped_is_a_failure(caplog):
    with caplog.at_level(logging.WARNING, "webrl"), pytest.raises(PolicyError, match="RemoteProtocolError"):
        ask(0, (1,), max_retries=1)
    assert caplog.text.count("failed") == 2


def test_connections_are_kept_and_used_again():
    assert ask(100, (8, 8, 3, 8), max_retries=0)["connections"] == 8
