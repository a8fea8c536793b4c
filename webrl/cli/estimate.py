"""What a WebArena run will take: every command, GPU hours from measured figures, and what this machine lacks.

API: `describe(config) -> list[str]`, the lines that `webrl run CONFIG --dry-run` adds for WebArena suites;
`estimate_phase(config, gpus, model) -> dict[str, float]` is its arithmetic, in hours by stage.

The figures are those of one H200 with the Llama-3.1-8B shape (docs/figures.md); what is assumed and not measured
here is marked so: steps an episode, tokens a prompt, seconds a page of the real sites.
"""

from __future__ import annotations

import os
from bisect import bisect_left
from dataclasses import dataclass
from pathlib import Path

from webrl.config import EngineConfig, RunConfig
from webrl.config.extras import EXTRAS, is_installed, wanted_extras
from webrl.errors import WebRLError
from webrl.phase import STAGES
from webrl.reward.system_text import describe as describe_text
from webrl.suites.webarena.sites import SITES, find_sites
from webrl.suites.webarena.tasks import load_suite, training_tasks, writes

BILLION = 1e9
_TOKENS = (4096, 8192, 16384)
_UPDATE_S = (0.462, 0.979, 2.223)
_FORWARD_S = (0.120, 0.256, 0.562)
_MEASURED_PARAMETERS = 8.03 * BILLION
"""Measured: seconds a sample on one H200, bf16, checkpointing, action logits only."""
_AGENT_STEPS_PER_S = 8.9
"""Measured: vLLM on one H200, 4,096-token prompts, 64 new tokens, no shared prefix."""
_STEP_OVERHEAD_S = 0.11
"""Measured on loopback stand-ins: our environment's own share of a step."""
_RESET_S = 350.0
"""BrowserGym's note: 200-500 s for a full reset."""
_BYTES_A_PARAMETER = 18
"""fp32 weights, two Adam moments and gradients, and a bf16 copy, sharded over the GPUs."""
_ACTIVATIONS_GIB = 40.0
_SCALING = 0.85


@dataclass(frozen=True)
class Assumptions:
    """What depends on agent and sites."""

    steps: float = 12.0
    """Mean steps an episode (of at most 30)."""
    tokens: float = 6000.0
    """Mean prompt length of a step."""
    page_s: float = 3.0
    """Seconds a real site takes to answer an action."""
    parameters: float = _MEASURED_PARAMETERS
    """Of the actor; critic and outcome model are as large."""
    gpu_gib: float = 139.0
    """Memory of one GPU."""


def describe(config: RunConfig, assumed: Assumptions | None = None) -> list[str]:
    """Commands, hours on 1, 4 and 8 GPUs, and what is missing."""
    assumed = assumed or Assumptions(parameters=9.4 * BILLION if "glm" in config.name.lower() else _MEASURED_PARAMETERS)
    lines = ["# commands", *(f"  {command}" for command in commands(config)), "# estimate", *_table(config, assumed)]
    missing = find_missing(config, assumed)
    return [*lines, "# missing on this machine", *(f"  - {item}" for item in missing or ["nothing"])]


def commands(config: RunConfig) -> list[str]:
    """What a user types, in order."""
    name = f"configs/{config.name}.yaml"
    lines = ["make webarena", f"webrl doctor --sites --config {name}"]
    judge = config.rollout.webarena.judge
    if judge.urls and "localhost" in str(judge.urls[0]):
        port = str(judge.urls[0]).rpartition(":")[2].partition("/")[0]
        lines.append(f"vllm serve JUDGE_MODEL --port {port}    # answers the fuzzy_match questions")
    if not config.num_phases:
        return [*lines, f"webrl eval {name}"]
    lines.append(f"webrl run {name}    # everything below; resumes where it stopped")
    for phase in range(config.num_phases + 1):
        for stage in STAGES:
            lines.append(f"webrl {stage.name} {name} --phase {phase}")
            if stage.name == "train":
                lines[-1] += f"    # on several GPUs or nodes: bash run_multinode.sh {name}"
    return lines


def estimate_phase(config: RunConfig, gpus: int, assumed: Assumptions) -> dict[str, float]:
    """Hours of one later phase by stage, on `gpus` GPUs, with one replica of every site."""
    size = assumed.parameters / _MEASURED_PARAMETERS
    update = _interpolate(_UPDATE_S, assumed.tokens) * size
    forward = _interpolate(_FORWARD_S, assumed.tokens) * size
    tasks = config.max_phase_tasks
    episodes = tasks * config.rollout.num_generations
    samples = episodes * assumed.steps * (1 + (0 if config.replay.strategy == "none" else config.replay.max_ratio))
    passes = (1 + config.trains_critic) * update + config.actor.needs_values * forward
    spread = max(gpus * (_SCALING if gpus > 1 else 1.0), 1e-9)
    evaluated = min(config.tasks.num_eval_tasks, 165 if config.tasks.suite == "webarena_lite" else 812)
    seconds = {
        "filter-tasks": 2 * tasks * forward / gpus,
        "reset": 2 * _RESET_S if config.rollout.webarena.reset else 0.0,
        "rollout": _rollout_s(config, episodes, gpus, assumed),
        "label": episodes * forward / gpus,
        "replay": samples * forward / gpus,
        "train": samples * passes / spread,
        "accept": _rollout_s(config, config.accept.tasks, gpus, assumed),
        "eval": _rollout_s(config, evaluated, gpus, assumed),
    }
    return {stage: value / 3600 for stage, value in seconds.items()}


