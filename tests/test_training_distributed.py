"""Two processes give what one gives: DDP, DeepSpeed ZeRO and FSDP2 over gloo, on the CPU."""

import json
from pathlib import Path
from typing import Any

import pytest
import torch
from processes import python
from safetensors.torch import load_file
from training_builders import make_actor, make_records

from webrl.config import RunConfig
from webrl.runs.store import write_records
from webrl.training.scoring import score_actions

SCRIPT = Path(__file__).with_name("training_rank.py")


def make_settings(**train: object) -> dict[str, Any]:
    shared = {"lr": 1e-2, "batch_size": 8, "max_tokens": 128, "epochs": 2.0, "schedule": "cosine"} | train
    return {"models": {"device": "cpu"}, "actor": shared, "critic": shared}


def prepare(folder: Path, *, tied: bool = True) -> None:
    make_actor(folder / "actor", tied=tied)
    config = RunConfig.model_validate(make_settings())
    write_records(folder / "records.jsonl", score_actions(make_records(), folder / "actor", config))


def run(folder: Path, jobs: dict[str, dict[str, Any]], num_processes: int) -> None:
    """Train by each job's settings, one after the other in the same processes; a job is called `model/name`."""
    launcher = ["-m", "torch.distributed.run", "--standalone", f"--nproc-per-node={num_processes}"]
    variables = {"OMP_NUM_THREADS": "1", "OMP_WAIT_POLICY": "passive", "DS_ACCELERATOR": "cpu"}
    python(*launcher * (num_processes > 1), SCRIPT, folder, json.dumps(jobs), timeout=900, **variables)


def lines(path: Path) -> list[dict[str, Any]]:
    return [json.loads(line) for line in path.with_suffix(".jsonl").read_text().splitlines()]


def check_same_curve(one: Path, two: Path) -> None:
    assert [line["step"] for line in lines(one)] == [line["step"] for line in lines(two)]
    for a, b in zip(lines(one), lines(two), strict=True):
        for key in ("critic/loss", "actor/loss", "actor/log_ratio", "actor/grad_norm", "critic/grad_norm"):
            if key in a:
                assert b[key] == pytest.approx(a[key], rel=2e-3, abs=1e-4), (two.name, a["step"], key)
    first, second = (load_file(folder / "model.safetensors") for folder in (one, two))
    assert first.keys() == second.keys()
    for key in first:
        torch.testing.assert_close(first[key], second[key], rtol=1e-2, atol=2e-3)


@pytest.mark.slow
def test_two_processes_give_the_curve_of_one_and_in_bfloat16_exchange_their_gradients(tmp_path: Path) -> None:
    prepare(tmp_path / "tied")
    prepare(tmp_path / "untied", tied=False)  # the second process loads a skeleton and the first deals out the weights
    plain, adapters = make_settings(), {"lora_rank": 4, "lr": 2e-3}
    halves = make_settings(precision="bf16", lr=1e-3, epochs=1.0)
    alone = {"tied/one": plain, "untied/one": plain, "untied/one_lora": make_settings(**adapters), "tied/half": halves}
    run(tmp_path, alone, 1)
    fsdp = {"engine": "fsdp2"}
    both = {"tied/ddp": plain, "untied/fsdp2": make_settings(**fsdp), "untied/lora": make_settings(**fsdp | adapters)}
    run(tmp_path, both | {"tied/halves": halves}, 2)
    check_same_curve(tmp_path / "tied/one", tmp_path / "tied/ddp")
    check_same_curve(tmp_path / "untied/one", tmp_path / "untied/fsdp2")
    check_same_curve(tmp_path / "untied/one_lora", tmp_path / "untied/lora")

    one, two = (lines(tmp_path / "tied" / name) for name in ("half", "halves"))
    assert [line["step"] for line in one] == [line["step"] for line in two]
    for key in ("critic/loss", "critic/grad_norm", "actor/grad_norm"):  # rows are others, and round otherwise
        first, second = (next(line[key] for line in curve if key in line) for curve in (one, two))
        assert second == pytest.approx(first, rel=0.1), key
    start, first, second = (load_file(tmp_path / "tied" / n / "model.safetensors") for n in ("actor", "half", "halves"))
    moved = [torch.cat([(end[k] - start[k]).flatten() for k in start]) for end in (first, second)]
    assert torch.cosine_similarity(*moved, dim=0) > 0.9


@pytest.mark.slow
@pytest.mark.deepspeed
def test_deepspeed_gives_the_same_curve_on_one_process_and_on_two(tmp_path: Path) -> None:
    prepare(tmp_path / "tied")
    stages = {f"tied/{engine}": make_settings(engine=engine) for engine in ("zero1", "zero2", "zero3", "zero3_offload")}
    run(tmp_path, {"tied/one": make_settings(), "tied/alone": stages["tied/zero3_offload"]}, 1)
    run(tmp_path, stages, 2)
    one = tmp_path / "tied" / "one"
    for name in stages:
        check_same_curve(one, tmp_path / name)
    for a, b in zip(lines(one), lines(tmp_path / "tied" / "alone"), strict=True):
        for key in ("critic/loss", "actor/loss"):
            if key in a:
                assert b[key] == pytest.approx(a[key], rel=2e-3, abs=1e-4)
