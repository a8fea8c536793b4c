"""One trajectory as its page shows it: texts cut to size, answers token by token, and what training recorded of a step.

Jinja2 escapes what comes from here: nothing in this module is markup.
"""

from __future__ import annotations

import contextlib
import hashlib
import logging
import math
import re
from collections.abc import Sequence
from dataclasses import dataclass
from functools import lru_cache
from pathlib import Path
from typing import Any

from webrl.config import read_config
from webrl.errors import WebRLError
from webrl.llm.loading import adapter_base
from webrl.rollouts.actions import read_any
from webrl.runs.text import visible
from webrl.types import Step, StepRecord, Trajectory
from webrl_report.view.index import Index, Row

logger = logging.getLogger(__name__)

SHOWN_CHARS = 20_000
"""Of a longer text, the surroundings of the acted element are shown."""
SHOWN_PROMPT_CHARS = 4000
SHOWN_STEPS = 200
_PAGES_CHARS = 2_000_000
"""Of all pages of a trajectory: with many steps, less is shown of each."""
_MAX_TOKENS = 4000
"""Of an answer; and of a prompt that is shown within the page."""
_ALL_TOKENS = 40_000
"""Of all answers of a trajectory."""
_LEVELS = (0.95, 0.7, 0.4, 0.1)
"""Probabilities below which a token is marked, each more than the one before."""
_ELEMENT_ARGUMENTS = ("bid", "from_bid", "to_bid")
_UNFINISHED = "\ufffd"
"""What a tokenizer shows of a character whose other bytes are in the next tokens."""
_MAX_UNFINISHED = 8
"""Tokens that one character has at most."""


@dataclass(frozen=True)
class Piece:
    """A part of a text."""

    text: str
    kind: str = ""
    """`acted`: the element that was acted on; `cut`: a note about what is left out here; else ""."""


