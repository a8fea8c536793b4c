"""Kills of one process of two that train together (`run_multinode.sh`, gloo); the agent starts both again."""

from __future__ import annotations

import contextlib
import os
import shutil
import subprocess
import sys
import time
from pathlib import Path

import psutil
import yaml
from chaos_kinds import PATIENCE_S, Shop
from chaos_lives import MARK, Life, base_environment, descendants, kill_one
from chaos_loop import ROOT, Audit, differences
from chaos_tally import Tally

from webrl.runs.store import read_json, write_json

EPOCHS = 12


def run_ranks(shop: Shop, kind: str, kills: int) -> Tally:
    """Train phase 1 of the reference run anew on two processes, alone and with kills; hold one against the other."""
    tally, rng = Tally(kind), shop.rng(kind)
    alone, killed = (_prepare(shop, f"{kind}-{name}") for name in ("alone", "killed"))
    for run, most in ((alone, 0), (killed, kills)):
        life, audit = _launch(shop, run, most), Audit(run)
        seen, since, due = -1, time.monotonic(), 1
        while life.poll() is None:
            steps = _steps(run)
            if steps != seen:
                seen, since = steps, time.monotonic()
            elif time.monotonic() - since > PATIENCE_S:
                tally.hung.append(f"{life.log}: {life.tail(3)}")
                life.kill()
                return tally
            if tally.kills < most and steps >= due:
                time.sleep(rng.uniform(0, 0.3))
                ranks = _ranks(life)
                if len(ranks) == 2 and kill_one(rng.choice(ranks)):
                    tally.kills += 1
                    due = _steps(run) + rng.choice((0, 1, 2, 3))
                    _wait_for_others(ranks)
            time.sleep(0.05)
        if life.poll() != 0:
            tally.failed.append(f"exit {life.poll()}, {life.log}: {life.tail(8)}")
            return tally
        tally.close(audit, shop.lives, run.parent / "tmp", None)
    tally.differing += [line for line in differences(killed, alone) if "stages" not in line]
    return tally


def _prepare(shop: Shop, name: str) -> Path:
    """A copy of the reference run whose phase 1 is due for training, longer than it was."""
    folder = shop.folder(name)
    run = folder / "run"
    shutil.copytree(shop.reference, run)
    phase = run / "phase_01"
    for part in ("actor", "critic"):
        shutil.rmtree(phase / part)
        (phase / f"{part}_counts.json").unlink()
    for path in ("train_scored.jsonl", "metrics.jsonl", "eval.jsonl", "stages/train.json", "stages/eval.json"):
        (phase / path).unlink()
    config = yaml.safe_load((run / "config.yaml").read_text())
    config["runs_dir"] = str(folder)
    for part in ("actor", "critic"):
        config[part] |= {"epochs": EPOCHS if part == "actor" else 2, "save_every": 1}
    (run / "config.yaml").write_text(yaml.safe_dump(config))
    for marker in phase.glob("stages/*.json"):
        write_json(marker, read_json(marker))
    return run


def _launch(shop: Shop, run: Path, restarts: int) -> Life:
    env = base_environment() | {
        "NNODES": "1", "NPROC_PER_NODE": "2", "MAX_RESTARTS": str(2 * restarts), "OMP_NUM_THREADS": "1",
        "PYTHON": sys.executable, "CUDA_VISIBLE_DEVICES": "", "WEBRL_LOG_DIR": str(run.parent / "logs"),
        "TMPDIR": str(run.parent / "tmp"), MARK: f"{os.getpid()}-{run.parent.name}",
    }  # fmt: skip
    log = run.parent / "output"
    with log.open("ab") as file:
        process = subprocess.Popen(
            ["bash", str(ROOT / "run_multinode.sh"), "--run", str(run)],
            stdin=subprocess.DEVNULL, stdout=file, stderr=file, env=env, start_new_session=True,
        )  # fmt: skip
    return shop.lives.adopt(Life(process.pid, log, env[MARK], process.poll))


def _ranks(life: Life) -> list[psutil.Process]:
    found = []
    for process in descendants(life.pid):
        with contextlib.suppress(psutil.NoSuchProcess):
            if "webrl.cli.train_worker" in process.cmdline() and process.status() != psutil.STATUS_ZOMBIE:
                found.append(process)
    return sorted(found, key=lambda process: process.pid)


def _wait_for_others(ranks: list[psutil.Process]) -> None:
    """The agent ends the rank that is left; what it starts next are others."""
    with contextlib.suppress(psutil.TimeoutExpired):
        psutil.wait_procs(ranks, timeout=PATIENCE_S)


def _steps(run: Path) -> int:
    path = run / "phase_01" / "metrics.jsonl"
    return path.read_bytes().count(b"\n") if path.exists() else 0
