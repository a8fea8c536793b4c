"""What an actor that sees learns from what only pixels show: `python benchmarks/eyes.py [--objective webrl]`.

A tiny vision-language model is made from nothing (`eyes_model.py`). `webrl sft` shows it demonstrations of MiniWoB's
`focus-text` (one click into a text field that lies elsewhere on each page) whose clicks scatter so that most miss, then
`webrl run` trains it on new pages and their own reward, by GRPO or by WebRL's update (a critic that sees, replay, the
KL-constrained actor), and plays held-out page seeds. It is shown the screenshot alone (`rollout.show_text=false`) and
answers by coordinates. The control is made, taught and trained in the same way, but its processor makes an empty page
of every picture. The last line is JSON: success with count and 95 % interval at the start and after each phase, and
`ratio`, last over first. `key=value` are settings of the runs.
"""

from __future__ import annotations

import argparse
import asyncio
import io
import json
import os
import random
import subprocess
import sys
import tempfile
import time
from pathlib import Path
from typing import Any

HERE = Path(__file__).resolve().parent
sys.path[:0] = [str(HERE), str(HERE.parent)]

from eyes_model import build, shut_eyes  # noqa: E402
from PIL import Image, ImageChops  # noqa: E402

from webrl.cli.command import end_clearly  # noqa: E402
from webrl.config import RunConfig, load_config  # noqa: E402
from webrl.config.resources import find_config  # noqa: E402
from webrl.errors import StageError  # noqa: E402
from webrl.llm.interface import PolicyOutput, Turn  # noqa: E402
from webrl.llm.prompts import policy_messages  # noqa: E402
from webrl.rollouts.collect import collect  # noqa: E402
from webrl.rollouts.suite import find_suite  # noqa: E402
from webrl_site.record import DEMONSTRATION_SEED  # noqa: E402

SITE, GOAL = "miniwob.focus-text", "Focus into the textbox."
ARMS = ("seeing", "blank")
CARELESS = 35
"""Standard deviation, in pixels, of the annotator's clicks about the middle of a field."""
WIDTH, HEIGHT, HEADER = 160, 210, 52
"""Of the page in pixels, and of the yellow bar above the part that is played in."""
SIGHT = (
    f"tasks.train_sites=[{SITE}]", "rollout.screenshots=true", "rollout.image_size=0", "rollout.show_text=false",
    f"rollout.viewport=[{WIDTH},{HEIGHT}]", "rollout.max_steps=1", "rollout.max_new_tokens=16",
    "rollout.envs_per_worker=16", "rollout.engine.max_batch=16", "models.max_prompt_tokens=128", "trackers=[]",
)  # fmt: skip
SFT = ("sft.lr=2e-3", "sft.batch_size=16", "sft.heldout=0", "sft.outcome=all")
TRAINING = ("tasks.num_eval_tasks=200", "actor.warmup_ratio=0.2", "actor.batch_size=24")
OBJECTIVES = {
    "grpo": (
        "tasks.num_seed_tasks=48", "rollout.num_generations=8", "actor.lr=5e-4", "actor.epochs=8",
        "actor.length_norm=16", "actor.clip_high=5",
    ),
    "webrl": (
        "tasks.num_seed_tasks=384", "rollout.num_generations=1", "actor.objective=webrl_scaled", "actor.lr=5e-4",
        "actor.epochs=8", "replay.strategy=perplexity", "critic.lr=3e-4", "critic.batch_size=24",
    ),
}  # fmt: skip
"""384 attempts a phase either way. `clip_high` at its default lets a token's probability grow by a fifth a phase,
whatever the number of steps."""


