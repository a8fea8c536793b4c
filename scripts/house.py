#!/usr/bin/env python3
"""How large and fragmented the core (`webrl/`) and its companions (`packages/`) are, held to bounds that only go
down: `python scripts/house.py`.

Prints lines, files, names (functions, classes and methods) per thousand lines, options of `webrl run`, and runs of six
lines that occur more than once; fails above `BOUNDS`, and for an option that no config, page, test or script names.
After a change that makes a figure smaller, lower its bound.
"""

from __future__ import annotations

import ast
import re
import sys
from collections import defaultdict
from collections.abc import Iterable
from pathlib import Path

ROOT = Path(__file__).parent.parent
BOUNDS = {
    "core: lines": 23_137,
    "core: files": 121,
    "lines": 42_637,
    "files": 249,
    "names per 1000 lines": 60.9,
    "options": 172,
    "duplicated runs": 0,
}
RUN = 6
"""Lines of a duplicated run."""
_NAMED_IN = (
    "configs/**/*.yaml",
    "docs/**/*.md",
    "*.md",
    "data/*.md",
    "examples/**/*",
    "tests/**/*.py",
    "packages/**/tests/**/*.py",
    "scripts/**/*",
)
_SET_BY_CODE = {"rollout.page_details", "rollout.public_hosts"}
"""What `webrl serve-env` sets for the clients that ask for it."""


def measure(sources: dict[Path, str]) -> dict[str, float]:
    """The figures of Python sources by path, but for the options."""
    lines = sum(len(text.splitlines()) for text in sources.values())
    kinds = (ast.FunctionDef, ast.AsyncFunctionDef, ast.ClassDef)
    names = sum(isinstance(node, kinds) for text in sources.values() for node in ast.walk(ast.parse(text)))
    return {
        "lines": lines,
        "files": len(sources),
        "names per 1000 lines": round(1000 * names / max(lines, 1), 1),
        "duplicated runs": len(duplicated_runs(sources)),
    }


def duplicated_runs(sources: dict[Path, str]) -> list[list[str]]:
    """Places (`path:line`) of each run of `RUN` lines that occurs more than once; longer runs count once.

    Blank lines, imports and lines of brackets alone do not count as lines.
    """
    found: defaultdict[tuple[str, ...], list[tuple[Path, int]]] = defaultdict(list)
    for path, text in sources.items():
        imports = [node for node in ast.walk(ast.parse(text)) if isinstance(node, ast.Import | ast.ImportFrom)]
        imported = {n for node in imports for n in range(node.lineno, (node.end_lineno or node.lineno) + 1)}
        lines = ((number, line.strip()) for number, line in enumerate(text.splitlines(), 1) if number not in imported)
        kept = [(number, line) for number, line in lines if _counts(line)]
        for start in range(len(kept) - RUN + 1):
            window = tuple(line for _, line in kept[start : start + RUN])
            found[window].append((path, start))
    places = {window: where for window, where in found.items() if len(where) > 1}
    starts = {frozenset(where) for where in places.values()}
    return [
        [f"{path}: kept line {start + 1}" for path, start in where]
        for where in places.values()
        if frozenset((path, start - 1) for path, start in where) not in starts
    ]


def _counts(line: str) -> bool:
    text = line.strip()
    return bool(re.search(r"\w", text)) and not text.startswith("#")


def unnamed_options(keys: Iterable[tuple[str, ...]], texts: Iterable[str]) -> list[str]:
    """The options of which no key, nor a key's last word, occurs in a text."""
    words = set(re.findall(r"\w+", "\n".join(texts)))
    return [key[0] for key in keys if key[0] not in _SET_BY_CODE and key[0].rpartition(".")[2] not in words]


def main() -> int:
    """Print the figures; 1 if one is above its bound or an option is named nowhere."""
    sys.path.insert(0, str(ROOT))
    from webrl.config import describe_options

    core, companions = (
        {path.relative_to(ROOT): path.read_text(encoding="utf-8") for path in sorted(ROOT.glob(pattern))}
        for pattern in ("webrl/**/*.py", "packages/*/webrl_*/**/*.py")
    )
    options = describe_options()
    figures = measure(core | companions) | {"options": len(options)}
    figures |= {f"core: {name}": measure(core)[name] for name in ("lines", "files")}
    wrong = 0
    for name, bound in BOUNDS.items():
        is_above = figures[name] > bound
        wrong += is_above
        print(
            f"{name:<22} {figures[name]:>8g}  of {bound:g}{'  ABOVE: delete, or say why in BOUNDS' if is_above else ''}"
        )
    named_in = [path for pattern in _NAMED_IN for path in sorted(ROOT.glob(pattern)) if path.is_file()]
    texts = [path.read_text(encoding="utf-8", errors="replace") for path in named_in if path.name != "house.py"]
    for key in unnamed_options([option.keys for option in options], texts):
        wrong += 1
        print(f"{key}: no config, page, test or script names this option; name it, or remove it")
    return int(wrong > 0)


if __name__ == "__main__":
    sys.exit(main())
