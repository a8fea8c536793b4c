"""Rollouts of an 8B-shaped policy behind vLLM on one GPU: agent steps per second, and how busy the GPU is.

`python benchmarks/rollout_gpu.py`; the last line of the output is one JSON object. The model has Llama-3.1-8B's shape
and random weights (vLLM's `dummy` loader), prompts have 4,096 tokens, answers 64. Server, client, prompts and episodes
are the product's; the browser is replaced by pages of text that take as long as the demo's pages took (quantiles of
1,498 steps, stragglers included).

The baseline is vLLM without any server or page: `LLM.generate` on the prompts that those episodes asked, all at once,
in a process of its own. The prompt's two orders are compared at the last level: `chat` (goal, history, page) and
`chat_history_last` (goal, page, history), with pages that are new at every step and pages of which a step changes one
line.
"""

from __future__ import annotations

import argparse
import asyncio
import collections
import itertools
import json
import logging
import math
import random
import statistics
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

ROOT = Path(__file__).resolve().parent.parent
sys.path[:0] = [str(ROOT), str(ROOT / "benchmarks")]

from phase import GpuLoad  # noqa: E402

from webrl.cli.command import end_clearly  # noqa: E402
from webrl.config import PromptFormat, RunConfig, validate_config  # noqa: E402
from webrl.config.extras import require  # noqa: E402
from webrl.llm import open_model  # noqa: E402
from webrl.llm.interface import PolicyOutput, Turn  # noqa: E402
from webrl.llm.policy import ModelPolicy  # noqa: E402
from webrl.rollouts.episode import run_episode  # noqa: E402
from webrl.rollouts.interface import Observation, StepResult  # noqa: E402
from webrl.types import Task  # noqa: E402

PROMPT_TOKENS, NEW_TOKENS, EPISODE_STEPS = 4096, 64, 10
STEP_SECONDS = (
    (0.0, 0.007), (0.05, 0.013), (0.25, 0.023), (0.5, 0.041), (0.75, 0.076),
    (0.9, 0.157), (0.95, 0.5), (0.99, 0.607), (0.995, 0.661), (1.0, 0.871),
)  # fmt: skip
"""(quantile, seconds) of a browser step in the demo's run, two cores, 21 November 2026."""
TEMPLATE = (
    "{% for m in messages %}<|{{ 'assistant' if m['role'] == 'assistant' else 'user' }}|>{{ m['content'] }}<|end|>"
    "{% endfor %}{% if add_generation_prompt %}<|assistant|>{% endif %}"
)
"""The tiny actor's chat template leaves the system prompt out; this one keeps it, as those of larger models do."""


def draw_seconds(rng: random.Random) -> float:
    """One step's time from the measured distribution."""
    point = rng.random()
    for (low, fast), (high, slow) in itertools.pairwise(STEP_SECONDS):
        if point <= high:
            return fast + (slow - fast) * (point - low) / (high - low)
    return STEP_SECONDS[-1][1]


