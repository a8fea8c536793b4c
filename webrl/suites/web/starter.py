"""What `webrl init-site` writes: a config with comments, and first instructions that the pages found give.

API: `start_config(url, ...)` to look around with, `write_starter(out, found, ...)`.
"""

from __future__ import annotations

import json
import re
from collections import Counter
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any
from urllib.parse import urljoin, urlsplit

from webrl.config import RunConfig, validate_config
from webrl.runs.store import write_text
from webrl.suites.web.explore import Exploration, Seen

_TEMPLATE = """\
# {name}: a site of your own, written by `webrl init-site` (docs/own_site.md).
# Paths are relative to the folder in which webrl is started.
name: {name}
num_phases: 1
tasks:
  suite: web
  num_seed_tasks: 40
  num_eval_tasks: 40
  source: fixed                     # curriculum: new instructions from failures, once models.generator is a real one
rollout:
  web:
    name: {name}
    start_urls: [{url}]   # their hosts may be reached; more: rollout.allowed_hosts
    # The first instructions go to pages and read headings: write yours beside them, one JSON object a line:
    # {{"id": "a", "instruction": "…", "start": "/page", "checks": [{{"url": "regex"}}, {{"text": "…", "at": "/page"}},
    #   {{"javascript": "…", "equals": 1}}, {{"http": "/api", "path": "$.a"}}, {{"sql": "…", "equals": 1}}]}}
    # No checks: the outcome model judges. train_files: []: the generator proposes instructions from the site's pages.
    train_files: [{train}]
    heldout_files: [{heldout}]
    read_only: true                 # GET and HEAD alone leave the browser; false lets agents change the site
{login}
    # reset:                        # puts the site back before every rollout and evaluation; or command: [program]
    #   url: {origin}/reset
    #   headers: {{X-Reset-Token: "${{RESET_TOKEN}}"}}
    # database: sqlite:////path/to/site.db      # for sql checks, opened read-only
    forbidden_urls: ["(?i)log-?out|sign-?out"]
    max_actions_per_s: 20           # all environments together
  envs_per_worker: 4
  max_steps: 10
# The tiny models that ship with webrl have never seen such a site: they show that everything fits together, no more.
# Put your own here (docs/own_site.md): models: {{actor: FOLDER, orm: FOLDER, generator: FOLDER}}
{tiny}
# Pages found:
{pages}
# Forms found:
{forms}
"""
TINY_MODELS = """\
models: {dtype: float32, max_prompt_tokens: 1200}
generate: {tasks_per_prompt: 1, max_new_tokens: 48}
label: {max_prompt_tokens: 1200}
critic: {lr: 5.0e-5, batch_size: 16, max_tokens: 2048}
actor: {lr: 1.0e-4, batch_size: 16, max_tokens: 2048}"""
"""What the tiny models that ship with webrl are run and trained with."""
_HELDOUT_EVERY = 3
_MAX_SHOWN = 8


def choose_name(text: str) -> str:
    """A site's name from a host name or what the user wrote."""
    return re.sub(r"[^a-z0-9_-]+", "-", text.lower()).strip("-_") or "site"


def start_config(url: str, name: str, num_pages: int, login: Mapping[str, Any]) -> RunConfig:
    """Settings to look around with. Raises UsageError: no web address."""
    web = {"name": name, "start_urls": [url], "explore_pages": num_pages, "login": login}
    return validate_config({"tasks": {"suite": "web"}, "rollout": {"web": web}}, "init-site")


def guess_login(page: Seen, url: str, user: str, variable: str) -> dict[str, Any] | None:
    """The log-in through the form of a page that has one password field; None without such a form.

    Args:
        page: what one sees who opens `url` without being logged in; being let in there is the proof of the log-in if
            one is sent elsewhere before.
        variable: environment variable with the password.
    """
    form = next((form for form in page.forms if form.password), None)
    if form is None or form.password is None:
        return None
    name = next((field for field in form.fields if field != form.password), None)
    fields = {"fields": {name: user} if name else {}, "secrets": {form.password: f"${{{variable}}}"}}
    submit = {"submit": form.submit} if form.submit else {}
    proof = {"proof_url": url} if urlsplit(page.url).path != urlsplit(url).path else {}
    return {"form": {"url": page.url, **fields, **submit}, **proof}


