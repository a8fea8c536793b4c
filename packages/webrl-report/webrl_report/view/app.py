"""`webrl view`'s server and its pages, each rendered from the index and at most two lines of the run's files.

Labels set by hand on a page go to `RUN/hand_labels.jsonl`, which `webrl train-orm --data` reads.

Access: the address that `webrl view` prints holds a token, which is exchanged for a cookie that no script and no other
site can use. Browsers send a cookie to every port of a host, so it is for the paths below a random one: another server
on this machine does not get it. Hosts other than this machine's are refused (a page of another site may have its name
point here), and so are forms of other pages. Programs may show the token as `webrl/net.py` takes it.
"""

from __future__ import annotations

import asyncio
import hashlib
import hmac
import ipaddress
import secrets
import socket
import threading
from collections.abc import Callable, Mapping, Sequence
from functools import partial
from itertools import zip_longest
from pathlib import Path
from typing import Any
from urllib.parse import parse_qsl, urlencode, urlsplit

from filelock import FileLock, Timeout
from jinja2 import Environment, PackageLoader, StrictUndefined
from markupsafe import Markup
from starlette.applications import Starlette
from starlette.concurrency import run_in_threadpool
from starlette.datastructures import MutableHeaders
from starlette.exceptions import HTTPException
from starlette.requests import Request
from starlette.responses import (
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
from webrl.net import (
    BodyError,
    address_of,
    is_loopback,
    listen,
    names_loopback,
    read_body,
    refusal,
    run_app,
    stop_on_signals,
)
from webrl.reward.data import JudgedExample, judged
from webrl.runs.disk import atomic_path
from webrl.runs.store import dump_line
from webrl.runs.text import visible
from webrl.types import Trajectory
from webrl_report.view.details import Run, describe
from webrl_report.view.index import HAND_LABELS, FileChanged, Index, Row, TrajectoryNotFound, check_run, parse
from webrl_report.view.query import CHOICES, ORDERS, PAGE_SIZE, Selection, options, same_task, select, totals

_CHUNK_CHARS = 1 << 16
_MAX_FORM_BYTES = 16 << 10
_LOCK_TIMEOUT_S = 10.0
_MAX_REQUESTS = 64
POLICY = (
    "default-src 'none'; script-src 'self'; style-src 'self'; img-src 'self'; connect-src 'self'; form-action 'self'; "
    "base-uri 'none'; frame-ancestors 'none'"
)
_COOKIE = "webrl_view"
_NOT_ADMITTED = "open the address that `webrl view` has printed: it holds the token\n"
_HEADERS = {
    "Content-Security-Policy": POLICY,
    "X-Content-Type-Options": "nosniff",
    "X-Frame-Options": "DENY",
    "Referrer-Policy": "same-origin",  # with no-referrer, browsers say `Origin: null` of our own forms
    "Cross-Origin-Resource-Policy": "same-origin",
    "Cross-Origin-Opener-Policy": "same-origin",
    "Cache-Control": "no-store",
}


def serve(runs: Sequence[Path], host: str, port: int, on_ready: Callable[[str], None]) -> None:
    """Show runs until interrupted; the first page is there while the index is still being built.

    Args:
        on_ready: called with the address to open, which holds the token.

    Raises:
        UsageError: no such run folder, not a run folder, or an address that cannot be used.
    """
    for run in runs:
        check_run(run)
    with listen(host, port) as listener:
        token, root = secrets.token_urlsafe(24), f"/{secrets.token_hex(8)}"
        index = Index(runs)
        guarded = guard(make_app(index, root), token, root, host)
        reader = threading.Thread(target=index.refresh, name="index", daemon=True)
        reader.start()

        async def serve_index() -> None:
            stop = stop_on_signals()
            on_ready(f"{address_of(listener)}{root}/?token={token}")
            await run_app(guarded, listener, _MAX_REQUESTS, stop)

        try:
            asyncio.run(serve_index())
        finally:
            index.close()
            reader.join()


def guard(app: ASGIApp, token: str, root: str, host: str) -> ASGIApp:
    """Wrap an application so that only requests with the token are served; others get one line of text.

    Args:
        token: what a request must show.
        root: what the paths of all pages begin with; it cannot be guessed.
        host: what the server listens on; one of the names that requests may use.
    """
    own_names = {host.lower(), socket.gethostname().lower()}

    def is_own(asked: str | None) -> bool:
        """Check that a request's `Host` is this machine: one of its names, or an address, which no one can redirect."""
        if names_loopback(asked) or is_loopback(host):
            return names_loopback(asked)
        name = ""
        try:
            name = urlsplit(f"//{asked}").hostname or ""
            ipaddress.ip_address(name)
        except ValueError:
            return name in own_names
        return True

    def is_token(text: str) -> bool:
        return hmac.compare_digest(text.encode("utf-8", "replace"), token.encode())

    def answer(request: Request) -> Response | None:
        """A refusal, or the exchange of the token for the cookie; None lets through."""
        asked, path = request.headers.get("host"), request.scope["path"]
        if not is_own(asked):
            return PlainTextResponse(f"this is not {asked or ''!r:.100}\n", 421)
        if not path.startswith(f"{root}/"):
            return PlainTextResponse(_NOT_ADMITTED, 401)
        if request.method == "GET" and is_token(request.query_params.get("token", "")):
            rest = urlencode([pair for pair in request.query_params.multi_items() if pair[0] != "token"])
            admission = RedirectResponse(f"{path}?{rest}" if rest else path, 303)
            admission.set_cookie(_COOKIE, token, httponly=True, samesite="strict", path=root)
            return admission
        if not is_token(request.cookies.get(_COOKIE, "")) and refusal(request.headers, token) is not None:
            return PlainTextResponse(_NOT_ADMITTED, 401)
        if request.method == "POST" and request.headers.get("origin", f"http://{asked}") != f"http://{asked}":
            return PlainTextResponse("other pages may not send forms here\n", 403)
        return None

    async def guarded(scope: Scope, receive: Receive, send: Send) -> None:
        async def send_guarded(message: Message) -> None:
            if message["type"] == "http.response.start":
                MutableHeaders(scope=message).update(_HEADERS)
            await send(message)

        if scope["type"] == "http":
            await (answer(Request(scope)) or app)({**scope, "root_path": root}, receive, send_guarded)

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
        TrajectoryNotFound: (404, "There is no such trajectory"),
        FileChanged: (409, "The file has changed; reload the list"),
        404: (404, "There is no such page"),
    }
    errors: dict[Any, Any] = {kind: partial(pages.error, *heading) for kind, heading in headings.items()}
    return Starlette(routes=routes, exception_handlers=errors)


