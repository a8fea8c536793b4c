"""Rollouts of an 8B-shaped policy behind vLLM on one GPU: agent steps per second, and how busy the GPU is.

`python benchmarks/rollout_gpu.py`; the last line of the output is one JSON object. The model has Llama-3.1-8B's shape
and random weights (vLLM's `dummy` loader), prompts have 4,096 tokens, answers 64. Server, client, prompts and episodes
are the product's; the browser is replaced by pages of text that take as long as the demo's pages took (quantiles of
1,498 steps, stragglers included) and that change with every step.

The baseline is vLLM without any server or page: `LLM.generate` on the prompts that those episodes asked, all at once,
in a process of its own. `page first` asks the same with the page before goal and history, so that nothing behind the
system prompt can be taken from the prefix cache.
"""

from __future__ import annotations

import argparse
import asyncio
import itertools
import json
import logging
import random
import subprocess
import sys
import tempfile
import threading
import time
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

ROOT = Path(__file__).resolve().parent.parent
sys.path[:0] = [str(ROOT), str(ROOT / "benchmarks")]

from webrl.config import RunConfig, validate_config  # noqa: E402
from webrl.llm import open_model  # noqa: E402
from webrl.llm.budget import cut_lines, fit_prompt  # noqa: E402
from webrl.llm.interface import Message, PolicyOutput, Sampling  # noqa: E402
from webrl.llm.policy import ModelPolicy  # noqa: E402
from webrl.llm.prompts import policy_messages  # noqa: E402
from webrl.llm.tokens import encode_chat  # noqa: E402
from webrl.rollouts.env import Observation, StepResult  # noqa: E402
from webrl.rollouts.episode import run_episode  # noqa: E402
from webrl.types import Step, Task  # noqa: E402

PROMPT_TOKENS, NEW_TOKENS, EPISODE_STEPS = 4096, 64, 10
STEP_SECONDS = ((0.0, 0.007), (0.05, 0.013), (0.25, 0.023), (0.5, 0.041), (0.75, 0.076), (0.9, 0.157), (0.95, 0.5))
STRAGGLERS = ((0.99, 0.607), (0.995, 0.661), (1.0, 0.871))
"""(quantile, seconds) of a browser step in the demo's run, two cores, 21 November 2026."""


def draw_seconds(rng: random.Random) -> float:
    """One step's time from the measured distribution."""
    point = rng.random()
    for (low, fast), (high, slow) in itertools.pairwise(STEP_SECONDS + STRAGGLERS):
        if point <= high:
            return fast + (slow - fast) * (point - low) / (high - low)
    return STRAGGLERS[-1][1]


