"""Records that stages hand to each other.

Stages meet only here and in the files of the run folder (`webrl/runs/store.py`, `data/README.md`).
Every record is a frozen dataclass that goes to JSON with `to_json` and comes back with `from_json`.
"""

from __future__ import annotations

import typing
from dataclasses import dataclass, field
from enum import StrEnum
from functools import cache
from typing import Annotated, Any, Self

from pydantic import BeforeValidator, ConfigDict, Field, GetCoreSchemaHandler, TypeAdapter, ValidationError
from pydantic_core import CoreSchema, to_jsonable_python

from webrl.errors import problem_message

Outcome = Annotated[int, BeforeValidator(lambda found: int(found) if found in (0, 1) else found), Field(ge=0, le=1)]
"""1, 1.0 or true for a success; 0, 0.0 or false for a failure; a file with anything else is refused."""


class Status(StrEnum):
    """How an episode ended. Only `finished` statuses are labelled and trained on."""

    PAGE_ENDED = "page_ended"
    """The page ended its own episode (MiniWoB's done flag, a BrowserGym task's `done`)."""
    AGENT_DONE = "agent_done"
    """The agent said it is done: `send_msg_to_user(...)`, `report_infeasible(...)` or `exit(...)`."""
    STEP_LIMIT = "step_limit"
    """The step limit was reached; the last step counts as the trajectory's last (paper)."""
    REPEATED_ACTION = "repeated_action"
    """The same action several times in a row (5 in the paper)."""
    PARSE_FAILURES = "parse_failures"
    """Several unreadable actions in a row (5 in the paper)."""
    ENV_ERROR = "env_error"
    """Page, browser, worker or remote environment failed, after all retries."""
    POLICY_ERROR = "policy_error"
    """The policy engine failed, after all retries."""
    TIMEOUT = "timeout"
    """The episode's deadline passed."""

    @property
    def finished(self) -> bool:
        """True if the trajectory is a whole attempt that can be judged."""
        return self not in (Status.ENV_ERROR, Status.POLICY_ERROR, Status.TIMEOUT)


class Record:
    """JSON for frozen dataclasses: `to_json` gives plain containers, `from_json` checks names and types."""

    __pydantic_config__ = ConfigDict(extra="forbid", strict=True)

    @classmethod
    def __get_pydantic_core_schema__(cls, source: Any, handler: GetCoreSchemaHandler) -> CoreSchema:
        """Strict but for what JSON has no type for: its objects are records, its lists tuples, its texts enums."""
        schema = handler(source)
        record: Any = handler.resolve_ref_schema(schema)
        record["strict"] = False
        for described in record["schema"]["fields"]:
            part: Any = described["schema"]
            while part["type"] in ("default", "nullable"):
                part = part["schema"]
            part = handler.resolve_ref_schema(part)
            if part["type"] in ("tuple", "enum"):
                part["strict"] = False
            if part["type"] == "tuple":
                part["fail_fast"] = True  # one problem is told, not one a token
        return schema

    def to_json(self) -> dict[str, Any]:
        """Plain dict, fields in declaration order."""
        plain: dict[str, Any] = to_jsonable_python(self)
        return plain

    @classmethod
    def from_json(cls, data: Any) -> Self:
        """Build from a parsed JSON object.

        Raises:
            ValueError: not an object, an unknown or missing field, or a value of the wrong type (both quoted).
        """
        try:
            return typing.cast(Self, _adapter(cls).validate_python(data))  # type: ignore[arg-type]
        except ValidationError as error:
            problems = error.errors(include_url=False)
        # An unknown field first, which tells why another is missing.
        problem = next((each for each in problems if each["type"] == "unexpected_keyword_argument"), problems[0])
        where, found = ".".join(map(str, problem["loc"])), f"found {problem['input']!r:.80}"
        if problem["type"] == "unexpected_keyword_argument":
            raise ValueError(f"unknown field {where!r} in {cls.__name__}")
        if problem["type"] == "missing":
            raise ValueError(f"missing field {where!r} in {cls.__name__}, {found}")
        raise ValueError(f"{f'field {where!r}' if where else cls.__name__}: {problem_message(problem)}, {found}")


