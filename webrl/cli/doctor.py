"""`webrl doctor`: checks this machine, and names a fix for everything that is missing."""

from __future__ import annotations

import argparse
import asyncio
import os
import platform
import shlex
import shutil
import subprocess
import sys
import tempfile
from collections.abc import Callable
from functools import partial
from importlib import metadata
from pathlib import Path
from typing import NamedTuple

import psutil

from webrl.config.extras import openenv_conflict, other_version
from webrl.errors import UsageError, WebRLError
from webrl.runs.machine import query_gpus


def add_arguments(parser: argparse.ArgumentParser) -> None:
    """Options of the subcommand."""
    parser.add_argument("checks", nargs="*", metavar="CHECK", help=f"default: all of {', '.join(CHECKS)}")
    parser.add_argument("--sites", action="store_true", help="check the WebArena sites instead (reachable, log-in)")
    parser.add_argument("--config", metavar="CONFIG", help="with --sites: where they are (default: WA_* variables)")


def main(args: argparse.Namespace) -> int:
    """Print the findings; 1 if a core piece is missing, or with `--sites` a site."""
    if args.config and not args.sites:
        raise UsageError(f"--config {args.config} names the sites to check: it needs --sites")
    if args.sites and args.checks:
        raise UsageError(f"--sites checks only the WebArena sites; leave out {' '.join(args.checks)!r}, or --sites")
    for name in args.checks:
        if name not in CHECKS:
            raise UsageError(f"unknown check {name!r}; checks: {', '.join(CHECKS)}")
    if args.sites:
        from webrl.config import load_config, plugins
        from webrl.config.resources import find_config

        config = load_config(find_config(args.config) if args.config else None)
        found = asyncio.run(plugins.load(plugins.HOOKS, "check-sites")(config.rollout.webarena))
        fix = "set rollout.webarena.sites in a config (--config), or WA_SHOPPING, WA_GITLAB, … (docs/webarena.md)"
        checks = [Check(s.site, OK if s.ok else MISSING, f"{s.url}, used by {s.held_by}", s.problem) for s in found]
        checks = checks or [Check("sites", MISSING, "no WebArena site is configured", fix)]
    else:
        checks = [CHECKS[name]() for name in args.checks or CHECKS]
    width = max(len(check.name) for check in checks)
    for check in checks:
        print(f"{check.state:<8}  {check.name:<{width}}  {check.detail}")
        if check.fix:
            print(f"{'':<8}  {'':<{width}}  fix: {check.fix}")
    return int(any(check.state == MISSING for check in checks))


OK, OPTIONAL, WARNING, MISSING = "ok", "optional", "warning", "missing"
DEMO_MEMORY_GIB = 3
DEMO_DISK_GIB = 2


class Check(NamedTuple):
    """One finding: the check, its outcome, the details, and the fix.

    States: `ok`; `optional`: absent, and only some configs need it; `warning`: works, but poorly; `missing`: nothing
    works without it. Example: `Check("vllm", "optional", "not installed", "pip install 'webrl[vllm]'")`
    """

    name: str
    state: str
    detail: str
    fix: str = ""


def check_browser() -> Check:
    """Check that Chromium starts, and that an episode begins in it: page scripts may not fit another version."""
    from webrl.config import RolloutConfig
    from webrl.rollouts.browser import Browser, find_chromium
    from webrl.rollouts.env import BrowserEnv
    from webrl.types import Task

    async def start() -> str:
        async with asyncio.timeout(60), Browser() as browser:
            env = BrowserEnv(browser, RolloutConfig())
            await env.reset(Task("doctor", "page", instruction="Press Go.", start_url="data:text/html,<button>Go"))
            agent: str = await env.page.evaluate("navigator.userAgent")
            await env.close()
            return agent.partition("Chrome/")[2].split(" ")[0]

    try:
        version = asyncio.run(start())
    except (WebRLError, TimeoutError) as error:
        fix = "apt-get install chromium-headless-shell, or playwright install --with-deps chromium"
        fix = f"make setup; or {fix}" if _in_clone() else fix
        return Check("browser", MISSING, str(error) or "Chromium did not answer within 60 s", fix)
    return Check("browser", OK, f"Chromium {version} ({find_chromium()})")


def check_tasks() -> Check:
    """Check that the MiniWoB++ pages are there."""
    from webrl.rollouts.sites import miniwob_root

    fix = f"{_pip()} install {'-c constraints.txt ' if _in_clone() else ''}miniwob"
    try:
        root = miniwob_root()
    except WebRLError as error:
        return Check("tasks", MISSING, str(error), fix)
    pages = len(list(root.glob("miniwob/*.html")))
    found = f"{pages} MiniWoB++ pages in {root}/miniwob"
    return Check("tasks", OK, found) if pages else Check("tasks", MISSING, found, fix)


