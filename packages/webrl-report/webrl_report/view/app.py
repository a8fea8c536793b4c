"""`webrl view`'s server and its pages, each rendered from the index and at most two lines of the run's files.

Labels set by hand on a page go to `RUN/hand_labels.jsonl`, which `webrl train-orm --data` reads.

Access: the paths of all pages begin with a random token, which is in the address that `webrl view` prints. A page of
another site cannot know it, also if it has its own name resolved to this machine, and no page tells it to another site:
policies forbid everything that is not the viewer's own.
"""

from __future__ import annotations

import asyncio
import hashlib
import hmac
import secrets
from collections.abc import Callable, Mapping, Sequence
from functools import partial
from itertools import zip_longest
from pathlib import Path
from typing import Any
from urllib.parse import parse_qsl

from filelock import FileLock
from jinja2 import Environment, PackageLoader, StrictUndefined
from markupsafe import Markup
from starlette.applications import Starlette
from starlette.datastructures import MutableHeaders
from starlette.exceptions import HTTPException
from starlette.requests import ClientDisconnect, Request
from starlette.responses import (
    FileResponse,
    HTMLResponse,
    JSONResponse,
    PlainTextResponse,
    RedirectResponse,
    Response,
    StreamingResponse,
)
from starlette.routing import Mount, Route
from starlette.staticfiles import StaticFiles
from starlette.types import ASGIApp, Message, Receive, Scope, Send

from webrl.errors import DataError, UsageError
from webrl.reward.train import JudgedExample, judged
from webrl.runs.clock import progress
from webrl.runs.disk import atomic_path
from webrl.runs.text import dump_json, visible
from webrl.types import Trajectory
from webrl_report.view.details import Run, describe
from webrl_report.view.index import HAND_LABELS, FileChanged, Index, TrajectoryNotFound, check_run, parse
from webrl_report.view.query import CHOICES, ORDERS, PAGE_SIZE, Selection, options, same_task, select, totals
from webrl_serve.net import BodyError, address_of, listen, read_body, run_app, stop_on_signals

_CHUNK_CHARS = 1 << 16
_MAX_FORM_BYTES = 16 << 10
_MAX_REQUESTS = 64
_LOCK_TIMEOUT_S = 5.0
_HEADERS = {
    "Content-Security-Policy": "default-src 'none'; script-src 'self'; style-src 'self'; img-src 'self'; "
    "connect-src 'self'; form-action 'self'; base-uri 'none'; frame-ancestors 'none'",
    "X-Content-Type-Options": "nosniff",
    "X-Frame-Options": "DENY",
    "Referrer-Policy": "no-referrer",
    "Cross-Origin-Resource-Policy": "same-origin",
    "Cross-Origin-Opener-Policy": "same-origin",
    "Cache-Control": "no-store",
}


def serve(runs: Sequence[Path], host: str, port: int, on_ready: Callable[[str], None]) -> None:
    """Read runs, and show them until interrupted.

    Args:
        on_ready: called with the address to open, which holds the token.

    Raises:
        UsageError: no such run folder, not a run folder, or an address that cannot be used.
    """
    for run in runs:
        check_run(run)
    with listen(host, port) as listener:
        index, token = Index(runs), secrets.token_urlsafe(24)
        with progress(None, "read", "B", leave=False) as bar:
            index.refresh(bar.update)
        guarded = guard(make_app(index, f"/{token}"), token)

        async def serve_index() -> None:
            stop = stop_on_signals()
            on_ready(f"{address_of(listener)}/{token}/")
            await run_app(guarded, listener, _MAX_REQUESTS, stop)

        asyncio.run(serve_index())


def guard(app: ASGIApp, token: str) -> ASGIApp:
    """Wrap an application so that only paths below the token are served; others get one line of text."""
    refusal = PlainTextResponse("open the address that `webrl view` has printed: it holds the token\n", 401)

    async def guarded(scope: Scope, receive: Receive, send: Send) -> None:
        async def send_guarded(message: Message) -> None:
            if message["type"] == "http.response.start":
                MutableHeaders(scope=message).update(_HEADERS)
            await send(message)

        if scope["type"] == "http":
            first, slash, _ = scope["path"][1:].partition("/")
            admitted = slash and hmac.compare_digest(first.encode("utf-8", "replace"), token.encode())
            await (app if admitted else refusal)({**scope, "root_path": f"/{token}"}, receive, send_guarded)

    return guarded


