"""What `webrl view` costs: `python benchmarks/view.py [--trajectories 10000] [--length 1]`.

A run folder is made of the 39 episodes in `data/samples/experience`, over and over with other ids, in four phases with
labels, one in ten of which is against the truth; `--length N` makes pages and prompts N times as long. The viewer is
started as users start it. `index`: from its address being printed until every file is in; `filter`: a whole page of the
list over HTTP, for selections of every kind; `first page`: until Chromium has loaded the list, from a fresh profile;
`trajectory`: one trajectory's page over HTTP. Beside it, all trajectories are loaded as records, as a stage would:
`ratio` is how many times the viewer's time and memory that takes. The last line is JSON.

`--picture FILE --run RUN --path PATH [--open]` makes a picture of a page of a run instead (docs/view.md); with `--open`
of the first trajectory in that list.
"""

from __future__ import annotations

import argparse
import json
import statistics
import subprocess
import sys
import tempfile
import time
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import httpx
import orjson
import psutil

ROOT = Path(__file__).parent.parent
SAMPLES = ROOT / "data" / "samples" / "experience"
PHASES = 4
SELECTIONS = (
    "", "match=disagree", "label=success&truth=failure", "site=miniwob.click-tab", "status=agent_done", "phase=2",
    "q=click", "q=submit+button", "q=zzz", "sort=unsure", "sort=longest&page=100", "hand=none&truth=success",
    "kind=rollout&split=train&sort=oldest", "q=p03-7", "phase=3&label=failure&sort=unsure",
)  # fmt: skip
REPEATS = 10
LOAD = """import sys, time
from pathlib import Path
import psutil
from webrl.runs.store import read_records
from webrl.types import Trajectory
began, used = time.perf_counter(), psutil.Process().memory_info().rss
records = [r for path in sorted(Path(sys.argv[1]).glob("*/trajectories.jsonl")) for r in read_records(path, Trajectory)]
print(time.perf_counter() - began, psutil.Process().memory_info().rss - used, len(records))
"""


