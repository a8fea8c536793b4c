"""The supervised start: what is imitated, and what training on it leaves."""

import json
from collections import Counter
from dataclasses import replace
from pathlib import Path

import pytest
from test_reward_data import make_trajectory
from vab_builders import write_trace

from webrl.cli import main
from webrl.config import RolloutConfig, validate_config
from webrl.errors import DataError
from webrl.llm.loading import load_tokenizer, prompt_of
from webrl.replay.demonstrations import open_encoder, read_demonstrations
from webrl.runs.problems import ProblemLog
from webrl.runs.store import read_records, write_records
from webrl.sft import encode, split, train_start
from webrl.training.metrics import TrainingPaths, read_metrics
from webrl.types import Label, Status, Trajectory


def read(*paths: Path, outcome: str = "success") -> tuple[list[str], Counter[str]]:
    counts: Counter[str] = Counter()
    found = read_demonstrations(paths, ProblemLog(num_shown=0), outcome, counts)
    return [t.trajectory_id for t in found], counts


def test_successes_of_a_recording_are_imitated_and_the_rest_is_counted(tmp_path):
    trajectories = [make_trajectory(0, 1), make_trajectory(1, 0), make_trajectory(2, None)]
    trajectories.append(make_trajectory(3, 1, status=Status.ENV_ERROR))
    write_records(tmp_path / "trajectories.jsonl", trajectories)
    names, counts = read(tmp_path)
    assert names == ["t0"]
    assert counts == Counter(trajectories=1, failed=1, unjudged=1, unfinished=1)
    assert read(tmp_path, outcome="all")[0] == ["t0", "t1", "t2"]
    again = replace(trajectories[0], trajectory_id="again")  # of a file that holds another twice, say
    write_records(tmp_path / "trajectories.jsonl", [trajectories[0], again, make_trajectory(5, 1)])
    assert read(tmp_path)[1] == Counter(trajectories=3, repeated=1)


def test_an_earlier_run_is_judged_by_its_labels_not_by_the_environment(tmp_path):
    phase = tmp_path / "phase_01"
    write_records(phase / "trajectories.jsonl", [make_trajectory(0, 1), make_trajectory(1, 0)])
    write_records(phase / "labels.jsonl", [Label("t0", 0.1, 0), Label("t1", 0.9, 1)])
    assert read(tmp_path)[0] == ["t1"]
    write_records(phase / "trajectories.jsonl", [make_trajectory(1, 0), make_trajectory(1, 1)])  # of two runs
    with pytest.raises(DataError, match=r"trajectories.jsonl:2: a second 't1'; keep each run's files"):
        read(tmp_path)


@pytest.mark.companion("webarena")
def test_trace_folders_and_human_files_are_demonstrations(tmp_path):
    write_trace(tmp_path / "vab", "1", score=1)
    write_trace(tmp_path / "vab", "2", score=0)
    assert read(tmp_path / "vab")[0] == ["1"]
    shown = {"instruction": "x", "steps": [{"observation": "[1] button 'a'", "response": "click('1')"}]}
    lines = [shown | {"success": True}, shown | {"success": False}, shown | {"success": 2}, {"stepz": []}]
    human = tmp_path / "human.jsonl"
    human.write_text("\n".join(map(json.dumps, lines)))
    problems = ProblemLog(tmp_path / "problems.txt", num_shown=0)
    with problems:
        found = list(read_demonstrations([human], problems, "success", Counter()))
    assert [t.steps[0].action for t in found] == ["click('1')"]
    listed = (tmp_path / "problems.txt").read_text()
    assert "human.jsonl:3: field 'success': must be less than or equal to 1, found 2; left out" in listed
    assert "human.jsonl:4: unknown field 'stepz'" in listed


