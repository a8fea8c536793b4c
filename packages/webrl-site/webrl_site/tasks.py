"""The tasks of your own site: instruction files as `Task`s, and what a task's checks are.

API: `training_tasks(config)`, `heldout_tasks(config)`, `checks_of(task)`, `read_instructions(path)`.

A Task's site is `web.NAME`, its start_url absolute; `extra["checks"]` holds the checks as the file has them.
"""

from __future__ import annotations

import json
import random
from collections.abc import Iterable, Iterator, Sequence
from pathlib import Path
from typing import Annotated, Any, Self
from urllib.parse import urlsplit

from pydantic import AfterValidator, BaseModel, ConfigDict, Field, ValidationError, model_validator

from webrl.config import RolloutConfig, RunConfig
from webrl.errors import DataError, UsageError, problem_text
from webrl.runs.store import open_input, read_json, read_lines
from webrl.types import Lineage, Task
from webrl_site.settings import PageAddress, Pattern

PREFIX = "web."
CHECKS = "checks"
"""Key in the `extra` of a task."""
KINDS = ("url", "text", "answer", "javascript", "http", "sql", "verify")
_WHERE_USED = {
    "at": ("text", "javascript"),
    "path": ("http",),
    "equals": ("javascript", "http", "sql"),
    "absent": ("url", "text", "answer"),
}


def _is_path(path: str) -> str:
    import jsonpath

    try:
        jsonpath.compile(path)
    except jsonpath.JSONPathError as error:
        raise ValueError(f"not a JSON path such as $.notes[0].title: {error}".splitlines()[0]) from None
    return path


_Text = Annotated[str, Field(min_length=1)]


class Check(BaseModel):
    """One condition on the end of an episode; exactly one of the kinds is given.

    Example: `{"sql": "SELECT done FROM notes WHERE title = 'Buy milk'", "equals": 1}`
    """

    model_config = ConfigDict(extra="forbid", frozen=True, strict=True, allow_inf_nan=False)

    url: Pattern | None = None
    """Regular expression that the active tab's address contains."""
    text: _Text | None = None
    """Text that the page shows (runs of white space count as one space)."""
    answer: Pattern | None = None
    """Regular expression that the agent's message contains, case aside."""
    javascript: _Text | None = None
    """Expression on the page, may be a promise; holds if true, or `equals`."""
    http: Annotated[PageAddress, Field(min_length=1)] | None = None
    """Address to request with the agent's cookies; holds if the response is 2xx, or by `path` and `equals`."""
    sql: _Text | None = None
    """Query on `rollout.web.database`; holds if its first value is true, or `equals`."""
    verify: _Text | None = None
    """`{check}` of the command `rollout.web.verify`; holds if that program prints `pass`."""
    at: PageAddress | None = None
    """text, javascript: the page to open for it; None: the page that the agent ended on."""
    path: Annotated[str, AfterValidator(_is_path)] | None = None
    """http: JSON path (RFC 9535) of values in the answer; holds if there are any, or they are `equals`."""
    equals: Any = None
    """What the value is; of a `path` with several values the list of them."""
    absent: bool = False
    """url, text, answer: holds if there is no such thing."""

    @model_validator(mode="after")
    def _one_kind(self) -> Self:
        kinds = [kind for kind in KINDS if getattr(self, kind) is not None]
        if len(kinds) != 1:
            raise ValueError(f"a check has one of {', '.join(KINDS)}; this one has {' and '.join(kinds) or 'none'}")
        for option, users in _WHERE_USED.items():
            if option in self.model_fields_set and kinds[0] not in users:
                raise ValueError(f"{option!r} belongs to {' or '.join(users)}, not to {kinds[0]}")
        if self.http and "equals" in self.model_fields_set and self.path is None:
            raise ValueError("'equals' of an http check needs 'path', the value's place in the answer")
        return self

    @property
    def kind(self) -> str:
        """Which of `KINDS` it is."""
        return next(kind for kind in KINDS if getattr(self, kind) is not None)

    @property
    def has_value(self) -> bool:
        """Whether `equals` was given (null is a value)."""
        return "equals" in self.model_fields_set

    def to_json(self) -> dict[str, Any]:
        """As written in a file."""
        return self.model_dump(include=self.model_fields_set)


class Instruction(BaseModel):
    """One thing to do.

    Example: `{"id": "add-milk", "instruction": "Add a note 'Buy milk'.", "start": "/notes", "checks": [{"text":
    "Buy milk", "at": "/notes"}]}`
    """

    model_config = ConfigDict(extra="forbid", frozen=True, strict=True)

    id: Annotated[str, Field(pattern=r"^[\w.-]+$", max_length=100)]
    """Unique in all files of a run; None: the file's name and the line."""
    instruction: Annotated[str, Field(min_length=1)]
    """The instruction for the agent."""
    start: PageAddress | None = None
    """Start page, may be relative to the first of `rollout.web.start_urls`, which None is."""
    checks: Annotated[list[Check], Field(strict=True)] = []
    """All must hold; none: the outcome model judges."""
    where: str = Field("", exclude=True)
    """File and line that it comes from."""


