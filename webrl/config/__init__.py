"""One validated model per stage; YAML files in `configs/` hold only what differs from these defaults.

A file is laid over its `base:`, a file relative to it or a shipped config. Unknown keys are errors: the nearest known
key is named; `key.subkey=value` overrides come from the command line. Defaults are the paper's where the paper has one.
"""

from __future__ import annotations

import difflib
import os
import re
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any, Literal, Self, get_args, get_origin
from urllib.parse import urlsplit

from pydantic import (
    AfterValidator,
    BaseModel,
    BeforeValidator,
    Field,
    PositiveInt,
    SerializerFunctionWrapHandler,
    ValidationError,
    ValidatorFunctionWrapHandler,
    field_validator,
    model_serializer,
    model_validator,
)
from pydantic.fields import FieldInfo

from webrl.config import plugins
from webrl.config.redaction import MASK, SecretUrl, redact, without_references
from webrl.config.resources import configs_dir, find_config, is_file, shipped_model
from webrl.config.section import Section
from webrl.config.yaml_file import parse_yaml, read_yaml
from webrl.errors import UsageError, problem_message

Fraction = Annotated[float, Field(ge=0, le=1)]


def _find_model(name: str) -> str:
    if name.strip().lower() in ("", "none", "null"):
        raise ValueError("expected a folder or a hub name; leave it out for the default")
    return shipped_model(name)


ModelName = Annotated[str, AfterValidator(_find_model), Field(validate_default=True)]
"""A folder or a hub name; `data/tiny/…` is found wherever webrl is installed."""
DataPath = Annotated[Path, AfterValidator(lambda path: Path(shipped_model(str(path))))]
"""A file or folder; the same holds for `data/tiny/…`."""


def _expand(path: Path) -> Path:
    found = os.path.expandvars(os.path.expanduser(path))  # noqa: PTH111
    if "$" in found:
        raise ValueError(f"no such environment variable: {found}")
    return Path(found)


_Folder = Annotated[Path, AfterValidator(_expand)]
_Decay = Annotated[float, Field(ge=0, lt=1)]
_Num = Annotated[int, Field(le=50_000)]  # all of them are drawn before a run starts
_HIDDEN = {"accounts", "basic", "extra_args", "secrets", "headers"}
"""Options whose values are not quoted in errors: a malformed value may have a secret anywhere in it."""
_MAX_SHOWN = 2
"""Problems of a config that are named at once."""
TYPED = "the command line"
"""Where an override stands."""
PromptFormat = Literal["chat", "chat_history_last", "webrl"]
"""The model's chat template, the same with the history after the page, and the released checkpoints' rounds."""
Dialect = Literal["browsergym", "webrl"]
"""Action languages: BrowserGym's calls, and the `do(...)` and `exit(...)` of the released checkpoints."""


def _is_address(url: SecretUrl) -> SecretUrl:
    try:
        parts = urlsplit(url.template)
        good = parts.scheme in ("http", "https", "ws", "wss") and bool(parts.hostname) and parts.port != 0
    except ValueError:  # a port that is not a number up to 65535, or half an IPv6 address
        good = False
    if not good and without_references(url.template) == url.template:
        raise ValueError("a server's address has the form http://host:port")
    return url


def _is_host(host: str) -> str:
    if not re.fullmatch(r"\*|([a-zA-Z0-9._-]+|\[[0-9a-fA-F:.]+\])(:[0-9]+)?", host):
        raise ValueError("expected a host: example.org, example.org:8080, 10.0.0.7, [::1]:8080, or * for all")
    return host


Address = Annotated[SecretUrl, AfterValidator(_is_address)]
Host = Annotated[str, AfterValidator(_is_host)]


def _known_suite(name: Any) -> Any:
    if not isinstance(name, str):
        raise ValueError("expected the name of one suite, such as miniwob")
    try:
        plugins.find(plugins.SUITES, name)
    except UsageError as error:
        raise ValueError(str(error)) from None
    return name


class TasksConfig(Section):
    """Which tasks a phase starts from and is evaluated on."""

    suite: Annotated[str, BeforeValidator(_known_suite)] = Field(
        "miniwob",
        validate_default=False,  # a second package with a `miniwob` is refused where it is used
        description="source of the tasks: miniwob, arena (docs/arena.md), web (your own site: rollout.web, "
        "docs/own_site.md), webarena, webarena_lite, or a suite of another package",
    )
    train_sites: tuple[str, ...] = Field((), description="task types to train on; empty: the suite's training set")
    heldout_sites: tuple[str, ...] = Field((), description="task types never trained on; empty: the suite's set")
    num_seed_tasks: _Num = Field(240, ge=1, description="the suite's tasks in phase 0, or in each phase (tasks.source)")
    num_eval_tasks: _Num = Field(240, ge=0, description="held-out tasks (miniwob: seeds of the training types)")
    num_heldout_tasks: _Num = Field(60, ge=0, description="episodes on held-out task types (miniwob, arena)")
    source: Literal["curriculum", "fixed", "fresh"] = Field(
        "curriculum",
        description="tasks of the phases after 0; curriculum: written from failures (paper); fixed: phase 0's again; "
        "fresh: new pages of the training types with their own instructions (miniwob), or another draw from the "
        "training templates (arena)",
    )
    shares: Literal["even", "failures", "learnability"] = Field(
        "even",
        description="source=fresh: a task type's share of a phase; failures: its failure rate f in the last phase that "
        "played it; learnability: f (1 - f), so that types which never or always succeed get few",
    )

    @model_validator(mode="after")
    def _shares_are_of_fresh_tasks(self) -> Self:
        if self.shares != "even" and self.source != "fresh":
            raise ValueError(f"shares={self.shares} needs source=fresh, not {self.source}; see generate.shares")
        return self