def _rollout_s(config: RunConfig, episodes: int, gpus: int, assumed: Assumptions) -> float:
    """The slowest of three: the model, the browsers, and writing episodes queueing at their site."""
    rollout = config.rollout
    steps = episodes * assumed.steps
    step_s = assumed.page_s + _STEP_OVERHEAD_S + 1 / _AGENT_STEPS_PER_S
    model = steps / (_AGENT_STEPS_PER_S * 4096 / assumed.tokens * gpus)
    browsers = steps * step_s / (rollout.num_workers * rollout.envs_per_worker)
    writing = _share_that_writes(config) * steps * step_s / 4  # over the four sites that can be changed
    return max(model, browsers, writing)


def _share_that_writes(config: RunConfig) -> float:
    try:
        tasks = training_tasks(config) if config.rollout.webarena.train_files else load_suite("webarena_lite")
    except WebRLError:
        return 0.45  # of WebArena-Lite's training instructions
    return sum(map(writes, tasks)) / len(tasks)


def _interpolate(seconds: tuple[float, ...], tokens: float) -> float:
    """Linear between the measured lengths, and beyond them."""
    right = min(max(bisect_left(_TOKENS, tokens), 1), len(_TOKENS) - 1)
    share = (tokens - _TOKENS[right - 1]) / (_TOKENS[right] - _TOKENS[right - 1])
    return seconds[right - 1] + share * (seconds[right] - seconds[right - 1])


def _table(config: RunConfig, assumed: Assumptions) -> list[str]:
    columns = {gpus: estimate_phase(config, gpus, assumed) for gpus in (1, 4, 8)}
    lines = [
        f"  assumed, not measured: {assumed.steps:g} steps an episode, {assumed.tokens:g} tokens a prompt, "
        f"{assumed.page_s:g} s a page; {assumed.parameters / BILLION:.1f} B parameters",
        f"  hours a phase  {'':8} {'1 H200':>9} {'4 H200':>9} {'8 H200':>9}",
    ]
    lines += [
        f"    {stage:19} " + " ".join(f"{column[stage]:9.2f}" for column in columns.values()) for stage in columns[1]
    ]
    totals = [sum(column.values()) for column in columns.values()]
    lines.append(f"    {'one phase':19} " + " ".join(f"{total:9.2f}" for total in totals))
    lines.append(f"    {f'{config.num_phases} phases':19} " + " ".join(f"{t * config.num_phases:9.1f}" for t in totals))
    needed = _min_gpus(assumed)
    return [*lines, f"  training all parameters needs {needed} GPUs of {assumed.gpu_gib:g} GiB (or lora_rank > 0)"]


def _min_gpus(assumed: Assumptions) -> int:
    state_gib = assumed.parameters * _BYTES_A_PARAMETER / 2**30
    gpus = 1
    while state_gib / gpus + _ACTIVATIONS_GIB > assumed.gpu_gib:
        gpus += 1
    return gpus


def find_missing(config: RunConfig, assumed: Assumptions) -> list[str]:
    """What this machine lacks for the run, each with the fix."""
    from webrl.runs.machine import visible_gpus

    settings = config.rollout.webarena
    missing = []
    gpus, needed = len(visible_gpus()), _min_gpus(assumed)
    if gpus < needed:
        missing.append(f"GPUs: {gpus} here, {needed} of {assumed.gpu_gib:g} GiB needed")
    extras = [*wanted_extras(config, [stage.name for stage in STAGES])]
    if config.tasks.suite != "webarena_verified":
        extras.append(("webarena", f"tasks.suite={config.tasks.suite}"))
    for name, wanted_by in extras:
        if not is_installed(name):
            missing.append(f"{name} ({wanted_by}): {EXTRAS[name][0]}")
    try:
        sites = find_sites(settings)
        absent = [name for name in SITES if name not in sites.urls]
        if absent:
            missing.append(f"addresses of {', '.join(absent)}: set WA_<SITE> or rollout.webarena.sites")
        if not sites.reset_urls:
            missing.append("a reset service: set WA_FULL_RESET (without it the sites keep what each phase leaves)")
    except WebRLError as error:
        missing.append(str(error))
    missing += [f"{path}: from github.com/THUDM/WebRL" for path in settings.train_files if not path.is_file()]
    text = config.label.system_prompt
    missing += [describe_text(text)] if text and not text.is_file() else []
    models = (("actor", config.models.actor), ("orm", config.models.orm), ("critic", config.models.critic))
    missing += [f"models.{key} {path!r}: no such folder" for key, path in models if path and _is_absent_folder(path)]
    keys = {engine.api_key_env for engine in (config.generate.engine, settings.judge) if _needs_key(engine)}
    return missing + [f"environment variable {key}" for key in sorted(keys) if not os.environ.get(key)]


def _is_absent_folder(path: str) -> bool:
    """A relative path that is not there; `owner/name` is taken for a name on the hub unless its folder exists."""
    folder = Path(path)
    return not folder.is_dir() and (len(folder.parts) != 2 or folder.parts[0] in ("checkpoints", "data", "runs"))


def _needs_key(engine: EngineConfig) -> bool:
    return engine.kind == "openai" and (not engine.urls or "api.openai.com" in str(engine.urls[0]))
