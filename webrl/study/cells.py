"""The run folders of a study: a seed's phase 0 is played once and linked into its cells, and must stay the same."""

from __future__ import annotations

import os
import shutil
from pathlib import Path
from typing import Any

from webrl.config import RunConfig, share
from webrl.errors import StageError
from webrl.phase import is_phase_done
from webrl.replay.stage import SCORE_CACHE
from webrl.runs.disk import atomic_path, make_folder, remove
from webrl.runs.folder import RunFolder, changed_settings, name_changes
from webrl.runs.store import read_json, read_lines
from webrl.study.plan import START, Cell

_JUDGED = ("label", "replay", "train", "accept")
"""Stages of phase 0 after the episodes: redone where a method judges or trains its critic otherwise."""
_JUDGED_FILES = (
    "labels.jsonl", "train.jsonl", "train_filter.jsonl", "problems.txt", "critic", "critic_counts.json",
    "metrics.jsonl",
)  # fmt: skip


def num_finished(cell: Cell) -> int:
    """Phases that are finished and evaluated, phase 0 included; of a training, 1 if it is finished."""
    if cell.model is not None:
        return int(_training_report(cell.model).is_file())
    run = RunFolder(cell.config.run_dir)
    for phase in range(cell.config.num_phases + 1):
        if not is_phase_done(run.phase(phase)):
            return phase
    return cell.config.num_phases + 1


def is_finished(cell: Cell) -> bool:
    """Whether all phases are."""
    return num_finished(cell) > cell.config.num_phases


def link_start(start: Cell, cell: Cell) -> None:
    """Give a cell the phase 0 of its seed, as hard links where the disk has them; what it judges otherwise is left out.

    Raises:
        StageError: the cell has a phase 0 already, of another start (see `check_start`).
    """
    source, target = RunFolder(start.config.run_dir), RunFolder(cell.config.run_dir)
    if target.phase(0).path.exists():
        check_start(start, cell)
        return
    make_folder(target.path)
    if (source.path / SCORE_CACHE).is_file():  # grows in place: never a link
        with atomic_path(target.path / SCORE_CACHE) as temporary:
            shutil.copyfile(source.path / SCORE_CACHE, temporary)
    with atomic_path(target.phase(0).path) as temporary:
        shutil.copytree(source.phase(0).path, temporary, copy_function=_link)
        lacks_critic = cell.config.trains_critic and not start.config.trains_critic
        if lacks_critic or _judging(start.config) != _judging(cell.config):
            for name in (*_JUDGED_FILES, *(f"stages/{stage}.json" for stage in _JUDGED)):
                remove(temporary / name)


def check_config(cell: Cell) -> None:
    """Return if what there is of a cell was made with its settings.

    Raises:
        StageError: it was not, so that its numbers are not this study's; old and new values and the fix are named.
    """
    run = RunFolder(cell.config.run_dir)
    if cell.model is not None:
        changed = _changed_training(cell, _training_report(cell.model))
    else:
        changed = changed_settings(run, cell.config) if run.config.is_file() else {}
    for key, folder in (("models.orm", "orm"), ("models.actor", "sft")):
        if changed.get(key, "").count(f"{START}-seed{cell.seed}/{folder}'") == 2:  # the study's folder was moved
            del changed[key]
    if changed:
        raise StageError(
            f"{run.path} was made with other settings ({name_changes(changed)}), and its numbers would be taken for "
            "those of this study; restore them, give the study another --name or the method another name, or remove "
            "the folder"
        )


def _training_report(model: Path) -> Path:
    return model.with_name(f"{model.name}_report") / "report.json"


def _changed_training(cell: Cell, report: Path) -> dict[str, str]:
    """What a supervised start was trained with otherwise: its demonstrations, its base, `sft.*`."""
    if not cell.demos or not report.is_file():
        return {}
    made = read_json(report)
    command: list[str] = made["command"]
    data = command[command.index("--data") + 1 : command.index("--out")]
    was, now = share(made["config"]), share(cell.config.model_dump(mode="json"))
    pairs = {"demos": (data, list(map(str, cell.demos)))}
    pairs["models.actor"] = (was["models"]["actor"], now["models"]["actor"])
    pairs |= {f"sft.{key}": (was["sft"].get(key), value) for key, value in now["sft"].items()}
    return {key: f"was {before!r}, now {after!r}" for key, (before, after) in pairs.items() if before != after}


def check_start(start: Cell, cell: Cell) -> None:
    """Return if a cell began with the start of its seed: the same tasks, evaluation tasks, and actor.

    Raises:
        StageError: it did not; the difference and the fix are named.
    """
    mine, theirs = (RunFolder(c.config.run_dir).phase(0) for c in (cell, start))
    for path, other, key in (
        (mine.tasks, theirs.tasks, _task_key), (mine.trajectories, theirs.trajectories, _episode_key),
        (mine.eval, theirs.eval, _episode_key),
    ):  # fmt: skip
        if other.is_file() and path.is_file() and path.samefile(other):
            continue
        here, there = (sorted(key(data) for _, data in read_lines(p)) if p.is_file() else [] for p in (path, other))
        if here != there:
            first = next(iter(sorted(set(here) ^ set(there))), "episodes played twice")
            raise StageError(
                f"{path}: not what {other} has (first difference: {first}): {cell.name} had another starting point and "
                f"cannot be compared; remove {cell.config.run_dir}, and the same command runs it anew"
            )


def _task_key(data: Any) -> str:
    return f"task {data['task_id']}"


def _episode_key(data: Any) -> str:
    return f"task {data['task']['task_id']} with actor {data.get('policy', '')}"


def _judging(config: RunConfig) -> tuple[Any, ...]:
    """What labels, records and critic of phase 0 depend on; the released objective's records hold one prompt more."""
    return config.label, config.models, config.critic, config.actor.objective == "webrl_released"


def _link(source: str, target: str) -> None:
    try:
        os.link(source, target)
    except OSError:  # a disk without hard links
        shutil.copy2(source, target)