class PromptLimit(Section):
    """How long a prompt may be."""

    max_prompt_tokens: int = Field(15872, ge=16, description="page text is cut so that the prompt fits (16384 - 512)")


class ModelsConfig(PromptLimit):
    """Starting checkpoints: Hugging Face folders or hub names."""

    actor: ModelName = Field("data/tiny/actor", description="the supervised start, π_0: a folder or hub name")
    orm: ModelName = Field("data/tiny/orm", description="outcome reward model")
    generator: ModelName = Field("data/tiny/generator", description="task generator")
    dtype: Literal["float32", "bfloat16", "float16", "auto"] = Field(
        "auto", description="inference precision; auto: float32 on a CPU, bfloat16 on a GPU"
    )
    device: str = Field("auto", pattern=r"^(auto|cpu|cuda(:\d+)?)$", description="auto, cpu, cuda, cuda:N")
    prompt_format: PromptFormat = Field(
        "chat",
        description="chat: the tokenizer's chat template, page last; chat_history_last: page before history, which a "
        "prefix cache makes faster where a step changes little of its page; webrl: the released checkpoints' format",
    )
    prompt: Literal["auto", "brief", "examples", "rounds"] = Field(
        "auto",
        description="what the chat formats tell the actor: brief: the actions, for a model trained on it; examples: "
        "with an example of each; rounds: with rounds of other tasks too (about 900 tokens, browsergym's actions), for "
        "one trained on no prompt of ours; auto: what its folder says it was trained on, else examples",
    )
    enable_thinking: bool = Field(False, description="let the actor reason in <think>…</think>, if its template can")

    @model_validator(mode="after")
    def _prompts_are_of_the_chat_formats(self) -> Self:
        if self.prompt != "auto" and self.prompt_format == "webrl":
            raise ValueError(f"prompt={self.prompt} needs prompt_format=chat or chat_history_last; leave it out")
        if self.prompt == "rounds" and self.max_prompt_tokens < 2400:
            raise ValueError("prompt=rounds takes about 900 tokens: set max_prompt_tokens to 2400 at least")
        return self


_REFUSED_ARGUMENTS = {
    "--api-key": "webrl gives its vLLM servers a key of their own",
    "--hf-token": "set HF_TOKEN in the environment, which is never saved",
    **dict.fromkeys(("--host", "--port", "--uds"), "webrl starts its vLLM servers where only it can reach them"),
}


class ServerConfig(Section):
    """An OpenAI-compatible server, or several with the same model."""

    urls: tuple[Address, ...] = Field((), description="OpenAI-compatible base URLs (kind: openai)")
    model_name: str | None = Field(None, description="model name to request; null: the one that the server lists")
    api_key_env: str = Field("OPENAI_API_KEY", description="environment variable that holds the key")
    timeout_s: float = Field(120.0, gt=0, description="one request's deadline")
    max_retries: int = Field(4, ge=0, description="retries after timeouts, 429, 5xx and dropped connections")


class EngineConfig(ServerConfig):
    """How language models are served; `rollout.engine`, `generate.engine` and `label.engine` override it there."""

    kind: Literal["transformers", "vllm", "openai"] = Field("transformers", description="inference engine")
    max_batch: int = Field(16, ge=1, description="requests at once: per forward batch, or in flight (generate, label)")
    num_threads: int = Field(0, ge=0, description="CPU threads (transformers); 0: torch's own")
    gpu_memory_utilization: Fraction = Field(0.85, description="vLLM's share of each GPU")
    tensor_parallel: int = Field(1, ge=1, description="GPUs per vLLM replica")
    extra_args: tuple[str, ...] = Field((), description="further vLLM server arguments")
    vllm_python: str | None = Field(None, description="Python that has vLLM; null: this one (vLLM pins its own torch)")
    start_timeout_s: float = Field(1800.0, gt=0, description="longest wait for a vLLM server to become healthy")
    weight_update: Literal["auto", "restart"] = Field(
        "auto", description="how running vLLM servers get new weights; auto: in place if the shapes match"
    )

    @field_validator("extra_args")
    @classmethod
    def _no_secret_and_no_other_address(cls, value: tuple[str, ...]) -> tuple[str, ...]:
        for argument in value:
            option = argument.partition("=")[0].replace("_", "-")
            if option in _REFUSED_ARGUMENTS:
                raise ValueError(f"{option} is not accepted: {_REFUSED_ARGUMENTS[option]}")
        return value