class PaperPages:
    """An environment of text pages (`Env`): longer than any prompt, new at every step."""

    def __init__(self, rng: random.Random) -> None:
        self._rng = rng
        self._number = 0

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
        words = self._rng.choices(WORDS, k=PROMPT_TOKENS // 12)
        lines = [f"[{self._rng.randrange(9999)}] link '{word}'" for word in words]
        return Observation(
            "\n".join([f"RootWebArea '{name}'", *lines]), "http://pages/", "Find the cheapest blue chair"
        )


WORDS = ("home", "search results", "price", "add to cart", "blue chair", "next page", "sign in", "reviews", "wish list")


class PageFirst:
    """The same messages with the page before goal and history (`Policy`)."""

    fingerprint = "page first"

    def __init__(self, model: Any) -> None:
        self._model = model

    async def act(
        self, instruction: str, history: Sequence[Step], observation: str, *, seed: int | None = None
    ) -> PolicyOutput:
        """Ask with a prompt of the same length."""
        tokenizer = self._model.tokenizer

        def encode(start: int, page: str) -> list[int]:
            system, user = policy_messages(instruction, history[start:], page)
            goal, _, page = user.content.partition("\nPage:\n")
            return encode_chat(tokenizer, [system, Message("user", f"Page:\n{page}\n{goal}")])

        prompt = fit_prompt(tokenizer, encode, observation, len(history), PROMPT_TOKENS, cut_lines)
        sampling = Sampling(temperature=1.0, max_new_tokens=NEW_TOKENS, seed=seed)
        answer = await self._model.generate(prompt.ids, sampling)
        return PolicyOutput(answer.prompt_ids, answer.ids, answer.logprobs, answer.text, observation)


class GpuWatch:
    """Share of the time in which no kernel ran, as the driver reports it, sampled ten times a second."""

    def __enter__(self) -> GpuWatch:
        import pynvml

        pynvml.nvmlInit()
        self._handle, self._pynvml = pynvml.nvmlDeviceGetHandleByIndex(0), pynvml
        self._busy: list[float] = []
        self._over = threading.Event()
        self._thread = threading.Thread(target=self._run, daemon=True)
        self._thread.start()
        return self

    def __exit__(self, *exc: object) -> None:
        self._over.set()
        self._thread.join()

    @property
    def idle(self) -> float:
        """So far."""
        return 1 - sum(self._busy) / max(1, len(self._busy)) / 100

    def _run(self) -> None:
        while not self._over.wait(0.1):
            self._busy.append(self._pynvml.nvmlDeviceGetUtilizationRates(self._handle).gpu)


def run_config(size: str) -> RunConfig:
    """The settings of these rollouts; one CPU server for the tiny size."""
    extra = ["--load-format", "dummy", "--max-num-seqs", "256"]
    return validate_config(
        {
            "models": {"max_prompt_tokens": PROMPT_TOKENS, "dtype": "float32" if size == "tiny" else "bfloat16"},
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
    AutoTokenizer.from_pretrained(ROOT / "data" / "tiny" / "actor").save_pretrained(folder)
    save_file({"none": torch.zeros(1)}, folder / "model.safetensors")


async def play(policy: Any, config: RunConfig, concurrency: int, seconds: float) -> tuple[float, list[PolicyOutput]]:
    """Steps per second of `concurrency` episodes at a time after everyone's first step, and all answers."""
    counting = Counting(policy)

    async def player(number: int) -> None:
        rng = random.Random(number)
        for episode in itertools.count():
            name = f"{number}-{episode}"
            task = Task(task_id=name, site="pages", seed=number)
            await run_episode(PaperPages(rng), counting, task, config.rollout, trajectory_id=name)

    players = [asyncio.create_task(player(number)) for number in range(concurrency)]
    while len(counting.answers) < concurrency:  # noqa: ASYNC110 - a count is polled
        await asyncio.sleep(0.05)
    before, start = len(counting.answers), time.perf_counter()
    await asyncio.sleep(seconds)
    rate = (len(counting.answers) - before) / (time.perf_counter() - start)
    for task in players:
        task.cancel()
    await asyncio.gather(*players, return_exceptions=True)
    return rate, counting.answers


class Counting:
    """A policy that keeps its answers (`Policy`)."""

    def __init__(self, policy: Any) -> None:
        self.answers: list[PolicyOutput] = []
        self.fingerprint = policy.fingerprint
        self._policy = policy

    async def act(self, *args: Any, seed: int | None = None) -> PolicyOutput:
        """Ask and keep."""
        output: PolicyOutput = await self._policy.act(*args, seed=seed)
        self.answers.append(output)
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


async def serve(folder: Path, size: str, levels: Sequence[tuple[int, float]], report: Callable[..., None]) -> list[Any]:
    """Play at every level, then page first at the last; gives prompts of the last level's episodes."""
    config = run_config(size)
    started = time.perf_counter()
    async with open_model(str(folder), config.rollout.engine, config.models) as model:
        print(f"server ready after {time.perf_counter() - started:.0f} s", flush=True)
        answers: list[PolicyOutput] = []
        for concurrency, seconds in levels:
            with GpuWatch() if size != "tiny" else NoWatch() as watch:
                rate, answers = await play(ModelPolicy(model, config, training=True), config, concurrency, seconds)
            report("page last", concurrency, rate, watch.idle)
        concurrency, seconds = levels[-1]
        with GpuWatch() if size != "tiny" else NoWatch() as watch:
            rate, _ = await play(PageFirst(model), config, concurrency, seconds)
        report("page first", concurrency, rate, watch.idle)
        tokens = [(len(a.prompt_ids), len(a.action_ids)) for a in answers]
        means = [sum(column) / len(tokens) for column in zip(*tokens, strict=True)]
        print(f"prompts of {means[0]:.0f} tokens, answers of {means[1]:.1f}, on average", flush=True)
        return [a.prompt_ids for a in answers]


class NoWatch:
    """On a machine without GPU."""

    idle = float("nan")

    def __enter__(self) -> NoWatch:
        return self

    def __exit__(self, *exc: object) -> None:
        pass


def main() -> None:
    """Command line; see the module docstring."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--levels", default="1:10,16:25,64:45,128:60", help="concurrent episodes:seconds, …")
    parser.add_argument("--size", choices=("tiny", "8B"), default="8B", help="shape; tiny tries this script out")
    parser.add_argument("--max-prompts", type=int, default=512, help="prompts of the offline baseline")
    parser.add_argument("--offline", nargs=2, type=Path, help=argparse.SUPPRESS)
    args = parser.parse_args()
    logging.basicConfig(level=logging.INFO, format="%(message)s")
    if args.offline:
        offline(*args.offline, args.size)
        return
    levels = [(int(n), float(s)) for n, _, s in (level.partition(":") for level in args.levels.split(","))]
    rates: dict[str, dict[int, float]] = {"page last": {}, "page first": {}}
    idle: dict[int, float] = {}

    def report(name: str, concurrency: int, rate: float, idle_share: float) -> None:
        rates[name][concurrency] = round(rate, 3)
        if name == "page last":
            idle[concurrency] = round(idle_share, 4)
        print(f"{name}, {concurrency} episodes: {rate:.2f} agent steps/s, GPU idle {idle_share:.1%}", flush=True)

    with tempfile.TemporaryDirectory() as folder:
        model, prompts = Path(folder) / "model", Path(folder) / "prompts.json"
        write_model(model, args.size)
        asked = asyncio.run(serve(model, args.size, levels, report))[: args.max_prompts]
        prompts.write_text(json.dumps(asked))
        command = [sys.executable, __file__, "--size", args.size, "--offline", str(model), str(prompts)]
        answer = subprocess.run(command, stdout=subprocess.PIPE, text=True, check=True).stdout
        base = json.loads(next(line for line in answer.splitlines() if line.startswith('{"prompts"')))
    best = max(rates["page last"].values())
    print(f"vLLM offline on {base['prompts']} of the same prompts: {base['steps_per_s']:.2f} steps/s", flush=True)
    last = levels[-1][0]
    figures = {
        "agent_steps_per_s": rates["page last"],
        "gpu_idle": idle,
        "offline_steps_per_s": round(base["steps_per_s"], 3),
        "ratio_vs_offline": round(best / base["steps_per_s"], 3),
        "page_first_steps_per_s": rates["page first"],
        "gain_of_page_last": round(rates["page last"][last] / rates["page first"][last], 3),
    }
    print(json.dumps(figures))


if __name__ == "__main__":
    main()
