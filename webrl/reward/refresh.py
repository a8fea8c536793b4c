"""A judge that keeps up with the policy (`orm.refresh_every`); the paper's stays as it is.

A policy that is trained on a judge's verdicts finds what the judge takes for success (docs/one_gpu.md has figures). So
every few phases the newest actor plays tasks whose reward the environment knows, and the judge is trained further on
these episodes and on as many of those that it was trained on before. Actor and critic never see them.
"""

from __future__ import annotations

import logging
from collections.abc import Sequence
from pathlib import Path
from typing import Any

from webrl.config import RunConfig
from webrl.reward.train import train_orm
from webrl.runs.store import read_json
from webrl.training.paths import TrainingPaths

logger = logging.getLogger(__name__)


def refresh(config: RunConfig, practice: Path, earlier: Sequence[Path], out: Path, *, seed: int) -> dict[str, Any]:
    """Train `models.orm` further, into `out`; resumes.

    Args:
        practice: trajectories of the newest actor, with the environment's reward.
        earlier: what the judge was trained on before (as for `webrl train-orm --data`).
        seed: of the draws and of the training.

    Returns:
        Of held-out trajectories: `num_heldout`, and `before`, `after`: the share that each judge is right about, with
        its interval (`JudgeReport.accuracy`).

    Raises:
        DataError: no practice episode finished, or all of them ended alike.
        ModelError: unusable judge.
    """
    paths = TrainingPaths((practice,), config.models.orm, out, tuple(earlier))
    done = paths.report / "report.json"
    if out.is_dir() and done.is_file():
        report = read_json(done)
    else:
        report = train_orm(config.model_copy(update={"seed": seed}), paths, compare=True)
    before, after = (report.get(name, {}).get("accuracy") for name in ("start", "heldout"))
    logger.info("judge trained further: right on %s of held-out practice, %s before", _share(after), _share(before))
    return {"num_heldout": report["num_heldout"], "before": before, "after": after}


def _share(accuracy: dict[str, Any] | None) -> str:
    if not accuracy:
        return "none"
    low, high = accuracy["ci95"]
    return f"{100 * accuracy['value']:.1f} % [{100 * low:.1f}, {100 * high:.1f}]"
