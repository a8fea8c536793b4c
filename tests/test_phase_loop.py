"""The whole loop in miniature: real Chromium, real MiniWoB pages, the shipped tiny models; and killed on the way."""

import json
import os
import re
import signal
import subprocess
import sys
import time
from collections import Counter
from pathlib import Path

import psutil
import pytest
from processes import descendants

from webrl.cli import main
from webrl.phase import STAGES
from webrl.runs.store import read_records
from webrl.types import StepRecord, Task, Trajectory

ROOT = Path(__file__).parent.parent
SMALL = (
    "num_phases=1", "tasks.train_sites=[miniwob.click-button,miniwob.enter-text,miniwob.click-collapsible]",
    "tasks.num_seed_tasks=12", "tasks.num_eval_tasks=6", "tasks.num_heldout_tasks=2", "generate.num_tasks=12",
    "filter.critic_band=false", "rollout.envs_per_worker=3", "rollout.max_steps=4", "critic.epochs=1", "actor.steps=1",
    "accept.tasks=4",
)  # fmt: skip
SECRETS = (
    "rollout.webarena.accounts.gitlab={username: ann, password: PLANTED-1}",
    "rollout.webarena.sites.gitlab=http://ann:PLANTED-2@127.0.0.1:9", "rollout.urls=[http://any:PLANTED-3@127.0.0.1:9]",
    'generate.engine.urls=["http://127.0.0.1:9/v1?token=PLANTED-4"]', "label.engine.urls=[http://PLANTED-5@127.0.0.1:9]",
)  # fmt: skip


def command(runs: Path, *more: str) -> list[str]:
    run = [sys.executable, "-m", "webrl.cli", "run", "configs/demo.yaml", f"runs_dir={runs}"]
    return [*run, *SMALL, *SECRETS, "trackers=[tensorboard]", *more]


def contract(run: Path) -> dict[str, object]:
    """What data/README.md promises of a finished run; gives the summary."""
    for phase in (0, 1):
        folder = run / f"phase_{phase:02d}"
        for name in ("tasks", "trajectories", "labels", "train", "train_filter", "eval", "metrics"):
            assert (folder / f"{name}.jsonl").is_file(), f"{folder}/{name}.jsonl"
        for model in ("actor", "critic"):
            assert (folder / model / "model.safetensors").is_file()
            assert (folder / model / "tokenizer.json").is_file()
        stages = [json.loads((folder / "stages" / f"{name}.json").read_text()) for name in STAGES]
        assert all({"config", "versions", "seed", "counts", "seconds", "peak_mib"} <= set(s) for s in stages)
    summary: dict[str, object] = json.loads((run / "summary.json").read_text())
    return summary


@pytest.mark.browser
def test_one_phase_of_the_whole_loop_keeps_the_run_folders_contract(tmp_path, monkeypatch, capfd):
    monkeypatch.chdir(ROOT)
    assert main(command(tmp_path)[3:]) == 0
    said = "".join(capfd.readouterr())
    summary = contract(tmp_path / "demo")
    phase = summary["phases"][1]  # type: ignore[index]
    assert phase["num_generated"] > 0
    assert phase["num_kept"] + sum(phase["dropped"].values()) == phase["num_generated"]
    assert sum(phase["rollout_status"].values()) == phase["num_rollouts"] == phase["num_kept"]
    assert phase["eval"]["episodes"] == 6
    assert phase["eval"]["heldout_types"]["episodes"] == 2
    assert phase["eval"]["over_start"]["tasks"] == 6
    assert "over_start" not in summary["phases"][0]["eval"]  # type: ignore[index]
    assert "over the start" in said
    folder = tmp_path / "demo" / "phase_01"
    tasks = {task.task_id: task for task in read_records(folder / "tasks.jsonl", Task)}
    for trajectory in read_records(folder / "trajectories.jsonl", Trajectory):
        task = tasks[trajectory.task.task_id]
        assert trajectory.instruction == task.instruction
        assert trajectory.env_reward is None, "a generated instruction has no reward of the page"
        assert task.lineage.parent_ids
    sources = Counter()
    for record in read_records(folder / "train_filter.jsonl", StepRecord):
        assert record.outcome in (0, 1)
        assert record.ref_logprobs is not None
        assert len(record.ref_logprobs) == len(record.action_ids)
        sources[record.source] += 1
    assert 0 < sources["replay"] <= 1.5 * sources["current"]
    critic = json.loads((folder / "critic_counts.json").read_text())
    assert critic["critic_samples"] == sources["current"], (
        "replayed steps are all successes, and would raise every value"
    )
    assert "held-out seeds" in said
    assert "PLANTED" not in said
    with_secrets = [p for p in (tmp_path / "demo").rglob("*") if p.is_file() and b"PLANTED" in p.read_bytes()]
    assert with_secrets == []
    assert main(command(tmp_path)[3:]) == 0, "the same command once more finds all of it done"
    assert json.loads((tmp_path / "demo" / "summary.json").read_text()) == summary
    assert list((tmp_path / "demo" / "tensorboard").iterdir())


@pytest.mark.browser
@pytest.mark.slow
def test_a_run_that_is_killed_in_every_stage_ends_as_if_it_had_not_been(tmp_path: Path) -> None:
    run, arguments = tmp_path / "demo", command(tmp_path)
    names = list(STAGES)
    order = [*((0, name) for name in names[2:]), *((1, name) for name in names)]  # phase 0 generates nothing
    for target in order[: len(STAGES)]:
        process = subprocess.Popen(
            arguments, cwd=ROOT, stdout=subprocess.DEVNULL, stderr=subprocess.PIPE, text=True, start_new_session=True,
        )  # fmt: skip
        assert process.stderr is not None
        for line in process.stderr:
            said = re.match(r"phase (\d): ([\w-]+)$", line.strip())
            # A short stage may have ended before the kill that was meant for it: then the one after it is hit twice.
            if said and (int(said[1]), said[2]) in order[order.index(target) :]:
                break
        time.sleep(0.7)
        before = lines_of(run)
        assert process.poll() is None, f"ended before it could be killed in {target}"
        tree = descendants(process.pid)
        os.kill(process.pid, signal.SIGKILL)
        process.wait()
        process.stderr.close()
        assert lines_of(run) >= before
        _, alive = psutil.wait_procs(tree, timeout=20)
        assert not alive, f"left behind after kill -9 in {target}: {alive}"
    done = subprocess.run(arguments, cwd=ROOT, capture_output=True, text=True, timeout=900, check=False)
    assert done.returncode == 0, done.stderr[-3000:]
    contract(run)
    for path in run.glob("phase_*/*l.jsonl"):
        kinds = Counter(t.trajectory_id for t in read_records(path, Trajectory)) if "eval" in path.name else Counter()
        assert all(count == 1 for count in kinds.values()), f"an episode was played twice: {path}"


def lines_of(run: Path) -> int:
    """Finished episodes so far."""
    files = [*run.glob("phase_*/trajectories.jsonl"), *run.glob("phase_*/eval.jsonl")]
    return sum(path.read_bytes().count(b"\n") for path in files)