class SamplingConfig(Section):
    """How a model's answers are drawn."""

    temperature: float = Field(1.0, ge=0, description="sampling temperature; 0 is greedy")
    max_new_tokens: int = Field(512, ge=1, description="tokens of an answer (an instruction's, an action's), at most")


class GenerateConfig(SamplingConfig):
    """New instructions from failures (paper §3.1)."""

    num_tasks: int = Field(
        500,
        ge=0,
        description="instructions to generate per phase; each one kept is a task, played rollout.num_generations times",
    )
    shares: Literal["failures", "learnability"] = Field(
        "failures",
        description="a site's share of num_tasks; failures: its failure rate f (paper); learnability: f (1 - f), so "
        "that sites which never succeed get few",
    )
    num_seeds: int = Field(10, ge=1, description="failed instructions in one prompt")
    tasks_per_prompt: int = Field(10, ge=1, description="instructions per prompt if no page conditions them")
    engine: EngineConfig = EngineConfig()

    @field_validator("temperature")
    @classmethod
    def _failures_lead_to_new_tasks(cls, value: float) -> float:
        if not value:
            raise ValueError("must be greater than 0: greedy decoding repeats the instructions for the same failures")
        return value


class FilterConfig(Section):
    """Which generated instructions are kept (paper §3.1)."""

    duplicate_threshold: Fraction = Field(0.6, gt=0, description="cosine of near duplicates with the same goal")
    max_states: int = Field(1, ge=1, description="initial states from which one instruction may be attempted")
    value_low: Fraction = Field(0.05, description="critic value band, lower edge (kept)")
    value_high: Fraction = Field(0.75, description="critic value band, upper edge (kept)")
    critic_band: bool = Field(True, description="apply the critic's band")
    feasibility: bool = Field(True, description="ask the language model whether the instruction is feasible")
    rules: str | None = Field(None, description="YAML whose per-site feasibility rules extend the shipped ones")
    max_tasks: int | None = Field(None, ge=1, description="keep at most this many, evenly over what passes; null: all")

    @model_validator(mode="after")
    def _band_is_ordered(self) -> Self:
        if self.value_low > self.value_high:
            raise ValueError(f"value_low {self.value_low} exceeds value_high {self.value_high}")
        return self


_WebArena, _Web, _Arena = map(plugins.settings_of, ("webarena", "web", "arena"))


