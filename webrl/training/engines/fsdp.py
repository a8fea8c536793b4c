"""FSDP2: torch's own `fully_shard`, with the options of accelerate's `fsdp_config`.

A model too large for one process's memory is loaded by the main process alone and dealt out; the others build its
skeleton. accelerate applies its FSDP plugin on GPUs only; on a CPU it falls back to DDP or to replicas that are never
synchronised. `fully_shard` runs on both, so that what is tested here is what trains there.
"""

from __future__ import annotations

from pathlib import Path
from typing import Any

import torch
from torch import Tensor, nn
from torch.distributed.checkpoint.state_dict import (
    StateDictOptions,
    get_state_dict,
    set_model_state_dict,
    set_state_dict,
)
from torch.distributed.checkpoint.state_dict_loader import load as load_shards
from torch.distributed.checkpoint.state_dict_saver import save as save_shards
from torch.distributed.device_mesh import init_device_mesh
from torch.distributed.fsdp import CPUOffloadPolicy, FSDPModule, MixedPrecisionPolicy, OffloadPolicy, fully_shard
from torch.distributed.tensor import DTensor

from webrl.errors import TrainingError
from webrl.training.engines.ddp import Engine, make_optimizer
from webrl.training.topology import gather


class FsdpEngine(Engine):
    """Weights, gradients and optimizer state sharded over all ranks; float32 masters, bf16 compute if asked."""

    exchanges_last = False  # on every row: reducing on the last alone would hold whole float32 gradients in between

    def prepare(self, model: nn.Module) -> tuple[Any, Any]:
        """(sharded model, AdamW over the shards)."""
        if not torch.distributed.is_initialized():
            raise TrainingError("engine 'fsdp2' needs several processes: see docs/cluster.md")
        device = self.accelerator.device
        skeleton = any(gather(any(p.is_meta for p in model.parameters())))
        weights: dict[str, Any] = dict(model.state_dict()) if skeleton else {}
        buffers = dict(model.named_buffers())
        model.to("meta" if skeleton else device)
        mesh = init_device_mesh(device.type, (self.num_ranks,))
        precision = MixedPrecisionPolicy()
        if self.config.precision == "bf16":
            precision = MixedPrecisionPolicy(
                param_dtype=torch.bfloat16, reduce_dtype=torch.float32, cast_forward_inputs=False
            )
        offload = CPUOffloadPolicy() if self.plan.options.get("fsdp_offload_params") else OffloadPolicy()
        options: dict[str, Any] = {
            "mesh": mesh,
            "mp_policy": precision,
            "offload_policy": offload,
            "reshard_after_forward": bool(self.plan.options.get("fsdp_reshard_after_forward", True)),
        }
        for layer in getattr(getattr(getattr(model, "lm", None), "base_model", None), "layers", []):
            fully_shard(layer, **options)
        fully_shard(model, **options)
        if skeleton:  # the main process deals out its weights
            model.to_empty(device="cpu" if isinstance(offload, CPUOffloadPolicy) else device)
            filled = StateDictOptions(full_state_dict=True, broadcast_from_rank0=True)
            set_model_state_dict(model, weights if self.is_main else {}, options=filled)
            for name, buffer in model.named_buffers():  # rotary frequencies are in no state dict
                if self.is_main:
                    buffer.copy_(buffers[name])
                torch.distributed.broadcast(buffer, src=0)
        return model, make_optimizer(model, self.config)

    def check_type(self) -> None:
        """Every weight must be a shard."""
        whole = [n for n, p in self.model.named_parameters() if not isinstance(p, DTensor)]
        if not isinstance(self.model, FSDPModule) or whole:
            raise TrainingError(f"engine {self.plan.name!r} did not shard {whole[:1] or [type(self.model).__name__]}")

    def save_state(self, folder: Path) -> None:
        """torch.distributed.checkpoint: loads on any number of ranks."""
        weights, optimizer = get_state_dict(self.model, self.optimizer)
        save_shards({"model": weights, "optimizer": optimizer}, checkpoint_id=str(folder / "shards"))

    def load_state(self, folder: Path) -> None:
        """Read shards back."""
        weights, optimizer = get_state_dict(self.model, self.optimizer)
        load_shards({"model": weights, "optimizer": optimizer}, checkpoint_id=str(folder / "shards"))
        set_state_dict(self.model, self.optimizer, model_state_dict=weights, optim_state_dict=optimizer)

    def full_state(self) -> dict[str, Tensor]:
        """Whole weights, gathered one at a time."""
        state: dict[str, Tensor] = {}
        for name, parameter in self.model.named_parameters():
            if parameter.requires_grad:
                whole = parameter.full_tensor() if isinstance(parameter, DTensor) else parameter
                if self.is_main:
                    state[name] = whole.detach().to("cpu", torch.float32).clone()
        return state
