"""WebArena-Verified: its 812 tasks on the same sites, scored by its own program on what an episode leaves behind.

API: `verified_tasks(config)`, `is_verified(task)`, `ANSWER_FORMAT`; `evidence = Evidence(config, task)`,
`evidence.profile_options`, `await evidence.score(message, urls)`, `evidence.drop()`.

The program (`webarena-verified eval-tasks`) wants the agent's answer as JSON and the episode's network traffic as a HAR
file, and asks no site. It pins other versions of what webrl uses, so it is run in an environment of its own.
"""

from __future__ import annotations

import asyncio
import json
import logging
import re
import shutil
import subprocess
import tempfile
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from webrl.config import RolloutConfig
from webrl.errors import DataError, UsageError
from webrl.rollouts.interface import Score
from webrl.runs.store import read_json, write_json, write_text
from webrl.types import Task
from webrl_site.sites import placeholders
from webrl_webarena.settings import WebArenaConfig
from webrl_webarena.sites import SITES
from webrl_webarena.task_files import check_sites

logger = logging.getLogger(__name__)

ANSWER_FORMAT = """

When you are done, answer with one JSON object and nothing else:
{"task_type": "RETRIEVE", "status": "SUCCESS", "retrieved_data": ["..."], "error_details": null}
task_type is RETRIEVE (data was asked for), MUTATE (something was to be changed) or NAVIGATE (a page was to be opened).
status is SUCCESS, NOT_FOUND_ERROR, ACTION_NOT_ALLOWED_ERROR, PERMISSION_DENIED_ERROR, DATA_VALIDATION_ERROR or
UNKNOWN_ERROR. retrieved_data is a list for RETRIEVE, even of one item, else null; error_details says why a status is
not SUCCESS."""
_KEYS = {
    "sites", "task_id", "intent_template_id", "start_urls", "intent", "intent_template", "instantiation_dict", "eval",
    "revision",
}  # fmt: skip
_EVALUATORS = ("AgentResponseEvaluator", "NetworkEventEvaluator")
# What its evaluators look at; pictures, styles and scripts are none of it.
_LOOKED_AT = re.compile(r"^(?!.*\.(?:css|js|png|jpe?g|gif|svg|woff2?|ttf|ico|webp)(?:[?#]|$))", re.IGNORECASE)
_VERDICTS = {"success": 1.0, "failure": 0.0, "partial_match": 0.0}


def verified_tasks(config: RolloutConfig) -> list[Task]:
    """The tasks of `rollout.webarena.verified.tasks`, in file order.

    Raises:
        UsageError: no file is configured.
        DataError: it cannot be read or is not understood: a key or an evaluator of no known kind, an unknown site.
    """
    path = config.webarena.verified.tasks
    if path is None:
        raise UsageError(
            "tasks.suite=webarena_verified needs rollout.webarena.verified.tasks=FILE; its program writes the file: "
            "`uvx webarena-verified dataset-get --output FILE`, or of a subset `subset-export`"
        )
    data = read_json(path)
    if not isinstance(data, list) or not data:
        raise DataError(f"{path}: expected a list of tasks, found {json.dumps(data):.80}")
    return [_task(item, f"{path}: task {number}") for number, item in enumerate(data)]


def is_verified(task: Task) -> bool:
    """Whether its score is that of WebArena-Verified's program."""
    return "evaluators" in task.extra.get("webarena", {})


def require_scorer(config: WebArenaConfig) -> None:
    """Raises UsageError where `rollout.webarena.verified.command` is no program."""
    program = config.verified.command[0]
    if shutil.which(program) is None:
        raise UsageError(
            f"rollout.webarena.verified.command: there is no program {program!r}; it comes with `pip install "
            "webarena-verified` in an environment of its own, or write [uvx, webarena-verified]"
        )