class RolloutConfig(SamplingConfig):
    """Episodes in the browser (paper: 30 steps, temperature 1)."""

    env: Literal["browser", "openenv"] = Field("browser", description="own browsers, or OpenEnv servers")
    urls: tuple[Address, ...] = Field((), description="OpenEnv servers that share the sessions (env: openenv)")
    backend: Literal["local", "ray"] = Field("local", description="workers as processes or as Ray actors")
    num_workers: int = Field(1, ge=1, description="browser worker processes")
    envs_per_worker: int = Field(8, ge=1, description="environments (pages) per worker")
    observation: Literal["axtree", "html"] = Field("axtree", description="text form of the page")
    every_element: bool | None = Field(
        None,
        description="give ids to elements that can be acted on but that BrowserGym does not show (custom ones, "
        "`generic, clickable`, `generic, editable`); null: only on a site of your own",
    )
    random_ids: bool = Field(
        False,
        description="number the elements of a training episode's pages from a random start, so that an actor reads "
        "the numbers instead of memorizing them; evaluations keep BrowserGym's, from 0",
    )
    dialect: Dialect = Field("browsergym", description="action language")
    screenshots: bool = Field(False, description="save a PNG of every step")
    image_size: int | None = Field(
        None,
        ge=0,
        description="a vision-language actor sees the saved screenshot, its longer side at most this many pixels "
        "(0: unchanged); null: the actor reads only the page's text (docs/eyes.md)",
    )
    show_text: bool = Field(
        True,
        description="false: a vision-language actor sees only the screenshot, not the page's text, "
        "at its own size (image_size=0), and answers by coordinates",
    )
    viewport: tuple[PositiveInt, PositiveInt] | None = Field(
        None, description="width and height of pages in CSS pixels and of screenshots; null: the task's own"
    )
    page_details: bool = Field(False, description="also record pruned HTML and the elements' boxes")
    max_steps: int = Field(30, ge=1, description="steps per episode, at most")
    policy: Literal["actor", "expert"] = Field(
        "actor",
        description="who plays in the phases after 0; expert: the scripted experts (miniwob, arena), whose "
        "demonstrations objective=sft imitates",
    )
    num_generations: int = Field(
        1, ge=1, description="attempts at each task in the phases after 0, all from the same start (the groups of grpo)"
    )
    refill: int = Field(
        0,
        ge=0,
        description="rounds of further attempts at tasks that some attempts solve, to replace groups whose "
        "attempts all ended alike; for actor.objective=grpo",
    )
    max_repeats: int = Field(5, ge=2, description="stop after this many equal actions in a row that change nothing")
    max_parse_failures: int = Field(5, ge=1, description="stop after this many unreadable actions in a row")
    step_timeout_s: float = Field(30.0, gt=0, description="deadline of one browser step")
    episode_timeout_s: float = Field(600.0, gt=0, description="deadline of one episode")
    max_retries: int = Field(2, ge=0, description="new attempts after a crash of page, browser or worker")
    settle_cap_s: float = Field(3.0, gt=0, description="longest wait for a page to become quiet")
    recycle_after: int = Field(500, ge=1, description="episodes after which a worker is replaced")
    max_failed: Fraction = Field(
        0.5,
        description="a phase, or `webrl record-demos`, stops when more than this share of its training episodes failed "
        "for reasons other than the agent (env_error, policy_error, timeout); the same command then plays them again; "
        "never",
    )
    allowed_hosts: tuple[Host, ...] = Field(
        (), description="hosts that pages may reach besides the task's own; *: all, but no internal addresses"
    )
    public_hosts: tuple[Host, ...] = Field((), description="as allowed_hosts, but never at an internal address")
    max_page_mb: int = Field(2048, ge=64, description="end a page whose process uses more memory")
    upload_dir: _Folder | None = Field(None, description="folder that upload_file reads from; null: no uploads")
    if TYPE_CHECKING:
        webarena: Any = None
        web: Any = None
        arena: Any = None
    else:  # the suites' own models
        webarena: _WebArena = _WebArena()
        web: _Web = _Web()
        arena: _Arena = _Arena()
    engine: EngineConfig = EngineConfig()

    @model_validator(mode="after")
    def _settings_go_together(self) -> Self:
        if self.image_size is not None and not self.screenshots:
            raise ValueError(f"image_size={self.image_size}: what the model sees must be saved: set screenshots=true")
        if not self.show_text and self.image_size != 0:
            raise ValueError(
                f"show_text=false, image_size={self.image_size}: without text, actions use the screenshot's pixels as "
                "coordinates: set image_size=0"
            )
        for other, is_so in (("env=openenv", self.env == "openenv"), ("observation=html", self.observation == "html")):
            if self.random_ids and is_so:
                raise ValueError(f"random_ids=true needs ids that are assigned here, but {other} brings its own")
        if self.random_ids and not self.show_text:
            raise ValueError("random_ids=true, show_text=false: the actor sees no ids; leave one out")
        if self.settle_cap_s >= self.step_timeout_s:
            both = f"settle_cap_s={self.settle_cap_s:g}, step_timeout_s={self.step_timeout_s:g}"
            raise ValueError(f"{both}: a page that is never quiet would pass its deadline: set a longer step_timeout_s")
        if self.env == "openenv" and not self.urls:
            raise ValueError("env=openenv needs servers: set rollout.urls=[http://127.0.0.1:8000, …]")
        return self

    @property
    def sees(self) -> bool:
        """Whether the actor is shown screenshots."""
        return self.image_size is not None


class LabelConfig(PromptLimit):
    """Outcome judgement (paper §3.2)."""

    threshold: Fraction = Field(0.5, description="reward 1 if P(YES) exceeds this")
    judge: Literal["orm", "llm", "environment"] = Field(
        "orm",
        description="orm: first-token P(YES); llm: an API judge's answer; environment: its own reward, for ablations "
        "without the curriculum (tasks.source)",
    )
    prompt_format: Literal["chat", "webrl"] = Field(
        "chat", description="chat: the tokenizer's chat template; webrl: the released ORM's headers"
    )
    system_prompt: Path | None = Field(None, description="file with the ORM's system text; null: ours")
    min_agreement: Fraction = Field(
        0.0, description="stop if a significantly smaller share of labels agrees with the environment's own reward"
    )
    engine: EngineConfig = EngineConfig()

    @model_validator(mode="after")
    def _system_text_is_an_orms(self) -> Self:
        if self.system_prompt and self.judge != "orm":
            raise ValueError(f"system_prompt {str(self.system_prompt)!r} is for an ORM: it needs judge=orm")
        return self


class ReplayConfig(Section):
    """Perplexity-filtered experience replay (paper §3.4)."""

    strategy: Literal["perplexity", "all", "none"] = Field("perplexity", description="what to replay; none: nothing")
    demos: tuple[DataPath, ...] = Field(
        (), description="demonstrations to imitate in every batch; with actor.imitation=0 the buffer starts with them"
    )
    perplexity_low: float = Field(1 / 0.95, description="kept if perplexity is at least this")
    perplexity_high: float = Field(2.0, description="kept if perplexity is below this")
    max_ratio: float = Field(2.0, ge=0, description="replayed steps per current step, at most")
    draw: Literal["need", "uniform"] = Field(
        "need", description="how replayed steps are drawn: by each task type's failure rate in the phase, or uniformly"
    )
    sampler_tolerance: float = Field(
        0.1, gt=0, description="largest mean difference of a token's log-probability, sampled against scored, in nats"
    )

    @model_validator(mode="after")
    def _band_is_ordered(self) -> Self:
        if self.perplexity_low > self.perplexity_high:
            raise ValueError(f"perplexity_low {self.perplexity_low} exceeds perplexity_high {self.perplexity_high}")
        return self


