"""The run folder: where each stage reads and writes, and which stages have finished.

`runs/<name>/config.yaml` is written when the run starts and must match when it resumes, except for secrets: they are
not in it (`webrl/config/redaction.py`). A stage has finished when `phase_NN/stages/<stage>.json` exists; it is written
last, and holds the stage's counts, seconds, peak memory, resolved config, versions, git commit and seed.
"""

from __future__ import annotations

import contextlib
import importlib.metadata
import os
import platform
import re
import subprocess
import sys
from collections.abc import Collection, Iterable, Mapping, Sequence
from datetime import UTC, datetime
from functools import cache
from pathlib import Path
from typing import Any

import yaml

import webrl
from webrl.config import SHARED, RunConfig, apply_overrides, flatten, read_config, share, validate_config
from webrl.config.redaction import map_texts, redact_argument, without_references
from webrl.config.yaml_file import read_yaml
from webrl.errors import DataError, StageError, UsageError
from webrl.runs.store import read_json, write_json, write_text

_FREE_TRAINING = ("engine", "max_tokens", "checkpointing", "compile", "save_every")
_FREE_SERVING = ("gpu_memory_utilization", "weight_update", "vllm_python", "start_timeout_s")
FREE_KEYS = (
    "num_phases", "keep_models", "runs_dir", "trackers", "rollout.num_workers", "rollout.envs_per_worker",
    "rollout.backend", "rollout.max_failed", "rollout.recycle_after",
    *(f"{section}.{key}" for section in ("actor", "critic", "orm") for key in _FREE_TRAINING),
    *(f"{section}.engine.{key}" for section in ("generate", "rollout", "label") for key in _FREE_SERVING),
)  # fmt: skip
"""Keys that may change between the start of a run and its continuation: they do not alter its results."""
_READ = {
    "generated.jsonl": ("gen-tasks", ()), "tasks.jsonl": ("filter-tasks", ()),
    "trajectories.jsonl": ("rollout", ("label", "eval")), "labels.jsonl": ("label", ("eval",)),
    "train.jsonl": ("replay", ("eval",)), "train_filter.jsonl": ("replay", ()), "eval.jsonl": ("eval", ()),
}  # fmt: skip
"""Outputs that the stage after the one that writes them reads, and those after which others (in the next phase)."""


class PhaseFolder:
    """Paths of one phase."""

    def __init__(self, path: Path, phase: int) -> None:
        self.path = path
        self.phase = phase
        self.generated = path / "generated.jsonl"
        """Generated instructions before the filters."""
        self.dropped = path / "dropped.jsonl"
        """What the filters dropped, with reasons."""
        self.pages = path / "pages.jsonl"
        """Initial page text of each candidate task."""
        self.tasks = path / "tasks.jsonl"
        """Tasks of this phase."""
        self.trajectories = path / "trajectories.jsonl"
        """Collected episodes."""
        self.labels = path / "labels.jsonl"
        """The outcome model's judgements."""
        self.train = path / "train.jsonl"
        """Training records of this phase's own steps."""
        self.train_filter = path / "train_filter.jsonl"
        """Own steps plus replayed ones."""
        self.actor = path / "actor"
        """Policy after this phase."""
        self.critic = path / "critic"
        """Value model after this phase."""
        self.probe = path / "probe.jsonl"
        """The phase's actor on the probe pages that the next one must do as well on."""
        self.eval = path / "eval.jsonl"
        """Evaluation episodes."""
        self.metrics = path / "metrics.jsonl"
        """Training metrics, one JSON object a line."""

    def marker(self, stage: str) -> Path:
        """Return what a stage writes last."""
        return self.path / "stages" / f"{stage}.json"

    def is_done(self, stage: str) -> bool:
        """Return True if the stage finished."""
        return self.marker(stage).exists()

    def read_stage(self, stage: str) -> dict[str, Any]:
        """Return what the finished stage left: at least `counts` and `seconds`."""
        path = self.marker(stage)
        data = read_json(path)
        if not isinstance(data, dict) or not {"counts", "seconds", "peak_mib"} <= data.keys():
            raise StageError(f"{path}: not what a finished stage writes; remove it, and the stage runs again")
        return data

    def mark_done(
        self,
        stage: str,
        counts: dict[str, Any],
        seconds: float,
        peak_mib: float,
        config: RunConfig,
        spent_on: Mapping[str, float] | None = None,
    ) -> None:
        """Record that a stage finished; the last thing a stage does. `spent_on` divides its seconds (`clock.py`)."""
        info = {"stage": stage, "phase": self.phase, "counts": counts, "seconds": round(seconds, 2)}
        info |= {"spent_on": {kind: round(part, 3) for kind, part in (spent_on or {}).items()}}
        info |= {"bytes": {path.name: path.stat().st_size for path in sorted(self.path.glob("*.jsonl"))}}
        write_json(self.marker(stage), info | {"peak_mib": round(peak_mib, 1)} | run_info(config))

    def require(self, stage: str) -> None:
        """Raise StageError unless a stage that the next one builds on has finished and left whole what is read then."""
        if not self.is_done(stage):
            raise StageError(f"{self.path}: stage {stage!r} has not finished; run `webrl run` or that stage first")
        for name, (writer, others) in _READ.items():
            # the next phase takes nothing from one whose episodes have been removed
            is_read = stage == writer or (stage in others and (stage != "eval" or self.trajectories.is_file()))
            due = self.read_stage(writer).get("bytes", {}).get(name, 0) if is_read and self.is_done(writer) else 0
            size = (self.path / name).stat().st_size if due and (self.path / name).is_file() else 0
            if size < due:
                raise StageError(
                    f"{self.path / name}: {size} of the {due} bytes that {writer!r} wrote are left; put the file back, "
                    f"or remove {self.marker(writer)}, so that `webrl run` writes it again"
                )


