"""A replay buffer that begins with demonstrations (`replay.demos`): which steps come of them, and what is refused."""

import hashlib
import random
from collections import Counter
from dataclasses import replace
from pathlib import Path

import pytest
from eyes_builders import build_vlm, png
from replay_builders import make_config, make_trajectory, replaying, shown, write_phase
from test_reward_data import make_trajectory as make_shown

from webrl.config import RunConfig, load_config
from webrl.config.resources import find_config
from webrl.errors import UsageError
from webrl.llm.loading import load_tokenizer, tokenizer_fingerprint
from webrl.llm.pictures import Picture
from webrl.preflight import check_inputs
from webrl.replay.demonstrations import open_encoder, read_demonstrations
from webrl.replay.sources import Source, Tools, read_steps
from webrl.replay.stage import mix_replay
from webrl.runs.folder import RunFolder
from webrl.runs.problems import ProblemLog
from webrl.runs.store import read_records, write_records
from webrl.training.critic import states_of
from webrl.types import Status, StepRecord, Trajectory


def replayed(run: RunFolder) -> list[StepRecord]:
    return [r for r in read_records(run.phase(1).train_filter, StepRecord) if r.source == "replay"]


def mix(config: RunConfig, reader: Path, past: list[Trajectory], current: list[Trajectory]) -> dict[str, int]:
    """Both phases' stage "replay"; the second one's history steps by what became of them."""
    run = RunFolder(config.run_dir)
    write_phase(run.phase(0).path, past)
    write_phase(run.phase(1).path, current)
    options = {"actor": str(reader), "rng": random.Random(0)}
    mix_replay(config, run.phase(0), history=[], **options)
    return mix_replay(config, run.phase(1), history=[run.phase(0).train], **options)["history"]


def test_demonstrations_are_replayed_as_the_actor_would_have_been_prompted_before_own_successes(tmp_path, reader):
    shows = [shown("d0", instruction="do a"), shown("d1", instruction="do b"), shown("d2", 0.0, num_steps=3)]
    shows += [shown("d3", None), shown("d4", status=Status.ENV_ERROR)]
    write_records(tmp_path / "demos" / "trajectories.jsonl", shows)
    config = replaying(tmp_path, reader, tmp_path / "demos")
    tokenizer = load_tokenizer(str(reader))
    encode = open_encoder(tokenizer, str(reader), config)
    own = make_trajectory("p0", instruction="do a")
    page = replace(own.steps[0], prompt_ids=tuple(encode(shows[0], 0).prompt_ids))
    past = [replace(own, steps=(page, own.steps[1])), make_trajectory("p1", 1, instruction="do e")]
    counts = mix(config, reader, past, [make_trajectory("p2"), make_trajectory("p3")])
    # d0 and d1 with two steps each and p1 with one; d2's three; p0's two, which began on d0's page; d3, whom nobody
    # judged; d4, which broke off.
    assert counts == {"kept": 5, "failed": 3, "repeated_task": 2, "unlabelled": 1, "unfinished": 1}
    records = replayed(RunFolder(config.run_dir))
    assert [(r.instruction, r.index, r.phase) for r in records] == [
        ("do a", 0, 0), ("do a", 1, 0), ("do b", 0, 0), ("do b", 1, 0), ("do e", 0, 0),
    ]  # fmt: skip
    for record, trajectory in zip(records[:4], (shows[0], shows[0], shows[1], shows[1]), strict=True):
        encoded = encode(trajectory, record.index)
        assert (record.prompt_ids, record.action_ids) == (encoded.prompt_ids, encoded.action_ids)
        assert record.prompt_ids != trajectory.steps[record.index].prompt_ids
        assert (record.tokenizer, record.logprobs) == (tokenizer_fingerprint(tokenizer), None)
        assert (record.outcome, record.site, record.group) == (1, "site", trajectory.task.task_id)


