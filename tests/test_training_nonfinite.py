"""A batch's loss that is no number changes no weights, even where all gradients are finite."""

from pathlib import Path

import pytest
import torch
from processes import python
from training_builders import make_items

from webrl.config import OptimConfig
from webrl.config.extras import is_installed
from webrl.errors import TrainingError
from webrl.training.models import load_actor
from webrl.training.objectives import LossOutput
from webrl.training.packing import Pack
from webrl.training.trainer import Job, train
from webrl.training.update import prepare

SCRIPT = Path(__file__).with_name("nonfinite_rank.py")
ENVIRONMENT = {"PYTHONPATH": str(SCRIPT.parents[1]), "OMP_NUM_THREADS": "1", "OMP_WAIT_POLICY": "passive"}
ENVIRONMENT |= {"DS_ACCELERATOR": "cpu"}


@pytest.mark.parametrize("precision", ["fp32", "bf16"])
def test_the_training_ends_with_the_weights_it_had_before_the_step(actor: Path, tmp_path: Path, precision: str) -> None:
    config = OptimConfig.model_validate({"precision": precision, "lr": 1e-2, "batch_size": 2, "epochs": 1.0})
    model = load_actor(actor)
    prepare(model, config, 0)
    items = make_items()[:2]

    def loss(output: torch.Tensor, row: Pack, indices: list[int]) -> LossOutput:
        plain = -output.sum()[None] / len(indices)
        return LossOutput(plain.expand(len(indices)) + torch.inf, {})

    job = Job("actor", model, items, [True] * 2, ["a", "b"], loss=loss, save=lambda state, folder: None)
    before = [p.detach().to(torch.bfloat16 if precision == "bf16" else None).clone() for p in model.parameters()]
    with pytest.raises(TrainingError, match="step 1: the loss is inf"):
        train(job, config, out=tmp_path / "new", seed=0, metrics_path=tmp_path / "m.jsonl", device="cpu")
    assert all(torch.equal(p, was) for p, was in zip(model.parameters(), before, strict=True))


@pytest.mark.slow
def test_one_process_s_loss_keeps_all_processes_from_the_step(actor: Path) -> None:
    engines = ["ddp/bf16", "fsdp2/fp32", *(["zero2/fp32"] if is_installed("deepspeed") else [])]
    launcher = ["-m", "torch.distributed.run", "--standalone", "--nproc-per-node=2"]
    said = python(*launcher, SCRIPT, actor, *engines, **ENVIRONMENT).stdout.splitlines()
    assert [line for line in said if line.startswith(tuple(engines))] == [f"{name}: kept moved" for name in engines]
