"""Turn rollouts into training records and add history: `scripts/process_data.py` as a function.

Stage 1 turns a trace folder (VAB's format or ours) into `<output>.jsonl`; stage 2 adds history filtered by perplexity
and writes `<output>_filter.jsonl` next to it. Same functions as the stages "label" and "replay" of a run.
Without a config, rollouts are turned into the prompt of their run or their actor, never of the demo.
"""

from __future__ import annotations

import random
from collections.abc import Sequence
from contextlib import ExitStack
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from webrl.config import RunConfig, load_config
from webrl.errors import DataError, UsageError
from webrl.llm.check import check_model
from webrl.llm.loading import config_of, model_folder
from webrl.replay.demonstrations import check_demonstrations
from webrl.replay.sources import (
    Source,
    Tools,
    find_source,
    open_tools,
    read_steps,
    read_trajectories,
)
from webrl.replay.stage import SCORE_CACHE, add_history
from webrl.reward.orm import configured_text
from webrl.runs.folder import RunFolder, newest_run
from webrl.runs.lock import hold_output
from webrl.runs.problems import ProblemLog
from webrl.runs.store import count_lines, write_records
from webrl_webarena.vab import trace_paths

SAMPLES = Path("data/samples")
"""Small traces and experience that ship with the repository."""


@dataclass(frozen=True)
class ProcessPlan:
    """What is read, by which models, and where it goes; nothing is left to guess."""

    stages: tuple[int, ...]
    """(1,), (2,) or (1, 2)."""
    rollout: Path
    """Trace folder, phase folder or trajectory file."""
    experience: tuple[Path, ...]
    """Earlier experience, oldest first."""
    demos: tuple[Path, ...]
    """What the buffer begins with."""
    output: Path
    """`train.jsonl` of stage 1."""
    orm: str | None
    """Judge; None without --add_reward."""
    actor: str | None
    """Current actor (tokenizer and perplexity); None works on stored ids and log-probs only."""
    labels: Path
    """Where judgements are kept (resumed)."""
    cache: Path
    """Where scores are kept."""

    @property
    def output_filter(self) -> Path:
        """Output of stage 2."""
        return self.output.with_name(f"{self.output.stem}_filter{self.output.suffix}")

    @property
    def problem_list(self) -> Path:
        """Text file with every problem of the input."""
        return self.output.with_name(f"{self.output.stem}_problems.txt")

    def describe(self, config: RunConfig) -> list[str]:
        """Return one line per decision, and those on the prompts of actor and judge."""
        models, label = config.models, config.label
        lines = [
            f"stages            {' '.join(map(str, self.stages))}",
            f"rollouts          {self.rollout}",
            f"rewards           {f'{self.orm} -> {self.labels}' if self.orm else 'as recorded with the rollouts'}",
            f"actor             {self.actor or 'none: stored token ids and log-probabilities'}",
        ]
        if 2 in self.stages:
            lines.append(f"demonstrations    {', '.join(map(str, self.demos)) or 'none'}")
            lines.append(f"experience        {', '.join(map(str, self.experience)) or 'none'}")
        lines.append(f"current steps     {self.output}")
        if 2 in self.stages:
            lines.append(f"with history      {self.output_filter}")
        lines.append(f"prompt            {models.prompt_format}, at most {models.max_prompt_tokens} tokens")
        if self.orm:
            text, limit = label.system_prompt or "ours", f"at most {label.max_prompt_tokens} tokens"
            lines.append(f"judge's prompt    {label.prompt_format}, {limit}, system text {text}")
        return lines


