"""The published command, `scripts/process_data.py`, with a real tiny model."""

import json
import runpy
import shutil
import subprocess
import sys
from collections import Counter
from pathlib import Path
from types import SimpleNamespace

import pytest
from replay_builders import make_config, make_trajectory, replaying, shown, write_phase
from vab_builders import make_rows, write_trace

from webrl.config import ModelsConfig, RunConfig
from webrl.errors import UsageError
from webrl.llm.loading import load_tokenizer, tokenizer_fingerprint
from webrl.replay.demonstrations import open_encoder
from webrl.runs.folder import RunFolder
from webrl.runs.problems import ProblemLog
from webrl.runs.store import read_records, write_records
from webrl.training.critic import states_of
from webrl.types import StepRecord
from webrl_webarena.process import make_plan, process
from webrl_webarena.vab import read_vab

REPO = Path(__file__).parents[3]
process_data = SimpleNamespace(**runpy.run_path(str(REPO / "scripts" / "process_data.py")))


def run_script(*arguments, cwd):
    command = [sys.executable, str(REPO / "scripts" / "process_data.py"), *map(str, arguments)]
    return subprocess.run(command, cwd=cwd, capture_output=True, text=True, check=False)


def test_next_states_of_imported_experience_reach_the_critic(tmp_path, reader):
    """What follows a step of somebody's traces is nowhere else to be found than in their folder."""
    write_trace(tmp_path / "vab", rows=make_rows(num_steps=3))
    config = make_config(tmp_path, reader, replay={"perplexity_low": 1.0, "perplexity_high": 1e9, "max_ratio": 0.5})
    phase = write_phase(tmp_path / "phase", [make_trajectory("a")])
    plan = make_plan(config, rollout=phase, experience=[tmp_path / "vab"], actor=str(reader), output=phase / "t.jsonl")
    process(plan, config)
    records = list(read_records(plan.output_filter, StepRecord))
    (replayed,) = [r for r in records if r.source == "replay"]
    assert replayed.index == 1  # drawn by seed 0; its successor was not
    ((trace, _),) = read_vab(tmp_path / "vab", ProblemLog())
    following = open_encoder(load_tokenizer(str(reader)), str(reader), config)(trace, 2)
    assert replayed.next_prompt_ids == following.prompt_ids
    assert states_of(records, tmp_path)["12", 2].prompt_ids == following.prompt_ids


def make_vab_mess(folder):
    """Two good traces, and one of each kind that is not."""
    good = [json.dumps(row).encode() + b"\n" for row in make_rows()]
    write_trace(folder, "1", score=1)
    write_trace(folder, "2", score=0)
    write_trace(folder, "3", score=None)
    write_trace(folder, "4", score=-1)
    write_trace(folder, "5", lines=[])
    write_trace(folder, "6", lines=[good[0], b"{\n"])
    return folder


def test_a_trace_folder_goes_through_both_stages_with_rewards_and_loads_with_datasets(tmp_path, reader):
    import datasets

    config = make_config(tmp_path, reader, replay={"perplexity_low": 1.0, "perplexity_high": 1e9})
    write_phase(tmp_path / "past", [make_trajectory(f"h{i}") for i in range(6)])
    plan = make_plan(
        config, add_reward=True, rollout=make_vab_mess(tmp_path / "vab"), experience=[tmp_path / "past"],
        output=tmp_path / "out" / "train.jsonl",
    )  # fmt: skip
    summary = process(plan, config)
    assert summary["problems"] == {"no_action_file": 1, "negative_score": 1, "empty": 1, "broken_line": 1}
    assert summary["trajectories"] == {"trajectories": 2, "steps": 4, "unfinished": 2}
    assert summary["labels"]["judged"] == 2
    assert summary["history"] == {"kept": 8, "over_ratio": 4}
    assert len(plan.problem_list.read_text().splitlines()) == 4
    current = list(read_records(plan.output, StepRecord))
    tokenizer = load_tokenizer(str(reader))
    assert {r.tokenizer for r in current} == {tokenizer_fingerprint(tokenizer)}
    assert tokenizer.decode(current[0].prompt_ids).count("Find the cheapest lamp") == 1
    assert plan.output_filter == tmp_path / "out" / "train_filter.jsonl"
    for path, num in ((plan.output, 4), (plan.output_filter, 12)):
        rows = datasets.load_dataset("json", data_files=str(path), cache_dir=str(tmp_path / "cache"))["train"]
        assert len(rows) == num
        assert rows.features["ref_logprobs"].feature.dtype == "float64"
    again = process(plan, config)
    assert again["scored"] == {"computed": 0, "cached": 16}
    assert again["labels"] == {"unfinished": 2, "skipped": 2}


