"""What a stage would refuse hours later, refused before work starts."""

from __future__ import annotations

import logging
import os
import shutil
from collections.abc import Collection, Iterator, Sequence
from importlib.util import find_spec
from pathlib import Path

from webrl.config import OptimConfig, RunConfig, TrainingConfig, plugins
from webrl.config.extras import require
from webrl.config.resources import load_plan
from webrl.errors import ExtraMissing, StageError, UsageError
from webrl.llm.check import check_model, weights_of
from webrl.llm.loading import check_sight, config_of, weight_files
from webrl.llm.policy import check_sampling
from webrl.reward.orm import configured_text
from webrl.rollouts.browser import find_chromium
from webrl.rollouts.suite import find_suite, seed_tasks
from webrl.runs.folder import RunFolder
from webrl.runs.machine import visible_gpus
from webrl.training.topology import local_processes

logger = logging.getLogger(__name__)

_PLAYS = frozenset({"rollout", "accept", "eval"})
"""Stages in which an agent acts."""
_BYTES = {"fp32": 4, "bf16": 2}  # of a weight, by `export_dtype`


def check_settings(config: RunConfig, source: str) -> None:
    """Refuse at once what a stage would refuse hours later.

    Raises:
        UsageError: an engine, a task type or a folder that there is not, settings that contradict others, or
            screenshots for what cannot take them. What nothing would use is a warning.
    """
    for section in ("critic", "actor", "orm"):
        try:
            load_plan(getattr(config, section).engine)
        except UsageError as error:
            raise UsageError(f"{source}: {section}.engine: {error}") from None
    engines = {f"{name}.engine": getattr(config, name).engine for name in ("generate", "rollout", "label")}
    for key, engine in engines.items():
        if engine.kind == "openai" and not engine.urls:
            raise UsageError(f"{source}: {key}.kind=openai needs servers: {key}.urls=[http://127.0.0.1:8000/v1]")
    tasks, rollout, strategy = config.tasks, config.rollout, config.replay.strategy
    try:
        suite = find_suite(tasks.suite)
        if tasks.source == "fresh" and not suite.draws_fresh:
            raise UsageError(f"tasks.source=fresh needs tasks made from a seed, but tasks.suite={suite.name} has none")
        suite.check_settings(config)
    except UsageError as error:
        raise UsageError(f"{source}: {error}") from None
    asked = [engine.urls for engine in engines.values() if engine.kind == "openai"]
    unused = [f"{key}.urls: kind={e.kind} takes none" for key, e in engines.items() if e.urls and e.urls not in asked]
    unused += ["rollout.urls: env=browser takes none"] if rollout.urls and rollout.env == "browser" else []
    unused += ["replay.demos: nothing learns from them"] if config.replay.demos and not config.used_demos else []
    if unused:
        logger.warning("%s: unused: %s", source, "; ".join(unused))
    has_phases, imitates = config.num_phases > 0, config.actor.imitation and config.used_demos
    _refuse(source, {
        "label.judge=environment needs tasks.source=fixed or fresh: the environment has no reward for generated "
        "instructions": config.label.judge == "environment" and tasks.source == "curriculum" and has_phases,
        "actor.objective=imitation learns from demonstrations only: name some in replay.demos, with actor.imitation "
        "above 0": config.actor.objective == "imitation" and has_phases and not imitates,
        f"rollout.upload_dir={str(rollout.upload_dir)!r}: there is no such folder; make it, or name another":
            rollout.upload_dir is not None and not rollout.upload_dir.is_dir(),
        f"rollout.refill={rollout.refill} replaces groups of an actor's attempts: set rollout.num_generations=4, with "
        "rollout.policy=actor": bool(rollout.refill) and (rollout.num_generations == 1 or rollout.policy == "expert"),
        f"models.prompt=rounds shows answers in browsergym's actions, rollout.dialect={rollout.dialect}: set "
        "models.prompt=examples, or rollout.dialect=browsergym":
            config.models.prompt == "rounds" and rollout.dialect != "browsergym",
    })  # fmt: skip
    if config.actor.objective == "grpo" and has_phases:
        # what leaves it nothing to compare, or lets it compare attempts of other weights
        _refuse(f"{source}: actor.objective=grpo compares a task's attempts", {
            "rollout.num_generations=1: a group of one has advantage 0; set rollout.num_generations=4 (2 at least)":
                rollout.num_generations == 1,
            f"replay.strategy={strategy}: other weights sampled replayed steps; set replay.strategy=none":
                strategy != "none",
            "rollout.temperature=0: greedy attempts are alike; set rollout.temperature=1": not rollout.temperature,
            "rollout.policy=expert: experts' attempts are alike; set rollout.policy=actor": rollout.policy == "expert",
        })  # fmt: skip
    if rollout.sees:
        _refuse(f"{source}: rollout.image_size shows the actor screenshots", {
            f"rollout.engine.kind={rollout.engine.kind}: not yet; set rollout.engine.kind=transformers":
                rollout.engine.kind != "transformers",
            "models.prompt_format=webrl: that format has no place for one; set models.prompt_format=chat":
                config.models.prompt_format == "webrl",
            "models.enable_thinking=true: not yet; set models.enable_thinking=false": config.models.enable_thinking,
            "rollout.show_text=false: the curriculum reads the pages that the actor read; set tasks.source=fresh":
                not rollout.show_text and tasks.source == "curriculum" and has_phases,
            f"rollout.show_text=false: dialect={rollout.dialect} has no coordinates; set dialect=browsergym":
                not rollout.show_text and rollout.dialect != "browsergym",
        })  # fmt: skip


