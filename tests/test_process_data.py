"""The published command and the streams under it, with a real tiny model."""

import json
import math
import random
import re
import runpy
import shutil
import subprocess
import tracemalloc
from collections import Counter
from dataclasses import replace
from pathlib import Path
from types import SimpleNamespace

import orjson
import pytest
from llm_builders import save_tiny_model, score
from processes import python
from test_interop_vab import make_rows, write_trace

from webrl.config import ModelsConfig, ReplayConfig, RunConfig, validate_config
from webrl.errors import ModelError, TrainingError, UsageError
from webrl.interop.problems import ProblemLog
from webrl.interop.vab import read_vab
from webrl.llm.loading import load_tokenizer, tokenizer_fingerprint
from webrl.llm.prompts import build_policy_prompt
from webrl.llm.tokens import encode_plain
from webrl.replay.demonstrations import open_encoder
from webrl.replay.process import make_plan, process
from webrl.replay.score import score_on_devices
from webrl.replay.sources import Source, Tools, build_records, find_source, read_steps
from webrl.replay.stage import add_history, mix_replay
from webrl.runs.folder import RunFolder
from webrl.runs.store import dump_line, read_records, write_records
from webrl.training.critic import states_of
from webrl.training.scoring import score_actions
from webrl.types import Label, Status, Step, StepRecord, Task, Trajectory

REPO = Path(__file__).parent.parent
process_data = SimpleNamespace(**runpy.run_path(str(REPO / "scripts" / "process_data.py")))


@pytest.fixture(scope="module")
def actor(tmp_path_factory):
    return save_tiny_model(tmp_path_factory.mktemp("actor"), positions=4096)


def make_trajectory(name, num_steps=2, *, status=Status.PAGE_ENDED, ids=True, instruction=None, phase=0):
    rng = random.Random(name)
    steps = []
    for i in range(num_steps):
        action = (rng.randrange(5, 300), rng.randrange(5, 300), 3)
        sampled = {"prompt_ids": (0, *(rng.randrange(5, 300) for _ in range(20))), "action_ids": action,
                   "logprobs": (-0.1, -0.25, -0.0)}  # fmt: skip
        steps.append(Step(i, f"page {i} of {name}", f"click('{i}')", f"click('{i}')", **(sampled if ids else {})))
    instruction = instruction or f"do {name}"
    return Trajectory(name, Task(f"task-{name}", "site"), instruction, phase, tuple(steps), "end", status)


def write_phase(folder, trajectories, rewards=None):
    rewards = rewards if rewards is not None else [1] * len(trajectories)
    write_records(folder / "trajectories.jsonl", trajectories)
    labels = [
        Label(t.trajectory_id, None if r is None else float(r), r) for t, r in zip(trajectories, rewards, strict=True)
    ]
    write_records(folder / "labels.jsonl", labels)
    return folder


def read_all(source, **options):
    problems = ProblemLog()
    tools = Tools(problems, **options)
    return list(read_steps(source, tools)), tools.counts, problems.counts


def make_config(tmp_path, model, replay=None, **sections):
    """Made-up log-probs are no model's: how far they are from the actor's is not looked at."""
    sections["replay"] = {"sampler_tolerance": 1000.0, **(replay or {})}
    data = {"name": "run", "runs_dir": str(tmp_path / "runs"), "models": {"actor": str(model), "orm": str(model),
            "device": "cpu", "max_prompt_tokens": 2000}, **sections}  # fmt: skip
    return validate_config(data, "test")


def test_steps_of_a_trajectory_file_are_those_that_build_records_makes(tmp_path):
    trajectories = [make_trajectory(f"t{i}", i % 4 + 1) for i in range(8)]
    trajectories[3] = replace(trajectories[3], status=Status.ENV_ERROR)
    trajectories[5] = replace(trajectories[5], steps=(replace(trajectories[5].steps[0], logprobs=(-0.1,)),))
    rewards = [1, 0, None, 1, 1, 0, 1, 0]
    write_phase(tmp_path, trajectories, rewards)
    labels = {t.trajectory_id: Label(t.trajectory_id, None, r) for t, r in zip(trajectories, rewards, strict=True)}
    tools = Tools(ProblemLog(), tokenizer="tok")
    expected = [dump_line(r) for t in trajectories for r in build_records(t, labels[t.trajectory_id], tools)]
    outcomes = {i: label.reward for i, label in labels.items()}
    steps, counts, problems = read_all(find_source(tmp_path), outcomes=outcomes, tokenizer="tok")
    assert [dump_line(step) for step in steps] == expected
    assert counts == tools.counts
    assert counts == {"trajectories": 6, "steps": len(expected), "unfinished": 1, "unlabelled": 1}
    assert problems == {}


