"""What `python scripts/train_grpo.py` gains on this machine, and what it saves to play episodes ahead of the training.

`python benchmarks/grpo.py [--max-staleness 1] [key=value ...]`; settings as for `webrl grpo`. The command is run as a
user types it, in a process of its own, into a new folder: once in turn, and once with `max_staleness`, with the same
pages and as many episodes. The last line is JSON: of the first `reward_first`, `reward_last` (mean, episodes, 95 %
interval), their ratio and seconds; `asynchronous`, the same of the second; `async_speedup`, the ratio of their
`train_seconds` (first episode to last optimizer step; `seconds` count the start as well); `waited_seconds`, how long
the training waited for the episodes of every generation batch. Attempts at one page are not independent of each other,
so that the intervals, which take them for so, are somewhat too narrow. Rewards are from before the last steps;
`held_out`, without settings, is what `webrl eval` finds on 120 other pages, with the start and with what was saved.
`--max-staleness 0` leaves the second training out.
"""

from __future__ import annotations

import argparse
import json
import subprocess
import sys
import tempfile
import time
from collections.abc import Sequence
from pathlib import Path
from typing import Any

from webrl.cli.command import end_clearly
from webrl.errors import StageError

ROOT = Path(__file__).parent.parent
HELD_OUT = ("tasks.train_sites=[miniwob.focus-text-2, miniwob.form-sequence-3]", "tasks.num_eval_tasks=120",
            "tasks.num_heldout_tasks=0", "rollout.max_steps=4")  # fmt: skip
"""The tasks of configs/grpo_demo.yaml, on evaluation's pages."""


def measure(settings: Sequence[str]) -> dict[str, Any]:
    """One training.

    Raises:
        StageError: the command failed.
    """
    with tempfile.TemporaryDirectory(prefix="webrl-grpo-") as folder:
        out = Path(folder) / "out"
        seconds = run(str(ROOT / "scripts" / "train_grpo.py"), "--output-dir", str(out), *settings)
        report = json.loads((out / "report.json").read_text(encoding="utf-8"))
        models = {} if settings else {"start": ROOT / "data/tiny/actor", "saved": out}
        held_out = {name: evaluate(model, Path(folder) / name) for name, model in models.items()}
    first, last = report["reward_first"], report["reward_last"]
    return {
        "reward_first": first,
        "reward_last": last,
        "ratio": round(last["mean"] / first["mean"], 3) if first["mean"] else None,
        "batches": [round(batch["mean"], 3) for batch in report["batches"]],
        "failed_episodes": report["failed_episodes"],
        **{key: report[key] for key in ("staleness", "waited_seconds") if key in report},
        "train_seconds": report["train_seconds"],
        "seconds": round(seconds, 1),
        **({"held_out": held_out} if held_out else {}),
    }


def evaluate(model: Path, folder: Path) -> dict[str, Any]:
    """Successes on the held-out pages.

    Raises:
        StageError: the command failed.
    """
    run("-m", "webrl.cli", "eval", "demo", "--run", str(folder), f"models.actor={model}", *HELD_OUT)
    counts = json.loads((folder / "phase_00/stages/eval.json").read_text(encoding="utf-8"))["counts"]
    return {key: counts[key] for key in ("successes", "episodes", "rate", "ci95")}


def run(*arguments: str) -> float:
    """Seconds of a Python command. Raises StageError: it failed."""
    begun = time.perf_counter()
    code = subprocess.run([sys.executable, *arguments], cwd=ROOT, check=False).returncode
    if code:
        raise StageError(f"{' '.join(arguments)} ended with {code}")
    return time.perf_counter() - begun


def main() -> None:
    """Run, print."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--max-staleness", type=int, default=1, metavar="N", help="of the second training (default: 1)")
    parser.add_argument("settings", nargs="*", metavar="key=value", help="over those of configs/grpo_demo.yaml")
    args = parser.parse_args()
    measured = measure(args.settings)
    if args.max_staleness:
        print(f"in turn: {json.dumps(measured)}", flush=True)
        ahead = measure([*args.settings, f"max_staleness={args.max_staleness}"])
        speedup = round(measured["train_seconds"] / ahead["train_seconds"], 3)
        measured |= {"asynchronous": ahead, "async_speedup": speedup}
    print(json.dumps(measured))


if __name__ == "__main__":
    sys.exit(end_clearly(sys.argv[0], main))
