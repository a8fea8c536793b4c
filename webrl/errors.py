"""The one exception tree: each boundary of the system has its own typed error.

A bad rollout is data, not a crash: `BrowserError` and `PolicyError` are caught by the episode
loop and become a `Status`. Everything else ends the stage with one clear message.
"""

from __future__ import annotations

import re
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from pydantic_core import ErrorDetails


class WebRLError(Exception):
    """Base of all errors that a user can cause or fix; the CLI prints its text and exits with 1."""

    exit_code = 1


class UsageError(WebRLError):
    """Wrong option, unknown key, value out of range: the command line or config is at fault (exit 2)."""

    exit_code = 2


class ExtraMissing(UsageError):
    """An option needs a package that is not installed; the text names the command that installs it."""


class DataError(WebRLError):
    """A file that cannot be used: missing, malformed (path and line are quoted), empty, or of the wrong kind."""


class ModelError(WebRLError):
    """A model folder or endpoint that cannot be used (no tokenizer, wrong fingerprint, absent weights)."""


class BrowserError(WebRLError):
    """The browser, a page or the remote environment failed; an episode records it as `Status.ENV_ERROR`."""


class BrowserMissing(WebRLError):
    """No usable Chromium on this machine; the text explains how to install one."""


class PolicyError(WebRLError):
    """The policy engine failed to answer; an episode records it as `Status.POLICY_ERROR`."""


class PromptTooLong(PolicyError):
    """A prompt that does not fit; others may."""


class JudgeError(WebRLError):
    """The outcome judge failed to answer; the trajectory stays unlabelled, it is never counted as failed."""


class TrainingError(WebRLError):
    """Training cannot continue: non-finite loss, mismatched tokenizer or checkpoint, wrong world size."""


class StageError(WebRLError):
    """A stage cannot start: its input stage has not finished, or the run folder belongs to another config,
    or another process is using it; or it cannot continue, because all servers that it needs are gone.
    """


def problem_text(problem: ErrorDetails) -> str:
    """Format one of pydantic's errors as `key = value: problem`, or as the problem alone if it has no key."""
    key = ".".join(str(part) for part in problem["loc"] if part != "[key]")  # of a mapping's key: the key itself
    message = problem_message(problem)
    value = "" if problem["type"] == "missing" else f" = {problem['input']!r:.200}"  # that would be all around it
    return f"{key:.100}{value}: {message}" if key else message


def problem_message(problem: ErrorDetails) -> str:
    """Describe the problem without naming any of our classes."""
    options = "expected options with values, {name: value, …}"
    plain = {"dict_type": options, "model_type": options, "extra_forbidden": "unknown key", "missing": "it is missing"}
    plain |= {"tuple_type": "expected a list: [first, second]", "path_type": "expected a path"}
    text = re.sub(r"^Value error, |, unable to parse .*| after validation", "", problem["msg"])
    return plain.get(problem["type"], re.sub(r"^(Input|String|List|Tuple) should ", "must ", text))
