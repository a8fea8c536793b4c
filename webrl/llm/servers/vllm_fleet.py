"""The vLLM server processes of one model, one for each group of GPUs: their commands, awake or asleep, and with which
weights.

`keep_servers` keeps them for a run, whose stages borrow them; otherwise they end with the model opened on them. Within
it, closing a model puts its servers to sleep, and opening the next one of the same shape and settings wakes them: the
actor of the next phase, a generator or a judge with the same base model.

Weights change in one of three ways (`can_reload` decides): a LoRA adapter is loaded on top of the base model, a
whole checkpoint replaces the loaded one, or the servers restart.

On GPUs, servers that sleep keep their weights in the host's memory and leave all but their CUDA context and graphs to
others. Servers that cannot sleep are stopped instead, and start again when they are to wake. On a CPU there is nothing
to leave to others: servers that "sleep" wait for requests.
"""

from __future__ import annotations

import asyncio
import atexit
import contextlib
import json
import logging
import os
import re
import secrets
import shutil
import signal
import subprocess
import sys
import tempfile
import time
from collections.abc import Iterator, Mapping, Sequence
from contextvars import ContextVar
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any

from webrl.config import EngineConfig, ModelsConfig
from webrl.config.extras import require
from webrl.config.redaction import remember
from webrl.errors import ModelError
from webrl.llm.loading import base_of, config_of, model_fingerprint, model_folder, pick_dtype
from webrl.runs.clock import spent_on
from webrl.runs.machine import free_gpu_cache, free_port, visible_gpus

if TYPE_CHECKING:
    from webrl.llm.servers.http_pool import HttpPool

logger = logging.getLogger(__name__)

SERVED_NAME = "policy"
"""Name of the base model at our own servers; adapters get their own names."""
NO_SLEEP = "--no-enable-sleep-mode"
"""In `engine.extra_args`: servers are stopped, not put to sleep, when others need the GPU."""
_PLUGIN = "webrl_vllm_plugin"
"""Name under which vLLM imports `vllm_plugin.py`, which restricts its routes to us and loads weights."""
_LONGEST_SOCKET_FOLDER = 107 - len("/01234567-89ab-cdef-0123-456789abcdef")
"""A Unix socket's path has at most 107 bytes; vLLM names its own by UUIDs."""
_NEW_TOKENS_RESERVE = 512
"""Context kept for the answer on top of `models.max_prompt_tokens` (paper: 16384 - 512 for the prompt)."""
_MIN_LORA_RANK = 16
_GUARD = Path(__file__).with_name("guard.py")
_POLL_S = 0.25
_STOP_GRACE_S = 15.0
_ERROR_LINE = re.compile(r"^(?!.*\b(?:INFO|WARNING)\b).*\b\w*(?:[Ee]rror|Exception): ")


@dataclass(frozen=True)
class Weights:
    """The weights that a server answers with."""

    base: str
    """Folder or hub name of the whole model."""
    adapter: str | None
    """LoRA folder on top of it."""
    lora_rank: int
    """The adapter's rank; 0 without adapter."""
    shape: str
    """The model's config without what weights leave alone: equal shapes can be reloaded in place."""
    fingerprint: str
    """Of the weights, independent of their folder; an adapter's own."""

    @classmethod
    def of(cls, name: str) -> Weights:
        """Look at a model or adapter folder (or hub name); ModelError if it is absent or incomplete."""
        base = base_of(name)
        rank = int(json.loads((Path(name).expanduser() / "adapter_config.json").read_text())["r"]) if base else 0
        config: dict[str, Any] = config_of(base or name).get_text_config().to_dict()
        of_answers = ("bos_token_id", "eos_token_id", "pad_token_id")  # trainers set them; requests say where to end
        for key in ("_name_or_path", "transformers_version", "dtype", "torch_dtype", "use_cache", *of_answers):
            config.pop(key, None)
        shape = json.dumps(config, sort_keys=True)
        return cls(base or name, name if base else None, rank, shape, model_fingerprint(name))

    def answers_as(self, other: Weights) -> bool:
        """True if a model with these weights is a model with the other ones."""
        own, others = ((w.fingerprint, w.base if w.adapter else None) for w in (self, other))
        return own == others


