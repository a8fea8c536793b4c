"""Episodes end by the stop rules of the paper; the stage resumes, stops where too much fails, keeps screenshots."""

import asyncio
import re

import pytest
from llm_builders import build_tokenizer
from rollouts_builders import ClickNamedButton, Scripted, bid_of, in_browser, miniwob

from webrl.config import ModelsConfig, RolloutConfig, RunConfig, validate_config
from webrl.errors import DataError, PolicyError, StageError, UsageError
from webrl.evaluate import success_rate
from webrl.llm.prompts import build_policy_prompt, policy_messages
from webrl.rollouts.collect import collect
from webrl.rollouts.episode import run_episode, step_seed
from webrl.rollouts.pool import run
from webrl.runs.store import read_records
from webrl.types import Status, Task, Trajectory

pytestmark = [pytest.mark.browser, pytest.mark.usefixtures("kept_browsers")]


def play(policy, task=None, **settings):
    async def one(env):
        config = RolloutConfig(**settings)
        return await run_episode(
            env, policy, task or miniwob("click-button"), config, trajectory_id="t", phase=3, seed=1
        )

    return in_browser(one, **settings)


def test_the_page_ends_its_episode():
    trajectory = play(ClickNamedButton())
    assert trajectory.status is Status.PAGE_ENDED
    assert trajectory.env_reward == 1.0
    assert trajectory.instruction == 'Click on the "no" button.'
    assert trajectory.phase == 3
    assert trajectory.policy == "expert"
    (step,) = trajectory.steps
    assert step.action == step.response
    assert re.search(r"button 'no'(?!,)", step.observation)
    assert "button 'no', focused" in trajectory.final_observation
    assert set(step.seconds) == {"policy", "browser"}


def test_a_generated_instruction_has_no_environment_reward():
    trajectory = play(Scripted("click('{button:no}')"), miniwob("click-button", instruction="Press no"))
    assert trajectory.status is Status.PAGE_ENDED
    assert trajectory.env_reward is None
    assert trajectory.instruction == "Press no"


def test_what_was_sampled_is_stored_as_it_was():
    trajectory = play(Scripted("send_msg_to_user('done')"))
    (step,) = trajectory.steps
    assert (step.prompt_ids, step.action_ids, step.logprobs) == ((1, 2), (3,), (-0.5,))
    assert trajectory.status is Status.AGENT_DONE
    assert trajectory.message == "done"
    assert trajectory.env_reward == 0.0


def test_an_answer_that_says_more_is_acted_on_and_the_history_tells_what_was_taken():
    trajectory = play(Scripted("<think>so</think>Then noop(1) | noop(2)", "Action: click('{button:no}')."))
    first, second = trajectory.steps
    assert trajectory.env_reward == 1.0
    assert (first.action, first.note, first.error) == ("noop(1)", "the first of 2 actions, answer with one", "")
    assert first.response == "<think>so</think>Then noop(1) | noop(2)"
    assert second.note == ""
    past = policy_messages("", trajectory.steps, "")[1].content.split("\n")
    assert past[2:4] == [f"noop(1) # taken: {first.note}", second.action]


def test_a_label_in_place_of_an_id_is_refused_with_the_id():
    trajectory = play(Scripted("click('no')"), max_steps=2)
    assert trajectory.env_reward == 0.0
    assert {(s.action, s.note) for s in trajectory.steps} == {("click('no')", "")}
    bid = bid_of(trajectory.final_observation, "button", "no")
    wrong = f"ids are the numbers in square brackets, e.g. click('{bid}'); 'no' is none"
    assert {s.error for s in trajectory.steps} == {wrong}


def test_the_prompt_by_example_of_a_real_page_is_hardly_longer_than_the_brief_one():
    page = in_browser(lambda env: env.reset(miniwob("login-user")))
    tokenizer = build_tokenizer()  # of bytes
    forms = [RunConfig(models=ModelsConfig(prompt=name)) for name in ("brief", "examples")]
    brief, examples = (build_policy_prompt(tokenizer, page.goal, (), page.text, form) for form in forms)
    assert examples.observation == page.text
    assert 0 < len(examples.ids) - len(brief.ids) < 240
    text = tokenizer.decode(examples.ids)
    assert f"Goal: {page.goal}\nHistory:\nnone\nPage:\n{page.text}" in text
    assert "To press [18] button 'Previous': click('18')\n" in text


@pytest.mark.parametrize(
    ("page", "answers", "settings", "status", "num_steps"),
    [
        ("click-button", ("what", "noop(0)", "what"), {}, Status.PARSE_FAILURES, 7),
        ("click-button", ("noop(1)", "noop(2)", "noop( 2 )"), {}, Status.REPEATED_ACTION, 6),
        ("login-user", ("keyboard_press('Tab')",), {"max_steps": 7}, Status.STEP_LIMIT, 7),  # each changes the page
        ("click-button", ("noop(1)", "noop(2)", "noop(3)", "noop(4)"), {"max_steps": 3}, Status.STEP_LIMIT, 3),
    ],
)
def test_five_unreadable_or_equal_actions_in_a_row_or_the_step_limit_end_it(page, answers, settings, status, num_steps):
    trajectory = play(Scripted(*answers), miniwob(page), **settings)
    assert trajectory.status is status
    assert len(trajectory.steps) == num_steps
    if status is Status.PARSE_FAILURES:
        assert trajectory.steps[0].action == ""
        assert "Not an action" in trajectory.steps[0].error
    if status is Status.REPEATED_ACTION:
        assert [step.action for step in trajectory.steps] == ["noop(1)"] + ["noop(2)"] * 5


