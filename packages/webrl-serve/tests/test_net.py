"""What all servers share: access control, deadlines for requests and responses, the bound on connections."""

import asyncio
import contextlib
import socket
import threading
import time

import pytest
from starlette.applications import Starlette
from starlette.responses import JSONResponse, PlainTextResponse, StreamingResponse
from starlette.routing import Route

from webrl.errors import UsageError
from webrl_serve import net
from webrl_serve.net import (
    Access,
    BodyError,
    check_address,
    is_loopback,
    listen,
    names_loopback,
    read_body,
    refusal,
    run_app,
)

HERE = {"host": "127.0.0.1:8000"}


@pytest.mark.parametrize(
    ("headers", "token", "status"),
    [
        (HERE, None, None),
        ({}, None, None),
        (HERE | {"origin": "http://evil.example"}, None, 403),
        ({"host": "evil.example"}, None, 403),
        ({"host": ""}, None, 403),
        (HERE, "secret", 401),
        ({"host": "example.org", "authorization": "Bearer secret", "origin": "http://a.example"}, "secret", None),
        ({"authorization": "bearer  secret "}, "secret", None),
        ({"authorization": "Bearer wrong"}, "secret", 401),
        ({"authorization": "secret"}, "secret", 401),
        ({"authorization": "Basic YW55OnNlY3JldA=="}, "secret", None),  # any:secret
        ({"authorization": "Basic YW55Ondyb25n"}, "secret", 401),
        ({"authorization": "Basic é"}, "secret", 401),
    ],
)
def test_who_may_ask_is_decided_by_token_and_where_there_is_none_by_where_the_request_comes_from(
    headers, token, status
):
    assert refusal(headers, token) == status


def test_loopback_is_this_machine_alone():
    assert all(map(is_loopback, ("127.0.0.1", "::1", "localhost")))
    assert not any(map(is_loopback, ("0.0.0.0", "10.0.0.1", "example.org")))
    named = [names_loopback(host) for host in (None, "[::1]:80", "127.0.0.1.evil.example", "[")]
    assert named == [True, True, False, False]
    check_address("127.0.0.1", 0, None, "TOKEN")
    check_address("0.0.0.0", 0, "secret", "TOKEN")
    with pytest.raises(UsageError, match="set TOKEN to a secret"):
        check_address("0.0.0.0", 0, None, "TOKEN")


@contextlib.contextmanager
def served(app, max_connections=50):
    """An application's port, served in a thread."""
    ready, ended = threading.Event(), {}

    async def run():
        ended["loop"], ended["stop"] = asyncio.get_running_loop(), asyncio.Event()
        ready.set()
        await run_app(app, listener, max_connections, ended["stop"])

    with listen("127.0.0.1", 0) as listener:
        port = listener.getsockname()[1]
        thread = threading.Thread(target=lambda: asyncio.run(run()))
        thread.start()
        assert ready.wait(60)
        try:
            yield port
        finally:
            ended["loop"].call_soon_threadsafe(ended["stop"].set)
            thread.join(60)


async def echo(request):
    try:
        return PlainTextResponse(await read_body(request, 100))
    except BodyError as error:
        return PlainTextResponse(str(error), error.status, {"Connection": "close"})


APP = Starlette(routes=[Route("/", echo, methods=["POST"])])


def talk(port, *parts):
    """All that comes back until the server hangs up."""
    with socket.create_connection(("127.0.0.1", port), timeout=60) as caller:
        for part in parts:
            caller.sendall(part)
        received = b""
        with contextlib.suppress(ConnectionResetError):
            while data := caller.recv(1 << 16):
                received += data
        return received


WHOLE = b"POST / HTTP/1.1\r\nHost: localhost\r\nContent-Length: 2\r\n\r\nhi"


@pytest.mark.parametrize(
    ("sent", "answers"),
    [
        (b"", [b""]),
        (b"POST / HT", [b""]),
        (b"POST / HTTP/1.1\r\nHost: localhost\r\n", [b""]),
        (WHOLE + WHOLE[:30], [b"200 OK", b"hi"]),
        (WHOLE[:-1], [b"408", b"the body did not arrive within 0.3 s"]),
        (b"POST / HTTP/1.1\r\nHost: localhost\r\nContent-Length: 101\r\n\r\n" + b"x" * 101, [b"413", b"at most 100"]),
        (b"\x00\xff\r\n\r\n", [b"400"]),
    ],
)
def test_a_connection_without_its_whole_request_is_closed_after_a_while(monkeypatch, sent, answers):
    monkeypatch.setattr("webrl_serve.net.REQUEST_TIMEOUT_S", 0.3)
    with served(APP) as port:
        received = talk(port, sent)
    assert all(answer in received for answer in answers)
    assert bool(received) == bool(answers[0])


def test_more_connections_than_there_may_be_are_hung_up_on():
    with served(APP, max_connections=2) as port, contextlib.ExitStack() as stack:
        first = stack.enter_context(socket.create_connection(("127.0.0.1", port), timeout=60))
        first.sendall(WHOLE)
        assert first.recv(1 << 16).startswith(b"HTTP/1.1 200 OK")
        stack.enter_context(socket.create_connection(("127.0.0.1", port), timeout=60))
        assert talk(port) == b""


def test_a_client_that_stops_reading_is_dropped_and_one_that_reads_slowly_is_served(monkeypatch):
    monkeypatch.setitem(net._KERNEL_TIMEOUTS, "TCP_USER_TIMEOUT", 2000)
    was_dropped = {}

    async def body(request):
        for _ in range(200):
            yield b"x" * 100_000
        was_dropped[request.path_params["name"]] = await request.is_disconnected()

    app = Starlette(routes=[Route("/{name}", lambda request: StreamingResponse(body(request)))])
    with served(app) as port, contextlib.ExitStack() as stack:
        clients = {}
        for name in ("stuck", "slow"):
            clients[name] = stack.enter_context(socket.create_connection(("127.0.0.1", port), timeout=60))
            clients[name].sendall(f"GET /{name} HTTP/1.1\r\nHost: localhost\r\n\r\n".encode())
        while len(was_dropped) < 2 and clients["slow"].recv(100_000):
            time.sleep(0 if was_dropped else 0.02)
    assert was_dropped == {"stuck": True, "slow": False}


def test_a_refusal_ends_the_connection_and_says_how_to_be_let_in():
    app = Access(APP, "secret", lambda status: JSONResponse({"detail": "no"}, status))
    with served(app) as port:
        received = talk(port, WHOLE)
        allowed = talk(
            port, WHOLE.replace(b"\r\n\r\n", b"\r\nAuthorization: Bearer secret\r\nConnection: close\r\n\r\n")
        )
    assert received.startswith(b"HTTP/1.1 401")
    assert b"www-authenticate: bearer" in received.lower()
    assert allowed.endswith(b"hi")
