"""How rows of a model may be computed: found out on a small random copy of it, before anything is trained.

Packing is exact only if every layer keeps the sequences of a row apart, and what is left out of a model's own forward
pass (its mask, its head) is known. Neither can be read from a class's name. So a copy with the model's own kinds of
layers (`shrink.py`), in float32 on the CPU, computes sequences longer than its windows by the candidates below, the
fastest first; the first whose log-probabilities and gradients are those of transformers alone is taken. Where rows
will be computed on a GPU, its kernels are held against transformers' there too.
"""

from __future__ import annotations

import logging
import math
from dataclasses import dataclass
from typing import Any, Literal, get_args

import torch
from torch import Tensor, nn

from webrl.errors import ModelError
from webrl.training.layers.attention import register
from webrl.training.packing import Item, pack
from webrl.training.precision import cast_weights
from webrl.training.shrink import VOCAB, WINDOW, shrink

logger = logging.getLogger(__name__)

RouteName = Literal["packed", "single", "plain"]
"""Many sequences a row by our attention; one by transformers' default attention; one by its whole eager forward."""

MAX_NATS = 1e-4
"""Largest accepted difference of a log-probability (or value logit)."""
MAX_GRADIENT = 1e-3
"""Largest accepted difference of the gradient, relative to its norm."""
GPU_FACTOR, GPU_SLACK = 3.0, 0.01
"""A route may stray this many times as far on a GPU as transformers does, and this many nats."""
_LENGTHS = (3 * WINDOW + 7, 5, 2 * WINDOW + 1, WINDOW + 3, 9 * WINDOW)
_NUM_TARGETS = 4


@dataclass(frozen=True)
class Route:
    """How a model's rows are computed."""

    name: RouteName
    """See `RouteName`."""
    reason: str = ""
    """Why no faster one; empty for `packed`."""


@dataclass(frozen=True)
class Difference:
    """A candidate against transformers alone."""

    nats: float
    """Largest difference of a log-probability or value logit."""
    gradient: float
    """Norm of the gradients' difference over the gradient's norm."""
    layer: str = ""
    """First part of a layer whose output differs, if one does."""

    @property
    def is_exact(self) -> bool:
        """True if it may be used; NaN is not."""
        return self.nats <= MAX_NATS and self.gradient <= MAX_GRADIENT

    def __str__(self) -> str:
        where = f", first in {self.layer}" if self.layer else ""
        return f"off by {self.nats:.2g} nats (gradient by {self.gradient:.2g}){where}"


_routes: dict[str, Route] = {}


def find_route(config: Any, model_class: Any, wrap: Any, device: str = "cpu") -> Route:
    """The fastest exact way to compute a model's rows; said once in the log unless it is `packed`.

    Args:
        config: of transformers.
        model_class: a model or auto class that builds the model from it.
        wrap: (model, route name) -> `PackedActor` or `PackedCritic`.
        device: where rows will be computed; a GPU's kernels are tried too, in bfloat16.

    Raises:
        ModelError: none is exact.
    """
    lines = config.to_json_string(use_diff=False).splitlines()
    shape = "\n".join(line for line in lines if '"_name_or_path"' not in line)  # each phase has a folder of its own
    key = f"{device} {model_class.__name__} {wrap.__name__} {shape}"
    if key not in _routes:
        _routes[key] = route = _try_routes(config, model_class, wrap, device)
        if route.reason:
            logger.warning("%s: one sequence a row, which is slower: %s", config.model_type, route.reason)
    return _routes[key]


