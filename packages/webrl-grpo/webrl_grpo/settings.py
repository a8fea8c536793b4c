"""Options of `webrl grpo`, named as in the public GRPO scripts.

These scripts are TRL's examples on OpenEnv's BrowserGym environment (`--model-id`, `--space-url`, …) and Liquid AI's
browser-control cookbook (YAML: `model_name`, `browsergym_url`, …). The cookbook's names are the fields here, the others
are aliases of them.

API: `load_settings(path, options) -> GrpoSettings`; options override the file, which overrides the defaults.
"""

from __future__ import annotations

import difflib
import math
import re
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any, Literal, Self

from pydantic import Field, PositiveInt, ValidationError, field_validator, model_validator

from webrl.config import TYPED, Address, ModelName, PromptFormat, RunConfig, apply_override, read_config
from webrl.config.section import Section
from webrl.errors import UsageError, problem_text
from webrl.llm.interface import Sampling
from webrl.rollouts.sites import site_name

Reward = Literal["outcome", "sum", "mean", "max", "format"]
Tracker = Literal["none", "tensorboard", "wandb", "trackio"]

ALIASES: dict[str, str] = {
    "model_id": "model_name",
    "space_url": "browsergym_url",
    "dataset_prompt": "default_goal",
    "per_device_batch_size": "per_device_train_batch_size",
    "reward": "rewards",
}
"""Other public names of the options."""
_AS_IN_RUN = {"num_workers", "envs_per_worker", "every_element", "viewport", "max_steps", "temperature"}
"""Options that are `rollout`'s in a config of `webrl run`."""