def find_python(engine: EngineConfig) -> str:
    """The interpreter that has vLLM; ExtraMissing if this one has none, ModelError if the named one cannot be run."""
    if engine.vllm_python is None:
        require("vllm", "engine.kind=vllm")
        return sys.executable
    if shutil.which(engine.vllm_python) is None:
        raise ModelError(f"engine.vllm_python={engine.vllm_python!r} is not an executable")
    return engine.vllm_python


def gpu_groups(engine: EngineConfig) -> list[list[str]]:
    """GPUs of each replica; one empty group (the CPU) on a machine without any. ModelError for too few."""
    gpus, size = visible_gpus(), engine.tensor_parallel
    if not gpus:
        return [[]]
    if len(gpus) < size:
        raise ModelError(f"engine.tensor_parallel={size}, but this machine has {len(gpus)} GPUs")
    return [gpus[start : start + size] for start in range(0, len(gpus) - size + 1, size)]


def server_command(
    python: str, weights: Weights, engine: EngineConfig, models: ModelsConfig, port: int, on_gpu: bool
) -> list[str]:
    """`python -m vllm.entrypoints.openai.api_server …`; `engine.extra_args` come last and win."""
    command = [python, "-m", "vllm.entrypoints.openai.api_server", "--model", weights.base]
    command += ["--served-model-name", SERVED_NAME, "--host", "127.0.0.1", "--port", str(port)]
    command += ["--middleware", f"{_PLUGIN}.RequireKey"]
    command += ["--worker-extension-cls", f"{_PLUGIN}.LoadInPlace"]
    # The model's own generation_config.json would change sampling (top-p, temperature) behind our back.
    dtype = pick_dtype(models.dtype, "cuda" if on_gpu else "cpu")
    command += ["--generation-config", "vllm", "--dtype", dtype]
    context = str(context_length(weights, models))
    command += ["--max-model-len", context]
    if on_gpu:
        command += ["--tensor-parallel-size", str(engine.tensor_parallel)]
        command += ["--gpu-memory-utilization", str(engine.gpu_memory_utilization)]
        command += [] if NO_SLEEP in engine.extra_args else ["--enable-sleep-mode"]
    else:
        # A CPU server dies of a seeded request whose prompt is computed in parts (seen with vLLM 0.32).
        command += ["--enforce-eager", "--no-enable-chunked-prefill", "--max-num-batched-tokens", context]
    if weights.adapter:
        command += ["--enable-lora", "--max-lora-rank", str(max(_MIN_LORA_RANK, weights.lora_rank))]
    return command + list(engine.extra_args)


def server_environment(gpus: list[str], api_key: str, folder: Path) -> dict[str, str]:
    """Variables of a server on these GPUs (none: the CPU), with a copy of the file that vLLM imports in `folder`."""
    folder.mkdir(parents=True, exist_ok=True)
    shutil.copyfile(Path(__file__).with_name("vllm_plugin.py"), folder / f"{_PLUGIN}.py")
    env = {
        "PYTHONPATH": os.pathsep.join(filter(None, [os.environ.get("PYTHONPATH"), str(folder)])),
        "VLLM_API_KEY": api_key,
        "VLLM_SERVER_DEV_MODE": "1",  # /sleep, /wake_up, /collective_rpc and /reset_prefix_cache
        "VLLM_ALLOW_RUNTIME_LORA_UPDATING": "1",
        "VLLM_NO_USAGE_STATS": "1",
    }
    if len(str(folder)) <= _LONGEST_SOCKET_FOLDER:  # so that the sockets of a server that was killed go with the folder
        env["TMPDIR"] = str(folder)
    if gpus:
        # FlashInfer compiles its sampler for top-k and top-p at the first start, 105 of 270 s on a host of four H100;
        # vLLM has its own.
        sampler = os.environ.get("VLLM_USE_FLASHINFER_SAMPLER", "0")
        return env | {"CUDA_VISIBLE_DEVICES": ",".join(gpus), "VLLM_USE_FLASHINFER_SAMPLER": sampler}
    defaults = {"VLLM_CPU_OMP_THREADS_BIND": "nobind", "VLLM_CPU_KVCACHE_SPACE": "1"}
    return env | {key: os.environ.get(key, value) for key, value in defaults.items()}