def make_app(index: Index, root: str = "") -> Starlette:
    """Make the application over an index; it says nothing about who may ask (`guard`).

    Args:
        root: what the paths of all its pages begin with, such as `/a1b2`.
    """
    pages = _Pages(index, root)
    routes = [
        Route("/", pages.overview),
        Route("/state", pages.state),
        Route("/export", pages.export),
        Route("/compare", pages.compare),
        Route("/t/{place:path}", pages.trajectory),
        Route("/text/{place:path}/{step}/{part}", pages.text),
        Route("/png/{place:path}/{step:int}", pages.png),
        Route("/label", pages.label, methods=["POST"]),
        Mount("/static", StaticFiles(packages=[("webrl_report.view", "static")])),
        Route("/favicon.ico", lambda _request: Response(status_code=204)),
    ]
    headings = {
        UsageError: (400, "That cannot be selected"),
        DataError: (409, "That cannot be done"),
        OSError: (500, "The disk refused"),
        TrajectoryNotFound: (404, "There is no such episode"),
        FileChanged: (409, "The file has changed; reload the list"),
        404: (404, "There is no such page"),
    }
    errors: dict[Any, Any] = {kind: partial(pages.error, *heading) for kind, heading in headings.items()}
    return Starlette(routes=routes, exception_handlers=errors)


class _Pages:
    """The pages of an index, one at a time: a function that Starlette ran in a thread would meet a growing index."""

    def __init__(self, index: Index, root: str) -> None:
        self._index, self._root = index, root
        names = [path.resolve().name for path in index.runs]
        self._runs = [
            Run(path, name if names.count(name) == 1 else str(path))
            for path, name in zip(index.runs, names, strict=True)
        ]
        self._templates = Environment(
            loader=PackageLoader("webrl_report.view"),
            autoescape=True,
            undefined=StrictUndefined,
            finalize=lambda value: (
                visible(value) if isinstance(value, str) and not isinstance(value, Markup) else value
            ),
            trim_blocks=True,
        )
        self._templates.globals |= {"root": root, "runs": self._runs}

    async def overview(self, request: Request) -> Response:
        """Show the selection, page by page."""
        selection = self._selected(request.query_params)
        rows = select(self._index, selection)
        problems, num_problems = self._index.problems()
        choices = {name: [(value, said) for value, (said, _) in known.items()] for name, known in CHOICES.items()}
        choices["sort"] = [(value, said) for value, (said, _) in ORDERS.items()]
        for name, found in options(self._index).items():
            said = {
                value: self._runs[int(value)].name if name == "run" else value.replace("_", " ") for value, _ in found
            }
            choices[name] = [(value, f"{said[value]:.100} ({num:,})") for value, num in found]
        start = (selection.page - 1) * PAGE_SIZE
        return self._page(
            "list.html",
            selection,
            rows=rows[start : start + PAGE_SIZE],
            totals=totals(rows),
            first=start + 1,
            choices=choices,
            problems=problems,
            num_problems=num_problems,
        )

    async def state(self, request: Request) -> Response:
        """Return what is new, for the script that polls."""
        num = len(select(self._index, self._selected(request.query_params)))
        return JSONResponse({"version": self._index.version, "num": num})

    async def trajectory(self, request: Request) -> Response:
        """Show one trajectory, step by step."""
        selection = self._selected(request.query_params)
        rows, row = select(self._index, selection), self._index.find(request.path_params["place"])
        at = rows.index(row) if row in rows else -1
        return self._page(
            "trajectory.html",
            selection,
            **vars(describe(self._index, self._runs[row.file.run], row)),
            position=at + 1,
            total=len(rows),
            previous=rows[at - 1] if at > 0 else None,
            next=next(iter(rows[at + 1 : at + 2]), None),
            others=same_task(self._index, row),
        )

    async def compare(self, request: Request) -> Response:
        """Show two trajectories side by side."""
        self._index.refresh()
        rows = [self._index.find(request.query_params.get(name, "")) for name in ("a", "b")]
        sides = [vars(describe(self._index, self._runs[row.file.run], row)) for row in rows]
        actions = [[view.step.action for view in side["steps"]] for side in sides]
        split = next((i for i, (a, b) in enumerate(zip_longest(*actions)) if a != b), None)
        return self._page(
            "compare.html",
            Selection(),
            sides=sides,
            split=split,
            length=max(map(len, actions)),
            same_instruction=len({side["trajectory"].instruction for side in sides}) == 1,
        )

    async def text(self, request: Request) -> Response:
        """Return a page, answer or prompt whole, as plain text."""
        row = self._index.find(request.path_params["place"])
        trajectory, _ = self._index.read(row)
        step, part = request.path_params["step"], request.path_params["part"]
        if (step, part) == ("end", "page"):
            return _plain(trajectory.final_observation)
        if step in map(str, range(len(trajectory.steps))):
            chosen = trajectory.steps[int(step)]
            if part in ("page", "answer"):
                return _plain(chosen.observation if part == "page" else chosen.response)
            tokenizer = self._runs[row.file.run].tokenizer()
            if part == "prompt" and tokenizer and tokenizer.made(chosen.action_ids, chosen.response):
                return _plain(tokenizer.text(chosen.prompt_ids))
        raise TrajectoryNotFound(f"{row.place}, step {step!r:.40}, {part!r:.40}")

    async def png(self, request: Request) -> Response:
        """Return a step's screenshot."""
        row = self._index.find(request.path_params["place"])
        trajectory, _ = self._index.read(row)
        step = request.path_params["step"]
        name = trajectory.steps[step].screenshot if step < len(trajectory.steps) else ""
        path = self._runs[row.file.run].screenshot(name) if name else None
        if path is None:
            raise TrajectoryNotFound(f"{row.place}, step {step}: no screenshot")
        return FileResponse(path, media_type="image/png")

    async def export(self, request: Request) -> Response:
        """Return the selection's trajectories as they are on the disk, one a line."""
        rows = select(self._index, self._selected(request.query_params))
        headers = {"Content-Disposition": 'attachment; filename="trajectories.jsonl"'}
        lines = (self._index.read(row)[1] for row in rows)
        return StreamingResponse(lines, media_type="application/x-ndjson", headers=headers)

    async def error(self, status: int, heading: str, request: Request, error: Exception) -> Response:
        """Show an error page."""
        text = request.url.path if isinstance(error, HTTPException) else str(error)
        return self._page("error.html", Selection(), status=status, heading=heading, text=text)

    async def label(self, request: Request) -> Response:
        """Set a label by hand, or take it back; the answer is the trajectory's page."""
        try:
            body = await read_body(request, _MAX_FORM_BYTES)
            form = dict(parse_qsl(body.decode("utf-8"), keep_blank_values=True, max_num_fields=20))
        except (BodyError, ClientDisconnect, ValueError) as error:
            raise UsageError(f"not a form: {error}") from None
        address = Selection.from_query(dict(parse_qsl(form.get("selection", "")))).address()
        success = {"1": 1, "0": 0, "": None}.get(form.get("success", "-"), -1)
        if success == -1:
            raise UsageError(f"success={form.get('success')!r:.40}: expected 1, 0, or nothing to take the label back")
        row = self._index.find(form.get("place", ""))
        trajectory, line = self._index.read(row)
        if hashlib.sha256(line).hexdigest() != form.get("digest"):
            raise FileChanged(f"{row.place} is not the episode that was shown")
        set_label(self._index.runs[row.file.run], trajectory, success)
        return RedirectResponse(f"{self._root}/t/{row.place}{'?' if address else ''}{address}", 303)

    def _selected(self, query: Mapping[str, str]) -> Selection:
        self._index.refresh()
        return Selection.from_query(query)

    def _page(self, template: str, selection: Selection, status: int = 200, **values: Any) -> Response:
        shown = self._templates.get_template(template).render(
            selection=selection, address=selection.address(), version=self._index.version, **values
        )
        return HTMLResponse(shown.encode("utf-8", "replace"), status)


