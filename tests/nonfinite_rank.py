"""Run by torchrun in the tests of losses that are no numbers: one such step of each engine, then one that is well."""

import sys
from pathlib import Path

import torch
from training_builders import make_items

from webrl.config import OptimConfig
from webrl.training.engines import open_engine
from webrl.training.engines.ddp import Engine
from webrl.training.models import load_actor
from webrl.training.packing import pack
from webrl.training.topology import join, leave
from webrl.training.update import prepare


def main(folder: Path, names: list[str]) -> None:
    """Print `ENGINE/PRECISION: kept moved`: were the weights kept in the first step, and moved in the second?"""
    join("cpu")
    for name in names:
        engine_name, precision = name.split("/")
        config = OptimConfig.model_validate({"engine": engine_name, "precision": precision, "lr": 1e-2})
        model = load_actor(folder)
        prepare(model, config, 0)
        engine = open_engine(model, config, "cpu")
        before = weights(engine)
        step(engine, torch.tensor(float("inf") if engine.rank == engine.num_ranks - 1 else 1.0))
        kept = weights(engine)
        engine.optimizer.zero_grad()
        step(engine, torch.tensor(1.0))
        moved = weights(engine)
        if engine.is_main:
            same = [all(torch.equal(a[n], b[n]) for n in a) for a, b in ((before, kept), (kept, moved))]
            print(f"{name}:", "kept" if same[0] else "changed", "still" if same[1] else "moved", flush=True)
    leave()


def step(engine: Engine, loss: torch.Tensor) -> None:
    """Finite gradients, and a loss of this rank's."""
    row = pack([make_items()[engine.rank]])
    with engine.micro_batch(is_last=True):
        engine.backward(-engine.model(row=row).sum())
    engine.step(1e-2, engine.reduce_sums({"loss": loss})["loss"])


def weights(engine: Engine) -> dict[str, torch.Tensor]:
    """Copies."""
    return {name: value.clone() for name, value in engine.full_state().items()}


if __name__ == "__main__":
    main(Path(sys.argv[1]), sys.argv[2:])