@pytest.mark.parametrize("end", ["<|im_end|>\n", "<|eot_id|>", "</s>", "<end_of_turn>\n", "<|im_end|>\n<|endoftext|>"])
def test_an_exported_answer_is_imitated_without_the_text_of_its_end_token(tmp_path, end):
    said = ["think: </s> is HTML\nfill('1', '</s>')", "click('1')"]
    steps = [{"observation": "[1] textbox 'a'", "response": text + end} for text in said]
    (tmp_path / "human.jsonl").write_text(json.dumps({"instruction": "x", "steps": steps}))
    (found,) = read_demonstrations([tmp_path / "human.jsonl"], ProblemLog(), "success", Counter())
    assert [(step.response, step.action) for step in found.steps] == [(text, text) for text in said]


def show(index: int, instruction: str, *actions: str, site: str = "site") -> Trajectory:
    """A demonstration of one step an action."""
    made = make_trajectory(index, 1, num_steps=len(actions), site=site)
    steps = tuple(replace(step, action=action) for step, action in zip(made.steps, actions, strict=True))
    return replace(made, instruction=instruction, steps=steps)


def test_every_kind_of_demonstration_keeps_its_share_in_training():
    shown = [show(i, "press Cancel", "click('1')") for i in range(10)]
    shown += [show(i, f"press {i}", "click('1')") for i in range(10, 28)]
    shown += [show(28, "type a", "fill('1', 'a')", "click('2')")]
    shown += [show(29, "type b", "do(action='Type', argument='b', element='1')")]
    shown += [show(i, "press Cancel", "click('1')", site="other") for i in range(30, 40)]
    shown += [show(40, "press OK", "click('1')", site="rare")]
    for seed in range(20):
        train, heldout = split(shown, 0.2, seed)
        assert Counter(t.task.site for t in heldout) == {"site": 6, "other": 2}
        # Of Cancel at most a fifth of the ten, of the other presses at most a fifth of 18, rounded up.
        assert sum(t.instruction == "press Cancel" and t.task.site == "site" for t in heldout) == 2
        assert {"type a", "type b", "press OK"} <= {t.instruction for t in train}
        assert len(train) + len(heldout) == len(shown)
    assert split(shown, 0.2, 0) == split(shown, 0.2, 0) != split(shown, 0.2, 1)
    assert split(shown, 0.0, 0) == (shown, [])


def test_the_shipped_demonstrations_lose_no_type_and_no_instruction_that_repeats():
    shown = list(read_demonstrations([Path("data/tiny/demos.jsonl")], ProblemLog(), "success", Counter()))
    times = Counter((t.task.site, t.instruction) for t in shown)
    cancel = ("miniwob.click-dialog-2", 'Click the button in the dialog box labeled "Cancel".')
    assert times[cancel] == 10
    for seed in range(10):
        train, heldout = split(shown, 0.05, seed)
        left = Counter((t.task.site, t.instruction) for t in train)
        assert len(heldout) == 15  # a twentieth of 299
        assert {site for site, _ in left} == {site for site, _ in times}
        assert [key for key, num in times.items() if num > 1 and not left[key]] == []
        assert left[cancel] >= 9


def config_for(folder, **sft):
    options = {"lr": 1e-3, "batch_size": 4, "heldout": 0.25, "watch_every": 2, "epochs": 2}
    models = {"actor": str(folder), "max_prompt_tokens": 1200, "device": "cpu"}
    return validate_config({"models": models, "sft": options | sft}, "test")


def test_training_lowers_the_validation_loss_and_leaves_a_report_and_a_plot(tiny_model, tmp_path):
    write_records(tmp_path / "trajectories.jsonl", [make_trajectory(i, 1, num_steps=1) for i in range(16)])
    paths = TrainingPaths((tmp_path,), str(tiny_model), tmp_path / "out")
    report = train_start(config_for(tiny_model), paths)
    assert (report["examples"], report["heldout"]) == (12, 4)
    lines = read_metrics(paths.report / "metrics.jsonl", "sft")
    looks = [line for line in lines if "val_loss" in line]
    assert [line["step"] for line in looks] == [2, 4, 6]
    assert looks[-1]["val_loss"] < looks[0]["val_loss"]
    assert sorted(p.name for p in tmp_path.iterdir() if p.name.startswith(".")) == []
    tokenizer = load_tokenizer(str(paths.out))
    ((_, action, _),) = encode(
        [make_trajectory(0, 1, num_steps=1)],
        open_encoder(tokenizer, str(tiny_model), config_for(tiny_model)),
        RolloutConfig(),
        ProblemLog(),
    )
    assert tokenizer.decode(action) == "click('0')<|eot_id|>"


