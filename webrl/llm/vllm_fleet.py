"""The vLLM server processes of one model, one for each group of GPUs, and how new weights get into them.

Weights change in one of three ways (`can_reload` decides): a LoRA adapter is loaded beside the base model, a whole
checkpoint is reloaded in place, or the servers restart.
"""

from __future__ import annotations

import asyncio
import atexit
import logging
import secrets
import shutil
import tempfile
from pathlib import Path
from typing import Any

import httpx

from webrl.config import EngineConfig, ModelsConfig
from webrl.errors import ModelError
from webrl.llm.server_process import ServerProcess, free_port
from webrl.llm.vllm_command import (
    SERVED_NAME,
    Weights,
    can_reload,
    find_python,
    gpu_groups,
    install_access,
    server_command,
    server_environment,
)

logger = logging.getLogger(__name__)

_CACHE_RESETS = 5
_MAX_RESTARTS = 1
"""Times that a server which died is started again before it counts as broken."""


class Fleet:
    """Servers that all answer with the same weights; independent of event loops, so that it outlives one."""

    def __init__(self, name: str, engine: EngineConfig, models: ModelsConfig) -> None:
        """Check what can be checked without starting anything.

        Raises:
            ModelError: no vLLM, unusable folder, too few GPUs.
        """
        self.weights = Weights.of(name)
        self.served_name = SERVED_NAME
        self.api_key = secrets.token_hex(16)
        self._engine = engine
        self._models = models
        self._python = find_python(engine)
        self._groups = gpu_groups(engine)
        self._servers: list[ServerProcess] = []
        self._num_restarts = [0] * len(self._groups)
        self._num_adapters = 0
        self._folder = Path(tempfile.mkdtemp(prefix="webrl-vllm-"))

    @property
    def urls(self) -> list[str]:
        """OpenAI base URL of each server."""
        return [f"{server.base_url}/v1" for server in self._servers]

    @property
    def logs(self) -> list[Path]:
        """Log file of each server."""
        return [server.log for server in self._servers]

    @property
    def alive(self) -> bool:
        """True if there are servers and all of them run."""
        return bool(self._servers) and all(server.alive for server in self._servers)

    async def start(self) -> None:
        """Start all servers and wait until they are healthy.

        Raises:
            ModelError: one did not start (the end of its log is quoted).
        """
        self._servers = [self._new_server(index, free_port()) for index in range(len(self._groups))]
        self._num_restarts = [0] * len(self._groups)
        for server in self._servers:
            server.start()
            atexit.register(server.kill)
        logger.info("starting %d vLLM server(s) for %s, logs in %s", len(self.urls), self.weights.base, self._folder)
        await asyncio.gather(*[server.wait_healthy(self._engine.start_timeout_s) for server in self._servers])
        self.served_name = SERVED_NAME
        if self.weights.adapter:
            await self._load_adapter(self.weights)

    async def stop(self) -> None:
        """Stop the servers with everything they started; the logs stay if one had died."""
        clean = self.alive
        servers, self._servers = self._servers, []
        await asyncio.gather(*[server.stop() for server in servers])
        for server in servers:
            atexit.unregister(server.kill)
        if clean:
            shutil.rmtree(self._folder, ignore_errors=True)

    def describe_dead(self) -> str:
        """Log tails of the servers that died, or ""."""
        return "\n".join(server.log_tail() for server in self._servers if not server.alive)

    async def change_weights(self, new: Weights) -> None:
        """Make all servers answer with `new`; call it when no answer is open.

        Raises:
            ModelError: they do not even after a restart.
        """
        if self.alive and can_reload(self.weights, new, self._engine, on_gpu=bool(self._groups[0])):
            try:
                await (self._load_adapter(new) if new.adapter else self._reload(new))
            except ModelError as error:
                logger.warning("%s; restarting the servers instead", error)
            else:
                self.weights = new
                return
        self.weights = new
        await self.stop()
        await self.start()

    async def revive(self) -> None:
        """Start servers that died again, each at most once.

        Raises:
            ModelError: one died again, or does not start (the end of its log is quoted).
        """
        for index, server in enumerate(self._servers):
            if server.alive:
                continue
            tail = server.log_tail()
            self._num_restarts[index] += 1
            if self._num_restarts[index] > _MAX_RESTARTS:
                raise ModelError(f"vLLM server {index} of {self.weights.base} died again; {tail}")
            logger.error("vLLM server %d of %s died and is started again; %s", index, self.weights.base, tail)
            await server.stop()
            atexit.unregister(server.kill)
            # Built anew: the weights may have changed since it was first started.
            self._servers[index] = self._new_server(index, server.port)
            self._servers[index].start()
            atexit.register(self._servers[index].kill)
            await self._servers[index].wait_healthy(self._engine.start_timeout_s)
        if self.weights.adapter:
            await self._load_adapter(self.weights)

    def _new_server(self, index: int, port: int) -> ServerProcess:
        gpus = self._groups[index]
        command = server_command(self._python, self.weights, self._engine, self._models, port, on_gpu=bool(gpus))
        install_access(self._folder)
        env = server_environment(gpus, self.api_key, self._folder)
        return ServerProcess(command, port=port, log=self._folder / f"server{index}.log", env=env)

    async def _load_adapter(self, weights: Weights) -> None:
        """Under a new name each time, so that no cache can mix two adapters."""
        old, self._num_adapters = self.served_name, self._num_adapters + 1
        name = f"adapter-{self._num_adapters}"
        path = str(Path(weights.adapter or "").resolve())
        await self._post_all("/v1/load_lora_adapter", {"lora_name": name, "lora_path": path})
        self.served_name = name
        if old != SERVED_NAME:
            try:
                await self._post_all("/v1/unload_lora_adapter", {"lora_name": old})
            except ModelError as error:  # a revived server never had it
                logger.debug("%s", error)

    async def _reload(self, weights: Weights) -> None:
        folder = str(Path(weights.base).resolve())
        await self._post_all("/collective_rpc", {"method": "reload_weights", "kwargs": {"weights_path": folder}})
        # Cached keys and values were computed with the old weights; a reset fails while a request still holds some.
        for _ in range(_CACHE_RESETS):
            answers = await self._post_all("/reset_prefix_cache", None)
            if all('"success":false' not in answer.replace(" ", "") for answer in answers):
                return
            await asyncio.sleep(1.0)
        raise ModelError(f"the prefix cache of {weights.base} could not be reset")

    async def _post_all(self, path: str, body: dict[str, Any] | None) -> list[str]:
        """POST to every server; gives the texts of the answers.

        Raises:
            ModelError: one did not answer 200.
        """
        headers = {"Authorization": f"Bearer {self.api_key}"}
        async with httpx.AsyncClient(timeout=self._engine.start_timeout_s, trust_env=False, headers=headers) as client:
            answers = []
            for server in self._servers:
                try:
                    response = await client.post(server.base_url + path, json=body)
                except httpx.TransportError as error:
                    raise ModelError(f"{server.base_url}{path}: {error!r}; {server.log_tail()}") from error
                if response.status_code != 200:
                    raise ModelError(f"{server.base_url}{path} answered {response.status_code}: {response.text[:500]}")
                answers.append(response.text)
            return answers
