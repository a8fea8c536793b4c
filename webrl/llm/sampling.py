"""Drawing tokens from logits, and which sampling settings a training rollout may use."""

from __future__ import annotations

import random
from typing import TYPE_CHECKING

from webrl.config import RolloutConfig, RunConfig
from webrl.errors import UsageError
from webrl.llm.interface import Sampling

if TYPE_CHECKING:
    import torch


def check_sampling(config: RolloutConfig, training: bool) -> None:
    """Refuse sampling that makes the recorded log-probs differ from the distribution that was sampled.

    The recorded log-probs are the model's own (temperature 1), so any other temperature biases a policy gradient that
    takes them for the behaviour policy's.

    Raises:
        UsageError: a training rollout at another temperature.
    """
    if training and config.temperature != 1.0:
        raise UsageError(
            f"rollout.temperature={config.temperature:g}: training rollouts need temperature 1, because the recorded "
            "log-probs would not be those of the sampled distribution; leave it out"
        )


def policy_config(config: RunConfig, temperature: float | None = None, training: bool = False) -> RunConfig:
    """The config that a policy draws its answers by.

    Args:
        temperature: replaces `rollout.temperature` (evaluation).
        training: refuse sampling that biases the recorded log-probs; errors as of `check_sampling`.
    """
    rollout = config.rollout
    if temperature is not None:
        rollout = rollout.model_copy(update={"temperature": temperature})
    check_sampling(rollout, training)
    return config.model_copy(update={"rollout": rollout})


def draw_tokens(
    logits: torch.Tensor, samplings: list[Sampling], generators: list[random.Random]
) -> tuple[list[int], list[float]]:
    """One token a row, with its log-probability at temperature 1.

    Sampling inverts the cumulative distribution at one uniform number of the row's own generator, so a row's draw
    does not depend on its neighbours.

    Args:
        logits: [B, V], any float type.
        samplings: [B] settings.
        generators: [B] one random generator a row.
    """
    import torch

    log_probs = torch.log_softmax(logits.float(), dim=-1)  # [B, V]
    tokens = log_probs.argmax(dim=-1)  # [B]
    rows = [i for i, sampling in enumerate(samplings) if sampling.temperature > 0]
    if rows:
        chosen = log_probs if len(rows) == len(samplings) else log_probs[rows]
        scaled = _scale(chosen, [samplings[i] for i in rows])  # [R, V]
        cdf = torch.softmax(scaled, dim=-1).double().cumsum(dim=-1)  # [R, V]
        draws = torch.tensor([[generators[i].random()] for i in rows], dtype=torch.float64, device=cdf.device)
        drawn = torch.searchsorted(cdf, draws * cdf[:, -1:], right=True).squeeze(-1)  # [R]
        # `right=True` skips zero-probability tokens; rounding at the top end may still point past the last one.
        tokens[rows] = torch.minimum(drawn, (cdf < cdf[:, -1:]).sum(dim=-1))
    picked = log_probs.gather(1, tokens[:, None]).squeeze(1)
    return tokens.tolist(), picked.tolist()


def _scale(log_probs: torch.Tensor, samplings: list[Sampling]) -> torch.Tensor:
    """Apply temperature, then top-k, then top-p, each row its own. [R, V]."""
    import torch

    if any(s.temperature != 1.0 for s in samplings):
        temperatures = torch.tensor([[s.temperature] for s in samplings], device=log_probs.device)
        log_probs = torch.log_softmax(log_probs / temperatures, dim=-1)
    for row, sampling in enumerate(samplings):
        if sampling.top_k <= 0 and sampling.top_p >= 1.0:
            continue
        ordered, order = log_probs[row].sort(descending=True)
        keep = torch.ones_like(ordered, dtype=torch.bool)
        if sampling.top_k > 0:
            keep[sampling.top_k :] = False
        if sampling.top_p < 1.0:
            before = torch.softmax(ordered.masked_fill(~keep, -torch.inf), dim=-1).cumsum(dim=-1)
            keep[1:] &= before[:-1] < sampling.top_p
        log_probs = log_probs.clone()
        log_probs[row, order[~keep]] = -torch.inf
    return log_probs