class RunFolder:
    """Paths of one run."""

    def __init__(self, path: Path) -> None:
        self.path = path
        self.config = path / "config.yaml"
        """Resolved config of the run."""
        self.summary = path / "summary.json"

    def phase(self, phase: int) -> PhaseFolder:
        """Return the paths of phase `phase`."""
        return PhaseFolder(self.path / f"phase_{phase:02d}", phase)

    def last_phase(self) -> int:
        """Return the number of the newest phase folder; -1 if there is none."""
        names = [p.name.removeprefix("phase_") for p in self.path.glob("phase_*") if p.is_dir()]
        return max((int(name) for name in names if name.isdecimal()), default=-1)


def open_run(config: RunConfig) -> RunFolder:
    """Create the run folder, or check that an existing one belongs to this config. Raises StageError: it was made with
    another config (the differing keys are named); OSError: it cannot be written (where it is held, `hold_run` says so).
    """
    folder = RunFolder(config.run_dir)
    _check_whole(folder)
    last = folder.last_phase()
    if lost := [folder.phase(k).path for k in range(last + 1) if not folder.phase(k).path.is_dir()]:
        raise StageError(
            f"{lost[0]} was renamed or removed, phase {last} was not: put it back, or remove the later ones"
        )
    if folder.config.exists() and (changed := changed_settings(folder, config)):
        raise StageError(
            f"{folder.path} was made with another config ({name_changes(changed)}). Choose another `name=`, "
            "remove the folder, or restore the settings"
        )
    write_text(folder.config, yaml.safe_dump(config.model_dump(mode="json"), sort_keys=False, allow_unicode=True))
    return folder


def newest_run(runs_dir: Path) -> RunFolder | None:
    """Return the run folder that was started or continued last; None if there is none."""
    runs = [p for p in runs_dir.glob("*/config.yaml") if p.is_file()]
    return RunFolder(max(runs, key=os.path.getmtime).parent) if runs else None


def require_newest(command: str) -> Path:
    """Return the newest run folder below runs/, for a command that names none. Raises UsageError."""
    newest = newest_run(Path("runs"))
    if newest is None:
        raise UsageError(f"no run folder below runs/; name one: webrl {command} RUN")
    return newest.path


def require_run(path: Path) -> RunFolder:
    """Return the run folder of that path. Raises UsageError: it is not one; StageError: its settings are lost."""
    folder = RunFolder(path)
    if not path.is_dir():
        raise UsageError(f"{str(path)!r} {'is a file' if path.exists() else 'does not exist'}; name a run folder")
    if not folder.config.is_file() and folder.last_phase() < 0:
        raise UsageError(f"{str(path)!r} is not a run folder: it has neither config.yaml nor phase_00")
    _check_whole(folder)
    return folder


def _check_whole(folder: RunFolder) -> None:
    """An empty file, or the rest of one, would read as the defaults; a run ends its file with a newline."""
    path = folder.config
    if path.is_file() and ((is_empty := read_yaml(path, "config") is None) or not path.read_bytes().endswith(b"\n")):
        raise StageError(
            f"{path} {'is empty' if is_empty else 'ends within a line'}: the settings of this run are lost; put its "
            "config.yaml back, or delete it to continue with the settings that you name"
        )