def can_reload(old: Weights, new: Weights, engine: EngineConfig) -> bool:
    """True if a running server can take `new` without a restart."""
    if engine.weight_update == "restart" or new.shape != old.shape:
        return False
    if new.adapter or old.adapter:
        # Another base under an adapter, or an adapter on a server started without LoRA.
        return new.base == old.base and bool(old.adapter) and new.lora_rank <= max(_MIN_LORA_RANK, old.lora_rank)
    return True


def context_length(weights: Weights, models: ModelsConfig) -> int:
    """Tokens of prompt and answer that our servers of these weights take."""
    wanted = models.max_prompt_tokens + _NEW_TOKENS_RESERVE
    return min(wanted, int(json.loads(weights.shape).get("max_position_embeddings", wanted)))


class ServerProcess:
    """A command that serves HTTP on a port of this machine and writes its output to `log`.

    The process group dies with this process, even if this process is killed (`webrl/llm/servers/guard.py`).
    """

    def __init__(self, command: Sequence[str], *, port: int, log: Path, env: Mapping[str, str]) -> None:
        self.port, self.base_url = port, f"http://127.0.0.1:{port}"
        self.log = log
        self._command, self._env, self._begun = list(command), dict(env), 0
        self._process: subprocess.Popen[bytes] | None = None

    @property
    def alive(self) -> bool:
        """True while the command runs."""
        return self._process is not None and self._process.poll() is None

    def start(self) -> None:
        """Start the command, which ends with this interpreter; its output is appended to the log."""
        atexit.register(self.kill)
        self.log.parent.mkdir(parents=True, exist_ok=True)
        with self.log.open("ab") as log:
            self._begun = log.tell()
            self._process = subprocess.Popen(
                [sys.executable, str(_GUARD), *self._command],
                stdin=subprocess.PIPE,
                stdout=log,
                stderr=subprocess.STDOUT,
                env={**os.environ, **self._env},
                start_new_session=True,
            )

    async def wait_healthy(self, timeout_s: float) -> None:
        """Wait until `/health` answers 200; ModelError if the command ends, or the time is up (its log is quoted)."""
        import httpx

        deadline = time.monotonic() + timeout_s
        async with httpx.AsyncClient(timeout=5.0, trust_env=False) as client:
            while time.monotonic() < deadline:
                if not self.alive:
                    raise ModelError(f"the model server ended while it started; {self.log_tail()}")
                with contextlib.suppress(httpx.TransportError):
                    if (await client.get(f"{self.base_url}/health")).status_code == 200:
                        return
                await asyncio.sleep(_POLL_S)
        raise ModelError(f"the model server was not healthy within {timeout_s:g} s; {self.log_tail()}")

    async def post(self, path: str, body: dict[str, Any] | None, *, api_key: str, timeout_s: float) -> str:
        """POST JSON to the server; returns the text of its answer, ModelError for anything but 200."""
        import httpx

        headers = {"Authorization": f"Bearer {api_key}"}
        async with httpx.AsyncClient(timeout=timeout_s, trust_env=False, headers=headers) as client:
            try:
                response = await client.post(self.base_url + path, json=body)
            except httpx.TransportError as error:
                raise ModelError(f"{self.base_url}{path}: {error!r}; {self.log_tail()}") from error
        if response.status_code != 200:
            raise ModelError(f"{self.base_url}{path} answered {response.status_code}: {response.text[:500]}")
        return response.text

    async def stop(self) -> None:
        """Stop the command with all that it started: its guard terminates them, then kills what is left."""
        if self._process is not None:
            await asyncio.to_thread(self._process.communicate)  # closes its input
            deadline = time.monotonic() + _STOP_GRACE_S
            with contextlib.suppress(ProcessLookupError, PermissionError):
                while time.monotonic() < deadline:  # what is killed gives its memory back a moment later
                    os.killpg(self._process.pid, 0)
                    await asyncio.sleep(0.1)
        self.kill()

    def kill(self) -> None:
        """Stop at once, without an event loop (interpreter exit)."""
        atexit.unregister(self.kill)
        process, self._process = self._process, None
        if process is None:
            return
        with contextlib.suppress(ProcessLookupError, PermissionError):
            os.killpg(process.pid, signal.SIGKILL)
        process.communicate()

    def log_tail(self) -> str:
        """The errors of this start in the log, or the log's end where there are none, with its path."""
        try:
            text = self.log.read_bytes()[self._begun :].decode(errors="replace")
        except OSError as error:
            return f"its log {self.log} cannot be read: {error}"
        # A worker's error, which is the cause, comes long before the end of the log.
        errors = list(dict.fromkeys(line for line in text.splitlines() if _ERROR_LINE.search(line)))
        return f"its log {self.log} says:\n" + ("\n".join(errors[:4] + errors[4:][-4:]) or text[-1500:])


