"""An evening on one GPU: its plan, and a run that is stopped, packed, moved and resumed elsewhere."""

import os
import subprocess
import sys
import tarfile
from pathlib import Path

import pytest
from processes import OF_THE_HUB

from webrl.config import load_config
from webrl.errors import StageError
from webrl.runs.folder import RunFolder, load_run_config, open_run

ROOT = Path(__file__).parent.parent


def one_gpu(*arguments: str, **variables: str) -> subprocess.CompletedProcess[str]:
    environment = os.environ | {"PYTHON": sys.executable, "PYTHONPATH": str(ROOT)} | variables
    command = ["bash", "scripts/one_gpu.sh", *arguments]
    return subprocess.run(command, cwd=ROOT, env=environment, capture_output=True, text=True, timeout=1200, check=False)


def test_the_evenings_plan_can_be_seen(tmp_path):
    shown = one_gpu("--dry-run", "actor.lora_rank=16", f"runs_dir={tmp_path}", *OF_THE_HUB, MINUTES="30")
    assert (shown.returncode, shown.stderr) == (0, "")
    commands = [line.split(" -m webrl.cli ")[1].strip() for line in shown.stdout.splitlines() if "webrl.cli" in line]
    run = tmp_path / "gemma3_270m"
    *others, actor = OF_THE_HUB
    same = f"gemma3_270m actor.lora_rank=16 runs_dir={tmp_path} {' '.join(others)}"
    start = f"{same} {actor}"
    practice = f"tasks.num_seed_tasks=5000 models.actor={run}/sft --run {run}/judge --seed 1000003"
    begun, _, demos = commands.pop().partition(" replay.demos=")
    assert begun == f"run {same} models.actor={run}/sft"
    assert demos.replace("\\", "") == f'["{run}/demos"] models.orm={run}/orm'
    assert commands == [
        f"record-demos {start} --per-type 16",
        f"sft {start}",
        f"record-demos {start} --per-type 24 --run {run}/judge --seed 1000003",
        *(f"{stage} {start} {practice}" for stage in ("gen-tasks", "filter-tasks", "rollout")),
        f"train-orm {start} --data {run}/judge/phase_00/trajectories.jsonl "
        f"{run}/judge/demos --init {run}/sft --out {run}/orm",
    ]
    shown = one_gpu("--dry-run", "gemma3_270m_arena", f"runs_dir={tmp_path}", *OF_THE_HUB)
    assert "train-orm" not in shown.stdout  # label.judge: environment
    assert f"models.orm={tmp_path}" not in shown.stdout
    assert not list(tmp_path.iterdir())
    shown = one_gpu("--dry-run", f"runs_dir={tmp_path}", "replay.demos=[]", *OF_THE_HUB, JUDGE_DEMOS="0")
    assert shown.stdout.count(" record-demos ") == 1
    assert f"--data {run}/judge/phase_00/trajectories.jsonl --init" in shown.stdout
    assert f"{run}/demos" not in shown.stdout.replace("\\", "").partition("4 of 4")[2]


def test_an_evenings_buffer_begins_with_its_demonstrations_unless_there_are_none(tmp_path):
    def begins() -> bool:
        shown = one_gpu("--dry-run", f"runs_dir={tmp_path}", *OF_THE_HUB, JUDGE="no")
        assert (shown.returncode, shown.stderr) == (0, "")
        assert "train-orm" not in shown.stdout
        assert f"tar -czf {tmp_path}/gemma3_270m.tar.gz.part" in shown.stdout
        loop = shown.stdout.partition("4 of 4")[2].replace("\\", "")
        assert f"models.orm={tmp_path}" not in loop
        return f'replay.demos=["{tmp_path}/gemma3_270m/demos"]' in loop

    start = tmp_path / "gemma3_270m" / "sft"
    start.mkdir(parents=True)
    (start / "config.json").touch()  # brought from elsewhere, without what it was trained on
    assert not begins()
    (tmp_path / "gemma3_270m" / "demos").mkdir()
    assert begins()


def test_a_moved_run_takes_its_own_paths_along_and_no_others(tmp_path):
    first, second = tmp_path / "first" / "mine", tmp_path / "second" / "renamed"
    own = [f"models.actor={first}/sft", f'replay.demos=["{first}/demos", "{tmp_path}/first/mine_too"]']
    open_run(load_config("demo", [f"runs_dir={first.parent}", "name=mine", *own]))
    second.parent.mkdir()
    first.rename(second)
    moved = load_run_config(RunFolder(second))
    assert (moved.run_dir, moved.models.actor) == (second, f"{second}/sft")
    assert [str(path) for path in moved.replay.demos] == [f"{second}/demos", f"{tmp_path}/first/mine_too"]
    open_run(moved)
    now = [f"models.actor={second}/sft", f'replay.demos=["{second}/demos", "{tmp_path}/first/mine_too"]']
    open_run(load_config("demo", [f"runs_dir={second.parent}", "name=renamed", *now]))
    with pytest.raises(StageError, match=r"made with another config \(models\.actor: was '.*second/renamed/sft', now"):
        open_run(load_config("demo", [f"runs_dir={second.parent}", "name=renamed", own[0], now[1]]))


def visible_files(run: Path) -> set[Path]:
    """Paths of a run's files that are not hidden, in it."""
    found = (path.relative_to(run) for path in run.rglob("*") if path.is_file())
    return {path for path in found if not any(part.startswith(".") for part in path.parts)}


@pytest.mark.browser
@pytest.mark.slow
def test_an_evening_is_stopped_packed_and_resumed_elsewhere(tmp_path):
    options = [
        "demo", "tasks.train_sites=[miniwob.click-button,miniwob.enter-text]",
        "tasks.num_seed_tasks=12", "tasks.num_eval_tasks=4", "tasks.num_heldout_tasks=2", "generate.num_tasks=12",
        "filter.critic_band=false", "rollout.max_steps=4", "critic.epochs=1", "actor.epochs=1", "trackers=[]",
        "sft.max_tokens=2048", "accept.tasks=4",
    ]  # fmt: skip
    here, there = tmp_path / "here", tmp_path / "there"
    first = one_gpu(*options, f"runs_dir={here}", "num_phases=0", PER_TYPE="2", JUDGE="no")
    assert first.returncode == 0, first.stdout + first.stderr[-3000:]
    there.mkdir()
    with tarfile.open(here / "demo.tar.gz") as archive:
        archive.extractall(there, filter="data")
    assert visible_files(there / "demo") == visible_files(here / "demo")
    assert not list(there.rglob(".*"))
    here.rename(tmp_path / "gone")
    second = one_gpu(*options, f"runs_dir={there}", "num_phases=2", JUDGE="no")
    assert second.returncode == 0, second.stdout + second.stderr[-3000:]
    assert "demonstrations and supervised start are there" in second.stdout
    assert (there / "demo" / "phase_02" / "stages" / "eval.json").is_file()
    with tarfile.open(there / "demo.tar.gz") as archive:
        packed = {name for name in archive.getnames() if name.endswith("model.safetensors")}
    assert packed == {"demo/sft/model.safetensors"} | {
        f"demo/phase_{phase:02d}/{model}/model.safetensors" for phase in (1, 2) for model in ("actor", "critic")
    }
