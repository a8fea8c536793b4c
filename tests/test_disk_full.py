"""A disk that fills up under a library that writes its files itself is the same one line as under our own writes."""

import re
import resource
import shutil
import sqlite3
from pathlib import Path
from traceback import StackSummary

import pytest
import torch
from safetensors import SafetensorError
from safetensors.torch import save_file
from torch.distributed.checkpoint.api import CheckpointException

from webrl import stages
from webrl.cli.command import end_clearly
from webrl.config import load_config
from webrl.errors import ModelError
from webrl.phase import STAGES, run_stage
from webrl.preflight import run_bytes
from webrl.runs.disk import full_disk_named
from webrl.runs.folder import RunFolder, open_run
from webrl.stages import Context
from webrl.training.metrics import MetricLog

PARAMETERS = 3_688_704
"""Of the tiny actor."""


@pytest.mark.parametrize(
    "error",
    [
        SafetensorError("Error while serializing: I/O error: No space left on device (os error 28)"),
        sqlite3.OperationalError("database or disk is full"),
        CheckpointException("write", {1: (RuntimeError("No space left on device"), StackSummary())}),
    ],
)
def test_a_full_disk_is_the_systems_error_whoever_writes(error: BaseException, tmp_path: Path) -> None:
    with pytest.raises(OSError, match="No space left on device") as raised, full_disk_named(tmp_path / "model"):
        raise error
    assert raised.value.filename == str(tmp_path / "model")


def test_a_file_that_may_not_grow_so_large_is_named_with_the_limit(tmp_path, capsys):
    def save() -> int:
        with full_disk_named(tmp_path / "model"):
            save_file({"weight": torch.zeros(5000)}, tmp_path / "model")
        return 0

    limits = resource.getrlimit(resource.RLIMIT_FSIZE)
    resource.setrlimit(resource.RLIMIT_FSIZE, (8192, limits[1]))
    try:
        assert end_clearly("webrl", save) == 1
    finally:
        resource.setrlimit(resource.RLIMIT_FSIZE, limits)
    said = f"webrl: {tmp_path / 'model'}: File too large; raise the limit (ulimit -f), the same command then resumes\n"
    assert capsys.readouterr().err == said


def test_an_error_that_is_none_of_a_full_disk_stays_as_it_is(tmp_path: Path) -> None:
    with pytest.raises(RuntimeError, match="file write failed"), full_disk_named(tmp_path / "model"):
        raise RuntimeError("PytorchStreamWriter failed writing file data/0: file write failed")


@pytest.mark.skipif(not Path("/dev/full").exists(), reason="the system has no /dev/full")
def test_metrics_that_find_no_room_name_their_file(tmp_path: Path) -> None:
    path = tmp_path / "metrics.jsonl"
    log = MetricLog(path, "actor")
    path.unlink()
    path.symlink_to("/dev/full")
    with pytest.raises(OSError, match="No space left on device") as raised:
        log.write(1, {"loss": 0.5})
    assert raised.value.filename == str(path)


def test_what_a_run_still_writes_is_known_before_it_starts(tmp_path: Path) -> None:
    config = load_config("demo", [f"runs_dir={tmp_path}", "name=r", "num_phases=3", "critic.export_dtype=bf16"])
    start = Path("data/tiny/actor/model.safetensors").stat().st_size
    assert run_bytes(config) == start + 2 * PARAMETERS + 3 * (4 + 2) * PARAMETERS
    with_states = config.model_copy(update={"actor": config.actor.model_copy(update={"save_every": 5})})
    assert run_bytes(with_states) == run_bytes(config) + 2 * 12 * PARAMETERS
    fewer = config.model_copy(update={"keep_models": 1, "num_phases": 100})
    assert run_bytes(fewer) == 3 * (4 + 2) * PARAMETERS  # the newest, the best, the one in the making
    (tmp_path / "adapter").mkdir()
    (tmp_path / "adapter" / "adapter_config.json").write_text('{"base_model_name_or_path": "data/tiny/actor"}')
    merged = config.models.model_copy(update={"actor": str(tmp_path / "adapter")})  # in float32, whatever its base has
    assert run_bytes(config.model_copy(update={"models": merged})) == run_bytes(config) - start + 4 * PARAMETERS

    phase = RunFolder(config.run_dir).phase(0)
    shutil.copytree("data/tiny/actor", phase.actor)
    phase.critic.mkdir()
    phase.mark_done("train", {}, 0.0, 0.0, config)
    RunFolder(config.run_dir).phase(1).critic.mkdir(parents=True)
    assert run_bytes(config) == (4 + 6 + 6) * PARAMETERS
    unknown = config.models.model_copy(update={"actor": "nobody/no-hub-name"})
    assert run_bytes(config.model_copy(update={"models": unknown}))
    shutil.rmtree(phase.path)
    assert run_bytes(config.model_copy(update={"models": unknown})) is None


@pytest.mark.parametrize(
    ("command", "said"),
    [
        (
            ["run", "demo", "num_phases=100"],
            r"/demo needs about 2,9\d\d MB more .* has 0 MB free; set keep_models=1 \(the",
        ),
        (
            ["sft", "demo", "--data", "data/tiny/demos.jsonl"],
            r"/demo/sft needs about \d\d MB more .*; name an --out on a",
        ),
    ],
)
def test_a_disk_without_room_is_refused_before_anything_is_played(command, said, tmp_path, monkeypatch, webrl):
    monkeypatch.setattr(shutil, "disk_usage", lambda _: (10**12, 10**12, 1000))
    assert re.search(said, webrl(1, *command, f"runs_dir={tmp_path}").err)
    assert not (tmp_path / "demo").exists()


def test_models_of_phases_that_nothing_needs_are_removed(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    config = load_config("demo", [f"runs_dir={tmp_path}", "name=ré", "num_phases=5", "keep_models=1"])
    run = open_run(config)
    for place, phase in (("", 0), ("/study", 3)):
        named = [f"runs_dir={tmp_path}{place}", "name=other", f"models.actor=runs/ré/phase_0{phase}/actor"]
        open_run(load_config("demo", named))
    (tmp_path / "grpo").mkdir()
    (tmp_path / "grpo" / "adapter_config.json").write_text('{"base_model_name_or_path": "runs/ré/phase_04/actor"}')
    solved = {0: 4, 1: 9, 2: 9, 3: 5, 4: 6, 5: 6}  # phases 1 and 2 are equal: the newer one stays
    for phase, successes in solved.items():
        folder = run.phase(phase)
        for model in (folder.actor, folder.critic):
            model.mkdir(parents=True)
            (model / "config.json").touch()
        for stage in list(STAGES)[: -1 if phase == 5 else None]:
            folder.mark_done(stage, {"successes": successes}, 0.0, 0.0, config)
    monkeypatch.setattr(stages, "play", lambda *_, **__: None)
    (run.phase(5).path / "eval.jsonl").touch()
    run_stage(config, "eval", 5)
    left = {phase for phase in solved if run.phase(phase).actor.is_dir() and run.phase(phase).critic.is_dir()}
    assert left == {0, 2, 3, 4, 5}
    assert not any(model.exists() for model in (run.phase(1).actor, run.phase(1).critic))


def test_a_phase_whose_actor_is_gone_is_not_evaluated_with_another(tmp_path: Path) -> None:
    config = load_config("demo", [f"runs_dir={tmp_path}", "name=r"])
    run = open_run(config)
    shutil.copytree("data/tiny/actor", run.phase(0).actor)
    with pytest.raises(ModelError, match="phase_01/actor' does not exist"):
        stages.evaluate(Context(config, run, 1))
