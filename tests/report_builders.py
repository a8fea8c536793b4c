"""Run folders made by hand: small, whole, with what a test puts into them."""

import json
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import yaml

from webrl.config import RunConfig
from webrl.evaluate import add_over_start, summarize_evaluation
from webrl.runs.folder import PhaseFolder, RunFolder
from webrl.runs.store import read_records, write_json, write_records
from webrl.types import Label, Lineage, Status, Step, StepRecord, Task, Trajectory

SITES = ("miniwob.click-button", "miniwob.enter-text", "miniwob.login-user")


def task(name: str, site: str = SITES[0], *, parents: Sequence[str] = (), text: str = "", split: str = "train") -> Task:
    lineage = Lineage(strategy="in_breadth", parent_ids=tuple(parents)) if parents else Lineage(strategy="seed")
    return Task(task_id=name, site=site, instruction=text or f"Do {name}.", split=split, lineage=lineage)


def trajectory(
    what: Task,
    phase: int,
    reward: float | None,
    *,
    prefix: str = "p",
    page: str = "RootWebArea 'Done'",
    action: str = "",
) -> Trajectory:
    step = Step(
        index=0, observation="RootWebArea 'Start'", response=action or "click('7')", action=action or "click('7')",
        prompt_ids=(1, 2, 3), action_ids=(4, 5), logprobs=(-0.1, -0.2),
    )  # fmt: skip
    return Trajectory(
        trajectory_id=f"{prefix}{phase:02d}-{what.task_id}", task=what, instruction=what.instruction or "", phase=phase,
        steps=(step,), final_observation=page, status=Status.PAGE_ENDED, env_reward=reward, seconds=1.5,
    )  # fmt: skip


def mark(folder: PhaseFolder, stage: str, counts: dict[str, Any], seconds: float = 6.0) -> None:
    marker = {"stage": stage, "phase": folder.phase, "counts": counts, "seconds": seconds, "peak_mib": 2048.0}
    spent = {"spent_on": {"": 0.5, "browsers+sampling": max(seconds - 2.5, 0.0), "sampling": 2.0}}
    write_json(folder.path / "stages" / f"{stage}.json", marker | spent | {"finished_at": "2026-11-22T02:45:58+00:00"})


def evaluate(folder: PhaseFolder, outcomes: Sequence[bool], names: Sequence[str] | None = None) -> None:
    """Held-out episodes with these outcomes, and the stage's mark."""
    names = names or [f"eval.{n}" for n in range(len(outcomes))]
    tried = [
        trajectory(task(name, SITES[n % 3], split="eval"), folder.phase, float(good), prefix="e")
        for n, (name, good) in enumerate(zip(names, outcomes, strict=True))
    ]
    write_records(folder.eval, tried)
    counts = summarize_evaluation(tried)
    if folder.phase:
        add_over_start(counts, tried, list(read_records(RunFolder(folder.path.parent).phase(0).eval, Trajectory)))
    mark(folder, "eval", counts)


def build_run(path: Path, num_phases: int = 2, num_tasks: int = 12, **config: Any) -> RunFolder:
    """A finished run: phase 0 of seed tasks, then each phase's tasks written from the failures of the one before."""
    run = RunFolder(path)
    settings = RunConfig().model_dump(mode="json") | {"name": path.name, "num_phases": num_phases} | config
    path.mkdir(parents=True)
    run.config.write_text(yaml.safe_dump(settings, sort_keys=False), encoding="utf-8")
    parents: list[Task] = []
    for number in range(num_phases + 1):
        folder = run.phase(number)
        names = [f"g{number:02d}-{n}" for n in range(num_tasks)]
        tasks = [
            task(name, SITES[n % 3], parents=[parents[n % len(parents)].task_id] if parents else ())
            for n, name in enumerate(names)
        ]
        kept = tasks[:-2] if number else tasks
        tried = [trajectory(t, number, None if number else float(n % 2)) for n, t in enumerate(kept)]
        # One judgement in six is wrong in phase 0.
        rewards = [int(n % 2 if n % 6 else 1) for n in range(len(kept))]
        _write_curriculum(folder, tasks, kept)
        write_records(folder.tasks, kept)
        write_records(folder.trajectories, tried)
        labels = [Label(t.trajectory_id, 0.9 if r else 0.2, r, "orm") for t, r in zip(tried, rewards, strict=True)]
        write_records(folder.labels, labels)
        write_records(folder.train_filter, [_record(t, r) for t, r in zip(tried, rewards, strict=True)])
        _write_metrics(folder)
        evaluate(folder, [n % (4 - min(number, 2)) == 0 for n in range(30)])
        mark(folder, "gen-tasks", {"num_generated": len(tasks) if number else 0, "prompt_tokens": 900})
        mark(folder, "filter-tasks", {"num_kept": len(kept)})
        mark(folder, "rollout", {"num_rollouts": len(tried), "status": {"page_ended": len(tried)}})
        mark(folder, "label", {"num_labelled": len(tried), "num_success": sum(rewards)})
        mark(folder, "replay", {"num_current": len(tried), "history": {"kept": 3 * number, "failed": 2}})
        mark(folder, "train", {}, 30.0)
        mark(folder, "accept", {"rate_factor": 1.0}, seconds=0.0)
        parents = [t for t, reward in zip(kept, rewards, strict=True) if not reward]
    return run


def _write_curriculum(folder: PhaseFolder, tasks: list[Task], kept: list[Task]) -> None:
    if not folder.phase:
        return
    write_records(folder.generated, tasks)
    lost = [t for t in tasks if t not in kept]
    lines = [{"task": t.to_json(), "reason": "infeasible", "detail": "answer 'NO'"} for t in lost]
    folder.dropped.write_text("".join(json.dumps(line) + "\n" for line in lines), encoding="utf-8")
    sieve = {"name": "feasibility", "num_in": len(tasks), "num_kept": len(kept), "dropped_examples": ["Do it. (no)"]}
    write_json(folder.path / "filter_report.json", {"stages": [sieve]})


def _record(tried: Trajectory, outcome: int) -> StepRecord:
    return StepRecord(
        step_id=f"{tried.trajectory_id}:0", trajectory_id=tried.trajectory_id, instruction=tried.instruction,
        site=tried.task.site, phase=tried.phase, index=0, num_steps=1, prompt_ids=(1, 2, 3), action_ids=(4, 5),
        outcome=outcome, ref_logprobs=(-0.1, -0.3),
    )  # fmt: skip


def _write_metrics(folder: PhaseFolder) -> None:
    lines = []
    for name in ("critic", "actor") if folder.phase else ("critic",):
        for step in range(1, 9):
            numbers = {"loss": 0.5 / step, "grad_norm": 2.0, "kl": 0.1, "log_ratio": -0.05, "advantage": 0.2}
            numbers |= {"perplexity": 1.2, "tokens_per_s": 100.0, "seconds": 0.5}
            line: dict[str, Any] = {"name": name, "step": step} | {f"{name}/{k}": v for k, v in numbers.items()}
            lines.append(line | ({"actor/advantage_values": [-0.5, 0.25, 0.75]} if name == "actor" else {}))
    folder.metrics.write_text("".join(json.dumps(line) + "\n" for line in lines), encoding="utf-8")
