"""A WebSocket client for Chromium's DevTools server on loopback: text messages in both directions, nothing else.

Written for this one peer because every step of every episode passes through it about ten times, and a general library
costs more here than parsing and carrying out the calls does. Left out: TLS, extensions, fragmented sending, and the
masking of what we send (RFC 6455 asks for a random key against caching proxies; there is none on loopback, and the key
zero leaves the bytes as they are).

API: `socket = await DevToolsSocket.open(port, path, on_message, on_close)`, `socket.send(...)`, `socket.close()`.
"""

from __future__ import annotations

import asyncio
import base64
import os
from collections.abc import Callable
from typing import Self

_FINAL, _OPCODE = 0x80, 0x0F
_TEXT, _CONTINUED, _CLOSE, _PING, _PONG = 0x1, 0x0, 0x8, 0x9, 0xA
_MASKED = 0x80
_NO_KEY = bytes(4)
MAX_MESSAGE_BYTES = 1 << 28
"""A page that makes the browser send more in one message is given up."""


class DevToolsSocket(asyncio.Protocol):
    """One connection; `on_message` gets each text message as bytes, `on_close` is called once at the end."""

    def __init__(self, on_message: Callable[[bytes], None], on_close: Callable[[], None]) -> None:
        self._on_message = on_message
        self._on_close = on_close
        self._buffer = bytearray()
        self._parts: list[bytes] = []
        self._transport: asyncio.Transport
        self._greeting: asyncio.Future[bytes] | None = asyncio.get_running_loop().create_future()

    @classmethod
    async def open(
        cls, port: int, path: str, on_message: Callable[[bytes], None], on_close: Callable[[], None]
    ) -> Self:
        """Connect. Raises OSError (nobody listens, or the answer is no)."""
        loop = asyncio.get_running_loop()
        _, socket = await loop.create_connection(lambda: cls(on_message, on_close), "127.0.0.1", port)
        key = base64.b64encode(os.urandom(16)).decode()
        lines = (f"GET {path} HTTP/1.1", f"Host: 127.0.0.1:{port}", "Upgrade: websocket", "Connection: Upgrade")
        more = (f"Sec-WebSocket-Key: {key}", "Sec-WebSocket-Version: 13", "", "")
        socket._transport.write("\r\n".join(lines + more).encode())
        assert socket._greeting is not None
        status = (await socket._greeting).split(b"\r\n", 1)[0]
        socket._greeting = None
        if b" 101 " not in status:
            socket._transport.abort()
            raise ConnectionRefusedError(status.decode("latin-1"))
        socket._parse()
        return socket

    def send(self, *messages: bytes) -> None:
        """Send text messages, all in one write."""
        self._transport.write(b"".join(part for message in messages for part in (_header(_TEXT, message), message)))

    def close(self) -> None:
        """Hang up."""
        self._transport.abort()

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        """Part of asyncio's protocol."""
        assert isinstance(transport, asyncio.Transport)
        self._transport = transport

    def data_received(self, data: bytes) -> None:
        """Part of asyncio's protocol."""
        self._buffer += data
        if self._greeting is None:
            self._parse()
        elif not self._greeting.done() and (end := self._buffer.find(b"\r\n\r\n")) >= 0:
            self._greeting.set_result(bytes(self._buffer[:end]))
            del self._buffer[: end + 4]

    def connection_lost(self, exc: Exception | None) -> None:  # noqa: ARG002
        """Part of asyncio's protocol."""
        if self._greeting is not None and not self._greeting.done():
            self._greeting.set_exception(ConnectionResetError("the DevTools server hung up"))
        self._on_close()

    def _parse(self) -> None:
        """Take whole frames from the buffer."""
        buffer, start = self._buffer, 0
        while len(buffer) - start >= 2:
            first, size, body = buffer[start], buffer[start + 1] & 0x7F, start + 2
            if size > 125:
                width = 2 if size == 126 else 8
                if len(buffer) - body < width:
                    break
                size = int.from_bytes(buffer[body : body + width], "big")
                body += width
            if size > MAX_MESSAGE_BYTES or sum(map(len, self._parts)) > MAX_MESSAGE_BYTES:
                buffer.clear()
                self._transport.abort()
                return
            if len(buffer) - body < size:
                break
            start = body + size
            self._take(first, bytes(buffer[body:start]))
        del buffer[:start]

    def _take(self, first: int, body: bytes) -> None:
        opcode = first & _OPCODE
        if opcode in (_TEXT, _CONTINUED):
            self._parts.append(body)
            if first & _FINAL:
                whole = body if len(self._parts) == 1 else b"".join(self._parts)
                self._parts.clear()
                self._on_message(whole)
        elif opcode == _PING:
            self._transport.write(_header(_PONG, body) + body)
        elif opcode == _CLOSE:
            self._transport.close()


def _header(opcode: int, body: bytes) -> bytes:
    """Start of a final frame, masked with the key zero."""
    size = len(body)
    if size < 126:
        return bytes((_FINAL | opcode, _MASKED | size)) + _NO_KEY
    if size < 1 << 16:
        return bytes((_FINAL | opcode, _MASKED | 126)) + size.to_bytes(2, "big") + _NO_KEY
    return bytes((_FINAL | opcode, _MASKED | 127)) + size.to_bytes(8, "big") + _NO_KEY