class TrainingConfig(Section):
    """How models are trained; `critic`, `actor`, `sft` and `orm` override it there."""

    weight_decay: float = Field(0.0, ge=0, description="AdamW weight decay")
    betas: tuple[_Decay, _Decay] = Field((0.9, 0.95), description="AdamW betas")
    max_grad_norm: float = Field(1.0, gt=0, description="gradient clipping")
    max_tokens: int = Field(16384, ge=16, description="token budget of one packed micro-batch")
    precision: Literal["fp32", "bf16"] = Field("fp32", description="bf16: compute in bf16, keep fp32 master weights")
    checkpointing: Literal["none", "full", "selective"] = Field("none", description="activation checkpointing")
    lora_rank: int = Field(0, ge=0, description="rank of the LoRA adapters; 0: train all weights")
    lora_alpha: float = Field(16.0, gt=0, description="LoRA scale")
    engine: str = Field("ddp", description="ddp, zero1, zero2, zero3, zero3_offload, fsdp2, or an accelerate YAML")
    compile: bool = Field(False, description="compile the decoder layers (GPU)")
    export_dtype: Literal["fp32", "bf16"] = Field(
        "fp32", description="precision of the saved weights; bf16 rounds away the changes of a phase at lr 1e-6"
    )
    save_every: int = Field(0, ge=0, description="optimizer steps between training states; 0: none before the end")


class OptimConfig(TrainingConfig):
    """What critic, actor and ORM training share (paper: lr 1e-6 constant, batch 128, 1 epoch)."""

    lr: float = Field(1e-6, gt=0, description="learning rate")
    schedule: Literal["constant", "cosine", "linear"] = Field("constant", description="learning-rate schedule")
    warmup_ratio: Fraction = Field(0.0, description="share of the steps that warm up")
    batch_size: int = Field(128, ge=1, description="samples per optimizer step, all ranks together")
    epochs: float = Field(1.0, gt=0, description="passes over the data")
    steps: int = Field(0, ge=0, description="optimizer steps, for equal budgets; 0: as many as the epochs take")

    @property
    def untried_with_screenshots(self) -> list[str]:
        """Options, as `key=value`, that no model that sees has been trained with; the defaults are tried."""
        own = {key: getattr(self, key) for key in ("engine", "precision", "lora_rank", "checkpointing", "compile")}
        return [f"{key}={value}" for key, value in own.items() if value != type(self).model_fields[key].default]


class CriticConfig(OptimConfig):
    """Value model (paper: binary cross-entropy against the outcome)."""

    on_replay: bool = Field(False, description="also train on replayed steps, as the released code does: V rises")


class ActorConfig(OptimConfig):
    """Policy update."""

    objective: Literal[
        "webrl", "webrl_scaled", "webrl_released", "sft", "imitation", "filtered_bc", "awr", "digirl", "grpo"
    ] = Field("webrl_scaled", description="loss, with its equation in webrl/training/objectives.py; webrl: the paper's")
    beta: float | None = Field(None, gt=0, description="weight of the KL constraint; null: 1 (webrl, awr) or 0.3")
    imitation: float = Field(
        1.0,
        ge=0,
        description="weight of the SFT loss on replay.demos, added to the objective; 0: they are replayed instead",
    )
    max_kl: float | None = Field(
        0.5, gt=0, description="the update ends when KL(π_{k-1} || π) passes this, in nats per action; null: no limit"
    )
    max_success_drop: float | None = Field(
        0.1, gt=0, description="the same when successful actions lose more nats than this on average; null: no limit"
    )
    curvature_floor: float = Field(0.3, gt=0, description="webrl_scaled: ε of the loss's scale 1/(F + ε)")
    gae_lambda: Fraction = Field(0.5, description="λ of the advantage mix")
    percentile: float = Field(70.0, ge=0, lt=100, description="filtered_bc: kept above this percentile")
    scale_rewards: Literal["none", "group", "batch"] = Field(
        "none", description="grpo: divide advantages by the rewards' deviation in each group, in the phase, or not"
    )
    clip_low: float = Field(0.2, ge=0, description="grpo: lower clip of the ratio")
    clip_high: float = Field(0.2, ge=0, description="grpo: upper clip of the ratio")
    length_norm: float = Field(512.0, gt=0, description="grpo: constant that token sums are divided by")

    @property
    def needs_values(self) -> bool:
        """Whether the objective's advantages are made of a critic's values."""
        return self.objective not in ("sft", "imitation", "filtered_bc", "grpo")


class AcceptConfig(Section):
    """Whether a phase's update is kept."""

    tasks: int = Field(100, ge=0, description="tasks that the old and the new actor both play; 0: every update is kept")
    alpha: Fraction = Field(0.1, gt=0, description="highest chance of refusing an update that is not worse")


_HELD_OUT = "share of each site's demonstrations or trajectories that is held out for validation"


