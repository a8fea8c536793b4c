"""The curriculum's benchmark: `python benchmarks/curriculum.py [--only dedupe generation process scoring]`.

Parts: `dedupe` (near duplicates at scale) and `generation` (validity, survival of each filter, what the critic's band
does; real pages, the shipped tiny models) in `curriculum_tasks.py`; `process` (process_data against its floor) and
`scoring` (perplexity) in `curriculum_replay.py`. The last line of the output is one JSON object with all figures.
"""

from __future__ import annotations

import argparse
import json
import sys
import tempfile
from collections.abc import Callable
from pathlib import Path
from typing import Any

sys.path.insert(0, str(Path(__file__).parent))
from curriculum_replay import measure_process, measure_scoring
from curriculum_tasks import measure_dedupe, measure_generation

REPO = Path(__file__).parent.parent


def main() -> None:
    """Run the parts that are asked for; a part that fails ends the benchmark."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawTextHelpFormatter)
    add = parser.add_argument
    add("--known", type=int, default=100_000, help="instructions already attempted (default: 100000)")
    add("--new", type=int, default=5_000, help="new instructions compared with them (default: 5000)")
    add("--tasks", type=int, default=400, help="instructions to generate (default: 400)")
    add("--seed_tasks", type=int, default=200, help="episodes of phase 0, which trains the critic (default: 200)")
    add("--run", type=Path, help="finished run folder to start from (default: phase 0 is run first)")
    add("--phase", type=int, default=0, help="phase of that folder (default: 0)")
    add("--trajectories", type=int, default=10_000, help="synthetic trajectories for process_data (default: 10000)")
    add("--history", type=int, default=2_000, help="earlier trajectories, for stage 2 (default: 2000)")
    add("--steps", type=int, default=400, help="steps to score (default: 400)")
    add("--actor", type=Path, default=REPO / "data/tiny/actor", help="model that scores (default: data/tiny/actor)")
    with tempfile.TemporaryDirectory() as folder:
        parts: dict[str, Callable[[argparse.Namespace], dict[str, Any]]] = {
            "dedupe": lambda args: measure_dedupe(args.known, args.new),
            "process": lambda args: measure_process(Path(folder), args.trajectories, args.history),
            "scoring": lambda args: measure_scoring(args.actor, args.steps),
            "generation": lambda args: measure_generation(
                Path(folder), args.tasks, args.seed_tasks, args.run, args.phase
            ),
        }
        add("--only", nargs="+", choices=parts, default=list(parts), help="parts to run (default: all)")
        args = parser.parse_args()
        figures: dict[str, Any] = {}
        for name in args.only:
            print(f"# {name}", flush=True)
            found = parts[name](args)
            print(json.dumps(found, indent=2), flush=True)
            figures |= found
    print(json.dumps(figures))


if __name__ == "__main__":
    main()