def load_run_config(folder: RunFolder, overrides: Sequence[str] = ()) -> RunConfig:
    """Return the settings of a run; its own paths follow it when it moves. Raises UsageError as `load_config`."""
    data = read_config(folder.config)
    runs_dir, name = data.get("runs_dir"), data.get("name")
    if runs_dir is not None and name is not None:
        old = re.compile(rf"\A{re.escape(str(Path(str(runs_dir)) / str(name)))}(?=/|\Z)")
        data = map_texts(lambda text: old.sub(lambda _: str(folder.path), text), data)
        path = folder.path.absolute() if folder.path.name in ("", "..") else folder.path
        data |= {"runs_dir": str(path.parent), "name": path.name}
    try:
        return validate_config(apply_overrides(data, overrides), str(folder.config), overrides)
    except UsageError as error:
        if str(folder.config) not in str(error):
            raise
        hint = "another version of webrl may have written it: use that version, or start a new run with name=NAME"
        raise UsageError(f"{error}\n{hint}") from None


def changed_settings(folder: RunFolder, config: RunConfig) -> dict[str, str]:
    """What `config` alters of the config that the run was made with and alters results: `was 1, now 2` by key."""
    # Through the model, so that an option added since has its default on both sides.
    old, new = (
        dict(flatten(map_texts(without_references, share(c.model_dump(mode="json")))))
        for c in (load_run_config(folder), config)
    )
    keys = (key for key in old.keys() | new.keys() if key.partition(".")[0] not in SHARED and key not in FREE_KEYS)
    changed = sorted(key for key in keys if old.get(key) != new.get(key))
    return {key: f"was {old.get(key)!r}, now {new.get(key)!r}" for key in changed}


def name_changes(changed: Mapping[str, str]) -> str:
    """Return `actor.lr: was 0.1, now 0.2; …`, the first five of them."""
    return "; ".join(f"{key}: {change}" for key, change in list(changed.items())[:5])


def usual_seconds(run: RunFolder, stage: str, phase: int) -> tuple[int, float] | None:
    """Return (phase, seconds) of this stage in the newest earlier phase; None if there is none. Phase 0 does not count:
    it writes no tasks from failures and trains no actor.
    """
    for earlier in range(phase - 1, 0, -1):
        if run.phase(earlier).is_done(stage):
            with contextlib.suppress(DataError, StageError, TypeError, ValueError):  # damaged: who reads it names it
                return earlier, float(run.phase(earlier).read_stage(stage)["seconds"])
    return None


def seconds_left(
    run: RunFolder, stages: Collection[str], phase: int, num_phases: int
) -> tuple[float | None, float | None]:
    """What is left of a phase and of the run, stages under way counted whole; None if nothing like it ran."""

    def total(names: Iterable[str], number: int) -> float | None:
        known = [usual_seconds(run, name, number) for name in names]
        return None if None in known else sum((usual[1] for usual in known if usual), 0.0)

    of_phase = total([stage for stage in stages if not run.phase(phase).is_done(stage)], phase)
    later = total(stages, phase + 1) if phase < num_phases else 0.0
    return of_phase, None if of_phase is None or later is None else of_phase + (num_phases - phase) * later


PACKAGES = (
    "torch", "transformers", "tokenizers", "accelerate", "deepspeed", "peft", "vllm", "ray", "datasets", "numpy",
    "scikit-learn", "browsergym-core", "miniwob", "playwright", "openenv", "openenv-core",
)  # fmt: skip
"""Packages whose versions can change a result; those that are not installed are left out."""


def run_info(config: RunConfig) -> dict[str, Any]:
    """`config`, `seed`, `versions`, `git_commit`, `platform`, `command`, `finished_at` (UTC) for JSON, no secrets."""
    return {
        "seed": config.seed,
        "git_commit": git_commit(),
        "versions": dict(package_versions()),
        "platform": platform.platform(),
        "command": [redact_argument(argument) for argument in sys.argv],
        "finished_at": datetime.now(UTC).isoformat(timespec="seconds"),
        "config": config.model_dump(mode="json"),
    }


@cache
def package_versions() -> tuple[tuple[str, str], ...]:
    """Return (name, version) of webrl, Python and the installed ones of `PACKAGES`."""
    found = [("webrl", webrl.__version__), ("python", platform.python_version())]
    for name in PACKAGES:
        with contextlib.suppress(importlib.metadata.PackageNotFoundError):
            found.append((name, importlib.metadata.version(name)))
    return tuple(found)


@cache
def git_commit() -> str | None:
    """Return the commit of the clone that this package runs from, plus `-dirty` if files differ; None outside one."""
    git = ["git", "-C", str(Path(webrl.__file__).parent)]
    # A virtual environment may lie inside an unrelated repository: ours is one that tracks this file.
    tracked = [*git, "ls-files", "--error-unmatch", "__init__.py"]
    named = [*git, "describe", "--always", "--abbrev=40", "--exclude=*", "--dirty"]
    try:
        subprocess.run(tracked, capture_output=True, timeout=30, check=True)
        return subprocess.run(named, capture_output=True, text=True, timeout=30, check=True).stdout.strip()
    except (OSError, subprocess.SubprocessError):
        return None
