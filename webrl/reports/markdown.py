"""Words from outside as Markdown that shows them and does nothing else."""

from __future__ import annotations

import html
import re
from collections.abc import Iterable, Sequence

_SIGNS = re.compile(r"[|\\`*\[\]!#~$]|(?<!\w)_|_(?!\w)")


def escaped(value: object) -> str:
    """The text of a value on one line, without a sign that means something in Markdown or HTML."""
    text = html.escape(str(value), quote=False)
    return _SIGNS.sub(lambda found: f"&#{ord(found[0])};", text).replace("\n", " ").replace("\r", " ")


def table(head: Sequence[str], rows: Iterable[Sequence[object]]) -> str:
    """A table of escaped cells."""
    lines = [head, ["---"] * len(head), *rows]
    return "\n".join(f"| {' | '.join('---' if cell == '---' else escaped(cell) for cell in line)} |" for line in lines)
