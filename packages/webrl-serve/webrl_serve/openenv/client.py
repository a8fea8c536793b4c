"""Plays on OpenEnv servers (`rollout.env: openenv`): `webrl serve-env`, or OpenEnv's own BrowserGym server.

API:

    async with RemotePool(config.rollout) as pool:      # connects to every server once; raises if none can be used
        async with pool.env() as env:                   # waits for a free session; an `Env`
            trajectory = await run_episode(env, ...)

`num_workers * envs_per_worker` sessions are spread over `urls`. A server that cannot be reached or is full is tried
again every few seconds while the sessions of the others play on. When none has answered for `PATIENCE_S`, the stage
ends with StageError: what was played is kept, and the same command plays the rest when there is a server again.

The token of a server comes from the environment variable WEBRL_ENV_TOKEN, or from its URL (`https://any:TOKEN@host`).
"""

from __future__ import annotations

import asyncio
import base64
import contextlib
import io
import itertools
import logging
import os
import time
from collections.abc import AsyncIterator
from typing import Any, Self
from urllib.parse import urlsplit

from webrl.config import RolloutConfig
from webrl.config.extras import warn_of_openenv_conflict
from webrl.config.redaction import SecretUrl, redact, with_path
from webrl.errors import BrowserError, StageError, UsageError
from webrl.rollouts.actions import ActionError, read_answer
from webrl.rollouts.interface import Observation, Score, StepResult
from webrl.rollouts.pool import GRACE_S, START_TIMEOUT_S
from webrl.runs.text import dump_json, load_json
from webrl.types import Task
from webrl_serve.net import ENV_TOKEN, is_loopback

logger = logging.getLogger(__name__)

RETRY_S = 3.0
"""Pause before a server that did not answer is tried again."""
PATIENCE_S = 30.0
"""Time without any server after which the stage ends: a restart takes less."""
_OPEN_TIMEOUT_S = 10.0
_MAX_MESSAGE_BYTES = 1 << 30
_SETTINGS = ("screenshots", "viewport", "observation", "every_element", "dialect", "settle_cap_s", "step_timeout_s")
"""Config fields that a reset sends under the same name."""


