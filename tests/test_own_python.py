"""Processes of webrl's own import what their parent does, whatever lies in the working folder."""

import subprocess

import pytest

from webrl.runs.machine import own_environment, own_python

PROBE = """
import json, os
from webrl.runs.machine import restore_python_path
restore_python_path()
print(json.dumps([os.environ.get("PYTHONPATH"), "WEBRL_OUTER_PYTHONPATH" in os.environ]))
"""


@pytest.mark.parametrize(("outer", "shown"), [("/elsewhere", '["/elsewhere", false]'), (None, "[null, false]")])
def test_a_process_of_our_own_has_its_parents_modules_and_hands_on_what_the_user_set(
    tmp_path, monkeypatch, outer, shown
):
    theirs, here = tmp_path / "theirs", tmp_path / "here"
    for folder, text in ((theirs, PROBE), (here, "raise SystemExit('the working folder was searched')")):
        folder.mkdir()
        (folder / "probe_of_paths.py").write_text(text)
    (here / "json.py").write_text("raise SystemExit('the working folder was searched')")
    monkeypatch.syspath_prepend(theirs)
    monkeypatch.chdir(here)
    monkeypatch.delenv("PYTHONPATH", raising=False)
    if outer:
        monkeypatch.setenv("PYTHONPATH", outer)
    done = subprocess.run(
        own_python("probe_of_paths"), env=own_environment(), capture_output=True, text=True, check=False
    )
    assert done.stdout.strip() == shown, done.stderr