class GrpoSettings(Section):
    """A GRPO training; every field is an option, `--max-steps` for `max_steps`."""

    model_name: ModelName = Field("data/tiny/actor", description="policy: a folder or a hub name")
    output_dir: Path | None = Field(None, description="folder of the trained model and its records; none: a new one")
    seed: int = Field(0, ge=0, lt=1 << 32, description="seed of pages, draws and training")
    resume_from_checkpoint: Path | None = Field(None, description="a checkpoint-N folder to resume from")

    benchmark: str = Field("miniwob", description="suite of the tasks")
    task_name: tuple[str, ...] = Field(("click-test",), min_length=1, description="tasks, in turn")
    browsergym_url: tuple[Address, ...] = Field(
        (), description="OpenEnv servers, `webrl serve-env` or others; none: local browsers"
    )
    arena_folder: Path | None = Field(None, description="folder of `webrl arena up --folder`; none: its default")
    dataset_size: int = Field(1000, ge=1, description="pages, each attempted num_generations times")
    default_goal: str = Field("Complete the web task successfully.", description="goal of a page that has none")
    max_steps: int = Field(10, ge=1, description="actions of an episode")
    num_workers: int = Field(
        1, ge=1, description="browser processes; with browsergym_url, num_workers x envs_per_worker sessions are opened"
    )
    envs_per_worker: int = Field(8, ge=1, description="pages per browser process")
    observation: Literal["axtree", "html", "none"] = Field(
        "axtree", description="text form of the page; none: the model sees only the screenshot"
    )
    every_element: bool | None = Field(None, description="as rollout.every_element of `webrl run`")
    viewport: tuple[PositiveInt, PositiveInt] | None = Field(
        None, description="size of pages in CSS pixels, 1280x720, and of their screenshots; none: the task's own"
    )
    image_size: int | None = Field(
        None,
        ge=0,
        description="the model sees a screenshot, whose longer side is at most this many pixels (0: unchanged); "
        "none: 512 for a vision-language model, no screenshot for others",
    )
    fallback_action: str = Field("noop()", description="carried out instead of an answer that is not an action")

    prompt_format: PromptFormat | Literal["browsergym"] = Field(
        "chat",
        description="browsergym: that of the public scripts (past steps, errors, clickable elements, page); the "
        "others as models.prompt_format of `webrl run`",
    )
    system_prompt: str | None = Field(None, description="replaces ours; needs prompt_format=browsergym")
    history_steps: int = Field(4, ge=0, description="past steps shown (prompt_format browsergym)")
    max_page_chars: int = Field(2000, ge=1, description="the page's text is cut there (prompt_format browsergym)")
    max_seq_length: int = Field(4096, ge=32, description="tokens of a prompt and its answer")
    max_completion_length: int = Field(128, ge=1, description="tokens of one answer")

    num_generations: int = Field(4, description="attempts at each page: the group")
    temperature: float = Field(1.0, gt=0, description="sampling temperature")
    top_p: float = Field(1.0, gt=0, le=1, description="nucleus sampling")
    top_k: int = Field(0, ge=0, description="sample among this many likeliest tokens; 0: all")
    use_vllm: bool = Field(
        False, description="sample with vLLM, on servers that start with the training and load new weights in place"
    )
    vllm_mode: Literal["own", "colocate", "server"] = Field(
        "own", description="accepted for the public scripts; webrl always starts its own servers (own)"
    )
    vllm_server_url: str | None = Field(None, description="accepted for the public scripts, and ignored")
    vllm_gpu_memory_utilization: float = Field(0.3, gt=0, lt=1, description="vLLM's share of the GPU")
    vllm_python: str | None = Field(None, description="Python that has vLLM; none: this one (vLLM pins its own torch)")
    vllm_extra_args: tuple[str, ...] = Field((), description="further vLLM server arguments")

    rewards: dict[Reward, float] = Field(
        {"outcome": 1.0},
        description="name: weight. outcome: 1 for a success; sum, mean, max: of the steps' rewards; format: share "
        "of the answers that are actions; such as --rewards outcome=1 format=0.1",
    )
    learning_rate: float = Field(2e-6, gt=0, description="peak learning rate")
    max_kl: float | None = Field(
        1.0,
        gt=0,
        description="four steps that move the policy by more than this KL (nats per action) are taken back, and the "
        "training continues at a quarter of the learning rate; null: no limit",
    )
    lr_scheduler_type: Literal["linear", "constant", "cosine"] = Field("linear", description="schedule")
    weight_decay: float = Field(0.0, ge=0, description="AdamW weight decay")
    warmup_steps: int = Field(0, ge=0, description="optimizer steps that warm up")
    per_device_train_batch_size: int = Field(1, ge=1, description="episodes of a micro-batch (all their steps)")
    gradient_accumulation_steps: int = Field(8, ge=1, description="micro-batches of an optimizer step")
    generation_batch_size: int | None = Field(
        None, ge=1, description="episodes played with the same weights; none: an optimizer step's, in whole groups"
    )
    max_staleness: int = Field(
        0,
        ge=0,
        description="how many generation batches to play ahead during training, with weights that are that many "
        "batches old; 0: play, then train",
    )
    num_epochs: int = Field(1, ge=1, description="passes over the pages")
    gradient_checkpointing: bool = Field(True, description="less memory, more time")

    use_peft: bool = Field(False, description="train a LoRA adapter")
    lora_r: int = Field(8, ge=1, description="LoRA rank")
    lora_alpha: float = Field(16, gt=0, description="LoRA scale")
    lora_dropout: float = Field(0.0, ge=0, lt=1, description="LoRA dropout")
    lora_bias: Literal["none", "all", "lora_only"] = Field("none", description="biases that are trained")
    use_rslora: bool = Field(False, description="rank-stabilised LoRA")
    lora_target_modules: tuple[str, ...] = Field((), description="adapted modules; none: all linear layers")

    report_to: tuple[Tracker, ...] = Field(("tensorboard",), description="where metrics go")
    run_name: str | None = Field(None, description="name of the run there")
    project: str | None = Field(None, description="project there")
    wandb_enabled: bool = Field(False, description="short for report_to=[wandb]")
    wandb_project_name: str | None = Field(None, description="the same as project")
    wandb_experiment_name: str | None = Field(None, description="the same as run_name")
    push_to_hf: bool = Field(False, description="refused: upload output_dir with `hf upload`")
    logging_steps: int = Field(1, ge=1, description="optimizer steps between two lines of metrics")
    log_completions: bool = Field(False, description="show answers and rewards, here and where metrics go")
    save_interval: int = Field(0, ge=0, description="optimizer steps between checkpoints; 0: none but the end")
    save_total_limit: int | None = Field(None, ge=1, description="checkpoints kept; none: all")

    @field_validator("vllm_extra_args", mode="before")
    @classmethod
    def _split_at_blanks(cls, value: Any) -> Any:
        return value.split() if isinstance(value, str) else value  # JSON in them has commas

    @field_validator("task_name", "browsergym_url", "report_to", "lora_target_modules", mode="before")
    @classmethod
    def _split_words(cls, value: Any) -> Any:
        texts = [value] if isinstance(value, str) else value
        if not isinstance(texts, list) or not all(isinstance(text, str) for text in texts):
            return value
        return [word for text in texts for word in text.replace(",", " ").split()]

    @field_validator("viewport", mode="before")
    @classmethod
    def _split_sides(cls, value: Any) -> Any:
        return tuple(value.lower().split("x")) if isinstance(value, str) else value

    @field_validator("num_generations")
    @classmethod
    def _check_group_size(cls, value: int) -> int:
        if value < 2:
            raise ValueError("a group of one has no advantage and learns nothing; use 2 or more, such as 8")
        return value

    @field_validator("push_to_hf")
    @classmethod
    def _check_upload(cls, value: bool) -> bool:
        if value:
            raise ValueError("nothing is uploaded from here; upload the model in output_dir: hf upload NAME OUTPUT_DIR")
        return value

    @field_validator("rewards")
    @classmethod
    def _check_weights(cls, value: dict[str, float]) -> dict[str, float]:
        if not any(value.values()):
            raise ValueError("at least one weight must differ from 0, such as {outcome: 1}")
        return value

    @model_validator(mode="after")
    def _check_combination(self) -> Self:
        if self.max_completion_length >= self.max_seq_length:
            raise ValueError(
                f"max_completion_length {self.max_completion_length} leaves no room for a prompt in max_seq_length "
                f"{self.max_seq_length}"
            )
        if self.sees and self.use_vllm:
            raise ValueError(
                f"image_size {self.image_size} with use_vllm: screenshots go through the engine of this process alone; "
                "leave use_vllm out"
            )
        for name in ("vllm_python", "vllm_extra_args"):
            if getattr(self, name) and not self.use_vllm:
                raise ValueError(f"{name} needs use_vllm=true")
        if self.max_staleness and (self.temperature != 1 or self.top_p != 1 or self.top_k):
            raise ValueError(
                f"max_staleness {self.max_staleness} with temperature {self.temperature:g}, top_p {self.top_p:g}, "
                f"top_k {self.top_k}: the probabilities that other weights sampled with are known only for 1, 1 and 0"
            )
        if self.sees and self.prompt_format == "webrl":
            raise ValueError("prompt_format=webrl has no place for a screenshot; use chat or browsergym")
        if self.system_prompt and self.prompt_format != "browsergym":
            raise ValueError("system_prompt needs prompt_format=browsergym")
        batch, group, micro = self.episodes_per_generation, self.num_generations, self.per_device_train_batch_size
        if batch % group or batch % micro:
            raise ValueError(
                f"generation_batch_size {batch} is not a whole number of groups (num_generations {group}) and "
                f"micro-batches (per_device_train_batch_size {micro}); such a number is {math.lcm(group, micro)}"
            )
        if self.dataset_size * group < batch:
            raise ValueError(f"dataset_size {self.dataset_size} x num_generations {group} are fewer than {batch}")
        return self

    @property
    def has_collector(self) -> bool:
        """True if another process plays: ahead of the training, or on servers."""
        return self.max_staleness > 0 or self.use_vllm

    @property
    def sees(self) -> bool:
        """True if every prompt holds a screenshot (once `check` has looked at the model)."""
        return self.image_size is not None

    def with_image_size(self, size: int) -> GrpoSettings:
        """Return the settings with screenshots. Raises UsageError if other settings conflict with them."""
        try:
            return GrpoSettings.model_validate({**dict(self), "image_size": size})
        except ValidationError as error:
            raise UsageError(_explain(error.errors()[0], f"model {self.model_name!r} has vision", {})) from None

    @property
    def episodes_per_generation(self) -> int:
        """Number of episodes that are played with the same weights."""
        step = self.per_device_train_batch_size * self.gradient_accumulation_steps
        return self.generation_batch_size or math.lcm(step, self.num_generations)

    @property
    def max_prompt_tokens(self) -> int:
        """The longest prompt that `max_seq_length` leaves room for."""
        return self.max_seq_length - self.max_completion_length

    def sampling(self, seed: int | None) -> Sampling:
        """Sampling settings of an answer."""
        return Sampling(self.temperature, self.top_p, self.top_k, self.max_completion_length, seed)

    @property
    def trackers(self) -> list[str]:
        """The trackers, from both options."""
        wanted = [*self.report_to, *(["wandb"] if self.wandb_enabled else [])]
        return [name for name in dict.fromkeys(wanted) if name != "none"]

    @property
    def run_config(self) -> RunConfig:
        """These settings as a config of `webrl run`, whose browsers, prompts and policies play the episodes."""
        format_ = "chat" if self.prompt_format == "browsergym" else self.prompt_format
        plays_arena = any(site_name(name, self.benchmark).startswith("arena.") for name in self.task_name)
        data = {
            "seed": self.seed,
            "models": {"actor": self.model_name, "prompt_format": format_, "max_prompt_tokens": self.max_prompt_tokens},
            "rollout": {
                "env": "openenv" if self.browsergym_url else "browser",
                "urls": self.browsergym_url,
                **({"arena": {"folder": self.arena_folder, "score_steps": True}} if plays_arena else {}),
                **self.model_dump(include=_AS_IN_RUN),
                "observation": "axtree" if self.observation == "none" else self.observation,
                "screenshots": self.sees,
                # Without text the model is shown the screenshot as it is (`check_room`).
                "image_size": 0 if self.sees and self.observation == "none" else self.image_size,
                "show_text": not (self.sees and self.observation == "none"),
                "max_new_tokens": self.max_completion_length,
                "engine": {
                    "kind": "vllm" if self.use_vllm else "transformers",
                    "max_batch": 32,
                    "gpu_memory_utilization": self.vllm_gpu_memory_utilization,
                    "vllm_python": self.vllm_python,
                    "extra_args": self.vllm_extra_args,
                },
            },
        }
        return RunConfig.model_validate(data)


