"""Episodes as rows of a training batch: exactly the sampled tokens, each behind the prompt it was sampled from."""

import pytest
import torch

from webrl.types import Status, Step, Task, Trajectory
from webrl_grpo.play import Episode
from webrl_grpo.rows import first_and_last, make_rows, mean_reward, reward_functions

PAD = 9


def step(index: int, prompt: list[int], answer: list[int]) -> Step:
    logprobs = tuple(-0.1 * i for i in answer)
    return Step(index, "page", "r", "noop()", prompt_ids=tuple(prompt), action_ids=tuple(answer), logprobs=logprobs)


def episode(
    *steps: Step,
    status: Status = Status.PAGE_ENDED,
    rewards: tuple[float, ...] = (0.0, 1.0),
    unreadable: tuple[int, ...] = (),
):
    task = Task("t", site="miniwob.click-test")
    reward = rewards[-1] if status.finished else None
    trajectory = Trajectory("t", task, "go", 0, steps, "", status, env_reward=reward)
    return Episode(trajectory, rewards, unreadable)


@pytest.mark.quick
def test_a_row_is_a_steps_prompt_and_the_tokens_that_were_sampled_for_it():
    two = episode(step(0, [1, 2, 3], [4, 5]), step(1, [6], [7, 8, 2]))
    one = episode(step(0, [3, 3], [1]))
    rows = make_rows([two, one], [0.5, -1.0], 1, PAD, torch.device("cpu"))
    assert rows.prompt_ids.tolist() == [[1, 2, 3], [PAD, PAD, 6], [PAD, 3, 3]]
    assert rows.prompt_mask.tolist() == [[1, 1, 1], [0, 0, 1], [0, 1, 1]]
    assert rows.answer_ids.tolist() == [[4, 5, PAD], [7, 8, 2], [1, PAD, PAD]]
    assert rows.answer_mask.tolist() == [[1, 1, 0], [1, 1, 1], [1, 0, 0]], "nothing but sampled tokens is trained on"
    assert rows.advantages.tolist() == [0.5, 0.5, -1.0]
    torch.testing.assert_close(rows.logprobs[1], torch.tensor([-0.7, -0.8, -0.2]))
    assert rows.num_tokens == 6


def test_an_answer_that_is_no_action_is_made_less_likely_and_never_more():
    better = episode(step(0, [1], [5]), step(1, [1, 3], [2]), unreadable=(0,))
    worse = episode(step(0, [1], [2]), step(1, [1, 3], [7, 8]), unreadable=(1,))
    rows = make_rows([better, worse], [0.5, -0.5], 1, PAD, torch.device("cpu"))
    assert rows.answer_ids.tolist() == [[2, PAD], [2, PAD], [7, 8]]
    assert rows.advantages.tolist() == [0.5, -0.5, -0.5]
    assert (rows.num_unreadable, rows.num_tokens) == (1, 5)


def test_rows_fill_up_their_micro_batches_with_rows_that_train_nothing():
    rows = make_rows([episode(step(0, [1], [2])) for _ in range(5)], [1.0] * 5, 4, PAD, torch.device("cpu"))
    assert rows.answer_mask.sum(1).tolist() == [1, 1, 1, 1, 1, 0, 0, 0]
    assert rows.advantages.tolist() == [1.0] * 5 + [0.0] * 3
    assert (rows.prompt_mask.sum(1) > 0).all(), "attention over nothing would be nan"


def test_what_has_no_advantage_or_has_failed_makes_no_row_but_its_tokens_count():
    played = [
        episode(step(0, [1], [2, 3])),
        episode(step(0, [1], [2])),
        episode(step(0, [1], [2, 2, 2]), status=Status.ENV_ERROR),
    ]
    rows = make_rows(played, [0.0, 2.0, 0.0], 1, PAD, torch.device("cpu"))
    assert rows.answer_ids.tolist() == [[2]]
    assert rows.num_tokens == 3, "the loss is a mean over all tokens that have a reward; a failed episode's have none"
    assert make_rows(played, [0.0, 0.0, 0.0], 2, PAD, torch.device("cpu")).answer_mask.tolist() == [[0], [0]]


def test_rewards_by_name_and_none_for_an_episode_that_failed():
    step_ = step(0, [1], [2])
    played = [
        episode(step_, rewards=(0.0, 0.5, 1.0), unreadable=(1,)),
        episode(step_, rewards=(1.0, 0.0, 0.0)),
        episode(status=Status.ENV_ERROR, rewards=()),
    ]
    named = {f.__name__: f(episode=played, completions=[]) for f in reward_functions(("outcome", "sum", "mean", "max"))}
    assert named["outcome"] == [1.0, 0.0, None]
    assert named["sum"] == [1.5, 1.0, None]
    assert named["mean"] == [0.5, pytest.approx(1 / 3), None]
    assert named["max"] == [1.0, 1.0, None]
    assert reward_functions(["format"])[0](episode=played) == [pytest.approx(2 / 3), 1.0, None]


def test_first_and_last_mean_with_counts_and_intervals():
    batches = [[0.0] * 192 + [1.0] * 64, [0.0] * 256, [1.0] * 256, [1.0] * 240 + [0.0] * 16]
    first, last = first_and_last(batches)
    assert (first.mean, first.episodes, first.ci95) == (0.25, 256, pytest.approx((0.2009, 0.3065), abs=1e-4))
    assert (last.mean, last.episodes) == (0.9375, 256)
    assert first_and_last([[0.0, 1.0]] * 400)[0].episodes == 128, "small batches are taken together"
    assert first_and_last([[0.0, 1.0]] * 10)[0].episodes == 10, "of a short training, each half"
    graded = mean_reward([0.0, 0.5, 1.0, 0.5])
    assert graded.ci95 == (pytest.approx(0.5 - 1.96 * 0.40825 / 2, abs=1e-4), pytest.approx(0.9, abs=1e-3))
