"""One phase's benchmark: `python benchmarks/phase.py --config NAME [key=value …]`; the last line is one JSON object.

Runs phase 0 (which phase 1 needs) and phase 1 of a config the way `webrl run` does, and says where phase 1's wall time
went: per stage, in browsers, in sampling, in both at once, in scoring, in gradient steps, in vLLM's servers (start,
sleep, wake, weights, verification), in reading and writing models, and in the rest; and how much of it an NVIDIA GPU
was idle. What starts once a run, such as the server, falls into phase 0 and is listed apart.

    python benchmarks/phase.py --config gemma3_270m models.actor=runs/gemma3_270m/sft               # one GPU
    python benchmarks/phase.py --config demo tasks.num_seed_tasks=48 generate.num_tasks=48          # two cores
"""

from __future__ import annotations

import argparse
import json
import logging
import os
import shutil
import subprocess
import sys
import tempfile
import threading
import time
from collections import defaultdict
from collections.abc import Mapping
from pathlib import Path
from typing import Any, Self

ROOT = Path(__file__).resolve().parent.parent
sys.path[:0] = [str(ROOT)]

from webrl import phase as phases  # noqa: E402
from webrl.cli.command import end_clearly  # noqa: E402
from webrl.cli.options import find_config  # noqa: E402
from webrl.config import RunConfig, load_config  # noqa: E402
from webrl.config.plugins import PACKAGES  # noqa: E402
from webrl.preflight import check_inputs  # noqa: E402
from webrl.runs.folder import PhaseFolder, RunFolder  # noqa: E402
from webrl.runs.machine import cpu_environment  # noqa: E402

KINDS = ("browsers", "sampling", "browsers and sampling", "scoring", "gradient steps", "servers", "model files", "rest")
USEFUL = KINDS[:5]


class GpuLoad:
    """Watches with `nvidia-smi`, twice a second, how busy the GPUs are."""

    def __init__(self) -> None:
        self.samples: list[tuple[float, float]] = []
        """(time, share of the last half second in which no kernel ran), the mean of the GPUs."""
        self._process: subprocess.Popen[str] | None = None

    def __enter__(self) -> Self:
        if shutil.which("nvidia-smi"):
            query = ["nvidia-smi", "--query-gpu=utilization.gpu", "--format=csv,noheader,nounits", "-lms", "500"]
            self._process = subprocess.Popen(query, stdout=subprocess.PIPE, text=True)
            threading.Thread(target=self._read, daemon=True).start()
        return self

    def __exit__(self, *exc: object) -> None:
        if self._process:
            self._process.kill()
            self._process.wait()

    def _read(self) -> None:
        assert self._process
        assert self._process.stdout
        for line in self._process.stdout:
            if line.strip().isdecimal():
                self.samples.append((time.time(), 1 - int(line) / 100))

    def idle_share(self, since: float, until: float) -> float | None:
        """Of a span of time; None without samples."""
        idle = [share for moment, share in self.samples if since <= moment <= until]
        return round(sum(idle) / len(idle), 3) if idle else None


def main() -> None:
    """Run, print the table, print the JSON line."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--config", default="gemma3_270m", help="name or path (default: gemma3_270m)")
    parser.add_argument("overrides", nargs="*", metavar="key=value", help="of the config")
    parser.add_argument("--out", type=Path, help="folder for the run (default: one that is removed)")
    parser.add_argument("--run", type=Path, metavar="DIR", help="no run: the phases of this run folder, as it was run")
    args = parser.parse_args()
    if args.run:
        describe_run(args.run)
        return
    missing = cpu_environment()
    if missing:  # they act only if set before Python starts
        os.execve(sys.executable, [sys.executable, *sys.orig_argv[1:]], {**os.environ, **missing})
    logging.basicConfig(level=logging.WARNING, format="%(asctime)s %(message)s", datefmt="%X")
    for package in PACKAGES:
        logging.getLogger(package).setLevel(logging.INFO)
    out = args.out or Path(tempfile.mkdtemp(prefix="webrl-phase-"))
    overrides = [*args.overrides, f"runs_dir={out}", "num_phases=1"]
    config = load_config(find_config(args.config), overrides)
    check_inputs(config, phases.STAGES)
    try:
        with GpuLoad() as gpu:
            figures = measure(config, gpu)
    finally:
        if args.out is None:
            shutil.rmtree(out, ignore_errors=True)
    print(json.dumps({"benchmark": "phase", "config": args.config} | figures), flush=True)


def describe_run(path: Path) -> None:
    """The finished phases of a run folder, without the GPU's load, which nobody watched."""
    folder, gpu = RunFolder(path), GpuLoad()
    done = [k for k in range(folder.last_phase() + 1) if phases.is_phase_done(folder.phase(k))]
    figures = {k: describe(folder.phase(k), gpu, f"phase {k}") for k in done}
    print(json.dumps({"benchmark": "phase", "run": path.name, "phases": figures}), flush=True)


