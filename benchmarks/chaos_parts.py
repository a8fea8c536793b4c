"""Kills of a part of a run that goes on meanwhile: worker, browser, renderer, OpenEnv server, judge, vLLM server.

The run is one command; a part is killed whenever the run has got a little further. Whoever looks after a part in real
life starts it again: the controller its workers, browsers and vLLM server, this harness the judge and OpenEnv's server.
"""

from __future__ import annotations

import contextlib
import os
import random
import shutil
import time
from collections.abc import Callable
from pathlib import Path

import psutil
from chaos_kinds import PATIENCE_S, Shop
from chaos_lives import Life, descendants, kill_one
from chaos_loop import ROOT, Audit, settings
from chaos_tally import Tally, left_behind

from webrl.runs.machine import free_port

KILLS_A_RUN = 40
Strike = Callable[[Life], bool]
"""Kill one; False if there was none to be killed."""


def run_parts(shop: Shop, kind: str, kills: int) -> Tally:
    """Kill workers, browsers or renderers of runs with two workers of two pages each."""
    rng = shop.rng(kind)
    return _run(shop, kind, kills, {}, lambda life: _strike_below(life, VICTIMS[kind], rng))


def run_server(shop: Shop, kind: str, kills: int) -> Tally:
    """Kill the OpenEnv server or the judge that runs use."""
    port = free_port()
    if kind == "openenv":
        module = "webrl.cli"
        argv = ["serve-env", "rollout.num_workers=1", "rollout.envs_per_worker=2", "--port", str(port)]
        changes: dict[str, object] = {
            "rollout__env": "openenv", "rollout__urls": f"[http://127.0.0.1:{port}]", "rollout__num_workers": 1,
        }  # fmt: skip
    else:
        module, argv = "chaos_judge", [str(port)]
        url = f"[http://127.0.0.1:{port}/v1]"
        changes = {"label__judge": "llm", "label__engine__kind": "openai", "label__engine__urls": url}
    temporary = shop.folder(f"{kind}-server") / "tmp"
    env = {"TMPDIR": str(temporary)}

    def start() -> Life:
        server = shop.lives.start(argv, module=module, env=env)
        deadline = time.monotonic() + PATIENCE_S
        while "serving" not in server.log.read_text():
            if server.poll() is not None or time.monotonic() > deadline:
                raise RuntimeError(f"the {kind} server does not start: {server.tail()}")
            time.sleep(0.05)
        return server

    server = start()

    def strike(_: Life) -> bool:
        nonlocal server
        server.kill()
        server = start()
        return True

    try:
        tally = _run(shop, kind, kills, changes, strike)
    finally:
        server.kill()
    tally.left_running += shop.lives.survivors()
    tally.left_files += left_behind(temporary)
    return tally


def run_vllm(shop: Shop, kind: str, kills: int) -> Tally:
    """Kill the vLLM server that the controller has started."""
    python = find_vllm()
    if python is None:
        return Tally(kind, skipped="no vLLM: set WEBRL_VLLM_PYTHON")
    changes: dict[str, object] = {
        "rollout__engine__kind": "vllm", "rollout__engine__vllm_python": python, "rollout__engine__max_retries": 8,
        "rollout__engine__extra_args": "[--enforce-eager]",
    }  # fmt: skip
    return _run(shop, kind, kills, changes, lambda life: _strike_below(life, _is_vllm, shop.rng(kind)), exact=False)


def find_vllm() -> str | None:
    """The Python of an environment that has vLLM."""
    chosen = os.environ.get("WEBRL_VLLM_PYTHON") or str(ROOT / ".venv-vllm" / "bin" / "python")
    return chosen if os.access(chosen, os.X_OK) else None


