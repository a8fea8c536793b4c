"""The eight stages as functions of a `Context`: files in, files out, counts back. Their order is `phase.py`'s."""

from __future__ import annotations

import logging
import random
import shutil
from collections import Counter
from collections.abc import Callable, Sequence
from contextlib import nullcontext
from dataclasses import replace
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING, Any, cast

from webrl.config import RunConfig, plugins
from webrl.errors import DataError, ModelError
from webrl.evaluate import add_over_start, difference_text, named_rates
from webrl.rollouts.suite import find_suite, open_sites, suite_of
from webrl.runs.clock import spent_on
from webrl.runs.disk import atomic_path
from webrl.runs.folder import RunFolder
from webrl.runs.store import read_json, read_records, write_json, write_records
from webrl.types import Label, StepRecord, Task, Trajectory

if TYPE_CHECKING:
    from webrl.llm import LanguageModel
    from webrl.llm.servers.vllm import VllmModel

logger = logging.getLogger(__name__)
Counts = dict[str, Any]


class Context:
    """A stage's input."""

    def __init__(self, config: RunConfig, run: RunFolder, phase: int) -> None:
        self.config = config
        self.run = run
        self.phase = phase
        self.folder = run.phase(phase)
        """Folder of the phase."""
        self.previous = run.phase(phase - 1)
        """The phase before."""
        self.actor = config.models.actor if phase == 0 else str(self.previous.actor)
        """π_{k-1}: the actor that this phase starts from."""
        self.has_curriculum = phase > 0 and config.tasks.source == "curriculum"
        """Whether this phase's tasks are written from the last one's failures."""
        self.is_proposed = phase == 0 and find_suite(config.tasks.suite).proposes(config)
        """Whether this phase is the first, and its tasks are proposed from pages of the site."""

    @property
    def rate_factor(self) -> float:
        """What earlier phases have made of `actor.lr`: less after updates that went too far or were not accepted."""
        if self.phase == 0 or not self.previous.is_done("accept"):
            return 1.0
        return float(self.previous.read_stage("accept")["counts"]["rate_factor"])

    def rng(self, stage: str) -> random.Random:
        """Randomness of one stage of one phase."""
        return random.Random(f"{self.config.seed}:{self.phase}:{stage}")


def generate(context: Context) -> Counts:
    """New instructions from each site's last failures; phase 0 has none, nor has any without the curriculum.

    On one's own site without instructions those of phase 0 are proposed from pages that a short look finds.

    Raises:
        SiteError: one's own site does not answer.
    """
    config, folder, rng = context.config, context.folder, context.rng("generate")
    if not context.is_proposed and not context.has_curriculum:
        return {"num_generated": 0}
    from webrl.rollouts.pool import run
    from webrl.tasks import curriculum
    from webrl.tasks.failures import load_failures
    from webrl.tasks.generate import exploration_requests

    if context.is_proposed:
        seen = run(find_suite(config.tasks.suite).explore(config))
        counts = curriculum.write_answers(config, exploration_requests(config, seen), rng, folder)
        return counts | {"num_explored": len(seen)}
    failures = load_failures(context.run.path, before=context.phase)
    known = curriculum.attempted(context.run, context.phase)
    return curriculum.propose(config, failures, known=known, rng=rng, folder=folder)


def filter_generated(context: Context) -> Counts:
    """Keep instructions that are new, feasible and inside the critic's band; phase 0 takes the suite's own."""
    from webrl.tasks import curriculum

    config, folder = context.config, context.folder
    if not context.has_curriculum and not context.is_proposed:
        shares = None
        if config.tasks.shares != "even" and context.phase:  # by how the task types went last
            from webrl.tasks.failures import load_failures

            failures = load_failures(context.run.path, before=context.phase)
            shares = failures.shares(config.tasks.shares, every_site=True) if failures.tried else None
        return curriculum.select_seeds(config, folder, shares=shares)
    return curriculum.select(
        config,
        folder,
        known=curriculum.attempted(context.run, context.phase),
        critic=context.previous.critic if context.phase else None,
    )


