"""The report of a run: seconds to make it, its size, and how long a fresh Chromium takes to open it.

`python benchmarks/report.py RUN [RUN …]`; the last line of the output is one JSON object with all figures.
"""

from __future__ import annotations

import argparse
import json
import statistics
import tempfile
import time
from pathlib import Path
from typing import Any

from view import chromium

from webrl_report.page.build import write_report

NUM_OPENED = 5


def main() -> None:
    """Measure and print."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("runs", type=Path, nargs="+", metavar="RUN")
    with tempfile.TemporaryDirectory() as folder:
        figures = measure(parser.parse_args().runs, Path(folder, "report.html"))
    print(json.dumps(figures))


def measure(runs: list[Path], out: Path) -> dict[str, Any]:
    """Figures of the report of some runs, written to `out`."""
    began = time.perf_counter()
    write_report(runs, out)
    made = time.perf_counter() - began
    opened, said = [], []
    for _ in range(NUM_OPENED):
        with chromium() as browser:
            page = browser.new_context().new_page()
            page.on("console", lambda message: said.append(message.text))
            page.goto(out.as_uri())
            opened.append(page.evaluate("performance.getEntriesByType('navigation')[0].loadEventEnd"))
    return {
        "made_s": round(made, 2),
        "megabytes": round(out.stat().st_size / 1e6, 2),
        "opened_ms_median": round(statistics.median(opened)),
        "opened_ms_longest": round(max(opened)),
        "console": said,
    }


if __name__ == "__main__":
    main()
