"""What addresses and forms name."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any
from urllib.parse import parse_qsl

from starlette.requests import Request

from webrl.errors import UsageError
from webrl.view.index import Absent, Place

_MAX_FORM_BYTES = 16 << 10


def place_of(values: Mapping[str, Any]) -> Place:
    """The place that an address names (`run`, `name`, `line`). Raises Absent for a line that no file can have."""
    if max(values["run"], values["line"]) >= 1 << 62:
        raise Absent(f"line {values['line']}"[:80])
    return Place(values["run"], values["name"], values["line"])


def parse_place(text: str) -> Place:
    """The place that `str(place)` names. Raises UsageError for other texts."""
    run, _, rest = text.partition("/")
    name, _, line = rest.rpartition("/")
    if not (run.isdecimal() and line.isdecimal() and name) or len(text) > 500:
        raise UsageError(f"{text!r:.80} names no trajectory; expected RUN/FILE/LINE such as 0/phase_01/eval.jsonl/3")
    return place_of({"run": int(run), "name": name, "line": int(line)})


async def read_form(request: Request) -> dict[str, str]:
    """Fields of a form. Raises UsageError for one that is long, or none."""
    body = b""
    async for chunk in request.stream():
        body += chunk
        if len(body) > _MAX_FORM_BYTES:
            raise UsageError(f"a form of more than {_MAX_FORM_BYTES} bytes")
    try:
        return dict(parse_qsl(body.decode("utf-8"), keep_blank_values=True, max_num_fields=20))
    except ValueError as error:
        raise UsageError(f"not a form: {error}") from None
