"""A small stand-in for the Hugging Face Hub on loopback: what huggingface_hub's client asks for when it pushes a model.

Repositories are made, files come by commit (small ones) and by git-lfs's batch protocol (weights). It has two owners.
"""

import base64
import contextlib
import hashlib
import json
import socket
from collections.abc import Iterator
from dataclasses import dataclass, field
from typing import Any

from app_server import serving
from flask import Flask, request

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
    hub, app = Hub(), Flask(__name__)

    def refuse(status: int, text: str, **more: str) -> Any:
        return {"error": text} | more, status, {"X-Error-Message": text}

    @app.before_request
    def _check() -> Any:
        if request.endpoint == "take":
            return None
        hub.asked.append(f"{request.method} {request.path}")
        if request.headers.get("Authorization") != f"Bearer {TOKEN}":
            return refuse(401, "Invalid credentials in Authorization header")
        repo = (request.view_args or {}).get("repo", "")
        if request.method == "POST" and repo and not (repo.startswith(f"{OWNER}/") and repo in hub.repos):
            return refuse(403, f"You don't have the rights to change {repo}")
        return None

    @app.errorhandler(404)
    def _unknown(_: Any = None) -> Any:
        answer, status, headers = refuse(404, "Repository not found")
        return answer, status, headers | {"X-Error-Code": "RepoNotFound"}

    @app.post("/api/validate-yaml")
    def validate() -> Any:
        return {"errors": [], "warnings": []}

    @app.post("/api/repos/create")
    def create() -> Any:
        wanted = request.get_json(force=True)
        repo = f"{wanted['organization']}/{wanted['name']}"
        if repo == "ann/gone":
            request.environ["werkzeug.socket"].shutdown(socket.SHUT_RDWR)  # as where the network breaks
        elif wanted["organization"] != OWNER:
            return refuse(403, f"You don't have the rights to create a model under {wanted['organization']}")
        elif repo in hub.repos:
            return refuse(409, "You already created this model repo", url=f"{hub.url}/{repo}")
        else:
            hub.repos[repo] = {}
            hub.private[repo] = wanted.get("visibility") == "private" or bool(wanted.get("private"))
        return {"url": f"{hub.url}/{repo}"}

    @app.get("/api/models/<path:repo>")
    @app.get("/api/models/<path:repo>/revision/main")
    def describe(repo: str) -> Any:
        if repo not in hub.repos:
            return _unknown()
        return {"id": repo, "private": hub.private[repo], "sha": "0" * 40, "siblings": []}

    @app.get("/api/models/<path:repo>/tree/main")
    def tree(repo: str) -> Any:
        files = hub.repos.get(repo, {})
        return [{"type": "file", "path": n, "size": len(d), "oid": _oid(d)} for n, d in files.items()]

    @app.post("/api/models/<path:repo>/preupload/main")
    def preupload(repo: str) -> Any:
        here = hub.repos[repo]
        files = [
            {
                "path": name, "shouldIgnore": False,
                "uploadMode": "lfs" if name.endswith(".safetensors") else "regular",
                **({"oid": _oid(here[name])} if name in here else {}),
            }
            for name in (file["path"] for file in request.get_json(force=True)["files"])
        ]  # fmt: skip
        return {"files": files}

    @app.post("/<path:repo>.git/info/lfs/objects/batch")
    def batch(repo: str) -> Any:
        objects = []
        for one in request.get_json(force=True)["objects"]:
            upload = {"upload": {"href": f"{hub.url}/lfs/{one['oid']}"}}
            objects.append(one if one["oid"] in hub.objects else one | {"actions": upload})
        return {"transfer": "basic", "objects": objects}

    @app.put("/lfs/<oid>")
    def take(oid: str) -> Any:
        hub.objects[hashlib.sha256(request.get_data()).hexdigest()] = request.get_data()
        hub.num_puts += 1
        return {}

    @app.post("/api/models/<path:repo>/commit/main")
    def commit(repo: str) -> Any:
        if hub.fails_commits:
            hub.fails_commits -= 1
            return refuse(403, "You have used up your storage")
        files = hub.repos[repo]
        for line in map(json.loads, request.get_data().splitlines()):
            value = line["value"]
            if line["key"] == "header":
                hub.commits.append(value["summary"])
            elif line["key"] == "file":
                files[value["path"]] = base64.b64decode(value["content"])
            elif line["key"] == "lfsFile":
                files[value["path"]] = hub.objects[value["oid"]]
            elif line["key"] == "deletedFile":
                del files[value["path"]]
        number = f"{len(hub.commits):040d}"
        return {"commitUrl": f"{hub.url}/{repo}/commit/{number}", "commitOid": number}

    with serving(app) as hub.url:
        yield hub


def _oid(data: bytes) -> str:
    return hashlib.sha1(b"blob %d\0" % len(data) + data, usedforsecurity=False).hexdigest()