def write_starter(out: Path, found: Exploration, url: str, name: str, login: Mapping[str, Any]) -> list[Path]:
    """Write the config and its instructions, of which every third is held out; gives the files, the config first."""
    instructions = starter_instructions(found.pages)
    heldout = instructions[_HELDOUT_EVERY - 1 :: _HELDOUT_EVERY]
    parts = ([entry for entry in instructions if entry not in heldout], heldout)
    written = {path: entries for path, entries in zip(starter_files(out), parts, strict=True) if entries}
    for path, entries in written.items():
        lines = "".join(json.dumps(entry, ensure_ascii=False) + "\n" for entry in entries)
        write_text(path, lines)
    named = [_quoted(str(path)) if path in written else "" for path in starter_files(out)]
    write_text(out, _config_text(found, url, name, named, _login(found, url, login)))
    return [out, *written]


def _config_text(found: Exploration, url: str, name: str, files: Sequence[str], login: str) -> str:
    """The config. What pages say of themselves stands in it as quoted ASCII, so that none of it is YAML."""
    pages = [f"#   {_quoted(page.url)} {_quoted(page.title)}" for page in found.pages]
    forms = {
        f"#   {form.method} {_quoted(form.action)}: {', '.join(map(_quoted, form.fields)) or 'no fields'}"
        for page in found.pages
        for form in page.forms
    }
    return _TEMPLATE.format(
        name=name,
        url=_quoted(url),
        origin=urljoin(url, "/").rstrip("/"),
        train=files[0],
        heldout=files[1],
        login=login,
        tiny=TINY_MODELS,
        pages="\n".join(pages),
        forms="\n".join(sorted(forms)[:_MAX_SHOWN]) or "#   none",
    )


def _login(found: Exploration, url: str, login: Mapping[str, Any]) -> str:
    """The log-in that was used, or as a comment a guess."""
    if login:
        return f"    login: {json.dumps(login)}"
    start = found.pages[0]
    guesses = (guess_login(page, url if page is start else page.url, "YOU", "PASSWORD") for page in found.pages)
    guess = next(filter(None, guesses), None)
    if guess is None:
        return '    # login: {form: {url: /login, fields: {User: ann}, secrets: {Password: "${PASSWORD}"}}}'
    return f"    # This looks like the log-in (init-site --user YOU tries it):\n    # login: {json.dumps(guess)}"


def _quoted(text: str) -> str:
    return json.dumps(text)


def _escape(text: str) -> str:
    """A regular expression for the text itself; unlike `re.escape` it leaves spaces and dashes readable."""
    return re.sub(r"[.^$*+?{}\[\]\\|()]", r"\\\g<0>", text)


def starter_files(out: Path) -> tuple[Path, Path]:
    """Instruction files beside a config: training, held out."""
    return out.with_name(f"{out.stem}_train.jsonl"), out.with_name(f"{out.stem}_heldout.jsonl")


def starter_instructions(pages: Sequence[Seen]) -> list[dict[str, Any]]:
    """Instructions with checks that need nothing but the pages: go there, and say what its heading is."""
    start = pages[0].url
    titles = Counter(page.link for page in pages)
    found: list[dict[str, Any]] = []
    for number, page in enumerate(pages):
        if page.link and titles[page.link] == 1 and page.url != start:
            there = {"url": f"^{_escape(page.url)}$"}
            found.append({"id": f"go-{number}", "instruction": f'Go to the page "{page.link}".', "checks": [there]})
            if page.heading:
                text = f'What is the main heading of the page "{page.link}"? Answer with its text.'
                check = {"answer": _escape(page.heading)}
                found.append({"id": f"heading-{number}", "instruction": text, "checks": [check]})
    if not found:
        text = "What is the title of this page? Answer with its text."
        checks = [{"answer": _escape(pages[0].title)}] if pages[0].title else []
        found.append({"id": "title", "instruction": text, "checks": checks})
    return found
