"""`webrl serve-env` as users start it, and its servers within this process."""

import asyncio
import contextlib
import json
import os
import sys
import threading
from collections.abc import Iterator
from concurrent.futures import Future
from pathlib import Path
from typing import Any, Self

import pytest
from processes import python
from served import served

from webrl.config import RolloutConfig
from webrl.rollouts.pool import EnvPool
from webrl_serve.net import listen
from webrl_serve.openenv.server import host
from webrl_serve.openenv.session import Hub, ServerOptions

SCRIPTS = Path(__file__).parent / "openenv_scripts.py"
CLIENTS = Path(f"{sys.prefix}-openenv")


def server(*arguments, num_sessions=2, token=None, port=0, stderr=None, **variables):
    """A server with environment `variables`; a context that gives its URL and process."""
    environment = os.environ | {"OMP_NUM_THREADS": "1"} | ({"WEBRL_ENV_TOKEN": token} if token else {}) | variables
    settings = ["rollout.num_workers=1", f"rollout.envs_per_worker={num_sessions}"]
    command = ["serve-env", "--port", str(port), *arguments, *settings]
    return served(command, r"serving \d+ sessions on (http://\S+)\n", stderr=stderr, environment=environment)


def run_script(package, script, url):
    """What a script saw, with `package` as its OpenEnv."""
    if not (CLIENTS / package).is_dir():
        pytest.skip(f"{package} is not in {CLIENTS}: make engines")
    return json.loads(python(SCRIPTS, script, url, PYTHONPATH=str(CLIENTS / package)).stdout)


def client(url):
    """OpenEnv's own client, on which that of its BrowserGym environment is built; its import takes seconds."""
    from openenv.core.generic_client import GenericEnvClient

    return GenericEnvClient(base_url=url).sync()


class Servers:
    """Servers in a thread of this process, each with its own sessions, all on one browser: starts take seconds.

    Each is a server as `webrl serve-env` has it but for that command's start and end.
    """

    def __init__(self, num_envs: int = 6) -> None:
        """Prepare; `num_envs` is the largest server's number of sessions."""
        self._config = RolloutConfig(num_workers=1, envs_per_worker=num_envs)
        self._runner = asyncio.Runner()
        self._pool = EnvPool(self._config)
        self._thread = threading.Thread(target=self._runner.get_loop().run_forever, name="servers", daemon=True)

    def __enter__(self) -> Self:
        self._thread.start()
        self._do(self._pool.__aenter__()).result()
        return self

    def __exit__(self, *_: object) -> None:
        self._do(self._pool.__aexit__(None, None, None)).result()
        self._runner.get_loop().call_soon_threadsafe(self._runner.get_loop().stop)
        self._thread.join()
        self._runner.close()

    @contextlib.contextmanager
    def open(self, num_sessions: int = 2, rollout: dict[str, Any] | None = None, **options: Any) -> Iterator[str]:
        """A server's URL; `options` are those of ServerOptions, `rollout` settings that differ from the defaults."""
        told = ServerOptions(port=0, **{"viewport": (1280, 720)} | options)
        hub = Hub(self._pool, self._config.model_copy(update=rollout or {}), num_sessions, told)
        up: Future[str] = Future()
        stop = asyncio.Event()
        with listen(told.host, told.port) as listener:
            ended = self._do(host(hub, listener, lambda url, _: up.set_result(url), stop))
            try:
                yield up.result(60)
            finally:
                self._runner.get_loop().call_soon_threadsafe(stop.set)
                ended.result(60)

    def _do(self, work: Any) -> Future[Any]:
        return asyncio.run_coroutine_threadsafe(work, self._runner.get_loop())