def read_instructions(path: Path) -> list[Instruction]:
    """Return the instructions of a file: .jsonl, .json (a list), or .txt (one a line, `#` starts a comment).

    Raises:
        DataError: an entry is malformed (with file and line): an unknown key, an unknown kind of check, an empty
            instruction, an id that occurs twice.
    """
    known = [name for name in Instruction.model_fields if name != "where"]
    found = []
    for where, number, data in _entries(path):
        if not isinstance(data, dict):
            raise DataError(
                f"{where}: expected an object with 'instruction', found {json.dumps(data, default=str):.80}"
            )
        unknown = sorted(map(str, set(data) - set(known)))
        if unknown:
            raise DataError(f"{where}: unknown key {unknown[0]!r:.100}; known: {', '.join(known)}")
        if isinstance(text := data.get("instruction"), str):
            data = data | {"instruction": text.strip()}
        try:
            found.append(Instruction.model_validate({"id": f"{path.stem}-{number}"} | data | {"where": where}))
        except ValidationError as error:
            raise DataError(f"{where}: {problem_text(error.errors()[0])}") from None
    if not found:
        raise DataError(f"{path}: no instruction in it")
    _require_unique(found)
    return found


def _require_unique(instructions: Iterable[Instruction]) -> None:
    """Raises DataError if two have one id; both places are named."""
    seen: dict[str, str] = {}
    for instruction in instructions:
        if instruction.id in seen:
            raise DataError(f"{instruction.where}: id {instruction.id!r} is also that of {seen[instruction.id]}")
        seen[instruction.id] = instruction.where


def _entries(path: Path) -> Iterator[tuple[str, int, Any]]:
    """Yield (place, number, parsed entry)."""
    if path.suffix == ".jsonl":
        yield from ((f"{path}:{number}", number, data) for number, data in read_lines(path))
    elif path.suffix == ".json":
        data = read_json(path)
        if not isinstance(data, list):
            raise DataError(f"{path}: expected a list of instructions, found {type(data).__name__}")
        yield from ((f"{path}: entry {number}", number, item) for number, item in enumerate(data, 1))
    elif path.suffix == ".txt":
        with open_input(path) as file:
            try:
                text = file.read().decode("utf-8-sig")
            except UnicodeDecodeError as error:
                raise DataError(f"{path}: byte {error.start} is not UTF-8; save the file as UTF-8") from None
        for number, line in enumerate(text.split("\n"), 1):
            if line.strip() and not line.lstrip().startswith("#"):
                yield f"{path}:{number}", number, {"instruction": line.strip()}
    else:
        raise DataError(f"{path}: instructions are read from .jsonl, .json and .txt files")


def site_name(config: RolloutConfig) -> str:
    """The site as tasks name it."""
    return f"{PREFIX}{config.web.name}"


def training_tasks(config: RunConfig) -> list[Task]:
    """Tasks of phase 0: a seeded draw of `num_seed_tasks` from the training files.

    Raises:
        UsageError: no start page.
        DataError: a file that cannot be read or is not understood.
    """
    tasks = _tasks(config.rollout, config.rollout.web.train_files, "train")
    random.Random(config.seed).shuffle(tasks)
    return tasks[: config.tasks.num_seed_tasks]


def heldout_tasks(config: RunConfig) -> list[Task]:
    """All held-out instructions, in file order. Raises as `training_tasks`."""
    return _tasks(config.rollout, config.rollout.web.heldout_files, "eval")


def has_checks(task: Task) -> bool:
    """Whether checks measure its success; else the outcome model judges."""
    return bool(task.extra.get(CHECKS))


def checks_of(task: Task) -> list[Check]:
    """What its success is measured by; [] where the outcome model judges."""
    return [Check.model_validate(data) for data in task.extra.get(CHECKS, ())]


def require_start(config: RolloutConfig) -> None:
    """Raises UsageError without a start page."""
    if not config.web.start_urls:
        raise UsageError("tasks.suite=web needs start pages: rollout.web.start_urls=[http://127.0.0.1:5000/]")


def task_at(config: RolloutConfig, task_id: str, url: str, instruction: str) -> Task:
    """A task without checks at a page of the site."""
    return Task(
        task_id=task_id,
        site=site_name(config),
        instruction=instruction,
        start_url=url,
        lineage=Lineage(strategy="seed"),
    )


def _tasks(config: RolloutConfig, files: Sequence[Path], split: str) -> list[Task]:
    """Return the instructions of some files as tasks. Raises DataError if one cannot be played on this site."""
    require_start(config)
    web, name = config.web, site_name(config)
    instructions = [instruction for path in files for instruction in read_instructions(path)]
    _require_unique(instructions)
    tasks = []
    for instruction in instructions:
        where, checks = instruction.where, instruction.checks
        start = web.absolute(instruction.start or "")
        parts = urlsplit(start)
        if parts.scheme not in ("http", "https"):
            raise DataError(f"{where}: start {instruction.start!r} is not a web address")
        allowed = {*web.hosts, *(host.lower() for host in config.allowed_hosts)}
        if not {parts.netloc.lower(), parts.hostname or "", "*"} & allowed:
            raise DataError(
                f"{where}: start {instruction.start!r} is outside the site's hosts {', '.join(web.hosts)}; "
                "add it to rollout.web.start_urls or rollout.allowed_hosts"
            )
        if web.database is None and any(check.sql for check in checks):
            raise DataError(f"{where}: a sql check needs rollout.web.database=sqlite:///FILE")
        if not web.verify and any(check.verify for check in checks):
            raise DataError(f"{where}: a verify check needs rollout.web.verify, the program that answers it")
        task = Task(
            task_id=f"{name}.{instruction.id}",
            site=name,
            instruction=instruction.instruction,
            start_url=start,
            split=split,
            extra={CHECKS: [check.to_json() for check in checks]} if checks else {},
        )
        tasks.append(task)
    return tasks