def main() -> None:
    """Measure, or take a picture."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawTextHelpFormatter)
    parser.add_argument("--trajectories", type=int, default=10_000)
    parser.add_argument("--length", type=int, default=1, help="times the samples' pages and prompts (default: 1)")
    parser.add_argument("--picture", type=Path, metavar="FILE")
    parser.add_argument("--run", type=Path, default=ROOT / "runs" / "demo")
    parser.add_argument("--path", default="/", help="the page: its address without host")
    parser.add_argument("--open", action="store_true")
    parser.add_argument("--dark", action="store_true")
    args = parser.parse_args()
    if args.picture:
        with viewer(args.run) as (url, _, client):
            wait_for_index(client)
            take_picture(url, args)
        return
    with tempfile.TemporaryDirectory() as folder:
        run = Path(folder) / "run"
        size = make_run(run, args.trajectories, args.length)
        figures = {"trajectories": args.trajectories, "length": args.length, "mb": round(size / 1e6, 1)} | measure(run)
    for name, value in figures.items():
        print(f"{name:<24}{value}")
    print(json.dumps(figures))


def make_run(run: Path, number: int, length: int) -> int:
    """Write the folder; gives the bytes of its trajectories."""
    lines = [orjson.loads(line) for line in (SAMPLES / "trajectories.jsonl").read_bytes().splitlines()]
    size = 0
    for phase in range(PHASES):
        folder = run / f"phase_{phase:02d}"
        folder.mkdir(parents=True)
        with (folder / "trajectories.jsonl").open("wb") as file, (folder / "labels.jsonl").open("wb") as labels:
            for n in range(phase, number, PHASES):
                data = lines[n // PHASES % len(lines)] | {"trajectory_id": f"p{phase:02d}-{n}", "phase": phase}
                data["env_reward"] = float(n // PHASES % 3 == 0)
                data["steps"] = [longer(step, length) for step in data["steps"]]
                size += file.write(orjson.dumps(data) + b"\n")
                reward = int(data["env_reward"]) ^ (n // PHASES % 10 == 0)
                label = {"trajectory_id": data["trajectory_id"], "p_yes": (n % 97) / 97, "reward": reward}
                labels.write(orjson.dumps(label) + b"\n")
    (run / "config.yaml").write_text("name: run\n", encoding="utf-8")
    return size


def longer(step: dict[str, Any], length: int) -> dict[str, Any]:
    """A step with a longer page and prompt."""
    page = "\n".join([step["observation"]] * length)
    return step | {"observation": page, "prompt_ids": step["prompt_ids"] * length}


def measure(run: Path) -> dict[str, Any]:
    """All figures of a run folder."""
    with viewer(run) as (url, process, client):
        before = process.memory_info().rss
        began = time.perf_counter()
        during = []
        while not client.get("/state").json()["complete"]:
            asked = time.perf_counter()
            client.get("/")
            during.append(time.perf_counter() - asked)
            time.sleep(0.1)
        index_s = time.perf_counter() - began
        index_bytes = process.memory_info().rss - before
        filters = [timed(client, f"/?{selection}") for _ in range(REPEATS) for selection in SELECTIONS]
        pages = [timed(client, f"/t/0/phase_0{n % PHASES}/trajectories.jsonl/{n + 1}") for n in range(40)]
        first = load_in_browser(url)
    done = subprocess.run([sys.executable, "-c", LOAD, run], capture_output=True, text=True, check=True, cwd=ROOT)
    load_s, load_bytes, _ = map(float, done.stdout.split())
    return {
        "index_s": round(index_s, 2),
        "index_mib": round(index_bytes / 2**20, 1),
        "filter_ms_p50": round(1000 * statistics.median(filters), 1),
        "filter_ms_p95": round(1000 * statistics.quantiles(filters, n=20)[18], 1),
        "filter_ms_max": round(1000 * max(filters), 1),
        "first_page_ms": round(first),
        "first_page_while_indexing_ms": round(1000 * max(during), 1) if during else None,
        "trajectory_ms_p95": round(1000 * statistics.quantiles(pages, n=20)[18], 1),
        "load_all_s": round(load_s, 2),
        "load_all_mib": round(load_bytes / 2**20, 1),
        "ratio_s": round(load_s / index_s, 2),
        "ratio_mib": round(load_bytes / max(index_bytes, 1), 2),
    }


@contextmanager
def viewer(run: Path) -> Iterator[tuple[str, psutil.Process, httpx.Client]]:
    """`webrl view`: its address, its process, and a client that is let in."""
    command = [sys.executable, "-m", "webrl.cli", "view", str(run), "--port", "0"]
    process = subprocess.Popen(command, stdout=subprocess.PIPE, text=True)
    try:
        assert process.stdout is not None
        url = process.stdout.readline().split()[1]
        with httpx.Client(base_url=url.partition("/?")[0], timeout=60) as client:
            client.get(url)
            yield url, psutil.Process(process.pid), client
    finally:
        process.terminate()
        process.wait(20)


def wait_for_index(client: httpx.Client) -> None:
    """Return once everything is in."""
    while not client.get("/state").json()["complete"]:
        time.sleep(0.1)


def timed(client: httpx.Client, path: str) -> float:
    """Seconds that a page takes, which must be there."""
    began = time.perf_counter()
    client.get(path).raise_for_status()
    return time.perf_counter() - began


def load_in_browser(url: str) -> float:
    """Milliseconds until a fresh Chromium profile has loaded the list."""
    with chromium() as browser:
        page = browser.new_context().new_page()
        page.goto(url)
        timing = page.evaluate("performance.getEntriesByType('navigation')[0].loadEventEnd")
        return float(timing)


def take_picture(url: str, args: argparse.Namespace) -> None:
    """A PNG of a page, 1280 pixels wide."""
    with chromium() as browser:
        size = {"width": 1280, "height": 800}
        page = browser.new_context(viewport=size, color_scheme="dark" if args.dark else "light").new_page()
        page.goto(url)
        page.goto(f"{url.partition('/?')[0]}{args.path}")
        if args.open:
            with page.expect_navigation():
                page.click(".list .what a")
        page.screenshot(path=args.picture)


@contextmanager
def chromium() -> Iterator[Any]:
    """A headless browser."""
    from playwright.sync_api import sync_playwright

    from webrl.rollouts.browser import find_chromium

    with sync_playwright() as playwright:
        browser = playwright.chromium.launch(executable_path=find_chromium())
        try:
            yield browser
        finally:
            browser.close()


if __name__ == "__main__":
    main()