def rollout(context: Context) -> Counts:
    """Play every task with π_{k-1}, after phase 0 `rollout.num_generations` times, or let experts play.

    Raises:
        StageError: more episodes failed than `rollout.max_failed` allows (`rollouts/collect.py`).
    """
    tasks = list(read_records(context.folder.tasks, Task))
    if not tasks:
        raise DataError(f"{context.folder.tasks}: no tasks to roll out; loosen the filters ({context.folder.dropped})")
    config, out, phase, prefix = context.config, context.folder.trajectories, context.phase, f"p{context.phase:02d}"
    if phase:
        tasks = [task for task in tasks for _ in range(config.rollout.num_generations)]
    if phase and config.rollout.policy == "expert":
        from webrl.rollouts.pool import run

        run(plugins.load(plugins.HOOKS, "record-experts")(tasks, config, out, phase=phase, prefix=prefix))
    else:
        for round_number in range(config.rollout.refill + 1 if phase else 1):
            tasks += _refill(context, tasks, prefix) if round_number else []
            play(config, tasks, context.actor, out, phase=phase, prefix=prefix)
    status = Counter(t.status.value for t in read_records(context.folder.trajectories, Trajectory))
    return {"num_rollouts": sum(status.values()), "status": dict(sorted(status.items()))}


def _refill(context: Context, attempts: Sequence[Task], prefix: str) -> list[Task]:
    """Further attempts at tasks that some attempts solve, as many groups as have ended alike so far (DAPO §3.2)."""
    from webrl.reward.labels import read_outcomes
    from webrl.reward.orm import judge
    from webrl.rollouts.collect import name_episodes

    size, folder = context.config.rollout.num_generations, context.folder
    if size == 1:
        return []
    labels = folder.path / "refill_labels.jsonl"
    judge(context.config, list(read_records(folder.trajectories, Trajectory)), labels)
    rewards = read_outcomes(labels)
    groups: dict[str, set[int | None]] = {}
    for name, task in name_episodes(attempts, prefix):  # not what a later round of an interrupted call has played
        groups.setdefault(task.task_id, set()).add(rewards.get(name))
    mixed = [task for task in {t.task_id: t for t in attempts}.values() if {0, 1} <= groups[task.task_id]]
    missing = 2 * len(groups) - len(attempts) // size - len(mixed)  # earlier rounds' groups were mixed ones' again
    if missing <= 0:
        return []
    if not mixed:
        solved = sum(1 in rewards for rewards in groups.values())
        logger.warning(
            "%d of %d tasks were solved by every attempt, the others by none: no group has anything to teach, and none "
            "can be refilled; draw tasks of medium difficulty (tasks.shares=learnability)", solved, len(groups)
        )  # fmt: skip
    return [task for task in mixed[:missing] for _ in range(size)]


def label(context: Context) -> Counts:
    """Judge every finished trajectory with the outcome reward model."""
    from webrl.reward.orm import label_file

    return label_file(context.config, context.folder.trajectories, context.folder.labels)


def replay(context: Context) -> Counts:
    """Write this phase's training records, scored under π_{k-1}, and earlier successes inside the perplexity band."""
    from webrl.replay.stage import mix_replay

    history = [context.run.phase(k).train for k in range(context.phase)]
    return mix_replay(context.config, context.folder, actor=context.actor, history=history, rng=context.rng("replay"))


