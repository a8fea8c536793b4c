"""Stage "label": the configured judge on a file of trajectories."""

from __future__ import annotations

import asyncio
import logging
from collections import Counter
from collections.abc import Iterable
from pathlib import Path
from statistics import fmean
from typing import Any

from webrl.config import RunConfig
from webrl.errors import DataError, JudgeError
from webrl.evaluate import pass_all, pass_any
from webrl.llm import open_model
from webrl.reward.labels import agreement, read_labels, read_outcomes
from webrl.reward.orm import label_trajectories
from webrl.runs.clock import progress
from webrl.runs.store import count_lines, read_lines, read_records
from webrl.types import Label, Trajectory

logger = logging.getLogger(__name__)


def label_file(config: RunConfig, trajectories: Path, labels: Path) -> dict[str, Any]:
    """Judge a trajectory file into a label file (resumes), with `models.orm`.

    Returns:
        `num_labelled`, `num_success`, `num_unjudged`, `num_unfinished`, of all trajectories judged so far, and
        `agreement` with the environment's own reward where there is one (a report; nothing is trained on it), and
        `groups` where tasks were attempted several times (`group_counts`).

    Raises:
        DataError: missing or malformed trajectory file.
        ModelError: unusable judge.
        JudgeError: not one trajectory could be judged; the same call asks again. Or the judge errs more often than
            `label.min_agreement` allows.
    """
    if not trajectories.is_file():
        raise DataError(f"{trajectories}: no such file; roll out first")
    judge(config, read_records(trajectories, Trajectory), labels, count_lines(trajectories))
    known = read_labels(labels)
    rewards = [label.reward for label in known.values()]
    counts: dict[str, Any] = {
        "num_labelled": sum(r is not None for r in rewards),
        "num_success": sum(r == 1 for r in rewards),
        "num_unjudged": sum(r is None for r in rewards),
        "num_unfinished": sum(not t.status.finished for t in read_records(trajectories, Trajectory)),
    }
    if counts["num_unjudged"] and not counts["num_labelled"]:
        reason = next(label.error for label in known.values())
        raise JudgeError(f"{labels}: none of {counts['num_unjudged']} episodes could be judged; the first: {reason}")
    if counts["num_labelled"] >= 20 and counts["num_success"] in (0, counts["num_labelled"]):  # fewer may end alike
        logger.warning(
            "all %d episodes are labelled %s: an update learns nothing from them; look at some (`webrl view`), and "
            "train a judge on this model's own if they are wrong (`webrl train-orm --data %s`)",
            counts["num_labelled"], "successes" if counts["num_success"] else "failures", labels.parent,
        )  # fmt: skip
    report, groups = agreement(trajectories, labels), group_counts(trajectories, labels)
    if report and report["accuracy"]["ci95"][1] < config.label.min_agreement:  # too often wrong to be trained on
        accuracy, sites = report["accuracy"], report["by_site"]
        worst = sorted(sites, key=lambda name: sites[name]["num_agree"] / sites[name]["num"])[:3]
        shown = ", ".join(f"{name} {sites[name]['num_agree']} of {sites[name]['num']}" for name in worst)
        low, high = accuracy["ci95"]
        share = f"{100 * accuracy['value']:.1f} % [{100 * low:.1f}, {100 * high:.1f}] of {accuracy['num']} labels"
        raise JudgeError(
            f"{labels}: {share} agree with the environment's reward (worst: {shown}), fewer than "
            f"label.min_agreement={config.label.min_agreement}; train a judge on this model's own episodes "
            f"(`webrl train-orm --data {labels.parent}`), and start a run with it as models.orm"
        )
    if groups:
        logger.info("%d of %d groups have attempts of both outcomes", groups["num_mixed"], groups["num"])
    return counts | ({"agreement": report} if report else {}) | ({"groups": groups} if groups else {})


def judge(config: RunConfig, trajectories: Iterable[Trajectory], labels: Path, total: int = 0) -> dict[str, int]:
    """Judge a stream of trajectories, about `total`, with the judge of the config; counts of this call
    (`label_trajectories`).
    """

    async def work(bar: Any) -> dict[str, int]:
        successes = 0

        def show(label: Label) -> None:
            nonlocal successes
            successes += label.reward == 1
            bar.set_postfix_str(f"judged solved {successes}")
            bar.update()

        # The environment's own reward is for ablations only: not to be compared with an outcome model's unsaid.
        if config.label.judge == "environment":
            return await label_trajectories(trajectories, None, config.label, labels, on_label=show)
        async with open_model(config.models.orm, config.label.engine, config.models) as model:
            return await label_trajectories(trajectories, model, config.label, labels, on_label=show)

    with progress(total or None, "label", "episodes") as bar:
        return asyncio.run(work(bar))


def group_counts(trajectories: Path, labels: Path) -> dict[str, Any]:
    """Count a phase's groups, the attempts at one task, by how they ended; {} if no task was attempted twice.

    A group whose judged attempts all end alike has no signal for `actor.objective=grpo`, which compares them.

    Returns:
        `num`; `num_mixed`, `num_succeeded`, `num_failed`: those with at least two judged attempts, by outcome;
        `num_single`: those with fewer, because the others failed (`num_masked` of all attempts) or were not judged;
        `no_signal`: the share that is not mixed; `passed`: by k (1, 2, 4, … and the most that were judged at one task)
        `any` and `all`, pass@k and pass^k over the `tasks` with this many judged attempts.
    """
    rewards = read_outcomes(labels)
    groups: dict[str, list[int | None]] = {}
    for _, data in read_lines(trajectories):
        groups.setdefault(data["task"]["task_id"], []).append(rewards.get(data["trajectory_id"]))
    if all(len(group) == 1 for group in groups.values()):
        return {}
    judged = [[reward for reward in group if reward is not None] for group in groups.values()]
    kinds: Counter[str] = Counter()
    for group in judged:
        if len(group) < 2:
            kinds["single"] += 1
        elif len(set(group)) > 1:
            kinds["mixed"] += 1
        else:
            kinds["succeeded" if group[0] else "failed"] += 1
    most, passed = max(map(len, judged)), {}
    for k in sorted({most, *(2**i for i in range(most.bit_length()))} - {0}):
        chosen = [(len(group), sum(group), k) for group in judged if len(group) >= k]
        any_, all_ = (fmean(chance(*group) for group in chosen) for chance in (pass_any, pass_all))
        passed[str(k)] = {"any": any_, "all": all_, "tasks": len(chosen)}
    return {
        "num": len(groups),
        **{f"num_{kind}": kinds[kind] for kind in ("mixed", "succeeded", "failed", "single")},
        "num_masked": sum(reward is None for group in groups.values() for reward in group),
        "no_signal": 1 - kinds["mixed"] / len(groups),
        "passed": passed,
    }
