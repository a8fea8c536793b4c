"""Run by torchrun in the distributed tests: train critic and actor, by each of the given settings in turn."""

import gc
import json
import sys
import warnings
from pathlib import Path
from typing import Any

import torch

from webrl.config import RunConfig
from webrl.runs.store import read_records
from webrl.training.scoring import score_values
from webrl.training.topology import join, leave
from webrl.training.update import train_actor, train_critic
from webrl.types import StepRecord


def main(root: Path, jobs: dict[str, dict[str, Any]]) -> None:
    join("cpu")
    for job, settings in jobs.items():
        folder, name = (root / job).parent, Path(job).name
        config = RunConfig.model_validate(settings)
        records = list(read_records(folder / "records.jsonl", StepRecord))
        metrics = folder / f"{name}.jsonl"
        train_critic(records, folder / "actor", folder / f"{name}_critic", config, seed=1, metrics_path=metrics)
        assert tensor_bytes() < (folder / "actor" / "model.safetensors").stat().st_size / 10, (
            "the critic is still there"
        )
        scored = score_values(records, folder / f"{name}_critic", config)
        train_actor(scored, folder / "actor", folder / name, config, seed=1, metrics_path=metrics)
    leave()


def tensor_bytes() -> int:
    """Of all tensors that Python knows, shared storage counted once."""
    gc.collect()
    storages = {}
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")  # looking at some objects' class is deprecated
        for found in gc.get_objects():
            if type(found) in (torch.Tensor, torch.nn.Parameter):
                storages[found.untyped_storage().data_ptr()] = found.untyped_storage().nbytes()
    return sum(storages.values())


if __name__ == "__main__":
    main(Path(sys.argv[1]), json.loads(sys.argv[2]))
