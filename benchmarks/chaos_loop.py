"""The whole loop in miniature, and what a run folder must hold at its end.

`settings(...)` are the options of a run of about ten CPU seconds; with `strict` nothing in it depends on timing, so
that two runs agree in every record and every weight. `Audit` follows a run folder from outside: what was finished once
must still be there, once. `differences` holds a finished folder against another.
"""

from __future__ import annotations

import contextlib
import hashlib
import json
import re
from collections import Counter
from collections.abc import Iterable, Iterator
from pathlib import Path
from typing import Any

ROOT = Path(__file__).parent.parent
WATCHED = ("trajectories", "eval", "labels")
RECORDS = (
    "tasks", "generated", "dropped", "trajectories", "labels", "train", "train_filter", "train_scored", "eval",
    "metrics",
)  # fmt: skip
VOLATILE = re.compile(r"seconds$|attempts$|^scored$|^num_cached$|tokens_per_s|peak_(gib|mib)$|mfu")
"""Fields that say how long something took, how often it was tried, or what an earlier life had computed already."""
TEMPORARY = re.compile(r"^\..*\.(tmp|old)\d*$|^\..*\.state$|\.part$")


def settings(runs: Path, *, strict: bool = True, **changes: object) -> list[str]:
    """Arguments of `webrl run` for the miniature loop; `changes` are options, `__` for a dot."""
    root = str(ROOT)
    options: dict[str, object] = {
        "name": "run", "runs_dir": runs, "trackers": "[]", "num_phases": 1,
        "models.actor": f"{root}/data/tiny/actor", "models.orm": f"{root}/data/tiny/orm",
        "models.generator": f"{root}/data/tiny/generator",
        "tasks.train_sites": "[miniwob.click-button,miniwob.enter-text]",
        "tasks.num_seed_tasks": 6, "tasks.num_eval_tasks": 3, "tasks.num_heldout_tasks": 0,
        "accept.tasks": 4,
        "generate.num_tasks": 6, "filter.critic_band": "false",
        "rollout.max_steps": 3, "rollout.max_retries": 50,
        "critic.epochs": 1, "actor.epochs": 1, "critic.batch_size": 4, "actor.batch_size": 4,
        "actor.objective": "webrl", "critic.save_every": 1, "actor.save_every": 1,
    }  # fmt: skip
    if strict:
        options |= {
            "rollout.num_workers": 1, "rollout.envs_per_worker": 1, "engine.max_batch": 1,
        }  # fmt: skip
    options |= {name.replace("__", "."): value for name, value in changes.items()}
    return ["run", f"{root}/configs/demo.yaml", *(f"{name}={value}" for name, value in options.items())]


class Audit:
    """What a run folder has shown so far."""

    def __init__(self, run: Path) -> None:
        self.run = run
        self._seen: dict[Path, dict[str, str]] = {}

    def progress(self) -> int:
        """Lines, finished stages and models so far: a clock that does not depend on the machine's speed."""
        lines = 0
        for path in self.run.glob("phase_*/*.jsonl"):
            with contextlib.suppress(OSError):
                lines += path.read_bytes().count(b"\n")
        return lines + sum(1 for _ in self.run.glob("phase_*/stages/*.json")) + len(models(self.run))

    def look(self) -> None:
        """Remember every finished episode and label."""
        for path in watched(self.run):
            seen = self._seen.setdefault(path, {})
            for line in whole_lines(path):
                seen.setdefault(json.loads(line)["trajectory_id"], digest(line))

    def lost(self) -> list[str]:
        """Those that are no longer there as they were."""
        missing = []
        for path, seen in self._seen.items():
            now = {json.loads(line)["trajectory_id"]: digest(line) for line in whole_lines(path)}
            missing += [f"{path}: {name}" for name, value in seen.items() if now.get(name) != value]
        return missing

    def doubled(self) -> list[str]:
        """Those that are there more than once, and training steps that are."""
        twice = []
        for path in watched(self.run):
            counts = Counter(json.loads(line)["trajectory_id"] for line in whole_lines(path))
            twice += [f"{path}: {name} x {count}" for name, count in counts.items() if count > 1]
        for path in self.run.glob("phase_*/metrics.jsonl"):
            steps = Counter((line["name"], line["step"]) for line in map(json.loads, whole_lines(path)))
            twice += [f"{path}: {name} x {count}" for name, count in steps.items() if count > 1]
        return twice

    def temporary(self) -> list[str]:
        """Temporary files and folders in the run folder."""
        return [str(path) for path in self.run.rglob("*") if TEMPORARY.search(path.name)]


