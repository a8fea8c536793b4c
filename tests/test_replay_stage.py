"""The streams of training records and the stage that mixes them, with a real tiny model."""

import math
import random
import re
import tracemalloc
from dataclasses import replace

import orjson
import pytest
from llm_builders import score
from replay_builders import make_config, make_trajectory, write_phase
from vab_builders import write_trace

from webrl.config import ModelsConfig, ReplayConfig, RunConfig
from webrl.errors import TrainingError
from webrl.llm.loading import load_tokenizer
from webrl.llm.prompts import build_policy_prompt
from webrl.llm.tokens import encode_plain
from webrl.replay.demonstrations import open_encoder
from webrl.replay.score import score_on_devices
from webrl.replay.sources import Source, Tools, build_records, find_source, read_steps
from webrl.replay.stage import add_history, mix_replay
from webrl.runs.folder import RunFolder
from webrl.runs.problems import ProblemLog
from webrl.runs.store import dump_line, read_records, write_records
from webrl.training.scoring import score_actions
from webrl.types import Label, Status, StepRecord


def read_all(source, **options):
    problems = ProblemLog()
    tools = Tools(problems, **options)
    return list(read_steps(source, tools)), tools.counts, problems.counts


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


def test_steps_without_ids_are_tokenised_as_the_policy_would_have_seen_them(tmp_path, reader):
    tokenizer = load_tokenizer(str(reader))
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


def test_the_released_objective_gets_the_prompt_after_the_last_step(tmp_path, reader):
    config = make_config(tmp_path, reader, actor={"objective": "webrl_released"})
    phase = RunFolder(config.run_dir).phase(0)
    trajectory = make_trajectory("a")
    write_phase(phase.path, [trajectory])
    mix_replay(config, phase, actor=str(reader), history=[], rng=random.Random(0))
    first, last = read_records(phase.train, StepRecord)
    tokenizer = load_tokenizer(str(reader))
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
    assert mixed(tmp_path, 2, problems=problems) == {"kept": 2}
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
    assert mixed(tmp_path, 6, end=()) == {"too_certain": 1, "kept": 3}
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


def test_the_replay_stage_scores_under_the_actor_once_and_keeps_the_band(tmp_path, reader):
    config = make_config(tmp_path, reader, replay={"perplexity_low": 1.0, "perplexity_high": 1e9})
    run = RunFolder(config.run_dir)
    for phase in range(2):
        write_phase(run.phase(phase).path, [make_trajectory(f"p{phase}-{i}", phase=phase) for i in range(4)])
    first = mix_replay(config, run.phase(0), actor=str(reader), history=[], rng=random.Random(0))
    assert (first["num_current"], first["num_replayed"]) == (8, 0)
    history = [run.phase(0).train]
    counts = mix_replay(config, run.phase(1), actor=str(reader), history=history, rng=random.Random(0))
    assert (counts["num_current"], counts["num_replayed"], counts["by_type"]) == (8, 8, {"site": 8})
    # Phase 0's steps were scored in phase 0 under the same weights: only the new ones are computed.
    assert counts["scored"] == {"computed": 8, "cached": 8}
    for record in read_records(run.phase(1).train_filter, StepRecord):
        assert record.ref_logprobs == pytest.approx(score(reader, record.prompt_ids, record.action_ids), abs=1e-4)
    again = mix_replay(config, run.phase(1), actor=str(reader), history=history, rng=random.Random(0))
    assert again["scored"] == {"computed": 0, "cached": 16}


def test_the_replay_stage_replaces_log_probs_of_an_older_actor_and_drops_another_tokenizers_experience(
    tmp_path, reader
):
    config = make_config(tmp_path, reader, replay={"perplexity_low": 1.0, "perplexity_high": 1e9})
    phase = RunFolder(config.run_dir).phase(1)
    write_phase(phase.path, [make_trajectory("a")])
    known, foreign = make_history(2), [replace(r, tokenizer="another", site="other") for r in make_history(2)]
    write_records(tmp_path / "history.jsonl", [*known, *foreign])
    counts = mix_replay(config, phase, actor=str(reader), history=[tmp_path / "history.jsonl"], rng=random.Random(0))
    assert counts["history"] == {"failed": 4, "other_tokenizer": 2, "kept": 2}
    replayed = [r for r in read_records(phase.train_filter, StepRecord) if r.source == "replay"]
    assert [r.site for r in replayed] == ["site"] * 2
    expected = score(reader, replayed[0].prompt_ids, replayed[0].action_ids)
    assert replayed[0].ref_logprobs == pytest.approx(expected, abs=1e-4)


@pytest.mark.slow
def test_scoring_spread_over_devices_gives_the_same_in_the_same_order(tmp_path, reader):
    config = make_config(tmp_path, reader)
    records = make_history(5)
    here = score_actions(records, reader, config)
    spread = score_on_devices(records, str(reader), config, ["cpu", "cpu"])
    assert [r.step_id for r in spread] == [r.step_id for r in here]
    for one, other in zip(here, spread, strict=True):
        assert one.ref_logprobs == pytest.approx(other.ref_logprobs, abs=1e-5)
    for wrong in (-1, 1 << 20):
        with pytest.raises(TrainingError, match=rf"'{records[0].step_id}' holds token id {wrong}, but .* tokens"):
            score_actions([replace(records[0], prompt_ids=(wrong, 5))], reader, config)
