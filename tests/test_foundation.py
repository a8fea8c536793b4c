"""Records, config, run folder, store and evaluation: what every stage stands on."""

import contextlib
import gzip
import json
import os
import shutil
import subprocess
import weakref
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, replace
from pathlib import Path

import pytest

from webrl.cli.train_worker import train_phase
from webrl.config import EngineConfig, RolloutConfig, RunConfig, load_config, read_config
from webrl.errors import DataError, StageError, UsageError
from webrl.evaluate import (
    add_over_start,
    difference_text,
    paired_difference,
    rates_by,
    success_rate,
    summarize_evaluation,
    wilson_interval,
)
from webrl.phase import STAGES, next_phase, plan, run_stage
from webrl.runs.disk import atomic_path
from webrl.runs.folder import newest_run, open_run, require_run
from webrl.runs.store import Appender, read_json, read_lines, read_record, read_records, write_records, write_text
from webrl.types import Label, Record, Status, Step, Task, Trajectory


def trajectory(name: str = "t", status: Status = Status.PAGE_ENDED, reward: float | None = 1.0) -> Trajectory:
    task = Task(task_id=name, site="miniwob.click-button", seed=3)
    step = Step(
        index=0, observation="page", response="click('1')", action="click('1')", prompt_ids=(1, 2), logprobs=(-0.5,)
    )
    return Trajectory(name, task, "Click.", 1, (step,), "end", status, env_reward=reward)


@dataclass(frozen=True)
class Answer(Record):
    """A record with a yes or no, for the tests."""

    right: bool
    sure: bool | None = None


_TASK, _STEP = {"task_id": "a", "site": "b"}, {"index": 0, "observation": "", "response": "", "action": ""}
_EPISODE = {"trajectory_id": "t", "task": _TASK, "instruction": "i", "phase": 0, "final_observation": ""} | {
    "status": "agent_done"
}


@pytest.mark.parametrize(
    ("cls", "data", "message"),
    [
        (Task, _TASK | {"seed": True}, "field 'seed': .* valid integer, found True"),
        (Task, _TASK | {"split": 1}, "field 'split': .* valid string, found 1"),
        (Answer, {"right": 1}, "field 'right': .* valid boolean, found 1"),
        (Step, _STEP | {"prompt_ids": [1, 2.5]}, r"field 'prompt_ids\.1': .* valid integer, found 2\.5"),
        (Label, {"trajectory_id": "a", "p_yes": 2, "reward": 1}, "field 'p_yes': .* or equal to 1, found 2"),
        (Label, {"trajectory_id": "a", "p_yes": 0.5}, "missing field 'reward' in Label"),
        (
            Label,
            {"trajectory_id": "a", "p_yes": 0.5, "reward": 2},
            "field 'reward': .* less than or equal to 1, found 2",
        ),
        (Label, {"trajectory_id": "a", "p_yes": 0.5, "reward": -1}, "field 'reward': .* greater than or equal to 0"),
        (
            Trajectory,
            _EPISODE | {"steps": [_STEP | {"index": 1}, _STEP]},
            r"Trajectory: steps with index \[1, 0\], expected 0, 1, 2",
        ),
        (
            Trajectory,
            _EPISODE | {"steps": [_STEP, _STEP]},
            r"Trajectory: steps with index \[0, 0\], expected 0, 1, 2",
        ),
    ],
)
def test_what_is_no_such_record_is_refused_by_field_and_value(cls, data, message, tmp_path):
    with pytest.raises(ValueError, match=message):
        cls.from_json(data)
    path = tmp_path / "record.json"
    path.write_text(json.dumps(data))
    with pytest.raises(DataError, match=rf"record\.json: {message}"):
        read_record(path, cls)
    assert Answer.from_json({"right": True, "sure": False}) == Answer(True, False)


