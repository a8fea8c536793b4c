"""What a study consists of: its YAML, and the run of each cell (method, seed), resolved and validated.

    config: demo                    # a run config: a path (relative to this file or to the cwd), or a shipped name
    name: study_demo
    seeds: [0, 1, 2]
    num_phases: 3
    reference: default              # what the others are compared with, task by task
    overrides: {actor: {steps: 40}} # of every cell
    methods:
      default: {}
      awr: {actor: {objective: awr}}
    demos: [data/tiny/demos.jsonl]  # each seed trains its own start on them (`overrides: {sft: …}`); none: models.actor

A cell is an ordinary run in `runs_dir/name/<method>-seed<seed>`; `start-seed<seed>` next to it holds phase 0, which is
played once a seed. What defines the starting point and the evaluation belongs in `overrides`; a method that sets it is
refused, since its numbers could not be compared.
"""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Annotated, Any, Self

from pydantic import Field, ValidationError, field_validator, model_validator

from webrl.config import DataPath, RunConfig, apply_override, flatten, overlay, read_config, validate_config
from webrl.config.resources import find_config, is_file
from webrl.config.section import Section
from webrl.errors import UsageError, problem_text
from webrl.preflight import check_settings

START = "start"
"""Name of the run that plays phase 0 of a seed for all methods."""
SFT = "start_sft"
"""Name of the training of a seed's supervised start, for `demos`; it is in the start's folder."""
_OWN_KEYS = ("name", "runs_dir", "seed", "num_phases")
"""Keys of the run config that the study sets."""
_METHOD_KEYS = {
    "tasks": {"source", "shares", "num_seed_tasks"},
    "models": {"orm", "generator"},
    "rollout": {"num_generations", "policy", "refill"},
    "evaluate": set[str](),
    "sft": set[str](),
}
"""Sections that make the starting point and the evaluation; the keys named act after phase 0 and may differ."""

Name = Annotated[str, Field(pattern=r"^\w[\w.]*$")]


class StudyConfig(Section):
    """A study's YAML."""

    config: str = Field("demo", description="run config that all cells start from")
    name: str = Field("study", pattern=r"^\w[\w.-]*$", description="name of the study's folder")
    runs_dir: Path = Field(Path("runs"), description="where that folder is made")
    seeds: tuple[Annotated[int, Field(ge=0, lt=1 << 32)], ...] = Field((0, 1, 2), min_length=1)
    num_phases: int = Field(3, ge=1, description="phases after phase 0")
    reference: str = Field("default", description="method that the others are compared with")
    overrides: dict[str, Any] = Field({}, description="run settings of every cell")
    methods: dict[Name, dict[str, Any]] = Field({"default": {}}, min_length=1)
    demos: tuple[DataPath, ...] = Field(
        (), description="demonstrations that each seed's start is trained on, with `overrides.sft`; none: models.actor"
    )

    @field_validator("methods", mode="before")
    @classmethod
    def _nothing_written_is_nothing_changed(cls, methods: Any) -> Any:
        return {k: {} if v is None else v for k, v in methods.items()} if isinstance(methods, dict) else methods

    @model_validator(mode="after")
    def _methods_can_be_told_apart(self) -> Self:
        if self.reference not in self.methods:
            raise ValueError(f"reference {self.reference!r} is not one of the methods: {', '.join(self.methods)}")
        for name in {START, SFT} & self.methods.keys():
            raise ValueError(f"methods.{name}: the name is reserved for what methods share; choose another")
        if len(set(self.seeds)) < len(self.seeds):
            raise ValueError(f"seeds {list(self.seeds)}: name each once")
        return self


SPLITS = {"eval": "held-out seeds", "eval_heldout": "held-out types"}
"""Parts of the evaluation, over each of which a rate is taken, and what tables call them."""


@dataclass(frozen=True)
class Cell:
    """One run of a study, or the start of a seed, or the training of the model that it starts from."""

    method: str
    """Name of the method, or `start`, `start_sft`."""
    seed: int
    config: RunConfig
    """Resolved."""
    settings: tuple[str, ...]
    """What `webrl run` is given to get `config`: the config file, then key=value."""

    @property
    def name(self) -> str:
        """Name of the run folder, but for trainings, and of the log."""
        return f"{self.method}-seed{self.seed}"

    demos: tuple[Path, ...] = ()
    """What a supervised start is trained on."""

    @property
    def model(self) -> Path | None:
        """Where a training writes its model; None of a run."""
        return self.config.run_dir / "sft" if self.method == SFT else None

    @property
    def arguments(self) -> list[str]:
        """What comes after `webrl`."""
        if self.model is None:
            return ["run", *self.settings]
        return ["sft", *self.settings, "--data", *map(str, self.demos), "--out", str(self.model)]