def _plain(text: str) -> Response:
    parts = (visible(text[start : start + _CHUNK_CHARS]) for start in range(0, len(text), _CHUNK_CHARS))
    return StreamingResponse(parts, media_type="text/plain; charset=utf-8")


def set_label(run: Path, trajectory: Trajectory, success: int | None) -> None:
    """Record a judgement, 1 or 0; None takes back the one that was set. All other lines stay as they are.

    Raises:
        DataError: the trajectory is no whole attempt.
        OSError: the folder cannot be written, or another viewer holds the file.
    """
    if success is not None and not trajectory.status.finished:
        raise DataError(
            f"{trajectory.trajectory_id}: ended by {trajectory.status.value}, which is not an attempt to judge; "
            "an outcome model is not trained on it"
        )
    path = run / HAND_LABELS
    kept: list[bytes] = []
    with FileLock(path.with_name(f".{path.name}.lock"), timeout=_LOCK_TIMEOUT_S):  # of another viewer
        for line in path.read_bytes().removesuffix(b"\n").split(b"\n") if path.is_file() else ():
            try:
                is_own = parse(JudgedExample, line).trajectory_id == trajectory.trajectory_id
            except ValueError:  # no example: it stays
                is_own = False
            if not is_own and (line or kept):
                kept.append(line + b"\n")
        if success is not None:
            example = judged(trajectory, success).to_json()
            del example["pages"], example["ends_by_message"]  # earlier versions of webrl refuse a line with them
            kept.append(dump_json(example) + b"\n")
        with atomic_path(path) as temporary:
            temporary.write_bytes(b"".join(kept))
