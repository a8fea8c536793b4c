"""A run packed without its weights, and what comes out of it elsewhere."""

from __future__ import annotations

import dataclasses
import hashlib
import json
import re
import shutil
import subprocess
import sys
import zipfile
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import torch
import yaml
from test_carry_archives import one_gpu
from training_builders import make_actor, make_records

from webrl.carry.manifest import MANIFEST
from webrl.carry.pack import pack
from webrl.carry.unpack import unpack
from webrl.config import RunConfig
from webrl.errors import DataError, ModelError, StageError, UsageError
from webrl.runs import lock, progress
from webrl.training import score_actions, train_actor, train_critic, train_sft
from webrl.training.export import STATE, read_origin

ROOT = Path(__file__).parent.parent
SCRIPT = ROOT / "scripts" / "carry_run.py"
OPTIM = {"lr": 1e-2, "batch_size": 8, "max_tokens": 128, "lora_rank": 4, "lora_alpha": 10.0}


def make_run(folder: Path, base: Path, **changed: object) -> Path:
    """A supervised start and two phases of training in a run folder, as the stages write them."""
    run = folder / "mine"
    optim = OPTIM | changed
    config = RunConfig.model_validate(
        {
            "name": "mine",
            "runs_dir": str(folder),
            "models": {"device": "cpu", "actor": str(run / "sft")},
            "actor": optim | {"objective": "webrl"},
            "critic": optim,
            "sft": optim,
        }
    )
    run.mkdir(parents=True)
    (run / "config.yaml").write_text(yaml.safe_dump(config.model_dump(mode="json")))
    records = make_records()
    examples = [(r.prompt_ids, r.action_ids) for r in records]
    train_sft(examples, base, run / "sft", config.sft, seed=0, metrics_path=run / "sft.jsonl", device="cpu")
    shutil.copytree(run / "sft", run / "phase_00" / "actor")
    critic = run / "sft"
    for phase in (0, 1, 2):
        home = run / f"phase_{phase:02d}"
        options: dict[str, Any] = {"seed": phase, "metrics_path": home / "metrics.jsonl"}
        train_critic(records, critic, home / "critic", config, **options)
        critic = home / "critic"
        if phase:
            start = run / f"phase_{phase - 1:02d}" / "actor"
            scored = [dataclasses.replace(r, value=0.5, next_value=0.5) for r in score_actions(records, start, config)]
            train_actor(scored, start, home / "actor", config, **options)
    (run / ".lock").mkdir()
    state = run / "phase_02" / ".actor.state" / "step_00000001"
    state.mkdir(parents=True)
    (state / "optimizer.bin").write_bytes(b"a pickle")
    return run


@pytest.fixture(scope="module")
def made(tmp_path_factory: pytest.TempPathFactory) -> tuple[Path, Path, Path]:
    """(base model, run, packed run); not to be changed."""
    folder = tmp_path_factory.mktemp("carry")
    base = make_actor(folder / "base")
    run = make_run(folder, base)
    pack(run, folder / "mine.zip")
    return base, run, folder / "mine.zip"


def content(run: Path) -> dict[str, str]:
    """Digests of all files but hidden ones."""
    files = [p for p in run.rglob("*") if p.is_file() and not any(n.startswith(".") for n in p.relative_to(run).parts)]
    return {p.relative_to(run).as_posix(): hashlib.sha256(p.read_bytes()).hexdigest() for p in files}


def rewritten(source: Path, target: Path, change: Callable[[dict[str, Any]], None], **members: bytes) -> Path:
    """A copy of a packed run with another manifest and further members."""
    with zipfile.ZipFile(source) as old, zipfile.ZipFile(target, "w") as new:
        manifest = json.loads(old.read(MANIFEST))
        change(manifest)
        new.writestr(MANIFEST, json.dumps(manifest))
        for name in old.namelist():
            if name != MANIFEST:
                new.writestr(name, old.read(name))
        for name, data in members.items():
            new.writestr(name, data)
    return target


def test_a_run_of_lora_phases_comes_out_of_the_file_bit_for_bit(made, tmp_path):
    _, run, packed = made
    with zipfile.ZipFile(packed) as archive:
        names = archive.namelist()
    assert not [n for n in names if n.endswith("model.safetensors")]
    # One state each of sft (and its copy), two actors and three critics, one tokenizer for all seven folders.
    assert len([n for n in names if n.endswith(STATE.name)]) == 6
    assert len([n for n in names if n.endswith("tokenizer.json")]) == 1
    assert not [n for n in names if ".state/" in n or ".lock" in n]
    unpack(packed, tmp_path / "elsewhere" / "mine")
    there = content(tmp_path / "elsewhere" / "mine")
    assert there == content(run)
    assert len({there[f"{name}/model.safetensors"] for name in ("sft", "phase_01/actor", "phase_02/actor")}) == 3
    assert not list((tmp_path / "elsewhere" / "mine").glob(".*"))
    pack(tmp_path / "elsewhere" / "mine", tmp_path / "again.zip")
    assert (tmp_path / "again.zip").read_bytes() == packed.read_bytes()


