"""Bad input as users give it: `python benchmarks/chaos_inputs.py [--only WORD …] [--processes]`.

Every row of the tables in `chaos_inputs_*.py` is a command with something wrong in it: an argument, a config, a file,
a model, an endpoint. Each must end with one clear error: the expected exit code, no traceback, at most three lines, in
which the value that is wrong, its place and (wherever the user has to change something) the fix are written.

Commands run in this process through the functions that their entry points call, one in ten (and every shell script)
as a process of its own; `--processes` starts one for each. The last line is JSON: `bad_inputs`, `unclear`,
`tracebacks`, `hung`, `skipped` (WebArena's, without its packages).
"""

from __future__ import annotations

import argparse
import contextlib
import importlib
import importlib.util
import io
import json
import logging
import os
import re
import shlex
import signal
import subprocess
import sys
import tempfile
import traceback
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from functools import cache
from pathlib import Path
from typing import Any
from unittest import mock

sys.path += [str(Path(__file__).parent), str(Path(__file__).parent.parent)]
from chaos_inputs_arguments import ARGUMENTS, CONFIGS
from chaos_inputs_case import BadInput
from chaos_inputs_endpoints import ENDPOINTS, hostile_endpoints
from chaos_inputs_files import FILES, FOLDERS
from chaos_inputs_models import MODELS

REPO = Path(__file__).parent.parent
ALL: tuple[BadInput, ...] = (*ARGUMENTS, *CONFIGS, *FILES, *FOLDERS, *MODELS, *ENDPOINTS)
LIMIT_S = 150
"""A command that takes longer has hung."""
_MAX_LINES = 3
_ONE_IN = 10


@dataclass(frozen=True)
class Outcome:
    """What a command did."""

    code: int
    stderr: str
    hung: bool = False

    @property
    def error(self) -> list[str]:
        """The error: from its first line to the end; log lines and argparse's usage stand before it."""
        lines = [line for line in self.stderr.rstrip().splitlines() if line.strip()]
        start = max((i for i, line in enumerate(lines) if _PROGRAMS.match(line)), default=len(lines))
        return lines[start:]


_PROGRAMS = re.compile(r"(webrl|gen_task|process_data|generate_test_data|one_gpu)(\.py)?( [\w-]+)?: ")


class _Hung(BaseException):
    """The time is up."""


def judge(case: BadInput, outcome: Outcome) -> list[str]:
    """What is unclear about a command's end; nothing, if all is well."""
    text = "\n".join(outcome.error)
    problems = {
        "hung": outcome.hung,
        "traceback": "Traceback (most recent call last)" in outcome.stderr,
        f"exit code {outcome.code}, expected {case.code}": outcome.code != case.code,
        "no error line": not outcome.error,
        f"{len(outcome.error)} lines": len(outcome.error) > _MAX_LINES,
        f"the value {case.value!r} is not quoted": case.value not in text,
        f"the place {case.place!r} is not named": case.place not in text,
        f"the fix {case.fix!r} is not said": case.fix not in text,
    }
    return [problem for problem, holds in problems.items() if holds]


def _show(text: str) -> None:
    print(text, flush=True)


def run(
    cases: Sequence[BadInput] = ALL, *, processes: bool = False, report: Callable[[str], None] = _show
) -> dict[str, Any]:
    """Run all cases; gives `bad_inputs`, `unclear`, `tracebacks`, `hung`, `skipped` (WebArena is not installed)."""
    from webrl.config.extras import is_installed

    lacking = [] if is_installed("webarena") else [case for case in cases if "=webarena" in case.command]
    cases = [case for case in cases if case not in lacking]
    counts = {"bad_inputs": len(cases), "unclear": 0, "tracebacks": 0, "hung": 0, "skipped": len(lacking)}
    with tempfile.TemporaryDirectory() as folder, hostile_endpoints() as address:
        if any(not case.command.endswith("--dry-run") for case in cases):
            os.environ["HF_HUB_OFFLINE"] = "1"  # is read at import
            importlib.import_module("transformers.models.llama")  # minutes on a busy machine; not the commands' time
            importlib.import_module("torch")
        for number, case in enumerate(cases):
            own = processes or number % _ONE_IN == 0 or case.command.startswith("bash ")
            outcome = attempt(case, Path(folder) / f"{number:03d}", address, own_process=own)
            problems = judge(case.filled_in(address=address, port=address.rpartition(":")[2]), outcome)
            counts["unclear"] += bool(problems)
            counts["tracebacks"] += "traceback" in problems
            counts["hung"] += outcome.hung
            if problems:
                shown = "\n    ".join(outcome.stderr.strip().splitlines()[-6:])
                report(f"{case.command}\n  {'; '.join(problems)}\n    {shown}")
    return counts


