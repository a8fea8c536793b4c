"""`from webrl import …`: light to import, and every example of docs/python.md does what the page says."""

import contextlib
import io
import re
import subprocess
import sys
from pathlib import Path

import pytest

import webrl
from webrl.errors import DataError, UsageError

PAGE = Path(__file__).parent.parent / "docs" / "python.md"
CHAPTERS = {
    chapter.splitlines()[0]: re.findall(r"^```python\n(.*?)^```(?:\n```text\n(.*?)^```)?", chapter, re.M | re.S)
    for chapter in PAGE.read_text(encoding="utf-8").split("\n## ")[1:]
}


def test_importing_webrl_imports_nothing_heavy():
    code = "import sys, webrl; dir(webrl); print({'torch', 'playwright', 'pydantic', 'numpy'} & set(sys.modules))"
    light = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    assert light.stdout.strip() == "set()"
    code = (
        "import sys; from webrl import Task, Trajectory, load_actor, load_config, make_env, run; load_config('demo'); "
        "print({'torch', 'playwright', 'transformers', 'matplotlib'} & set(sys.modules))"
    )
    light = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    assert light.stdout.strip() == "set()"


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
    with pytest.raises(UsageError, match="no config 'dem'; shipped ones: demo"):
        webrl.load_config("dem")


@pytest.mark.browser
@pytest.mark.parametrize(
    "chapter", [pytest.param(name, marks=[pytest.mark.slow] * (name == "A run")) for name in CHAPTERS]
)
def test_the_pages_examples_print_what_it_says(chapter, tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    names: dict[str, object] = {}
    assert CHAPTERS[chapter]
    for code, printed in CHAPTERS[chapter]:
        out = io.StringIO()
        with contextlib.redirect_stdout(out):
            exec(compile(code, str(PAGE), "exec"), names)
        assert out.getvalue() == printed, code