def _refuse(what: str, problems: dict[str, bool]) -> None:
    """Raise UsageError with all the problems that there are."""
    if found := [text for text, is_there in problems.items() if is_there]:
        raise UsageError(f"{what}: {'; '.join(found)}")


def check_inputs(config: RunConfig, stages: Collection[str]) -> None:
    """Return if what these stages start from is there.

    Raises:
        UsageError: the judge's system text, a demonstration or the file of `filter.rules` is not there, the actor would
            not be sampled at temperature 1, the training takes no screenshots, or needs several processes.
        ModelError: as of `check_models`.
        ExtraMissing: a package that the config needs in these stages is not installed, or the C compiler that training
            on a GPU needs.
        BrowserMissing: no Chromium, where this machine plays.
        DataError: a file of tasks is not there, or not understood.
    """
    due = frozenset(stages)
    if due & {"replay", "train"} and config.rollout.sees:
        updated = ("actor", "critic") if config.trains_critic else ("actor",)
        untried = [f"{name}.{o}: not yet" for name in updated for o in getattr(config, name).untried_with_screenshots]
        _refuse("rollout.image_size trains the actor on screenshots", dict.fromkeys(untried, True) | {
            "actor.objective=webrl_released values a state after the last step, of which there is no screenshot; set "
            "actor.objective=webrl_scaled": config.actor.objective == "webrl_released",
            "filter.critic_band=true asks the critic about pages of which there is no screenshot yet; set "
            "filter.critic_band=false": config.tasks.source == "curriculum" and config.filter.critic_band,
        })  # fmt: skip
    for name, wanted_by in wanted_extras(config, due):
        require(name, wanted_by)
    if due & {"train", "sft", "train-orm"}:
        named = os.environ.get("CC")  # Triton compiles at its first use on a GPU
        found = shutil.which(named) if named else shutil.which("gcc") or shutil.which("clang")
        if found is None and config.models.device != "cpu" and find_spec("triton") is not None and visible_gpus():
            why = f"CC={named!r} is not a program: unset it, or name one" if named else "there is neither gcc nor clang"
            raise ExtraMissing(f"training on a GPU needs a C compiler, but {why} (Debian: apt-get install gcc)")
    if config.rollout.env != "browser" and due & _PLAYS:
        plugins.find(plugins.ENVIRONMENTS, config.rollout.env)
    if config.rollout.policy == "expert" and "rollout" in due and config.num_phases:
        plugins.find(plugins.HOOKS, "record-experts")
    check_rollouts(config, due)
    check_tasks(config, due)
    if due & _PLAYS and (config.rollout.env, config.rollout.backend) == ("browser", "local"):
        find_chromium()
    if due & {"gen-tasks", "filter-tasks"}:
        from webrl.tasks.filter import load_rules

        load_rules(config.filter.rules)
    if due & {"label", "accept", "train-orm"}:
        configured_text(config.label.system_prompt)
    if "replay" in due:
        from webrl.replay.demonstrations import check_demonstrations

        check_demonstrations(config)
    if "train" in due and int(os.environ.get("WORLD_SIZE", "1")) <= 1 and local_processes(config) == 1:
        trained = {"critic": config.trains_critic, "actor": config.num_phases > 0}
        for section in (name for name, is_trained in trained.items() if is_trained):
            engine = getattr(config, section).engine
            if load_plan(engine).kind == "fsdp2":
                raise UsageError(
                    f"{section}.engine={engine} shards a model over several GPUs, but there are not two here: "
                    f"set {section}.engine=ddp, or NPROC_PER_NODE to the number of processes (docs/cluster.md)"
                )
    for name in check_models(config, due):
        config_of(name)  # of the Hub: a name that it does not know ends the run here, not hours later


