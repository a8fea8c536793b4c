"""What the cells have shown so far, read from their run folders: outcomes by evaluation task, and what was spent."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from webrl.errors import StageError
from webrl.evaluate import is_success
from webrl.phase import STAGES
from webrl.runs.folder import RunFolder
from webrl.runs.store import read_lines
from webrl.types import Trajectory
from webrl_study.cells import check_config, check_start, num_finished
from webrl_study.plan import SPLITS, Cell, Study

Outcomes = Mapping[str, bool]
"""Success by task id."""


@dataclass(frozen=True)
class PhaseResult:
    """One finished phase of one cell."""

    phase: int
    outcomes: Mapping[str, Outcomes]
    """By part of the evaluation (`SPLITS`): environment success of each evaluation task."""
    at_temperature: Mapping[str, Mapping[str, Outcomes]]
    """The same of further temperatures (`evaluate.temperature`), by temperature."""
    episodes: int
    """Training episodes of the phase."""
    env_steps: int
    """Their steps in the browser."""
    labelled_success: int
    replayed: int
    critic_steps: int
    """Optimizer steps."""
    actor_steps: int
    """Optimizer steps; 0 in phase 0."""
    kl: float | None
    """The actor's mean estimate of the divergence from π_ref, over the steps that were logged."""
    seconds: float
    """Of all stages together."""


@dataclass(frozen=True)
class CellResult:
    """What one cell has shown."""

    cell: Cell
    phases: tuple[PhaseResult, ...]
    """The finished ones."""
    failure: str
    """Why its last try ended, or ""."""

    @property
    def is_finished(self) -> bool:
        """Whether all phases are there."""
        return len(self.phases) > self.cell.config.num_phases

    @property
    def state(self) -> str:
        """`finished`, `failed: …`, `missing`, or how far it is."""
        if self.is_finished:
            return "finished"
        if self.failure:
            return f"failed: {self.failure}"
        return f"{len(self.phases) - 1} of {self.cell.config.num_phases} phases" if self.phases else "missing"


def read_results(study: Study, failures: Mapping[str, str]) -> list[CellResult]:
    """Read the cells in the study's order.

    Raises:
        StageError: a cell was made with other settings, began elsewhere than the start of its seed, or was evaluated on
            other tasks, so that no pairs can be made.
    """
    results = []
    for job in (*study.sfts, *study.starts):
        check_config(job)
    for cell in study.cells:
        check_config(cell)
        phases = []
        for folder in map(RunFolder(cell.config.run_dir).phase, range(num_finished(cell))):
            done = {name: folder.read_stage(name) for name in STAGES}
            lengths = [len(data.get("steps", ())) for _, data in read_lines(folder.trajectories)]
            further = {f"{t:g}": folder.path / f"eval_t{t:g}.jsonl" for t in cell.config.evaluate.temperature[1:]}
            train: dict[str, Any] = done["train"]["counts"]
            result = PhaseResult(
                phase=folder.phase,
                outcomes=_read_outcomes(folder.eval),
                at_temperature={name: _read_outcomes(path) for name, path in further.items()},
                episodes=len(lengths),
                env_steps=sum(lengths),
                labelled_success=done["label"]["counts"].get("num_success", 0),
                replayed=done["replay"]["counts"].get("num_replayed", 0),
                critic_steps=train.get("critic_steps", 0),
                actor_steps=train.get("actor_steps", 0),
                kl=train.get("actor_kl"),
                seconds=round(sum(marker["seconds"] for marker in done.values()), 1),
            )
            phases.append(result)
        if phases:
            check_start(study.start_of(cell), cell)
        for phase in phases:
            for split, outcomes in phases[0].outcomes.items():
                if other := outcomes.keys() ^ phase.outcomes[split].keys():
                    raise StageError(
                        f"{cell.config.run_dir}: phase {phase.phase} was evaluated on other tasks than phase 0 "
                        f"({len(other)} differ, such as {min(other)}); remove the folder, and the same command runs it "
                        "again"
                    )
        results.append(CellResult(cell, tuple(phases), failures.get(cell.name, "")))
    return results


def _read_outcomes(path: Path) -> dict[str, dict[str, bool]]:
    outcomes: dict[str, dict[str, bool]] = {split: {} for split in SPLITS}
    for number, data in read_lines(path):
        try:
            trajectory = Trajectory.from_json({**data, "steps": []})  # the steps are nine tenths of the time
        except (TypeError, ValueError) as error:
            raise StageError(f"{path}:{number}: {error}") from None
        task = trajectory.task
        split = "eval_heldout" if task.split == "eval_heldout" else "eval"
        outcomes[split][task.task_id] = is_success(trajectory)
    return outcomes