def _try_routes(config: Any, model_class: Any, wrap: Any, device: str) -> Route:
    with torch.random.fork_rng(devices=[]):
        torch.manual_seed(0)
        try:
            model = small_model(config, model_class)
            items = make_items(wrap.__name__ == "PackedActor")
            expected = Outcome.of_transformers(model, items)
            swayed = _order_matters(model, items)
        except Exception as error:  # a configuration that cannot be shrunk is computed as transformers computes it
            return Route("plain", f"no small copy of its configuration can be checked ({_line(error)})")
        if swayed:
            raise ModelError(
                f"{config.model_type} cannot be trained here: in transformers a sequence's log-probabilities depend on "
                "the sequences before it (rotary embeddings that grow with the longest one seen, rope_type dynamic)"
            )
        reasons: list[str] = []
        for name in get_args(RouteName):
            try:
                candidate = wrap(_copy(model, config, model_class, name), name)
                difference = expected.against(Outcome.of_rows(candidate, items))
                noise = _gpu_noise(model, candidate, items, expected, device) if difference.is_exact else ""
            except Exception as error:  # whatever a layer says to what it does not know
                reasons.append(f"{name} rows fail ({_line(error)})")
                continue
            if difference.is_exact and not noise:
                return Route(name, "; ".join(reasons))
            reasons.append(f"{name} rows are {noise or difference}")
    raise ModelError(f"{config.model_type} cannot be trained here: against transformers alone {'; '.join(reasons)}")


def _order_matters(model: Any, items: list[Item]) -> bool:
    """True if transformers computes a sequence otherwise after a longer one."""
    ordered = sorted(items, key=lambda item: -len(item.ids))
    with torch.no_grad():
        after_longer = [_alone(model, item) for item in ordered]
        after_shorter = [_alone(model, item) for item in reversed(ordered)]
    return any(not (a - b).abs().max() <= MAX_NATS for a, b in zip(after_longer, reversed(after_shorter), strict=True))


def _gpu_noise(model: Any, candidate: Any, items: list[Item], expected: Outcome, device: str) -> str:
    """What is wrong with a candidate on the GPU: it strays further than transformers does there; else empty."""
    if not device.startswith("cuda"):
        return ""
    exact = {name: p.data for name, p in model.named_parameters()}
    try:
        for part in (model, candidate):
            part.to(device)
            cast_weights(part)
        theirs = expected.mean_error(Outcome.of_transformers(model, items))
        ours = expected.mean_error(Outcome.of_rows(candidate, items))
    finally:
        model.to("cpu")
        for name, parameter in model.named_parameters():
            parameter.data = exact[name]
    if ours <= GPU_FACTOR * theirs + GPU_SLACK:
        return ""
    return f"off by {ours:.2g} nats on average in bfloat16 on {device}, transformers by {theirs:.2g}"


def build(model_class: Any, config: Any, dtype: torch.dtype, attention: str | None) -> Any:
    """A model with fresh weights, by an auto class or a model's own."""
    make = getattr(model_class, "from_config", None) or model_class._from_config
    return make(config, dtype=dtype, **({"attn_implementation": attention} if attention else {}))


def attention_of(route: RouteName) -> str | None:
    """Which of transformers' attention implementations a route needs; None is the model's default."""
    return {"packed": register(), "single": None, "plain": "eager"}[route]


def small_model(config: Any, model_class: Any) -> Any:
    """A shrunk random copy whose weights are large enough for every layer to matter, with the attention of reference.

    That is `eager`: other implementations leave out what they do not know (sdpa: Gemma 2's capped scores).
    """
    model = build(model_class, shrink(config), torch.float32, "eager")
    with torch.no_grad():
        for parameter in model.parameters():
            if parameter.ndim > 1:
                parameter.normal_(std=parameter.shape[-1] ** -0.5)
            else:
                parameter.add_(torch.randn_like(parameter), alpha=0.1)
    return model


def turn_off_dropout(model: nn.Module) -> None:
    """A policy's log-probabilities are its own in training as in sampling: every dropout rate becomes 0."""
    for module in model.modules():
        if isinstance(module, nn.Dropout):
            module.p = 0.0
        for name, value in vars(module).items():
            if isinstance(value, float) and "drop" in name:
                setattr(module, name, 0.0)


def _copy(model: Any, config: Any, model_class: Any, route: RouteName) -> Any:
    other = build(model_class, shrink(config), torch.float32, attention_of(route))  # building writes into a config
    other.load_state_dict(model.state_dict())
    turn_off_dropout(other)
    return other


def _line(error: Exception) -> str:
    return f"{type(error).__name__}: {' '.join(str(error).split())[:200]}"