def test_steps_that_no_demonstration_should_teach_are_not_replayed_and_named(tmp_path, reader, caplog):
    good = shown("d0", num_steps=3)
    first, second, third = good.steps
    steps = (first, replace(second, response="click('9')", action="click('9')"), replace(third, action="click('1')"))
    write_records(tmp_path / "trajectories.jsonl", [replace(good, steps=steps), replace(shown("d1"), instruction="")])
    config = replaying(tmp_path, reader, tmp_path / "trajectories.jsonl", max_ratio=1.0)
    assert mix(config, reader, [make_trajectory("p0", 1)], [make_trajectory("p1", 4)]) == {"kept": 2}
    assert [(r.instruction, r.index) for r in replayed(RunFolder(config.run_dir))] == [("do d0", 0), ("do p0", 0)]
    for said in ("d0:1: answer \"click('9')\" names element '9', which is not on", "d1:0: its instruction is empty"):
        assert said in caplog.text
    steps = tuple(replace(steps[2], index=index) for index in range(2))
    write_records(tmp_path / "trajectories.jsonl", [replace(good, steps=steps)])
    with pytest.raises(UsageError, match=r"has no step that can be imitated: answer .* is not the action"):
        check_inputs(config, ["replay"])
    assert "d0:2: answer \"click('2')\" is not the action that was carried out, \"click('1')\"; left out" in caplog.text


def test_a_replayed_demonstration_comes_with_its_next_state(tmp_path, reader):
    write_records(tmp_path / "trajectories.jsonl", [shown("d0", num_steps=6)])
    config = replaying(tmp_path, reader, tmp_path / "trajectories.jsonl", max_ratio=1.0)
    past, current = [make_trajectory("p0", 1)], [make_trajectory("p1", 4)]
    assert mix(config, reader, past, current) == {"kept": 4, "over_ratio": 3}  # of six steps and one
    encode = open_encoder(load_tokenizer(str(reader)), str(reader), config)
    (demonstration,) = read_demonstrations([tmp_path / "trajectories.jsonl"], ProblemLog(), "success", Counter())
    records = [record for record in replayed(RunFolder(config.run_dir)) if record.num_steps == 6]
    found = states_of(records, tmp_path)
    followed = [record for record in records if record.index < 5]
    assert any(record.next_prompt_ids for record in followed)  # the draw has left a successor out
    for record in followed:
        after = found[record.trajectory_id, record.index + 1]
        assert after.prompt_ids == encode(demonstration, record.index + 1).prompt_ids


def test_demonstrations_of_one_name_are_told_apart_and_from_the_runs_own(tmp_path, reader):
    for folder in ("one", "two"):
        write_records(tmp_path / folder / "trajectories.jsonl", [shown("t0", instruction=f"do {folder}")])
    config = replaying(tmp_path, reader, tmp_path / "one", tmp_path / "two")
    own = [make_trajectory("t0", instruction="do three")]
    assert mix(config, reader, own, [make_trajectory("p0", 3)]) == {"kept": 6}
    records = replayed(RunFolder(config.run_dir))
    assert len({record.step_id for record in records}) == 6
    assert [r.trajectory_id for r in records[4:]] == ["t0", "t0"]
    found = states_of(records, tmp_path)
    for before, after in zip(records[::2], records[1::2], strict=True):
        assert found[before.trajectory_id, before.index + 1].prompt_ids == after.prompt_ids


def test_no_demonstration_is_replayed_in_phase_0(tmp_path, reader):
    write_records(tmp_path / "demos" / "trajectories.jsonl", [shown("d0")])
    config = replaying(tmp_path, reader, tmp_path / "demos")
    assert config.replayed_demos == config.used_demos == (tmp_path / "demos",)
    assert replaying(tmp_path, reader, tmp_path / "demos", strategy="none").used_demos == ()
    imitating = make_config(tmp_path, reader, replay={"demos": [str(tmp_path / "demos")]})
    assert (imitating.replayed_demos, imitating.used_demos) == ((), (tmp_path / "demos",))
    phase = RunFolder(config.run_dir).phase(0)
    write_phase(phase.path, [make_trajectory("p0")])
    counts = mix_replay(config, phase, actor=str(reader), history=[], rng=random.Random(0))
    assert (counts["num_current"], counts["history"]) == (2, {"kept": 0})


def test_demonstrations_are_looked_at_where_they_would_be_replayed(tmp_path, reader):
    write_records(tmp_path / "bad.jsonl", [shown("d0", 0.0), shown("d1", None)])
    bad = replaying(tmp_path, reader, tmp_path / "bad.jsonl")
    with pytest.raises(UsageError, match=rf"replay\.demos: '{tmp_path}/bad\.jsonl' has no finished trajectory that"):
        check_inputs(bad, ["replay"])
    check_inputs(bad, ["train"])