def train(context: Context) -> Counts:
    """Critic, then values (once per state), then the actor; phase 0 trains the critic only.

    Where nothing reads a critic (`RunConfig.trains_critic`) none is trained, and where the objective takes no values
    none are computed.

    Under `run_multinode.sh` every process runs this; the main one writes.
    """
    from webrl.training.scoring import score_values
    from webrl.training.topology import barrier, broadcast, is_main
    from webrl.training.update import train_actor, train_critic

    config, folder, seed = context.config, context.folder, context.config.seed + context.phase

    def once(name: str, work: Callable[[], Counts], *outdated: Path) -> Counts:
        # Not the model's folder alone: a process killed after that exists has neither counted nor cleaned up.
        done, model = folder.path / f"{name}_counts.json", folder.path / name
        if broadcast(done.exists() and model.is_dir()):
            return dict(read_json(done))
        if is_main():
            shutil.rmtree(model, ignore_errors=True)
            for path in outdated:
                path.unlink(missing_ok=True)
        barrier()
        counts = work()
        if is_main():
            write_json(done, counts)
        barrier()
        return counts

    start = str(context.previous.critic) if context.phase else context.actor  # plus a fresh value head (paper)
    options: Any = {"seed": seed, "metrics_path": folder.metrics}
    shown: Any = {"demonstrations": [], "rate_factor": context.rate_factor}
    if context.phase and config.actor.imitation and config.used_demos:  # imitated in addition to the objective
        from webrl.llm.loading import load_tokenizer
        from webrl.replay.demonstrations import open_encoder, read_demonstrations
        from webrl.runs.problems import ProblemLog
        from webrl.sft import encode

        problems = ProblemLog()
        encoder = open_encoder(load_tokenizer(context.actor), context.actor, config)
        demonstrations = list(read_demonstrations(config.used_demos, problems, "success", Counter()))
        shown["demonstrations"] = encode(demonstrations, encoder, config.rollout, problems)
        if not shown["demonstrations"]:
            raise DataError(f"replay.demos: none of their steps can be imitated: {dict(problems.counts)}")
        if problems.counts:
            logger.info("demonstration steps that are not imitated: %s", dict(problems.counts))
    steps, scored = folder.train_filter, folder.path / "train_scored.jsonl"
    losses: Counts = {}
    if config.trains_critic:
        # Replayed steps are selected successes: among them V is not the chance of success (docs/objective.md).
        judged = steps if config.critic.on_replay else folder.train
        losses = once("critic", lambda: train_critic(judged, start, folder.critic, config, **options), scored)
    if context.phase == 0:
        return losses | (copy_model(context.actor, folder.actor, sees=config.rollout.sees) if is_main() else {})
    if not config.actor.needs_values:
        scored = steps
    elif not broadcast(scored.exists()):
        valued = score_values(read_records(steps, StepRecord), folder.critic, config)
        if is_main():
            write_records(scored, valued)
        barrier()
    return losses | once("actor", lambda: train_actor(scored, context.actor, folder.actor, config, **options, **shown))


def accept(context: Context) -> Counts:
    """Keep the new actor unless it is worse than π_{k-1} on the same probe pages beyond chance.

    Both play `accept.tasks` tasks of the training types with the same draws, judged like the phase's own. A sign test
    over the pages that only one of them solved decides, and one over the pages on which only one gave an unreadable
    answer; each at half of `accept.alpha`. If the old actor stays, the learning rate is halved; if the new one does and
    the update ended well inside its trust region, a rate that was lowered before is doubled.

    Returns:
        Counts: `rate_factor` of the next phase; with a probe also `accepted`, `before` and `after` (solved pages),
        `pages` (judged in both), `p_value`, `unreadable` (pages before and after), `unreadable_p_value`.
    """
    from webrl.tasks.curriculum import probe_tasks
    from webrl.training.trust import next_rate_factor

    config, folder, phase = context.config, context.folder, context.phase
    trained = folder.read_stage("train")["counts"]
    factor = trained.get("actor_rate_factor", context.rate_factor)
    if phase == 0 or not config.accept.tasks:
        return {"rate_factor": factor}
    verdict_path, new = folder.path / "accept.json", folder.path / "probe_new.jsonl"
    if not verdict_path.exists():
        tasks = probe_tasks(config)
        if not tasks:
            reason = f"{config.tasks.suite} has no tasks that training does not use: every update is kept, untested"
            logger.warning("accept.tasks=%d: %s; set accept.tasks=0 to silence this", config.accept.tasks, reason)
            return {"rate_factor": factor, "skipped": reason}
        for actor, out in ((context.actor, context.previous.probe), (str(folder.actor), new)):
            play(config, tasks, actor, out, phase=0, prefix="probe")
        write_json(verdict_path, _compare(context, context.previous.probe, new))
    verdict: Counts = read_json(verdict_path)
    if verdict["accepted"]:
        if factor == context.rate_factor:  # not lowered in this phase
            factor = next_rate_factor(trained, factor, config.actor)
    else:
        factor /= 2
        shutil.rmtree(folder.actor, ignore_errors=True)
        copy_model(context.actor, folder.actor)
        logger.warning(
            "phase %d: the update is not accepted: %d of %d probe pages solved, %d before (p %.2g), unreadable answers "
            "on %d, %d before (p %.2g). The actor of phase %d stays, and the learning rate is halved",
            phase, verdict["after"], verdict["pages"], verdict["before"], verdict["p_value"],
            verdict["unreadable"][1], verdict["unreadable"][0], verdict["unreadable_p_value"], phase - 1,
        )  # fmt: skip
    with atomic_path(folder.probe) as temporary:
        shutil.copyfile(new if verdict["accepted"] else context.previous.probe, temporary)
    return verdict | {"rate_factor": factor}


