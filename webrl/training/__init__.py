"""Critic and actor training (paper §3.2-3.4), the same code on a laptop, one GPU, or many nodes.

What the phase calls (imported on first use, so that `import webrl.training` costs nothing):

    score_actions(records, model_dir, config: RunConfig) -> list[StepRecord]          # fills ref_logprobs
    train_critic(records | path, init_dir, out_dir, config: RunConfig, *, seed, metrics_path) -> dict
    score_values(records, critic_dir, config: RunConfig) -> list[StepRecord]           # value, next_value
    train_actor(records | path, init_dir, out_dir, config: RunConfig, *, seed, metrics_path) -> dict
    train_sft(examples, init_dir, out_dir, optim: OptimConfig, *, seed, metrics_path, name="sft", device="auto",
        heldout=(), watch_every=0)
        -> dict                                        # examples: (prompt_ids, action_ids[, picture]); SFT and the ORM
    prompt_values(prompts, critic_dir, config: RunConfig) -> list[float]              # the task filter's V(s_0)
    load_critic(folder) -> PackedCritic                                               # webrl.training.critic

The dicts are counts and means for the summary (`actor_loss`, `actor_samples`, `critic_tokens_per_s`, …); {} if the
output was finished already. Folders hold config, safetensors (float32) and tokenizer. Before starting a Python
process that trains on a CPU, export `webrl.training.cpu_variables.cpu_environment()`.
"""

from __future__ import annotations

from importlib import import_module
from typing import Any

_HOMES = {
    "score_actions": "scoring",
    "score_values": "scoring",
    "prompt_values": "scoring",
    "train_critic": "update",
    "train_actor": "update",
    "train_sft": "update",
    "load_critic": "critic",
}

__all__ = sorted(_HOMES)


def __getattr__(name: str) -> Any:
    if name not in _HOMES:
        raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
    return getattr(import_module(f"{__name__}.{_HOMES[name]}"), name)