def pieces(text: str, elements: tuple[str, ...] = (), limit: int = SHOWN_CHARS) -> list[Piece]:
    """Cut a page's text to `limit` characters, around the first of some elements, whose lines are marked."""
    spans: list[tuple[int, int]] = []
    if elements:  # `[12] button 'Ok'` of an accessibility tree, `<a id="12" …>` of HTML
        names = "|".join(map(re.escape, elements))
        pattern = rf'^[ \t]*(\[(?:{names})\] [^\n]*)|(<\w+ (?:bid|id)="(?:{names})"[^>\n]*>)'
        spans = [m.span(1 if m[1] is not None else 2) for m in re.finditer(pattern, text, re.MULTILINE)]
    at = max(0, min(spans[0][0] - limit // 2, len(text) - limit)) if spans else 0
    stop = min(len(text), at + limit)
    parts = [_left_out(at)]
    for first, last in spans:
        if at <= first < stop:
            parts += [Piece(visible(text[at:first])), Piece(visible(text[first : min(last, stop)]), "acted")]
            at = min(last, stop)
    parts += [Piece(visible(text[at:stop])), _left_out(len(text) - stop)]
    return [part for part in parts if part.text]


def _left_out(num: int) -> Piece:
    return Piece(f"\n… {num:,} characters are left out here …\n" if num else "", "cut")


def acted_elements(action: str) -> tuple[str, ...]:
    """Return the ids of the elements that an action, in either dialect, acts on."""
    first = read_any(action)
    calls = (first, *first.rest) if first else ()
    ids = (str(call.arguments[name]) for call in calls for name in _ELEMENT_ARGUMENTS if call.arguments.get(name))
    return tuple(dict.fromkeys(ids))


@dataclass(frozen=True)
class Tokenizer:
    """Turns token ids into text."""

    backend: Any
    """`tokenizers.Tokenizer`."""

    def pieces(self, ids: tuple[int, ...]) -> list[str]:
        """Return [A] the text that each token adds; a character of several tokens comes with its last one."""
        texts: list[str] = []
        start, done = 0, 0  # tokens start to done are shown, and say how the next one is spelled after them
        for end in range(1, len(ids) + 1):
            text = self.text(ids[start:end])
            if text.endswith(_UNFINISHED) and end < len(ids) and end - done < _MAX_UNFINISHED:
                texts.append("")
                continue
            texts.append(text[len(self.text(ids[start:done])) :])
            start, done = done, end
        return texts

    def text(self, ids: tuple[int, ...], *, plain: bool = False) -> str:
        """Decode ids; `plain` leaves control tokens out."""
        return str(self.backend.decode(list(ids), skip_special_tokens=plain))

    def made(self, ids: tuple[int, ...], response: str) -> bool:
        """Return whether an answer was sampled with this tokenizer: its ids are the answer's text."""
        return "".join(response.split()) == "".join(self.text(ids, plain=True).split())


@lru_cache(maxsize=2)
def _load_tokenizer(path: Path, _version: int) -> Tokenizer | None:
    from tokenizers import Tokenizer as Backend

    try:
        return Tokenizer(Backend.from_file(str(path)))
    except Exception as error:  # the library raises nothing narrower
        logger.warning("%s: not a tokenizer (%s); token ids are shown instead", path, error)
        return None


@dataclass(frozen=True)
class Run:
    """A run folder on the command line."""

    path: Path
    name: str
    """What it is called on the pages."""

    def tokenizer(self) -> Tokenizer | None:
        """Load the tokenizer of its newest actor, else of the model that it started from; None without either."""
        folders = sorted(self.path.glob("phase_*/actor"), reverse=True)
        with contextlib.suppress(WebRLError, AttributeError):  # AttributeError: a section that is no mapping
            start = (read_config(self.path / "config.yaml").get("models") or {}).get("actor")
            folders += [Path(start).expanduser()] if isinstance(start, str) else []
        for folder in folders:
            path = folder / "tokenizer.json"
            with contextlib.suppress(WebRLError):
                if not path.is_file() and (base := adapter_base(folder)):
                    path = Path(base) / "tokenizer.json"
            if path.is_file():
                return _load_tokenizer(path, path.stat().st_mtime_ns)
        return None

    def screenshot(self, name: str) -> Path | None:
        """Find a PNG of the run folder; None if it does not exist, or is elsewhere."""
        root = self.path.resolve()
        with contextlib.suppress(OSError, ValueError):  # ValueError: a NUL character in the name
            path = (root / name).resolve()
            return path if path.is_relative_to(root) and path.suffix == ".png" and path.is_file() else None
        return None


@dataclass(frozen=True)
class Token:
    """A token of an answer."""

    id: int
    text: str
    logprob: float | None
    probability: float | None
    """Of the sampling policy."""
    level: int
    """0 (likely) to 4 (under 10 %)."""


@dataclass(frozen=True)
class StepView:
    """A step."""

    step: Step
    page: Sequence[Piece]
    elements: tuple[str, ...]
    """Ids of what was acted on."""
    answer: Sequence[Piece]
    tokens: Sequence[Token]
    """Empty where the ids' text is not known, or there are none."""
    log_probability: float | None
    """Log π(a|s) as sampled: the sum over the tokens, the end token's included."""
    trained: Sequence[tuple[int, StepRecord]]
    """(phase, record) of each use in training."""
    prompt: Sequence[Piece] | None
    """None if its text is not known; empty if it is too long for the page."""
    has_screenshot: bool


@dataclass(frozen=True)
class Details:
    """A trajectory."""

    row: Row
    trajectory: Trajectory
    steps: Sequence[StepView]
    final_page: Sequence[Piece]
    notes: Sequence[str]
    """What could not be shown, and why."""
    digest: str
    """SHA-256 of the trajectory's line: a label is for what was shown, not for what has taken its place."""


def describe(index: Index, run: Run, row: Row) -> Details:
    """Read everything that a trajectory's page shows. Raises as `Index.read`."""
    trajectory, line = index.read(row)
    shown = trajectory.steps[:SHOWN_STEPS]
    limit = min(SHOWN_CHARS, _PAGES_CHARS // max(1, len(shown)))
    max_tokens = min(_MAX_TOKENS, _ALL_TOKENS // max(1, len(shown)))
    run_tokens = run.tokenizer()
    steps = []
    for step in shown:
        tokenizer = run_tokens
        if tokenizer and (len(step.action_ids) > max_tokens or not tokenizer.made(step.action_ids, step.response)):
            tokenizer = None
        prompt: list[Piece] | None = None
        if tokenizer:
            is_short = len(step.prompt_ids) <= _MAX_TOKENS
            prompt = pieces(tokenizer.text(step.prompt_ids), limit=SHOWN_PROMPT_CHARS) if is_short else []
        elements = acted_elements(step.action) if step.action else ()
        trained = index.trained(row.file.run, f"{trajectory.trajectory_id}:{step.index}")
        steps.append(
            StepView(
                step=step,
                page=pieces(step.observation, elements, limit),
                elements=elements,
                answer=pieces(step.response, limit=limit),
                tokens=_tokens(tokenizer, step) if tokenizer else (),
                log_probability=math.fsum(step.logprobs) if step.logprobs else None,
                trained=[(phase, record) for phase, record in trained if record.action_ids == step.action_ids],
                prompt=prompt,
                has_screenshot=bool(step.screenshot) and run.screenshot(step.screenshot) is not None,
            )
        )
    notes = []
    if len(shown) < len(trajectory.steps):
        notes.append(f"{len(trajectory.steps):,} steps: the first {len(shown)} are shown, an export has all")
    if any(step.step.action_ids and not step.tokens for step in steps):
        notes.append(
            "answers are shown without their tokens: the tokenizer that they were sampled with is not here, or they "
            f"have more than {max_tokens:,}"
        )
    digest = hashlib.sha256(line).hexdigest()
    return Details(row, trajectory, steps, pieces(trajectory.final_observation), notes, digest)


def _tokens(tokenizer: Tokenizer, step: Step) -> list[Token]:
    has_logprobs = len(step.logprobs) == len(step.action_ids)
    tokens = []
    for i, text in enumerate(tokenizer.pieces(step.action_ids)):
        logprob = step.logprobs[i] if has_logprobs else None
        probability = None if logprob is None else math.exp(min(logprob, 0.0))
        level = 0 if probability is None else sum(probability < bound for bound in _LEVELS)
        tokens.append(Token(step.action_ids[i], visible(text.replace("\n", "⏎\n")), logprob, probability, level))
    return tokens