_adapter = cache(TypeAdapter)


@dataclass(frozen=True)
class Lineage(Record):
    """Where a generated task comes from.

    Example: `Lineage(strategy="in_breadth", parent_ids=("p00-click-button-3",), model="data/tiny/generator",
    prompt_hash="9f0c…", phase=1)`
    """

    strategy: str
    """`in_breadth` (paper), `exploration` (from a page alone), or `seed` for an instruction that was there before."""
    parent_ids: tuple[str, ...] = ()
    """Task ids of the failures that seeded the prompt."""
    model: str = ""
    """Name or path of the generator."""
    prompt_hash: str = ""
    """SHA-256 (first 16 hex digits) of the prompt."""
    phase: int = 0
    """Phase in which it was generated."""


@dataclass(frozen=True)
class Task(Record):
    """One thing to do: a site, its initial state, and an instruction.

    Example: `Task(task_id="miniwob.click-button.17", site="miniwob.click-button", seed=17)`
    """

    task_id: str
    """Unique within a run."""
    site: str
    """BrowserGym task name without `browsergym/` (`miniwob.click-button`), a WebArena site, `web.<name>`, or
    `arena.<site>.<template>`."""
    seed: int = 0
    """Seed of the site's initial state."""
    instruction: str | None = None
    """Replaces the site's own instruction; None keeps it."""
    start_url: str | None = None
    """Start page, for sites that are addressed by URL."""
    split: str = "train"
    """`train`, `eval` (held-out seeds or instructions) or `eval_heldout` (held-out task types)."""
    lineage: Lineage = Lineage(strategy="seed")
    """How the task came to be."""
    extra: dict[str, Any] = field(default_factory=dict)
    """Suite-specific data (a WebArena config, the checks of one's own site), opaque to the stages."""


@dataclass(frozen=True)
class Step(Record):
    """One turn: what the agent saw, what it answered, what came of it. Token ids are exactly as sampled."""

    index: int
    """0-based position in the trajectory."""
    observation: str
    """Text of the page as the agent saw it (after the token budget)."""
    response: str
    """Raw model output, decoded, without the end token."""
    action: str
    """The parsed action in canonical form, or "" after a parse failure."""
    error: str = ""
    """What the agent is told about this action (parse failure, element not found, blocked host), or ""."""
    prompt_ids: tuple[int, ...] = ()
    """[P] token ids the policy was given."""
    action_ids: tuple[int, ...] = ()
    """[A] token ids the policy produced, end token included if it was sampled."""
    logprobs: tuple[float, ...] = ()
    """[A] log-probability of each action token under the sampling policy (temperature 1 scale)."""
    url: str = ""
    """Page address when the observation was taken."""
    screenshot: str = ""
    """Path of a PNG relative to the run folder, or ""."""
    screenshot_sha256: str = ""
    """Of that file, where it is the picture that a model is shown (`rollout.image_size`); "" if it is text alone."""
    blocked: int = 0
    """Requests that were blocked during this step: hosts outside the allow-list, limits of one's own site."""
    seconds: dict[str, float] = field(default_factory=dict)
    """Wall time by part: `policy` (waiting for the answer) and `browser` (the action, until the next observation)."""
    note: str = ""
    """How the action was taken from an answer that says something else: `the first of 2 actions, …`; else ""."""


