"""Packed runs of strangers, which are refused whole; and the plan of an evening on one GPU."""

from __future__ import annotations

import hashlib
import json
import os
import shlex
import subprocess
import sys
import zipfile
from pathlib import Path
from typing import Any

import pytest
import yaml

from webrl.carry.manifest import MANIFEST
from webrl.carry.unpack import unpack
from webrl.errors import DataError, ModelError, UsageError

ROOT = Path(__file__).parent.parent


def entry(content: bytes, size: int | None = None) -> dict[str, Any]:
    """What a manifest says of a file."""
    return {"bytes": len(content) if size is None else size, "sha256": hashlib.sha256(content).hexdigest()}


def write_archive(path: Path, files: dict[str, Any], members: dict[str, bytes], **more: object) -> Path:
    """A packed run that claims `files` and holds `members`."""
    manifest = {"format": 1, "name": "mine", "files": files, "models": {}, "bases": {}, "versions": {}} | more
    with zipfile.ZipFile(path, "w") as archive:
        archive.writestr(MANIFEST, json.dumps(manifest))
        for name, content in members.items():
            archive.writestr(name, content)
    return path


def check_refused(folder: Path, path: Path, message: str) -> None:
    """Unpacking ends with this message, and leaves nothing."""
    with pytest.raises(DataError) as refused:
        unpack(path, folder / "mine")
    assert message in str(refused.value)
    left = {p.name for p in folder.iterdir()} - {path.name, ".mine.lock"}
    assert left == set()


def test_a_file_that_is_there_twice_is_held_once(tmp_path):
    files = {"config.yaml": entry(b"a"), "p/x": entry(b"hello"), "p/y": entry(b"hello")}
    path = write_archive(tmp_path / "ok.zip", files, {"config.yaml": b"a", "p/x": b"hello"})
    unpack(path, tmp_path / "new" / "mine")
    found = {p.name: p.read_bytes() for p in (tmp_path / "new" / "mine").rglob("*") if p.is_file()}
    assert found == {"config.yaml": b"a", "x": b"hello", "y": b"hello"}
    with pytest.raises(UsageError, match="is there already"):
        unpack(path, tmp_path / "new" / "mine")
    with pytest.raises(UsageError, match="a run goes on under its own name; end the path in 'mine'"):
        unpack(path, tmp_path / "other")


@pytest.mark.parametrize(
    "name",
    ["../x", "/etc/x", "a/../../x", "./x", "a//x", "", ".lock/flock", "phase_00/.actor.state/s/x", "a\\x", "a\n",
     "x" * 300],
)  # fmt: skip
def test_no_member_leads_out_of_the_folder_or_is_hidden(tmp_path, name):
    path = write_archive(tmp_path / "bad.zip", {name: entry(b"x")}, {name: b"x"} if name else {})
    check_refused(tmp_path, path, "is no name of a file in a run folder")


@pytest.mark.parametrize(
    ("files", "members", "more", "message"),
    [
        ({}, {"more.txt": b"x"}, {}, "member 'more.txt' is not as its manifest.json says"),
        ({"x": entry(b"x", 5)}, {"x": b"x"}, {}, "member 'x' is not as its manifest.json says"),
        ({"x": entry(b"x")}, {"x": b"y"}, {}, "bad.zip: x: 1 bytes with digest a1fce4"),
        ({"x": entry(b"x", 2**50)}, {}, {}, "unpacked it has 1048576.0 GiB, more than 64; if that is so, --max-gib"),
        ({"x": entry(b"x")}, {}, {}, "'x' is in its manifest.json, but nothing holds its content"),
        ({"a": entry(b"x"), "a/b": entry(b"x")}, {"a": b"x"}, {}, "'a' is a file and a folder"),
        ({}, {}, {"extra": 1}, "manifest.json: 'extra': Extra inputs are not permitted"),
        ({"x": entry(b"x", -1)}, {}, {}, "greater than or equal to 0"),
        ({}, {}, {"name": "../mine"}, "'../mine' is no name of a file in a run folder"),
        (
            {"s/model.safetensors": entry(b"x")}, {}, {"models": {"s": {"weights": "a", "base": "b"}}},
            "nothing in the archive says what the weights of 's' come from",
        ),
    ],
)  # fmt: skip
def test_an_archive_that_is_not_as_its_manifest_says_leaves_nothing(tmp_path, files, members, more, message):
    check_refused(tmp_path, write_archive(tmp_path / "bad.zip", files, members, **more), message)


def test_archives_that_are_cut_encrypted_or_none_are_named(tmp_path):
    path = write_archive(tmp_path / "ok.zip", {"x": entry(b"x")}, {"x": b"x"})
    data = path.read_bytes()
    path.unlink()
    encrypted = bytearray(data)
    encrypted[data.rindex(b"PK\x01\x02") + 8] |= 1
    parts = {
        "cut": (data[:-30], "damaged, or not a packed run"),
        "flipped": (data[:60] + b"\xff" * 40 + data[100:], "damaged, or not a packed run"),
        "text": (b"x", "damaged, or not a packed run"),
        "empty": (b"", "damaged, or not a packed run"),
        "encrypted": (bytes(encrypted), "it is encrypted"),
    }
    for name, (part, message) in parts.items():
        bad = tmp_path / f"{name}.zip"
        bad.write_bytes(part)
        check_refused(tmp_path, bad, message)
        bad.unlink()
    with pytest.raises(DataError, match="No such file"):
        unpack(tmp_path / "absent.zip", tmp_path / "mine")