class Annotator:
    """Finds the field by its outline, and clicks somewhere about its middle: most clicks miss it."""

    fingerprint = "annotator"

    def __init__(self, seed: int) -> None:
        self._rng = random.Random(f"{seed}:annotator")

    async def act(self, turn: Turn) -> PolicyOutput:
        """A click."""
        assert turn.screenshot is not None
        page = Image.open(io.BytesIO(turn.screenshot)).convert("RGB").crop((0, HEADER, WIDTH, HEIGHT))
        box = ImageChops.invert(page).getbbox()
        if box is None:
            raise StageError(f"a page of {SITE} without text field")
        x = self._about((box[0] + box[2]) // 2, WIDTH)
        y = self._about(HEADER + (box[1] + box[3]) // 2, HEIGHT)
        return PolicyOutput((), (), (), f"mouse_click({x}, {y})", turn.observation)

    def _about(self, middle: int, limit: int) -> int:
        return max(0, min(limit - 1, round(self._rng.gauss(middle, CARELESS))))


def record(config: RunConfig, num: int) -> Path:
    """Demonstrations, on training seeds that no run with a small seed draws."""
    out = config.run_dir / "demos" / "trajectories.jsonl"
    out.parent.mkdir(parents=True)
    number = config.tasks.model_copy(update={"num_seed_tasks": num})
    drawn = config.model_copy(update={"tasks": number, "seed": DEMONSTRATION_SEED + config.seed})
    tasks = find_suite("miniwob").training_tasks(drawn)
    asyncio.run(collect(tasks, config, Annotator(config.seed), out, phase=0, prefix="demo"))
    return out.parent


def side_by_side(commands: dict[str, list[str]], work: Path) -> None:
    """`webrl` commands at once, each on a core of its own."""
    environment = {**os.environ, "OMP_NUM_THREADS": "1"}
    started = {}
    for name, arguments in commands.items():
        with (work / f"{name}.log").open("a", encoding="utf-8") as log:
            command = [sys.executable, "-m", "webrl.cli", *arguments]
            started[name] = subprocess.Popen(command, stdout=log, stderr=subprocess.STDOUT, env=environment)
    codes = {name: process.wait() for name, process in started.items()}
    if any(codes.values()):
        raise StageError(f"webrl {next(iter(commands.values()))[0]} ended with {codes}: see {work}/*.log (--work)")


def figures(folder: Path) -> dict[str, Any]:
    """Success of each phase, and the last over the first."""
    phases = json.loads((folder / "summary.json").read_text(encoding="utf-8"))["phases"]
    rates = [{key: p["eval"][key] for key in ("successes", "episodes", "rate", "ci95", "errors")} for p in phases]
    first, last = rates[0]["rate"], rates[-1]["rate"]
    return {"phases": rates, "ratio": round(last / first, 2) if first else None}


def measure(work: Path, args: argparse.Namespace) -> dict[str, Any]:
    """Everything that the last line says."""
    begun = time.perf_counter()
    common = [f"runs_dir={work}", f"seed={args.seed}", *SIGHT]
    demos = record(load_config(find_config("demo_grpo"), [*common, "name=demos"]), args.demos)
    prompt = policy_messages(GOAL, (), "")[-1].content
    for name in ARMS:
        build(work / f"{name}-base", [prompt, "mouse_click(1, 2)"] * 2, args.seed)
    shut_eyes(work / "blank-base")
    learn = [*common, *SFT, f"sft.epochs={args.epochs}", "--data", str(demos)]
    side_by_side({n: ["sft", "demo_grpo", f"name={n}", f"models.actor={work}/{n}-base", *learn] for n in ARMS}, work)
    play = [*common, *TRAINING, *OBJECTIVES[args.objective], f"num_phases={args.phases}", *args.settings]
    verb = "run" if args.phases else "eval"
    side_by_side({n: [verb, "demo_grpo", f"name={n}", f"models.actor={work}/{n}/sft", *play] for n in ARMS}, work)
    found = {name: figures(work / name) for name in ARMS}
    return {"objective": args.objective, "seed": args.seed, **found, "seconds": round(time.perf_counter() - begun, 1)}


def main() -> None:
    """Run, print."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    add = parser.add_argument
    add("--objective", choices=OBJECTIVES, default="grpo", help="webrl: webrl_scaled and its critic (default: grpo)")
    add("--seed", type=int, default=0)
    add("--demos", type=int, default=256, help="demonstrations (default: 256)")
    add("--epochs", type=int, default=10, help="passes over them (default: 10)")
    add("--phases", type=int, default=6, help="of training (default: 6; 0: the start alone)")
    add("--work", type=Path, help="new folder for everything, which is kept (default: a temporary one)")
    add("settings", nargs="*", metavar="key=value", help="over those of the runs")
    args = parser.parse_args()
    for name, least in {"seed": 0, "demos": 1, "epochs": 1, "phases": 0}.items():
        if getattr(args, name) < least:
            parser.error(f"--{name} {getattr(args, name)}: a number from {least} up")
    if args.work and (not args.work.is_dir() if args.work.exists() else False):
        parser.error(f"--work {str(args.work)!r} is a file; name a new folder")
    if args.work and args.work.exists() and any(args.work.iterdir()):
        parser.error(f"--work {str(args.work)!r} holds files already; name a new folder")
    with tempfile.TemporaryDirectory(prefix="webrl-eyes-") as folder:
        print(json.dumps(measure(args.work or Path(folder), args)))


if __name__ == "__main__":
    sys.exit(end_clearly(sys.argv[0], main))