class HeldOut(OptimConfig):
    """A training that is measured on examples it has not seen."""

    heldout: Annotated[float, Field(ge=0, lt=1)] = Field(0.05, description=_HELD_OUT)


class SftConfig(HeldOut):
    """Supervised start π_0 from demonstrations (paper: lr 1e-5 cosine, warm-up 0.1, batch 128)."""

    lr: float = Field(1e-5, gt=0, description="learning rate")
    schedule: Literal["constant", "cosine", "linear"] = Field("cosine", description="learning-rate schedule")
    warmup_ratio: Fraction = Field(0.1, description="share of the steps that warm up")
    outcome: Literal["success", "all"] = Field("success", description="which demonstrations are imitated")
    watch_every: int = Field(0, ge=0, description="optimizer steps between validations; 0: at the end")


class OrmConfig(HeldOut):
    """Outcome model training (paper: lr 5e-6 cosine, 4 epochs)."""

    lr: float = Field(5e-6, gt=0, description="learning rate")
    schedule: Literal["constant", "cosine", "linear"] = Field("cosine", description="learning-rate schedule")
    epochs: float = Field(4.0, gt=0, description="passes over the data")
    hard_negatives: float = Field(
        0.5, ge=0, description="at most this many per success of each kind: cut short, other instruction, planted claim"
    )
    max_class_ratio: float = Field(1.5, ge=1, description="the larger class is cut to this many times the smaller one")
    heldout: Annotated[float, Field(ge=0, lt=1)] = Field(0.2, description=_HELD_OUT)


class EvaluateConfig(Section):
    """Held-out evaluation with the environment's own reward."""

    temperature: tuple[Annotated[float, Field(ge=0)], ...] = Field(
        (0.0,),
        min_length=1,
        description="0 is greedy (published); with several ([1, 0]), phases are compared at the first, and each of the "
        "others plays every page again",
    )

    @field_validator("temperature", mode="wrap")
    @classmethod
    def _one_or_several(cls, value: Any, read: ValidatorFunctionWrapHandler) -> tuple[float, ...]:
        is_number = isinstance(value, int | float) and not isinstance(value, bool)
        found: tuple[float, ...] = read((value,) if is_number else value)
        if len(set(found)) < len(found):
            raise ValueError(f"{list(found)}: name each once")
        return found


SHARED = {
    "engine": ("generate.engine", "rollout.engine", "label.engine"),
    "training": ("critic", "actor", "sft", "orm"),
}
"""Sections whose settings others take where they have none of their own in the same file, or on the command line."""


def share(data: dict[str, Any]) -> dict[str, Any]:
    """Return a config's plain data with each section of `SHARED` laid over the one that it shares settings with."""
    for shared, sections in SHARED.items():
        below = _given(data.get(shared))
        if not isinstance(below, dict):
            continue
        for section in sections:
            first, _, second = section.partition(".")
            own = _given(data.get(first))
            if own is None or isinstance(own, dict):  # what is no section is refused later, by name
                data = {**data, first: _merge({second: below} if second else below, own or {})}
    return data


def _given(value: Any) -> Any:
    """A section as the plain data that it was made of."""
    if isinstance(value, Section):
        return {name: _given(getattr(value, name)) for name in value.model_fields_set}
    return value


class RunConfig(Section):
    """A whole run: `webrl run CONFIG`."""

    name: str = Field("run", pattern=r"^\.*[\w-][\w.-]*$", description="name of the run folder: letters, digits, . _ -")
    runs_dir: _Folder = Field(Path("runs"), description="folder of the run folders")
    seed: int = Field(0, ge=0, lt=1 << 32, description="seed of all random draws")
    num_phases: _Num = Field(8, ge=0, description="training phases; phase 0, which plays the start, comes first")
    keep_models: int = Field(0, ge=0, description="keep the models of this many latest phases and of the best; 0: all")
    trackers: tuple[Literal["tensorboard", "wandb", "trackio"], ...] = Field(
        (), description="where metrics go in addition to the run folder's metrics.jsonl"
    )
    tasks: TasksConfig = TasksConfig()
    models: ModelsConfig = ModelsConfig()
    engine: EngineConfig = EngineConfig()
    training: TrainingConfig = TrainingConfig()
    generate: GenerateConfig = GenerateConfig()
    filter: FilterConfig = FilterConfig()
    rollout: RolloutConfig = RolloutConfig()
    label: LabelConfig = LabelConfig()
    replay: ReplayConfig = ReplayConfig()
    critic: CriticConfig = CriticConfig()
    actor: ActorConfig = ActorConfig()
    sft: SftConfig = SftConfig()
    orm: OrmConfig = OrmConfig()
    accept: AcceptConfig = AcceptConfig()
    evaluate: EvaluateConfig = EvaluateConfig()

    @model_validator(mode="before")
    @classmethod
    def _share(cls, data: Any) -> Any:
        return share(data) if isinstance(data, dict) else data

    @model_serializer(mode="wrap")
    def _drop_shared(self, handler: SerializerFunctionWrapHandler) -> dict[str, Any]:
        """Leave out of a section what it shares."""
        data: dict[str, Any] = handler(self)
        for shared, sections in SHARED.items():
            for section in sections:
                part = data
                for name in section.split("."):
                    part = part.get(name, {})
                for key, value in data.get(shared, {}).items():
                    if key in part and part[key] == value:
                        del part[key]
        return data

    @property
    def run_dir(self) -> Path:
        """Folder of this run."""
        return self.runs_dir / self.name

    @property
    def trains_critic(self) -> bool:
        """Whether anything reads a critic: the objective, or the curriculum's filter."""
        return self.actor.needs_values or (self.tasks.source == "curriculum" and self.filter.critic_band)

    @property
    def replayed_demos(self) -> tuple[Path, ...]:
        """The demonstrations that the replay buffer begins with: none if every batch imitates them instead."""
        return () if self.actor.imitation or self.replay.strategy == "none" else self.replay.demos

    @property
    def used_demos(self) -> tuple[Path, ...]:
        """The demonstrations that are trained on, one way or the other."""
        return self.replay.demos if self.actor.imitation else self.replayed_demos

    @property
    def max_phase_tasks(self) -> int:
        """Tasks of a phase after 0, at most; each is attempted `rollout.num_generations` times."""
        if self.tasks.source != "curriculum":
            return self.tasks.num_seed_tasks
        return min(self.generate.num_tasks, self.filter.max_tasks or self.generate.num_tasks)