def _task(data: Any, where: str) -> Task:
    if not isinstance(data, dict) or data.keys() != _KEYS:
        odd = sorted(data.keys() ^ _KEYS) if isinstance(data, dict) else [f"{data!r:.80}"]
        raise DataError(f"{where}: not a task of WebArena-Verified: missing or unknown {', '.join(odd)}")
    where = f"{where} (task_id {data['task_id']!r})"
    names, starts, intent = check_sites(data["sites"], where), data["start_urls"], data["intent"]
    if not isinstance(starts, list) or not starts or not all(isinstance(url, str) for url in starts):
        raise DataError(f"{where}: `start_urls` must be a list of addresses, found {json.dumps(starts):.80}")
    if type(data["task_id"]) is not int or not isinstance(intent, str) or not intent.strip():
        raise DataError(f"{where}: `task_id` is a number and `intent` a text; found {json.dumps(intent):.80}")
    evaluators = data["eval"] if isinstance(data["eval"], list) else [data["eval"]]
    known = [isinstance(each, dict) and each.get("evaluator") in _EVALUATORS for each in evaluators]
    if not known or not all(known):
        raise DataError(f"{where}: evaluator {json.dumps(evaluators):.100}; known: {', '.join(_EVALUATORS)}")
    if unlisted := placeholders(starts) - set(names) or placeholders(evaluators) & set(SITES) - set(names):
        raise DataError(f"{where}: `sites` {names} do not list {', '.join(sorted(unlisted))}")
    expected = [e["expected"] for e in evaluators if isinstance(e.get("expected"), dict)]
    wanted = str(next((each["task_type"] for each in expected if "task_type" in each), "?"))
    config = {
        "sites": names,
        "task_id": data["task_id"],
        "intent": intent,
        "revision": data["revision"],
        "start_url": " |AND| ".join(starts),
        "geolocation": None,
        # The program has its own copy of the task; what is kept here is for tables.
        "eval": {"eval_types": [f"verified_{wanted.lower()}"]},
        "evaluators": [evaluator["evaluator"] for evaluator in evaluators],
    }
    return Task(
        task_id=f"webarena_verified.{data['task_id']}",
        site="+".join(sorted(names)),
        start_url=" |AND| ".join(starts),
        split="eval",
        extra={"webarena": config},
    )


class Evidence:
    """What one episode leaves for the program; in a folder of its own until it is scored."""

    def __init__(self, config: WebArenaConfig, task: Task) -> None:
        self._config = config
        self._number = int(task.extra["webarena"]["task_id"])
        self._task_id = task.task_id
        kept = config.verified.folder
        kept.mkdir(parents=True, exist_ok=True, mode=0o700)  # headers hold the log-in's cookies
        self._folder = Path(tempfile.mkdtemp(prefix=f".{self._number}-", dir=kept))
        self._files = self._folder / str(self._number)
        self._files.mkdir()

    @property
    def profile_options(self) -> dict[str, Any]:
        """Of the browser profile whose traffic is taken down; the file is written when the profile is closed."""
        return {"record_har_path": str(self._files / "network.har"), "record_har_url_filter": _LOOKED_AT}

    async def score(self, message: str | None, urls: Mapping[str, str]) -> Score:
        """The program's verdict; call it once the profile is closed. The files are kept as `verified.folder`/NUMBER.

        Those of an earlier attempt go first: what is there is always this one's, or nothing where it has no verdict.

        Args:
            message: the agent's answer; None if it was stopped.
            urls: base URL by site, as the episode had them.
        """
        kept = self._folder.parent / str(self._number)
        shutil.rmtree(kept, ignore_errors=True)
        if message is None:
            return Score(0.0, "the agent gave no answer")
        if not (self._files / "network.har").is_file():
            return Score(None, "the episode's network traffic was not written")
        write_text(self._files / "agent_response.json", message)
        sites = {f"__{name.upper()}__": {"urls": [url]} for name, url in urls.items()}
        write_json(self._files / "run_config.json", {"environments": sites})
        options = ["eval-tasks", "--task-ids", str(self._number), "--output-dir", str(self._folder)]
        command = [*self._config.verified.command, *options]
        timeout_s = self._config.validate_timeout_s
        verdict = self._files / "eval_result.json"
        try:
            done = await asyncio.to_thread(
                subprocess.run, command, stdin=subprocess.DEVNULL, capture_output=True, text=True, timeout=timeout_s
            )
            printed = (done.stderr or done.stdout).strip()[-300:] or "it said nothing"
            problem = f"it ended with {done.returncode}: {printed}"
        except (OSError, subprocess.SubprocessError) as error:
            problem = str(error)
        if not verdict.is_file():
            return Score(None, f"{' '.join(command[:2])} wrote no verdict: {problem}")
        shutil.rmtree(kept, ignore_errors=True)  # another evaluation may have left it since
        self._files.rename(kept)
        try:
            found = read_json(kept / verdict.name)
            status = found["status"]
            failed = [e for e in found.get("evaluators_results", ()) if e.get("status") != "success"]
        except (DataError, LookupError, TypeError) as error:
            return Score(None, f"{self._task_id}: webarena-verified wrote no verdict: {error!r}"[:500])
        if status not in _VERDICTS:
            said = found.get("error_msg") if status == "error" else f"{status!r} in {verdict.name} is not understood"
            return Score(None, f"{self._task_id}: webarena-verified: {said}"[:500])
        said = [" ".join(a.get("assertion_msgs") or ()) for e in failed for a in e.get("assertions") or ()]
        names = ", ".join(str(e.get("evaluator_name")) for e in failed)
        return Score(_VERDICTS[status], f"{names}: {'; '.join(said)}"[:500] if failed else "")

    def drop(self) -> None:
        """Remove what was not kept."""
        shutil.rmtree(self._folder, ignore_errors=True)