def _run(shop: Shop, kind: str, kills: int, changes: dict[str, object], strike: Strike, *, exact: bool = True) -> Tally:
    """Runs that are struck while they play; `exact`: their episodes and labels must be an uninterrupted run's."""
    tally, rng = Tally(kind), shop.rng(f"{kind} moments")
    num_tasks = 2 * min(kills, KILLS_A_RUN) if exact else 8
    common: dict[str, object] = {
        "num_phases": 0, "tasks__num_seed_tasks": num_tasks, "tasks__num_eval_tasks": max(2, num_tasks // 3),
        "rollout__num_workers": 2, "rollout__envs_per_worker": 2, "engine__max_batch": 1,
    }  # fmt: skip
    options = common | changes
    reference = _undisturbed(shop, options) if exact else None
    while tally.kills < kills and len(tally.failed) + len(tally.hung) < 3:
        folder = shop.folder(f"{kind}{tally.runs}")
        audit, before = Audit(folder / "run"), tally.kills
        argv = settings(folder, strict=False, **options)
        env = {"TMPDIR": str(folder / "tmp")}
        life = shop.lives.start(argv, env=env)
        code = _play(life, audit, tally, rng, min(kills, before + KILLS_A_RUN), strike)
        while code == 1 and not exact and (struck := tally.kills) > before:
            # A server that is killed too often ends the command with an error: then the same command again.
            before, life = struck, shop.lives.start(argv, env=env)
            code = _play(life, audit, tally, rng, kills, strike)
        if code:
            tally.failed.append(f"exit {code}, {life.log}: {life.tail(3)}")
        tally.close(audit, shop.lives, folder / "tmp", reference, strict=False)
        if not tally.details():
            shutil.rmtree(folder)
    return tally


def _undisturbed(shop: Shop, options: dict[str, object]) -> Path:
    """The run of these options that nothing happens to; made once, servers and all."""
    key = str(sorted(options.items()))
    with shop.lock:
        if key not in shop.others:
            folder = shop.folder(f"undisturbed{len(shop.others)}")
            life = shop.lives.start(settings(folder, strict=False, **options), env={"TMPDIR": str(folder / "tmp")})
            while life.poll() is None:
                time.sleep(0.1)
            if life.poll() != 0:
                raise RuntimeError(f"the undisturbed run failed: {life.tail()}")
            shop.others[key] = folder / "run"
        return shop.others[key]


def _play(life: Life, audit: Audit, tally: Tally, rng: random.Random, until: int, strike: Strike) -> int | None:
    """Strike until `tally.kills` is `until`, wait for the end; gives the exit code."""
    due = _next(audit, tally.kind, rng)
    seen, since = -1, time.monotonic()
    while life.poll() is None:
        progress = _episodes(audit)
        if progress != seen:
            seen, since = progress, time.monotonic()
            audit.look()
        elif time.monotonic() - since > PATIENCE_S:
            tally.hung.append(f"{life.log}: {life.tail(3)}")
            life.kill()
            return None
        if tally.kills < until and progress >= due:
            time.sleep(rng.uniform(0, 0.2))
            if strike(life):
                tally.kills += 1
                due = _next(audit, tally.kind, rng)
        time.sleep(0.02)
    return life.poll()


def _next(audit: Audit, kind: str, rng: random.Random) -> int:
    # An OpenEnv server that is away for half a minute ends episodes: it comes to life between two kills.
    return _episodes(audit) + rng.choice((1, 1, 2) if kind == "openenv" else (0, 1, 1, 2))


def _episodes(audit: Audit) -> int:
    """Finished episodes and labels so far."""
    lines = 0
    for name in ("trajectories", "eval", "labels"):
        for path in audit.run.glob(f"phase_*/{name}.jsonl"):
            with contextlib.suppress(OSError):
                lines += path.read_bytes().count(b"\n")
    return lines


def _strike_below(life: Life, is_victim: Callable[[list[str]], bool], rng: random.Random) -> bool:
    found = []
    for process in descendants(life.pid):
        with contextlib.suppress(psutil.NoSuchProcess):
            if process.status() != psutil.STATUS_ZOMBIE and is_victim(process.cmdline()):
                found.append(process)
    if not found:
        return False
    life.below += descendants(life.pid)
    return kill_one(rng.choice(sorted(found, key=lambda process: process.pid)))


def _is_worker(command: list[str]) -> bool:
    return "webrl.rollouts.worker" in command


def _is_browser(command: list[str]) -> bool:
    line = " ".join(command)
    return "--remote-debugging-port" in line and "--type=" not in line


def _is_renderer(command: list[str]) -> bool:
    return "--type=renderer" in " ".join(command)


def _is_vllm(command: list[str]) -> bool:
    return any("vllm.entrypoints" in part for part in command) and not any("guard.py" in part for part in command)


VICTIMS: dict[str, Callable[[list[str]], bool]] = {
    "worker": _is_worker,
    "browser": _is_browser,
    "renderer": _is_renderer,
}
