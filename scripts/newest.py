"""Run the tests with the newest version of everything: `python scripts/newest.py`, a weekly look at what is to come.

Installs what `pyproject.toml` allows, newest first and without `constraints.txt`, in an environment of its own
(`build/newest`), runs all tests but the slow ones there, and prints the versions as the last section of a page:
`--out docs/versions.md` replaces it. BrowserGym's packages go in without their dependencies: they pin Playwright 1.44,
and run with the newest. `--dry-run` installs nothing and prints what it would take.
"""

from __future__ import annotations

import argparse
import datetime
import json
import os
import platform
import re
import subprocess
import sys
import tomllib
from collections.abc import Mapping, Sequence
from pathlib import Path

from packaging.requirements import Requirement

ROOT = Path(__file__).resolve().parent.parent
EXTRAS = ("dev",)
COMPANIONS = ("webrl-site", "webrl-serve", "webrl-grpo", "webrl-report", "webrl-study")
"""What `make setup` installs."""
WITHOUT_DEPENDENCIES = ("browsergym",)
"""Prefix of packages whose pins are ignored."""
BROUGHT_BY_THOSE = ("dataclasses-json", "pyparsing", "tiktoken")
"""What they import and nothing else brings."""
HEADING = "## Newest versions"
"""Opens the section of the page; what stands before it is kept."""


def requirements() -> tuple[list[str], list[str]]:
    """What is installed with its dependencies, and what without."""
    project = tomllib.loads((ROOT / "pyproject.toml").read_text(encoding="utf-8"))["project"]
    wanted = [*project["dependencies"], *(r for extra in EXTRAS for r in project["optional-dependencies"][extra])]
    for name in COMPANIONS:
        companion = tomllib.loads((ROOT / "packages" / name / "pyproject.toml").read_text(encoding="utf-8"))["project"]
        wanted += [r for r in companion["dependencies"] if not r.startswith("webrl")]
    alone = [r for r in wanted if r.startswith(WITHOUT_DEPENDENCIES)]
    return [*(r for r in wanted if r not in alone), *BROUGHT_BY_THOSE], alone


def name_of(requirement: str) -> str:
    """Normalized name of the package that a requirement is for."""
    return re.sub(r"[-_.]+", "-", re.split(r"[^\w.-]", requirement, maxsplit=1)[0]).lower()


def pip(python: Path | str, *arguments: str) -> str:
    """Run pip; returns what it prints. Ends the script where it fails."""
    command = [str(python), "-m", "pip", *arguments, "--disable-pip-version-check"]
    done = subprocess.run(command, stdout=subprocess.PIPE, text=True, check=False)
    if done.returncode:
        sys.exit(f"newest.py: pip {' '.join(arguments)[:200]} failed with exit code {done.returncode}")
    return done.stdout


def resolve(torch: str | None) -> dict[str, str]:
    """Name -> version of what pip would install; nothing is."""
    wanted, alone = requirements()
    common = ("install", "--quiet", "--dry-run", "--ignore-installed", "--report", "-")
    reports = [pip(sys.executable, *common, *wanted, *([torch] if torch else []))]
    if alone:
        reports.append(pip(sys.executable, *common, "--no-deps", *alone))
    found = [item["metadata"] for report in reports for item in json.loads(report)["install"]]
    return {name_of(metadata["name"]): metadata["version"] for metadata in found}


def install(environment: Path, torch: str | None) -> None:
    """Make or renew the environment."""
    python = environment / "bin" / "python"
    if not python.exists():
        subprocess.run([sys.executable, "-m", "venv", str(environment)], check=True)
    wanted, alone = requirements()
    keep = [torch] if torch else []
    if torch:  # first and alone, and not compiled, as scripts/setup.sh does: its CPU build comes from elsewhere
        pip(python, "install", "--quiet", "--no-compile", torch)
    eager = ("--upgrade", "--upgrade-strategy", "eager")
    pip(python, "install", "--quiet", "--no-compile", *eager, *wanted, *keep)
    editable = [part for path in (ROOT, *sorted(ROOT.glob("packages/webrl-*"))) for part in ("-e", str(path))]
    pip(python, "install", "--quiet", "--no-deps", "--upgrade", *alone, *editable)