def seeing_demonstration(folder: Path, size: tuple[int, int] = (96, 64)) -> Trajectory:
    """One success with a picture of each step, as `webrl record-demos` leaves it in `folder/demos`."""
    pictures = [png(size=size, dot=8 * index) for index in range(2)]
    trajectory, steps = make_shown(0, 1, num_steps=2), []
    for step, picture in zip(trajectory.steps, pictures, strict=True):
        name = f"demos/screenshots/t0/{step.index:03d}.png"
        (folder / name).parent.mkdir(parents=True, exist_ok=True)
        (folder / name).write_bytes(picture)
        steps.append(replace(step, screenshot=name, screenshot_sha256=hashlib.sha256(picture).hexdigest()))
    trajectory = replace(trajectory, steps=tuple(steps))
    write_records(folder / "demos" / "trajectories.jsonl", [trajectory])
    return trajectory


def demonstration_records(path: Path, config: RunConfig, tokenizer=None) -> list[StepRecord]:
    encode = open_encoder(tokenizer, config.models.actor, config)
    tools = Tools(ProblemLog(), encode=encode, run_dir=config.run_dir)
    return list(read_steps(Source(path, "demonstrations"), tools))


def seeing_config(tmp_path: Path, *more: str) -> RunConfig:
    options = ["rollout.screenshots=true", "rollout.image_size=96", "actor.objective=filtered_bc", "tasks.source=fresh"]
    options += [f"models.actor={tmp_path / 'vlm'}", f"runs_dir={tmp_path / 'runs'}", "models.max_prompt_tokens=1500"]
    return load_config(find_config("demo"), [*options, *more])


def test_pictures_of_demonstrations_are_found_wherever_they_lie_and_move_with_the_run(tmp_path, monkeypatch):
    build_vlm("idefics3", tmp_path / "vlm")
    config = seeing_config(tmp_path)
    for folder, name in ((config.run_dir, "demos"), (tmp_path / "other", str(tmp_path / "other" / "demos"))):
        trajectory = seeing_demonstration(folder)
        (folder / "demos" / "deep").mkdir()
        for place in ("demos", "demos/trajectories.jsonl"):
            records = demonstration_records(folder / place, config)
            assert [r.screenshot for r in records] == [f"{name}/screenshots/t0/{i:03d}.png" for i in (0, 1)]
            assert [Picture.of(r, config.run_dir).sha256 for r in records] == [
                s.screenshot_sha256 for s in trajectory.steps
            ]
            assert all(Picture.of(r, config.run_dir).read() for r in records)
        for cwd, place in (("demos", "."), ("demos", "trajectories.jsonl"), ("demos/deep", "..")):
            monkeypatch.chdir(folder / cwd)
            assert demonstration_records(Path(place), config)[0].screenshot == records[0].screenshot


def test_a_demonstration_without_its_picture_is_refused_before_a_run_that_sees(tmp_path):
    build_vlm("idefics3", tmp_path / "vlm")
    seeing_demonstration(tmp_path / "other")
    config = seeing_config(tmp_path, f"replay.demos=[{tmp_path / 'other' / 'demos'}]")
    check_inputs(config, ["replay"])
    (tmp_path / "other/demos/screenshots/t0/001.png").unlink()
    with pytest.raises(UsageError, match=r"replay\.demos: .*t0/001\.png: the screenshot cannot be read"):
        check_inputs(config, ["replay"])
    write_records(tmp_path / "other" / "demos" / "trajectories.jsonl", [make_shown(0, 1)])
    with pytest.raises(UsageError, match=r"replay\.demos: t0:0 has no screenshot, which rollout\.image_size=96 needs"):
        check_inputs(config, ["replay"])


def test_an_actor_of_text_reads_demonstrations_with_pictures_as_text(tmp_path, reader):
    seeing_demonstration(tmp_path / "other")
    config = make_config(tmp_path, reader)
    records = demonstration_records(tmp_path / "other" / "demos", config, load_tokenizer(str(reader)))
    assert [(r.screenshot, r.screenshot_sha256) for r in records] == [("", "")] * 2
