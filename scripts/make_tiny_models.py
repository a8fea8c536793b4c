"""Make the checkpoints of data/tiny/ from scratch.

Five steps, in this order, and the demonstrations that replay begins with; recording needs a browser, training a GPU for
about ten minutes (or a day of CPU), `steady-orm` one core for about ten:

    python scripts/make_tiny_models.py record           # scripted experts in the real browser
    python scripts/make_tiny_models.py train            # tokenizer, base, actor, generator
    python scripts/make_tiny_models.py record-actor     # the actor's own episodes, for its judge
    python scripts/make_tiny_models.py train-orm        # outcome model, and the curves' plot
    webrl run demo seed=21 runs_dir=runs/tiny name=played
    python scripts/make_tiny_models.py steady-orm       # outcome model again: words alone are to move it less
    webrl record-demos demo --per-type 23 runs_dir=runs/tiny name=shown
    python scripts/make_tiny_models.py demos            # data/tiny/demos.jsonl: what the replay buffer begins with
"""

from __future__ import annotations

import argparse
import asyncio
import logging
from pathlib import Path

STEPS = ("record", "train", "record-actor", "train-orm", "steady-orm", "demos")


def main() -> None:
    """Parse and run one step."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("step", choices=STEPS)
    parser.add_argument("--work", type=Path, default=Path("runs/tiny"), help="recordings and the base model")
    parser.add_argument("--out", type=Path, default=Path("data/tiny"), help="where the checkpoints go")
    parser.add_argument("--per-site", type=int, default=80, help="demonstrations of each task type")
    parser.add_argument("--workers", type=int, default=1, help="browser worker processes")
    parser.add_argument("--seed", type=int, default=0)
    args = parser.parse_args()
    logging.basicConfig(level=logging.INFO, format="%(message)s")
    if args.step == "record":
        asyncio.run(record_experts(args))
    elif args.step == "record-actor":
        asyncio.run(record_actor(args))
    elif args.step == "train":
        train(args)
    elif args.step == "train-orm":
        train_orm(args)
    elif args.step == "steady-orm":
        steady_orm(args)
    else:
        write_demonstrations(args)


async def record_experts(args: argparse.Namespace) -> None:
    """Demonstrations, demonstrations with slips, and proposed instructions on both's pages."""
    from tiny.instructions import proposed_tasks
    from tiny.slips import record_slips

    from webrl.config import RunConfig
    from webrl.runs.store import read_records
    from webrl.types import Trajectory
    from webrl_site.record import expert_tasks, record

    config = RunConfig.model_validate({"rollout": {"max_steps": 12, "num_workers": args.workers}})
    demos, seed = args.work / "demos.jsonl", args.seed
    await record(expert_tasks(config.model_copy(update={"seed": seed}), args.per_site), config, demos)
    own = expert_tasks(config.model_copy(update={"seed": seed + 1}), args.per_site)
    await record_slips(own, config, args.work / "slips.jsonl", 0.2, seed + 1)
    pages = [t for name in ("demos", "slips") for t in read_records(args.work / f"{name}.jsonl", Trajectory)]
    await record_slips(proposed_tasks(pages, seed), config, args.work / "proposed.jsonl", 0.12, seed + 2)


async def record_actor(args: argparse.Namespace) -> None:
    """Sampled episodes of the actor, on own and proposed instructions."""
    from tiny.instructions import proposed_tasks

    from webrl.config import load_config
    from webrl.llm import open_model
    from webrl.llm.policy import ModelPolicy
    from webrl.rollouts.collect import collect
    from webrl.runs.store import read_records
    from webrl.types import Trajectory
    from webrl_site.record import expert_tasks

    config = load_config(Path("configs/demo.yaml"), [f"rollout.num_workers={args.workers}", "tasks.train_sites=[]"])
    own = expert_tasks(config.model_copy(update={"seed": args.seed + 3}), args.per_site)
    proposed = proposed_tasks(read_records(args.work / "slips.jsonl", Trajectory), args.seed + 4)
    async with open_model(str(args.out / "actor"), config.rollout.engine, config.models) as model:
        policy = ModelPolicy(model, config, temperature=1.0)
        await collect([*own, *proposed], config, policy, args.work / "actor.jsonl", phase=0, prefix="actor")


def train(args: argparse.Namespace) -> None:
    """Tokenizer, base, actor and generator."""
    import copy
    from dataclasses import asdict

    from tiny import pretrain, recipe

    args.out.mkdir(parents=True, exist_ok=True)
    demos = recipe.read_all([args.work / "demos.jsonl"])
    tokenizer = recipe.make_tokenizer(demos)
    curve = args.out / "curves.jsonl"
    curve.unlink(missing_ok=True)
    base = recipe.train_base(tokenizer, demos, curve)
    pretrain.save(copy.deepcopy(base), tokenizer, args.work / "base", asdict(recipe.RECIPES["base"]))
    generator = recipe.train_generator(copy.deepcopy(base), tokenizer, demos, curve)
    pretrain.save(generator, tokenizer, args.out / "generator", asdict(recipe.RECIPES["generator"]))
    recipe.train_actor(args.work / "base", tokenizer, demos, args.out / "actor", curve)


def train_orm(args: argparse.Namespace) -> None:
    """Outcome model on everything recorded."""
    from dataclasses import asdict

    from tiny import pretrain, recipe

    base, tokenizer = recipe.load(args.work / "base")
    recorded = recipe.read_all([args.work / f"{name}.jsonl" for name in ("demos", "slips", "proposed", "actor")])
    judged = [(t, recipe.truth(t)) for t in recorded if t.steps]
    held_out, judged = judged[::20], [pair for i, pair in enumerate(judged) if i % 20]
    model = recipe.train_orm(base, tokenizer, judged, held_out, args.out / "curves.jsonl")
    pretrain.save(model, tokenizer, args.out / "orm", asdict(recipe.RECIPES["orm"]))


def steady_orm(args: argparse.Namespace) -> None:
    """Outcome model trained further on a run's episodes, with text in them that only says something."""
    import json
    from dataclasses import asdict

    from tiny import claims, pretrain, recipe

    from webrl.reward.train import judged

    model, tokenizer = recipe.load(args.out / "orm")
    files = sorted(p for name in ("trajectories", "eval") for p in args.work.glob(f"played/phase_*/{name}.jsonl"))
    played = [judged(t, int(recipe.truth(t))) for t in recipe.read_all(files) if t.steps]
    further = claims.Further()
    claims.train(model, tokenizer, played, further)
    notes = json.loads((args.out / "orm" / "recipe.json").read_text()) | {"steady": asdict(further)}
    pretrain.save(model, tokenizer, args.out / "orm", notes)


def write_demonstrations(args: argparse.Namespace) -> None:
    """Recorded successes as text alone: pages, answers, instruction, type."""
    from collections import Counter

    from webrl.replay.demonstrations import HumanDemonstration, HumanStep, read_demonstrations
    from webrl.runs.problems import ProblemLog
    from webrl.runs.store import write_records

    shown = read_demonstrations([args.work / "shown/demos"], ProblemLog(), "success", Counter())
    write_records(
        args.out / "demos.jsonl",
        (
            HumanDemonstration(t.instruction, tuple(HumanStep(s.observation, s.response) for s in t.steps), t.task.site)
            for t in shown
        ),
    )


if __name__ == "__main__":
    main()
