"""The command line and environment of a vLLM server for a model folder, and which weight changes it can take."""

from __future__ import annotations

import json
import os
import shutil
import sys
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from webrl.config import EngineConfig, ModelsConfig
from webrl.config.extras import require
from webrl.errors import ModelError
from webrl.llm.loading import base_of, config_of, model_fingerprint, pick_dtype
from webrl.runs.machine import visible_gpus

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
        whole = config_of(base or name)
        config: dict[str, Any] = whole.get_text_config().to_dict()
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
    limit = int(json.loads(weights.shape).get("max_position_embeddings", wanted))
    return min(wanted, limit)