def test_a_base_that_is_not_here_is_named_before_anything_is_written(tmp_path):
    path = write_archive(tmp_path / "x.zip", {}, {}, bases={"0" * 16: "/no/where"})
    with pytest.raises(ModelError, match=r"the run started from '/no/where', which is not here .*--base DIR"):
        unpack(path, tmp_path / "mine")
    (tmp_path / "other").mkdir()
    (tmp_path / "other" / "model.safetensors").write_bytes(b"x")
    with pytest.raises(UsageError, match=r"other: the run did not start from these weights, but from '/no/where'"):
        unpack(path, tmp_path / "mine", bases=[str(tmp_path / "other")])
    other = write_archive(tmp_path / "y.zip", {}, {}, bases={"0" * 16: str(tmp_path / "other")})
    with pytest.raises(ModelError, match=r"other' has other weights here than the run started from"):
        unpack(other, tmp_path / "mine")
    assert not (tmp_path / "mine").exists()


def one_gpu(*arguments: str, **variables: str) -> subprocess.CompletedProcess[str]:
    environment = os.environ | {"PYTHON": sys.executable, "PYTHONPATH": str(ROOT)} | variables
    command = ["bash", "scripts/one_gpu.sh", *arguments]
    return subprocess.run(command, cwd=ROOT, env=environment, capture_output=True, text=True, timeout=1200, check=False)


def test_the_evenings_plan_can_be_seen_and_wrong_words_are_refused(tmp_path):
    shown = one_gpu("--dry-run", "actor.lora_rank=16", f"runs_dir={tmp_path}", "models.actor=some/base", MINUTES="30")
    assert (shown.returncode, shown.stderr) == (0, "")
    commands = [line.split(" -m webrl.cli ")[1].strip() for line in shown.stdout.splitlines() if "webrl.cli" in line]
    run = tmp_path / "gemma3_270m"
    same = f"gemma3_270m actor.lora_rank=16 runs_dir={tmp_path}"
    start = f"{same} models.actor=some/base"
    practice = f"tasks.num_seed_tasks=5000 models.actor={run}/sft --run {run}/judge --seed 1000003"
    loop, _, known = commands.pop().rpartition(" orm.refresh_data=")
    assert yaml.safe_load(*shlex.split(known)) == [f"{run}/judge/phase_00/trajectories.jsonl", f"{run}/judge/demos"]
    begun, _, demos = loop.partition(" replay.demos=")
    assert begun == f"run {same} models.actor={run}/sft"
    assert demos.replace("\\", "") == f'["{run}/demos"] models.orm={run}/orm'
    assert commands == [
        f"record-demos {same} models.actor=some/base --per-type 16",
        f"sft {same} models.actor=some/base",
        f"record-demos {start} --per-type 24 --run {run}/judge --seed 1000003",
        *(f"{stage} {start} {practice}" for stage in ("gen-tasks", "filter-tasks", "rollout")),
        f"train-orm {same} models.actor=some/base --data {run}/judge/phase_00/trajectories.jsonl "
        f"{run}/judge/demos --init {run}/sft --out {run}/orm",
    ]
    shown = one_gpu("--dry-run", f"runs_dir={tmp_path}", JUDGE="no")
    assert "train-orm" not in shown.stdout
    assert "models.orm" not in shown.stdout.partition("4 of 4")[2]
    assert f"pack --whole {run} {run}.zip" in shown.stdout
    shown = one_gpu("--dry-run", "gemma3_270m_arena", f"runs_dir={tmp_path}")
    assert "train-orm" not in shown.stdout  # label.judge: environment
    assert "models.orm" not in shown.stdout
    assert not list(tmp_path.iterdir())
    assert one_gpu("--fast").stderr == "one_gpu: unknown option --fast; see --help\n"
    assert one_gpu("--dry-run", JUDGE="maybe").stderr == "one_gpu: JUDGE=maybe is neither yes nor no\n"
    assert one_gpu("demo", "gemma3_270m").stderr == "one_gpu: one CONFIG at most, found demo and gemma3_270m\n"
    assert one_gpu("--dry-run", MINUTES="soon").stderr == "one_gpu: MINUTES=soon is not a number of minutes\n"
    for variable, value, least in (("PER_TYPE", "0", 1), ("EPISODES", "5k", 1), ("JUDGE_DEMOS", "few", 0)):
        refused = one_gpu("--dry-run", **{variable: value})
        assert (refused.returncode, refused.stdout) == (2, "")
        assert refused.stderr == f"one_gpu: {variable}={value} is not a number from {least} up\n"
    shown = one_gpu("--dry-run", f"runs_dir={tmp_path}", JUDGE_DEMOS="0")
    assert shown.stdout.count(" record-demos ") == 1
    assert f"--data {run}/judge/phase_00/trajectories.jsonl --init" in shown.stdout
    unknown = one_gpu("gemma")
    assert unknown.returncode == 2
    assert "no config 'gemma'" in unknown.stderr


def test_an_evenings_buffer_begins_with_its_demonstrations_unless_told_otherwise_or_there_are_none(tmp_path):
    def begins(*words: str) -> bool:
        shown = one_gpu("--dry-run", f"runs_dir={tmp_path}", *words, JUDGE="no", PACK="no")
        assert (shown.returncode, shown.stderr) == (0, "")
        loop = shown.stdout.partition("4 of 4")[2].replace("\\", "")
        return f'replay.demos=["{tmp_path}/gemma3_270m/demos"]' in loop

    assert begins()
    assert not begins("replay.demos=[]")
    start = tmp_path / "gemma3_270m" / "sft"
    start.mkdir(parents=True)
    (start / "config.json").touch()  # brought from elsewhere, without what it was trained on
    assert not begins()
    (tmp_path / "gemma3_270m" / "demos").mkdir()
    assert begins()