@dataclass(frozen=True)
class Study:
    """A study, resolved."""

    config: StudyConfig
    sfts: tuple[Cell, ...]
    """Training of each seed's start, if the study has demonstrations."""
    starts: tuple[Cell, ...]
    """Phase 0 of each seed."""
    cells: tuple[Cell, ...]
    """Seed by seed, methods in the order of the file."""

    @property
    def folder(self) -> Path:
        """Where the runs and the tables are."""
        return self.config.runs_dir / self.config.name

    @property
    def jobs(self) -> tuple[Cell, ...]:
        """Everything that is run, in the order in which it may be."""
        return (*self.sfts, *self.starts, *self.cells)

    def start_of(self, cell: Cell) -> Cell:
        """Return the start that a cell begins with."""
        return next(start for start in self.starts if start.seed == cell.seed)

    def needs(self, job: Cell) -> list[Cell]:
        """Return what must be finished before a job."""
        if job in self.sfts:
            return []
        if job in self.starts:
            return [sft for sft in self.sfts if sft.seed == job.seed]
        return [self.start_of(job)]


def load_study(
    path: Path, changes: Mapping[str, Any], methods: Sequence[str] | None = None, settings: Sequence[str] = ()
) -> Study:
    """Read and resolve a study.

    Args:
        changes: keys of the study that the command line replaces.
        methods: those of the file to keep, in addition to the reference; None: all.
        settings: `key=value` of the runs, over the file's `overrides`.

    Raises:
        UsageError: missing or malformed file, an unknown key in it or in the settings of a method, a method that
            changes the starting point or the evaluation.
    """
    data = overlay(read_config(path), dict(changes))
    for setting in settings:
        apply_override(data, f"overrides.{setting}")
    try:
        config = StudyConfig.model_validate(data)
    except ValidationError as error:
        said = []
        for problem in error.errors()[:2]:
            if problem["type"] == "extra_forbidden":
                key = ".".join(str(part) for part in problem["loc"])
                said.append(f"{path}: unknown key {key!r}; a study has: {', '.join(StudyConfig.model_fields)}")
            elif problem["loc"][-1:] == ("[key]",):
                name = f"{problem['input']!r:.200}"
                said.append(f"{path}: methods: the name {name} may hold letters, digits, `_` and `.` alone")
            else:
                said.append(f"{path}: {problem_text(problem)}")
        raise UsageError("\n".join(said)) from None
    if methods is not None:
        if unknown := [name for name in methods if name not in config.methods]:
            raise UsageError(f"{path}: no method {unknown[0]!r:.200}; it has: {', '.join(config.methods)}")
        kept = {name: own for name, own in config.methods.items() if name in (*methods, config.reference)}
        config = config.model_copy(update={"methods": kept})
    given = {f"methods.{name}": own for name, own in config.methods.items()}
    for where, keys in {"overrides": config.overrides, **given}.items():
        if own := sorted(set(keys) & set(_OWN_KEYS)):
            raise UsageError(f"{path}: {where}.{own[0]}: set the study's own key, `{own[0]}` or `seeds`, instead")
    beside = path.parent / config.config
    base = beside if is_file(beside) else find_config(config.config)
    starts = tuple(_cell(config, path, base, START, seed) for seed in config.seeds)
    cells = tuple(_cell(config, path, base, method, seed) for seed in config.seeds for method in config.methods)
    sfts = tuple(_cell(config, path, base, SFT, seed) for seed in config.seeds if config.demos)
    study = Study(config, sfts, starts, cells)
    for cell in cells:
        for section, free in _METHOD_KEYS.items():
            runs = (study.start_of(cell).config, cell.config)
            before, after = (getattr(run, section).model_dump(exclude=free) for run in runs)
            if changed := sorted(key for key in before if before[key] != after[key]):
                raise UsageError(
                    f"{path}: methods.{cell.method}: {section}.{changed[0]} = {after[changed[0]]!r:.100} would change "
                    "the starting point or the evaluation, which all methods share; set it in `overrides`"
                )
    return study


def _cell(config: StudyConfig, path: Path, base: Path, method: str, seed: int) -> Cell:
    chosen = config.methods.get(method, {})
    source = f"{path}: methods.{method}" if chosen else f"{path}: overrides"
    start = f"{START}-seed{seed}"
    own: dict[str, Any] = {
        "name": start if method == SFT else f"{method}-seed{seed}", "runs_dir": str(config.runs_dir / config.name),
        "seed": seed, "num_phases": 0 if method in (START, SFT) else config.num_phases,
    }  # fmt: skip
    if config.demos and "actor" in chosen.get("models", {}):
        raise UsageError(f"{source}.models.actor: every method begins with its seed's start, trained on `demos`")
    if config.demos and method != SFT:
        own["models"] = {"actor": str(config.runs_dir / config.name / start / "sft")}
    settings = overlay(overlay(config.overrides, chosen), own)
    resolved = validate_config(overlay(read_config(base), settings), source)
    check_settings(resolved, source)
    demos = config.demos if method == SFT else ()
    arguments = (f"{key}={json.dumps(value)}" for key, value in flatten(settings))
    return Cell(method, seed, resolved, (str(base), *arguments), demos)
