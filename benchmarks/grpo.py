"""What `python scripts/train_grpo.py` gains on this machine: mean reward of its first and its last episodes.

`python benchmarks/grpo.py [key=value ...]`; settings as for `webrl grpo`. The command is run as a user types it, in a
process of its own, into a new folder. The last line is JSON: `reward_first`, `reward_last` (mean, episodes, 95 %
interval), their ratio, and the seconds it took. Attempts at one page are not independent of each other, so that the
intervals, which take them for so, are somewhat too narrow.
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

from webrl.config.extras import exit_code
from webrl.errors import StageError

ROOT = Path(__file__).parent.parent


def measure(settings: Sequence[str]) -> dict[str, object]:
    """One training.

    Raises:
        StageError: the command failed.
    """
    with tempfile.TemporaryDirectory(prefix="webrl-grpo-") as folder:
        out = Path(folder) / "out"
        command = [sys.executable, str(ROOT / "scripts" / "train_grpo.py"), "--output-dir", str(out), *settings]
        begun = time.perf_counter()
        code = subprocess.run(command, cwd=ROOT, check=False).returncode
        seconds = time.perf_counter() - begun
        if code:
            raise StageError(f"{' '.join(command)} ended with {code}")
        report = json.loads((out / "report.json").read_text(encoding="utf-8"))
    first, last = report["reward_first"], report["reward_last"]
    return {
        "reward_first": first,
        "reward_last": last,
        "ratio": round(last["mean"] / first["mean"], 3) if first["mean"] else None,
        "failed_episodes": report["failed_episodes"],
        "seconds": round(seconds, 1),
    }


def main() -> None:
    """Run, print."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("settings", nargs="*", metavar="key=value", help="over those of configs/grpo_demo.yaml")
    print(json.dumps(measure(parser.parse_args().settings)))


if __name__ == "__main__":
    sys.exit(exit_code(main))
