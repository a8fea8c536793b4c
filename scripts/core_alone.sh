#!/usr/bin/env bash
# The core without its companions: `bash scripts/core_alone.sh [ARGUMENTS OF PYTEST]` (default: its quick tests of imports
# and commands). The environment, build/core-alone, is $VENV without the companions and what only they depend on.
set -euo pipefail
cd "$(dirname "$0")/.."
VENV=${VENV:-.venv}
ALONE=build/core-alone
rm -rf "$ALONE"
"$VENV/bin/python" -m venv --without-pip "$ALONE"
"$VENV/bin/python" - "$ALONE" <<'PYTHON'
import re, sys, tomllib
from importlib.metadata import distributions
from pathlib import Path

(target,) = Path(sys.argv[1]).glob("lib/python*/site-packages")
project = tomllib.loads(Path("pyproject.toml").read_text())["project"]
own = [tomllib.loads(path.read_text())["project"] for path in Path("packages").glob("*/pyproject.toml")]
name = lambda text: re.sub(r"[-_.]+", "-", re.match(r"[\w.-]+", text)[0]).lower()
found = {name(d.metadata["Name"]): d for d in reversed([*distributions()])}  # the first on the path counts
kept, todo = set(), [*map(name, project["dependencies"])]
while todo:
    if (one := todo.pop()) not in kept:
        kept.add(one)
        todo += [name(r) for r in (found[one].requires or () if one in found else ()) if "extra ==" not in r]
kept |= {*map(name, project["optional-dependencies"]["dev"])}
gone = {name(r) for p in own for r in [p["name"], *p["dependencies"]]} - kept - {"webrl"}
hidden = {Path(file).parts[0] for key in gone & set(found) for file in found[key].files or ()}
for folder in (Path(p) for p in sys.path if p.endswith("site-packages")):
    for entry in folder.iterdir():
        if entry.name not in hidden and entry.suffix != ".pth" and not (target / entry.name).exists():
            (target / entry.name).symlink_to(entry.resolve())
(target / "core.pth").write_text(str(Path.cwd()))
print("without", ", ".join(sorted(gone & set(found))))
PYTHON
[ $# -gt 0 ] || set -- -n 0 tests/test_cli.py tests/test_suites_plugins.py tests/test_foundation.py tests/test_api.py
# A test that needs a companion is skipped here, which is an error where CI is set.
CI= PYTHONPATH= "$ALONE/bin/python" -m pytest -q -m "not slow" "$@"
