"""Files that ship with the package: configs and tiny models, in a clone and in an installed package alike."""

from __future__ import annotations

from pathlib import Path
from typing import Literal

from webrl.errors import UsageError

_PACKAGE = Path(__file__).parent.parent
_CONFIG_FOLDERS = (_PACKAGE / "configs", _PACKAGE.parent / "configs")


def configs_dir() -> Path:
    """Return `configs/`: next to the package in a clone, inside it once installed.

    Raises:
        UsageError: the folder is not there (a broken installation).
    """
    for folder in _CONFIG_FOLDERS:
        if folder.is_dir():
            return folder
    raise UsageError(f"configs/ is missing: looked in {' and '.join(map(str, _CONFIG_FOLDERS))}; reinstall webrl")


def shipped_model(name: str) -> str:
    """Resolve a model's name: a shipped one (`data/tiny/actor`) becomes its path if the working folder has none."""
    if not name.startswith("data/tiny/") or Path(name).exists():
        return name
    return next((str(path / name) for path in (_PACKAGE, _PACKAGE.parent) if (path / name).exists()), name)


def shipped_data(path: Path) -> Path:
    """Return the same for a file (`data/tiny/demos.jsonl`)."""
    return Path(shipped_model(str(path)))


def shipped_configs(kind: Literal["run", "study", "grpo"] = "run") -> list[Path]:
    """Return the shipped configs of runs, of studies or of `webrl grpo`, by name."""
    folder = configs_dir()
    others = {name: set(folder.glob(f"{name}_*.yaml")) for name in ("study", "grpo")}
    if kind != "run":
        return sorted(others[kind])
    rules = folder / "feasibility.yaml"
    return sorted(set(folder.glob("*.yaml")) - others["study"] - others["grpo"] - {rules})


def is_file(path: Path) -> bool:
    """Return whether there is such a file; False, too, where the system takes no such name (too long)."""
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
    raise UsageError(f"no config {name!r:.200}; shipped ones: {', '.join(p.stem for p in shipped) or 'none'}")
