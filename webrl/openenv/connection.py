"""One client's WebSocket: OpenEnv's messages in, its answers out, one at a time.

API: `await converse(connection, hub)` is the handler of a WebSocket; it returns when the client has gone.
`await unless_gone(gone, work)` is the work's result while the client is there.
"""

from __future__ import annotations

import asyncio
import contextlib
import json
import logging
from collections.abc import Coroutine
from typing import Any, TypeVar

from pydantic import BaseModel, ConfigDict
from websockets.asyncio.server import ServerConnection
from websockets.exceptions import ConnectionClosed

from webrl.openenv.access import SEND_TIMEOUT_S
from webrl.openenv.answers import Answer, as_json, error_answer, explain, observation_answer
from webrl.openenv.environment import Session
from webrl.openenv.hub import Hub
from webrl.openenv.models import BrowserGymAction
from webrl.openenv.protocol import WSResetMessage, WSStateMessage, WSStepMessage
from webrl.openenv.tools import answer_request

logger = logging.getLogger(__name__)
T = TypeVar("T")

MESSAGES_PER_S = 100
"""A client that sends more is read more slowly."""
_TOO_BIG = 1009
"""Close code of a client that takes no messages of this size."""


class _ToolsMessage(BaseModel):
    model_config = ConfigDict(extra="forbid")

    type: str
    data: dict[str, Any]


async def converse(connection: ServerConnection, hub: Hub) -> None:
    """Serve one session until its client has gone."""
    session = Session(hub)
    hub.enter(session)
    try:
        with contextlib.suppress(ConnectionClosed, TimeoutError):
            await _answer_all(connection, session)
    finally:
        await asyncio.shield(session.close())
        if connection.close_code == _TOO_BIG:
            logger.warning(
                "a client has hung up because our answer is larger than it takes (openenv-core up to 0.2.1: 1 MB): "
                "it needs a smaller --viewport, --screenshots none, or a newer openenv-core"
            )


async def _answer_all(connection: ServerConnection, session: Session) -> None:
    loop = asyncio.get_running_loop()
    async for raw in connection:
        begun = loop.time()
        answer = await unless_gone(connection.wait_closed(), _answer(session, raw))
        if answer is None:
            return
        await _send(connection, answer)
        await asyncio.sleep(begun + 1 / MESSAGES_PER_S - loop.time())


async def unless_gone(gone: Coroutine[Any, Any, object], work: Coroutine[Any, Any, T]) -> T | None:
    """What the work returns; None, with the work cancelled, if the client goes before it is there."""
    answer, going = asyncio.ensure_future(work), asyncio.ensure_future(gone)
    try:
        await asyncio.wait([answer, going], return_when=asyncio.FIRST_COMPLETED)
        return answer.result() if answer.done() else None
    finally:
        for task in (answer, going):
            task.cancel()
        await asyncio.gather(answer, going, return_exceptions=True)


async def _answer(session: Session, raw: str | bytes) -> Answer | None:
    """The answer to one message; None: the client says good-bye."""
    handlers = {"reset": _reset, "step": _step, "state": _state, "mcp": _tools}
    try:
        message = json.loads(raw)
    except (ValueError, RecursionError) as error:
        return error_answer(f"Invalid JSON: {error}", "INVALID_JSON")
    if not isinstance(message, dict):
        return error_answer(f"a message is a JSON object, not {type(message).__name__}", "VALIDATION_ERROR")
    kind = message.get("type")
    if kind == "close":
        return None
    if not isinstance(kind, str) or kind not in handlers:
        return error_answer(f"Unknown message type: {str(kind)!r:.100}", "UNKNOWN_TYPE")
    try:
        return await handlers[kind](session, message)
    except Exception as error:  # the boundary of the server: the client must hear of it, and the others live on
        return explain(error, kind)


async def _reset(session: Session, message: dict[str, Any]) -> Answer:
    return observation_answer(await session.reset(WSResetMessage(**message).data))


async def _step(session: Session, message: dict[str, Any]) -> Answer:
    action = BrowserGymAction.model_validate(WSStepMessage(**message).data)
    return observation_answer(await session.step(action.action_str))


async def _state(session: Session, message: dict[str, Any]) -> Answer:
    WSStateMessage(**message)
    await session.check_place()
    return {"type": "state", "data": session.state.model_dump()}


async def _tools(session: Session, message: dict[str, Any]) -> Answer:  # noqa: ARG001 - as the others
    return {"type": "mcp", "data": answer_request(_ToolsMessage.model_validate(message).data)}


async def _send(connection: ServerConnection, answer: Answer) -> None:
    """Raises ConnectionClosed, TimeoutError (the client does not read)."""
    try:
        async with asyncio.timeout(SEND_TIMEOUT_S):
            await connection.send(as_json(answer), text=True)
    except TimeoutError:
        connection.transport.abort()
        raise