def installed(environment: Path) -> dict[str, str]:
    """Name -> version of what is in the environment."""
    found = json.loads(pip(environment / "bin" / "python", "list", "--format", "json"))
    return {name_of(item["name"]): item["version"] for item in found}


def run_tests(environment: Path, pattern: str | None) -> tuple[int, str]:
    """Run the tests without the slow ones; returns the exit code and pytest's last line."""
    command = [str(environment / "bin" / "python"), "-m", "pytest", "-q", "-m", "not slow"]
    command += ["-n", "0", "-k", pattern] if pattern else ["-n", "2"]
    with subprocess.Popen(command, cwd=ROOT, stdout=subprocess.PIPE, text=True, env=_environment()) as tests:
        assert tests.stdout is not None
        last = ""
        for line in tests.stdout:
            sys.stderr.write(line)
            last = line.strip() or last
    return tests.returncode, last


def _environment() -> dict[str, str]:
    return os.environ | {"PYTHONPATH": os.pathsep.join(map(str, (ROOT, *sorted(ROOT.glob("packages/webrl-*")))))}


def page(versions: Mapping[str, str], result: str) -> str:
    """The versions of the direct dependencies as a section in Markdown."""
    lines = (ROOT / "constraints.txt").read_text(encoding="utf-8").splitlines()
    pins = [Requirement(line.partition("#")[0]) for line in lines if "==" in line]
    pinned = {name_of(p.name): str(p.specifier)[2:] for p in pins if p.marker is None or p.marker.evaluate()}
    wanted, alone = requirements()
    core = {name_of(r) for r in tomllib.loads((ROOT / "pyproject.toml").read_text())["project"]["dependencies"]}
    shown = sorted({name_of(r) for r in (*wanted, *alone)} & (core | {"browsergym-core", "openenv", "trl", "datasets"}))
    found = [(name, pinned.get(name, ""), versions.get(name, "not installed")) for name in shown]
    rows = [f"| {name} | {before} | {now} |" for name, before, now in found if before != now]
    return "\n".join(
        [
            HEADING,
            "",
            "What `pyproject.toml` allows at most, as `python scripts/newest.py` found it; it prints this section.",
            f"On {datetime.datetime.now(datetime.UTC):%Y-%m-%d}, with Python {platform.python_version()}, these ran:",
            "",
            f"> {result}",
            "",
            "| Package | constraints.txt | newest |",
            "|---|---|---|",
            *rows,
            "",
            f"The other {len(found) - len(rows)} are the same in both.",
            "",
        ]
    )


def main(argv: Sequence[str] | None = None) -> int:
    """Parse, install, test, print."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--dry-run", action="store_true", help="print the versions, install nothing")
    parser.add_argument("--tests", metavar="PATTERN", help="only tests that match it (pytest's -k)")
    parser.add_argument("--torch", metavar="REQUIREMENT", help="instead of the newest, such as torch==2.13.0+cpu")
    parser.add_argument("--environment", type=Path, default=ROOT / "build" / "newest", help="where to install")
    parser.add_argument("--keep", action="store_true", help="run the tests in it as it is")
    parser.add_argument("--out", type=Path, help="also write the page to this file")
    args = parser.parse_args(argv)
    if args.dry_run:
        print(page(resolve(args.torch), "resolved, not run"))
        return 0
    environment = args.environment.absolute()
    if not args.keep:
        install(environment, args.torch)
    code, result = run_tests(environment, args.tests)
    tests = f"tests matching `{args.tests}`" if args.tests else "all tests but the slow ones"
    text = page(installed(environment), f"{tests}: {result}")
    print(text)
    if args.out:
        before = args.out.read_text(encoding="utf-8").partition(HEADING)[0] if args.out.exists() else ""
        args.out.write_text(before + text, encoding="utf-8")
    return code


if __name__ == "__main__":
    sys.exit(main())