def make_plan(
    config: RunConfig,
    *,
    stages: Sequence[int] = (1, 2),
    add_reward: bool = False,
    rollout: Path | None = None,
    experience: Sequence[Path] | None = None,
    orm: str | None = None,
    actor: str | None = None,
    output: Path | None = None,
) -> ProcessPlan:
    """Fill in missing settings: the newest phase of the newest run, or the sample traces; `actor` "none" is no model.

    Raises:
        UsageError: an output that is to be a pickle, or is a folder.
    """
    run = RunFolder(config.run_dir) if (config.run_dir / "config.yaml").is_file() else newest_run(config.runs_dir)
    phases = [run.phase(k) for k in range(run.last_phase() + 1)] if run else []
    while phases and not phases[-1].trajectories.is_file():
        phases.pop()
    if phases:  # the newest with rollouts
        *past, newest = phases
        played, written, earlier = newest.path, newest.train, tuple(p.train for p in past if p.train.is_file())
        playing = str(past[-1].actor) if past else config.models.actor
    else:
        out = config.runs_dir / "samples"
        played, written, earlier = SAMPLES / "vab", out / "train.jsonl", (SAMPLES / "experience/trajectories.jsonl",)
        playing = config.models.actor
    rollout = rollout or played
    if rollout.name in ("", ".."):  # `.`: the output is named after the folder
        rollout = rollout.resolve()
    known = rollout == played
    if output is None:
        output = written if known else rollout.with_name(f"{rollout.stem}_train.jsonl")
    if output.suffix in (".pt", ".pth", ".pkl", ".bin"):
        raise UsageError(
            f"--output_path {str(output)!r}: training records are written as JSONL, never as a pickle; name it "
            f"{output.with_suffix('.jsonl')}"
        )
    if output.is_dir():
        raise UsageError(f"--output_path {str(output)!r} is a folder; name a file in it")
    labels, cache = (output.with_name(f"{output.stem}_{name}") for name in ("labels.jsonl", "scores.sqlite"))
    if phases and known and output == written:
        labels, cache = newest.labels, newest.path.parent / SCORE_CACHE
    experience = tuple(earlier if experience is None and known else experience or ())
    demos = () if config.replay.strategy == "none" else config.replay.demos
    if known:  # what the stage of a run takes, and nothing in phase 0
        demos = config.replayed_demos if experience else ()
    actor = actor or playing
    return ProcessPlan(
        stages=tuple(stages),
        rollout=rollout,
        experience=experience,
        demos=demos,
        output=output,
        orm=(orm or config.models.orm) if add_reward else None,
        actor=None if actor == "none" else actor,
        labels=labels,
        cache=cache,
    )


def run_of(path: Path | str | None) -> Path | None:
    """Return the run folder that holds a phase, a trajectory file or a model; None for anything else."""
    if not path:
        return None
    parents = Path(path).absolute().parents
    return next((p for p in parents if (p / "config.yaml").is_file() and next(p.glob("phase_*"), None)), None)


def settings_for(rollout: Path, actor: str | None, orm: str | None, overrides: Sequence[str]) -> RunConfig:
    """Return the published settings within the models' limits; traces of VAB are trained in the released format.

    Args:
        actor, orm: folders or hub names; of a hub name the limit is not known before it is loaded.
        overrides: `key=value`, which win.

    Raises:
        DataError: no rollouts there.
        ModelError: a model folder whose config cannot be read.
        UsageError: a bad override.
    """
    settings = []
    if find_source(rollout).kind in ("vab", "released"):
        settings += ["models.prompt_format=webrl", "rollout.dialect=webrl", "label.prompt_format=webrl"]
    for section, model in (("models", actor), ("label", orm)):
        if not model or model_folder(model) is None:
            continue
        if positions := getattr(config_of(model).get_text_config(), "max_position_embeddings", None):
            limit = max(16, min(16_384, int(positions)) - 512)  # the published length, and room for the reply
            settings.append(f"{section}.max_prompt_tokens={limit}")
    return load_config(None, [*settings, *overrides])


