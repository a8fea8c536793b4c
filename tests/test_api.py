"""`from webrl import …`: light to import, and every example of docs/python.md does what the page says."""

import asyncio
import contextlib
import io
import re
from pathlib import Path

import pytest
from processes import python

import webrl
from webrl.config import RolloutConfig
from webrl.errors import BrowserError, DataError, UsageError
from webrl.rollouts.blocking import call

PAGE = Path(__file__).parent.parent / "docs" / "python.md"
CHAPTERS = {
    chapter.splitlines()[0]: re.findall(r"^```python\n(.*?)^```(?:\n```text\n(.*?)^```)?", chapter, re.M | re.S)
    for chapter in PAGE.read_text(encoding="utf-8").split("\n## ")[1:]
}
MARKS = {"A run": pytest.mark.slow, "BrowserGym's agents": pytest.mark.companion("serve")}


def test_importing_webrl_imports_nothing_heavy():
    code = (
        "import sys, webrl; dir(webrl); print({'torch', 'playwright', 'pydantic', 'numpy'} & set(sys.modules))\n"
        "from webrl import Task, Trajectory, load_actor, load_config, make_env, run; load_config('demo'); "
        "print({'torch', 'playwright', 'transformers', 'matplotlib', 'httpx'} & set(sys.modules))"
    )
    assert python("-c", code).stdout.split() == ["set()"] * 2


def test_what_webrl_offers_is_there_and_what_it_does_not_is_named():
    assert all(getattr(webrl, name) for name in webrl.__all__)
    assert set(webrl.__all__) <= set(dir(webrl))
    with pytest.raises(AttributeError, match="'mak_env'"):
        webrl.mak_env  # noqa: B018


def test_an_environment_is_refused_before_anything_starts():
    with pytest.raises(DataError, match=r"miniwob\.clik-test.*did you mean 'miniwob\.click-test'"):
        webrl.make_env("miniwob.clik-test")
    with pytest.raises(DataError, match="start_url"):
        webrl.make_env(webrl.Task(task_id="x", site="web"))
    with pytest.raises(UsageError, match=r"rollout\.env=openenv"):
        webrl.make_env("miniwob.click-test", RolloutConfig(env="openenv", urls=("http://127.0.0.1:1",)))
    with pytest.raises(UsageError, match=r"of another suite|'web' is not installed"):
        webrl.make_env("miniwob.click-test").reset(webrl.Task(task_id="x", site="web.notes"))
    with pytest.raises(UsageError, match=r"no config 'dem': there is no such file; shipped ones: .*\bdemo\b"):
        webrl.load_config("dem")


def test_a_program_with_a_loop_of_its_own_is_told_what_to_do(tmp_path):
    async def notebook():
        with pytest.raises(UsageError, match=r"to_thread\(run, config\)"):
            webrl.run(webrl.load_config("demo", [f"runs_dir={tmp_path}"]))

    asyncio.run(notebook())

    async def on_the_loop_of_environments():
        call(asyncio.sleep(0))

    with pytest.raises(BrowserError, match="would block the event loop that it runs on"):
        call(on_the_loop_of_environments())


@pytest.mark.browser
@pytest.mark.parametrize("chapter", [pytest.param(name, marks=MARKS.get(name, ())) for name in CHAPTERS])
def test_the_pages_examples_print_what_it_says(chapter, tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    names: dict[str, object] = {}
    assert CHAPTERS[chapter]
    for code, printed in CHAPTERS[chapter]:
        out = io.StringIO()
        with contextlib.redirect_stdout(out):
            exec(compile(code, str(PAGE), "exec"), names)
        assert out.getvalue() == printed, code