def test_a_malformed_line_is_quoted_with_its_number_and_a_file_of_windows_is_read(tmp_path: Path) -> None:
    path = tmp_path / "tasks.jsonl"
    path.write_text('{"task_id": "a", "site": "b"}\n{nope}\n')
    with pytest.raises(DataError, match=r"tasks\.jsonl:2: malformed JSON"):
        list(read_records(path, Task))
    problems: list[str] = []
    assert len(list(read_lines(path, problems.append))) == len(problems) == 1
    path.write_bytes(b'\xef\xbb\xbf{"a": 1}\r\n\r\n{"b": 2}\r\n{"c"')
    assert list(read_lines(path, problems.append)) == [(1, {"a": 1}), (3, {"b": 2})]
    assert problems[-1].endswith("b'{\"c\"'; the file ends within this line: is it still being written?")
    path.write_bytes(b"\xef\xbb\xbf[1]")
    assert read_json(path) == [1]


def test_a_last_line_is_cut_off_where_it_is_half_and_kept_where_only_its_end_is_missing(tmp_path):
    path = tmp_path / "labels.jsonl"
    write_records(path, [Label("a", None, 1), Label("b", None, 0)])
    for cut, kept in ((1, "abc"), (2, "ac")):
        path.write_bytes(b"".join(path.read_bytes().splitlines(keepends=True)[:2])[:-cut])
        with Appender(path) as file:
            file.append(Label("c", None, 1))
        assert "".join(label.trajectory_id for label in read_records(path, Label)) == kept


@pytest.mark.parametrize(
    ("data", "said"),
    [
        ('{"a": 1}\n'.encode("utf-16"), "text in UTF-16; convert it: iconv -f UTF-16"),
        (gzip.compress(b'{"a": 1}\n', mtime=0), "gzip; unpack it: gzip -dc"),
        (b"\x28\xb5\x2f\xfd\x24\x09\x49\n\0", "Zstandard; unpack it: zstd -dc"),
        (b"BZh91AY&SY\n", "bzip2; unpack it: bzip2 -dc"),
        (b"\xfd7zXZ\0\0\4\n", "xz; unpack it: xz -dc"),
        (b"7z\xbc\xaf\x27\x1c\0\x04\n\0", "7z; unpack it: 7z x"),
        (b"PK\x03\x04\x14\0\n\0", "zip; unpack it: unzip"),
        (b"tasks.jsonl".ljust(257, b"\0") + b"ustar  \n", "tar; unpack it: tar -xf"),
        (b"version https://git-lfs.github.com/spec/v1\n", "a Git LFS pointer instead of its content; run `git lfs"),
        (b"PAR1\x15\x04\n\x15PAR1", r"Parquet; convert it: pandas\.read_parquet"),
    ],
)
def test_a_file_of_another_kind_is_named_with_what_makes_jsonl_of_it_and_is_no_bad_line(tmp_path, data, said):
    path = tmp_path / "tasks.jsonl"
    path.write_bytes(data)
    problems: list[str] = []
    for read in (lambda: list(read_lines(path, problems.append)), lambda: read_json(path)):
        with pytest.raises(DataError, match=rf"tasks\.jsonl is {said}"):
            read()
    assert problems == []


@pytest.mark.parametrize("line", ['{"a": 1, "b": 2, "a": 3}', '{"b":{"c":[{"a":1,"a":1}]}}', '{"a":1,"\\u0061":2}'])
def test_a_name_that_comes_twice_in_an_object_is_refused_as_no_one_knows_which_one_counts(tmp_path, line):
    path = tmp_path / "tasks.jsonl"
    path.write_text(f'{{"a": [{{"a": 1}}, {{"a": 2}}]}}\n{line}\n{{"a": 1e3, "é": "\\u00e9"}}\n')
    problems: list[str] = []
    assert [data for _, data in read_lines(path, problems.append)] == [
        {"a": [{"a": 1}, {"a": 2}]},
        {"a": 1e3, "é": "é"},
    ]
    (problem,) = problems
    assert problem.startswith(f"{path}:2: malformed JSON (an object has 'a' twice: keep one): b'{{")
    path.write_text(line)
    with pytest.raises(DataError, match=r"tasks\.jsonl: malformed JSON \(an object has 'a' twice: keep one\)"):
        read_json(path)