def load_config(path: Path | str | None, overrides: Sequence[str] | None = None) -> RunConfig:
    """Read a YAML file, apply `key.subkey=value` overrides, validate.

    Args:
        path: a file; as a string also the name of a shipped config (`demo`); None: the defaults.

    Raises:
        UsageError: missing or malformed file, unknown key (nearest known key is named), bad value.
    """
    if isinstance(path, str):
        path = find_config(path)
    data = apply_overrides(read_config(path) if path else {}, overrides or ())
    return validate_config(data, str(path) if path else TYPED, overrides or ())


def validate_config(data: dict[str, Any], source: str, overrides: Sequence[str] = ()) -> RunConfig:
    """Validate plain data; errors name `source`, or the command line for the keys of `overrides`."""
    typed = [override.partition("=")[0] for override in overrides]
    try:
        return RunConfig.model_validate(data)
    except ValidationError as error:
        problems = error.errors()
        within = {e["loc"][:n] for e in problems for n in range(1, len(e["loc"]))}
        problems = [e for e in problems if e["loc"] not in within]  # a list is too short only because items are wrong
        shared = {e["loc"][1:] for e in problems if e["loc"][:1] and e["loc"][0] in SHARED}
        places = [tuple(section.split(".")) for sections in SHARED.values() for section in sections]
        # what a section says wrong because the shared one does is said once
        said = {(*place, *rest) for place in places for rest in shared}
        lines = [_explain(e, source, typed) for e in problems if e["loc"] not in said]
        rest = [f"and {len(lines) - _MAX_SHOWN} more like these"] if len(lines) > _MAX_SHOWN else []
        raise UsageError("\n".join(lines[:_MAX_SHOWN] + rest)) from None


@dataclass(frozen=True)
class Option:
    """A setting, under each key that sets it."""

    keys: tuple[str, ...]
    """Where one section shares it with others, the shared one's is the first."""
    description: str
    choices: tuple[str, ...]
    """The values that it takes, if they are a list."""


def describe_options() -> list[Option]:
    """Every option; a field that several sections share is one option."""
    found: dict[tuple[type[BaseModel], str], tuple[list[str], FieldInfo]] = {}
    for key, owner, info in _fields(RunConfig, ""):
        found.setdefault((owner, key.rpartition(".")[2]), ([], info))[0].append(key)
    return [
        Option(
            tuple(keys),
            info.description or "",
            tuple(map(str, get_args(info.annotation) if get_origin(info.annotation) is Literal else ())),
        )
        for keys, info in found.values()
    ]


def _fields(model: type[BaseModel], prefix: str) -> Iterator[tuple[str, type[BaseModel], FieldInfo]]:
    """(dotted key, the model that introduced it, field) of every option."""
    for name, info in model.model_fields.items():
        if isinstance(info.annotation, type) and issubclass(info.annotation, BaseModel):
            yield from _fields(info.annotation, f"{prefix}{name}.")
        else:
            owners = [base for base in model.__mro__ if issubclass(base, BaseModel) and name in base.model_fields]
            yield prefix + name, owners[-1], info


def read_config(path: Path, above: tuple[Path, ...] = ()) -> dict[str, Any]:
    """Read a file's plain data on top of its `base`; not validated. Raises UsageError."""
    if path.resolve() in above:
        raise UsageError(f"{path}: a config cannot be its own base")
    data = read_yaml(path, "config")
    if data is None:
        return {}
    if not isinstance(data, dict):
        raise UsageError(f"{path}: expected a mapping at the top (`section: ...`), found {type(data).__name__}")
    if "base" not in data:
        return data
    base = data.pop("base")
    places = (path.parent / base, configs_dir() / base, configs_dir() / f"{base}.yaml") if isinstance(base, str) else ()
    below = next(filter(is_file, places), None)
    if below is None:
        raise UsageError(f"{path}: base = {base!r:.200}: no such file in {path.parent}, and no shipped config")
    return overlay(read_config(below, (*above, path.resolve())), data)


