"""One trajectory as its page shows it."""

from __future__ import annotations

import hashlib
import logging
import math
from collections.abc import Sequence
from dataclasses import dataclass
from functools import cached_property
from pathlib import Path

from pydantic import ValidationError

from webrl.config import ActorConfig, read_config
from webrl.errors import WebRLError, problem_text
from webrl.runs.spelling import visible
from webrl.types import Step, Trajectory
from webrl.view.index import Index, Place
from webrl.view.query import policy_names
from webrl.view.scores import Scored, Trained, later_scores, trained_on
from webrl.view.text import SHOWN_CHARS, Piece, acted_elements, pieces
from webrl.view.tokens import Tokenizer, run_tokenizer

logger = logging.getLogger(__name__)

SHOWN_PROMPT_CHARS = 4000
SHOWN_STEPS = 200
_SHOWN_CHARS = 2_000_000
"""Of all pages of a trajectory: with many steps, less is shown of each."""
_MAX_TOKENS = 4000
"""Of an answer; and of a prompt that is shown within the page."""
_ALL_TOKENS = 40_000
"""Of all answers of a trajectory."""
_LEVELS = (0.95, 0.7, 0.4, 0.1)
"""Probabilities below which a token is marked, each more than the one before."""
_MAX_PNG_BYTES = 64 << 20
_PNG = b"\x89PNG\r\n\x1a\n"


@dataclass(frozen=True)
class Run:
    """A run folder on the command line."""

    path: Path
    name: str
    """What it is called on the pages."""

    @cached_property
    def _config(self) -> tuple[ActorConfig, str] | str:
        """Settings of the actor's training and the model it starts from, or why they are not known.

        Other sections are not looked at: those of an earlier version's run may no longer be valid.
        """
        path = self.path / "config.yaml"
        if not path.is_file():
            return f"{path}: not there, so advantages are not known"
        try:
            data = read_config(path)
            start = (data.get("models") or {}).get("actor") or ""
            return ActorConfig.model_validate(data.get("actor") or {}), str(start)
        except ValidationError as error:
            problem = f"{path}: actor.{problem_text(error.errors()[0])}"
        except (WebRLError, AttributeError) as error:  # AttributeError: a section that is no mapping
            problem = str(error)
        return f"{problem}; so advantages are not known"

    @property
    def actor_config(self) -> ActorConfig | None:
        """Settings of the actor's training; None if they cannot be read."""
        return None if isinstance(self._config, str) else self._config[0]

    @property
    def problem(self) -> str:
        """What is wrong with its config, or ""."""
        return self._config if isinstance(self._config, str) else ""

    def tokenizer(self) -> Tokenizer | None:
        """The one that its actors share, if it is on this machine."""
        return run_tokenizer(self.path, None if isinstance(self._config, str) else self._config[1])

    def screenshot(self, name: str) -> Path | None:
        """A PNG of the run folder; None if there is no such, it lies elsewhere, or is huge."""
        try:
            root = self.path.resolve()
            path = (root / name).resolve()
            if not path.is_relative_to(root) or not path.is_file() or path.stat().st_size > _MAX_PNG_BYTES:
                return None
            with path.open("rb") as file:
                return path if file.read(len(_PNG)) == _PNG else None
        except (OSError, ValueError):  # ValueError: a NUL character in the name
            return None


def named_runs(paths: Sequence[Path]) -> list[Run]:
    """Runs under the names of their folders, or, where these are the same, under their paths."""
    names = [path.resolve().name for path in paths]
    return [Run(path, name if names.count(name) == 1 else str(path)) for path, name in zip(paths, names, strict=True)]


@dataclass(frozen=True)
class Token:
    """A token of an answer."""

    id: int
    text: str
    logprob: float | None
    later: tuple[float, ...]
    """Under the actors of `StepView.scores`."""

    @property
    def probability(self) -> float | None:
        """Of the sampling policy."""
        return None if self.logprob is None else math.exp(min(self.logprob, 0.0))

    @property
    def level(self) -> int:
        """0 (likely) to 4 (under 10 %)."""
        return 0 if self.probability is None else sum(self.probability < bound for bound in _LEVELS)


@dataclass(frozen=True)
class StepView:
    """A step."""

    step: Step
    page: Sequence[Piece]
    elements: tuple[str, ...]
    """Ids of what was acted on."""
    is_element_shown: bool
    answer: Sequence[Piece]
    tokens: Sequence[Token]
    """Empty where the ids' text is not known, or there are none."""
    sampled: Scored | None
    scores: Sequence[Scored]
    """Under the same and later actors."""
    trained: Sequence[Trained]
    prompt: Sequence[Piece] | None
    """None where its text is not known; empty where it is too long to stand in the page."""
    has_screenshot: bool

    @property
    def is_cut(self) -> bool:
        """Whether some of the page is left out."""
        return any(piece.kind == "cut" for piece in self.page)


