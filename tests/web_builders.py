"""The notes application of examples/ on loopback, and configs for it."""

import contextlib
import importlib.util
from collections.abc import Iterator
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from app_server import serving
from browsers import open_env
from flask import Response, redirect, request

from webrl.config import RolloutConfig, RunConfig, load_config
from webrl.rollouts.collect import collect
from webrl.rollouts.suite import open_sites
from webrl.types import Task, Trajectory

ROOT = Path(__file__).parent.parent
PASSWORD, TOKEN = "over-the-hill", "reset-me-7351"


@dataclass
class Notes:
    """A running notes application."""

    url: str
    folder: Path
    asked: list[str] = field(default_factory=list)
    """`METHOD /path` of every request that reached it."""
    broken: dict[str, int] = field(default_factory=dict)
    """Paths that answer a status instead."""

    asked_by: set[str] = field(default_factory=set)
    """What those who asked call themselves (User-Agent)."""
    basic: tuple[str, str] | None = None
    """User and password that the server itself asks for."""
    refill: Any = None
    """Puts the published notes back."""

    @property
    def database(self) -> Path:
        return self.folder / "notes.db"

    def overrides(self, **web: Any) -> list[str]:
        base = {
            "start_urls": f"[{self.url}/]",
            "reset.url": f"{self.url}/reset",
            "reset.headers": f"{{X-Reset-Token: {TOKEN}}}",
            "login.form.secrets": f"{{Password: {PASSWORD}}}",
            "database": f"sqlite:///{self.database}",
            "state_dir": str(self.folder / "state"),
        }
        settings = [f"rollout.web.{key}={value}" for key, value in (base | web).items() if value is not None]
        return [*settings, "rollout.envs_per_worker=2", f"runs_dir={self.folder}/runs", "trackers=[]"]

    def config(self, *overrides: str, **web: Any) -> RunConfig:
        return load_config(ROOT / "configs" / "web_example.yaml", [*self.overrides(**web), *overrides])

    def bare(self, *overrides: str, **web: Any) -> RunConfig:
        """Without log-in, reset and limits."""
        bare = {"start_urls": f"[{self.url}/]", "state_dir": str(self.folder / "state"), "name": "notes"} | web
        settings = [f"rollout.web.{key}={value}" for key, value in bare.items()]
        return load_config(None, ["tasks.suite=web", "rollout.envs_per_worker=1", *settings, *overrides])


@contextlib.contextmanager
def notes_app(folder: Path) -> Iterator[Notes]:
    spec = importlib.util.spec_from_file_location("notes_app", ROOT / "examples" / "notes_app" / "app.py")
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    notes = Notes("", folder)
    app = module.create_app(notes.database, TOKEN)
    notes.refill = lambda: module.fill(notes.database)

    @app.before_request
    def _note():
        notes.asked.append(f"{request.method} {request.path}")
        notes.asked_by.add(request.headers["User-Agent"])
        given = request.authorization
        if notes.basic and (given is None or (given.username, given.password) != notes.basic):
            return Response("who are you?", 401, {"WWW-Authenticate": 'Basic realm="staging"'})
        if request.path in ("/moved", "/round"):
            return redirect("/api/notes" if request.path == "/moved" else "/round")
        if request.path in notes.broken:
            return "out of order", notes.broken[request.path]
        return None

    with serving(app) as notes.url:
        yield notes


async def play(config: RunConfig, policies: dict[str, Any], tasks: list[Task], out: Path) -> dict[str, Trajectory]:
    """Play each task with the policy of its name (the last part of its id) as a stage does."""

    class ByTask:
        fingerprint = "scripted"

        async def act(self, turn):
            name = next(t.task_id for t in tasks if t.instruction == turn.instruction).rpartition(".")[2]
            return await policies[name].act(turn)

    played: list[Trajectory] = []
    async with open_sites(config, tasks):
        await collect(tasks, config, ByTask(), out, phase=0, prefix="t", on_episode=played.append)
    return {t.task.task_id.rpartition(".")[2]: t for t in played}


def web_rollout(url: str, *overrides: str) -> RolloutConfig:
    """Settings for episodes on a site without log-in, reset and limits."""
    return load_config(None, ["tasks.suite=web", f"rollout.web.start_urls=[{url}]", *overrides]).rollout


def web_env(rollout: RolloutConfig) -> contextlib.AbstractAsyncContextManager[Any]:
    """An environment of the suite on the shared browser."""
    from webrl_site.env import WebEnv

    return open_env(rollout, WebEnv)
