"""A judge that keeps up with the policy (`orm.refresh_every`); the paper's stays as it is.

A policy that is trained on a judge's verdicts finds what the judge takes for success (docs/one_gpu.md has figures). So
every few phases the newest actor plays tasks whose reward the environment knows, and the judge is trained further on
these episodes and on as many of those that it was trained on before. Actor and critic never see them.
"""

from __future__ import annotations

import logging
import shutil
from collections.abc import Sequence
from pathlib import Path
from typing import Any

from webrl.config import RunConfig
from webrl.evaluate import is_success
from webrl.reward.train import train_orm
from webrl.runs.store import read_json, read_records
from webrl.training.paths import TrainingPaths
from webrl.types import Trajectory

logger = logging.getLogger(__name__)


def refresh(config: RunConfig, practice: Path, earlier: Sequence[Path], out: Path, *, seed: int) -> dict[str, Any]:
    """Train `models.orm` further, into `out`, unless nothing can be learnt or it errs more often then; resumes.

    Args:
        practice: trajectories of the newest actor, with the environment's reward.
        earlier: what the judge was trained on before (as for `webrl train-orm --data`).
        seed: of the draws and of the training.

    Returns:
        `num_practice`, `num_success`: finished practice episodes; `num_rehearsed`; of held-out ones `num_heldout`, and
        `before`, `after`: the share that each judge is right about, with its interval (`JudgeReport.accuracy`); and
        `kept`: why the judge stays as it was ("" where `out` is the new one).

    Raises:
        ModelError: unusable judge.
    """
    outcomes = [is_success(t) for t in read_records(practice, Trajectory) if t.status.finished]
    counts: dict[str, Any] = {"num_practice": len(outcomes), "num_success": sum(outcomes)}
    if len(set(outcomes)) < 2:
        kept = f"{sum(outcomes)} of {len(outcomes)} practice episodes are successes: there is nothing to tell apart"
        logger.warning("the judge stays as it was: %s", kept)
        return counts | {"num_rehearsed": 0, "num_heldout": 0, "before": None, "after": None, "kept": kept}
    paths = TrainingPaths((practice,), config.models.orm, out, tuple(earlier))
    done = paths.report / "report.json"
    report = read_json(done) if done.is_file() else None
    if report is None or not (out.is_dir() or _is_worse(report)):
        report = train_orm(config.model_copy(update={"seed": seed}), paths, compare=True)
    before, after = report.get("start", {}).get("accuracy"), report.get("heldout", {}).get("accuracy")
    logger.info("judge trained further: %s of held-out verdicts right, %s before", _share(after), _share(before))
    kept = ""
    if _is_worse(report):
        kept = "it was right more often before"
        logger.warning("the judge stays as it was: %s", kept)
        shutil.rmtree(out, ignore_errors=True)
    counts |= {name: report[name] for name in ("num_rehearsed", "num_heldout")}
    return counts | {"before": before, "after": after, "kept": kept}


def _is_worse(report: dict[str, Any]) -> bool:
    """Return whether the judge errs more often than before beyond chance: the intervals are apart."""
    before, after = report.get("start", {}).get("accuracy"), report.get("heldout", {}).get("accuracy")
    return bool(before and after and after["ci95"][1] < before["ci95"][0])


def _share(accuracy: dict[str, Any] | None) -> str:
    if not accuracy:
        return "none"
    low, high = accuracy["ci95"]
    return f"{100 * accuracy['value']:.1f} % [{100 * low:.1f}, {100 * high:.1f}]"