def test_the_bare_command_takes_the_newest_phase_of_the_newest_run(tmp_path, reader):
    config = make_config(tmp_path, reader)
    run = RunFolder(config.run_dir)
    write_phase(run.phase(0).path, [make_trajectory("a")])
    write_phase(run.phase(1).path, [make_trajectory("b")])
    (run.phase(0).train).write_bytes(b"")
    run.config.write_text("name: run\n")
    plan = make_plan(config, add_reward=True)
    assert plan.rollout == run.phase(1).path
    assert plan.output == run.phase(1).train
    assert plan.output_filter == run.phase(1).train_filter
    assert plan.experience == (run.phase(0).train,)
    assert plan.labels == run.phase(1).labels
    assert plan.actor == str(run.phase(0).actor)  # also where it is gone: nothing is scored under another one
    run.phase(2).mark_done("gen-tasks", {}, 0.1, 10, config)
    assert make_plan(config).rollout == run.phase(1).path, "phase 2 has no rollouts yet"
    run.phase(2).trajectories.touch()
    assert make_plan(config).rollout == run.phase(2).path


def test_path_lists_and_stages_may_be_separated_and_quoted_as_published():
    split = process_data.split_paths
    assert split(["a,", "b"]) == split(["a", "b"]) == split(["a,b"]) == split(["'a', \"b\""]) == [Path("a"), Path("b")]
    assert split(["with space/x.jsonl"]) == [Path("with space/x.jsonl")]
    # `"path1", "path2" \ ` as in the released README leaves an argument of one blank.
    assert split(["path1,", "path2", " "]) == [Path("path1"), Path("path2")]
    assert process_data.parse_stages(["1", "2"]) == process_data.parse_stages(["2,1"]) == (1, 2)
    assert process_data.parse_stages(['"2"']) == (2,)


@pytest.mark.quick
def test_the_command_runs_as_published_and_says_what_went_where(tmp_path, reader, script):
    write_phase(tmp_path / "one", [make_trajectory(f"h{i}") for i in range(3)])
    write_phase(tmp_path / "two", [make_trajectory(f"g{i}") for i in range(3)])
    make_vab_mess(tmp_path / "vab")
    (tmp_path / "c.yaml").write_text(f"models: {{device: cpu, orm: {reader}}}\nreplay: {{perplexity_high: 1.0e9}}\n")
    arguments = [
        "--stage", "1", "2", "--add_reward", "--rollout_path", "vab", "--experience_paths", "one,", "two",
        "--orm_path", str(reader), "--actor_path", str(reader), "--output_path", "train.jsonl", "--setting", "c.yaml",
    ]  # fmt: skip
    dry = script(*arguments, "--dry-run")
    assert dry.returncode == 0, dry.stderr
    assert "with history      train_filter.jsonl" in dry.stdout
    assert "judge's prompt    chat, at most " in dry.stdout
    assert not (tmp_path / "train.jsonl").exists()
    said = run_script(*arguments, cwd=tmp_path)
    assert said.returncode == 0, said.stderr
    assert "trajectories      2 trajectories, 4 steps, 2 unfinished" in said.stdout
    assert "listed with file and line in train_problems.txt" in said.stdout
    sources = Counter(r.source for r in read_records(tmp_path / "train_filter.jsonl", StepRecord))
    assert sources == {"current": 4, "replay": 8}


def test_the_folder_that_one_stands_in_can_be_named_by_a_dot_and_recorded_scores_count(
    tmp_path, reader, script, monkeypatch
):
    make_vab_mess(tmp_path / "vab")
    monkeypatch.chdir(tmp_path / "vab")
    done = script("--stage", "1", "--rollout_path", ".", "--actor_path", reader)
    assert "trajectories      2 trajectories, 4 steps, 2 unfinished" in done.stdout
    assert [r.outcome for r in read_records(tmp_path / "vab_train.jsonl", StepRecord)] == [1, 1, 0, 0]


def test_somebodys_rollouts_take_format_and_limits_from_the_actor_that_is_given(tmp_path, reader, script):
    """The newest run here is one with the demo's limits, which cut the page of a trace to nearly nothing."""
    small = make_config(tmp_path, reader, models={"max_prompt_tokens": 120, "actor": str(reader)})
    run = RunFolder(small.run_dir)
    write_phase(run.phase(0).path, [make_trajectory("a")])
    run.config.write_text("name: run\nmodels: {device: cpu, max_prompt_tokens: 120}\n")
    write_trace(tmp_path / "vab", rows=make_rows(num_steps=3))
    base = ["--stage", "1", "--rollout_path", "vab", "--actor_path", reader]
    result = script(*base, "--setting", "models.device=cpu")
    assert result.returncode == 0, result.stderr
    assert "prompt            webrl, at most 3584 tokens\n" in result.stdout  # 4096 positions less 512
    ((trace, _),) = read_vab(tmp_path / "vab", ProblemLog())
    models = ModelsConfig(prompt_format="webrl", max_prompt_tokens=3584)
    released = open_encoder(
        load_tokenizer(str(reader)), str(reader), RunConfig(models=models, rollout={"dialect": "webrl"})
    )
    written = read_records(tmp_path / "vab_train.jsonl", StepRecord)
    assert [r.prompt_ids for r in written] == [released(trace, i).prompt_ids for i in range(3)]

    def said(*more):
        done = script(*base, *more, "--dry-run")
        assert done.returncode == 0, done.stderr
        return next(line for line in done.stdout.splitlines() if line.startswith("prompt  "))

    assert said("--setting", "models.max_prompt_tokens=999").endswith("webrl, at most 999 tokens")
    assert said("--run", "runs/run").endswith("chat, at most 120 tokens")
    assert said("--rollout_path", "runs/run/phase_00").endswith("chat, at most 120 tokens")  # a run's own rollouts
    shutil.copytree(reader, tmp_path / "runs" / "run" / "phase_00" / "actor")
    assert said("--actor_path", "runs/run/phase_00/actor").endswith("chat, at most 120 tokens")