def test_packing_and_unpacking_say_how_far_they_are(made, tmp_path, monkeypatch, caplog):
    _, run, packed = made
    monkeypatch.setattr(progress, "LINE_S", 0.0)
    caplog.set_level("INFO", logger=progress.__name__)
    pack(run, tmp_path / "again.zip")
    unpack(packed, tmp_path / "mine")
    last = {}
    for line in caplog.messages:
        found = re.match(r"(\w+): (\d+) of (\d+) (bytes|models)", line)
        last[found[1]] = (int(found[2]), int(found[3]))
    assert last.keys() == {"digests", "pack", "unpack", "weights"}
    assert all(done == total > 0 for done, total in last.values())
    assert last["pack"] == last["unpack"] < last["digests"]
    assert last["weights"] == (7, 7)


def renamed(base: str) -> Callable[[dict[str, Any]], None]:
    return lambda manifest: manifest["bases"].update(dict.fromkeys(manifest["bases"], base))


def test_a_base_that_has_moved_is_named_and_another_one_is_refused(made, tmp_path):
    base, _, packed = made
    moved, other = tmp_path / "moved", make_actor(tmp_path / "other", seed=1)
    shutil.copytree(base, moved)
    gone = rewritten(packed, tmp_path / "gone.zip", renamed("/no/where"))
    with pytest.raises(ModelError, match=r"the run started from '/no/where', which is not here .*--base DIR"):
        unpack(gone, tmp_path / "mine")
    with pytest.raises(UsageError, match=r"--base .*other: the run did not start from these weights"):
        unpack(gone, tmp_path / "mine", bases=[str(other)])
    elsewhere = rewritten(
        packed, tmp_path / "o.zip", lambda m: m["bases"].update(dict.fromkeys(m["bases"], str(other)))
    )
    with pytest.raises(ModelError, match=r"other' has other weights here than the run started from"):
        unpack(elsewhere, tmp_path / "mine")
    assert not (tmp_path / "mine").exists()
    unpack(gone, tmp_path / "mine", bases=[str(moved)])
    assert (tmp_path / "mine" / "phase_02" / "actor" / "model.safetensors").is_file()


def test_the_state_is_ignored_by_all_that_load_the_folder(made):
    from transformers import AutoModelForCausalLM

    _, run, _ = made
    folder = run / "phase_02" / "actor"
    _, report = AutoModelForCausalLM.from_pretrained(folder, output_loading_info=True)
    assert not any(report.values())
    # vLLM loads every file that this pattern finds.
    assert [p.name for p in folder.glob("*.safetensors")] == ["model.safetensors"]
    assert not list(folder.rglob("adapter_config.json"))
    origin = read_origin(folder)
    assert origin is not None
    assert (origin.lora_rank, origin.lora_alpha, origin.heads) == (4, 10.0, None)


def test_merged_weights_are_the_same_bits_whatever_the_number_of_threads(made, tmp_path):
    base, run, _ = made
    from webrl.training.export import rebuild_weights

    threads = torch.get_num_threads()
    try:
        for number in (1, 3):
            torch.set_num_threads(number)
            rebuild_weights(run / "sft", base, tmp_path / str(number))
    finally:
        torch.set_num_threads(threads)
    digests = {content(tmp_path / str(number))["model.safetensors"] for number in (1, 3)}
    assert digests == {content(run)["sft/model.safetensors"]}


def test_weights_that_were_trained_whole_are_refused_by_name_or_carried(tmp_path):
    base = make_actor(tmp_path / "base")
    run = make_run(tmp_path, base, lora_rank=0)
    with pytest.raises(DataError, match=r"phase_00/actor: its weights were trained whole.*sft\.lora_rank=16.*--whole"):
        pack(run, tmp_path / "mine.zip")
    assert not (tmp_path / "mine.zip").exists()
    packed = pack(run, tmp_path / "mine.zip", whole=True)
    assert packed.carried == ("phase_02/actor", "phase_02/critic")
    assert packed.left_out == ("phase_00/actor", "phase_00/critic", "phase_01/actor", "phase_01/critic", "sft")
    unpack(tmp_path / "mine.zip", tmp_path / "new" / "mine")
    here, there = content(run), content(tmp_path / "new" / "mine")
    lost = {f"{name}/model.safetensors" for name in packed.left_out}
    assert there == {path: digest for path, digest in here.items() if path not in lost}


