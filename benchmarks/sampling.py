"""What the parts of the in-process model buy on a CPU: `python benchmarks/sampling.py [--repeats 5]`.

32 episodes at a time ask the tiny actor for the first actions of the demonstrations' tasks, with the demo's settings.
`engine` is `webrl/llm/local` as it is; `any lengths` prefills prompts together whatever their lengths; `written whole`
has each group of answers written to its end by transformers' generate, instead of open answers continued in one cache;
`torch's products` is without `webrl/llm/products.py`. Each row ends with its CPU time over the engine's.
"""

from __future__ import annotations

import argparse
import asyncio
import json
import statistics
import sys
import time
from collections.abc import Callable, Sequence
from pathlib import Path

ROOT = Path(__file__).resolve().parent.parent
sys.path.insert(0, str(ROOT))

from webrl.runs.machine import use_cpu_settings  # noqa: E402

use_cpu_settings()

from webrl.config import RunConfig, load_config  # noqa: E402
from webrl.llm import products  # noqa: E402
from webrl.llm.interface import Sampling  # noqa: E402
from webrl.llm.local import model as engine  # noqa: E402
from webrl.llm.local.runner import WholeRunner, similar  # noqa: E402
from webrl.llm.prompts import build_policy_prompt  # noqa: E402

ACTOR = ROOT / "data" / "tiny" / "actor"
NUM_PROMPTS, NUM_EPISODES = 256, 32


class Whole(WholeRunner):
    """Groups of similar lengths, of a model whose answers need not be written one by one."""

    def group(self, lengths: Sequence[int], *, scored: bool) -> list[list[int]]:  # noqa: ARG002
        """As the engine's."""
        return similar(lengths)


def any_lengths(lengths: Sequence[int]) -> list[list[int]]:
    """Sixteen together, as they come."""
    indices = list(range(len(lengths)))
    return [indices[start : start + 16] for start in range(0, len(indices), 16)]


def open_whole(config: RunConfig) -> engine.LocalModel:
    """A model that writes its answers whole."""
    model = open_engine(config)
    model._batcher.close()
    whole = Whole(model._model, model.name, "full attention", model.end_ids, None)
    whole._warning = ""
    model._batcher = engine.Batcher(model._model, whole, model.end_ids, config.rollout.engine.max_batch, 0)
    return model


def open_with_torchs_products(config: RunConfig) -> engine.LocalModel:
    """A model whose matrix products are torch's."""
    model = open_engine(config)
    for module in model._model.modules():
        if getattr(vars(module).get("forward"), "__func__", None) is products._forward:
            del module.forward
    return model


def open_engine(config: RunConfig) -> engine.LocalModel:
    """The model as `webrl run` opens it."""
    return engine.LocalModel(str(ACTOR), config.rollout.engine, config.models)


async def measure(repeats: int) -> dict[str, float]:
    """CPU time of each row over the engine's, alternating, medians over `repeats`."""
    config = load_config(ROOT / "configs" / "demo.yaml", [f"models.actor={ACTOR}"])
    rows: dict[str, Callable[[RunConfig], engine.LocalModel]] = {
        "engine": open_engine,
        "any lengths": open_engine,
        "written whole": open_whole,
        "torch's products": open_with_torchs_products,
    }
    models = {name: open_one(config) for name, open_one in rows.items()}
    lines = (ROOT / "data" / "tiny" / "demos.jsonl").read_text().splitlines()[:NUM_PROMPTS]
    prompts = [
        build_policy_prompt(models["engine"].tokenizer, d["instruction"], (), d["steps"][0]["observation"], config).ids
        for d in map(json.loads, lines)
    ]
    seconds: dict[str, list[float]] = {name: [] for name in rows}
    for repeat in range(repeats + 1):
        for name, model in models.items():
            engine.similar = any_lengths if name == "any lengths" else similar
            worked = time.process_time()
            await answer(model, prompts if repeat else prompts[:NUM_EPISODES], config.rollout.max_new_tokens)
            if repeat:  # the first round warms up
                seconds[name].append(time.process_time() - worked)
    for model in models.values():
        await model.close()
    medians = {name: statistics.median(found) for name, found in seconds.items()}
    for name, median in medians.items():
        every = ", ".join(f"{s:.2f}" for s in seconds[name])
        print(f"{name:>16}: {median:.2f} CPU-s   ({every}), {median / medians['engine']:.2f}")
    return {name: round(median / medians["engine"], 2) for name, median in medians.items()}


async def answer(model: engine.LocalModel, prompts: Sequence[Sequence[int]], max_new_tokens: int) -> None:
    """Have all prompts answered, at most `NUM_EPISODES` at a time."""
    left = iter(list(enumerate(prompts)))

    async def episode() -> None:
        for seed, prompt in left:
            await model.generate(prompt, Sampling(max_new_tokens=max_new_tokens, seed=seed))

    await asyncio.gather(*(episode() for _ in range(NUM_EPISODES)))


def main() -> None:
    """Command line; see the module docstring."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--repeats", type=int, default=5, help="timed repetitions (default: 5)")
    print(json.dumps(asyncio.run(measure(parser.parse_args().repeats))))


if __name__ == "__main__":
    main()