@pytest.fixture
def script(tmp_path, monkeypatch, capsys):
    """The command in `tmp_path`, without a process of its own."""
    monkeypatch.chdir(tmp_path)

    def call(*arguments):
        try:
            code = process_data.main(list(map(str, arguments)))
        except SystemExit as end:  # argparse's
            code = end.code
        return subprocess.CompletedProcess(arguments, code, *capsys.readouterr())

    return call


def test_what_the_models_need_is_looked_for_first(tmp_path, reader):
    seeing = make_config(tmp_path, reader, rollout={"screenshots": True, "image_size": 96})
    with pytest.raises(UsageError, match=r"rollout.image_size=96: process_data reads only text; for screenshots, use"):
        process(make_plan(seeing), seeing)
    config = make_config(tmp_path, reader, label={"system_prompt": str(tmp_path / "none.txt")})
    plan = make_plan(config, rollout=write_phase(tmp_path / "p", [make_trajectory("a")]), add_reward=True)
    with pytest.raises(UsageError, match=r"none\.txt: No such file.*build_rm_data"):
        process(plan, config)
    for name, experience in (("trajectories.jsonl", []), ("labels.jsonl", []), ("new.jsonl", ["new_filter.jsonl"])):
        write_records(tmp_path / "p" / "new_filter.jsonl", [])
        earlier = [tmp_path / "p" / old for old in experience]
        plan = make_plan(config, rollout=tmp_path / "p", actor="none", experience=earlier, output=tmp_path / "p" / name)
        with pytest.raises(UsageError, match=f"it would replace .*/{[name, *experience][-1]}, an input"):
            process(plan, config)
    (tmp_path / "p" / "new_filter.jsonl").unlink()
    assert sorted(p.name for p in tmp_path.rglob("*.jsonl")) == ["labels.jsonl", "trajectories.jsonl"]


def test_the_sample_traces_that_ship_are_readable(reader, monkeypatch, tmp_path):
    monkeypatch.chdir(REPO)
    config = make_config(tmp_path, reader, replay={"perplexity_low": 1.0, "perplexity_high": 1e9})
    plan = make_plan(config, add_reward=True)
    assert plan.rollout == Path("data/samples/vab")
    assert plan.output == config.runs_dir / "samples" / "train.jsonl"
    summary = process(plan, config)
    assert summary["num_current"] >= 4
    assert summary["history"]["kept"] >= 2


def test_process_data_begins_with_demonstrations_too(tmp_path, reader):
    step = {"observation": "[1] button 'a'", "response": "click('1')"}
    lines = [{"instruction": f"do h{i}", "site": "site", "steps": [step] * 2, "success": i % 2} for i in range(4)]
    (tmp_path / "people.jsonl").write_text("\n".join(map(json.dumps, lines)))
    config = replaying(tmp_path, reader, tmp_path / "people.jsonl")
    past = write_phase(tmp_path / "past", [make_trajectory(f"h{i}", 1) for i in range(4)])
    rollout = write_phase(tmp_path / "now", [make_trajectory("p0", 4)])
    paths = {"rollout": rollout, "experience": [past], "output": tmp_path / "train.jsonl"}
    plan = make_plan(config, **paths)
    assert f"demonstrations    {tmp_path}/people.jsonl" in plan.describe(config)
    # People did h1 and h3 in two steps each, and failed at h0 and h2; the past did all four in one, on other pages.
    assert process(plan, config)["history"] == {"kept": 8, "failed": 4}
    written = [r.instruction for r in read_records(plan.output_filter, StepRecord) if r.source == "replay"]
    assert written == ["do h1", "do h1", "do h3", "do h3", "do h0", "do h1", "do h2", "do h3"]
    with pytest.raises(UsageError, match=r"replay\.demos: demonstrations are text, which takes an actor to read"):
        process(make_plan(config, actor="none", **paths), config)
    absent = replaying(tmp_path, reader, tmp_path / "absent")
    with pytest.raises(UsageError, match=r"replay\.demos: .*absent: No such file"):
        process(make_plan(absent, **paths), absent)


def test_process_data_leaves_phase_0_of_a_run_without_demonstrations_as_the_run_does(tmp_path, reader):
    write_records(tmp_path / "demos" / "trajectories.jsonl", [shown("d0")])
    config = replaying(tmp_path, reader, tmp_path / "demos")
    run = RunFolder(config.run_dir)
    write_phase(run.phase(0).path, [make_trajectory("p0")])
    run.config.write_text("name: run\n")
    assert make_plan(config).demos == ()
    write_phase(run.phase(1).path, [make_trajectory("p1")])
    run.phase(0).train.touch()
    assert make_plan(config).demos == (tmp_path / "demos",)
