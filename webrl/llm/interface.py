"""Defines what every engine offers: token ids in, token ids with log-probabilities out. Standard library only.

Log-probability convention, the same for all engines: `Completion.logprobs` are log π(token | prefix) of the
model itself, at temperature 1 and before top-p/top-k. At temperature 1 without top-p/top-k, which is what training
rollouts use (`check_sampling`), these are exactly the log-probabilities of the distribution that was sampled from;
at any other setting they still are what the trainer's scoring of the same ids gives.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any, Literal, Protocol

from webrl.types import Step


@dataclass(frozen=True)
class Message:
    """One chat message; `content` is data and never read as control tokens."""

    role: Literal["system", "user", "assistant"]
    """Who speaks."""
    content: str
    """Plain text."""


@dataclass(frozen=True)
class Sampling:
    """How to draw a completion.

    Example: `Sampling(temperature=1.0, max_new_tokens=64, seed=17)`
    """

    temperature: float = 1.0
    """0 is greedy."""
    top_p: float = 1.0
    """Nucleus mass; 1 is off."""
    top_k: int = 0
    """Number of candidates; 0 is off."""
    max_new_tokens: int = 512
    """Longest answer, end token included."""
    seed: int | None = None
    """Makes the draw repeatable regardless of the rest of the batch; None draws a fresh seed."""


@dataclass(frozen=True)
class Completion:
    """One sampled answer, exactly as sampled."""

    ids: tuple[int, ...]
    """[A] sampled token ids, end token included if it was sampled; empty if the server does not return ids."""
    logprobs: tuple[float, ...]
    """[A] log-probabilities at temperature 1 (module docstring); empty if the server does not return them."""
    text: str
    """The decoded answer without the end token."""
    finish_reason: Literal["stop", "length"]
    """`stop`: an end token was sampled; `length`: cut at `max_new_tokens`."""
    prompt_ids: tuple[int, ...] = ()
    """[P] the prompt as the model saw it."""


class LanguageModel(Protocol):
    """A model that answers; concurrent calls are batched by the engine. Open one with `webrl.llm.open_model`."""

    tokenizer: Any
    """The transformers tokenizer; None for a server whose tokenizer is unknown (then only `chat` works)."""
    name: str
    """Folder or hub name."""
    fingerprint: str
    """Identifies the weights that answer; changes when they change."""
    eyes: Any
    """The image processor (`webrl.llm.eyes.Eyes`) of a vision-language model; None for a text model."""

    async def generate(self, prompt_ids: Sequence[int], sampling: Sampling, image: bytes | None = None) -> Completion:
        """Continue token ids.

        Args:
            image: PNG that the image tokens of the prompt represent (`Prompt.image`).

        Raises:
            PolicyError: no answer after all retries.
            ModelError: the engine does not support this.
        """

    async def chat(self, messages: Sequence[Message], sampling: Sampling) -> Completion:
        """Answer chat messages through the model's own template. Errors as in `generate`."""

    async def choice_logprobs(self, prompt_ids: Sequence[int], token_ids: Sequence[int]) -> list[float]:
        """Return log-probabilities (temperature 1, full vocabulary) of some tokens at the first answer position.

        Errors as in `generate`.
        """

    async def close(self) -> None:
        """Free memory, threads and processes; open requests fail with PolicyError."""


@dataclass(frozen=True)
class PolicyOutput:
    """One action of a policy; ids are exactly what the model was given and what it sampled."""

    prompt_ids: tuple[int, ...]
    """[P] the prompt; empty for scripted policies and chat-only servers (not trainable)."""
    action_ids: tuple[int, ...]
    """[A] sampled ids, end token included if it was sampled."""
    logprobs: tuple[float, ...]
    """[A] log-probabilities at temperature 1."""
    text: str
    """The raw answer, decoded, without the end token."""
    observation_shown: str
    """The page text that fitted into the prompt."""

    @classmethod
    def of(cls, answer: Completion, observation_shown: str) -> PolicyOutput:
        """A model's answer as the action."""
        return cls(answer.prompt_ids, answer.ids, answer.logprobs, answer.text, observation_shown)


@dataclass(frozen=True)
class Turn:
    """The input of a policy at one step of an episode.

    Example: `Turn("Click OK.", (), "[7] button 'OK'", seed=5)`
    """

    instruction: str
    """The goal of the episode."""
    history: tuple[Step, ...]
    """[N] the episode's steps so far, oldest first."""
    observation: str
    """The page's current text, uncut."""
    seed: int | None = None
    """Of this draw; derived from run seed, trajectory id and step index, an episode is repeatable. None draws from the
    policy's own generator."""
    screenshot: bytes | None = None
    """PNG of the page for a vision model; only with `rollout.image_size`."""


class Policy(Protocol):
    """Decides the next action of an episode."""

    @property
    def fingerprint(self) -> str:
        """Identifies the policy; stored in `Trajectory.policy`."""

    async def act(self, turn: Turn) -> PolicyOutput:
        """Answer one page. Raises PolicyError if all retries fail; the episode records it."""
