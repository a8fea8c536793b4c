"""What a power failure leaves: seen through the order of the calls that bring data to the disk."""

import errno
import os
import shutil
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest
from processes import wait_until

from webrl.config import RunConfig
from webrl.runs.disk import atomic_path
from webrl.runs.folder import open_run
from webrl.runs.store import Appender
from webrl.training.checkpoint import Checkpoints
from webrl.training.metrics import MetricLog
from webrl.types import Label

pytestmark = pytest.mark.skipif(not Path("/proc/self/fd").is_dir(), reason="paths of open files are read from /proc")
Event = tuple[str, Path, int]


@pytest.fixture
def events(monkeypatch: pytest.MonkeyPatch) -> list[Event]:
    """(what, path, size) of each sync and rename, in order."""
    seen: list[Event] = []
    sync, rename, replace = os.fsync, os.rename, os.replace

    def spy_sync(descriptor: int) -> None:
        size = os.fstat(descriptor).st_size
        sync(descriptor)
        seen.append(("sync", Path(f"/proc/self/fd/{descriptor}").readlink(), size))

    def spy_rename(old: Any, new: Any, **kwargs: Any) -> None:
        rename(old, new, **kwargs)
        seen.append(("rename", Path(new), 0))

    def spy_replace(old: Any, new: Any, **kwargs: Any) -> None:
        replace(old, new, **kwargs)
        seen.append(("rename", Path(new), 0))

    monkeypatch.setattr(os, "fsync", spy_sync)
    monkeypatch.setattr(os, "rename", spy_rename)
    monkeypatch.setattr(os, "replace", spy_replace)
    return seen


def position(events: list[Event], what: str, path: Path) -> int:
    """Index of the last such event."""
    return max(i for i, (kind, where, _) in enumerate(events) if (kind, where) == (what, path))


def test_a_folder_is_on_the_disk_before_its_name_and_the_name_when_the_block_ends(tmp_path, events):
    out = tmp_path / "phase_01" / "actor"
    with atomic_path(out) as temporary:
        (temporary / "sub").mkdir(parents=True)
        (temporary / "model.safetensors").write_bytes(b"x" * 1000)
        (temporary / "sub" / "more.json").write_text("{}")
        name = temporary
    renamed = position(events, "rename", out)
    for part in (name / "model.safetensors", name / "sub" / "more.json", name / "sub", name):
        assert position(events, "sync", part) < renamed
    assert ("sync", name / "model.safetensors", 1000) in events
    assert position(events, "sync", out.parent) > renamed
    assert position(events, "sync", tmp_path) < renamed  # the name of the new phase folder


def test_all_appended_lines_are_on_the_disk_before_the_stage_marker(tmp_path: Path, events: list[Event]) -> None:
    folder = open_run(RunConfig.model_validate({"name": "r", "runs_dir": str(tmp_path)})).phase(0)
    with Appender(folder.labels) as file:
        for number in range(50):
            file.append(Label(str(number), 0.5, 1))
    folder.mark_done("label", {}, 0.0, 0.0, RunConfig())
    marked = position(events, "rename", folder.path / "stages" / "label.json")
    whole = events.index(("sync", folder.labels, folder.labels.stat().st_size))
    assert whole < marked
    assert position(events, "sync", folder.path) < marked  # the file's name
    assert position(events, "sync", folder.path / "stages") > marked


def test_an_appended_line_reaches_the_disk_while_the_file_stays_open(tmp_path: Path, events: list[Event]) -> None:
    path = tmp_path / "x.jsonl"
    with Appender(path) as file:
        for number in range(3):
            file.append(Label(str(number), 0.5, 1))
            wait_until(lambda: ("sync", path, path.stat().st_size) in events)


def test_a_line_that_the_disk_lost_is_an_error_that_no_later_sync_hides(tmp_path, monkeypatch):
    path, calls = tmp_path / "x.jsonl", 0
    file = Appender(path)

    def fail_once(descriptor: int) -> None:
        nonlocal calls
        calls += 1
        if calls == 1:
            raise OSError(errno.ENOSPC, "No space left on device")

    monkeypatch.setattr(os, "fsync", fail_once)
    file.append(Label("a", 0.5, 1))
    wait_until(lambda: calls)
    with pytest.raises(OSError, match=r"No space left on device: '.*x\.jsonl'"):
        file.close()


def test_a_new_metrics_file_keeps_its_name(tmp_path: Path, events: list[Event]) -> None:
    path = tmp_path / "phase_01" / "metrics.jsonl"
    MetricLog(path, "actor").write(1, {"loss": 1.0})
    position(events, "sync", path.parent)
    assert events[-1] == ("sync", path, path.stat().st_size)


def test_a_training_state_is_on_the_disk_before_it_can_be_found(tmp_path: Path, events: list[Event]) -> None:
    engine: Any = SimpleNamespace(is_main=True, num_ranks=1, plan=SimpleNamespace(name="single"), barrier=lambda: None)
    engine.save_state = lambda folder: (folder / "weights.bin").write_bytes(b"x" * 100)
    Checkpoints(tmp_path / "actor", "0" * 16).save(engine, 3)
    root = tmp_path / ".actor.state"
    renamed = position(events, "rename", root / "step_00000003")
    assert events.index(("sync", root / ".step_00000003.tmp" / "weights.bin", 100)) < renamed
    assert position(events, "sync", root) > renamed
    assert position(events, "sync", tmp_path) < renamed


@pytest.mark.parametrize("remove", ["discard", "save"])
def test_a_training_state_is_not_found_once_its_removal_began(tmp_path, monkeypatch, remove):
    """A kill in the middle left a state without its weights, which the next start could not read (seen)."""
    engine: Any = SimpleNamespace(is_main=True, num_ranks=1, plan=SimpleNamespace(name="single"), barrier=lambda: None)
    engine.save_state = lambda folder: (folder / "weights.bin").write_bytes(b"x" * 100)
    checkpoints = Checkpoints(tmp_path / "actor", "0" * 16)
    checkpoints.save(engine, 3)

    def killed(path: Path, **_: Any) -> None:
        if Path(path).name.startswith("."):  # the temporary folder of the next state, which is not there
            return
        (path / "weights.bin").unlink()
        raise KeyboardInterrupt

    monkeypatch.setattr(shutil, "rmtree", killed)
    with pytest.raises(KeyboardInterrupt):
        checkpoints.discard() if remove == "discard" else checkpoints.save(engine, 6)
    left = [path.parent for path in (tmp_path / ".actor.state").glob("step_*/position.json")]
    assert [path.name for path in left] == ([] if remove == "discard" else ["step_00000006"])
