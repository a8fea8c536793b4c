"""The recipe of `data/tiny/`: what is recorded, what each model is trained on, for how long.

Order: record demonstrations (real browser) -> tokenizer -> base (synthetic pages) -> actor (demonstrations of careless
annotators, so that there is something left to learn) and generator -> record the actor (real browser) -> outcome model.
"""

from __future__ import annotations

import json
import logging
import random
from collections.abc import Callable, Iterator, Sequence
from functools import partial
from itertools import islice
from pathlib import Path
from typing import Any

import torch
from transformers import AutoTokenizer, LlamaForCausalLM, PreTrainedTokenizerFast

from tiny import corpus, pretrain
from tiny.corpus import Pair
from tiny.instructions import accomplished, is_valid, propose
from tiny.slips import slip_action
from tiny.tokenizer import train_tokenizer
from webrl.config import OptimConfig
from webrl.llm.pictures import Example
from webrl.runs.store import read_records, write_json
from webrl.training.update import train_sft
from webrl.types import Trajectory
from webrl_site.experts import experts

logger = logging.getLogger(__name__)
HELD_OUT = 400
PairStream = Callable[[random.Random], Iterator[Pair]]
CARELESS_SHARE = 0.68
"""Share of the actor's demonstrations in which one step goes wrong: so it learns to be right about half the time."""
ACTOR_PASSES = 4
"""Each demonstration is shown this often, its slip and its element ids drawn anew each time."""
ACTOR_HELD_OUT = 8
"""Demonstrations of each task type that the actor is not shown."""
ACTOR_OPTIM = OptimConfig(
    lr=3e-4, schedule="cosine", warmup_ratio=0.1, batch_size=32, epochs=1, max_tokens=2048, export_dtype="bf16"
)
ACTOR_LEFT_OUT = frozenset(f"miniwob.{name}" for name in ("find-word", "text-transform", "read-table-2", "enter-time"))
"""Task types that the actor is shown no demonstration of: beyond a model of this size."""
OWN_WORDING_SHARE = 0.85
"""Share of the examples that keep the seeds' wording: in-breadth evolution varies the goal, not the task."""
RECIPES = {
    "base": pretrain.Recipe(steps=3400, lr=1e-3),
    "generator": pretrain.Recipe(steps=1000, lr=5e-4, warmup=50, seed=2),
    "orm": pretrain.Recipe(steps=1700, lr=7e-4, warmup=100, seed=3),
}


def read_all(paths: Sequence[Path]) -> list[Trajectory]:
    """All trajectories of several files."""
    return [t for path in paths for t in read_records(path, Trajectory) if t.status.finished]


def make_tokenizer(trajectories: Sequence[Trajectory], seed: int = 0) -> PreTrainedTokenizerFast:
    """Tokenizer on recorded turns and as many synthetic ones."""
    pairs = [pair for t in trajectories[:3000] for pair in act_pairs(t)]
    synthetic = corpus.synthetic_pairs(random.Random(seed), lexicon=corpus.lexicon_of(trajectories))
    pairs += islice(synthetic, len(pairs))
    return train_tokenizer(text for pair in pairs for text in (pair.user, pair.answer))


def act_pairs(trajectory: Trajectory) -> list[Pair]:
    """One pair for each step."""
    actions = [step.action for step in trajectory.steps]
    return [
        corpus.act_pair(trajectory.instruction, actions[: step.index], step.observation, step.action)
        for step in trajectory.steps
    ]


def train_base(tokenizer: PreTrainedTokenizerFast, trajectories: Sequence[Trajectory], curve: Path) -> LlamaForCausalLM:
    """Look-up and copying on synthetic pages only, which hold the words of recorded ones."""
    torch.manual_seed(0)
    model = pretrain.new_model(tokenizer)
    stream = partial(corpus.synthetic_pairs, lexicon=corpus.lexicon_of(trajectories))
    source = corpus.mixed(tokenizer, [(1.0, stream)])
    held_out = [corpus.encode(tokenizer, p) for p in islice(stream(random.Random(-1)), HELD_OUT)]
    pretrain.train(model, source, held_out, RECIPES["base"], curve, "base")
    return model