def test_a_failed_write_leaves_the_old_file_and_what_a_killed_one_left_goes_with_the_next(tmp_path: Path) -> None:
    path = tmp_path / "actor"
    path.write_text("old")
    with pytest.raises(RuntimeError), atomic_path(path) as temporary:  # noqa: PT012
        temporary.write_text("half")
        raise RuntimeError
    assert path.read_text() == "old"
    assert list(tmp_path.iterdir()) == [path]
    path.unlink()
    killed = subprocess.Popen(["true"])
    killed.wait()
    left = [tmp_path / f".actor.{kind}{killed.pid}" for kind in ("tmp", "old")]
    others = [tmp_path / f".actor.tmp{os.getppid()}", tmp_path / f".actor2.tmp{killed.pid}", tmp_path / ".actor.tmp"]
    for folder in (*left, *others):
        folder.mkdir()
        (folder / "model.safetensors").touch()
    with atomic_path(path) as temporary:
        temporary.mkdir()
    assert sorted(tmp_path.iterdir()) == sorted([path, *others])
    path = tmp_path / ("n" * 250)  # longer than names may be with the marks of a temporary file
    with pytest.raises(OSError, match="File name too long") as refused:
        write_text(path, "")
    assert refused.value.filename == str(path)


def test_a_device_or_pipe_is_written_to_and_a_link_is_followed(tmp_path: Path) -> None:
    reader, writer = os.pipe()
    pipe = tmp_path / "pipe"
    pipe.symlink_to(f"/dev/fd/{writer}")
    assert write_records(pipe, [Label("a", 0.5, 1)]) == 1
    assert json.loads(os.read(reader, 1000))["trajectory_id"] == "a"
    for end in (reader, writer):
        os.close(end)
    with pytest.raises(OSError, match="No space left on device: '/dev/full'"):
        write_text(Path("/dev/full"), "x" * 100_000)
    assert Path("/dev/full").is_char_device()
    target, link = tmp_path / "file", tmp_path / "link"
    target.write_text("old")
    link.symlink_to(target)
    write_text(link, "new")
    assert link.is_symlink()
    assert target.read_text() == "new"


def test_a_config_is_laid_over_its_base_section_by_section(tmp_path: Path) -> None:
    (tmp_path / "shared").mkdir()
    (tmp_path / "shared" / "base.yaml").write_text("seed: 3\nactor: {lr: 0.5, epochs: 2}\ntasks: {train_sites: [a]}\n")
    (tmp_path / "own.yaml").write_text("base: shared/base.yaml\nactor: {lr: 0.25}\ntasks: {train_sites: [c]}\n")
    config = load_config(tmp_path / "own.yaml", ["actor.epochs=4"])
    assert (config.seed, config.actor.lr, config.actor.epochs) == (3, 0.25, 4)
    assert config.tasks.train_sites == ("c",)
    (tmp_path / "own.yaml").write_text("base: demo\nseed: 5\n")
    assert load_config(tmp_path / "own.yaml") == load_config("demo", ["seed=5"])


def test_a_key_of_a_section_may_replace_what_a_merge_brings(tmp_path: Path) -> None:
    (tmp_path / "own.yaml").write_text(
        "rollout:\n  engine: &ours\n    <<: {timeout_s: 7, max_retries: 1}\n    max_retries: 2\n"
        "engine: {<<: *ours, timeout_s: 9}\n"
    )
    config = load_config(tmp_path / "own.yaml")
    assert [(e.timeout_s, e.max_retries) for e in (config.rollout.engine, config.label.engine)] == [(7, 2), (9, 2)]


