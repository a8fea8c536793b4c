"""Computes what episodes are worth, and makes rows of a training batch: a step each, in the tokens that were sampled.

An episode that failed for reasons of its own (page, browser, server, engine, deadline) has no reward: TRL leaves it out
of its group's mean, and nothing is learnt from it.

An episode's steps have a prompt each (goal, history and page of their own), so an episode is not one sequence: what
the model saw at its third step is that prompt, not all that went before. A row is therefore a step's prompt, and the
tokens that were sampled for it with the episode's advantage; nothing else is trained on.
"""

from __future__ import annotations

import math
import statistics
from collections.abc import Callable, Collection, Mapping, Sequence
from dataclasses import dataclass

import torch
from torch import Tensor
from torch.nn.utils.rnn import pad_sequence

from webrl.evaluate import is_success, wilson_interval
from webrl.types import Record
from webrl_grpo.play import Episode
from webrl_grpo.settings import Reward

RewardFunction = Callable[..., list[float | None]]

MIN_EPISODES = 128
"""A mean is taken over whole generation batches of at least this many episodes, and over half of them at most."""
_REWARDS: dict[str, Callable[[Episode], float]] = {
    "outcome": lambda episode: float(is_success(episode.trajectory)),
    "sum": lambda episode: sum(episode.step_rewards),
    "mean": lambda episode: sum(episode.step_rewards) / len(episode.step_rewards),
    "max": lambda episode: max(episode.step_rewards),
    "format": lambda episode: 1 - len(episode.unreadable) / len(episode.step_rewards),
}


def reward_functions(names: Collection[Reward]) -> list[RewardFunction]:
    """Returns one function a name, under which TRL logs it."""
    functions: list[RewardFunction] = []
    for name in names:
        functions.append(lambda episode, _reward=name, **_: weighted_rewards({_reward: 1.0}, episode))
        functions[-1].__name__ = name
    return functions


def weighted_rewards(weights: Mapping[Reward, float], episodes: Sequence[Episode]) -> list[float | None]:
    """Returns each episode's reward, summed as TRL sums its functions; None for one that failed."""
    return [
        sum(weight * _REWARDS[name](episode) for name, weight in weights.items())
        if episode.trajectory.status.finished
        else None
        for episode in episodes
    ]


@dataclass(frozen=True)
class Mean(Record):
    """A mean reward.

    Example: `Mean(mean=0.25, episodes=96, ci95=(0.174, 0.345))`
    """

    mean: float
    """Mean over the episodes that have a reward."""
    episodes: int
    """Number of episodes that have a reward."""
    ci95: tuple[float, ...]
    """95 % interval: Wilson's where every reward is 0 or 1, else of the normal approximation."""

    def __str__(self) -> str:
        low, high = self.ci95
        return f"{self.mean:.3f} [{low:.3f}, {high:.3f}] over {self.episodes} episodes"


def mean_reward(rewards: Sequence[float]) -> Mean:
    """Returns the mean of some rewards; 0 with the interval (-inf, inf) if there are none."""
    if not rewards:
        return Mean(0.0, 0, (-math.inf, math.inf))
    mean = statistics.fmean(rewards)
    if set(rewards) <= {0.0, 1.0}:
        low, high = wilson_interval(round(sum(rewards)), len(rewards))
    else:
        spread = 1.96 * statistics.stdev(rewards) / math.sqrt(len(rewards)) if len(rewards) > 1 else math.inf
        low, high = mean - spread, mean + spread
    return Mean(mean, len(rewards), (low, high))


def first_and_last(batches: Sequence[Sequence[float]]) -> tuple[Mean, Mean]:
    """Returns the mean reward of the first generation batches and of the last (`MIN_EPISODES`).

    Args:
        batches: rewards of each batch, in order.
    """
    half = max(1, len(batches) // 2)
    means = []
    for part in (batches[:half], batches[::-1][:half]):
        taken: list[float] = []
        for batch in part:
            if len(taken) < MIN_EPISODES:
                taken += batch
        means.append(mean_reward(taken))
    return means[0], means[1]


@dataclass(frozen=True)
class Rows:
    """R steps, padded; P and A are the longest prompt and answer among them."""

    prompt_ids: Tensor
    """[R, P] padded on the left."""
    prompt_mask: Tensor
    """[R, P] 1 for tokens."""
    answer_ids: Tensor
    """[R, A] padded on the right."""
    answer_mask: Tensor
    """[R, A] 1 for sampled tokens; 0 throughout a row that only fills up."""
    advantages: Tensor
    """[R]"""
    logprobs: Tensor
    """[R, A] as recorded while sampling; 0 beyond an answer."""
    num_tokens: int
    """Sampled tokens of all episodes that have a reward, including those without advantage."""
    screenshots: tuple[bytes, ...] = ()
    """R PNGs, one a prompt; empty for a text model."""
    num_unreadable: int = 0
    """Steps that were left out: their answer was not an action, and their advantage above 0."""


def make_rows(
    episodes: Sequence[Episode],
    advantages: Sequence[float],
    multiple: int,
    pad_id: int,
    device: torch.device,
    *,
    sees: bool = False,
) -> Rows:
    """Make rows of the steps whose advantage is not 0 (the others' loss is 0), filled up to a multiple.

    Unlike in TRL, an answer that is not an action is never made more likely: the episode succeeded after its fallback,
    not after it. One such answer, tens of nats unlikely, has more gradient than the rest of the batch.

    Args:
        advantages: one an episode.
        multiple: number of micro-batches that the rows are dealt to.
        sees: every prompt holds a screenshot; so do the rows that fill up.
    """
    finished = [(e, a) for e, a in zip(episodes, advantages, strict=True) if e.trajectory.status.finished]
    kept = [
        (episode, step, advantage)
        for episode, advantage in finished
        if advantage
        for step in episode.trajectory.steps
        if advantage < 0 or step.index not in episode.unreadable
    ]
    steps = [(step.prompt_ids, step.action_ids, step.logprobs, advantage) for _, step, advantage in kept]
    screenshots = [episode.screenshots[step.index] for episode, step, _ in kept] if sees else []
    num_blank = -len(steps) % multiple or (multiple if not steps else 0)
    spare = finished[0][0].trajectory.steps[0].prompt_ids if sees else (pad_id,)
    rows = [*steps, *[(spare, (pad_id,), (0.0,), 0.0)] * num_blank]
    if sees:
        screenshots += [finished[0][0].screenshots[0]] * num_blank
    prompts = [torch.tensor(prompt) for prompt, *_ in rows]
    answers = [torch.tensor(answer) for _, answer, *_ in rows]
    answer_mask = pad_sequence([torch.ones_like(a) for a in answers], batch_first=True)
    answer_mask[len(steps) :] = 0
    return Rows(
        prompt_ids=pad_sequence(prompts, True, pad_id, "left").to(device),
        prompt_mask=pad_sequence([torch.ones_like(p) for p in prompts], True, 0, "left").to(device),
        answer_ids=pad_sequence(answers, True, pad_id).to(device),
        answer_mask=answer_mask.to(device),
        advantages=torch.tensor([advantage for *_, advantage in rows], device=device),
        logprobs=pad_sequence([torch.tensor(row[2]) for row in rows], batch_first=True).to(device),
        num_tokens=sum(len(step.action_ids) for episode, _ in finished for step in episode.trajectory.steps),
        screenshots=tuple(screenshots),
        num_unreadable=sum(len(episode.unreadable) for episode, advantage in finished if advantage > 0),
    )