def attempt(case: BadInput, folder: Path, address: str, *, own_process: bool) -> Outcome:
    """Run one case in a fresh `folder`."""
    folder.mkdir(parents=True)
    for name, target in (("data", REPO / "data"), ("hostile", REPO / "tests" / "hostile")):
        (folder / name).symlink_to(target)
    case.write_files(folder)
    case = case.filled_in(here=str(folder), address=address, port=address.rpartition(":")[2])
    argv = shlex.split(case.command)
    variables = {"HF_HUB_OFFLINE": "1", "WEBRL_LOG_DIR": str(folder / "logs"), **case.variables}
    with mock.patch.dict(os.environ, variables):
        return _as_process(argv, folder) if own_process else _in_process(argv, folder)


def _as_process(argv: list[str], folder: Path) -> Outcome:
    if argv[0] == "webrl":
        command = [sys.executable, "-m", "webrl.cli", *argv[1:]]
    else:
        command = ["bash" if argv[0] == "bash" else sys.executable, str(REPO / argv[1]), *argv[2:]]
    try:
        done = subprocess.run(
            command,
            cwd=folder,
            env={**os.environ, "PYTHONPATH": str(REPO), "PYTHON": sys.executable},
            stdin=subprocess.DEVNULL,
            capture_output=True,
            text=True,
            errors="replace",
            timeout=LIMIT_S,
            check=False,
        )
    except subprocess.TimeoutExpired as error:
        return Outcome(-1, str(error), hung=True)
    return Outcome(done.returncode, done.stderr)


def _in_process(argv: list[str], folder: Path) -> Outcome:
    stderr = io.StringIO()
    with _inside(folder), contextlib.redirect_stdout(io.StringIO()), contextlib.redirect_stderr(stderr), _fresh_logs():
        try:
            with mock.patch.object(sys, "argv", argv if argv[0] == "webrl" else argv[1:]):
                code = _entry_point(argv)
        except SystemExit as ended:
            code = ended.code if isinstance(ended.code, int) else 1
        except _Hung:
            return Outcome(-1, stderr.getvalue(), hung=True)
        except Exception:
            # What the interpreter does with it.
            stderr.write(traceback.format_exc())
            code = 1
    return Outcome(code, stderr.getvalue())


def _entry_point(argv: list[str]) -> int:
    if argv[0] == "webrl":
        from webrl.cli import main

        return main(argv[1:])
    return int(_script(Path(argv[1]).stem).main(argv[2:]))


@cache
def _script(name: str) -> Any:
    spec = importlib.util.spec_from_file_location(name, REPO / "scripts" / f"{name}.py")
    assert spec is not None
    assert spec.loader is not None
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    return module


@contextlib.contextmanager
def _inside(folder: Path) -> Iterator[None]:
    """Work in `folder`, for a limited time."""

    def end(*_: object) -> None:
        raise _Hung

    before = Path.cwd()
    old = signal.signal(signal.SIGALRM, end)
    signal.setitimer(signal.ITIMER_REAL, LIMIT_S)
    os.chdir(folder)
    try:
        yield
    finally:
        os.chdir(before)
        signal.setitimer(signal.ITIMER_REAL, 0)
        signal.signal(signal.SIGALRM, old)


@contextlib.contextmanager
def _fresh_logs() -> Iterator[None]:
    """No log handlers but those that the command sets up, as in a new process."""
    root = logging.getLogger()
    handlers, level = root.handlers[:], root.level
    root.handlers.clear()
    try:
        yield
    finally:
        logging.captureWarnings(False)
        root.handlers[:] = handlers
        root.setLevel(level)


def main() -> int:
    """Parse, run, print; 1 if anything was unclear."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--only", nargs="+", metavar="WORD", help="cases whose command has one of these words")
    parser.add_argument("--processes", action="store_true", help="every case as a process of its own (slow)")
    args = parser.parse_args()
    cases = [c for c in ALL if not args.only or any(word in c.command for word in args.only)]
    counts = run(cases, processes=args.processes)
    print(json.dumps(counts))
    return int(counts["unclear"] > 0)


if __name__ == "__main__":
    sys.exit(main())