def _compare(context: Context, before: Path, after: Path) -> Counts:
    from webrl.evaluate import sign_test
    from webrl.reward.labels import read_outcomes
    from webrl.reward.orm import judge

    config, solved, unreadable = context.config, [], []
    for number, path in enumerate((before, after)):
        labels = context.folder.path / f"probe_labels_{number}.jsonl"
        episodes = list(read_records(path, Trajectory))
        judge(config, episodes, labels)
        known = {name: reward for name, reward in read_outcomes(labels).items() if reward is not None}
        played = {t.trajectory_id: t for t in episodes if t.trajectory_id in known}
        solved.append({name: known[name] == 1 for name in played})
        unreadable.append({name: any(not step.action for step in t.steps) for name, t in played.items()})
    pages = sorted(solved[0].keys() & solved[1].keys())
    if not pages:
        raise DataError(f"{after}: no probe page was judged for both actors; accept.tasks=0 accepts without a probe")

    def count(sides: list[dict[str, bool]], first: bool) -> int:
        return sum(sides[0][name] is first and sides[1][name] is not first for name in pages)

    p_value = sign_test(count(solved, True), count(solved, False))
    unreadable_p_value = sign_test(count(unreadable, False), count(unreadable, True))
    return {
        "accepted": min(p_value, unreadable_p_value) >= config.accept.alpha / 2,
        "before": sum(solved[0][name] for name in pages),
        "after": sum(solved[1][name] for name in pages),
        "pages": len(pages),
        "p_value": p_value,
        "unreadable": [sum(side[name] for name in pages) for side in unreadable],
        "unreadable_p_value": unreadable_p_value,
    }


def evaluate(context: Context) -> Counts:
    """Held-out tasks with this phase's actor and the environment's own reward; all phases draw alike."""
    tasks = find_suite(context.config.tasks.suite).eval_tasks(context.config)
    if not tasks:
        return {}
    first, *others = context.config.evaluate.temperature
    counts = _evaluate_at(context, tasks, first, "")
    if others:
        counts["at_temperature"] = {f"{t:g}": _evaluate_at(context, tasks, t, f"_t{t:g}") for t in others}
    for name, rate in named_rates(counts).items():
        if rate.get("over_start") and rate["over_start"]["ci95"][1] < 0:
            crashed = f" ({rate['errors']} episodes crashed)" if rate["errors"] else ""
            text = f"{name}, {difference_text(rate['over_start'])}{crashed}"
            logger.warning("phase %d is worse than the supervised start: %s", context.phase, text)
    return counts


