"""A small stand-in for the Hugging Face Hub on loopback: what huggingface_hub's client asks for when it pushes a model.

Repositories are made, files come by commit (small ones) and by git-lfs's batch protocol (weights). It has two owners.
"""

import base64
import contextlib
import hashlib
import json
import re
import threading
from collections.abc import Iterator
from dataclasses import dataclass, field
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from typing import Any
from urllib.parse import unquote, urlsplit

TOKEN = "hf_PLANTEDtokenOfTheStandIn"
OWNER = "ann"


@dataclass
class Hub:
    """What it holds and what it was asked."""

    url: str = ""
    repos: dict[str, dict[str, bytes]] = field(default_factory=lambda: {"bob/agent": {}})
    private: dict[str, bool] = field(default_factory=lambda: {"bob/agent": False})
    commits: list[str] = field(default_factory=list)
    objects: dict[str, bytes] = field(default_factory=dict)
    asked: list[str] = field(default_factory=list)
    num_puts: int = 0
    fails_commits: int = 0
    """So many commits are refused with 403, as where a quota is used up."""


@contextlib.contextmanager
def stand_in() -> Iterator[Hub]:
    """A Hub that runs as long as the block."""
    hub = Hub()
    handler = type("Handler", (_Handler,), {"hub": hub})
    server = ThreadingHTTPServer(("127.0.0.1", 0), handler)
    hub.url = f"http://127.0.0.1:{server.server_port}"
    thread = threading.Thread(target=server.serve_forever, daemon=True)
    thread.start()
    try:
        yield hub
    finally:
        server.shutdown()
        server.server_close()
        thread.join()


class _Handler(BaseHTTPRequestHandler):
    hub: Hub
    protocol_version = "HTTP/1.1"

    def log_message(self, *args: Any) -> None:
        pass

    def do_GET(self) -> None:
        self._answer(b"")

    def do_POST(self) -> None:
        self._answer(self._body())

    def do_PUT(self) -> None:
        data = self._body()
        self.hub.objects[hashlib.sha256(data).hexdigest()] = data
        self.hub.num_puts += 1
        self._send(200, {})

    def _body(self) -> bytes:
        if self.headers.get("Transfer-Encoding") == "chunked":
            parts = []
            while size := int(self.rfile.readline(), 16):
                parts.append(self.rfile.read(size))
                self.rfile.readline()
            self.rfile.readline()
            return b"".join(parts)
        return self.rfile.read(int(self.headers.get("Content-Length", 0)))

    def _answer(self, body: bytes) -> None:
        path = unquote(urlsplit(self.path).path)
        self.hub.asked.append(f"{self.command} {path}")
        if self.headers.get("Authorization") != f"Bearer {TOKEN}":
            self._send(401, {"error": "Invalid credentials in Authorization header"})
        elif path == "/api/repos/create":
            self._create(json.loads(body))
        elif path == "/api/validate-yaml":
            self._send(200, {"errors": [], "warnings": []})
        elif found := re.fullmatch(r"/api/models/([\w-]+/[\w.-]+)/preupload/main", path):
            self._for_owner(found[1], lambda: self._preupload(found[1], json.loads(body)))
        elif found := re.fullmatch(r"/api/models/([\w-]+/[\w.-]+)/commit/main", path):
            self._for_owner(found[1], lambda: self._commit(found[1], body))
        elif found := re.fullmatch(r"/([\w-]+/[\w.-]+)\.git/info/lfs/objects/batch", path):
            self._for_owner(found[1], lambda: self._batch(json.loads(body)))
        elif found := re.fullmatch(r"/api/models/([\w-]+/[\w.-]+)/tree/main", path):
            files = self.hub.repos.get(found[1], {})
            self._send(200, [{"type": "file", "path": n, "size": len(d), "oid": _oid(d)} for n, d in files.items()])
        elif (found := re.fullmatch(r"/api/models/([\w-]+/[\w.-]+)(/revision/main)?", path)) and found[
            1
        ] in self.hub.repos:
            self._send(200, {"id": found[1], "private": self.hub.private[found[1]], "sha": "0" * 40, "siblings": []})
        else:
            self._send(404, {"error": "Repository not found"}, {"X-Error-Code": "RepoNotFound"})

    def _for_owner(self, repo: str, answer: Any) -> None:
        if repo.startswith(f"{OWNER}/") and repo in self.hub.repos:
            answer()
        else:
            self._send(403, {"error": f"You don't have the rights to change {repo}"})

    def _create(self, wanted: dict[str, Any]) -> None:
        repo = f"{wanted['organization']}/{wanted['name']}"
        if repo == "ann/gone":
            self.close_connection = True  # as where the network breaks
        elif wanted["organization"] != OWNER:
            self._send(403, {"error": f"You don't have the rights to create a model under {wanted['organization']}"})
        elif repo in self.hub.repos:
            self._send(409, {"error": "You already created this model repo", "url": f"{self.hub.url}/{repo}"})
        else:
            self.hub.repos[repo] = {}
            self.hub.private[repo] = wanted.get("visibility") == "private" or bool(wanted.get("private"))
            self._send(200, {"url": f"{self.hub.url}/{repo}"})

    def _preupload(self, repo: str, wanted: dict[str, Any]) -> None:
        here = self.hub.repos[repo]
        files = [
            {
                "path": file["path"], "shouldIgnore": False,
                "uploadMode": "lfs" if file["path"].endswith(".safetensors") else "regular",
                **({"oid": _oid(here[file["path"]])} if file["path"] in here else {}),
            }
            for file in wanted["files"]
        ]  # fmt: skip
        self._send(200, {"files": files})

    def _batch(self, wanted: dict[str, Any]) -> None:
        objects = []
        for one in wanted["objects"]:
            upload = {"upload": {"href": f"{self.hub.url}/lfs/{one['oid']}"}}
            objects.append(one if one["oid"] in self.hub.objects else one | {"actions": upload})
        self._send(200, {"transfer": "basic", "objects": objects})

    def _commit(self, repo: str, body: bytes) -> None:
        if self.hub.fails_commits:
            self.hub.fails_commits -= 1
            self._send(403, {"error": "You have used up your storage"})
            return
        files = self.hub.repos[repo]
        for line in map(json.loads, body.splitlines()):
            value = line["value"]
            if line["key"] == "header":
                self.hub.commits.append(value["summary"])
            elif line["key"] == "file":
                files[value["path"]] = base64.b64decode(value["content"])
            elif line["key"] == "lfsFile":
                files[value["path"]] = self.hub.objects[value["oid"]]
            elif line["key"] == "deletedFile":
                del files[value["path"]]
        commit = f"{len(self.hub.commits):040d}"
        self._send(200, {"commitUrl": f"{self.hub.url}/{repo}/commit/{commit}", "commitOid": commit})

    def _send(self, status: int, data: Any, headers: dict[str, str] | None = None) -> None:
        body = json.dumps(data).encode()
        self.send_response(status)
        if status >= 400:
            self.send_header("X-Error-Message", data["error"])
        for name, value in {"Content-Type": "application/json", "Content-Length": len(body), **(headers or {})}.items():
            self.send_header(name, str(value))
        self.end_headers()
        self.wfile.write(body)


def _oid(data: bytes) -> str:
    return hashlib.sha1(b"blob %d\0" % len(data) + data, usedforsecurity=False).hexdigest()
