"""Every architecture by the trainer's own code against transformers alone: `python benchmarks/families.py`.

Tiny random models in float32, of each kind of layer the real ones have, with sequences longer than every window and
chunk: log-probabilities (at most 1e-4 nats apart), gradients (1e-3 of their norm) and values of packed rows, as
`webrl train` computes them, against one sequence at a time through transformers. A family is exact, or refused with
the reason; anything else is `wrong`. The last line of the output is one JSON object. `--device cuda` adds a pass in
bfloat16 on the GPU, held against float32 on the CPU.
"""

from __future__ import annotations

import argparse
import json
import logging
import sys
import tempfile
import warnings
from collections import Counter
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

HERE = Path(__file__).resolve().parent
sys.path[:0] = [str(HERE), str(HERE.parent)]

import torch  # noqa: E402
from families_list import COMMON, FAMILIES  # noqa: E402
from torch import Tensor  # noqa: E402

from webrl.errors import ModelError  # noqa: E402
from webrl.training.architectures import cast_weights  # noqa: E402
from webrl.training.critic import load_critic, sequence_classifier  # noqa: E402
from webrl.training.models import load_actor  # noqa: E402
from webrl.training.packing import Item, pack, plan_rows  # noqa: E402

LENGTHS = (70, 9, 33, 14, 52, 25)
NUM_TARGETS = 6
COLUMNS = ("nats", "gradient", "values", "bf16", "alone")
MAX_NATS, MAX_GRADIENT = 1e-4, 1e-3


@dataclass
class Result:
    """What was found for one family."""

    name: str
    """Of the family."""
    route: str = ""
    """`packed`, `single`, `plain` (`webrl.training.architectures.Route`) or `refused`; the critic's after a slash."""
    nats: float = 0.0
    """Largest difference of a log-probability."""
    gradient: float = 0.0
    """Difference of the gradients over their norm."""
    values: float | None = None
    """Largest difference of a value logit; None where there is no value model."""
    note: str = ""
    """Why it was refused, or is not packed."""
    bf16: float | None = None
    """Mean difference of a log-probability on the GPU in bfloat16 from float32 on the CPU."""
    bf16_alone: float | None = None
    """The same of transformers alone."""

    @property
    def status(self) -> str:
        """`exact`, `refused` or `wrong`."""
        if self.route == "refused":
            return "refused"
        errors = [self.nats / MAX_NATS, self.gradient / MAX_GRADIENT, (self.values or 0.0) / MAX_NATS]
        if self.bf16 is not None and self.bf16_alone is not None:
            errors.append(self.bf16 / (3 * self.bf16_alone + 0.01))
        return "exact" if all(error <= 1 for error in errors) else "wrong"  # NaN is wrong


def main() -> None:
    """Try all families, or those asked for."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawTextHelpFormatter)
    parser.add_argument("names", nargs="*", help="families whose name contains one of these (default: all)")
    parser.add_argument("--device", default="cpu", help="cuda: also bfloat16 on the GPU (default: cpu)")
    args = parser.parse_args()
    warnings.filterwarnings("ignore")
    logging.disable(logging.WARNING)
    silence_transformers()
    chosen = [f for f in FAMILIES if not args.names or any(n.lower() in f[0].lower() for n in args.names)]
    results = []
    print(
        f"{'family':32} {'rows':15} {'nats':>8} {'gradient':>8} {'values':>8} {'bf16':>8} {'alone':>8}  status",
        flush=True,
    )
    with tempfile.TemporaryDirectory() as scratch:
        for number, (name, kind, options) in enumerate(chosen):
            result = try_family(name, Path(scratch) / str(number), args.device, kind, options)
            results.append(result)
            print(line_of(result), flush=True)
    counts = Counter(result.status for result in results)
    print(json.dumps({
        "families": len(results), "exact": counts["exact"], "refused": counts["refused"], "wrong": counts["wrong"],
        "packed": sum(result.route.startswith("packed") for result in results),
        "max_nats": max((r.nats for r in results if r.status == "exact"), default=0.0),
    }), flush=True)  # fmt: skip


def line_of(result: Result) -> str:
    """A row of the table."""
    figures = [result.nats, result.gradient, result.values, result.bf16, result.bf16_alone]
    cells = " ".join(f"{'' if x is None else f'{x:.1e}':>8}" for x in figures)
    return f"{result.name:32} {result.route:15} {cells}  {result.status}  {result.note}"


def try_family(name: str, folder: Path, device: str, kind: str, options: dict[str, Any]) -> Result:
    """Build a tiny model, save it, and hold what the trainer makes of the folder against transformers."""
    from webrl.training.architectures import logger

    result = Result(name)
    notes: list[str] = []
    handler = logging.Handler()
    handler.emit = lambda record: notes.append(record.getMessage())  # type: ignore[method-assign]
    logging.disable(logging.NOTSET)
    logger.addHandler(handler)
    try:
        make_model(kind, options).save_pretrained(folder)
        check_actor(result, folder, device)
        check_values(result, folder)
    except ModelError as error:
        result.route, result.note = "refused", str(error)[:400]
    except Exception as error:  # one family's failure is a line of the table
        result.nats, result.note = float("nan"), f"{type(error).__name__}: {str(error)[:300]}"
    finally:
        logger.removeHandler(handler)
        logging.disable(logging.WARNING)
    result.note = result.note or (notes[0].partition("slower: ")[2][:300] if notes else "")
    return result


def make_model(kind: str, options: dict[str, Any]) -> Any:
    """A random model whose weights are large enough for every layer to matter."""
    from transformers import AutoConfig, AutoModelForCausalLM

    config = AutoConfig.for_model(kind, **{**COMMON, **options})
    torch.manual_seed(0)
    model = AutoModelForCausalLM.from_config(config, dtype=torch.float32)
    with torch.no_grad():
        for parameter in model.parameters():
            if parameter.ndim > 1:
                parameter.normal_(std=1.0 / parameter.shape[-1] ** 0.5)
            else:
                parameter.add_(torch.randn_like(parameter), alpha=0.1)
    return model.eval()


def check_actor(result: Result, folder: Path, device: str) -> None:
    """Log-probabilities and gradients of the folder's actor."""
    from transformers import AutoModelForCausalLM

    items = make_items(NUM_TARGETS)
    actor = load_actor(folder).train()
    result.route = actor.route
    plain = AutoModelForCausalLM.from_pretrained(folder, dtype=torch.float32, attn_implementation="eager").eval()
    ours, our_gradient = outputs_and_gradient(actor, items, lambda row: actor(pack(row)))
    theirs, their_gradient = outputs_and_gradient(plain, items, lambda row: alone(plain, row))
    result.nats = float((ours - theirs).abs().max())
    result.gradient = relative(our_gradient, their_gradient)
    if device != "cpu":
        result.bf16 = bf16_difference(actor, items, device, theirs, lambda row: actor(pack(row, device)))
        result.bf16_alone = bf16_difference(plain, items, device, theirs, lambda row: alone(plain, row, device))