def test_other_outcomes_are_advised_only_where_outcomes_left_all_out(tiny_model, tmp_path):
    write_records(tmp_path / "trajectories.jsonl", [make_trajectory(i, 1, num_steps=1) for i in range(2)])
    config = config_for(tiny_model)
    other = config.model_copy(update={"rollout": config.rollout.model_copy(update={"dialect": "webrl"})})
    with pytest.raises(DataError, match=r"to imitate: \{'trajectories': 2, 'unreadable_action': 2\}$"):
        train_start(other, TrainingPaths((tmp_path,), str(tiny_model), tmp_path / "out"))


def test_an_experts_waits_and_what_was_done_on_no_page_are_not_imitated(tiny_model):
    played = make_trajectory(0, 1, num_steps=3)
    first, _, last = played.steps
    waited = replace(played, steps=(first, replace(first, index=1, response="noop(1000)", action="noop(1000)"), last))
    problems = ProblemLog(num_shown=0)
    encoder = open_encoder(load_tokenizer(str(tiny_model)), str(tiny_model), config_for(tiny_model))
    assert len(encode([played], encoder, RolloutConfig(), problems)) == 3
    assert len(encode([waited], encoder, RolloutConfig(), problems)) == 2
    blind = replace(played, steps=(first, replace(first, index=1, observation=" \n"), last))
    assert len(encode([blind], encoder, RolloutConfig(), problems)) == 2
    assert problems.counts == {"wait": 1, "no_page": 1}
    sees = RolloutConfig(screenshots=True, image_size=0, show_text=False)  # its page is the screenshot
    assert len(encode([blind], lambda t, i: t.steps[i], sees, problems)) == 3


@pytest.mark.parametrize(
    ("dialect", "kept"), [("browsergym", ["click('12')", "think\n```\nclick('12')\n```"]), ("webrl", ["do("])]
)
def test_an_answer_that_is_no_action_of_the_runs_language_is_not_imitated(dialect, kept):
    answers = [
        "I will click the button",
        'do(action="Click", element="12")',
        "click('12')",
        "think\n```\nclick('12')\n```",
    ]
    page = make_trajectory(0, 1, num_steps=1)
    asked = replace(page.steps[0], observation="[12] button 'Go'")
    steps = tuple(replace(asked, index=i, response=a, action=a) for i, a in enumerate(answers))
    problems, shown, rollout = ProblemLog(num_shown=0), [], RolloutConfig(dialect=dialect)
    encode([replace(page, steps=steps)], lambda t, i: shown.append(t.steps[i].response), rollout, problems)
    assert [any(answer.startswith(k) for answer in shown) for k in kept] == [True] * len(kept)
    assert problems.counts == {"unreadable_action": len(answers) - len(kept)}
    assert len(shown) == len(kept)


