"""Files that ship with the package, in a clone and in an installed package alike: configs, engines, tiny models.

An engine that trains on several processes is an accelerate YAML file in `configs/accelerate/`, which works with
`accelerate launch` as well. Of a DeepSpeed file the keys of `deepspeed_config` are used, of an FSDP file those of
`fsdp_config`; precision, clipping and batch come from our config.
"""

from __future__ import annotations

from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, Literal

from webrl.config.yaml_file import read_yaml
from webrl.errors import UsageError

_PACKAGE = Path(__file__).parent.parent


def find_shipped(name: str) -> Path | None:
    """Return a file or folder of that name: inside the package once installed, next to it in a clone."""
    return next((folder / name for folder in (_PACKAGE, _PACKAGE.parent) if (folder / name).exists()), None)


def configs_dir() -> Path:
    """Return `configs/`; UsageError if it is not there (a broken installation)."""
    if found := find_shipped("configs"):
        return found
    looked = " and ".join(str(folder / "configs") for folder in (_PACKAGE, _PACKAGE.parent))
    raise UsageError(f"configs/ is missing: looked in {looked}; reinstall webrl")


def shipped_model(name: str) -> str:
    """Resolve a model's name: a shipped one (`data/tiny/actor`) becomes its path if the working folder has none."""
    return name if not name.startswith("data/tiny/") or Path(name).exists() else str(find_shipped(name) or name)


def shipped_configs(kind: Literal["run", "study", "grpo"] = "run") -> list[Path]:
    """Return the shipped configs of runs, of studies or of `webrl grpo`, by name."""
    folder = configs_dir()
    others = {name: set(folder.glob(f"{name}_*.yaml")) for name in ("study", "grpo")}
    if kind != "run":
        return sorted(others[kind])
    return sorted(set(folder.glob("*.yaml")) - others["study"] - others["grpo"] - {folder / "feasibility.yaml"})


def is_file(path: Path) -> bool:
    """Return whether the file exists; also False if the name is too long for the system."""
    try:
        return path.is_file()
    except OSError:
        return False


def find_config(name: str, kind: Literal["run", "study", "grpo"] = "run") -> Path:
    """Return a config by path, or by the name of a shipped one (`demo`, `demo.yaml`, `configs/demo.yaml`).

    Raises:
        UsageError: neither exists; the shipped names are listed.
    """
    path, shipped = Path(name), shipped_configs(kind)
    if is_file(path):
        return path
    if len(path.parts) == 1 or path.parent == Path("configs"):
        for candidate in shipped:
            if path.name in (candidate.name, candidate.stem):
                return candidate
    names = ", ".join(p.stem for p in shipped) or "none"
    raise UsageError(f"no config {name!r:.200}: there is no such file; shipped ones: {names}")


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