def watched(run: Path) -> list[Path]:
    """Files in which episodes and labels are finished one by one."""
    return sorted(path for name in WATCHED for path in run.glob(f"phase_*/{name}.jsonl"))


def whole_lines(path: Path) -> list[bytes]:
    """Lines that were written to their end; none of a missing file."""
    try:
        return path.read_bytes().split(b"\n")[:-1]
    except OSError:
        return []


def models(run: Path) -> list[Path]:
    """Finished model folders."""
    return sorted(path.parent for path in run.glob("phase_*/[ac]*/model.safetensors"))


def differences(run: Path, reference: Path, *, strict: bool = True) -> list[str]:
    """Names of what differs from an uninterrupted run, times aside.

    Not strict: order within a file does not count (which browser was first), and neither do the weights, which follow
    the order in the last digits, nor what follows from the weights.
    """
    found = []
    for mine, other in pairs(run, reference, ["phase_*"] if strict else ["phase_00"]):
        name = str(other.relative_to(reference))
        if other.suffix == ".safetensors":
            if strict and digest(mine.read_bytes() if mine.exists() else b"") != digest(other.read_bytes()):
                found.append(name)
            continue
        if not strict and other.stem not in ("tasks", "trajectories", "eval", "labels"):
            continue
        mine_records, other_records = canonical(mine, sort=not strict), canonical(other, sort=not strict)
        if mine_records != other_records:
            found.append(f"{name}{first_difference(mine_records, other_records)}")
    return found


def pairs(run: Path, reference: Path, phases: Iterable[str]) -> Iterator[tuple[Path, Path]]:
    """(file of this run, file of the reference) for all records, stages and weights."""
    for phase in phases:
        names = [f"{phase}/{name}.jsonl" for name in RECORDS]
        for pattern in [*names, f"{phase}/*/model.safetensors", f"{phase}/stages/*.json"]:
            for path in sorted(reference.glob(pattern)):
                yield run / path.relative_to(reference), path


def canonical(path: Path, *, sort: bool) -> list[str]:
    """A file's records without times, as text."""
    if path.parent.name == "stages":
        with contextlib.suppress(OSError, ValueError):
            return [json.dumps(steady(json.loads(path.read_text())["counts"]), sort_keys=True)]
        return []
    records = [json.dumps(steady(json.loads(line)), sort_keys=True) for line in whole_lines(path)]
    return sorted(records) if sort else records


def steady(value: Any) -> Any:
    """The value without fields that say how long something took."""
    if isinstance(value, dict):
        return {name: steady(part) for name, part in value.items() if not VOLATILE.search(name)}
    return [steady(part) for part in value] if isinstance(value, list) else value


def first_difference(mine: list[str], other: list[str]) -> str:
    """Where two lists part, for the report."""
    if len(mine) != len(other):
        return f": {len(mine)} records, not {len(other)}"
    number, (a, b) = next((n, pair) for n, pair in enumerate(zip(mine, other, strict=True)) if pair[0] != pair[1])
    at = next((k for k, (x, y) in enumerate(zip(a, b, strict=False)) if x != y), min(len(a), len(b)))
    return f": record {number}: …{a[max(0, at - 40) : at + 40]}… instead of …{b[max(0, at - 40) : at + 40]}…"


def digest(data: bytes) -> str:
    """Of a line or a file."""
    return hashlib.sha256(data).hexdigest()