def wanted_extras(config: RunConfig, due: Collection[str]) -> Iterator[tuple[str, str]]:
    """(extra, `option=value` that wants it) of some stages."""
    suite = find_suite(config.tasks.suite)
    plays = not _PLAYS.isdisjoint(due)
    if plays and config.rollout.backend == "ray":
        yield "ray", "rollout.backend=ray"
    engines = {
        "generate": (config.generate.engine, ("gen-tasks", "filter-tasks")),
        "rollout": (config.rollout.engine, _PLAYS),
        "label": (config.label.engine, ("label", "accept", "train-orm")),
    }
    for section, (engine, users) in engines.items():
        if engine.kind == "vllm" and engine.vllm_python is None and not set(users).isdisjoint(due):
            yield "vllm", f"{section}.engine.kind=vllm"
    updates = {"train": ("critic", "actor"), "sft": ("sft",), "train-orm": ("orm",)}
    for section in (name for stage, names in updates.items() if stage in due for name in names):
        training: OptimConfig = getattr(config, section)
        if load_plan(training.engine).kind == "deepspeed":
            yield "deepspeed", f"{section}.engine={training.engine}"
    yield from ((name, f"trackers=[{name}]") for name in config.trackers)
    if suite.extra and plays:
        yield suite.extra, f"tasks.suite={suite.name}"


def check_rollouts(config: RunConfig, stages: Collection[str]) -> None:
    """Raise UsageError if these stages sample what training cannot use, or get no new weights to the servers."""
    is_fixed = "accept" in stages and config.num_phases > 0 and config.rollout.engine.kind == "openai"
    text = "its servers never get new weights; set rollout.engine.kind=vllm or transformers"
    _refuse("rollout.engine.kind=openai", {text: is_fixed})
    if "accept" in stages or ("rollout" in stages and config.rollout.policy == "actor"):
        check_sampling(config.rollout)


def check_tasks(config: RunConfig, stages: Collection[str]) -> None:
    """Read the tasks of these stages. Raises UsageError for types that do not exist, DataError for a file that is not
    understood, ExtraMissing for an optional package; where a file is missing, the cause is FileNotFoundError.
    """
    if not {"filter-tasks", "accept", "eval"}.isdisjoint(stages):
        find_suite(config.tasks.suite).heldout_tasks(config)
    if "filter-tasks" in stages:
        seed_tasks(config)