def measure(config: RunConfig, gpu: GpuLoad) -> dict[str, Any]:
    """Phases 0 and 1."""
    folder = phases.run(config)
    start = describe(folder.phase(0), gpu, "phase 0")
    figures = describe(folder.phase(1), gpu, "phase 1")
    figures["episodes"] = count_episodes(folder)
    figures["before"] = {key: start[key] for key in ("seconds", "servers")}
    return figures


def describe(folder: PhaseFolder, gpu: GpuLoad, title: str) -> dict[str, Any]:
    """Print a phase's table; give its sums."""
    stages, idle, servers = {}, {}, defaultdict(float)
    for name in phases.STAGES:
        stage = folder.read_stage(name)
        stages[name] = divide(stage["seconds"], stage["spent_on"])
        for kinds, seconds in stage["spent_on"].items():
            servers[server_work(kinds)] += seconds
        end = (folder.path / "stages" / f"{name}.json").stat().st_mtime
        idle[name] = gpu.idle_share(end - stage["seconds"], end)
    total = {kind: sum(stage[kind] for stage in stages.values()) for kind in KINDS}
    seconds = sum(total.values())
    begin = (folder.path / "stages" / "eval.json").stat().st_mtime - seconds
    idle["all"] = gpu.idle_share(begin, begin + seconds)
    print_table(title, stages | {"all": total}, idle)
    servers.pop("", None)
    return {
        "seconds": round(seconds, 1),
        "useful_share": round(sum(total[kind] for kind in USEFUL) / seconds, 3),
        "gpu_idle_share": idle["all"],
        "kinds": {kind: round(total[kind], 1) for kind in KINDS},
        "servers": {kind: round(part, 1) for kind, part in servers.items()},
        "stages": {name: round(sum(stage.values()), 1) for name, stage in stages.items()},
    }


def divide(seconds: float, spent_on: Mapping[str, float]) -> dict[str, float]:
    """A stage's seconds by kind; where several were under way, what does not overlap with the others' use counts."""
    parts = dict.fromkeys(KINDS, 0.0)
    for names, part in spent_on.items():
        kinds = set(names.split("+"))
        if server_work(names):
            parts["servers"] += part
        elif kinds == {"browsers", "sampling"}:
            parts["browsers and sampling"] += part
        else:
            order = ("gradient steps", "scoring", *USEFUL, "model files", "rest")
            parts[next(kind for kind in order if kind in kinds | {"rest"})] += part
    parts["rest"] += seconds - sum(parts.values())
    return parts


def server_work(names: str) -> str:
    """What was done to servers at that time ("" if nothing); a verification also samples and scores."""
    found = [name for name in names.split("+") if name.startswith("server ")]
    return "server verification" if "server verification" in found else found[0] if found else ""


def print_table(title: str, stages: Mapping[str, Mapping[str, float]], idle: Mapping[str, float | None]) -> None:
    """Seconds of each stage by kind, and the GPU's idle share."""
    names = "".join(f"{kind.replace('browsers and', 'b. and'):>16}" for kind in KINDS)
    print(f"\n{title}\n{'':<14}{'s':>8}{names}{'GPU idle':>12}")
    for name, parts in stages.items():
        row = "".join(f"{parts[kind]:>16.1f}" for kind in KINDS)
        share = idle[name]
        print(f"{name:<14}{sum(parts.values()):>8.1f}{row}" + ("" if share is None else f"{share:>12.0%}"))


def count_episodes(folder: RunFolder) -> dict[str, int]:
    """Episodes that phase 1 collected and evaluated."""
    files = {"collected": folder.phase(1).trajectories, "evaluated": folder.phase(1).eval}
    return {name: path.read_bytes().count(b"\n") if path.is_file() else 0 for name, path in files.items()}


if __name__ == "__main__":
    sys.exit(end_clearly(sys.argv[0], main))