@dataclass(frozen=True)
class Details:
    """A trajectory."""

    place: Place
    trajectory: Trajectory
    policy: str | None
    """The actor that played it: `after phase 1`, `the start`; None where that is not known."""
    steps: Sequence[StepView]
    final_page: Sequence[Piece]
    notes: Sequence[str]
    """What could not be shown, and why."""
    digest: str
    """`digest_of` the trajectory's line: a label is for what was shown, not for what has taken its place."""

    @property
    def final_is_cut(self) -> bool:
        """Whether some of the final page is left out."""
        return any(piece.kind == "cut" for piece in self.final_page)


@dataclass(frozen=True)
class _Source:
    """Where a trajectory's steps are described from."""

    index: Index
    run: Run
    place: Place
    trajectory: Trajectory
    tokenizer: Tokenizer | None
    limit: int
    """Characters that are shown of a page."""
    max_tokens: int
    """Longer answers are shown without their tokens."""


def digest_of(line: bytes) -> str:
    """SHA-256 of a trajectory's line, in hexadecimal."""
    return hashlib.sha256(line).hexdigest()


def describe(index: Index, run: Run, place: Place) -> Details:
    """Everything that a trajectory's page shows. Raises as `Index.read`."""
    trajectory, line = index.read(place)
    policies = policy_names(index, place.run)
    scores, problem = later_scores(run.path / "scores.sqlite", policies, trajectory)
    shown = trajectory.steps[:SHOWN_STEPS]
    limit = min(SHOWN_CHARS, _SHOWN_CHARS // max(1, len(shown)))
    max_tokens = min(_MAX_TOKENS, _ALL_TOKENS // max(1, len(shown)))
    source = _Source(index, run, place, trajectory, run.tokenizer(), limit, max_tokens)
    steps = [_step(source, step, scores.get(step.index, [])) for step in shown]
    notes = [note for note in (problem, run.problem) if note]
    if len(shown) < len(trajectory.steps):
        notes.append(f"{len(trajectory.steps):,} steps: the first {len(shown)} are shown, an export has all")
    if any(step.step.action_ids and not step.tokens for step in steps):
        notes.append(
            "answers are shown without their tokens: the tokenizer that they were sampled with is not here, or they "
            f"have more than {max_tokens:,}"
        )
    final_page, policy = pieces(trajectory.final_observation), policies.get(trajectory.policy)
    return Details(place, trajectory, policy, steps, final_page, notes, digest_of(line))


def _step(source: _Source, step: Step, scores: Sequence[Scored]) -> StepView:
    elements = acted_elements(step.action) if step.action else ()
    page = pieces(step.observation, elements, source.limit)
    tokenizer = source.tokenizer
    if tokenizer and (len(step.action_ids) > source.max_tokens or not tokenizer.made(step.action_ids, step.response)):
        tokenizer = None
    return StepView(
        step=step,
        page=page,
        elements=elements,
        is_element_shown=any(piece.kind == "acted" for piece in page),
        answer=pieces(step.response, limit=source.limit),
        tokens=_tokens(tokenizer, step, scores) if tokenizer else (),
        sampled=Scored("as sampled", True, step.logprobs) if step.logprobs else None,
        scores=scores,
        trained=trained_on(source.index, source.place.run, source.trajectory, step, source.run.actor_config),
        prompt=_prompt(tokenizer, step),
        has_screenshot=bool(step.screenshot) and source.run.screenshot(step.screenshot) is not None,
    )


def _prompt(tokenizer: Tokenizer | None, step: Step) -> list[Piece] | None:
    if tokenizer is None or len(step.prompt_ids) > _MAX_TOKENS:
        return None if tokenizer is None else []
    return pieces(tokenizer.text(step.prompt_ids), limit=SHOWN_PROMPT_CHARS)


def _tokens(tokenizer: Tokenizer, step: Step, scores: Sequence[Scored]) -> list[Token]:
    has_logprobs = len(step.logprobs) == len(step.action_ids)
    return [
        Token(
            id=step.action_ids[i],
            text=visible(text.replace("\n", "⏎\n")),
            logprob=step.logprobs[i] if has_logprobs else None,
            later=tuple(score.logprobs[i] for score in scores),
        )
        for i, text in enumerate(tokenizer.pieces(step.action_ids))
    ]
