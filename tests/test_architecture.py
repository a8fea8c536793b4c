"""The picture in docs/architecture.md is the code's: every part, and every arrow that does not follow from others."""

import ast
import re
from collections import defaultdict
from pathlib import Path

ROOT = Path(__file__).parent.parent
TEXT = (ROOT / "docs" / "architecture.md").read_text(encoding="utf-8")


def imports() -> dict[str, set[str]]:
    """Which top-level part of webrl imports which, functions' own imports included."""
    found: dict[str, set[str]] = defaultdict(set)
    for path in (ROOT / "webrl").rglob("*.py"):
        part = path.relative_to(ROOT / "webrl").parts[0].removesuffix(".py")
        if part == "__init__":
            continue
        for node in ast.walk(ast.parse(path.read_text(encoding="utf-8"))):
            if isinstance(node, ast.ImportFrom) and node.module:
                names = [f"{node.module}.{alias.name}" for alias in node.names]
            elif isinstance(node, ast.Import):
                names = [alias.name for alias in node.names]
            else:
                continue
            found[part] |= {name.split(".")[1] for name in names if name.startswith("webrl.")} - {part, "__version__"}
    return found


def reachable(graph: dict[str, set[str]], start: str, without: str) -> set[str]:
    seen: set[str] = set()
    waiting = [part for part in graph[start] if part != without]
    while waiting:
        part = waiting.pop()
        if part not in seen:
            seen.add(part)
            waiting += graph.get(part, ())
    return seen


def test_the_picture_shows_the_imports_that_do_not_follow_from_others():
    graph = imports()
    needed = {(a, b) for a in graph for b in graph[a] if b not in reachable(graph, a, b)}
    picture = TEXT.split("```mermaid")[2].split("```")[0]
    drawn = set(re.findall(r'^  (\w+)(?:\[".*?"\])? --> (\w+)', picture, re.M))
    assert drawn == needed
    parts = {p.name.removesuffix(".py") for p in (ROOT / "webrl").iterdir() if p.suffix == ".py" or p.is_dir()}
    assert parts - {"__init__", "__pycache__", "configs", "py.typed"} <= {part for arrow in drawn for part in arrow}


def test_what_the_page_names_is_there():
    folder = ROOT
    for row in re.findall(r"^\|[^|]*\|(.*)\|$", TEXT, re.M):
        for name in re.findall(r"`((?:[\w.-]+/)*[\w.-]*\.(?:py|js)|(?:[\w.-]+/)+)`", row):
            here = ROOT / name if name.startswith(("webrl/", "scripts/", "configs/")) else folder / name
            assert here.exists(), f"{name} (row {row!r})"
            folder = here.parent if here.is_file() else here