_NO_SLEEP = re.compile(r"Sleep mode is not supported|unrecognized arguments:.*--enable-sleep-mode")
"""What vLLM says on platforms, and in versions, without it."""
_OUT_OF_MEMORY = re.compile(r"out of memory|gpu.memory.utilization|No available memory for the cache blocks", re.I)


class Fleet:
    """Servers that all answer with the same weights. Independent of event loops, so it outlives one.

    Raises:
        ModelError: no vLLM, too few GPUs; of methods: servers that do not start, restart or wake (a log is quoted).
    """

    def __init__(self, weights: Weights, engine: EngineConfig, models: ModelsConfig) -> None:
        self.weights = weights
        self.served_name = SERVED_NAME
        self._api_key = secrets.token_hex(16)
        remember(self._api_key)
        self.engine = engine
        self.models = models
        self.is_verified = False
        """Set from outside once the log-probs have been compared with the trainer's; new weights reset it."""
        self._is_asleep = self._was_revived = False
        self._python = find_python(engine)
        self._groups = gpu_groups(engine)
        self.servers: list[ServerProcess] = []
        self._num_adapters = 0
        self._folder = Path(tempfile.mkdtemp(prefix="webrl-vllm-"))

    def connect(self) -> HttpPool:
        """Return connections to all servers, until they are started again."""
        from webrl.llm.servers.http_pool import HttpPool  # `import webrl` needs no HTTP client

        urls, engine = [f"{server.base_url}/v1" for server in self.servers], self.engine
        return HttpPool(urls, timeout_s=engine.timeout_s, max_retries=engine.max_retries, api_key=self._api_key)

    @property
    def alive(self) -> bool:
        """True if there are servers and all of them run."""
        return bool(self.servers) and all(server.alive for server in self.servers)

    async def serve(self, weights: Weights) -> None:
        """Make all servers answer with `weights`: started, woken, loaded or restarted, whichever it takes."""
        self._was_revived = False
        if not self.alive:
            self.weights = weights
        await self.wake()
        if not self.weights.answers_as(weights):
            await self.change_weights(weights)

    async def start(self, retries: int = 2) -> None:
        """Start all servers and wait until they are healthy."""
        self.servers = []
        for index, gpus in enumerate(self._groups):
            port = free_port()
            command = server_command(self._python, self.weights, self.engine, self.models, port, on_gpu=bool(gpus))
            env = server_environment(gpus, self._api_key, self._folder)
            self.servers.append(ServerProcess(command, port=port, log=self._folder / f"server{index}.log", env=env))
            self.servers[-1].start()
        logger.info("starting %d vLLM server(s) for %s, logs in %s", len(self.servers), self.weights.base, self._folder)
        try:
            with spent_on("server start"):
                await asyncio.gather(*[server.wait_healthy(self.engine.start_timeout_s) for server in self.servers])
        except ModelError as error:
            if "Error in memory profiling" in str(error) and retries:
                logger.warning("another process freed GPU memory while vLLM measured it: starting vLLM again")
                await self.stop()
                await self.start(retries - 1)
                return
            if _NO_SLEEP.search(str(error)):
                raise ModelError(f"this vLLM has no sleep mode: set engine.extra_args=[{NO_SLEEP}]; {error}") from None
            if not _OUT_OF_MEMORY.search(str(error)):
                raise
            raise ModelError(
                f"GPU memory is too small for this vLLM server with engine.gpu_memory_utilization="
                f"{self.engine.gpu_memory_utilization:g}: raise it if nothing else uses the GPU, lower it if something "
                f"does (rollout.engine.gpu_memory_utilization=0.5), or lower models.max_prompt_tokens; {error}"
            ) from None
        self.served_name = SERVED_NAME
        self.is_verified = self._is_asleep = False
        if self.weights.adapter:
            await self._load_adapter(self.weights)

    async def sleep(self) -> None:
        """Leave the GPUs to others until `wake`; call it when no answer is open."""
        if self._is_asleep or not self._groups[0]:
            return
        if NO_SLEEP in self.engine.extra_args or not self.alive:  # those that did not die with one would stay awake
            await self.stop()
            return
        with spent_on("server sleep"):
            try:
                await self._post_all("/sleep?level=1", None)
                self._is_asleep = True
            except ModelError as error:
                logger.warning("vLLM of %s cannot sleep; stopped until it is needed: %s", self.weights.base, error)
                await self.stop()

    async def wake(self) -> None:
        """Make all servers ready for requests, with the weights that they had."""
        if self.alive and self._is_asleep:
            with spent_on("server wake"):
                try:
                    await self._post_all("/wake_up", None)
                    self._is_asleep = False
                except ModelError as error:
                    logger.warning("vLLM of %s does not wake up; restarting it: %s", self.weights.base, error)
                    await self.stop()
        if not self.alive:
            await self.stop()
            await self.start()

    async def stop(self) -> None:
        """Stop the servers with everything they started; the logs stay if one had died."""
        clean = self.alive
        servers, self.servers = self.servers, []
        self._is_asleep = False
        await asyncio.gather(*[server.stop() for server in servers])
        if clean:
            shutil.rmtree(self._folder, ignore_errors=True)

    async def change_weights(self, new: Weights) -> None:
        """Make all servers answer with `new`; call it when no answer is open."""
        if self.alive and can_reload(self.weights, new, self.engine):
            try:
                with spent_on("server weights"):
                    if new.adapter:
                        await self._load_adapter(new)
                    elif self.weights.adapter:  # their base has been there all along
                        await self._post_all("/v1/unload_lora_adapter", {"lora_name": self.served_name})
                        self.served_name = SERVED_NAME
                    else:
                        folder = model_folder(new.base)
                        source = str(folder.resolve()) if folder else new.base
                        await self._post_all("/collective_rpc", {"method": "webrl_load", "args": [source]})
                        answers = await self._post_all("/reset_prefix_cache", None)
                        if any('"success":false' in answer.replace(" ", "") for answer in answers):
                            raise ModelError(f"the prefix cache of {new.base} holds the old weights' keys and values")
            except ModelError as error:
                logger.warning("%s; restarting the servers instead", error)
            else:
                self.weights, self.is_verified = new, False
                return
        elif self.alive:
            logger.info("vLLM restarts for %s: its weights cannot replace those of %s", new.base, self.weights.base)
        self.weights = new
        await self.stop()
        await self.start()

    async def revive(self) -> None:
        """Start the servers again after one died, once for each borrower; ModelError if one died again."""
        tail = "; ".join(server.log_tail() for server in self.servers if not server.alive)
        if self._was_revived:
            raise ModelError(f"a vLLM server of {self.weights.base} died again; {tail}")
        self._was_revived = True
        logger.error("a vLLM server of %s died; restarting all of them; %s", self.weights.base, tail)
        await self.stop()
        await self.start()

    async def _load_adapter(self, weights: Weights) -> None:
        """Load an adapter under a new name each time, so that no cache can mix two adapters."""
        old, self._num_adapters = self.served_name, self._num_adapters + 1
        name = f"adapter-{self._num_adapters}"
        path = str(Path(weights.adapter or "").resolve())
        await self._post_all("/v1/load_lora_adapter", {"lora_name": name, "lora_path": path})
        self.served_name = name
        if old != SERVED_NAME:
            await self._post_all("/v1/unload_lora_adapter", {"lora_name": old})

    async def _post_all(self, path: str, body: dict[str, Any] | None) -> list[str]:
        """POST to every server; returns the texts of the answers. Raises ModelError if one did not answer 200."""
        timeout_s = self.engine.start_timeout_s
        posts = [server.post(path, body, api_key=self._api_key, timeout_s=timeout_s) for server in self.servers]
        return await asyncio.gather(*posts)