class RemoteEnv:
    """One session on a server; implements `Env`."""

    def __init__(self, address: SecretUrl, config: RolloutConfig) -> None:
        self.url = str(address).rstrip("/")
        """The server's address without password or token, for messages."""
        self.problem = ""
        """Why the server could not be used when it was last tried, or ""."""
        self._address = address
        self._config = config
        self._socket: Any = None

    @property
    def is_open(self) -> bool:
        """True if a session is open, as far as we know."""
        return self._socket is not None

    async def connect(self) -> None:
        """Open the session if it is not open.

        Raises:
            BrowserError: no answer, or no free place.
            UsageError: a bad address, or the server does not let us in.
        """
        from websockets.asyncio.client import connect
        from websockets.exceptions import InvalidStatus, InvalidURI, WebSocketException

        if self.is_open:
            return
        address, token = self._address.reveal(), os.environ.get(ENV_TOKEN)
        scheme, _, rest = with_path(address, "/ws").partition("://")
        if scheme not in ("http", "https", "ws", "wss"):
            raise UsageError(f"rollout.urls: {self.url!r} is not an http:// or https:// address")
        is_local = is_loopback(urlsplit(address).hostname or "")
        try:
            self._socket = await connect(
                f"{'wss' if scheme in ('https', 'wss') else 'ws'}://{rest}",
                additional_headers={"Authorization": f"Bearer {token}"} if token and "@" not in rest else None,
                open_timeout=_OPEN_TIMEOUT_S,
                close_timeout=2,
                ping_interval=None,  # every request has its deadline; pings fail while a model keeps this loop busy
                max_size=_MAX_MESSAGE_BYTES,
                compression=None,
                proxy=None if is_local else True,
            )
            # A full server accepts the connection, and refuses the first request.
            await self._ask({"type": "state"}, _OPEN_TIMEOUT_S)
        except InvalidURI as error:
            raise UsageError(f"rollout.urls: no OpenEnv server at {self.url!r}: {redact(str(error))}") from None
        except (OSError, TimeoutError, WebSocketException) as error:
            if isinstance(error, InvalidStatus) and error.response.status_code in (401, 403):
                raise UsageError(
                    f"OpenEnv server {self.url} refused access ({error.response.status_code}): "
                    f"set {ENV_TOKEN} to its token"
                ) from None
            self.problem = redact(str(error)) or type(error).__name__
            raise BrowserError(f"OpenEnv server {self.url}: {self.problem}") from None
        except BrowserError as error:
            self.problem = str(error)
            raise
        self.problem = ""

    async def reset(self, task: Task) -> Observation:
        """Start an episode on the server."""
        await self.connect()
        suite, _, name = task.site.partition(".")
        config = self._config
        options: dict[str, Any] = {
            "benchmark": suite,
            "task_name": name,
            "seed": task.seed,
            "instruction": task.instruction,
            "start_url": task.start_url,
            "allowed_hosts": [*task.extra.get("allowed_hosts", ()), *config.allowed_hosts],
            **{name: getattr(config, name) for name in _SETTINGS},
            "details": True,
        }
        data = {name: value for name, value in options.items() if value is not None}
        answer = await self._ask({"type": "reset", "data": data}, config.step_timeout_s + GRACE_S + START_TIMEOUT_S)
        observation = self._read(answer, "noop()").observation
        if task.instruction and observation.goal != task.instruction:
            raise await self._broken(f"it ignored our instruction (the goal is {observation.goal!r:.80})")
        if suite == "miniwob" and not observation.url.partition("#")[0].endswith(f"/{name}.html"):
            # OpenEnv's own server plays the one task that it was started with, regardless of what a reset requests.
            raise await self._broken(
                f"it plays {observation.url!r:.200}, not {task.site!r}: start it with BROWSERGYM_TASK_NAME={name}"
            )
        return observation

    async def step(self, action_text: str) -> StepResult:
        """Act on the server."""
        if self._socket is None:
            raise BrowserError("step() before reset()")
        message = {"type": "step", "data": {"action_str": action_text}}
        answer = await self._ask(message, self._config.step_timeout_s + GRACE_S)
        return self._read(answer, action_text)

    async def finish(self) -> Score:
        """Return no score: the protocol has only the steps' rewards."""
        return Score(None)

    async def close(self) -> None:
        """End the session; the server closes its pages."""
        socket, self._socket = self._socket, None
        if socket is not None:
            with contextlib.suppress(Exception):
                await asyncio.wait_for(socket.close(), 5)

    async def _ask(self, message: dict[str, Any], allowed_s: float) -> dict[str, Any]:
        """Send a message, and return the data of the response.

        Raises:
            BrowserError: the session is then closed, unless the server itself reported the error.
        """
        from websockets.exceptions import ConnectionClosed, WebSocketException

        try:
            async with asyncio.timeout(allowed_s):
                with contextlib.suppress(ConnectionClosed):  # what the server said before it hung up is read below
                    await self._socket.send(dump_json(message).decode())
                answer = load_json(await self._socket.recv())
            kind, data = answer["type"], answer["data"]
        except asyncio.CancelledError:
            # The response is still under way, and would be taken for the next request's.
            self._socket.transport.abort()
            self._socket = None
            raise
        except TimeoutError:
            raise await self._broken(f"no answer to {message['type']!r} in {allowed_s:g} s") from None
        except (OSError, WebSocketException) as error:
            raise await self._broken(f"the connection is gone: {error}") from None
        except (ValueError, KeyError, TypeError) as error:
            raise await self._broken(f"malformed answer: {type(error).__name__}: {error}") from None
        if kind != "error":
            return data  # type: ignore[no-any-return]
        text = data.get("message", data) if isinstance(data, dict) else data
        if message["type"] == "state":
            raise await self._broken(str(text))
        raise BrowserError(f"OpenEnv server {self.url}: {text}")

    def _read(self, answer: dict[str, Any], action_text: str) -> StepResult:
        try:
            return read_result(answer, action_text, self._config)
        except (KeyError, TypeError, ValueError, AttributeError) as error:
            raise BrowserError(
                f"OpenEnv server {self.url}: malformed observation: {type(error).__name__}: {error}"
            ) from None

    async def _broken(self, reason: str) -> BrowserError:
        await self.close()
        return BrowserError(f"OpenEnv server {self.url}: {reason}")


