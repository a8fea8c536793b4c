"""The value model V(s, I): a value head on the language model, read at the prompt's true last token.

Stored as a transformers `…ForSequenceClassification` folder (safetensors), so that anything can load it:
`num_labels` 1 is the paper's single head (V = sigmoid of the logit); 4 are the released code's two heads of two
classes each (V = min over the heads of softmax(logits)[1]). The state is the prompt; the action is not part of it.
"""

from __future__ import annotations

import contextlib
from collections.abc import Iterator
from pathlib import Path

import torch
from torch import Tensor
from torch.nn import functional

from webrl.errors import ModelError
from webrl.training.models import PackedCritic, load_pretrained

NUM_LABELS = {"single": 1, "double": 4}


def load_critic(folder: str | Path, dtype: torch.dtype = torch.float32) -> PackedCritic:
    """A trained critic, on the CPU.

    Raises:
        ModelError: not a critic folder (an actor's, say), or broken weights.
    """
    return open_critic(folder, heads=None, seed=0, dtype=dtype)


def open_critic(
    folder: str | Path, heads: str | None, seed: int, dtype: torch.dtype = torch.float32, *, skeleton: bool = False
) -> PackedCritic:
    """A critic to go on training: a critic folder as it is, an actor folder with fresh heads.

    Args:
        heads: `single` or `double` for fresh heads, and checked against a critic folder's; None: must be a critic.
        seed: of the fresh heads' weights.
        skeleton: without weights, as in `load_actor`.

    Raises:
        ModelError: an actor folder where a critic is needed, or another number of heads.
    """
    from transformers import AutoConfig, AutoModelForSequenceClassification

    config = AutoConfig.from_pretrained(str(folder))
    is_critic = any(name.endswith("ForSequenceClassification") for name in config.architectures or [])
    if heads is None and not is_critic:
        raise ModelError(f"{str(folder)!r} holds {config.architectures}, not a critic; train one with `webrl train`")
    if is_critic and heads is not None and config.num_labels != NUM_LABELS[heads]:
        raise ModelError(
            f"critic {str(folder)!r} has {config.num_labels} value logits, critic.heads={heads!r} needs "
            f"{NUM_LABELS[heads]}; set critic.heads to match, or start from the actor"
        )
    options = {} if is_critic else {"num_labels": NUM_LABELS[heads or "single"]}
    with torch.random.fork_rng(devices=[]), _expecting_new_heads():
        torch.manual_seed(seed)
        lm = load_pretrained(AutoModelForSequenceClassification, folder, dtype, skeleton=skeleton, **options)
        if not is_critic and not skeleton:
            torch.nn.init.normal_(lm.score.weight, std=0.02)
    if lm.config.pad_token_id is None:  # transformers' own pooling asks for one; ours does not need it
        lm.config.pad_token_id = lm.config.eos_token_id if isinstance(lm.config.eos_token_id, int) else 0
    return PackedCritic(lm)


@contextlib.contextmanager
def _expecting_new_heads() -> Iterator[None]:
    """Silence transformers' report that the heads are new: they are meant to be."""
    from transformers.utils import logging

    verbosity = logging.get_verbosity()
    logging.set_verbosity_error()
    try:
        yield
    finally:
        logging.set_verbosity(verbosity)


def values_of(logits: Tensor) -> Tensor:
    """[B, num_labels] logits -> [B] values in [0, 1]."""
    if logits.shape[-1] == 1:
        return logits[:, 0].sigmoid()
    probabilities = logits.view(-1, 2, 2).softmax(-1)[..., 1]  # [B, heads]
    return probabilities.min(-1).values


def critic_loss(logits: Tensor, targets: Tensor) -> Tensor:
    """Binary cross-entropy of each state's value against the outcome (paper Eq. 9).

    L(V) = −(r log V + (1 − r) log(1 − V)); with two heads the sum of both heads' cross-entropies (released code).

    Args:
        logits: [B, num_labels].
        targets: [B] r(s_T) in {0, 1}.

    Returns:
        [B] losses.
    """
    if logits.shape[-1] == 1:
        return functional.binary_cross_entropy_with_logits(logits[:, 0], targets, reduction="none")
    heads = logits.view(-1, 2, 2)
    labels = targets.long()
    return functional.cross_entropy(heads[:, 0], labels, reduction="none") + functional.cross_entropy(
        heads[:, 1], labels, reduction="none"
    )