def test_without_labels_no_reward_is_added_and_the_environments_never_reaches_a_training_record(tmp_path):
    write_records(tmp_path / "trajectories.jsonl", [replace(make_trajectory("a"), env_reward=0.987654)])
    for outcomes, expected in ((None, None), ({"a": 0}, 0)):
        steps, _, _ = read_all(find_source(tmp_path), outcomes=outcomes)
        assert [step.outcome for step in steps] == [expected] * 2
        assert all(b"0.987654" not in dump_line(step) for step in steps)


def test_steps_without_ids_are_tokenised_as_the_policy_would_have_seen_them(tmp_path, actor):
    tokenizer = load_tokenizer(str(actor))
    models = ModelsConfig(max_prompt_tokens=2000)
    trajectory = make_trajectory("a", ids=False)
    write_records(tmp_path / "trajectories.jsonl", [trajectory])
    steps, counts, _ = read_all(find_source(tmp_path), encode=open_encoder(tokenizer, "", RunConfig(models=models)))
    prompt = build_policy_prompt(tokenizer, "do a", trajectory.steps[:1], "page 1 of a", RunConfig(models=models))
    assert steps[1].prompt_ids == tuple(prompt.ids)
    assert steps[1].action_ids == (*encode_plain(tokenizer, "click('1')"), tokenizer.eos_token_id)
    assert steps[1].logprobs is None
    assert counts == {"trajectories": 1, "steps": 2}
    assert read_all(find_source(tmp_path))[1] == {"trajectories": 1, "no_token_ids": 2}


def test_the_released_objective_gets_the_prompt_after_the_last_step(tmp_path, actor):
    config = make_config(tmp_path, actor, actor={"objective": "webrl_released"})
    phase = RunFolder(config.run_dir).phase(0)
    trajectory = make_trajectory("a")
    write_phase(phase.path, [trajectory])
    mix_replay(config, phase, actor=str(actor), history=[], rng=random.Random(0))
    first, last = read_records(phase.train, StepRecord)
    tokenizer = load_tokenizer(str(actor))
    after = build_policy_prompt(tokenizer, "do a", trajectory.steps, "page 1 of a", config)
    assert first.next_prompt_ids == ()
    assert last.next_prompt_ids == after.ids
    assert last.prompt_ids == trajectory.steps[1].prompt_ids


def test_damaged_trajectory_files_are_processed_and_each_problem_listed_with_its_line(tmp_path):
    good = dump_line(make_trajectory("a"))
    data = orjson.loads(good)
    lines = [
        *(good, good, b"{broken\n", b"\n", b"[1, 2]\n"),
        orjson.dumps({k: v for k, v in data.items() if k != "steps"} | {"trajectory_id": "b"}) + b"\n",
        orjson.dumps(data | {"trajectory_id": "c", "status": "exploded"}) + b"\n",
        orjson.dumps(data | {"trajectory_id": "d", "steps": []}) + b"\n",
        good.replace(b'"a"', b'"\xff"'),
        dump_line(make_trajectory("e"))[:-30],
    ]
    path = tmp_path / "trajectories.jsonl"
    path.write_bytes(b"".join(lines))
    problems = ProblemLog(tmp_path / "problems.txt")
    with problems:
        steps = list(read_steps(Source(path, "trajectories"), Tools(problems)))
    assert {step.trajectory_id for step in steps} == {"a"}
    listed = problems.path.read_text().splitlines()
    numbers = [int(line.split(f"{path}:")[1].split(":")[0]) for line in listed]
    assert numbers == [2, 3, 5, 6, 7, 8, 9, 10]
    assert "duplicate_id" in listed[0]
    assert "missing field 'steps' in Trajectory" in listed[3]
    assert re.search("field 'status': must be 'page_ended'.*found 'exploded'", listed[4])
    assert problems.counts == {"duplicate_id": 1, "broken_line": 3, "bad_trajectory": 4}


