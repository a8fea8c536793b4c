"""A training that is killed after its model is in place, before it has cleaned up, leaves no state, loses no count."""

from __future__ import annotations

from pathlib import Path

import pytest
from test_training_launch import make_run

from webrl.config import load_config
from webrl.phase import run_stage
from webrl.runs.store import read_json


@pytest.mark.slow
def test_a_kill_after_the_model_is_in_place_loses_neither_counts_nor_space(tmp_path: Path) -> None:
    run = make_run(tmp_path)
    config = load_config(run / "config.yaml")
    phase = run / "phase_01"
    whole = run_stage(config, "train", 1)
    for late in (phase / "stages" / "train.json", phase / "critic_counts.json", phase / "actor_counts.json"):
        late.unlink()
    (phase / ".critic.state" / "step_00000001").mkdir(parents=True)
    again = run_stage(config, "train", 1)
    assert {k: v for k, v in again.items() if "seconds" not in k and "tokens_per_s" not in k and "gib" not in k} == {
        k: v for k, v in whole.items() if "seconds" not in k and "tokens_per_s" not in k and "gib" not in k
    }
    assert read_json(phase / "critic_counts.json")["critic_steps"] == again["critic_steps"]
    assert not list(phase.glob(".*.state"))