def test_a_failing_policy_is_recorded():
    class Fails(Scripted):
        async def act(self, turn):
            raise PolicyError("the server answered 500")

    trajectory = play(Fails("x"))
    assert trajectory.status is Status.POLICY_ERROR
    assert "500" in trajectory.message


def test_seeds_differ_by_run_episode_and_step_and_repeat():
    assert len({step_seed(run, name, index) for run in (0, 1) for name in ("a", "b") for index in (0, 1)}) == 8
    assert step_seed(0, "a", 0) == step_seed(0, "a", 0) < 2**31


def run_config(**rollout):
    return validate_config({"rollout": {"envs_per_worker": 3} | rollout}, "test")


def test_a_phase_stops_when_it_is_certain_that_too_much_fails_and_then_plays_that_again(tmp_path):
    class Fails(ClickNamedButton):
        async def act(self, turn):
            played.append(turn)
            if len(played) in refused:
                raise PolicyError("the server answered 500")
            return await super().act(turn)

    def play_again(max_failed):
        alone = run_config(envs_per_worker=1)
        return run(collect(tasks, alone, Fails(), out, phase=1, prefix="p01", max_failed=max_failed))

    out, played, refused = tmp_path / "t.jsonl", [], {2, 4, 6}
    tasks = [miniwob("click-button", seed) for seed in range(10)]
    with pytest.raises(StageError) as stopped:
        play_again(0.25)
    told = str(stopped.value)
    assert f"{out}: 3 of 10 episodes failed for reasons other than the agent (policy_error 3), more than" in told
    assert "rollout.max_failed=0.25 allows; the last, p01-miniwob.click-button.5: the server answered 500; fix" in told
    assert len(out.read_text().splitlines()) == 6  # three failed, and nothing was played after the third
    assert play_again(0.3) == {"policy_error": 3, "page_ended": 7}  # allowed now: nothing is played again
    assert play_again(0.25) == {"page_ended": 10}


def test_every_task_becomes_one_line_and_a_second_run_only_adds_what_is_missing(tmp_path):
    out = tmp_path / "trajectories.jsonl"
    tasks = [miniwob("click-button", seed) for seed in range(5)]
    assert run(collect(tasks[:3], run_config(), ClickNamedButton(), out, phase=1, prefix="p01")) == {"page_ended": 3}
    assert [each.env_reward for each in read_records(out, Trajectory)] == [1.0] * 3
    with out.open("ab") as file:
        file.write(b'{"trajectory_id": "torn')
    kept = out.read_bytes()[: out.read_bytes().rindex(b"\n") + 1]
    assert run(collect(tasks, run_config(), ClickNamedButton(), out, phase=1, prefix="p01")) == {"page_ended": 5}
    assert out.read_bytes().startswith(kept)
    rewards = {t.trajectory_id: t.env_reward for t in read_records(out, Trajectory)}
    assert set(rewards.values()) == {1.0}
    assert sorted(rewards) == [f"p01-miniwob.click-button.{seed}" for seed in range(5)]


REMOTE = {"env": "openenv", "urls": ["http://127.0.0.1:9"]}


@pytest.mark.parametrize(
    ("task", "settings", "error", "reason"),
    [
        (miniwob("click-buton"), {}, DataError, "'miniwob.click-buton'; did you mean 'miniwob.click-button'"),
        (Task("a", "moon", instruction="x", start_url="__MOON__"), {}, DataError, "start_url '__MOON__' is not"),
        (
            Task("a", "shopping", instruction="x", start_url="__SHOPPING__"),
            REMOTE,
            UsageError,
            r"WebArena tasks need rollout\.env=browser",
        ),
    ],
    ids=["unknown page", "suite that is not there", "WebArena on remote environments"],
)
def test_tasks_that_cannot_be_played_stop_the_stage_before_it_starts(task, settings, error, reason, tmp_path):
    out = tmp_path / "trajectories.jsonl"
    with pytest.raises(error, match=reason):
        run(collect([task], run_config(**settings), ClickNamedButton(), out, phase=1, prefix="p01"))
    assert not out.exists()


def test_screenshots_lie_beside_the_trajectories_by_reference(tmp_path):
    out = tmp_path / "phase_01" / "trajectories.jsonl"
    config = run_config(screenshots=True)
    run(collect([miniwob("click-button")], config, ClickNamedButton(), out, phase=1, prefix="p01"))
    (trajectory,) = read_records(out, Trajectory)
    path = tmp_path / trajectory.steps[0].screenshot
    assert path.read_bytes().startswith(b"\x89PNG")
    assert path.is_relative_to(out.parent)


def test_the_whole_pool_plays_at_once(tmp_path):
    class CountsCompany(ClickNamedButton):
        now = most = 0

        async def act(self, turn):
            type(self).now += 1
            type(self).most = max(self.most, self.now)
            for _ in range(300):  # on a busy machine the last page opens late
                await asyncio.sleep(0.1)
                if self.most >= 6:
                    break
            type(self).now -= 1
            return await super().act(turn)

    out = tmp_path / "trajectories.jsonl"
    tasks = [miniwob("click-button", seed) for seed in range(12)]
    run(collect(tasks, run_config(num_workers=2), CountsCompany(), out, phase=1, prefix="p01"))
    assert success_rate(read_records(out, Trajectory)).successes == 12
    assert CountsCompany.most == 6
