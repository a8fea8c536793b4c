"""Runs a GRPO training from its settings: checks, TRL's configuration, and outputs.

API: `settings = check(settings)`, then `train(settings, out)`. `out` holds the trained model, `trajectories.jsonl`
(every episode, prompt and sampled token: replay and outcome models read it), `screenshots/` and `report.json`.
"""

from __future__ import annotations

import copy
import importlib
import logging
import os
import random
import shutil
from collections.abc import Sequence
from pathlib import Path
from typing import Any

from webrl.config.extras import require, warn_of_openenv_conflict
from webrl.errors import DataError, ModelError, UsageError
from webrl.llm.check import check_model
from webrl.llm.eyes import Eyes
from webrl.llm.loading import base_of, config_of, load_tokenizer, save_merged
from webrl.rollouts.actions import ActionError, read_answer
from webrl.rollouts.browser import find_chromium
from webrl.rollouts.sites import site_name
from webrl.rollouts.suite import suite_at, suite_of
from webrl.runs.disk import atomic_path
from webrl.runs.store import Appender, write_json
from webrl.types import Task
from webrl_grpo.collector import Collector
from webrl_grpo.play import Episode, Player
from webrl_grpo.rows import first_and_last, mean_reward, reward_functions
from webrl_grpo.settings import GrpoSettings

logger = logging.getLogger(__name__)

_PUBLIC_IMAGE_SIZE = 512
"""`--image-size` of TRL's vision example."""
_AS_IN_TRL = (
    "seed", "num_generations", "max_completion_length", "temperature", "top_p", "top_k",
    "learning_rate", "lr_scheduler_type", "weight_decay", "warmup_steps", "per_device_train_batch_size",
    "gradient_accumulation_steps", "gradient_checkpointing", "logging_steps", "log_completions", "save_total_limit",
)  # fmt: skip
"""Settings that TRL has under the same name."""


def make_tasks(settings: GrpoSettings) -> list[Task]:
    """Returns the pages of the training, task types in turn, also of several suites; MiniWoB's have training seeds.
    Raises UsageError for an unknown task, or one of the arena's evaluation, served or not.
    """
    sites = [site_name(name, settings.benchmark) for name in settings.task_name]
    turns = [sites[i % len(sites)] for i in range(settings.dataset_size)]
    draw = random.Random(settings.seed)
    seeds = [draw.randrange(1 << 31) for _ in turns]
    suites = [suite_at(site) for site in turns]
    tasks: dict[int, Task] = {}
    for suite in dict.fromkeys(suites):
        mine = [i for i, each in enumerate(suites) if each is suite]
        named = suite.named_tasks([turns[i] for i in mine], [seeds[i] for i in mine], settings.seed)
        tasks.update(zip(mine, named, strict=True))
    for task in (Task(site, site=site) for site in sites) if not settings.browsergym_url else ():
        suite = suite_of(task)  # which our own browsers have to be able to play
        if suite.not_served:
            raise UsageError(
                f"task {task.site!r}: our own browsers cannot play it by name ({suite.not_served}); name a server "
                "of other tasks with browsergym_url"
            )
        try:
            suite.check(task, settings.run_config.rollout)
        except DataError as error:
            raise UsageError(str(error)) from None
    return [tasks[i] for i in range(len(turns))]


def check(settings: GrpoSettings) -> GrpoSettings:
    """Refuse what would fail later, without starting anything; returns the settings completed for the model.

    Raises:
        UsageError: a task, a model or an option that cannot be trained with.
        ExtraMissing: a package that an option needs.
        BrowserMissing: no Chromium, and no server named.
        ModelError: an unusable model.
    """
    require("grpo", "webrl grpo")
    warn_of_openenv_conflict()
    for tracker in settings.trackers:
        if tracker != "tensorboard":
            require(tracker, f"report_to={tracker}")
    if settings.vllm_server_url or (settings.use_vllm and settings.vllm_mode != "own"):
        logger.warning("vllm_mode and vllm_server_url change nothing: with use_vllm, servers are started here")
    if settings.vllm_python and shutil.which(settings.vllm_python) is None:
        raise UsageError(f"vllm_python {settings.vllm_python!r} is not an executable; name a Python that has vLLM")
    if settings.use_vllm and not settings.vllm_python:
        require("vllm", "use_vllm=true")
    if int(os.environ.get("WORLD_SIZE", "1")) > 1:
        raise UsageError("WORLD_SIZE > 1: webrl grpo trains in one process; start it without a launcher")
    try:
        read_answer(settings.fallback_action, settings.run_config.rollout.dialect)
    except ActionError as error:
        raise UsageError(f"fallback_action = {settings.fallback_action!r}: {error}") from None
    if settings.resume_from_checkpoint and not (settings.resume_from_checkpoint / "trainer_state.json").is_file():
        raise UsageError(f"resume_from_checkpoint {str(settings.resume_from_checkpoint)!r}: not a checkpoint-N folder")
    make_tasks(settings)
    name = settings.model_name
    config = config_of(name)
    check_model(name, use="training")
    if hasattr(config, "vision_config"):
        size = _PUBLIC_IMAGE_SIZE if settings.image_size is None else settings.image_size
        settings = settings.with_image_size(size)
        try:
            Eyes(name)
        except ModelError as error:
            raise UsageError(str(error)) from None
    elif settings.sees:
        raise UsageError(
            f"image_size={settings.image_size}: model {name!r} has no vision; leave image_size out to train on the "
            "page's text"
        )
    elif settings.observation == "none":
        raise UsageError(f"observation=none: model {name!r} has no vision and would see nothing")
    elif settings.prompt_format != "webrl" and not load_tokenizer(name).chat_template:
        raise UsageError(
            f"model {name!r} has no chat template: use an instruction-tuned model, or add chat_template.jinja to it"
        )
    limit = getattr(config.get_text_config(), "max_position_embeddings", None)
    if limit and settings.max_seq_length > limit:
        raise UsageError(f"max_seq_length {settings.max_seq_length}: model {name!r} has {limit} positions")
    if not settings.browsergym_url:
        find_chromium()
    return settings