def test_numbers_null_and_a_home_are_understood(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    config = load_config(None, ["name='010'", "actor.lr=0.010", "seed=0x10", "num_phases=0"])
    assert (config.name, config.actor.lr, config.seed, config.num_phases) == ("010", 0.01, 16, 0)
    assert load_config(None, ["actor.max_kl=null", "rollout.upload_dir=null", "rollout.viewport=null"])
    config = load_config(None, ["actor.scale_rewards=none", "rollout.settle_cap_s=40", "rollout.step_timeout_s=60"])
    assert (config.actor.scale_rewards, config.rollout.settle_cap_s) == ("none", 40)
    monkeypatch.setenv("HOME", str(tmp_path))
    for folder in ("~/mine", "$HOME/mine", "${HOME}/mine"):
        assert load_config(None, [f"runs_dir={folder}", "name=a"]).run_dir == tmp_path / "mine" / "a"


def test_of_a_config_that_was_cut_off_nothing_is_read_in_silence_but_whole_lines(tmp_path: Path, caplog) -> None:
    whole = "seed: 3\ntasks:\n  site_weights:\n    '': 0.5\nactor: {lr: 0.5}\ntrackers: []\nname: ''  # none\n"
    silent, refused = [], []
    for length in range(len(whole) + 1):
        (tmp_path / "own.yaml").write_text(whole[:length])
        caplog.clear()
        try:
            read_config(tmp_path / "own.yaml")
        except UsageError as error:
            refused += [whole[:length]] if "was it cut off? Write the value, or null" in str(error) else []
        else:
            silent += [] if "has no newline: was the file cut off? If not, add one" in caplog.text else [whole[:length]]
    lines = whole.splitlines(keepends=True)
    assert silent == ["".join(lines[:number]) for number in (0, 1, 4, 5, 6, 7)]
    assert {"".join(lines[:2]), "".join(lines[:3]), "seed:"} <= set(refused)


def test_wilson_interval_by_hand() -> None:
    # p = 0.4, n = 240, z = 1.959964: centre 0.401575, half-width 0.061467
    low, high = wilson_interval(96, 240)
    assert low == pytest.approx(0.34010, abs=2e-4)
    assert high == pytest.approx(0.46305, abs=2e-4)
    assert wilson_interval(0, 0) == (0.0, 1.0)
    assert wilson_interval(0, 10)[0] == pytest.approx(0.0, abs=1e-12)


def test_a_crashed_evaluation_episode_counts_as_failed_and_heldout_types_are_reported_apart() -> None:
    rate = success_rate([trajectory("a"), trajectory("b", Status.ENV_ERROR, None), trajectory("c", reward=0.0)])
    assert (rate.successes, rate.episodes, rate.errors) == (1, 3, 1)
    other = replace(trajectory("b", reward=0.0), task=replace(trajectory("b").task, split="eval_heldout"))
    summary = summarize_evaluation([trajectory("a"), other])
    assert (summary["episodes"], summary["heldout_types"]["episodes"]) == (1, 1)
    assert [repr(site["errors"]) for site in summary["by_task"].values()] == ["0"], "a count, not false"


def test_rates_by_site_hold_one_trajectory_at_a_time() -> None:
    made: list[weakref.ref[Trajectory]] = []

    def recorded() -> Iterator[Trajectory]:
        for number in range(9):
            one = trajectory(str(number), reward=number % 3)
            made.append(weakref.ref(one))
            yield one
            del one
            assert sum(ref() is not None for ref in made) <= 1

    rates = rates_by(recorded())
    assert [(name, rate["successes"], rate["episodes"]) for name, rate in rates.items()] == [
        ("miniwob.click-button", 6, 9)
    ]


def test_a_phase_is_held_against_the_start_task_by_task_and_only_where_the_tasks_are_the_same() -> None:
    def evaluation(rewards: Sequence[float | None], split: str = "eval") -> list[Trajectory]:
        tried = [trajectory(f"{split}{number}", reward=reward) for number, reward in enumerate(rewards)]
        return [replace(t, task=replace(t.task, split=split, task_id=t.trajectory_id)) for t in tried]

    start = [*evaluation([1.0] * 30 + [0.0] * 10), *evaluation([0.0, 1.0], "eval_heldout")]
    now = [*evaluation([1.0] * 14 + [0.0] * 26), *evaluation([1.0, 0.0], "eval_heldout")]
    counts = summarize_evaluation(now)
    add_over_start(counts, now, start)
    assert counts["over_start"]["tasks"] == 40
    assert [counts["over_start"]["difference"], *counts["over_start"]["ci95"]] == pytest.approx(
        paired_difference(14, 0, 16, 10)
    )
    assert difference_text(counts["over_start"]) == "-40.0 points [-53.5, -22.7], paired"
    assert counts["heldout_types"]["over_start"]["difference"] == 0
    unlike = {
        "a task is missing": (start[1:], {"heldout_types"}),
        "a held-out type's is missing": (start[:-1], {"seeds"}),
        "a task was played twice": ([*start, start[0]], {"heldout_types"}),
        "no episode has a verdict": ([*evaluation([None] * 40), *start[40:]], {"heldout_types"}),
        "nothing": ([], set()),
    }
    for why, (other, expected) in unlike.items():
        counts = summarize_evaluation(now)
        add_over_start(counts, now, other)
        parts = {"seeds": counts, "heldout_types": counts["heldout_types"]}
        assert {name for name, part in parts.items() if "over_start" in part} == expected, why
    counts = summarize_evaluation(now)
    add_over_start(counts, now, [*evaluation([None] + [1.0] * 39), *start[40:]])
    assert counts["over_start"]["tasks"] == 39, "what has no verdict is no pair"
    assert counts["over_start"]["ci95"] == pytest.approx(paired_difference(13, 0, 26, 0)[1:])


def config_in(tmp_path: Path, **changes: object) -> RunConfig:
    return RunConfig.model_validate({"name": "r", "runs_dir": str(tmp_path), **changes})


def test_a_phase_whose_folder_was_renamed_is_not_played_again_in_silence(tmp_path: Path) -> None:
    folder = open_run(config_in(tmp_path))
    for phase in range(3):
        folder.phase(phase).path.mkdir()
    open_run(config_in(tmp_path))
    folder.phase(1).path.rename(folder.path / "phase_1_old")
    with pytest.raises(StageError, match="r/phase_01 was renamed or removed, phase 2 was not: put it back"):
        open_run(config_in(tmp_path))
    (folder.path / "phase_1_old").rename(folder.phase(1).path)
    folder.phase(2).path.rename(folder.path / "phase_2")
    with pytest.raises(StageError, match="r/phase_02 was renamed or removed, phase 2 was not"):
        open_run(config_in(tmp_path))


def test_a_run_folder_of_another_or_an_empty_config_is_refused(tmp_path: Path) -> None:
    folder = open_run(config_in(tmp_path))
    with pytest.raises(StageError, match="seed: was 0, now 1"):
        open_run(config_in(tmp_path, seed=1))
    assert open_run(config_in(tmp_path, num_phases=3)).path == folder.path == tmp_path / "r"
    open_run(config_in(tmp_path, rollout={"recycle_after": 5000}))
    part = folder.config.read_text().partition("seed: 0")
    for text, what in (("\n", "is empty"), ("# nothing\n", "is empty"), ("".join(part[:2]), "ends within a line")):
        folder.config.write_text(text)
        for use in (lambda: open_run(config_in(tmp_path)), lambda: require_run(folder.path)):
            with pytest.raises(StageError, match=f"r/config.yaml {what}: the settings of this run are lost; put its"):
                use()
    folder.config.unlink()
    assert open_run(config_in(tmp_path, seed=1)).path == folder.path


def test_an_empty_config_is_said_to_be_one_and_a_missing_file_where_it_was_looked_for(tmp_path, caplog):
    path = tmp_path / "own.yaml"
    path.write_text("\n")
    assert load_config(path) == load_config(None)
    assert f"{path} is empty: was it saved?" in caplog.text
    with pytest.raises(DataError, match=rf"^nowhere.json: No such file or directory \(looked in {Path.cwd()}\)$"):
        read_json(Path("nowhere.json"))


def test_stages_come_in_the_methods_order_and_need_each_other(tmp_path: Path) -> None:
    names = ["gen-tasks", "filter-tasks", "rollout", "label", "replay", "train", "accept", "eval"]
    assert list(STAGES) == names
    with pytest.raises(StageError, match="stage 'rollout' has not finished"):
        run_stage(config_in(tmp_path), "label", 0)
    with pytest.raises(UsageError, match="unknown stage 'lable'"):
        run_stage(config_in(tmp_path), "lable")


def test_a_stage_does_not_go_on_with_a_part_of_what_an_earlier_one_wrote(tmp_path: Path) -> None:
    config = config_in(tmp_path)
    folder = open_run(config).phase(0)
    written = {  # by a stage, and after which stages it is read
        "gen-tasks": (folder.generated, ["gen-tasks"]), "filter-tasks": (folder.tasks, ["filter-tasks"]),
        "rollout": (folder.trajectories, ["rollout", "label", "eval"]), "label": (folder.labels, ["label", "eval"]),
        "replay": (folder.train, ["replay", "eval"]), "train": (folder.metrics, []), "accept": (folder.probe, []),
        "eval": (folder.eval, ["eval"]),
    }  # fmt: skip
    for stage, (path, _) in written.items():
        write_text(path, "{}\n{}\n")
        write_text(folder.train_filter, "{}\n{}\n")
        folder.mark_done(stage, {}, 0.0, 0.0, config)
        folder.require(stage)
    for writer, (path, readers) in [*written.items(), ("replay", (folder.train_filter, ["replay"]))]:
        for left in ("{}\n{", None):
            write_text(path, left or "")
            if left is None:
                path.unlink()
            said = rf"{path.name}: {len(left or '')} of the 6 bytes that '{writer}' wrote .* remove .*/{writer}\.json,"
            for stage in written:
                is_read = stage in readers and (stage != "eval" or folder.trajectories.is_file())
                with pytest.raises(StageError, match=said) if is_read else contextlib.nullcontext():
                    folder.require(stage)
        write_text(path, "{}\n{}\n{}\n")  # one that has been continued since
        folder.require("eval")
    folder.labels.unlink()
    folder.trajectories.unlink()  # removed with the rest of the episodes: nothing reads them then
    folder.require("eval")
    folder.tasks.unlink()
    folder.marker("rollout").unlink()
    with pytest.raises(StageError, match=r"tasks\.jsonl: 0 of the 6 bytes"):
        run_stage(config, "rollout", 0)


def test_a_judge_exchanged_under_its_path_is_refused(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("HOME", str(tmp_path))
    shutil.copytree("data/tiny/orm", judge := tmp_path / "judge")
    config = config_in(tmp_path, models={"orm": "~/judge", "generator": str(tmp_path)})  # a server has its weights
    run_stage(config, "gen-tasks", 0)
    (judge / "model.safetensors").write_bytes((judge / "model.safetensors").read_bytes()[:-4] + b"\0\0\0\1")
    for stage in ("gen-tasks", "filter-tasks"):  # the finished one too: its counts are of the other weights
        with pytest.raises(
            StageError, match=r"models\.orm=~/judge: holds other weights .*; put those back, or start a new run"
        ):
            run_stage(config, stage, 0)


def test_a_stage_runs_in_the_phase_where_it_is_due(tmp_path: Path) -> None:
    config = config_in(tmp_path, num_phases=1)
    folder = open_run(config)
    folder.phase(0).mark_done("gen-tasks", {}, 0.1, 10, config)
    assert next_phase(folder, "gen-tasks") == 0
    assert next_phase(folder, "filter-tasks") == 0
    rest = ", ".join(list(STAGES)[1:])
    assert plan(config) == [f"# phase 0: {rest} to do", f"# phase 1: gen-tasks, {rest} to do"]
    assert plan(config, "gen-tasks", 0) == ["# phase 0: done"]
    assert plan(config, "filter-tasks") == ["# phase 0: filter-tasks to do"], "the one where it is due"
    newest = newest_run(tmp_path)
    assert newest is not None
    assert newest.path == folder.path
    marker = json.loads((folder.phase(0).path / "stages" / "gen-tasks.json").read_text())
    assert {"config", "versions", "git_commit", "seed", "counts", "seconds"} <= set(marker)


def test_the_published_commands_work_in_any_order_after_a_finished_run(tmp_path, caplog):
    """`gen_task.py` begins a phase that `webrl run` did not plan: the others keep to the newest with rollouts."""
    config = config_in(tmp_path, num_phases=1)
    folder = open_run(config)
    for phase in (0, 1):
        for stage in STAGES:
            folder.phase(phase).mark_done(stage, {}, 0.1, 10, config)
        write_text(folder.phase(phase).trajectories, "")
    caplog.set_level("INFO")

    def train_says() -> str:
        caplog.clear()
        assert train_phase(config, None) == {}
        return caplog.text

    assert "phase_01: training has finished already" in train_says()
    assert "rollouts yet" not in caplog.text
    assert next_phase(folder, "gen-tasks") == 2
    folder.phase(2).mark_done("gen-tasks", {}, 0.1, 10, config)
    assert "phase_01: training has finished already" in train_says()
    assert f"phase_02 has no rollouts yet: `webrl run --run {folder.path} num_phases=2` plays and" in caplog.text
    assert next_phase(folder, "gen-tasks") == 2, "a second time nothing is written anew"
    write_text(folder.phase(2).trajectories, "")
    with pytest.raises(StageError, match="phase_02: stage 'replay' has not finished"):
        train_says()


def test_sections_share_what_they_do_not_say_themselves(tmp_path: Path) -> None:
    config = load_config(
        "demo", ["engine.kind=vllm", "training.lora_rank=8", "actor.lora_rank=4", "label.engine.kind=openai"]
    )
    kinds = [getattr(config, name).engine.kind for name in ("rollout", "generate", "label")]
    assert kinds == ["vllm", "vllm", "openai"]
    assert [getattr(config, name).lora_rank for name in ("critic", "actor", "sft", "orm")] == [8, 4, 8, 8]
    saved = config.model_dump(mode="json")
    assert "lora_rank" not in saved["critic"]
    assert saved["actor"]["lora_rank"] == 4
    assert RunConfig.model_validate(saved) == config
    as_objects = RunConfig(engine=EngineConfig(kind="vllm"), rollout=RolloutConfig(max_steps=3))
    assert (as_objects.rollout.engine.kind, as_objects.rollout.max_steps) == ("vllm", 3)
    assert load_config("demo").rollout.engine.max_batch == 32  # the file's
    typed = load_config("demo", ["engine.max_batch=1", "label.engine.max_batch=2"])
    assert [getattr(typed, name).engine.max_batch for name in ("rollout", "generate", "label")] == [1, 1, 2]
    (tmp_path / "base.yaml").write_text("critic: {max_tokens: 4096}\ntraining: {lora_rank: 8}\n")
    (tmp_path / "child.yaml").write_text("base: base.yaml\ntraining: {max_tokens: 2048}\nsft: {max_tokens: 512}\n")
    child = load_config(tmp_path / "child.yaml")
    assert [getattr(child, name).max_tokens for name in ("critic", "actor", "sft")] == [2048, 2048, 512]
    assert child.critic.lora_rank == 8


def test_a_run_may_name_the_same_settings_once_or_in_each_section(tmp_path: Path) -> None:
    own = [f"{name}.lora_rank=8" for name in ("critic", "actor", "sft", "orm")]
    where = [f"runs_dir={tmp_path}", "name=r"]
    open_run(load_config("demo", [*where, *own]))
    open_run(load_config("demo", [*where, "training.lora_rank=8"]))
    with pytest.raises(StageError, match=r"made with another config \(actor.lora_rank: was 8, now 0; critic.lora_rank"):
        open_run(load_config("demo", where))
