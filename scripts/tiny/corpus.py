"""Token sequences for the tiny models: synthetic pages and recorded demonstrations in the product's own prompts.

The answer's tokens weigh 1, the page's tokens `PAGE_WEIGHT`: a little language modelling of the page more than
halves the steps until look-up works.
"""

from __future__ import annotations

import random
import re
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass

from transformers import PreTrainedTokenizerFast

from tiny import synthetic
from tiny.pretrain import Sample, Source
from tiny.tokenizer import ASSISTANT, END, USER
from webrl.llm.prompts import policy_messages
from webrl.reward.orm import judge_text
from webrl.tasks.prompts import feasibility_prompt, in_breadth_prompt
from webrl.types import Step, Trajectory

PAGE_WEIGHT = 0.2


@dataclass(frozen=True)
class Pair:
    """A user message and its answer."""

    user: str
    answer: str


def encode(tokenizer: PreTrainedTokenizerFast, pair: Pair, page_weight: float = PAGE_WEIGHT) -> Sample:
    """Ids of the chat turn pair and the weight of predicting each of them.

    Prompt and answer are tokenised apart, as they are when the model acts.
    """
    user = tokenizer.encode(pair.user, add_special_tokens=False)
    answer = tokenizer.encode(pair.answer, add_special_tokens=False)
    start, turn, end = (tokenizer.convert_tokens_to_ids(token) for token in (USER, ASSISTANT, END))
    ids = [start, *user, end, turn, *answer, end]
    return ids, [0.0] + [page_weight] * len(user) + [0.0, 0.0] + [1.0] * (len(answer) + 1)


def act_pair(goal: str, history: Sequence[str], page: str, action: str) -> Pair:
    """The policy's prompt and the action."""
    past = [Step(index, "", text, text) for index, text in enumerate(history)]
    return Pair(policy_messages(goal, past, page)[-1].content, action)


def judge_pair(goal: str, actions: Sequence[str], page: str, success: bool) -> Pair:
    """The outcome model's prompt and its verdict."""
    return Pair(judge_text(goal, actions, page.strip()), "YES" if success else "NO")


def generate_pair(site: str, failed: Sequence[str], page: str, goal: str) -> Pair:
    """The generator's prompt and a new instruction."""
    return Pair(in_breadth_prompt(site, failed, page).user, goal)


def feasibility_pair(site: str, goal: str, page: str, feasible: bool) -> Pair:
    """The feasibility check's prompt and its verdict."""
    return Pair(feasibility_prompt(site, goal, page).user, "YES" if feasible else "NO")


def synthetic_pairs(
    rng: random.Random, act: float = 0.6, judge: float = 0.25, lexicon: Sequence[str] = ()
) -> Iterator[Pair]:
    """Synthetic decisions, judgements and instructions in the given shares (the rest are instructions)."""
    rng = synthetic.Words(rng.getrandbits(64), lexicon)
    examples, verdicts, proposals = synthetic.examples(rng), synthetic.verdicts(rng), synthetic.proposals(rng)
    while True:
        draw = rng.random()
        if draw < act:
            e = next(examples)
            yield act_pair(e.goal, e.history, e.page, e.action)
        elif draw < act + judge:
            v = next(verdicts)
            yield judge_pair(v.goal, v.actions, v.page, v.success)
        else:
            p = next(proposals)
            yield generate_pair("site." + synthetic.word(rng).lower(), p.failed, p.page, p.goal)


def lexicon_of(trajectories: Sequence[Trajectory]) -> list[str]:
    """Every word of the recorded instructions and pages."""
    texts = (text for t in trajectories for text in (t.instruction, *(step.observation for step in t.steps)))
    return sorted({word for text in texts for word in re.findall(r"[A-Za-z][\w-]*", text)})


def shift_bids(pair: Pair, rng: random.Random) -> Pair:
    """The same turn with every element id moved by one random offset, so that ids are looked up, not learnt."""
    offset = rng.randint(-6, 30)

    def move(match: re.Match[str]) -> str:
        return f"{match[1]}{max(1, int(match[2]) + offset)}{match[3]}"

    pattern = re.compile(r"(\[|\w\(')(\d+)(\]|')")
    return Pair(pattern.sub(move, pair.user), pattern.sub(move, pair.answer))


def mixed(
    tokenizer: PreTrainedTokenizerFast,
    parts: Sequence[tuple[float, Callable[[random.Random], Iterator[Pair]]]],
    page_weight: float = PAGE_WEIGHT,
) -> Source:
    """A source that draws pairs from several streams by weight."""

    def source(rng: random.Random) -> Iterator[Sample]:
        streams = [stream(rng) for _, stream in parts]
        weights = [weight for weight, _ in parts]
        while True:
            yield encode(tokenizer, next(rng.choices(streams, weights)[0]), page_weight)

    return source


def repeated(pairs: Sequence[Pair], shift: float = 0.5) -> Callable[[random.Random], Iterator[Pair]]:
    """Recorded pairs, drawn again and again; `shift` is the share whose element ids are moved."""

    def stream(rng: random.Random) -> Iterator[Pair]:
        while True:
            pair = rng.choice(pairs)
            yield shift_bids(pair, rng) if rng.random() < shift else pair

    return stream