def overlay(below: dict[str, Any], above: dict[str, Any]) -> dict[str, Any]:
    """Merge the sections of two configs; for any other key that both have, `above` wins.

    A shared setting of `above` also overrides the value that `below` sets in a section.
    """
    return _merge(below, share(above))


def _merge(below: dict[str, Any], above: dict[str, Any]) -> dict[str, Any]:
    merged = dict(below)
    for key, value in above.items():
        old = merged.get(key)
        merged[key] = _merge(old, value) if isinstance(old, dict) and isinstance(value, dict) else value
    return merged


def flatten(data: Mapping[str, Any], prefix: str = "") -> Iterator[tuple[str, Any]]:
    """Yield (dotted key, value) of every value in nested mappings."""
    for key, value in data.items():
        if isinstance(value, Mapping):
            yield from flatten(value, f"{prefix}{key}.")
        else:
            yield f"{prefix}{key}", value


def apply_overrides(data: dict[str, Any], overrides: Sequence[str]) -> dict[str, Any]:
    """Return a config's plain data with `overrides` (`key.subkey=value`) applied. Raises as `apply_override`."""
    typed: dict[str, Any] = {}
    for override in overrides:
        apply_override(data, override)
        apply_override(typed, override)
    return overlay(data, typed)


def apply_override(data: dict[str, Any], override: str) -> None:
    """Apply an override `key.subkey=value` to plain data. Raises UsageError if it is not of that form, or not YAML."""
    key, equals, text = override.partition("=")
    if not equals or not key:
        raise UsageError(f"override {redact(override)!r} is not of the form key.subkey=value")
    *parents, leaf = key.split(".")
    for parent in parents:
        data = data.setdefault(parent, {})
        if not isinstance(data, dict):
            raise UsageError(f"override {key}=…: {parent!r} is not a section")
    hidden = any(word in override for word in _HIDDEN)  # a section given whole, {accounts: …}, has them in its text
    try:
        data[leaf] = parse_yaml(text, f"override {redact(override)!r:.200}")
    except UsageError:
        if not hidden:
            raise
        # YAML's error about a password that begins with *, & or ! quotes it.
        raise UsageError(f"override {f'{key}={MASK}'!r}: not valid YAML; put the value in quotes") from None


def _explain(error: Any, source: str, typed: Sequence[str]) -> str:
    """One problem in one line: where the mistake was made (settings that conflict may come from two places), and what
    was meant: the known key that an unknown one misspells, else the keys that have its last part in other sections.
    """
    key, message = ".".join(str(part) for part in error["loc"]), problem_message(error)
    if any(f"{key}.".startswith(f"{name}.") for name in typed):
        source = TYPED
    elif any(f"{name}.".startswith(f"{key}." if key else "") for name in typed) and source != TYPED:
        source = TYPED if error["type"] == "extra_forbidden" else f"{source} and {TYPED}"
    if error["type"] == "extra_forbidden":
        section, _, leaf = key.rpartition(".")
        elsewhere: list[str] = []
        siblings = {} if section else {name: name for name in RunConfig.model_fields}
        for option in describe_options():
            parts = [name.rpartition(".") for name in option.keys]
            same = zip(option.keys, parts, strict=True)
            siblings |= {last: name for name, (above, _, last) in same if above == section}
            if parts[0][2] == leaf:
                elsewhere += option.keys[:1] if parts[0][0] in SHARED else option.keys
        found = difflib.get_close_matches(leaf, siblings, n=1, cutoff=0.7)
        hint = f"sections: {', '.join(RunConfig.model_fields)}"
        if near := [siblings[found[0]]] if found else elsewhere:
            hint = f"did you mean {' or '.join(map(repr, near))}?"
            hint = f"write it as {key.replace('.', ': {')}: …{'}' * key.count('.')}" if near == [key] else hint
        elif (first := key.partition(".")[0]) in RunConfig.model_fields:
            hint = f"`webrl run --help {first}` lists the options of that section"
        return f"{source}: unknown key {key!r:.200}; {hint}"
    if error["type"] == "string_pattern_mismatch":  # whose description says what it may be
        message = next((f"expected {o.description}" for o in describe_options() if key in o.keys), message)
    if error["type"] == "value_error" and not error["loc"]:  # settings of two sections that do not go together
        return f"{source}: {message}"
    several = len(error["loc"]) == 1 and isinstance(error["input"], dict | Section)
    if error["type"] == "value_error" and several:  # two settings of a section
        return f"{source}: {key}: {message}"
    value = MASK if _HIDDEN & set(error["loc"]) else redact(f"{error['input']!r:.200}")
    return f"{source}: {key} = {value}: {message}"