def test_a_source_is_recognised_by_what_it_holds(tmp_path):
    write_trace(tmp_path / "vab")
    phase = write_phase(tmp_path / "phase_00", [make_trajectory("a")])
    write_records(phase / "train.jsonl", read_all(find_source(phase))[0])
    assert {find_source(tmp_path / name).kind for name in ("vab", "vab/traces")} == {"vab"}
    assert find_source(phase) == Source(phase / "trajectories.jsonl", "trajectories")
    experience = Source(phase / "train.jsonl", "records")
    assert find_source(phase, prefer_records=True) == find_source(phase / "train.jsonl") == experience


def mixed(folder, num_current, config=None, *, seed=0, end=(3,), problems=None):
    """`out.jsonl` from `train.jsonl` and `history.jsonl`."""
    sources, tools = [Source(folder / "history.jsonl", "records")], Tools(problems or ProblemLog(), end_token_ids=end)
    rng = random.Random(seed)
    config = config or ReplayConfig()
    return add_history(folder / "train.jsonl", num_current, sources, tools, config, rng, folder / "out.jsonl")[0]


def make_history(num, p=0.7):
    """Steps with stored log-probs, two a trajectory."""
    logprobs = (math.log(p), math.log(p), 0.0)
    trajectories = [make_trajectory(f"h{i:03}", instruction=f"x{i % 40}", phase=i // 10) for i in range(num)]
    tools = Tools(ProblemLog())
    return [
        replace(record, ref_logprobs=logprobs)
        for i, t in enumerate(trajectories)
        for record in build_records(t, Label(t.trajectory_id, None, int(i % 3 > 0)), tools)
    ]


@pytest.mark.parametrize("strategy", ["perplexity", "all", "none"])
def test_current_steps_stay_as_they_are_beside_twice_as_many_replayed_ones(tmp_path, strategy):
    records = make_history(90)
    write_records(tmp_path / "history.jsonl", records)
    write_records(tmp_path / "train.jsonl", records[:7])
    config = ReplayConfig(strategy=strategy)
    counts = mixed(tmp_path, 7, config, seed=5)
    written = list(read_records(tmp_path / "out.jsonl", StepRecord))
    replayed = [replace(r, next_prompt_ids=(), source="current") for r in written if r.source == "replay"]
    assert [r for r in written if r.source == "current"] == records[:7]
    assert replayed == [r for r in records if r in replayed and r.outcome == 1]
    assert len(replayed) == counts["kept"] == (14 if strategy != "none" else 0)
    assert sum(counts.values()) == len(records)


def test_a_torn_or_foreign_history_line_is_listed_and_the_rest_used(tmp_path):
    records = make_history(3)
    lines = [dump_line(r) for r in records]
    (tmp_path / "history.jsonl").write_bytes(lines[2] + b'{"step_id": "x"}\n' + lines[3] + lines[4][:-20])
    write_records(tmp_path / "train.jsonl", records[:2])
    problems = ProblemLog()
    counts = mixed(tmp_path, 2, problems=problems)
    assert counts == {"kept": 2}
    assert problems.counts == {"broken_line": 2}


def test_a_replayed_step_carries_the_next_state_that_the_filter_left_out(tmp_path, caplog):
    likely, certain = (math.log(0.7),) * 3, (math.log(0.99),) * 3  # the band is (0.5, 0.95]
    trajectory = make_trajectory("h", 4)
    records = [
        replace(r, ref_logprobs=certain if r.index == 1 else likely)
        for r in build_records(trajectory, Label("h", None, 1), Tools(ProblemLog()))
    ]
    write_records(tmp_path / "history.jsonl", records)
    write_records(tmp_path / "train.jsonl", make_history(3)[:6])
    counts = mixed(tmp_path, 6, end=())
    assert counts == {"too_certain": 1, "kept": 3}
    replayed = {r.index: r for r in read_records(tmp_path / "out.jsonl", StepRecord) if r.source == "replay"}
    assert replayed[0].next_prompt_ids == records[1].prompt_ids
    assert replayed[2].next_prompt_ids == ()  # the next step is in the file
    assert replayed[3].next_prompt_ids == ()  # nothing comes after it
    assert caplog.text == ""


def test_replayed_steps_whose_next_state_nobody_knows_are_counted_aloud(tmp_path, caplog):
    write_records(tmp_path / "history.jsonl", [r for r in make_history(9) if r.index == 0])
    write_records(tmp_path / "train.jsonl", make_history(9)[:6])
    mixed(tmp_path, 6)
    assert "6 of 6 replayed steps come without their next state" in caplog.text


def test_next_states_of_imported_experience_reach_the_critic(tmp_path, actor):
    """What follows a step of somebody's traces is nowhere else to be found than in their folder."""
    write_trace(tmp_path / "vab", rows=make_rows(num_steps=3))
    config = make_config(tmp_path, actor, replay={"perplexity_low": 1.0, "perplexity_high": 1e9, "max_ratio": 0.5})
    phase = write_phase(tmp_path / "phase", [make_trajectory("a")])
    plan = make_plan(config, rollout=phase, experience=[tmp_path / "vab"], actor=str(actor), output=phase / "t.jsonl")
    process(plan, config)
    records = list(read_records(plan.output_filter, StepRecord))
    (replayed,) = [r for r in records if r.source == "replay"]
    assert replayed.index == 1  # drawn by seed 0; its successor was not
    ((trace, _),) = read_vab(tmp_path / "vab", ProblemLog())
    following = open_encoder(load_tokenizer(str(actor)), str(actor), config)(trace, 2)
    assert replayed.next_prompt_ids == following.prompt_ids
    assert states_of(records, tmp_path)["12", 2].prompt_ids == following.prompt_ids


def test_memory_does_not_grow_with_the_number_of_trajectories(tmp_path):
    def peak(num):
        folder = tmp_path / str(num)
        write_phase(folder, [make_trajectory(f"t{i}", 10) for i in range(num)])
        source = find_source(folder)
        outcomes = {f"t{i}": 1 for i in range(num)}
        tracemalloc.start()
        steps = write_records(folder / "train.jsonl", read_steps(source, Tools(ProblemLog(), outcomes=outcomes)))
        past, every = [Source(folder / "train.jsonl", "records")], ReplayConfig(strategy="all")
        tools, rng = Tools(ProblemLog()), random.Random(0)
        add_history(folder / "train.jsonl", steps, past, tools, every, rng, folder / "out.jsonl")
        size = tracemalloc.get_traced_memory()[1]
        tracemalloc.stop()
        return size, (folder / "trajectories.jsonl").stat().st_size

    # Both files are larger than the buffers. What stays of a trajectory is its keys and step offsets.
    (small, small_bytes), (large, large_bytes) = peak(300), peak(900)
    assert (tmp_path / "300" / "train.jsonl").stat().st_size > 1 << 20
    assert large - small < (large_bytes - small_bytes) / 4, (small, large, small_bytes, large_bytes)


def test_the_replay_stage_scores_under_the_actor_once_and_keeps_the_band(tmp_path, actor):
    config = make_config(tmp_path, actor, replay={"perplexity_low": 1.0, "perplexity_high": 1e9})
    run = RunFolder(config.run_dir)
    for phase in range(2):
        write_phase(run.phase(phase).path, [make_trajectory(f"p{phase}-{i}", phase=phase) for i in range(4)])
    first = mix_replay(config, run.phase(0), actor=str(actor), history=[], rng=random.Random(0))
    assert (first["num_current"], first["num_replayed"]) == (8, 0)
    history = [run.phase(0).train]
    counts = mix_replay(config, run.phase(1), actor=str(actor), history=history, rng=random.Random(0))
    assert (counts["num_current"], counts["num_replayed"], counts["by_type"]) == (8, 8, {"site": 8})
    # Phase 0's steps were scored in phase 0 under the same weights: only the new ones are computed.
    assert counts["scored"] == {"computed": 8, "cached": 8}
    for record in read_records(run.phase(1).train_filter, StepRecord):
        expected = score(actor, record.prompt_ids, record.action_ids)
        assert record.ref_logprobs == pytest.approx(expected, abs=1e-4)
    again = mix_replay(config, run.phase(1), actor=str(actor), history=history, rng=random.Random(0))
    assert again["scored"] == {"computed": 0, "cached": 16}


def test_the_replay_stage_replaces_log_probs_of_an_older_actor_and_drops_another_tokenizers_experience(tmp_path, actor):
    config = make_config(tmp_path, actor, replay={"perplexity_low": 1.0, "perplexity_high": 1e9})
    phase = RunFolder(config.run_dir).phase(1)
    write_phase(phase.path, [make_trajectory("a")])
    known, foreign = make_history(2), [replace(r, tokenizer="another", site="other") for r in make_history(2)]
    write_records(tmp_path / "history.jsonl", [*known, *foreign])
    counts = mix_replay(config, phase, actor=str(actor), history=[tmp_path / "history.jsonl"], rng=random.Random(0))
    assert counts["history"] == {"failed": 4, "other_tokenizer": 2, "kept": 2}
    replayed = [r for r in read_records(phase.train_filter, StepRecord) if r.source == "replay"]
    assert [r.site for r in replayed] == ["site"] * 2
    expected = score(actor, replayed[0].prompt_ids, replayed[0].action_ids)
    assert replayed[0].ref_logprobs == pytest.approx(expected, abs=1e-4)


@pytest.mark.slow
def test_scoring_spread_over_devices_gives_the_same_in_the_same_order(tmp_path, actor):
    config = make_config(tmp_path, actor)
    records = make_history(5)
    here = score_actions(records, actor, config)
    spread = score_on_devices(records, str(actor), config, ["cpu", "cpu"])
    assert [r.step_id for r in spread] == [r.step_id for r in here]
    for one, other in zip(here, spread, strict=True):
        assert one.ref_logprobs == pytest.approx(other.ref_logprobs, abs=1e-5)
    for wrong in (-1, 1 << 20):
        with pytest.raises(TrainingError, match=rf"'{records[0].step_id}' holds token id {wrong}, but .* tokens"):
            score_actions([replace(records[0], prompt_ids=(wrong, 5))], actor, config)


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


def test_a_trace_folder_goes_through_both_stages_with_rewards_and_loads_with_datasets(tmp_path, actor):
    import datasets

    config = make_config(tmp_path, actor, replay={"perplexity_low": 1.0, "perplexity_high": 1e9})
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
    tokenizer = load_tokenizer(str(actor))
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


def test_the_bare_command_takes_the_newest_phase_of_the_newest_run(tmp_path, actor):
    config = make_config(tmp_path, actor)
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


def test_path_lists_and_stages_may_be_separated_and_quoted_as_published():
    split = process_data.split_paths
    assert split(["a,", "b"]) == split(["a", "b"]) == split(["a,b"]) == split(["'a', \"b\""]) == [Path("a"), Path("b")]
    assert split(["with space/x.jsonl"]) == [Path("with space/x.jsonl")]
    # `"path1", "path2" \ ` as in the released README leaves an argument of one blank.
    assert split(["path1,", "path2", " "]) == [Path("path1"), Path("path2")]
    assert process_data.parse_stages(["1", "2"]) == process_data.parse_stages(["2,1"]) == (1, 2)
    assert process_data.parse_stages(['"2"']) == (2,)
    for bad in (["3"], ["one"], ["1", "5"], [","]):
        with pytest.raises(UsageError, match="expected 1, 2 or both"):
            process_data.parse_stages(bad)


def test_the_command_runs_as_published_and_says_what_went_where(tmp_path, actor, script):
    write_phase(tmp_path / "one", [make_trajectory(f"h{i}") for i in range(3)])
    write_phase(tmp_path / "two", [make_trajectory(f"g{i}") for i in range(3)])
    make_vab_mess(tmp_path / "vab")
    (tmp_path / "c.yaml").write_text(f"models: {{device: cpu, orm: {actor}}}\nreplay: {{perplexity_high: 1.0e9}}\n")
    arguments = [
        "--stage", "1", "2", "--add_reward", "--rollout_path", "vab", "--experience_paths", "one,", "two",
        "--orm_path", str(actor), "--actor_path", str(actor), "--output_path", "train.jsonl", "--setting", "c.yaml",
    ]  # fmt: skip
    dry = script(*arguments, "--dry-run")
    assert dry.returncode == 0, dry.stderr
    assert "with history      train_filter.jsonl" in dry.stdout
    assert "judge's prompt    chat, at most " in dry.stdout
    assert not (tmp_path / "train.jsonl").exists()
    said = python(REPO / "scripts" / "process_data.py", *arguments, cwd=tmp_path)
    assert "trajectories      2 trajectories, 4 steps, 2 unfinished" in said.stdout
    assert "listed with file and line in train_problems.txt" in said.stdout
    sources = Counter(r.source for r in read_records(tmp_path / "train_filter.jsonl", StepRecord))
    assert sources == {"current": 4, "replay": 8}


def test_the_folder_that_one_stands_in_can_be_named_by_a_dot_and_recorded_scores_count(
    tmp_path, actor, script, monkeypatch
):
    make_vab_mess(tmp_path / "vab")
    monkeypatch.chdir(tmp_path / "vab")
    done = script("--stage", "1", "--rollout_path", ".", "--actor_path", actor)
    assert "trajectories      2 trajectories, 4 steps, 2 unfinished" in done.stdout
    assert [r.outcome for r in read_records(tmp_path / "vab_train.jsonl", StepRecord)] == [1, 1, 0, 0]


def test_somebodys_rollouts_take_format_and_limits_from_the_actor_that_is_given(tmp_path, actor, script):
    """The newest run here is one with the demo's limits, which cut the page of a trace to nearly nothing."""
    small = make_config(tmp_path, actor, models={"max_prompt_tokens": 120, "actor": str(actor)})
    run = RunFolder(small.run_dir)
    write_phase(run.phase(0).path, [make_trajectory("a")])
    run.config.write_text("name: run\nmodels: {device: cpu, max_prompt_tokens: 120}\n")
    write_trace(tmp_path / "vab", rows=make_rows(num_steps=3))
    base = ["--stage", "1", "--rollout_path", "vab", "--actor_path", actor]
    result = script(*base, "--setting", "models.device=cpu")
    assert result.returncode == 0, result.stderr
    assert "prompt            webrl, at most 3584 tokens\n" in result.stdout  # 4096 positions less 512
    ((trace, _),) = read_vab(tmp_path / "vab", ProblemLog())
    models = ModelsConfig(prompt_format="webrl", max_prompt_tokens=3584)
    released = open_encoder(
        load_tokenizer(str(actor)), str(actor), RunConfig(models=models, rollout={"dialect": "webrl"})
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
    shutil.copytree(actor, tmp_path / "runs" / "run" / "phase_00" / "actor")
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


def test_what_the_models_need_is_looked_for_first(tmp_path, actor):
    config = make_config(tmp_path, actor, label={"system_prompt": str(tmp_path / "none.txt")})
    plan = make_plan(config, rollout=write_phase(tmp_path / "p", [make_trajectory("a")]), add_reward=True)
    with pytest.raises(UsageError, match=r"none\.txt: No such file.*build_rm_data"):
        process(plan, config)
    with pytest.raises(ModelError, match=r"model folder '\./absent' does not exist"):
        process(replace(plan, actor="./absent"), make_config(tmp_path, actor))
    for name, experience in (("trajectories.jsonl", []), ("labels.jsonl", []), ("new.jsonl", ["new_filter.jsonl"])):
        write_records(tmp_path / "p" / "new_filter.jsonl", [])
        earlier = [tmp_path / "p" / old for old in experience]
        plan = make_plan(config, rollout=tmp_path / "p", actor="none", experience=earlier, output=tmp_path / "p" / name)
        with pytest.raises(UsageError, match=f"it would replace .*/{[name, *experience][-1]}, an input"):
            process(plan, config)
    (tmp_path / "p" / "new_filter.jsonl").unlink()
    assert sorted(p.name for p in tmp_path.rglob("*.jsonl")) == ["labels.jsonl", "trajectories.jsonl"]


def test_the_sample_traces_that_ship_are_readable(actor, monkeypatch, tmp_path):
    monkeypatch.chdir(REPO)
    config = make_config(tmp_path, actor, replay={"perplexity_low": 1.0, "perplexity_high": 1e9})
    plan = make_plan(config, add_reward=True)
    assert plan.rollout == Path("data/samples/vab")
    assert plan.output == config.runs_dir / "samples" / "train.jsonl"
    summary = process(plan, config)
    assert summary["num_current"] >= 4
    assert summary["history"]["kept"] >= 2