def check_models(config: RunConfig, stages: Collection[str]) -> list[str]:
    """Check that the models that these stages start from can be loaded, and read what they are shown; return those of
    the Hub that are not here, of which nothing is known. Raises ModelError as `check_model` and `check_sight`.
    """
    due = frozenset(stages)
    texts = list[tuple[str, str, str]]()  # one that is never asked needs no chat template
    if due & {"label", "accept"} and (kind := config.label.engine.kind) != "openai":
        form = config.label.prompt_format if config.label.judge == "orm" else "webrl"
        texts.append((config.models.orm, form, kind))
    if {"gen-tasks", "rollout"} <= due and config.num_phases and (kind := config.generate.engine.kind) != "openai":
        texts.append((config.models.generator, "chat" if config.tasks.source == "curriculum" else "webrl", kind))
    has_started = RunFolder(config.run_dir).phase(0).is_done("train")  # later phases start from the run's own models
    acting = [config.models.actor] if due & (_PLAYS | {"replay", "train"}) and not has_started else []
    away = [n for n in dict.fromkeys([*acting, *(text[0] for text in texts)]) if not weight_files(n)]  # without torch
    if acting:
        check_sight(config, config.models.actor)
        use: str = "training" if "train" in due else config.rollout.engine.kind
        check_model(config.models.actor, sees=config.rollout.sees, prompt_format=config.models.prompt_format, use=use)
    for name, prompt_format, use in dict.fromkeys(texts):
        check_model(name, sees=False, prompt_format=prompt_format, use=use)
    return away


def run_bytes(config: RunConfig) -> int | None:
    """Return how much a run still adds to its folder at most in actors, critics and training states; None if the
    actor's size is not known: a model of the Hub that is not here yet.
    """
    phases = [RunFolder(config.run_dir).phase(k) for k in range(config.num_phases + 1)]
    with_actor = [str(folder.actor) for folder in phases if folder.actor.is_dir()]
    if (found := weights_of([config.models.actor, *with_actor][-1])) is None:
        return None
    parameters, start = found
    sections = {"actor": config.actor, "critic": config.critic} if config.trains_critic else {"actor": config.actor}
    one = {name: parameters * _BYTES[section.export_dtype] for name, section in sections.items()}
    missing = [
        start if (folder.phase, name) == (0, "actor") else size
        for folder in phases
        for name, size in one.items()
        if not folder.is_done("train") and not (folder.path / name).is_dir()
    ]
    need = sum(missing)
    if config.keep_models:  # beside those, the best one and the one in the making
        need = min(need, max(config.keep_models + 2 - len(with_actor), 1) * sum(one.values()))
    outs = [folder.path / name for folder in phases for name in sections]
    return need + max(_state_bytes(parameters, section, outs) for section in sections.values()) * bool(missing)


def check_room(config: RunConfig) -> None:
    """Raise StageError if the run folder's disk has less room than the run still needs; see `run_bytes`."""
    if (need := run_bytes(config)) is not None:
        fewer = "keep_models=1 (the newest and the best phase's stay), " if config.keep_models != 1 else ""
        _require_room(config.run_dir, need, f"set {fewer}a smaller num_phases, or runs_dir=… on a larger disk")


def check_output(config: TrainingConfig, init: str, out: Path) -> None:
    """Check where a model is trained to outside a run's phases; UsageError for a file, StageError without room."""
    if out.is_file():
        raise UsageError(f"--out {str(out)!r} is a file; name a folder")
    if not out.is_dir() and (found := weights_of(init)) is not None:
        need = found[0] * _BYTES[config.export_dtype] + _state_bytes(found[0], config, [out])
        _require_room(out, need, "name an --out on a larger disk, or free some space")


def _require_room(folder: Path, need: int, fix: str) -> None:
    text, suffices = room_text(folder, need)
    if not suffices:
        raise StageError(f"{folder} {text}; {fix}")


def room_text(folder: Path, need: int) -> tuple[str, bool]:
    """Return what is needed and free on the disk of a folder that may not exist yet, and whether it suffices."""
    there = next(path for path in (folder.absolute(), *folder.absolute().parents) if path.is_dir())
    total, _, free = shutil.disk_usage(there)  # of /proc or /sys, 0: writing there says why it cannot be
    text = f"needs about {need / 1e6:,.0f} MB more for weights, and {there} has {free / 1e6:,.0f} MB free"
    return text, need <= free or not total


def _state_bytes(parameters: int, config: TrainingConfig, outs: Sequence[Path]) -> int:
    """The training states of one output (`checkpoint.py`): weights and Adam's moments, the last one and the next."""
    copies = 1 if any(out.with_name(f".{out.name}.state").is_dir() for out in outs) else 2
    return copies * parameters * (4 if config.lora_rank else 12) * bool(config.save_every)
