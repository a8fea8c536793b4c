"""Plans the optimizer steps: the order of the samples and the learning rate, both pure functions."""

from __future__ import annotations

import math
import random

from webrl.config import OptimConfig


def sample_batches(num_items: int, config: OptimConfig, seed: int) -> list[list[int]]:
    """Item indices of every optimizer step, in a seeded order that does not depend on ranks or packing.

    Each epoch is its own permutation, and its last batch may be smaller (its loss is the mean over its own samples).
    A fractional number of epochs ends within one; `config.steps` goes round for that many steps instead.
    """
    if not num_items:
        return []
    epochs = -(-config.steps // -(-num_items // config.batch_size)) if config.steps else config.epochs
    left = max(1, round(num_items * epochs))
    batches: list[list[int]] = []
    epoch = 0
    while left > 0:
        order = list(range(num_items))
        random.Random(f"{seed}:{epoch}").shuffle(order)
        order = order[:left]
        batches += [order[start : start + config.batch_size] for start in range(0, len(order), config.batch_size)]
        left -= len(order)
        epoch += 1
    return batches[: config.steps or None]


def learning_rate(step: int, num_steps: int, config: OptimConfig) -> float:
    """Rate of optimizer step `step` (0-based): linear warm-up, then constant, cosine or linear decay to zero."""
    warmup = round(config.warmup_ratio * num_steps)
    if step < warmup:
        return config.lr * (step + 1) / warmup
    progress = (step - warmup) / max(1, num_steps - warmup)
    if config.schedule == "cosine":
        return config.lr * 0.5 * (1 + math.cos(math.pi * progress))
    if config.schedule == "linear":
        return config.lr * (1 - progress)
    return config.lr
