"""Training's benchmark: `python benchmarks/training.py`; the last line of the output is one JSON object.

On a machine without GPU: tokens per second of the tiny actor against a plain padded Hugging Face loop, in the same
process, with the same environment variables (`ratio_vs_padded`). On one NVIDIA GPU: the optimizer steps of `webrl
train` at five shapes and lengths of real episodes, beside bfloat16 weights and TRL (`training_engine.py`); `--part
passes`: the update's passes at Llama-3.1-8B's shape against a re-enactment of the released code's passes
(`training_gpu.py`). On several GPUs: the whole update with optimizer against that re-enactment under ZeRO-3, with and
without CPU offload (`training_cluster.py`). `--part` picks one; every part prints its table before the JSON line.
"""

from __future__ import annotations

import argparse
import json
import os
import subprocess
import sys
from collections.abc import Sequence
from pathlib import Path

HERE = Path(__file__).resolve().parent
sys.path[:0] = [str(HERE), str(HERE.parent)]

from webrl.cli.command import end_clearly  # noqa: E402
from webrl.config.extras import require  # noqa: E402
from webrl.errors import UsageError  # noqa: E402
from webrl.runs.machine import cpu_environment, visible_gpus  # noqa: E402

SHAPES = ("0.27B", "0.6B", "1.7B", "4B", "8B")
ROWS = ("webrl", "compiled", "plain layers", "liger layers", "bf16 weights", "bf16 weights compiled", "trl")


def main() -> None:
    """Run the parts that this machine can run."""
    gpus = len(visible_gpus())
    part = "cluster" if gpus > 1 else "engine" if gpus == 1 else "cpu"
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawTextHelpFormatter)
    parser.add_argument(
        "--part", choices=("cpu", "engine", "passes", "cluster"), default=part, help=f"what to measure ({part} here)"
    )
    parser.add_argument("--repeats", type=int, default=3, help="timed repetitions on the CPU (default: 3)")
    parser.add_argument("--seconds", type=float, default=420, help="time budget of passes and cluster (default: 420)")
    parser.add_argument("--layers", type=int, default=32, help="decoder layers of passes and cluster (default: 32)")
    parser.add_argument(
        "--size",
        choices=("tiny", "8B"),
        default="8B",
        help="shape of passes and cluster; tiny: all parts",
    )
    parser.add_argument("--shapes", default=",".join(SHAPES), help="of engine (default: all, by commas)")
    parser.add_argument("--rows", default=",".join(ROWS), help=f"of engine (default: {','.join(ROWS)})")
    parser.add_argument("--steps", type=int, default=12, help="timed optimizer steps of engine (default: 12)")
    parser.add_argument(
        "--warm-up",
        type=int,
        default=12,
        help="steps of engine before them (default: 12; memory is still asked for until then)",
    )
    args = parser.parse_args()
    if args.part == "cluster":
        require("deepspeed", "benchmarks/training.py --part cluster")
    missing = cpu_environment()
    if missing:  # they act only if set before Python starts
        os.execve(sys.executable, [sys.executable, *sys.orig_argv[1:]], {**os.environ, **missing})
    if args.part == "cpu":
        from training_cpu import measure

        figures = measure(args.repeats)
    elif args.part == "engine":
        from training_engine import Steps, measure_engine

        figures = measure_engine(
            chosen(args.shapes, SHAPES),
            chosen(args.rows, ROWS),
            Steps(max(1, args.warm_up), args.steps),
            args.size == "tiny",
        )
    elif args.part == "passes":
        from training_gpu import measure_gpu

        figures = measure_gpu(args.seconds, args.layers, args.size)
    else:
        figures = run_cluster(gpus, args)
    print(json.dumps(figures), flush=True)


def chosen(text: str, known: Sequence[str]) -> list[str]:
    """The names in a list by commas.

    Raises:
        UsageError: an unknown one.
    """
    names = [name.strip() for name in text.split(",")]
    for name in names:
        if name not in known:
            raise UsageError(f"{name!r} is not one of {', '.join(known)}")
    return names


def run_cluster(gpus: int, args: argparse.Namespace) -> dict[str, object]:
    """Start one process per GPU and read rank 0's figures."""
    command = [sys.executable, "-m", "torch.distributed.run", "--standalone", f"--nproc-per-node={max(gpus, 1)}"]
    script = [str(HERE / "training_cluster.py"), str(args.seconds), str(args.layers), args.size]
    paths = os.pathsep.join([str(HERE), str(HERE.parent), os.environ.get("PYTHONPATH", "")])
    environment = os.environ | {"PYTHONPATH": paths}
    process = subprocess.Popen([*command, *script], stdout=subprocess.PIPE, text=True, env=environment)
    figures: dict[str, object] = {}
    assert process.stdout
    for line in process.stdout:
        if line.startswith("{"):
            figures |= json.loads(line)
        else:
            print(line, end="", flush=True)
    process.wait()
    return figures


if __name__ == "__main__":
    sys.exit(end_clearly(sys.argv[0], main))
