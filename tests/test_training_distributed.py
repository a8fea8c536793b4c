"""Two processes give what one gives: DDP, DeepSpeed ZeRO and FSDP2 over gloo, on the CPU."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import torch
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


def launch(folder: Path, name: str, settings: dict[str, Any], num_processes: int) -> subprocess.CompletedProcess[str]:
    command = [sys.executable]
    if num_processes > 1:
        command += ["-m", "torch.distributed.run", "--standalone", f"--nproc-per-node={num_processes}"]
    environment = os.environ | {"OMP_NUM_THREADS": "1", "OMP_WAIT_POLICY": "passive", "DS_ACCELERATOR": "cpu"}
    return subprocess.run(
        [*command, str(SCRIPT), str(folder), name, json.dumps(settings)],
        env=environment, capture_output=True, text=True, timeout=900, check=False,
    )  # fmt: skip


def run(folder: Path, name: str, settings: dict[str, Any], num_processes: int) -> list[dict[str, Any]]:
    done = launch(folder, name, settings, num_processes)
    assert done.returncode == 0, done.stderr[-3000:]
    return lines(folder, name)


def lines(folder: Path, name: str) -> list[dict[str, Any]]:
    return [json.loads(line) for line in (folder / f"{name}.jsonl").read_text().splitlines()]


Alone = Callable[[dict[str, Any], bool], Path]


@pytest.fixture(scope="module")
def alone(tmp_path_factory: pytest.TempPathFactory) -> Alone:
    """Gives a folder with a model, records, and what one process makes of them (`one`), once for each setting."""
    made: dict[str, Path] = {}

    def play(settings: dict[str, Any], tied: bool) -> Path:
        plain = {
            part: options | {"engine": "ddp"} if part != "models" else options for part, options in settings.items()
        }
        key = json.dumps([plain, tied])
        if key not in made:
            folder = tmp_path_factory.mktemp("alone")
            prepare(folder, tied=tied)
            run(folder, "one", plain, 1)
            made[key] = folder
        return made[key]

    return play


def check_same_curve(alone: Alone, settings: dict[str, Any], name: str, *, tied: bool = True) -> None:
    folder = alone(settings, tied)
    one = lines(folder, "one")
    two = run(folder, name, settings, 2)
    assert [line["step"] for line in one] == [line["step"] for line in two]
    for a, b in zip(one, two, strict=True):
        for key in ("critic/loss", "actor/loss", "actor/log_ratio", "actor/grad_norm", "critic/grad_norm"):
            if key in a:
                assert b[key] == pytest.approx(a[key], rel=2e-3, abs=1e-4), (a["step"], key)
    first, second = (load_file(folder / n / "model.safetensors") for n in ("one", name))
    assert first.keys() == second.keys()
    for key in first:
        torch.testing.assert_close(first[key], second[key], rtol=1e-2, atol=2e-3)


@pytest.mark.slow
def test_two_ddp_processes_give_the_curve_of_one(alone: Alone) -> None:
    check_same_curve(alone, make_settings(), "ddp")


@pytest.mark.slow
def test_two_bfloat16_processes_exchange_their_gradients(tmp_path: Path) -> None:
    prepare(tmp_path)
    settings = make_settings(precision="bf16", lr=1e-3, epochs=1.0)
    one, two = run(tmp_path, "one", settings, 1), run(tmp_path, "two", settings, 2)
    assert [line["step"] for line in one] == [line["step"] for line in two]
    for key in ("critic/loss", "critic/grad_norm", "actor/grad_norm"):  # rows are others, and round otherwise
        first, second = (next(line[key] for line in curve if key in line) for curve in (one, two))
        assert second == pytest.approx(first, rel=0.1), key
    start, first, second = (load_file(tmp_path / n / "model.safetensors") for n in ("actor", "one", "two"))
    moved = [torch.cat([(end[k] - start[k]).flatten() for k in start]) for end in (first, second)]
    assert torch.cosine_similarity(*moved, dim=0) > 0.9


@pytest.mark.slow
def test_two_fsdp2_processes_give_the_curve_of_one(alone: Alone) -> None:
    # untied, so that the second process loads a skeleton and the first deals out the weights
    check_same_curve(alone, make_settings(engine="fsdp2"), "fsdp2", tied=False)


@pytest.mark.slow
def test_two_fsdp2_processes_train_adapters_like_one(alone: Alone) -> None:
    check_same_curve(alone, make_settings(engine="fsdp2", lora_rank=4, lr=2e-3), "lora", tied=False)


@pytest.mark.slow
@pytest.mark.deepspeed
def test_deepspeed_on_one_process_gives_the_same_curve(alone: Alone) -> None:
    settings = make_settings(engine="zero3_offload")
    folder = alone(settings, True)
    offload = run(folder, "offload", settings, 1)
    for a, b in zip(lines(folder, "one"), offload, strict=True):
        for key in ("critic/loss", "actor/loss"):
            if key in a:
                assert b[key] == pytest.approx(a[key], rel=2e-3, abs=1e-4)


@pytest.mark.slow
@pytest.mark.deepspeed
@pytest.mark.parametrize("engine", ["zero1", "zero2", "zero3", "zero3_offload"])
def test_two_deepspeed_processes_give_the_curve_of_one(alone: Alone, engine: str) -> None:
    check_same_curve(alone, make_settings(engine=engine), engine)