def make_items(is_actor: bool) -> list[Item]:
    """Sequences on both sides of the shrunk windows."""
    generator = torch.Generator().manual_seed(1)
    return [
        Item(tuple(torch.randint(3, VOCAB, (length,), generator=generator).tolist()), _NUM_TARGETS if is_actor else 0)
        for length in _LENGTHS
    ]


@dataclass(frozen=True)
class Outcome:
    """What a way of computing gives for the same sequences."""

    outputs: Tensor
    """[N] log-probabilities, or [B, num_labels] value logits."""
    gradients: dict[str, Tensor]
    """Of a weighted sum of the outputs, by parameter name."""
    layers: dict[str, Tensor]
    """[T, ...] outputs of the parts of the layers, in the order of computation."""

    @classmethod
    def of_transformers(cls, model: Any, items: list[Item]) -> Outcome:
        """One sequence at a time by the model's own forward pass."""
        model.eval()
        return _measure(model, lambda: torch.cat([_alone(model, item) for item in items]))

    @classmethod
    def of_rows(cls, model: Any, items: list[Item]) -> Outcome:
        """By a wrapped model, in as few rows as its route allows, in training mode."""
        model.train()
        device = next(model.parameters()).device
        rows = [items] if model.packs else [[item] for item in items]
        return _measure(model.lm, lambda: torch.cat([model(**model.inputs(pack(row, device))) for row in rows]))

    def mean_error(self, other: Outcome) -> float:
        """Mean difference of an output; NaN if an output or a gradient is not finite."""
        if not all(torch.isfinite(grad).all() for grad in other.gradients.values()):
            return math.nan
        return float((self.outputs - other.outputs).abs().mean())

    def against(self, other: Outcome) -> Difference:
        """How far another way is from this one."""
        layer = ""
        for name, own in self.layers.items():
            found = other.layers.get(name)
            if found is not None and found.shape == own.shape and not (found - own).abs().max() <= 10 * MAX_NATS:
                layer = name
                break
        nats = float((self.outputs - other.outputs).abs().max())
        own_norm, distance = 0.0, 0.0
        for name, grad in self.gradients.items():
            found = other.gradients.get(name, torch.zeros_like(grad))
            own_norm += float(grad.square().sum())
            distance += float((grad - found).square().sum())
        return Difference(nats, (distance / max(own_norm, 1e-30)) ** 0.5, layer)


def _alone(model: Any, item: Item) -> Tensor:
    """[num_targets] log-probabilities, or [1, num_labels] value logits, of one sequence."""
    device = next(model.parameters()).device
    if not item.num_targets:
        logits: Tensor = model(input_ids=torch.tensor([item.ids], device=device)).logits
        return logits.float()
    logprobs = model(input_ids=torch.tensor([item.ids[:-1]], device=device)).logits[0].float().log_softmax(-1)
    targets = torch.tensor(item.ids[-item.num_targets :], device=device)
    chosen: Tensor = logprobs[-item.num_targets :].gather(1, targets[:, None])[:, 0]
    return chosen


def _measure(lm: nn.Module, compute: Any) -> Outcome:
    layers: dict[str, list[Tensor]] = {}
    handles = []
    for name, module in lm.named_modules():
        if ".layers." in name and name.count(".", name.index(".layers.")) == 3:
            label = f"{name} ({type(module).__name__})"
            handles.append(module.register_forward_hook(_keep_output(layers.setdefault(label, []))))
    try:
        outputs = compute()
    finally:
        for handle in handles:
            handle.remove()
    weights = torch.linspace(0.5, 1.5, outputs.numel(), device=outputs.device).view_as(outputs)
    lm.zero_grad()
    (outputs * weights).sum().backward()
    gradients = {name: p.grad.cpu() for name, p in lm.named_parameters() if p.grad is not None}
    return Outcome(
        outputs.detach().cpu(), gradients, {name: torch.cat(parts) for name, parts in layers.items() if parts}
    )


def _keep_output(parts: list[Tensor]) -> Any:
    def hook(_module: nn.Module, _inputs: Any, output: Any) -> None:
        first = output[0] if isinstance(output, tuple) else output
        if isinstance(first, Tensor) and first.ndim == 3 and first.shape[0] == 1:
            parts.append(first.detach()[0].cpu())

    return hook
