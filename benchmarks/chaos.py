"""Kill everything, many times, and look at what is left.

`python benchmarks/chaos.py [--kills 320] [--kinds controller,worker,…] [--seed 0]`, or `make chaos`. The whole loop in
miniature (real Chromium, the tiny models) is killed with `kill -9`, or its surroundings fail, at random (seeded)
moments; after each the same command again. A kind a line, then what went wrong, a line each; the last line is JSON.

Kinds: the controller, and the controller while its in-process model is asked; worker, browser and renderer processes;
the vLLM server (where there is a vLLM), an OpenAI-compatible judge, an OpenEnv server; one training process of two;
loss of power, a full disk, a slow disk, and jumps of the clock, the last two with kills (chaos_shim.c).

Whole runs (`chaos_kinds.py`) are set so that nothing depends on timing: all records and weights must be those of an
uninterrupted run. Where parts are killed (`chaos_parts.py`), tasks, episodes, labels and evaluation must be the same,
in any order. Not compared: times and numbers of attempts anywhere; with vLLM, whose answers depend on what shares a
batch, what the episodes hold. Training on two processes (`chaos_ranks.py`) is held against two undisturbed processes.
"""

from __future__ import annotations

import argparse
import json
import shutil
import sys
import tempfile
import threading
import time
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any

from chaos_disk import build_shim
from chaos_kinds import Shop, run_loop
from chaos_lives import Lives
from chaos_loop import settings
from chaos_parts import run_parts, run_server, run_vllm
from chaos_ranks import run_ranks
from chaos_tally import FAULTS, Tally

Kind = Callable[[Shop, str, int], Tally]
KINDS: dict[str, tuple[Kind, float]] = {
    "rank": (run_ranks, 8),
    "vllm": (run_vllm, 2),
    "controller": (run_loop, 50),
    "power": (run_loop, 25),
    "model": (run_loop, 30),
    "full": (run_loop, 20),
    "slow": (run_loop, 10),
    "clock": (run_loop, 15),
    "openenv": (run_server, 20),
    "judge": (run_server, 20),
    "worker": (run_parts, 40),
    "browser": (run_parts, 40),
    "renderer": (run_parts, 40),
}
"""Name -> (function, share of the kills)."""
DISK = ("power", "full", "slow", "clock")
JSON_NAMES = ("kills", *FAULTS)


def main() -> int:
    """Run the kinds asked for, print what came of them; 0 if nothing went wrong."""
    args = parse()
    started = time.monotonic()
    scratch = Path(tempfile.mkdtemp(prefix="webrl-chaos-", dir=args.scratch)).resolve()
    try:
        tallies = kill_all(scratch, args)
    finally:
        if not args.keep:
            shutil.rmtree(scratch)
    for tally in tallies:
        for line in tally.details():
            print(line)
    totals: dict[str, Any] = {
        name: sum(len(v) if isinstance(v := getattr(t, name), list) else v for t in tallies) for name in JSON_NAMES
    }
    for name, value in others(args.others).items():
        totals[name] = totals.get(name, 0) + value if isinstance(value, int) else value
    print(json.dumps(totals | {"minutes": round((time.monotonic() - started) / 60, 1)}))
    return int(any(totals[name] for name in FAULTS))


def kill_all(scratch: Path, args: argparse.Namespace) -> list[Tally]:
    """All kinds, `--jobs` of them at a time, each a line when it is done."""
    shim = build_shim(scratch)
    shares = {kind: KINDS[kind][1] for kind in args.kinds}
    with ThreadPoolExecutor(args.jobs) as threads:
        reference = uninterrupted(Lives(shim, scratch / "logs"), scratch)
        shared: dict[str, Path] = {}
        lock = threading.Lock()

        def one(kind: str) -> Tally:
            kills = max(1, round(args.kills * shares[kind] / sum(shares.values())))
            began = time.monotonic()
            with Lives(shim, scratch / "logs" / kind) as lives:
                shop = Shop(lives, scratch, args.seed, reference, shared, lock)
                lacking = shim is None and kind in DISK
                tally = Tally(kind, skipped="no C compiler") if lacking else KINDS[kind][0](shop, kind, kills)
            print(f"{kind}: {json.dumps(tally.counts())}, {time.monotonic() - began:.0f} s", flush=True)
            return tally

        return list(threads.map(one, args.kinds))


def uninterrupted(lives: Lives, scratch: Path) -> Path:
    """The run that nothing happens to."""
    folder = scratch / "reference"
    (folder / "tmp").mkdir(parents=True)
    began = time.monotonic()
    life = lives.start(settings(folder), env={"TMPDIR": str(folder / "tmp")})
    while life.poll() is None:
        time.sleep(0.1)
    if life.poll() != 0:
        raise SystemExit(f"the uninterrupted run failed: {life.tail()}")
    print(f"uninterrupted: {time.monotonic() - began:.0f} s", flush=True)
    return folder / "run"


def others(wanted: bool) -> dict[str, Any]:
    """Figures of the sibling harnesses: bad inputs, and hostile clients of the server."""
    if not wanted:
        return {}
    import chaos_inputs
    import chaos_server

    return chaos_inputs.run() | chaos_server.run()


def parse() -> argparse.Namespace:
    """The command line."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--kills", type=int, default=320, help="in all (default: 320)")
    parser.add_argument("--kinds", type=kinds, default=list(KINDS), help=f"of {','.join(KINDS)} (default: all)")
    parser.add_argument("--seed", type=int, default=0, help="of moments and victims (default: 0)")
    parser.add_argument("--jobs", type=int, default=2, help="kinds at a time (default: 2)")
    parser.add_argument("--scratch", type=Path, help="folder for the runs (default: the temporary directory)")
    parser.add_argument("--keep", action="store_true", help="leave runs and logs behind")
    parser.add_argument("--others", action=argparse.BooleanOptionalAction, default=True, help="inputs and server too")
    return parser.parse_args()


def kinds(text: str) -> list[str]:
    """Names of kinds."""
    unknown = set(text.split(",")) - set(KINDS)
    if unknown:
        raise argparse.ArgumentTypeError(f"unknown {', '.join(sorted(unknown))}; known: {', '.join(KINDS)}")
    return text.split(",")


if __name__ == "__main__":
    sys.exit(main())