_idle: ContextVar[list[Fleet] | None] = ContextVar("idle_servers", default=None)
"""Servers that are not in use; None outside `keep_servers`."""


@contextlib.contextmanager
def keep_servers() -> Iterator[None]:
    """Servers that are started within the block live until its end; nests."""
    if _idle.get() is not None:
        yield
        return
    idle: list[Fleet] = []
    token = _idle.set(idle)
    try:
        yield
    finally:
        _idle.reset(token)
        if idle:
            logger.info("stopping vLLM")
        for fleet in idle:
            asyncio.run(fleet.stop())


async def borrow(name: str, engine: EngineConfig, models: ModelsConfig) -> Fleet:
    """Servers that answer with a model's weights: kept ones of its shape if there are any, else new ones.

    Raises:
        ModelError: no vLLM, unusable folder, too few GPUs or too little memory, or a server that does not start.
    """
    weights = Weights.of(name)
    idle = _idle.get() or []
    fitting = [
        fleet
        for fleet in idle
        if fleet.weights.shape == weights.shape and _settings(fleet.engine, fleet.models) == _settings(engine, models)
    ]
    # preferably with these weights already loaded
    kept = next((fleet for fleet in fitting if fleet.weights.answers_as(weights)), next(iter(fitting), None))
    if kept is not None:
        idle.remove(kept)
        kept.engine = engine
    fleet = kept or Fleet(weights, engine, models)
    free_gpu_cache()
    try:
        await fleet.serve(weights)
    except BaseException:
        await fleet.stop()
        raise
    return fleet


async def give_back(fleet: Fleet) -> None:
    """Put the servers to sleep for the next borrower; stop them if none can come."""
    idle = _idle.get()
    if idle is not None and fleet.alive:
        await fleet.sleep()
        idle.append(fleet)
    else:
        await fleet.stop()


def _settings(engine: EngineConfig, models: ModelsConfig) -> dict[str, Any]:
    """Return the settings that a server is started with, apart from its weights."""
    of_engine = {"vllm_python", "gpu_memory_utilization", "tensor_parallel", "extra_args"}
    return engine.model_dump(include=of_engine) | models.model_dump(include={"dtype", "max_prompt_tokens"})