@dataclass(frozen=True)
class Trajectory(Record):
    """One episode of one task.

    Example: `Trajectory(trajectory_id="p01-miniwob.click-button.17", task=task, instruction="Click on …",
    phase=1, steps=(…), final_observation="RootWebArea …", status=Status.PAGE_ENDED)`
    """

    trajectory_id: str
    """Unique within a run: `p<phase>-<task_id>[-r<repeat>]`, `e<phase>-…` for evaluation episodes."""
    task: Task
    """What was attempted."""
    instruction: str
    """The instruction the agent was given (the task's, or the site's own)."""
    phase: int
    """Phase in which it was collected."""
    steps: tuple[Step, ...]
    """At least one step if `status.finished`."""
    final_observation: str
    """The page after the last action; what the outcome model judges."""
    status: Status
    """How it ended."""
    message: str = ""
    """The agent's final message, or the error text of an unfinished episode."""
    env_reward: Annotated[float, Field(le=1)] | None = None
    """The environment's own reward, at most 1, and above 0 a success: evaluation, ORM training and reports; of actor
    and critic only with `label.judge=environment`.
    None if the environment has none (a generated instruction), or could not find it out (`env_error`)."""
    env_error: str = ""
    """Why a finished episode with a reference has no reward (judge or site down), or what its evaluator noted."""
    seconds: float = 0.0
    """Wall time of the episode."""
    attempts: int = 1
    """How often it was started (retries after crashes included)."""
    policy: str = ""
    """Fingerprint of the policy weights that produced it."""

    def __post_init__(self) -> None:
        """Raise ValueError for steps in another order than their index says."""
        if [step.index for step in self.steps] != [*range(len(self.steps))]:
            raise ValueError(f"steps with index {[step.index for step in self.steps]!r:.80}, expected 0, 1, 2 …")


@dataclass(frozen=True)
class Label(Record):
    """The outcome model's judgement of one trajectory.

    Example: `Label(trajectory_id="p01-…", p_yes=0.93, reward=1, judge="data/tiny/orm")`
    """

    trajectory_id: str
    """Which trajectory."""
    p_yes: Annotated[float, Field(ge=0, le=1)] | None
    """P(YES) / (P(YES) + P(NO)) at the first answer token; None if there was no answer."""
    reward: Outcome | None
    """1 if judged successful, 0 if not, None if unjudged (never counted as failed)."""
    judge: str = ""
    """Name or path of the judge."""
    error: str = ""
    """Why there is no judgement, or ""."""


@dataclass(frozen=True)
class StepRecord(Record):
    """One training sample: a step with its outcome. `train.jsonl` holds these, one a line.

    Model-derived fields are None until the scoring pass has filled them.
    """

    step_id: str
    """`<trajectory_id>:<index>`."""
    trajectory_id: str
    """The trajectory it belongs to."""
    instruction: str
    """The task's instruction."""
    site: str
    """The task's site."""
    phase: int
    """Phase in which it was collected."""
    index: int
    """0-based position in the trajectory."""
    num_steps: int
    """Length of the trajectory."""
    prompt_ids: tuple[int, ...]
    """[P] token ids, exactly as given to the policy."""
    action_ids: tuple[int, ...]
    """[A] token ids, exactly as sampled, end token included if sampled."""
    outcome: Outcome | None
    """r(s_T): 1 or 0 for the whole trajectory, from the labels; None if no reward was added."""
    logprobs: tuple[float, ...] | None = None
    """[A] log-probabilities under the sampling policy, as sampled; None for imported text."""
    ref_logprobs: tuple[float, ...] | None = None
    """[A] log-probabilities under the reference policy π_{k-1} (score-once pass)."""
    value: float | None = None
    """V(s_t) under the current critic."""
    next_value: float | None = None
    """V(s_{t+1}); 0 after the last step."""
    source: str = "current"
    """`current`, `replay` or `demonstration`."""
    tokenizer: str = ""
    """Fingerprint of the tokenizer that made the ids."""
    next_prompt_ids: tuple[int, ...] = ()
    """[P] the next state's prompt, where the file holds no step of it: of a replayed step whose successor was left out,
    and after the last step (the last page again) for the released objective; else empty."""
    group: str = ""
    """Task id, for objectives that compare attempts at the same task (GRPO)."""
    screenshot: str = ""
    """Path of the picture in the prompt, a PNG, relative to the run folder, or absolute where it lies elsewhere;
    "" if the prompt is text alone."""
    screenshot_sha256: str = ""
    """Of that file."""
    next_screenshot: str = ""
    """As `screenshot`, of `next_prompt_ids`."""
    next_screenshot_sha256: str = ""
    """Of that file."""

    @property
    def is_last(self) -> bool:
        """True for the trajectory's last step (a truncated episode's last step counts)."""
        return self.index == self.num_steps - 1
