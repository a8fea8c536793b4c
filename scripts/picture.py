#!/usr/bin/env python3
"""Make an animation of a run's progress: `python scripts/picture.py RUN OUT.gif`.

Picks held-out tasks that the actor of the first phase failed and that of the last phase solved, replays the recorded
actions of both in a real browser, and shows them side by side with the element that each action uses.
"""

from __future__ import annotations

import argparse
import io
import re
import sys
from dataclasses import dataclass
from itertools import zip_longest
from pathlib import Path
from typing import TYPE_CHECKING

from webrl.cli.command import end_clearly

if TYPE_CHECKING:
    from PIL import Image, ImageDraw

    from webrl.api import TaskEnv
    from webrl.types import Trajectory

CROP = (0, 75, 240, 315)
"""The part of a MiniWoB++ screenshot (498 x 321 pixels) below the yellow instruction."""
SIZE = 340
GAP, HEAD, FOOT = 16, 62, 34
PARTIAL = ("miniwob.click-checkboxes",)
"""Task types that reward an incomplete selection, as BrowserGym counts it: a viewer would not call that solved."""
STEP_MS, END_MS = 900, 1900
COLOURS = 64
GREY, RED, GREEN, BLUE = (90, 98, 110), (186, 48, 40), (36, 120, 70), (31, 95, 168)


@dataclass(frozen=True)
class Scene:
    """One moment of an attempt."""

    image: Image.Image
    caption: str
    colour: tuple[int, int, int]


def pick(first: list[Trajectory], last: list[Trajectory], count: int) -> list[tuple[Trajectory, Trajectory]]:
    """The attempts to show: of each task type the one solved with the most steps, the longest ones first."""
    failed = {t.task.task_id: t for t in first if t.env_reward == 0 and t.steps}
    best: dict[str, tuple[Trajectory, Trajectory]] = {}
    for attempt in last:
        before = failed.get(attempt.task.task_id)
        if before is None or attempt.env_reward != 1 or len(before.steps) > 5 or attempt.task.site in PARTIAL:
            continue
        shown = best.get(attempt.task.site)
        if shown is None or len(attempt.steps) > len(shown[1].steps):
            best[attempt.task.site] = (before, attempt)
    return sorted(best.values(), key=lambda pair: -len(pair[1].steps))[:count]


def replay(env: TaskEnv, attempt: Trajectory) -> list[Scene]:
    """The scenes of an attempt, from its recorded actions."""
    from PIL import Image, ImageDraw

    page = env.reset(attempt.task)
    scenes = []
    for step in attempt.steps:
        assert page.screenshot is not None
        image = Image.open(io.BytesIO(page.screenshot)).convert("RGB")
        found = re.search(r"'(\d+)'", step.action)
        details = page.details.elements if page.details else {}
        box = details.get(found[1], {}).get("bbox") if found else None
        if box:
            x, y, width, height = map(float, box)
            ImageDraw.Draw(image).rectangle((x - 3, y - 3, x + width + 3, y + height + 3), outline=BLUE, width=3)
        scenes.append(
            Scene(
                image.crop(CROP).resize((SIZE, SIZE), Image.Resampling.LANCZOS),
                step.action or "(unreadable answer)",
                BLUE,
            )
        )
        result = env.step(step.response)
        page = result.observation
        if result.done or result.agent_done:
            break
    solved = attempt.env_reward == 1
    scenes.append(Scene(scenes[-1].image, "solved" if solved else "failed", GREEN if solved else RED))
    return scenes


def draw_frame(goal: str, titles: tuple[str, str], scenes: tuple[Scene, Scene]) -> Image.Image:
    """Both attempts side by side, with the instruction above and each action below."""
    from matplotlib import font_manager
    from PIL import Image, ImageDraw, ImageFont

    font = ImageFont.truetype(font_manager.findfont("DejaVu Sans"), 15)
    frame = Image.new("RGB", (2 * SIZE + 3 * GAP, HEAD + SIZE + FOOT), "white")
    pen = ImageDraw.Draw(frame)
    pen.text((GAP, 8), shorten(pen, goal, frame.width - 2 * GAP, font), fill="black", font=font)
    for column, (title, scene) in enumerate(zip(titles, scenes, strict=True)):
        left = GAP + column * (SIZE + GAP)
        pen.text((left, 34), title, fill=GREY, font=font)
        frame.paste(scene.image, (left, HEAD))
        pen.rectangle((left - 1, HEAD - 1, left + SIZE, HEAD + SIZE), outline=(205, 210, 216))
        caption = shorten(pen, scene.caption, SIZE, font)
        pen.text((left, HEAD + SIZE + 8), caption, fill=scene.colour, font=font)
    return frame


def shorten(pen: ImageDraw.ImageDraw, text: str, width: int, font: object) -> str:
    """The text on one line of this width."""
    text = " ".join(text.split())
    if pen.textlength(text, font=font) <= width:  # type: ignore[arg-type]
        return text
    while pen.textlength(f"{text}…", font=font) > width:  # type: ignore[arg-type]
        text = text[:-1]
    return f"{text}…"


def main() -> None:
    """Pick, replay, draw, write."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("run", type=Path, metavar="RUN", help="folder of a finished run on MiniWoB++ pages")
    parser.add_argument("out", type=Path, metavar="OUT.gif")
    parser.add_argument("--tasks", type=int, default=3, help="how many tasks to show (default: 3)")
    args = parser.parse_args()

    from PIL import Image

    from webrl import Trajectory, load_config, make_env
    from webrl.errors import UsageError
    from webrl.runs.disk import atomic_path
    from webrl.runs.store import read_records

    phases = sorted(args.run.glob("phase_*/eval.jsonl"))
    if len(phases) < 2:
        raise UsageError(f"{args.run}: two evaluated phases are needed, found {len(phases)}; let the run finish")
    first, last = (list(read_records(path, Trajectory)) for path in (phases[0], phases[-1]))
    pairs = pick(first, last, args.tasks)
    if not pairs:
        raise UsageError(f"{args.run}: no task that the first phase failed and the last one solved; pick another run")
    titles = ("phase 0: before training", f"phase {int(phases[-1].parent.name.removeprefix('phase_'))}")
    rollout = load_config("demo", ["rollout.screenshots=true", "rollout.page_details=true"]).rollout
    frames: list[Image.Image] = []
    durations: list[int] = []
    with make_env(pairs[0][0].task, rollout) as env:
        for before, after in pairs:
            goal = env.reset(after.task).goal
            columns = replay(env, before), replay(env, after)
            ends = columns[0][-1], columns[1][-1]
            for left, right in zip_longest(*columns):
                frames.append(draw_frame(goal, titles, (left or ends[0], right or ends[1])))
                durations.append(STEP_MS)
            durations[-1] = END_MS
            print(f"{after.task.task_id}: {goal!r}")
    frames = [frame.quantize(COLOURS, Image.Quantize.MAXCOVERAGE) for frame in frames]
    with atomic_path(args.out) as temporary:
        frames[0].save(
            temporary, format="GIF", save_all=True, append_images=frames[1:], duration=durations, loop=0, optimize=True
        )
    print(f"{args.out}: {len(frames)} frames, {args.out.stat().st_size / 1024:.0f} KiB")


if __name__ == "__main__":
    raise SystemExit(end_clearly(sys.argv[0], main))
