"""One client's connection: OpenEnv's messages in, its answers out, one at a time.

API: `await converse(connection, hub)` is the handler of a WebSocket; it returns when the client has gone.
"""

from __future__ import annotations

import asyncio
import contextlib
import json
import logging
from collections.abc import Coroutine
from typing import Any

from pydantic import ValidationError
from websockets.asyncio.server import ServerConnection
from websockets.exceptions import ConnectionClosed

from webrl.errors import WebRLError, problem_text
from webrl.openenv.environment import Hub, Session
from webrl.openenv.models import BrowserGymAction, BrowserGymObservation
from webrl.openenv.protocol import WSResetMessage, WSStateMessage, WSStepMessage

logger = logging.getLogger(__name__)

Answer = dict[str, Any]
"""A message to the client."""

MESSAGES_PER_S = 100
"""A client that sends more is read more slowly."""
SEND_TIMEOUT_S = 60.0
"""A client that does not take its answer for so long is hung up on."""


async def converse(connection: ServerConnection, hub: Hub) -> None:
    """Serve one session until its client has gone."""
    with contextlib.suppress(ConnectionClosed, TimeoutError):
        if hub.num_active >= hub.pool.size:
            await _send(connection, _full(hub))
            return
        session = Session(hub)
        try:
            await _answer_all(connection, session)
        finally:
            await asyncio.shield(session.close())


async def _answer_all(connection: ServerConnection, session: Session) -> None:
    loop = asyncio.get_running_loop()
    async for raw in connection:
        begun = loop.time()
        answer = await _unless_gone(connection, _answer(session, raw))
        if answer is None:
            return
        await _send(connection, answer)
        await asyncio.sleep(begun + 1 / MESSAGES_PER_S - loop.time())


async def _unless_gone(connection: ServerConnection, work: Coroutine[Any, Any, Answer | None]) -> Answer | None:
    """The answer; None, with the work cancelled, if the client goes before it is there."""
    answer = asyncio.ensure_future(work)
    gone = asyncio.ensure_future(connection.wait_closed())
    try:
        await asyncio.wait([answer, gone], return_when=asyncio.FIRST_COMPLETED)
        return answer.result() if answer.done() else None
    finally:
        for task in (answer, gone):
            task.cancel()
        await asyncio.gather(answer, gone, return_exceptions=True)


async def _answer(session: Session, raw: str | bytes) -> Answer | None:
    """The answer to one message; None: the client says good-bye."""
    handlers = {"reset": _reset, "step": _step, "state": _state}
    try:
        message = json.loads(raw)
    except (ValueError, RecursionError) as error:
        return _error(f"Invalid JSON: {error}", "INVALID_JSON")
    if not isinstance(message, dict):
        return _error(f"a message is a JSON object, not {type(message).__name__}", "VALIDATION_ERROR")
    kind = message.get("type")
    if kind == "close":
        return None
    if not isinstance(kind, str) or kind not in handlers:
        return _error(f"Unknown message type: {str(kind)!r:.100}", "UNKNOWN_TYPE")
    try:
        return await handlers[kind](session, message)
    except ValidationError as error:
        return _error(f"{kind}: {problem_text(error.errors()[0])}", "VALIDATION_ERROR")
    except WebRLError as error:
        return _error(str(error), "EXECUTION_ERROR")
    except Exception as error:  # the boundary of the server: the client must hear of it, and the others live on
        logger.exception("request failed")
        return _error(f"{type(error).__name__}: {error}", "EXECUTION_ERROR")


async def _reset(session: Session, message: dict[str, Any]) -> Answer:
    return _observation(await session.reset(WSResetMessage(**message).data))


async def _step(session: Session, message: dict[str, Any]) -> Answer:
    action = BrowserGymAction.model_validate(WSStepMessage(**message).data)
    return _observation(await session.step(action.action_str))


async def _state(session: Session, message: dict[str, Any]) -> Answer:
    WSStateMessage(**message)
    return {"type": "state", "data": session.state.model_dump()}


def _observation(observation: BrowserGymObservation) -> Answer:
    fields = observation.model_dump(exclude={"reward", "done", "metadata"})
    data = {"observation": fields, "reward": observation.reward, "done": observation.done}
    return {"type": "observation", "data": data}


def _full(hub: Hub) -> Answer:
    active, size = hub.num_active, hub.pool.size
    text = f"Server at capacity: {active}/{size} sessions active"
    return _error(text, "CAPACITY_REACHED", active_sessions=active, max_sessions=size)


def _error(text: str, code: str, **more: int) -> Answer:
    return {"type": "error", "data": {"message": text, "code": code} | more}


async def _send(connection: ServerConnection, answer: Answer) -> None:
    """Raises ConnectionClosed, TimeoutError (the client does not read)."""
    try:
        async with asyncio.timeout(SEND_TIMEOUT_S):
            await connection.send(json.dumps(answer))
    except TimeoutError:
        connection.transport.abort()
        raise
