"""The actor losses' benchmark: `python benchmarks/objective.py RUN … --objectives NAME … [key=value …]`.

Takes the scored records of one phase of finished run folders and trains that phase's actor once more, from the actor
before it, with each objective. Parts: `steps` (what every optimizer step does to every sample: `objective_steps.py`;
the first run folder only), `success` (held-out success of what comes out, environment's own reward). Results lie in
`--out` and are not made twice; figures are drawn of all that lie there. The last line of the output is one JSON object.

    python benchmarks/objective.py runs/demo runs/demo1 --objectives webrl webrl:beta=0.2 webrl_released --out objective
"""

from __future__ import annotations

import argparse
import json
import sys
import tempfile
from pathlib import Path
from typing import Any

ROOT = Path(__file__).resolve().parent.parent
sys.path[:0] = [str(ROOT), str(Path(__file__).parent)]

from objective_figures import draw_steps, draw_success, print_steps, print_success  # noqa: E402

from webrl.config import RunConfig, load_config  # noqa: E402
from webrl.runs.folder import RunFolder  # noqa: E402
from webrl.runs.store import read_json, read_records, write_json  # noqa: E402
from webrl.types import StepRecord, Trajectory  # noqa: E402

LOOKS = (0.0, 0.25, 0.5, 1.0)


def main() -> None:
    """Measure what is not there yet, draw, print."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawTextHelpFormatter)
    add = parser.add_argument
    add("inputs", nargs="+", metavar="RUN", help="run folders, and key=value settings of the config")
    add("--objectives", nargs="+", default=["webrl"], help="NAME or NAME:option=value,… (options of the actor)")
    add("--part", nargs="+", choices=("steps", "success"), default=["steps", "success"], help="what to measure")
    add("--phase", type=int, default=1, help="phase whose records are trained on (default: 1)")
    add("--samples", type=int, default=64, help="samples looked at in every step (default: 64)")
    add("--episodes", type=int, default=390, help="held-out episodes (default: 390)")
    add("--out", type=Path, default=Path("objective"), help="folder of results and figures")
    args = parser.parse_intermixed_args()
    settings = [text for text in args.inputs if "=" in text]
    runs = [Path(text) for text in args.inputs if "=" not in text]
    args.out.mkdir(parents=True, exist_ok=True)
    for label in args.objectives:
        if "steps" in args.part:
            steps(args, runs[0], label, settings)
        if "success" in args.part:
            for run in runs:
                success(args, run, label, settings)
    results = [read_json(path) for path in sorted(args.out.glob("success_*.json"))]
    traces = [read_json(path) for path in sorted(args.out.glob("steps_*.json"))]
    print_steps(traces)
    print_success(results)
    figures = [*draw_steps(traces, args.out), *draw_success(results, args.out)]
    print(json.dumps({"success": results, "figures": figures}))


def configured(run: Path, label: str, settings: list[str]) -> RunConfig:
    """The run's config with the objective that `label` names."""
    name, _, options = label.partition(":")
    actor = [
        f"actor.objective={name}",
        "actor.beta=null",
        *("actor.max_kl=null", "actor.max_success_drop=null", "actor.imitation=0"),  # the objective by itself
        *(f"actor.{option}" for option in options.split(",") if option),
    ]
    seed = read_json(run / "summary.json")["seed"]
    return load_config(run / "config.yaml", [*actor, f"seed={seed}", *settings])


def steps(args: argparse.Namespace, run: Path, label: str, settings: list[str]) -> None:
    """`steps_LABEL.json`."""
    from objective_steps import measure_steps

    target = args.out / f"steps_{label.replace(':', '-')}.json"
    if target.exists():
        return
    config = configured(run, label, settings)
    with tempfile.TemporaryDirectory() as folder:
        found = measure_steps(
            _records(run, args.phase), RunFolder(run).phase(args.phase - 1).actor, config,
            num_samples=args.samples, looks=LOOKS, out=Path(folder),
        )  # fmt: skip
    beta = config.actor.beta or (0.3 if config.actor.objective == "webrl_scaled" else 1.0)
    write_json(target, {"label": label, "run": run.name, "beta": beta} | found)


def success(args: argparse.Namespace, run: Path, label: str, settings: list[str]) -> None:
    """`success_RUN_LABEL.json`."""
    from webrl.evaluate import success_rate
    from webrl.rollouts.suite import find_suite
    from webrl.stages import play
    from webrl.training.update import train_actor

    target = args.out / f"success_{run.name}_{label.replace(':', '-')}.json"
    if target.exists():
        return
    config = configured(run, label, [*settings, f"tasks.num_eval_tasks={args.episodes}"])
    before = RunFolder(run).phase(args.phase - 1).actor
    with tempfile.TemporaryDirectory() as folder:
        actor, metrics, episodes = (Path(folder) / name for name in ("actor", "metrics.jsonl", "eval.jsonl"))
        seed = config.seed + args.phase
        train_actor(_records(run, args.phase), before, actor, config, seed=seed, metrics_path=metrics)
        norms = [json.loads(line)["actor/grad_norm"] for line in metrics.read_text().splitlines()]
        options: Any = {"phase": args.phase, "prefix": "e", "temperature": config.evaluate.temperature[0]}
        play(config, find_suite(config.tasks.suite).eval_tasks(config), str(actor), episodes, **options)
        played = list(read_records(episodes, Trajectory))
    seen, held = ([t for t in played if (t.task.split == "eval_heldout") is wanted] for wanted in (False, True))
    rate = success_rate(seen).to_json()
    types = success_rate(held).to_json()
    write_json(target, {"label": label, "run": run.name, **rate, "held": types, "max_grad_norm": max(norms)})


def _records(run: Path, phase: int) -> list[StepRecord]:
    return list(read_records(RunFolder(run).phase(phase).path / "train_scored.jsonl", StepRecord))


if __name__ == "__main__":
    main()