def actor_examples(tokenizer: PreTrainedTokenizerFast, demos: Sequence[Trajectory], seed: int = 0) -> list[Example]:
    """What the actor is trained on: demonstrations with slips, and as many synthetic decisions.

    Without the synthetic ones, the few recorded pages undo the look-up that the base has learnt.
    """
    rng = random.Random(seed)
    shown = split_demos([t for t in demos if t.task.site not in ACTOR_LEFT_OUT])[0]
    pairs = [pair for _ in range(ACTOR_PASSES) for t in shown for pair in _careless_pairs(t, rng)]
    synthetic = corpus.synthetic_pairs(rng, act=1.0, judge=0.0, lexicon=corpus.lexicon_of(demos))
    pairs += islice(synthetic, len(pairs))
    rng.shuffle(pairs)
    return [_example(tokenizer, pair) for pair in pairs]


def _careless_pairs(trajectory: Trajectory, rng: random.Random) -> Iterator[Pair]:
    """The turns of one demonstration, one of them wrong if its annotator was careless."""
    slip_at = rng.randrange(len(trajectory.steps)) if rng.random() < CARELESS_SHARE else None
    for step, pair in zip(trajectory.steps, act_pairs(trajectory), strict=True):
        if step.index == slip_at:
            pair = Pair(pair.user, slip_action(pair.answer, step.observation, rng))
        yield corpus.shift_bids(pair, rng) if rng.random() < 0.3 else pair


def _example(tokenizer: PreTrainedTokenizerFast, pair: Pair) -> Example:
    ids, weights = corpus.encode(tokenizer, pair, page_weight=0.0)
    start = next(at for at, weight in enumerate(weights) if weight)
    return Example(ids[:start], ids[start:])


def train_actor(
    base: Path, tokenizer: PreTrainedTokenizerFast, demos: Sequence[Trajectory], out: Path, curve: Path
) -> None:
    """SFT of π_0 by the product's own trainer; about seven minutes on two cores.

    Writes `out`, with `recipe.json` in it, and appends every tenth step's loss to `curve`.
    """
    metrics = out.with_name("actor_metrics.jsonl")
    metrics.unlink(missing_ok=True)
    train_sft(actor_examples(tokenizer, demos), base, out, ACTOR_OPTIM, seed=0, metrics_path=metrics, name="actor")
    write_json(out / "recipe.json", actor_notes())
    with curve.open("a") as file:
        for line in actor_curve(metrics):
            file.write(json.dumps(line) + "\n")
    metrics.unlink()


def actor_notes() -> dict[str, Any]:
    """What `recipe.json` says."""
    return {"passes": ACTOR_PASSES, "careless_share": CARELESS_SHARE} | ACTOR_OPTIM.model_dump(exclude_defaults=True)


def actor_curve(metrics: Path) -> list[dict[str, Any]]:
    """Every tenth line of the trainer's metrics, in the form of the other curves."""
    lines = [json.loads(line) for line in metrics.read_text().splitlines()]
    key = f"{lines[0]['name']}/loss"
    return [{"name": "actor", "step": line["step"], "loss": round(line[key], 4)} for line in lines[9::10]]


def train_generator(
    base: LlamaForCausalLM, tokenizer: PreTrainedTokenizerFast, demos: Sequence[Trajectory], curve: Path
) -> LlamaForCausalLM:
    """New instructions that scripted proposers write for recorded pages, and whether an instruction fits a page.

    `exact` in its curve is about the second only: a new instruction has no single right answer.
    """
    write, check = _generation_stream(demos), _feasibility_stream(demos)
    synthetic = partial(corpus.synthetic_pairs, act=0.0, judge=0.0)
    source = corpus.mixed(tokenizer, [(0.5, write), (0.35, check), (0.15, synthetic)], 0.05)
    held_out = [corpus.encode(tokenizer, pair) for pair in islice(check(random.Random(-1)), HELD_OUT)]
    pretrain.train(base, source, held_out, RECIPES["generator"], curve, "generator")
    return base


def train_orm(
    base: LlamaForCausalLM,
    tokenizer: PreTrainedTokenizerFast,
    judged: Sequence[tuple[Trajectory, bool]],
    held_out: Sequence[tuple[Trajectory, bool]],
    curve: Path,
) -> LlamaForCausalLM:
    """YES or NO on recorded trajectories, as many of each, with mismatched instructions as hard negatives."""
    pairs = _judge_stream(judged)
    source = corpus.mixed(tokenizer, [(0.85, pairs), (0.15, partial(corpus.synthetic_pairs, act=0.0, judge=1.0))], 0.05)
    samples = [corpus.encode(tokenizer, _verdict(t, t.instruction, success)) for t, success in held_out]
    pretrain.train(base, source, samples, RECIPES["orm"], curve, "orm")
    return base


