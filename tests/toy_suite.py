"""A suite of another package: buttons by color, of which the page asks for one. `install` lays it into a folder."""

import os
import random
import re
from pathlib import Path

from webrl.rollouts.sites import Site, Verdict
from webrl.rollouts.suite import API_VERSION, Suite
from webrl.types import Task

COLORS = ("red", "green", "blue")
PAGE = "".join(f"<button onclick=\"location.hash='{color}'\">{color}</button>" for color in COLORS)


class ToySite(Site):
    """Its seed says which button is asked for; the episode ends with the first one that is pressed."""

    def __init__(self, task):
        super().__init__(os.environ["TOY_URL"])
        self.wanted = COLORS[task.seed % len(COLORS)]

    async def start(self, tab, seed):
        return f"Press {self.wanted}."

    async def judge(self, tab, is_first_page, url, state):
        _, pressed, color = url.partition("#")
        return Verdict(float(color == self.wanted), bool(pressed))


class ToyExpert:
    def plan(self, instruction, observation, history):
        color = instruction.removeprefix("Press ").removesuffix(".")
        found = re.search(rf"\[(\w+)\] button '{color}'", observation)
        return f"click({found[1]!r})" if found else None


class Toy(Suite):
    name = "toy"
    api_version = API_VERSION
    has_page_seeds = True
    draws_fresh = True
    first_task = "toy.press"

    def training_tasks(self, config, draw=0):
        rng = random.Random(f"{config.seed}.{draw}")
        return [_task(rng.randrange(1000), "train") for _ in range(config.tasks.num_seed_tasks)]

    def eval_tasks(self, config):
        return [_task(1000 + number, "eval") for number in range(config.tasks.num_eval_tasks)]

    def open_site(self, task):
        return ToySite(task)

    def demonstration_types(self, config):
        return ("toy.press",)

    def expert(self, task_type):
        return ToyExpert()

    def describe(self, counts):
        return f"toy says {counts['successes']}/{counts['episodes']}"


def _task(seed, split):
    return Task(f"toy.press.{seed}", "toy.press", seed=seed, split=split)


def install(folder: Path, package: str, rows: dict[str, str], code: str = "", group: str = "webrl.suites") -> Path:
    """Lay a package with entry points into a folder, as pip would; its module is PACKAGE.py."""
    metadata = folder / f"{package}-1.0.dist-info"
    metadata.mkdir(parents=True)
    (metadata / "METADATA").write_text(f"Metadata-Version: 2.1\nName: {package}\nVersion: 1.0\n")
    lines = "".join(f"{name} = {value}\n" for name, value in rows.items())
    (metadata / "entry_points.txt").write_text(f"[{group}]\n{lines}")
    (folder / f"{package}.py").write_text(code or Path(__file__).read_text())
    return folder