def load_settings(path: Path | None, options: Mapping[str, Any], overrides: Sequence[str] = ()) -> GrpoSettings:
    """Load the settings of a file (none: the defaults), `key=value` overrides and options.

    Raises:
        UsageError: a file that cannot be read, an unknown key (a similar one is named), a bad value.
    """
    read = read_config(path) if path else {}
    if both := [f"{key!r} and {name!r}" for key, name in ALIASES.items() if {key, name} <= read.keys()]:
        raise UsageError(f"{path}: {both[0]} are one option: keep one")
    data = {ALIASES.get(str(key), str(key)): value for key, value in read.items()}
    if data.get("system_prompt"):
        data.setdefault("prompt_format", "browsergym")  # the cookbook knows no other
    source = str(path) if path else "webrl grpo"
    places = dict.fromkeys(data, source)
    typed: dict[str, Any] = {}
    for override in overrides:
        apply_override(typed, override)
    named = {ALIASES.get(key, key): value for key, value in [*typed.items(), *options.items()]}
    data |= named
    places |= dict.fromkeys(named, TYPED)
    try:
        return GrpoSettings.model_validate(data)
    except ValidationError as error:
        raise UsageError(_explain(error.errors()[0], source, places)) from None


def _explain(error: Any, source: str, places: Mapping[str, str]) -> str:
    """Describe what is wrong and where: each place of the settings that do not go together, else `source`."""
    names = error["loc"][:1] or re.findall(r"\w+", error["msg"])
    where = " and ".join(dict.fromkeys(place for name, place in places.items() if name in names)) or source
    if error["type"] == "extra_forbidden":
        key = ".".join(map(str, error["loc"]))
        near = difflib.get_close_matches(key, [*GrpoSettings.model_fields, *ALIASES], n=1, cutoff=0.7)
        hint = f"did you mean {near[0]!r}?" if near else "`webrl grpo --help` lists the known ones"
        return f"{where}: unknown key {key!r:.200}; {hint}"
    return f"{where}: {problem_text(error)}"