class PaperPages:
    """An environment of text pages (`Env`): longer than any prompt; at every step a new one, or one line is new."""

    def __init__(self, rng: random.Random, *, edited: bool) -> None:
        self._rng, self._edited = rng, edited
        self._number = 0
        self._lines: list[str] = []

    async def reset(self, task: Task) -> Observation:
        """The first page."""
        return await self._page(task.task_id)

    async def step(self, text: str) -> StepResult:
        """The next page; every answer counts as an action that could be read."""
        del text
        self._number += 1
        page = await self._page(f"step {self._number}")
        return StepResult(page, action=f"click('{self._number}')", error="", done=False, reward=0.0, agent_done=False)

    async def close(self) -> None:
        """Nothing is open."""

    async def _page(self, name: str) -> Observation:
        await asyncio.sleep(draw_seconds(self._rng))
        if self._lines and self._edited:
            self._lines[self._rng.randrange(len(self._lines))] = self._line()
        else:
            self._lines = [f"RootWebArea '{name}'", *(self._line() for _ in range(PROMPT_TOKENS // 12))]
        return Observation("\n".join(self._lines), "http://pages/", "Find the cheapest blue chair")

    def _line(self) -> str:
        return f"[{self._rng.randrange(9999)}] link '{self._rng.choice(WORDS)}'"


WORDS = ("home", "search results", "price", "add to cart", "blue chair", "next page", "sign in", "reviews", "wish list")


def run_config(size: str, prompt_format: PromptFormat = "chat") -> RunConfig:
    """The settings of these rollouts; one CPU server for the tiny size."""
    dtype = "float32" if size == "tiny" else "bfloat16"
    extra = ["--load-format", "dummy", "--max-num-seqs", "256"]
    return validate_config(
        {
            "models": {"max_prompt_tokens": PROMPT_TOKENS, "dtype": dtype, "prompt_format": prompt_format},
            "rollout": {
                "max_new_tokens": NEW_TOKENS, "max_steps": EPISODE_STEPS, "max_repeats": EPISODE_STEPS + 1,
                "engine": {"kind": "vllm", "extra_args": extra, "timeout_s": 600, "vllm_python": sys.executable},
            },
        },
        "benchmark",
    )  # fmt: skip


def write_model(folder: Path, size: str) -> None:
    """A model folder without real weights: config, the tiny actor's tokenizer, an empty weight file for the name."""
    import torch
    from safetensors.torch import save_file
    from training_shapes import llama_config
    from transformers import AutoTokenizer

    config = llama_config(size, 2 if size == "tiny" else 32)
    config.architectures = ["LlamaForCausalLM"]
    config.save_pretrained(folder)
    tokenizer = AutoTokenizer.from_pretrained(ROOT / "data" / "tiny" / "actor")
    tokenizer.chat_template = TEMPLATE
    tokenizer.save_pretrained(folder)
    save_file({"none": torch.zeros(1)}, folder / "model.safetensors")


async def play(
    model: Any, config: RunConfig, concurrency: int, seconds: float, *, edited: bool, seed: int
) -> tuple[float, list[Answer]]:
    """Steps per second of `concurrency` episodes at a time after everyone's first step, and all answers.

    Answers come in waves of `concurrency` (everyone starts together), and a wave more or less in the window would be a
    tenth of the rate; the slope of a line through all arrivals is not moved by that.
    """
    answers: list[Answer] = []
    policy = ModelPolicy(model, config, training=True)

    async def player(number: int) -> None:
        rng = random.Random(f"{seed} {number}")  # no page comes twice: the server's prefix cache would know it
        for episode in itertools.count():
            name = f"{number}-{episode}"
            task = Task(task_id=name, site="pages", seed=number)
            pages = PaperPages(rng, edited=edited)
            await run_episode(pages, Keeping(policy, answers), task, config.rollout, trajectory_id=name)

    players = [asyncio.create_task(player(number)) for number in range(concurrency)]
    while len(answers) < concurrency:  # noqa: ASYNC110 - a count is polled
        await asyncio.sleep(0.05)
    before = len(answers)
    await asyncio.sleep(seconds)
    while len(answers) < before + 2 * concurrency:  # noqa: ASYNC110 - not even two waves yet
        await asyncio.sleep(0.05)
    arrivals = [answer.at for answer in answers[before:]]
    rate = 1 / statistics.linear_regression(range(len(arrivals)), arrivals).slope
    for task in players:
        task.cancel()
    await asyncio.gather(*players, return_exceptions=True)
    return rate, answers


@dataclass
class Answer:
    """What a step asked, how long its answer was, and how much of the prompt the episode's step before had asked."""

    prompt_ids: tuple[int, ...]
    num_new: int
    num_shared: int
    at: float
    """Clock when it came, seconds."""


class Keeping:
    """A policy for one episode that keeps its answers (`Policy`)."""

    def __init__(self, policy: Any, answers: list[Answer]) -> None:
        self.fingerprint = policy.fingerprint
        self._policy, self._answers = policy, answers
        self._last: tuple[int, ...] = ()

    async def act(self, turn: Turn) -> PolicyOutput:
        """Ask and keep."""
        output: PolicyOutput = await self._policy.act(turn)
        same = itertools.takewhile(lambda pair: pair[0] == pair[1], zip(output.prompt_ids, self._last, strict=False))
        answer = Answer(output.prompt_ids, len(output.action_ids), sum(1 for _ in same), time.perf_counter())
        self._answers.append(answer)
        self._last = output.prompt_ids
        return output


def offline(folder: Path, prompts: Path, size: str) -> None:
    """Run vLLM alone on these prompts (a process of its own); prints one JSON line."""
    from vllm import LLM, SamplingParams

    asked = json.loads(prompts.read_text())
    config = run_config(size)
    options = {"max_model_len": PROMPT_TOKENS + 512, "max_num_seqs": 256, "dtype": config.models.dtype}
    llm = LLM(model=str(folder), load_format="dummy", gpu_memory_utilization=0.85, **options)
    sampling = SamplingParams(temperature=1.0, max_tokens=NEW_TOKENS, logprobs=1, ignore_eos=True, detokenize=False)
    wanted = [{"prompt_token_ids": ids} for ids in asked]
    llm.generate(wanted[:8], sampling, use_tqdm=False)
    llm.reset_prefix_cache()
    start = time.perf_counter()
    llm.generate(wanted, sampling, use_tqdm=False)
    seconds = time.perf_counter() - start
    print(json.dumps({"prompts": len(asked), "steps_per_s": len(asked) / seconds}))


async def serve(
    folder: Path, size: str, levels: Sequence[tuple[int, float]], report: Callable[..., None]
) -> list[tuple[int, ...]]:
    """Play both orders and both kinds of page at the last level, `chat` with new pages at all; gives its prompts."""
    config = run_config(size)
    compared: list[tuple[PromptFormat, bool]] = [
        ("chat_history_last", False),
        ("chat_history_last", True),
        ("chat", True),
    ]
    rounds = [(*kind, *levels[-1]) for kind in compared] + [("chat", False, *level) for level in levels]
    started = time.perf_counter()
    async with open_model(str(folder), config.rollout.engine, config.models) as model:
        print(f"server ready after {time.perf_counter() - started:.0f} s", flush=True)
        for seed, (form, edited, concurrency, seconds) in enumerate(rounds):
            asking = run_config(size, form)
            began = time.time()
            with GpuLoad() as gpu:
                rate, answers = await play(model, asking, concurrency, seconds, edited=edited, seed=seed)
            idle = gpu.idle_share(began, time.time())
            report(
                form, "edited pages" if edited else "new pages", concurrency, rate, math.nan if idle is None else idle
            )
            sizes = [(len(a.prompt_ids), a.num_new, a.num_shared) for a in answers]
            asked, new, shared = (sum(column) / len(sizes) for column in zip(*sizes, strict=True))
            print(f"  {asked:.0f} tokens a prompt, {new:.1f} an answer, {shared:.0f} shared with the step before")
        return [a.prompt_ids for a in answers]


def main() -> None:
    """Command line; see the module docstring."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--levels", default="1:10,16:25,64:45,128:60", help="concurrent episodes:seconds, …")
    parser.add_argument("--size", choices=("tiny", "8B"), default="8B", help="shape; tiny tries this script out")
    parser.add_argument("--max-prompts", type=int, default=512, help="prompts of the offline baseline")
    parser.add_argument("--offline", nargs=2, type=Path, help=argparse.SUPPRESS)
    args = parser.parse_args()
    logging.basicConfig(level=logging.INFO, format="%(message)s")
    require("vllm", "benchmarks/rollout_gpu.py")
    if args.offline:
        offline(*args.offline, args.size)
        return
    levels = [(int(n), float(s)) for n, _, s in (level.partition(":") for level in args.levels.split(","))]
    rates: dict[str, dict[int, float]] = collections.defaultdict(dict)
    idle: dict[int, float] = {}

    def report(form: str, pages: str, concurrency: int, rate: float, idle_share: float) -> None:
        rates[f"{form}, {pages}"][concurrency] = round(rate, 3)
        if form == "chat" and pages == "new pages":
            idle[concurrency] = round(idle_share, 4)
        print(f"{form}, {pages}, {concurrency} episodes: {rate:.2f} agent steps/s, GPU idle {idle_share:.1%}")
        sys.stdout.flush()

    with tempfile.TemporaryDirectory() as folder:
        model, prompts = Path(folder) / "model", Path(folder) / "prompts.json"
        write_model(model, args.size)
        asked = asyncio.run(serve(model, args.size, levels, report))[: args.max_prompts]
        prompts.write_text(json.dumps(asked))
        command = [sys.executable, __file__, "--size", args.size, "--offline", str(model), str(prompts)]
        answer = subprocess.run(command, stdout=subprocess.PIPE, text=True, check=True).stdout
        base = json.loads(next(line for line in answer.splitlines() if line.startswith('{"prompts"')))
    print(f"vLLM offline on {base['prompts']} of the same prompts: {base['steps_per_s']:.2f} steps/s", flush=True)
    ours, last = rates["chat, new pages"], levels[-1][0]
    figures = {
        "agent_steps_per_s": ours,
        "gpu_idle": idle,
        "offline_steps_per_s": round(base["steps_per_s"], 3),
        "ratio_vs_offline": round(max(ours.values()) / base["steps_per_s"], 3),
        "orders_steps_per_s": {name: by_level[last] for name, by_level in rates.items()},
        "gain_of_history_last": {
            pages: round(rates[f"chat_history_last, {pages}"][last] / rates[f"chat, {pages}"][last], 3)
            for pages in ("new pages", "edited pages")
        },
    }
    print(json.dumps(figures))


if __name__ == "__main__":
    sys.exit(end_clearly(sys.argv[0], main))