def test_an_action_that_does_not_fit_its_page_its_goal_or_its_answer_is_not_imitated():
    answers = {  # what was answered and done on a page, HTML where it is such: None if it is imitated
        ("[12] button 'Go'", "press Go: click('12')", "click('12')"): None,
        ("[12] button '7'", "click('7')", "click('7')"): "no_such_element",
        ("[a3] button 'Go'", "click('a3')", "click('a3')"): None,
        ("[1] slider ''\n[2] link ''", "drag_and_drop('1', '3')", "drag_and_drop('1', '3')"): "no_such_element",
        ('<button id="12"> 7 </button>', "click('12')", "click('12', button='left')"): None,
        ('<button id="12"> 7 </button>', "click('7')", "click('7')"): "no_such_element",
        ("RootWebArea 'no ids'", "click('12')", "click('12')"): "no_such_element",
        ("[12] button 'Go'", "click('12')", "click('13')"): "other_action",
        ("[12] button 'Go'", "scroll(0, 300)", "goto('a.example')"): "other_action",
        ("[12] button 'Go'", "waiting\n```noop(500)```", "waiting\n```noop(500)```"): "wait",
    }
    made = make_trajectory(0, 1, num_steps=1)
    cases = [(*said, "html" if "<" in said[0] else "axtree", reason) for said, reason in answers.items()]
    cases += [(page, "click('12')", "click('12')", "html", "other_page") for page, *_ in answers if "Root" in page]
    cases += [(page, "click('12')", "click('12')", "axtree", "other_page") for page, *_ in answers if "<" in page]
    for page, response, action, form, reason in cases:
        step = replace(made.steps[0], observation=page, response=response, action=action)
        problems, rollout = ProblemLog(num_shown=0), RolloutConfig(observation=form)
        found = encode([replace(made, steps=(step,))], lambda t, i: t.steps[i], rollout, problems)
        assert (dict(problems.counts), len(found)) == (({reason: 1}, 0) if reason else ({}, 1)), step
    problems = ProblemLog(num_shown=0)
    assert encode([replace(made, instruction=" ")], lambda t, i: t.steps[i], RolloutConfig(), problems) == []
    assert problems.counts == {"no_instruction": 1}


@pytest.mark.parametrize(("asked", "trained"), [("auto", "examples"), ("brief", "brief")])
def test_a_model_is_trained_in_the_prompt_that_its_new_folder_names(tiny_model, tmp_path, asked, trained):
    write_records(tmp_path / "trajectories.jsonl", [make_trajectory(i, 1, num_steps=1) for i in range(4)])
    config = config_for(tiny_model)
    config = config.model_copy(update={"models": config.models.model_copy(update={"prompt": asked})})
    encoder = open_encoder(load_tokenizer(str(tiny_model)), str(tiny_model), config)
    before = encoder(make_trajectory(0, 1), 0)
    train_start(config, TrainingPaths((tmp_path,), str(tiny_model), tmp_path / "out"))
    after = load_tokenizer(str(tmp_path / "out"))
    assert prompt_of(after) == trained
    assert open_encoder(after, str(tmp_path / "out"), config_for(tiny_model))(make_trajectory(0, 1), 0) == before


def test_looking_changes_nothing_of_what_is_trained(tiny_model, tmp_path):
    write_records(tmp_path / "trajectories.jsonl", [make_trajectory(i, 1, num_steps=1) for i in range(8)])
    losses = []
    for every in (1, 0):
        paths = TrainingPaths((tmp_path,), str(tiny_model), tmp_path / f"out{every}")
        train_start(config_for(tiny_model, watch_every=every), paths)
        losses.append([x["loss"] for x in read_metrics(paths.report / "metrics.jsonl", "sft")])
    assert losses[0] == losses[1]


@pytest.mark.browser
@pytest.mark.companion("site")
def test_a_recording_whose_episodes_fail_stops_and_plays_them_again(tmp_path, webrl):
    command = ["record-demos", "demo", f"runs_dir={tmp_path}", "name=mine", "tasks.train_sites=[miniwob.click-button]"]
    command += ["--per-type", "4", "rollout.num_workers=1", "rollout.envs_per_worker=1"]
    # over before the page can be asked for
    said = webrl(1, *command, "rollout.episode_timeout_s=1e-6").err.splitlines()[-1]
    assert "3 of 4 episodes failed for reasons other than the agent (timeout 3)" in said
    assert main(command) == 0
    played = list(read_records(tmp_path / "mine/demos/trajectories.jsonl", Trajectory))
    assert len(played) == 4
    assert {t.status for t in played} == {Status.PAGE_ENDED}


@pytest.mark.browser
@pytest.mark.companion("site")
def test_a_recording_says_which_experts_the_step_limit_cut_off(tmp_path, capsys):
    command = ["record-demos", "demo", f"runs_dir={tmp_path}", "tasks.train_sites=[miniwob.login-user]"]
    assert main([*command, "--per-type", "2", "rollout.num_workers=1", "rollout.max_steps=2"]) == 0
    assert "0/2 solved, 2 cut off by rollout.max_steps=2\n" in capsys.readouterr().out