class _Pages:
    """The pages of an index. Plain functions: Starlette runs them in threads."""

    def __init__(self, index: Index, root: str) -> None:
        self._index, self._root = index, root
        names = [path.resolve().name for path in index.runs]
        self._runs = [
            Run(path, name if names.count(name) == 1 else str(path))
            for path, name in zip(index.runs, names, strict=True)
        ]
        self._labelling = threading.Lock()
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

    def overview(self, request: Request) -> Response:
        """Show the selection, page by page."""
        selection, rows = self._selected(request.query_params)
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
            is_complete=self._index.is_complete,
        )

    def state(self, request: Request) -> Response:
        """Return what is new, for the script that polls."""
        _, rows = self._selected(request.query_params)
        return JSONResponse({"version": self._index.version, "complete": self._index.is_complete, "num": len(rows)})

    def trajectory(self, request: Request) -> Response:
        """Show one trajectory, step by step."""
        selection, rows = self._selected(request.query_params)
        row = self._index.find(request.path_params["place"])
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

    def compare(self, request: Request) -> Response:
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

    def text(self, request: Request) -> Response:
        """Return a page or prompt whole, as plain text."""
        row = self._index.find(request.path_params["place"])
        trajectory, _ = self._index.read(row)
        step, part = request.path_params["step"], request.path_params["part"]
        if (step, part) == ("end", "page"):
            return _plain(trajectory.final_observation)
        if not step.isdecimal() or len(step) > 9 or int(step) >= len(trajectory.steps):
            raise TrajectoryNotFound(f"{row.place}, step {step!r:.40}")
        chosen = trajectory.steps[int(step)]
        if part in ("page", "answer"):
            return _plain(chosen.observation if part == "page" else chosen.response)
        tokenizer = self._runs[row.file.run].tokenizer()
        if part != "prompt" or tokenizer is None or not tokenizer.made(chosen.action_ids, chosen.response):
            raise TrajectoryNotFound(f"{row.place}, step {step}, {part!r:.40}")
        return _plain(tokenizer.text(chosen.prompt_ids))

    def png(self, request: Request) -> Response:
        """Return a step's screenshot."""
        row = self._index.find(request.path_params["place"])
        trajectory, _ = self._index.read(row)
        step = request.path_params["step"]
        name = trajectory.steps[step].screenshot if step < len(trajectory.steps) else ""
        path = self._runs[row.file.run].screenshot(name) if name else None
        if path is None:
            raise TrajectoryNotFound(f"{row.place}, step {step}: no screenshot")
        return Response(path.read_bytes(), media_type="image/png")

    def export(self, request: Request) -> Response:
        """Return the selection's trajectories as they are on the disk, one a line."""
        _, rows = self._selected(request.query_params)
        headers = {"Content-Disposition": 'attachment; filename="trajectories.jsonl"'}
        lines = (self._index.read(row)[1] for row in rows)
        return StreamingResponse(lines, media_type="application/x-ndjson", headers=headers)

    def error(self, status: int, heading: str, request: Request, error: Exception) -> Response:
        """Show an error page."""
        text = request.url.path if isinstance(error, HTTPException) else str(error)
        return self._page("error.html", Selection(), status=status, heading=heading, text=text)

    async def label(self, request: Request) -> Response:
        """Set a label by hand, or take it back; the answer is the trajectory's page."""
        try:
            body = await read_body(request, _MAX_FORM_BYTES)
            form = dict(parse_qsl(body.decode("utf-8"), keep_blank_values=True, max_num_fields=20))
        except (BodyError, ValueError) as error:
            raise UsageError(f"not a form: {error}") from None
        selection = Selection.from_query(dict(parse_qsl(form.get("selection", ""))))
        success = {"1": 1, "0": 0, "": None}.get(form.get("success", "-"), -1)
        if success == -1:
            raise UsageError(f"success={form.get('success')!r:.40}: expected 1, 0, or nothing to take the label back")
        row = self._index.find(form.get("place", ""))
        await run_in_threadpool(self._set_label, row, form.get("digest", ""), success)
        address = selection.address()
        return RedirectResponse(f"{self._root}/t/{row.place}{'?' if address else ''}{address}", 303)

    def _set_label(self, row: Row, digest: str, success: int | None) -> None:
        trajectory, line = self._index.read(row)
        if hashlib.sha256(line).hexdigest() != digest:
            raise FileChanged(f"{row.place} is not the trajectory that was shown")
        with self._labelling:  # file and index in the same order
            set_label(self._index.runs[row.file.run], trajectory, success)
            self._index.put_hand_label(row.file.run, trajectory.trajectory_id, success)

    def _selected(self, query: Mapping[str, str]) -> tuple[Selection, list[Row]]:
        self._index.refresh()
        selection = Selection.from_query(query)
        return selection, select(self._index, selection)

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

    The file has a lock of its own, so that two viewers do not lose each other's labels.

    Raises:
        DataError: the trajectory is no whole attempt, or another viewer holds the file.
        OSError: the folder cannot be written.
    """
    if success is not None and not trajectory.status.finished:
        raise DataError(
            f"{trajectory.trajectory_id}: ended by {trajectory.status.value}, which is no attempt to judge; "
            "an outcome model is not trained on it"
        )
    path = run / HAND_LABELS
    try:
        with FileLock(path.with_name(f".{path.name}.lock"), timeout=_LOCK_TIMEOUT_S):
            kept: list[bytes] = []
            for line in path.read_bytes().removesuffix(b"\n").split(b"\n") if path.is_file() else ():
                try:
                    is_own = parse(JudgedExample, line).trajectory_id == trajectory.trajectory_id
                except ValueError:  # no example: it stays
                    is_own = False
                if not is_own and (line or kept):
                    kept.append(line + b"\n")
            if success is not None:
                kept.append(dump_line(judged(trajectory, success).example))
            with atomic_path(path) as temporary:
                temporary.write_bytes(b"".join(kept))
    except Timeout:
        raise DataError(f"{path}: another viewer is writing it; try again") from None