def test_only_the_section_that_was_trained_whole_is_named_and_what_stands_on_it_is_carried(made, tmp_path):
    _, run, _ = made
    run = shutil.copytree(run, tmp_path / "mine")
    shutil.rmtree(run / "phase_01" / "critic" / "lora")
    with pytest.raises(DataError, match=r"phase_01/critic: .*\(2 such folders\).* critic\.lora_rank=16"):
        pack(run, tmp_path / "x.zip")
    packed = pack(run, tmp_path / "x.zip", whole=True)  # phase 2's critic is made of phase 1's
    assert (packed.carried, packed.left_out) == (("phase_01/critic",), ())
    unpack(tmp_path / "x.zip", tmp_path / "new" / "mine")
    assert content(tmp_path / "new" / "mine") == content(run)


def test_a_start_from_outside_stays_outside_and_is_copied_from_there(made, tmp_path):
    base, run, _ = made
    run = shutil.copytree(run, tmp_path / "mine")
    for name in ("sft", "phase_01", "phase_02", "phase_00/critic"):
        shutil.rmtree(run / name)
    shutil.rmtree(run / "phase_00" / "actor")
    shutil.copytree(base, run / "phase_00" / "actor")
    with pytest.raises(DataError, match=r"phase_00/actor: .* name the folder that it is a copy of with --base DIR"):
        pack(run, tmp_path / "x.zip")
    with pytest.raises(UsageError, match=r"--base .*o: no model of .* started from these weights"):
        pack(run, tmp_path / "x.zip", bases=[str(make_actor(tmp_path / "o", seed=2))])
    pack(run, tmp_path / "x.zip", bases=[str(base)])
    unpack(tmp_path / "x.zip", tmp_path / "new" / "mine")
    assert content(tmp_path / "new" / "mine") == content(run)
    config = yaml.safe_load((run / "config.yaml").read_text())
    config["models"]["actor"] = str(base)
    (run / "config.yaml").write_text(yaml.safe_dump(config))
    assert pack(run, tmp_path / "y.zip").manifest.bases


def test_what_there_is_before_the_loop_has_begun_is_packed_and_continued_elsewhere(made, tmp_path):
    _, whole, _ = made
    run = tmp_path / "demo"
    shutil.copytree(whole / "sft", run / "sft")
    (run / "demos").mkdir()
    (run / "demos" / "trajectories.jsonl").write_text("{}\n", encoding="utf-8")
    (run / "judge").write_text("in the way of the judge's episodes", encoding="utf-8")
    stopped = one_gpu("demo", f"runs_dir={tmp_path}", "trackers=[]")
    assert stopped.returncode != 0
    assert "webrl: cannot write output" in stopped.stderr
    assert "failed; what is finished is kept" in stopped.stdout
    assert not (run / "config.yaml").exists()
    unpack(tmp_path / "demo.zip", tmp_path / "elsewhere" / "demo")
    assert content(tmp_path / "elsewhere" / "demo") == content(run)


def test_nothing_is_packed_while_a_process_works_in_the_run(made, tmp_path, monkeypatch):
    monkeypatch.setattr(lock, "_PATIENCE_S", 0.5)
    _, run, _ = made
    run = shutil.copytree(run, tmp_path / "mine")
    code = (
        "import sys; from pathlib import Path; from webrl.runs.lock import hold_run\n"
        "with hold_run(Path(sys.argv[1])): print(flush=True); sys.stdin.read()"
    )
    with subprocess.Popen(
        [sys.executable, "-c", code, str(run)], stdin=subprocess.PIPE, stdout=subprocess.PIPE
    ) as worker:
        assert worker.stdout is not None
        worker.stdout.readline()
        with pytest.raises(StageError, match="is in use by"):
            pack(run, tmp_path / "x.zip")
        worker.communicate(b"")
    pack(run, tmp_path / "x.zip")


