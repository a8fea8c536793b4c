"""Which engine trains on several processes: accelerate YAML files in `configs/accelerate/`, by name or path.

The files are accelerate's own format and work with `accelerate launch` as well. Of a DeepSpeed file the keys of
`deepspeed_config` are used, of an FSDP file those of `fsdp_config`; precision, clipping and batch come from our config.
"""

from __future__ import annotations

from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, Literal

from webrl.config.resources import configs_dir
from webrl.config.yaml_file import read_yaml
from webrl.errors import UsageError


@dataclass(frozen=True)
class EnginePlan:
    """A parsed engine choice."""

    name: str
    """As in the config."""
    kind: Literal["ddp", "deepspeed", "fsdp2"]
    """Which engine class."""
    options: dict[str, Any] = field(default_factory=dict)
    """`deepspeed_config` or `fsdp_config` of the file."""


def load_plan(name: str) -> EnginePlan:
    """Return the plan of a shipped name (`ddp`, `zero1`, `zero2`, `zero3`, `zero3_offload`, `fsdp2`) or of a YAML path.

    Raises:
        UsageError: neither; or a file of another kind (names and kinds are listed).
    """
    if name == "ddp":
        return EnginePlan(name, "ddp")
    folder = configs_dir() / "accelerate"
    path = Path(name) if name.endswith((".yaml", ".yml")) else folder / f"{name}.yaml"
    if not path.is_file():
        shipped = ", ".join(sorted({"ddp", *(p.stem for p in folder.glob("*.yaml"))}))
        raise UsageError(f"no engine {name!r} ({path} does not exist); shipped ones: {shipped}")
    data = read_yaml(path, "engine file")
    if not isinstance(data, dict):
        raise UsageError(f"{path}: expected accelerate's mapping (`distributed_type: ...`), found {data!r:.80}")
    kind = str(data.get("distributed_type", "")).upper()
    if kind == "DEEPSPEED":
        return EnginePlan(name, "deepspeed", data.get("deepspeed_config") or {})
    if kind == "FSDP" and int((data.get("fsdp_config") or {}).get("fsdp_version", 1)) == 2:
        return EnginePlan(name, "fsdp2", data["fsdp_config"])
    if kind in ("MULTI_GPU", "MULTI_CPU", "NO"):
        return EnginePlan(name, "ddp")
    raise UsageError(f"{path}: distributed_type {kind!r} is not one of MULTI_GPU, DEEPSPEED, FSDP with fsdp_version 2")