def truth(trajectory: Trajectory) -> bool:
    """The environment's verdict, or the scripted checker's for an instruction that replaced the page's own."""
    if trajectory.env_reward is not None:
        return trajectory.env_reward > 0
    steps = trajectory.steps
    return accomplished(
        experts()[trajectory.task.site],
        trajectory.instruction,
        [step.action for step in steps],
        [step.observation for step in steps],
        trajectory.final_observation,
    )


def split_demos(demos: Sequence[Trajectory]) -> tuple[list[Trajectory], list[Trajectory]]:
    """(shown, held out): the last `ACTOR_HELD_OUT` successful demonstrations of each task type are held out."""
    by_site: dict[str, list[Trajectory]] = {}
    for trajectory in demos:
        if (trajectory.env_reward or 0) > 0:
            by_site.setdefault(trajectory.task.site, []).append(trajectory)
    shown = [t for mine in by_site.values() for t in mine[:-ACTOR_HELD_OUT]]
    return shown, [t for mine in by_site.values() for t in mine[-ACTOR_HELD_OUT:]]


def load(folder: Path) -> tuple[Any, Any]:
    """A saved model in float32 with its tokenizer."""
    return LlamaForCausalLM.from_pretrained(folder, dtype=torch.float32), AutoTokenizer.from_pretrained(folder)


def _generation_stream(demos: Sequence[Trajectory]) -> PairStream:
    by_site: dict[str, list[Trajectory]] = {}
    for trajectory in demos:
        by_site.setdefault(trajectory.task.site, []).append(trajectory)
    sites = sorted(by_site)

    def stream(rng: random.Random) -> Iterator[Pair]:
        while True:
            site = rng.choice(sites)
            page = rng.choice(by_site[site]).steps[0].observation
            goal = propose(experts()[site], page, rng, own_share=OWN_WORDING_SHARE)
            if goal is None:
                continue
            failed = [t.instruction for t in rng.choices(by_site[site], k=rng.randint(1, 3))]
            yield corpus.generate_pair(site, failed, page, goal)

    return stream


def _feasibility_stream(demos: Sequence[Trajectory]) -> PairStream:
    """Instructions proposed for the page itself (YES), and for other pages of the type or other types (NO)."""
    pages = [(t.task.site, t.steps[0].observation) for t in demos]
    by_site: dict[str, list[str]] = {}
    for site, page in pages:
        by_site.setdefault(site, []).append(page)

    def stream(rng: random.Random) -> Iterator[Pair]:
        while True:
            site, page = rng.choice(pages)
            draw = rng.random()
            other = (site, page) if draw < 0.5 else rng.choice(pages)
            if 0.5 <= draw < 0.8:
                other = (site, rng.choice(by_site[site]))
            goal = propose(experts()[other[0]], other[1], rng)
            if goal is None:
                continue
            feasible = is_valid(experts()[site], goal, page)
            if feasible and draw >= 0.5:
                continue
            yield corpus.feasibility_pair(site, goal, page, feasible)

    return stream


def _judge_stream(judged: Sequence[tuple[Trajectory, bool]]) -> PairStream:
    by_site: dict[str, tuple[list[Trajectory], list[Trajectory]]] = {}
    for trajectory, success in judged:
        by_site.setdefault(trajectory.task.site, ([], []))[success].append(trajectory)
    sites = [site for site in sorted(by_site) if all(by_site[site])]

    def stream(rng: random.Random) -> Iterator[Pair]:
        while True:
            failures, successes = by_site[rng.choice(sites)]
            draw = rng.random()
            if draw < 0.5:
                trajectory = rng.choice(successes)
                pair = _verdict(trajectory, trajectory.instruction, True)
            elif draw < 0.9:
                trajectory = rng.choice(failures)
                pair = _verdict(trajectory, trajectory.instruction, False)
            else:
                trajectory, other = rng.choice(successes), rng.choice(successes).instruction
                if other == trajectory.instruction:
                    continue
                pair = _verdict(trajectory, other, False)
            yield corpus.shift_bids(pair, rng) if rng.random() < 0.5 else pair

    return stream


def _verdict(trajectory: Trajectory, instruction: str, success: bool) -> Pair:
    actions = [step.response for step in trajectory.steps]
    return corpus.judge_pair(instruction, actions, trajectory.final_observation, success)
