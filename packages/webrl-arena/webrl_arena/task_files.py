"""Task files of the arena: WebArena's format, as JSON lines, plus the logged-in user and one more evaluator.

API: `read_task_file(path, split) -> list[Task]`, `as_task(entry, where, split)`. Raises DataError with file and line.

An entry has `task_id`, `sites` (of `webrl_arena.world.sites.SITES`), `start_url` and `intent`; `login` is a
customer's e-mail address or `staff` (without one: staff on `shop_admin`, else no one). `eval`, if there is one, is
WebArena's: its `eval_types` are `string_match` (`exact_match`, `must_include`), `url_match`, `program_html`, and
`database`, a list of `{"query": …, "equals": …, "site": …}` that are run on the session's SQLite database (the
shop's, if no site is named).
"""

from __future__ import annotations

from pathlib import Path
from typing import Any

from webrl.errors import DataError
from webrl.runs.store import read_lines
from webrl.types import Lineage, Task
from webrl_arena.world.sites import SITES, starts_at_a_site
from webrl_site.sites import placeholders

PREFIX = "arena."
EVAL_TYPES = ("string_match", "url_match", "program_html", "database")
_REQUIRED = ("task_id", "sites", "start_url", "intent")
_REFERENCES = ("exact_match", "must_include")


def read_task_file(path: Path, split: str) -> list[Task]:
    """Read the tasks of a file, in its order."""
    tasks: dict[str, Task] = {}
    for number, entry in read_lines(path):
        task = as_task(entry, f"{path}:{number}", split)
        if task.task_id in tasks:
            raise DataError(f"{path}:{number}: a second task_id {entry['task_id']!r}; each must be another")
        tasks[task.task_id] = task
    if not tasks:
        raise DataError(f"{path}: no task in it")
    return list(tasks.values())


def as_task(entry: Any, where: str, split: str) -> Task:
    """Make the task of one entry."""
    if not isinstance(entry, dict):
        raise DataError(f"{where} is not an object: {entry!r:.80}")
    missing = [key for key in _REQUIRED if not entry.get(key)]
    if missing:
        raise DataError(f"{where}: missing {', '.join(map(repr, missing))}; it has {', '.join(entry) or 'nothing'}")
    names = entry["sites"]
    if not isinstance(names, list) or not all(name in tuple(SITES) for name in names):
        raise DataError(f"{where}: unknown site in `sites` {names!r:.80}; known: {', '.join(SITES)}")
    for key in ("start_url", "intent"):
        if not isinstance(entry[key], str):
            raise DataError(f"{where}: `{key}` must be a text, found {entry[key]!r:.80}")
    unknown = sorted(placeholders([entry["start_url"], entry.get("eval")]) - set(SITES))
    if unknown:
        raise DataError(f"{where}: __{unknown[0].upper()}__ is no site; known: {', '.join(SITES)}")
    if not starts_at_a_site(entry["start_url"]):
        raise DataError(f"{where}: start_url {entry['start_url']!r:.80} must begin with a site, such as __SHOP__")
    if not isinstance(entry.get("login"), str | None):
        raise DataError(f"{where}: `login` is a customer's e-mail address or staff, found {entry['login']!r:.80}")
    if "eval" in entry:
        _check_eval(entry["eval"], where)
    kept = {key: entry[key] for key in ("login", "eval") if key in entry}
    kept.setdefault("login", "staff" if "shop_admin" in names else None)
    return Task(
        task_id=f"{PREFIX}{entry['task_id']}",
        site=f"{PREFIX}{'+'.join(names)}.{entry.get('intent_template_id', 'task')}",
        instruction=entry["intent"],
        start_url=entry["start_url"],
        split=split,
        lineage=Lineage(strategy="seed"),
        extra={"arena": kept},
    )


def _check_eval(data: Any, where: str) -> None:
    if not isinstance(data, dict) or not isinstance(data.get("eval_types"), list) or not data["eval_types"]:
        raise DataError(f"{where}: `eval` must be an object with `eval_types`, found {data!r:.80}")
    for kind in data["eval_types"]:
        if kind not in EVAL_TYPES:
            raise DataError(f"{where}: unknown eval type {kind!r}; known: {', '.join(EVAL_TYPES)}")
        if problem := _problem(kind, data):
            raise DataError(f"{where}: eval type {kind}: {problem}")


def _problem(kind: str, data: dict[str, Any]) -> str:
    """Return what is wrong with the part of an `eval` that an evaluator reads; "" if nothing is."""
    match kind:
        case "string_match":
            references = data.get("reference_answers")
            if not isinstance(references, dict) or not references:
                return f"`reference_answers` must be an object, found {references!r:.80}"
            return _contents_problem(references)
        case "url_match":
            if not isinstance(data.get("reference_url"), str) or not data["reference_url"]:
                return f"`reference_url` must be an address, found {data.get('reference_url')!r:.80}"
            rule = data.get("url_note", "GOLD in PRED")
            return "" if rule == "GOLD in PRED" else f"unknown `url_note` {rule!r:.80}; known: 'GOLD in PRED'"
    entries = data.get(kind)
    if not isinstance(entries, list) or not entries:
        return f"`{kind}` must be a list that is not empty, found {entries!r:.80}"
    check = _target_problem if kind == "program_html" else _query_problem
    return next(filter(None, map(check, entries)), "")


def _target_problem(target: Any) -> str:
    if not isinstance(target, dict) or not {"url", "locator", "required_contents"} <= target.keys():
        return f"a target needs url, locator and required_contents, found {target!r:.80}"
    if not isinstance(target["url"], str) or not isinstance(target["locator"], str):
        return f"url and locator must be texts, found {target!r:.80}"
    locator = target["locator"].strip()
    if target["url"].startswith("func") or not (not locator or locator.startswith(("document.", "[...document."))):
        return f"functions of WebArena's own sites are not known here: {target!r:.80}"
    contents = target["required_contents"]
    if not isinstance(contents, dict) or len(contents) != 1:
        return f"required_contents needs either exact_match or must_include, found {contents!r:.80}"
    return _contents_problem(contents)


def _contents_problem(contents: dict[str, Any]) -> str:
    for key, value in contents.items():
        if key not in _REFERENCES:
            return f"{key!r} is not known here; known: {', '.join(_REFERENCES)} (nothing asks a language model)"
        texts = [value] if key == "exact_match" else value
        if not isinstance(texts, list) or not texts or not all(isinstance(t, str) and t.strip() for t in texts):
            kind = "a text" if key == "exact_match" else "a list of texts"
            return f"{key} must be {kind}, none of them empty, found {value!r:.80}"
    return ""


def _query_problem(query: Any) -> str:
    if not isinstance(query, dict) or not isinstance(query.get("query"), str) or "equals" not in query:
        return f"each needs a query and what it equals, found {query!r:.80}"
    if query.get("site", "shop") not in tuple(SITES):  # not `in SITES`: the value may be a list, which has no hash
        return f"unknown site {query['site']!r:.80}; known: {', '.join(SITES)}"
    if not isinstance(query["equals"], str | int | float | None):
        return f"a query finds one value, so equals is a text, a number or null, found {query['equals']!r:.80}"
    return ""
