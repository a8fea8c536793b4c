"""The loop with an actor that sees: a tiny random vision-language model on real pages, from pixels to gradient."""

import json
from pathlib import Path

import pytest
import torch
from eyes_builders import build_vlm
from safetensors.torch import load_file

from webrl import cli
from webrl.llm.eyes import Eyes
from webrl.llm.pictures import Picture, png_size
from webrl.runs.store import read_records
from webrl.types import StepRecord, Trajectory

OPTIONS = (
    "rollout.screenshots=true", "rollout.image_size=96", "rollout.max_steps=3", "rollout.max_new_tokens=12",
    "rollout.envs_per_worker=2", "models.max_prompt_tokens=1500", "tasks.train_sites=[miniwob.click-button]",
    "trackers=[]",
)  # fmt: skip
PHASES = (
    "num_phases=1", "tasks.source=fresh", "tasks.num_seed_tasks=4", "tasks.num_eval_tasks=2",
    "tasks.num_heldout_tasks=0", "label.judge=environment", "replay.strategy=none", "replay.demos=[]",
    "actor.objective=webrl", "actor.epochs=1", "actor.batch_size=2", "actor.lr=1e-3", "critic.batch_size=4",
    "critic.epochs=1", "critic.lr=1e-3", "accept.tasks=2",
)  # fmt: skip


def tower_moved(before: Path, after: Path) -> bool:
    old, new = (load_file(folder / "model.safetensors") for folder in (before, after))
    assert old.keys() == new.keys()
    return any(not torch.equal(old[name], new[name]) for name in old if "vision" in name)


@pytest.mark.slow
@pytest.mark.browser
def test_an_actor_and_a_critic_that_see_play_are_scored_trained_and_evaluated_on_screenshots(tmp_path: Path) -> None:
    build_vlm("idefics3", tmp_path / "vlm")
    start = ["demo", f"models.actor={tmp_path / 'vlm'}", f"runs_dir={tmp_path}", *OPTIONS]
    assert cli.main(["run", *start, *PHASES]) == 0
    run = tmp_path / "demo"
    eyes = Eyes(str(run / "phase_01" / "actor"))
    sampled = [run / f"phase_{number:02d}" / f"{name}.jsonl" for number, name in ((0, "trajectories"), (0, "eval"))]
    for path in (*sampled, run / "phase_01" / "trajectories.jsonl", run / "phase_01" / "eval.jsonl"):
        steps = [step for trajectory in read_records(path, Trajectory) for step in trajectory.steps]
        assert steps
        for step in steps:
            picture = Picture.of(step, run)
            assert picture is not None, f"{path}: played blind"
            assert max(png_size(picture.read())) == 96
            assert eyes.count(step.prompt_ids) == eyes.look(picture.read()).num_tokens
    replayed = json.loads((run / "phase_00" / "stages" / "replay.json").read_text())["counts"]["sampler"]
    assert replayed["tokens"] > 0
    assert replayed["max"] < 1e-4, "the trainer's log-probs are those of sampling"
    trained = list(read_records(run / "phase_01" / "train_filter.jsonl", StepRecord))
    assert {bool(record.screenshot_sha256) for record in trained} == {True}
    for model in ("actor", "critic"):
        assert tower_moved(run / "phase_00" / model, run / "phase_01" / model), "its gradient comes from pixels"
    valued = list(read_records(run / "phase_01" / "train_scored.jsonl", StepRecord))
    assert {r.value is not None and r.next_value is not None for r in valued} == {True}
    assert len({r.value for r in valued}) > 1

    assert cli.main(["record-demos", *start, "--per-type", "4"]) == 0
    assert cli.main(["sft", *start, "sft.epochs=1", "sft.batch_size=2", "sft.lr=1e-3", "sft.heldout=0"]) == 0
    assert tower_moved(tmp_path / "vlm", run / "sft")
    assert cli.main(["sft", *start, "--data", str(run / "phase_00" / "trajectories.jsonl"), "--dry-run"]) == 0