def check_values(result: Result, folder: Path) -> None:
    """Value logits of a critic that starts from the folder."""
    critic = load_critic(folder, fresh=True).train()
    if critic.route != result.route:
        result.route += f"/{critic.route}"
    critic.lm.save_pretrained(folder / "critic")
    plain_class = sequence_classifier(critic.lm.config)
    plain = plain_class.from_pretrained(folder / "critic", dtype=torch.float32, attn_implementation="eager").eval()
    items = make_items(0)
    ours, _ = outputs_and_gradient(critic, items, lambda row: critic(pack(row)))
    theirs = torch.cat([plain(input_ids=torch.tensor([item.ids])).logits for item in items])
    result.values = float((ours - theirs).abs().max())


def outputs_and_gradient(
    model: Any, items: Sequence[Item], compute: Callable[[list[Item]], Tensor]
) -> tuple[Tensor, dict[str, Tensor]]:
    """Outputs in the order of the items, and the gradient of a weighted sum of them; rows as the trainer plans them."""
    rows = plan_rows([len(item.ids) for item in items], 160, packs=getattr(model, "packs", False))[0]
    model.zero_grad()
    outputs: dict[int, Tensor] = {}
    for row in rows:
        out = compute([items[i] for i in row])
        parts = out.view(len(row), -1)
        weights = torch.stack([torch.linspace(0.5, 1.5, parts.shape[1]) * (1 + i) for i in row]).to(out.device)
        (parts * weights).sum().backward()
        outputs |= {i: part.detach().float().cpu() for i, part in zip(row, parts, strict=True)}
    lm = getattr(model, "lm", model)
    gradient = {name: p.grad.float().cpu() for name, p in lm.named_parameters() if p.grad is not None}
    return torch.cat([outputs[i] for i in range(len(items))]).view(len(items), -1), gradient


def bf16_difference(
    model: Any, items: Sequence[Item], device: str, expected: Tensor, compute: Callable[[list[Item]], Tensor]
) -> float:
    """Mean difference in bfloat16 on the device; the model stays so."""
    model.to(device)
    cast_weights(model)
    found, gradient = outputs_and_gradient(model, items, compute)
    if not all(torch.isfinite(g).all() for g in gradient.values()):
        return float("nan")
    return float((found - expected).abs().mean())


def alone(model: Any, row: list[Item], device: str = "cpu") -> Tensor:
    """Log-probabilities of each item's targets by the model's own forward pass, one item at a time."""
    parts = []
    for item in row:
        logprobs = model(input_ids=torch.tensor([item.ids[:-1]], device=device)).logits[0].float().log_softmax(-1)
        targets = torch.tensor(item.ids[-item.num_targets :], device=device)
        parts.append(logprobs[-item.num_targets :].gather(1, targets[:, None])[:, 0])
    return torch.cat(parts)


def relative(found: dict[str, Tensor], expected: dict[str, Tensor]) -> float:
    """Norm of the difference over the norm; a gradient that one side lacks counts as zero."""
    names = found.keys() | expected.keys()
    zero = torch.zeros(())
    distance = sum(float((found.get(n, zero) - expected.get(n, zero)).square().sum()) for n in names)
    return float((distance / sum(float(g.square().sum()) for g in expected.values())) ** 0.5)


def make_items(num_targets: int) -> list[Item]:
    """Random sequences, most of them longer than the windows."""
    generator = torch.Generator().manual_seed(2)
    return [
        Item(tuple(torch.randint(3, 97, (length,), generator=generator).tolist()), num_targets) for length in LENGTHS
    ]


def silence_transformers() -> None:
    """No progress bars, no advice."""
    from transformers.utils import logging as theirs

    theirs.set_verbosity_error()
    theirs.disable_progress_bar()


if __name__ == "__main__":
    main()