def train(settings: GrpoSettings, out: Path) -> dict[str, Any]:
    """Play and train; returns the content of `report.json`. An adapter is merged first, into `start` of `out`.

    Raises:
        UsageError: a server or page that cannot be used.
        StageError: episodes cannot be played any more, or a reward that is not finite.
        TrainingError: a loss that is not finite.
    """
    tasks, given = make_tasks(settings), settings
    if base_of(settings.model_name):  # TRL would train on top of the adapter as it is, and servers have to be told
        start = out / "start"
        if not start.exists():
            with atomic_path(start) as temporary:
                save_merged(settings.model_name, temporary, sees=settings.sees)
        settings = settings.model_copy(update={"model_name": str(start)})
    eyes = Eyes(settings.model_name) if settings.sees else None
    player = Collector(settings, out) if settings.has_collector else Player(settings, eyes, out)
    with player, Appender(out / "trajectories.jsonl") as file:
        player.check(tasks)
        importlib.import_module("webrl_grpo.trl_trainer")  # while a player of its own process starts vLLM
        if isinstance(player, Collector):
            player.wait()
        batches: list[list[float]] = []
        num_failed = 0

        def record(episodes: Sequence[Episode], rewards: Sequence[float | None]) -> None:
            nonlocal num_failed
            for episode in episodes:
                file.append(episode.trajectory)
            known = [reward for reward in rewards if reward is not None]
            num_failed += len(rewards) - len(known)
            batches.append(known)
            failed = f", {len(rewards) - len(known)} failed" if len(known) < len(rewards) else ""
            mean = mean_reward(known).mean
            logger.info("batch %d: mean reward %.3f of %d episodes%s", len(batches), mean, len(known), failed)

        trainer = _make_trainer(settings, player, tasks, record, out, eyes)
        resumed = settings.resume_from_checkpoint
        trained = trainer.train(resume_from_checkpoint=str(resumed) if resumed else None)
        trainer.save_model(str(out))
        (out / "training_args.bin").unlink()  # a pickle, which should not be loaded
    first, last = first_and_last(batches)
    report = {
        "reward_first": first.to_json(),
        "reward_last": last.to_json(),
        "batches": [{"mean": mean_reward(batch).mean, "episodes": len(batch)} for batch in batches],
        "failed_episodes": num_failed,
        "unreadable_left_out": trainer.num_unreadable,
        "kl": trainer.region.kls,
        "taken_back": trainer.region.taken_back,
        "stopped": trainer.region.stopped,
        "train_seconds": round(trained.metrics["train_runtime"], 1),
        **(
            {"staleness": trainer.staleness, "waited_seconds": [round(s, 1) for s in trainer.waited_s]}
            if settings.has_collector
            else {}
        ),
        "settings": given.model_dump(mode="json"),
    }
    write_json(out / "report.json", report)
    return report


def _make_trainer(
    settings: GrpoSettings,
    player: Player | Collector,
    tasks: Sequence[Task],
    record: Any,
    out: Path,
    eyes: Eyes | None = None,
) -> Any:
    # TRL warns that `rollout_func` may change: the version is pinned.
    os.environ.setdefault("TRL_EXPERIMENTAL_SILENCE", "1")
    import torch
    from datasets import Dataset
    from transformers.trainer_callback import PrinterCallback

    from webrl_grpo.sampler import lora_config
    from webrl_grpo.trl_trainer import AheadTrainer, EpisodeTrainer

    # TRL gives it a padding token.
    processor = eyes.processor if eyes else copy.deepcopy(load_tokenizer(settings.model_name))
    rows = {"prompt": [task.task_id for task in tasks], "task": list(range(len(tasks)))}
    trainer_class = AheadTrainer if settings.has_collector else EpisodeTrainer
    trainer = trainer_class(
        settings,
        player,
        tasks,
        record,
        eyes,
        model=settings.model_name,
        processing_class=processor,
        reward_funcs=reward_functions(settings.rewards),
        train_dataset=Dataset.from_dict(rows),
        args=_trl_config(settings, out, on_gpu=torch.cuda.is_available()),
        peft_config=lora_config(settings) if settings.use_peft else None,
    )
    trainer.remove_callback(PrinterCallback)
    return trainer


def _trl_config(settings: GrpoSettings, out: Path, *, on_gpu: bool) -> Any:
    from trl import GRPOConfig

    from webrl_grpo.trl_trainer import RATIO_CAP

    return GRPOConfig(
        **{name: getattr(settings, name) for name in _AS_IN_TRL},
        output_dir=str(out),
        delta=RATIO_CAP if settings.has_collector else None,
        reward_weights=list(settings.rewards.values()),
        generation_batch_size=settings.episodes_per_generation,
        num_train_epochs=settings.num_epochs,
        bf16=on_gpu,
        model_init_kwargs={"dtype": "float32"},
        report_to=settings.trackers or "none",
        run_name=settings.run_name or settings.wandb_experiment_name or out.name,
        project=settings.project or settings.wandb_project_name or "webrl-grpo",
        trackio_space_id=None,
        num_completions_to_print=settings.num_generations,
        save_strategy="steps" if settings.save_interval else "no",
        save_steps=settings.save_interval or 1,
        disable_tqdm=True,
        dataloader_pin_memory=on_gpu,
    )