def process(plan: ProcessPlan, config: RunConfig) -> dict[str, Any]:
    """Carry out a plan.

    Returns:
        `labels`: what the judge did in this call; `trajectories`: how the rollouts were used (`Tools.counts`);
        `num_current` steps written; `history`: its steps by reason, `kept` are in the output; `scored`: steps computed
        and cached; `problems` by kind, all listed in `ProcessPlan.problem_list`. What did not happen is absent.

    Raises:
        DataError: an input that is not there, or nothing usable in it.
        ModelError: an unusable model folder.
        UsageError: the judge's system text or a demonstration is not there, demonstrations without an actor, or an
            output that would replace what is read.
        StageError: another process writes this output, or works in its run folder.
    """
    if config.rollout.sees:
        raise UsageError(
            f"rollout.image_size={config.rollout.image_size}: process_data reads only text; for screenshots, use the "
            "stages of `webrl run`"
        )
    if plan.orm:
        configured_text(config.label.system_prompt)
    rollouts = find_source(plan.rollout) if 1 in plan.stages else None
    if plan.orm and rollouts and rollouts.kind == "records":
        raise UsageError(f"--add_reward needs trajectories; {rollouts.path} holds training records without pages")
    history: list[Source] = []
    if 2 in plan.stages:
        if plan.demos:
            check_demonstrations(config)
            if not plan.actor:
                raise UsageError(
                    "replay.demos: demonstrations are text, which takes an actor to read; name --actor_path, or "
                    "--setting replay.demos=[]"
                )
        history += [Source(path, "demonstrations") for path in plan.demos]
        history += [find_source(path, prefer_records=True) for path in plan.experience]
        if rollouts is None and not plan.output.is_file():
            raise DataError(f"{plan.output}: no such file; stage 2 adds history to the output of stage 1")
    outputs = {1: plan.output, 2: plan.output_filter}
    written = [outputs[stage].resolve() for stage in plan.stages]
    for source in [*([rollouts] if rollouts else []), *history]:
        beside = [source.path, source.path.with_name("labels.jsonl")]
        for path in trace_paths(source.path) if source.kind == "vab" else beside:
            if path.resolve() in written:
                raise UsageError(f"--output_path {plan.output}: it would replace {path}, an input; name another file")
    for model in filter(None, (plan.actor, plan.orm)):  # last: it imports torch
        check_model(model, sees=False, use=config.label.engine.kind if model == plan.orm else "transformers")
    from webrl.reward.orm import judge

    summary: dict[str, Any] = {}
    with ExitStack() as stack:
        stack.enter_context(hold_output(plan.output))
        problems = stack.enter_context(ProblemLog(plan.problem_list))
        tools = Tools(problems)
        if plan.actor:
            tools = stack.enter_context(open_tools(plan.actor, config, plan.cache, problems))
        if rollouts is not None:
            if plan.orm:
                # defects are listed once, by the pass that writes the records
                read = read_trajectories(rollouts, Tools(ProblemLog(num_shown=0)))
                total = count_lines(rollouts.path) if rollouts.kind == "trajectories" else 0  # about, for progress
                judging = config.model_copy(update={"models": config.models.model_copy(update={"orm": plan.orm})})
                summary["labels"] = judge(judging, (trajectory for _, trajectory, _ in read), plan.labels, total)
            own = tools.judged(rollouts, plan.labels if plan.orm else None)
            steps = read_steps(rollouts, own)
            num_current = write_records(plan.output, tools.scorer.stream(steps) if tools.scorer else steps)
            summary |= {"trajectories": dict(own.counts), "num_current": num_current}
            if not num_current:
                hint = "; steps without token ids need --actor_path" if own.counts["no_token_ids"] else ""
                counts = f"{dict(own.counts)}, {dict(problems.counts)}"
                raise DataError(f"{plan.rollout}: no usable step: {counts}{hint}")
        if 2 in plan.stages:
            rng = random.Random(f"{config.seed}:process_data")
            num_current = summary.get("num_current") or count_lines(plan.output)
            summary["history"], _ = add_history(
                plan.output, num_current, history, tools, config.replay, rng, plan.output_filter
            )
        if tools.scorer:
            summary["scored"] = tools.scorer.counts
        return summary | {"problems": dict(problems.counts)}
