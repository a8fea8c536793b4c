"""Two real processes and one run folder: the second is refused by name, and no death leaves the folder locked."""

import contextlib
import json
import re
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest
from processes import OF_THE_HUB, python

from webrl import cli
from webrl.errors import StageError
from webrl.runs import lock
from webrl.runs.lock import hold_output, hold_run, who_works_in

HOLD = """
import sys, time
from pathlib import Path
from webrl.runs.lock import hold_run
with hold_run(Path(sys.argv[1])):
    print("held", flush=True)
    time.sleep(600)
"""


@pytest.fixture(autouse=True)
def _short_patience(monkeypatch: pytest.MonkeyPatch) -> None:
    """A living holder keeps its locks, however long one tries."""
    monkeypatch.setattr(lock, "_PATIENCE_S", 0.5)


@contextlib.contextmanager
def holder(code: str, folder: Path) -> Iterator[subprocess.Popen[str]]:
    command = [sys.executable, "-c", code, str(folder)]
    with subprocess.Popen(command, stdout=subprocess.PIPE, text=True) as process:
        try:
            assert process.stdout is not None
            assert process.stdout.readline() == "held\n"
            yield process
        finally:
            process.kill()


def test_a_second_process_is_refused_and_told_who_has_the_run_folder(tmp_path: Path, webrl) -> None:
    run = tmp_path / "run"
    gen_tasks = ["gen-tasks", "demo", "--run", str(run), "trackers=[]"]  # which asks no model in phase 0
    with holder(HOLD, run) as first:
        (refused,) = webrl(1, *gen_tasks).err.splitlines()
        assert re.match(
            rf"webrl: run folder '{run}' is in use by `-c {run}` \(process {first.pid} on \S+, since 20\d\d-", refused
        )
        assert not (run / "config.yaml").exists()
        assert cli.main(["run", "demo", "--run", str(run), *OF_THE_HUB, "--dry-run"]) == 0
        first.kill()
        first.wait()
        assert cli.main(gen_tasks) == 0
    assert not (run / ".lock" / "holder.json").exists()


def test_a_process_of_another_machine_is_shown_for_as_long_as_it_holds_the_lock(tmp_path: Path) -> None:
    record = tmp_path / ".lock" / "holder.json"
    with holder(HOLD, tmp_path) as first:
        assert who_works_in(tmp_path)[0].startswith(f"`-c {tmp_path}` (process {first.pid} on ")
        record.write_text(json.dumps(json.loads(record.read_text()) | {"host": "elsewhere"}))
        assert " on elsewhere, since " in who_works_in(tmp_path)[0]
        first.kill()
        first.wait()
        assert who_works_in(tmp_path) is None
    with hold_run(tmp_path):
        assert who_works_in(tmp_path)


def test_a_record_of_another_machine_that_was_left_behind_is_named(tmp_path: Path, caplog) -> None:
    folder = tmp_path / ".lock"
    folder.mkdir()
    record = {"pid": 1, "host": "elsewhere", "command": "webrl run", "started": 0.0, "since": 0.0}
    (folder / "holder.json").write_text(json.dumps(record))
    with hold_run(tmp_path):
        pass
    assert "elsewhere" in caplog.text
    with hold_run(tmp_path):
        pass
    assert caplog.text.count("elsewhere") == 1


def test_the_lock_nests_and_covers_outputs_inside_the_run_folder(tmp_path: Path) -> None:
    (tmp_path / "config.yaml").touch()
    with hold_run(tmp_path), hold_run(tmp_path), hold_output(tmp_path / "phase_00" / "train.jsonl"):
        pass
    assert [p.name for p in tmp_path.iterdir() if p.is_dir()] == [".lock"]
    with holder(HOLD, tmp_path), pytest.raises(StageError, match="in use"), hold_output(tmp_path / "orm"):
        pass


def test_an_output_outside_any_run_has_a_lock_of_its_own(tmp_path: Path) -> None:
    with hold_output(tmp_path / "a.jsonl"), hold_output(tmp_path / "b.jsonl"):
        assert (tmp_path / ".a.jsonl.lock").is_dir()


@pytest.mark.slow
def test_training_and_process_data_take_the_lock_too(tmp_path: Path) -> None:
    with holder(HOLD, tmp_path / "run"):
        (tmp_path / "run" / "config.yaml").write_text("name: run\n")
        output = tmp_path / "run" / "phase_00" / "train.jsonl"
        data = ["scripts/process_data.py", "--output_path", str(output), "--actor_path", "none", "--stage", "1"]
        for command in (["-m", "webrl.cli.train_worker", "demo", "--run", str(tmp_path / "run")], data):
            assert "is in use by `-c" in python(*command, code=1).stderr
        assert not output.parent.exists()
