#!/usr/bin/env python3
"""A picture of the head of a run's report: `python scripts/report_picture.py RUN OUT.png`."""

from __future__ import annotations

import argparse
import asyncio
import io
import sys
import tempfile
from pathlib import Path

from webrl.cli.command import end_clearly

WIDTH, MARGIN = 1120, 24
COLOURS = 128


async def take(report: Path, scheme: str) -> bytes:
    """PNG of the page from its top to the end of its first section."""
    from webrl.rollouts.browser import Browser

    browser = await Browser().start()
    try:
        context = await browser.new_context(viewport={"width": WIDTH, "height": 800}, color_scheme=scheme)
        page = await context.new_page()
        await page.goto(report.absolute().as_uri())
        end = await page.evaluate("document.querySelector('section').getBoundingClientRect().bottom + scrollY")
        clip = {"x": 0, "y": 0, "width": WIDTH, "height": end + MARGIN}
        png: bytes = await page.screenshot(full_page=True, clip=clip)
    finally:
        await browser.close()
    return png


def main() -> None:
    """Render the report, photograph it, and write it with few colours."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("run", type=Path, metavar="RUN", help="run folder")
    parser.add_argument("out", type=Path, metavar="OUT.png")
    parser.add_argument("--dark", action="store_true", help="as readers of a dark screen see it")
    args = parser.parse_args()
    from PIL import Image

    from webrl.runs.disk import atomic_path
    from webrl_report.page.build import write_report

    with tempfile.TemporaryDirectory() as folder:
        report = Path(folder) / "report.html"
        write_report([args.run], report)
        png = asyncio.run(take(report, "dark" if args.dark else "light"))
    image = Image.open(io.BytesIO(png)).convert("RGB").quantize(COLOURS)
    with atomic_path(args.out) as temporary:
        image.save(temporary, format="PNG", optimize=True)
    print(args.out)


if __name__ == "__main__":
    raise SystemExit(end_clearly(sys.argv[0], main))