def check_torch() -> Check:
    """Check that torch imports."""
    works, said = _try("import torch; print(f'{torch.__version__}, {torch.get_num_threads()} CPU threads')")
    fix = "make setup" if _in_clone() else f"{_pip()} install torch"
    return Check("torch", OK, said) if works else Check("torch", MISSING, said, fix)


def check_gpu() -> Check:
    """List the NVIDIA GPUs that the driver knows, and check that torch can use them."""
    gpus = [f"{name}, {mib} MiB" for name, mib in query_gpus("name,memory.total")]
    if not gpus:
        return Check("gpu", OPTIONAL, "no NVIDIA GPU; the demo runs on the CPU")
    works, said = _try("import torch; assert torch.cuda.is_available(); print(torch.version.cuda)")
    if not works:
        fix = f"{_pip()} install --force-reinstall --no-deps torch=={metadata.version('torch').partition('+')[0]}"
        return Check("gpu", WARNING, f"{len(gpus)} x {gpus[0]}, but this torch cannot use it", fix)
    return Check("gpu", OK, f"{len(gpus)} x {gpus[0]}, CUDA {said}")


def check_extra(name: str) -> Check:
    """Check that an optional package imports."""
    # in a clone with the pinned versions
    wanted = f"-c constraints.txt -e '.[{name}]'" if _in_clone() else f"'webrl[{name}]'"
    fix = f"{_pip()} install {wanted}"
    try:
        version = metadata.version(name)
    except metadata.PackageNotFoundError:
        return Check(name, OPTIONAL, "not installed", fix)
    if other := other_version(name):
        return Check(name, WARNING, f"webrl needs {other}", fix)
    works, said = _try(f"import {name}")
    if works:
        return Check(name, OK, version)
    if "torchvision" in said:
        fix = f"{_pip()} uninstall torchvision torchaudio (they do not match this torch)"
    return Check(name, WARNING, f"{version} does not import: {said}", fix)


def check_openenv() -> Check:
    """Check that not both packages that own the module `openenv` are installed; webrl itself needs neither."""
    detail, _, fix = (openenv_conflict() or "at most one of openenv and openenv-core is installed").partition(": ")
    return Check("openenv", WARNING if fix else OK, detail, fix)


def check_memory() -> Check:
    """Check how much memory is free now."""
    memory = psutil.virtual_memory()
    free = memory.available / 2**30
    detail = f"{free:.1f} of {memory.total / 2**30:.1f} GiB free, {os.cpu_count()} CPUs"
    fix = f"the demo needs {DEMO_MEMORY_GIB} GiB; close other programs, or lower rollout.envs_per_worker"
    return Check("memory", WARNING, detail, fix) if free < DEMO_MEMORY_GIB else Check("memory", OK, detail)


def check_disk() -> Check:
    """Check how much room there is where run folders are written, and that they can be."""
    folder = Path("runs") if Path("runs").is_dir() else Path.cwd()
    try:
        tempfile.TemporaryFile(dir=folder).close()
    except OSError as error:
        fix = "change its permissions, or set runs_dir= to a folder of yours"
        return Check("disk", MISSING, f"cannot write in {folder.resolve()}: {error.strerror or error}", fix)
    free = shutil.disk_usage(folder).free / 2**30
    detail = f"{free:.1f} GiB free in {folder.resolve()}"
    fix = f"free {DEMO_DISK_GIB} GiB, or set runs_dir= to another disk"
    return Check("disk", WARNING, detail, fix) if free < DEMO_DISK_GIB else Check("disk", OK, detail)


def _in_clone() -> bool:
    return all(Path(name).is_file() for name in ("constraints.txt", "scripts/setup.sh"))


def _pip() -> str:
    """Return the pip of this environment, as one would type it here."""
    path = Path(sys.executable).parent / "pip"
    return shlex.quote(str(path.relative_to(Path.cwd()) if path.is_relative_to(Path.cwd()) else path))


def _try(code: str) -> tuple[bool, str]:
    """Run code in a separate process, so that a broken native library cannot end the doctor: (works, last line)."""
    try:
        done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, timeout=180, check=False)
    except subprocess.TimeoutExpired:
        return False, "import took more than 180 s"
    lines = (done.stderr if done.returncode else done.stdout).strip().splitlines()
    return not done.returncode, lines[-1] if lines else f"exit code {done.returncode}"


CHECKS: dict[str, Callable[[], Check]] = {
    "python": lambda: Check("python", OK, f"{platform.python_version()} ({sys.executable})"),
    "browser": check_browser,
    "tasks": check_tasks,
    "torch": check_torch,
    "gpu": check_gpu,
    **{name: partial(check_extra, name) for name in ("deepspeed", "vllm", "ray")},
    "openenv": check_openenv,
    "memory": check_memory,
    "disk": check_disk,
}
"""Every check by name, in the order of the table."""
