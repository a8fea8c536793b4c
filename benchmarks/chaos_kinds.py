"""Kills of the whole: the controller, which holds the in-process model, alone or with its disk or clock failing.

A run is killed at random moments and started again by the same command until it ends by itself; then it is held
against the uninterrupted run, record by record and weight by weight.
"""

from __future__ import annotations

import os
import random
import re
import shutil
import threading
import time
from dataclasses import dataclass, field
from pathlib import Path

from chaos_disk import full_environment, lose_power, power_environment
from chaos_lives import Life, Lives
from chaos_loop import Audit, settings
from chaos_tally import Tally

PATIENCE_S = 600.0
"""A command that shows nothing new for so long has hung."""
MAX_KILLS_A_RUN = 25
ASKS_MODEL = re.compile(r"phase \d: (gen-tasks|rollout|label|replay|train|eval)$", re.MULTILINE)
STEPS = (0, 0, 1, 1, 2, 3, 4, 6, 9)
"""How many lines, stages or models a life may add before it is killed."""
START_S = 3.0
"""What a Python takes to import the command, about; some are killed in it."""
FULL = re.compile(
    r"^webrl: /.*: No space left on device; free some space, the same command then resumes$", re.MULTILINE
)
DOWN_S = 120.0
"""How long a machine without power is down."""
LEAST_ROOM, MOST_ROOM = 200, 60_000_000


@dataclass
class Shop:
    """What all kinds share."""

    lives: Lives
    scratch: Path
    seed: int
    reference: Path
    """The uninterrupted run of `settings(strict=True)`."""
    others: dict[str, Path] = field(default_factory=dict)
    """Uninterrupted runs of other settings, by those; shared by all kinds."""
    lock: threading.Lock = field(default_factory=threading.Lock)
    """Held while one is made."""

    def rng(self, kind: str) -> random.Random:
        """Moments and victims of one kind."""
        return random.Random(f"{self.seed}:{kind}")

    def folder(self, name: str) -> Path:
        """A new folder with an empty `tmp/`."""
        path = self.scratch / name
        shutil.rmtree(path, ignore_errors=True)
        (path / "tmp").mkdir(parents=True)
        return path


def run_loop(shop: Shop, kind: str, kills: int) -> Tally:
    """Kill whole runs `kills` times, as many runs as it takes."""
    tally, rng = Tally(kind), shop.rng(kind)
    while tally.kills < kills and len(tally.failed) + len(tally.hung) < 5:
        folder = shop.folder(f"{kind}{tally.runs}")
        _run_once(shop, tally, folder, rng, min(kills - tally.kills, MAX_KILLS_A_RUN))
        if not tally.details():
            shutil.rmtree(folder)
    return tally


def _run_once(shop: Shop, tally: Tally, folder: Path, rng: random.Random, kills: int) -> None:
    audit, slack_s = Audit(folder / "run"), 1.0
    while True:
        env = {"TMPDIR": str(folder / "tmp")} | _surroundings(tally.kind, folder, rng, done=kills <= 0)
        life = shop.lives.start(settings(folder), env=env)
        before = audit.progress()
        moment = _Moment(rng, tally.kind, before, slack_s) if kills > 0 and tally.kind != "full" else None
        outcome = _watch(life, audit, moment)
        slack_s = slack_s * 1.5 if audit.progress() == before else 1.0
        if outcome == "ended":
            if life.poll() == 0:
                break
            if tally.kind != "full" or not FULL.search(life.tail()) or life.poll() != 1:
                tally.failed.append(f"exit {life.poll()}, {life.log}: {life.tail(3)}")
                return
        else:
            life.kill()
            if outcome == "hung":
                tally.hung.append(f"{life.log}: {life.tail(3)}")
                return
        kills, tally.kills = kills - 1, tally.kills + 1
        if tally.kind == "power":
            life.kill_below()
            lose_power(folder / "run", folder / "power", rng)
            _start_again(folder)
        audit.look()
    tally.close(audit, shop.lives, folder / "tmp", shop.reference)


def _surroundings(kind: str, folder: Path, rng: random.Random, *, done: bool) -> dict[str, str]:
    """Variables of the next life; `done`: the last one, which is to end."""
    run = folder / "run"
    if kind == "clock":
        jump = rng.choice((-1, 1)) * rng.randint(1, 400_000)
        return {"CHAOS_ROOT": str(run), "CHAOS_JUMP_S": str(jump), "CHAOS_JUMP_AFTER_MS": str(rng.randint(0, 6000))}
    if kind == "slow":
        return {"CHAOS_ROOT": str(run), "CHAOS_SLOW_US": str(rng.randint(500, 5000))}
    if kind == "power" and not done:
        return power_environment(run, folder / "power")
    if kind == "full" and not done:
        room = round(LEAST_ROOM * (MOST_ROOM / LEAST_ROOM) ** rng.random())
        return full_environment(run, folder / "room", room)
    return {}


class _Moment:
    """When a life is to be killed: some progress, or a stage that asks the model, and a little later."""

    def __init__(self, rng: random.Random, kind: str, before: int, slack_s: float) -> None:
        self._model = kind == "model"
        self._target = before + rng.choice(STEPS)
        at_once = not self._model and self._target == before
        self._delay_s = rng.uniform(0, START_S + slack_s if at_once else slack_s if self._model else 0.4)
        self._reached_s: float | None = None

    def has_come(self, life: Life, progress: int) -> bool:
        """Whether it is time."""
        if self._reached_s is None:
            reached = ASKS_MODEL.search(life.log.read_text()) if self._model else progress >= self._target
            self._reached_s = time.monotonic() if reached else None
        return self._reached_s is not None and time.monotonic() - self._reached_s >= self._delay_s


def _watch(life: Life, audit: Audit, moment: _Moment | None) -> str:
    """Wait for the moment; `killable`, `ended` or `hung`."""
    seen, since = (-1, -1), time.monotonic()
    while life.poll() is None:
        progress = audit.progress()
        if moment and moment.has_come(life, progress):
            return "killable"
        now = (progress, life.log.stat().st_size)
        if now != seen:
            seen, since = now, time.monotonic()
        elif time.monotonic() - since > PATIENCE_S:
            return "hung"
        time.sleep(0.03)
    return "ended"


def _start_again(folder: Path) -> None:
    """What a machine's start after a loss of power does: the temporary directory is empty, and time has passed."""
    shutil.rmtree(folder / "tmp")
    (folder / "tmp").mkdir()
    for path in (folder / "run").rglob("*"):
        before = path.stat().st_mtime - DOWN_S
        os.utime(path, (before, before))
