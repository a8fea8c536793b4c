"""`webrl sft`: the supervised start π_0 from demonstrations (paper §3.3, phase 0), by the trainer of all the rest."""

from __future__ import annotations

import logging
import math
import random
from collections import Counter
from collections.abc import Sequence
from typing import Any

from webrl.config import RolloutConfig, RunConfig, plugins
from webrl.errors import DataError, PolicyError
from webrl.llm.loading import load_tokenizer
from webrl.llm.pictures import Example
from webrl.replay.demonstrations import StepEncoder, open_encoder, read_demonstrations, why_left_out
from webrl.reward.train import Groups, hold_out
from webrl.rollouts.actions import read_any
from webrl.runs.folder import run_info
from webrl.runs.problems import ProblemLog
from webrl.runs.store import write_json
from webrl.training.metrics import TrainingPaths, read_metrics
from webrl.training.topology import is_main
from webrl.types import Trajectory

logger = logging.getLogger(__name__)


def check_data(config: RunConfig, paths: TrainingPaths) -> None:
    """Check, before a lock and a folder are made, that there is a demonstration to imitate. Raises DataError: there is
    none; bad lines are logged, even if there are no others.
    """
    for num_shown in (0, 20):
        counts, problems = Counter[str](), ProblemLog(num_shown=num_shown)
        first = [next(read_demonstrations([path], problems, config.sft.outcome, counts), None) for path in paths.data]
        if any(first):
            return
    found = counts + problems.counts
    hint = "; sft.outcome=all also uses unjudged ones and failures"
    if found.keys().isdisjoint(("failed", "unjudged", "unfinished")):
        hint = "; each line is one whole object: a trajectory, or `instruction` and `steps` (data/README.md)"
    raise DataError(f"{', '.join(map(str, paths.data))}: no demonstration to imitate: {dict(found) or 'empty'}{hint}")


def train_start(config: RunConfig, paths: TrainingPaths) -> dict[str, Any]:
    """Train π_0; like every training, it resumes and runs on many processes. Raises DataError: no usable demonstration;
    ModelError: unusable base model; TrainingError: as `webrl.training`.

    Returns the contents of `report.json`: `demonstrations` (trajectories by how they were used), `examples`, `heldout`,
    `losses`; {} off the main process.
    """
    from webrl.training.update import train_sft

    counts: Counter[str] = Counter()
    with ProblemLog(paths.report / "problems.txt" if is_main() else None) as problems:
        shown = list(read_demonstrations(paths.data, problems, config.sft.outcome, counts))
        train, heldout = split(shown, config.sft.heldout, config.seed)
        encoder = open_encoder(load_tokenizer(paths.init), paths.init, config)
        examples, held = (encode(part, encoder, config.rollout, problems) for part in (train, heldout))
    if not examples:
        found = dict(counts + problems.counts)
        raise DataError(f"{', '.join(map(str, paths.data))}: no demonstration to imitate: {found}")
    del shown, train, heldout  # their pages would fill the memory of every process
    metrics = paths.report / "metrics.jsonl"
    losses = train_sft(
        examples, paths.init, paths.out, config.sft, seed=config.seed, metrics_path=metrics, heldout=held,
        device=config.models.device, watch_every=config.sft.watch_every, prompt=config.models.prompt,
    )  # fmt: skip
    if not is_main():
        return {}
    sizes = {"examples": len(examples), "heldout": len(held)}
    report = {"demonstrations": dict(counts), **sizes, "problems": dict(problems.counts), "losses": losses}
    report |= run_info(config)
    write_json(paths.report / "report.json", report)
    if plot_losses := plugins.hook("loss-figure"):
        plot_losses(read_metrics(metrics, "sft"), paths.report / "loss.png")
    return report


def split(trajectories: Sequence[Trajectory], heldout: float, seed: int) -> tuple[list[Trajectory], list[Trajectory]]:
    """Split into (training, held-out), the same share of every site; no held-out item is the only one of its kind.

    A kind is what occurs several times on a site: an instruction or, among those that occur once, the same set of
    actions (clicks only; a click and text). Each loses at most its share, rounded up, and keeps at least one. Entirely
    held out, an instruction would never be learned: click-dialog-2 without its ten "Cancel" failed each of those pages.

    The held-out loss is therefore that of other pages of what is trained on: it rises where a training overfits, and
    says nothing about instructions of a new kind. Two demonstrations of the same page can be in different parts.
    """
    rng = random.Random(f"{seed}:sft")
    times = Counter((t.task.site, t.instruction) for t in trajectories)

    def place(trajectory: Trajectory) -> tuple[str, str]:
        site, instruction = trajectory.task.site, trajectory.instruction
        names = {action.name for step in trajectory.steps if (action := read_any(step.action))}
        return site, "\n".join([instruction if times[site, instruction] > 1 else "", *sorted(names)])

    def draw(kinds: Groups, share: int) -> list[int]:
        room = {kind: min(math.ceil(heldout * len(group)), len(group) - 1) for kind, group in kinds.items()}
        members = [(kind, index) for kind, group in kinds.items() for index in group]
        taken: list[int] = []
        for kind, index in rng.sample(members, len(members)):
            if room[kind] and len(taken) < share:
                room[kind] -= 1
                taken.append(index)
        return taken

    chosen = hold_out(trajectories, place, heldout, draw)
    if round(heldout * len(trajectories)) and not chosen:
        text = "sft.heldout=%g holds out none of %d demonstrations, each the only one of its kind: no validation loss"
        logger.warning(text, heldout, len(trajectories))
    train = [trajectory for index, trajectory in enumerate(trajectories) if index not in chosen]
    return train, [trajectories[index] for index in sorted(chosen)]


def encode(
    trajectories: Sequence[Trajectory], encoder: StepEncoder, rollout: RolloutConfig, problems: ProblemLog
) -> list[Example]:
    """Prompt and answer ids of every step, as if the policy had acted, but for waits and what it could not do."""
    examples: list[Example] = []
    for trajectory in trajectories:
        for index in range(len(trajectory.steps)):
            place = f"{trajectory.trajectory_id}:{index}"
            if reason := why_left_out(trajectory, index, rollout):
                problems.add(reason[0], place, f"{reason[1]}; left out")
                continue
            try:
                examples.append(encoder(trajectory, index))
            except PolicyError as error:
                problems.add("too_long", place, f"{error}; left out")
    return examples
