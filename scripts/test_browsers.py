#!/usr/bin/env python3
"""The tests of what a browser's version can change, on several Chromium versions: `make test-browsers`.

By default on the Chromium that webrl finds on this machine (`installed`) and on some that npm's @sparticuz/chromium
ships (Linux, x86-64; kept in .browser/). `--versions installed 119.0.2 latest` names others; arguments after `--` go to
pytest.
"""

from __future__ import annotations

import argparse
import os
import subprocess
import sys
import tarfile
import tempfile
import xml.etree.ElementTree as ET
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

import brotli

from webrl.errors import BrowserMissing
from webrl.rollouts.browser import find_chromium

ROOT = Path(__file__).resolve().parent.parent
CACHE = ROOT / ".browser"
PACKAGE = "@sparticuz/chromium"
INSTALLED = "installed"
VERSIONS = (INSTALLED, "119.0.2", "123.0.1", "126.0.0", "138.0.2", "latest")
"""126 is next to what Playwright 1.44 downloads."""
FILES = (
    *("test_rollouts_observe.py", "test_rollouts_env.py", "test_experts.py"),
    *("test_rollouts_guard.py", "test_suites_web_limits.py", "test_rollouts_faults.py"),
    "test_rollouts_ids.py",
    "test_rollouts_elements.py",
    "test_rollouts_isolation.py",
)
"""Observations, actions, tasks, what pages reach and what goes wrong; pools and servers do the same everywhere."""


@dataclass(frozen=True)
class Result:
    """What came of the tests on one browser."""

    version: str
    passed: int
    failed: int
    failures: tuple[str, ...]
    """Names of the tests that failed."""


class Unavailable(Exception):
    """A browser that cannot be had or does not start; the text says why."""


def fetch(version: str) -> Path:
    """The headless shell of one version of the package, downloaded unless it is there already. Raises Unavailable."""
    if version == "latest":
        version = npm("view", PACKAGE, "version")
    path = CACHE / f"chromium-{version}" / "headless_shell"
    if path.is_file():
        return path
    with tempfile.TemporaryDirectory() as folder:
        archive = Path(folder) / npm("pack", f"{PACKAGE}@{version}", "--pack-destination", folder).splitlines()[-1]
        try:
            with tarfile.open(archive) as package:
                stream = package.extractfile("package/bin/chromium.br")
                data = brotli.decompress(stream.read() if stream else b"")
        except (OSError, KeyError, tarfile.TarError, brotli.error) as error:
            raise Unavailable(f"{archive.name} has no bin/chromium.br: {error}") from None
    path.parent.mkdir(parents=True, exist_ok=True)
    partial = path.with_suffix(".partial")
    partial.write_bytes(data)
    partial.chmod(0o755)
    partial.replace(path)
    return path


def npm(*arguments: str) -> str:
    """What an npm command prints. Raises Unavailable."""
    command = ["npm", "--loglevel=error", *arguments]
    try:
        return subprocess.run(command, capture_output=True, text=True, check=True).stdout.strip()
    except FileNotFoundError:
        raise Unavailable("npm is not installed") from None
    except subprocess.CalledProcessError as error:
        reason = " ".join(error.stderr.split("\n")[:2]) or "no reason given"
        raise Unavailable(f"npm {arguments[0]}: {reason}") from None


def version_of(executable: Path) -> str:
    """The version a browser reports once it runs. Raises Unavailable."""
    from playwright.sync_api import Error, sync_playwright

    try:
        with sync_playwright() as playwright:
            browser = playwright.chromium.launch(executable_path=executable, timeout=60_000)
            version: str = browser.version
            browser.close()
            return version
    except Error as error:
        raise Unavailable(f"{executable} does not start: {str(error).splitlines()[0]}") from None


def run_tests(executable: Path, version: str, arguments: Sequence[str]) -> Result:
    """Run the tests with this browser; their output goes to the screen."""
    with tempfile.TemporaryDirectory() as folder:
        report = Path(folder) / "report.xml"
        files = [
            str(path)
            for name in FILES
            for path in (*ROOT.glob(f"tests/{name}"), *ROOT.glob(f"packages/**/tests/{name}"))
        ]
        command = [sys.executable, "-m", "pytest", "-q", "-m", "browser and not slow", f"--junitxml={report}", *files]
        done = subprocess.run([*command, *arguments], env=os.environ | {"WEBRL_CHROMIUM": str(executable)}, check=False)
        if not report.is_file():
            return Result(version, 0, 1, (f"pytest ended with exit code {done.returncode}",))
        cases = list(ET.parse(report).iter("testcase"))
    failed = [case.get("name", "") for case in cases if {"failure", "error"} & {child.tag for child in case}]
    skipped = sum(case.find("skipped") is not None for case in cases)
    return Result(version, len(cases) - len(failed) - skipped, len(failed), tuple(failed))


def candidates(versions: Sequence[str]) -> list[tuple[str, Path, str]]:
    """(where from, executable, version) of every browser that runs here; says of the others why not."""
    found = []
    for source in versions:
        try:
            executable = find_chromium() if source == INSTALLED else fetch(source)
            found.append((source, executable, version_of(executable)))
        except (Unavailable, BrowserMissing) as problem:
            print(f"test-browsers: without {source}: {problem}", flush=True)
    return found


def main() -> int:
    """Command line; see the module docstring."""
    parser = argparse.ArgumentParser(description=__doc__, allow_abbrev=False)
    parser.add_argument("--versions", nargs="*", default=VERSIONS, help=f"versions of {PACKAGE} (default: %(default)s)")
    parser.add_argument("arguments", nargs="*", metavar="-- ARGUMENTS", help="for pytest")
    options = parser.parse_args()
    browsers = candidates(options.versions)
    print("test-browsers: " + ", ".join(f"{version} ({source})" for source, _, version in browsers), flush=True)
    results = []
    for source, executable, version in browsers:
        print(f"test-browsers: Chromium {version} ({source})", flush=True)
        results.append(run_tests(executable, version, options.arguments))
    print(f"\n{'Chromium':<20}{'passed':>8}{'failed':>8}")
    for result in results:
        print(f"{result.version:<20}{result.passed:>8}{result.failed:>8}  {', '.join(result.failures)}".rstrip())
    return 1 if not results or any(result.failed or not result.passed for result in results) else 0


if __name__ == "__main__":
    sys.exit(main())