class RemotePool:
    """Sessions on servers; see the module docstring."""

    def __init__(self, config: RolloutConfig) -> None:
        warn_of_openenv_conflict()
        urls = itertools.islice(itertools.cycle(config.urls), config.num_workers * config.envs_per_worker)
        self._envs = [RemoteEnv(url, config) for url in urls]
        self.size = len(self._envs)
        """Number of sessions."""
        # Open sessions first: a full server takes its time to refuse another one.
        self._free: asyncio.PriorityQueue[tuple[bool, int, RemoteEnv]] = asyncio.PriorityQueue()
        self._count = itertools.count()
        for env in self._envs:
            self._give_back(env)

    @contextlib.asynccontextmanager
    async def env(self) -> AsyncIterator[RemoteEnv]:
        """Borrow a session; waits until one is free on a server that answers.

        Raises:
            StageError: no server has answered for `PATIENCE_S`.
        """
        env = await self._take()
        try:
            yield env
        except BaseException:
            # Cancelled or failed in mid-episode: the server closes the page with the session.
            await asyncio.shield(env.close())
            raise
        finally:
            self._give_back(env)

    def _give_back(self, env: RemoteEnv) -> None:
        self._free.put_nowait((not env.is_open, next(self._count), env))

    async def _take(self) -> RemoteEnv:
        alone_since: float | None = None
        while True:
            *_, env = await self._free.get()
            try:
                await env.connect()
                return env
            except BrowserError as error:
                now = time.monotonic()
                if any(env.is_open for env in self._envs):
                    alone_since = None  # a server that is full of our own sessions, lent or free, is usable
                elif alone_since is None:
                    alone_since = now
                    logger.warning("no OpenEnv server answers; waiting %g s for one", PATIENCE_S)
                elif now - alone_since >= PATIENCE_S:
                    self._give_back(env)
                    problems = "; ".join({env.url: f"{env.url}: {env.problem}" for env in self._envs}.values())
                    raise StageError(
                        f"no OpenEnv server has answered for {PATIENCE_S:g} s ({problems}); what was played is kept: "
                        "start the servers, then run the same command again"
                    ) from None
                logger.debug("%s; next attempt in %g s", error, RETRY_S)
                asyncio.get_running_loop().call_later(RETRY_S, self._give_back, env)
            except BaseException:
                self._give_back(env)
                raise

    async def __aenter__(self) -> Self:
        """Connect to every server once. Raises UsageError if none answers, or one does not let us in."""
        first = {env.url: env for env in reversed(self._envs)}
        answers = await asyncio.gather(*(env.connect() for env in first.values()), return_exceptions=True)
        problems = [answer for answer in answers if answer is not None]
        try:
            for problem in problems:
                if not isinstance(problem, BrowserError):
                    raise problem
            if len(problems) == len(answers):
                listed = "; ".join(map(str, problems))
                fix = "start one (`webrl serve-env`), or correct rollout.urls"
                raise UsageError(f"no OpenEnv server can be used: {listed}; {fix}")
        except BaseException:
            await self.close()
            raise
        for problem in problems:
            logger.warning("%s; continuing with the other servers", problem)
        return self

    async def __aexit__(self, *exc: object) -> None:
        await asyncio.shield(self.close())

    async def close(self) -> None:
        """End all sessions."""
        await asyncio.gather(*(env.close() for env in self._envs))


def decode(screenshot: Any) -> bytes:
    """Returns the PNG of a screenshot from a server: base64 text, or lists [H][W][3] of 0 to 255.

    Raises:
        ValueError: it is neither.
    """
    import numpy as np
    from PIL import Image

    if isinstance(screenshot, str):
        return base64.b64decode(screenshot, validate=True)
    try:
        pixels = np.asarray(screenshot, dtype=np.uint8)
    except (TypeError, ValueError, OverflowError) as error:
        raise ValueError(f"the screenshot is neither a base64 PNG nor lists [H][W][3]: {error}") from None
    if pixels.ndim != 3 or pixels.shape[2] != 3 or not pixels.size:
        raise ValueError(f"the screenshot has shape {list(pixels.shape)}, not [H, W, 3]")
    out = io.BytesIO()
    Image.fromarray(pixels).save(out, format="PNG")
    return out.getvalue()


def read_result(data: dict[str, Any], action_text: str, config: RolloutConfig) -> StepResult:
    """Read the response to a step or reset; what a server of OpenEnv's own leaves out is read from the action."""
    page, done, reward = data["observation"], bool(data["done"]), float(data.get("reward") or 0.0)
    error = str(page.get("error") or ("the action failed" if page.get("last_action_error") else ""))
    screenshot = None
    if config.screenshots:
        if page.get("screenshot") is None:
            raise ValueError("no screenshot, which rollout.screenshots requires")
        screenshot = decode(page["screenshot"])
    text = page["text"] or page.get("axtree_txt") or page.get("pruned_html") or ""
    observation = Observation(str(text), str(page["url"]), str(page["goal"]), screenshot)
    if "agent_done" in page:
        done, says = bool(page["page_done"]), bool(page["agent_done"])
        blocked, message = int(page["blocked"]), str(page["message"])
        return StepResult(observation, str(page["action"]), error, done, reward, says, message, blocked)
    try:
        action = read_answer(action_text, config.dialect)
    except ActionError as problem:
        return StepResult(observation, "", error or str(problem), done, reward, agent_done=False)
    says = action.name in ("send_msg_to_user", "report_infeasible") and not error
    message = str(next(iter(action.arguments.values()))) if says else ""
    return StepResult(observation, action.canonical, error, done and not says, reward, says, message)