def _evaluate_at(context: Context, tasks: Sequence[Task], temperature: float, mark: str) -> Counts:
    config, out = context.config, context.folder.path / f"eval{mark}.jsonl"
    actor = str(context.folder.actor) if context.phase or context.folder.actor.is_dir() else context.actor
    prefix = f"e{context.phase:02d}{mark}"
    play(config, tasks, actor, out, phase=context.phase, prefix=prefix, draws="e00", temperature=temperature)
    trajectories = list(read_records(out, Trajectory))
    labels: dict[str, Label] = {}
    if unscored := [t for t in trajectories if suite_of(t.task).needs_judge(t.task)]:
        from webrl.reward.labels import read_labels
        from webrl.reward.orm import judge

        path = context.folder.path / f"eval{mark}_labels.jsonl"
        judge(config, unscored, path, len(unscored))
        labels = read_labels(path)
    folder = context.folder.path / f"eval{mark}" if mark else context.folder.path
    counts = find_suite(config.tasks.suite).summarize(config, trajectories, folder, labels)
    first = context.run.phase(0)
    if context.phase and first.is_done("eval") and (first.path / out.name).is_file():
        played = read_records(first.path / out.name, Trajectory)
        start = [replace(t, steps=(), final_observation="") for t in played]  # their pages would fill the memory
        add_over_start(counts, trajectories, start)
    return counts


@spent_on("model files")
def copy_model(name: str, target: Path, *, sees: bool = False) -> Counts:
    """Copy a model folder (an adapter's: merged into its base), or the files of a model of the Hub; returns its commit.

    Raises:
        ModelError: neither is there.
    """
    from huggingface_hub import snapshot_download

    from webrl.llm import loading

    source = folder = loading.model_folder(name)
    if source is None:
        with loading.as_model_error(f"cannot download the model {name!r}"):
            source = Path(snapshot_download(name, allow_patterns=list(loading.MODEL_FILES)))  # its name is the commit
        if any(source.glob("adapter_config.json")):
            raise ModelError(loading.adapter_of_hub(name))
        if not any(source.glob("model*.safetensors")):
            raise ModelError(f"the model {name!r} has no weights in model*.safetensors, and {loading.PICKLES}")
    with atomic_path(target) as temporary:
        if loading.base_of(name):
            loading.save_merged(name, temporary, sees=sees)
        else:
            shutil.copytree(source, temporary)
    return {} if folder else {"hub_commit": source.name}


async def _verify(opened: LanguageModel, actor: str, config: RunConfig) -> None:
    """Refuse a server that answers with other weights than the trainer has; once after each change of weights."""
    model = cast("VllmModel", opened)
    if config.rollout.engine.kind != "vllm" or model.fleet.is_verified:
        return
    import torch

    from webrl.llm.loading import pick_device
    from webrl.llm.servers.vllm import verify_logprobs
    from webrl.runs.machine import visible_gpus
    from webrl.training.scoring import score_samples, scoring_dtype

    dtype = scoring_dtype(config, "cuda" if visible_gpus() else "cpu")
    device = pick_device(config.models.device)
    with spent_on("server verification"):
        await verify_logprobs(
            model,
            lambda samples: score_samples(samples, actor, dtype, device),
            1e-3 if dtype == torch.float32 else 0.1,
            prompt_tokens=config.models.max_prompt_tokens,
            asleep=nullcontext if device == "cpu" else model.asleep,
        )
    model.fleet.is_verified = True


def play(
    config: RunConfig,
    tasks: Sequence[Task],
    actor: str,
    out: Path,
    *,
    phase: int,
    prefix: str,
    draws: str | None = None,
    temperature: float | None = None,
) -> None:
    """Roll out with a model; `temperature` None is a training rollout at the configured one.

    Raises:
        StageError: more of a training rollout's episodes failed than `rollout.max_failed` allows.
    """
    from webrl.llm import open_policy
    from webrl.rollouts.collect import collect
    from webrl.rollouts.pool import run, start_early

    async def work() -> None:
        await start_early(config.rollout, len(tasks))
        verify = partial(_verify, actor=actor, config=config)
        opened = open_policy(actor, config, temperature=temperature, training=temperature is None, verify=verify)
        async with open_sites(config, tasks), opened as policy:
            allowed = config.rollout.max_failed if temperature is None else None
            await collect(tasks, config, policy, out, phase=phase, prefix=prefix, draws=draws, max_failed=allowed)

    run(work())