def test_folders_that_cannot_be_packed_or_written_to_are_named(made, tmp_path):
    _, run, packed = made
    with pytest.raises(UsageError, match="is not a run folder: it has no config"):
        pack(tmp_path, tmp_path / "x.zip")
    with pytest.raises(UsageError, match="lies in the run folder"):
        pack(run, run / "x.zip")
    (tmp_path / "kept").mkdir()
    with pytest.raises(UsageError, match="is a folder; name a file in it"):
        pack(run, tmp_path / "kept")
    assert (tmp_path / "kept").is_dir()
    with pytest.raises(UsageError, match="is there already"):
        unpack(packed, run)
    with pytest.raises(UsageError, match="a run goes on under its own name; end the path in 'mine'"):
        unpack(packed, tmp_path / "other")
    linked = shutil.copytree(run, tmp_path / "mine")
    (linked / "phase_01" / "extra").symlink_to(tmp_path)
    with pytest.raises(DataError, match="extra: a link, pipe or device"):
        pack(linked, tmp_path / "x.zip")


def test_a_state_of_somebody_else_is_checked_before_it_takes_memory(made, tmp_path):
    from safetensors.torch import load_file, save_file

    from webrl.training.export import rebuild_weights

    base, run, _ = made
    folder = shutil.copytree(run / "sft", tmp_path / "sft")
    state = load_file(folder / STATE)
    origin = read_origin(folder)
    assert origin is not None

    def damage(message: str, kept: dict[str, torch.Tensor], **changed: object) -> None:
        text = json.dumps(origin.model_dump() | changed)
        save_file(kept, folder / STATE, metadata={"webrl": text})
        with pytest.raises(ModelError, match=message):
            rebuild_weights(folder, base, tmp_path / "out")

    damage(r"it claims lora_rank=1000000000, its adapters have \[4\]", state, lora_rank=10**9)
    damage(r"damaged \(.*lora_alpha", state, lora_alpha=-1)
    damage("does not fit the model", state | {"lm.more": torch.zeros(1)})
    first = next(name for name in state if "lora_B" in name)
    damage("does not fit the model", state | {first: torch.zeros(7, 3)})
    (folder / STATE).write_bytes(b"\xff" * 100)
    with pytest.raises(ModelError, match="not a trained state of webrl's, or damaged"):
        read_origin(folder)


@pytest.mark.slow
def test_the_script_says_what_it_did_and_what_is_wrong_in_one_line(made, tmp_path):
    base, run, _ = made

    def carry(*arguments: object) -> tuple[int, str, str]:
        command = [sys.executable, str(SCRIPT), *map(str, arguments)]
        done = subprocess.run(command, cwd=ROOT, capture_output=True, text=True, timeout=300, check=False)
        return done.returncode, done.stdout, done.stderr

    code, said, wrong = carry("pack", run, tmp_path / "mine.zip")
    assert (code, wrong) == (0, "")
    assert f"starts from {base}, which is not in the file" in said
    code, said, wrong = carry("unpack", tmp_path / "mine.zip", tmp_path / "mine", "--base", base)
    assert (code, wrong) == (0, "")
    assert f"webrl run CONFIG --run {tmp_path / 'mine'}" in said
    assert content(tmp_path / "mine") == content(run)
    assert carry("unpack", tmp_path / "mine.zip", tmp_path / "mine") == (
        2, "", f"carry_run: {str(tmp_path / 'mine')!r} is there already; choose another folder, or remove it\n"
    )  # fmt: skip


@pytest.mark.browser
@pytest.mark.slow
def test_an_evening_is_stopped_packed_and_continued_elsewhere(tmp_path):
    options = [
        "demo", f"runs_dir={tmp_path}", "tasks.train_sites=[miniwob.click-button,miniwob.enter-text]",
        "tasks.num_seed_tasks=12", "tasks.num_eval_tasks=4", "tasks.num_heldout_tasks=2", "generate.num_tasks=12",
        "filter.critic_band=false", "rollout.max_steps=4", "critic.epochs=1", "actor.epochs=1", "trackers=[]",
        "sft.lora_rank=2", "critic.lora_rank=2", "actor.lora_rank=2", "sft.max_tokens=2048",
    ]  # fmt: skip
    first = one_gpu(*options, "num_phases=0", PER_TYPE="2", JUDGE="no")
    assert first.returncode == 0, first.stdout + first.stderr[-3000:]
    run, packed = tmp_path / "demo", tmp_path / "demo.zip"
    before = content(run)
    run.rename(tmp_path / "gone")
    with zipfile.ZipFile(packed) as archive:
        assert not [name for name in archive.namelist() if name.endswith("model.safetensors")]
    unpack(packed, run)
    assert content(run) == before
    second = one_gpu(*options, "num_phases=1", JUDGE="no")
    assert second.returncode == 0, second.stdout + second.stderr[-3000:]
    assert "demonstrations and supervised start are there" in second.stdout
    assert (run / "phase_01" / "stages" / "eval.json").is_file()
    with zipfile.ZipFile(packed) as archive:
        assert f"phase_01/actor/{STATE}" in archive.namelist()
