"""The prompt of the public GRPO scripts: goal, past steps with their rewards, errors, clickable elements, page.

API: `BrowserGymPolicy(model, settings, seen)` is a `Policy`. The same information in the same order as in TRL's
OpenEnv examples; the wording is ours.
"""

from __future__ import annotations

import re
from collections.abc import Sequence
from dataclasses import dataclass, field

from webrl.grpo.settings import GrpoSettings
from webrl.llm.budget import INTERACTIVE, cut_lines, fit_prompt
from webrl.llm.interface import LanguageModel, Message, PolicyOutput, Turn
from webrl.llm.tokens import encode_chat
from webrl.types import Step

SYSTEM_PROMPT = """You complete tasks in a web browser, one action at a time.

The page is shown as [bid] role 'text': in [13] button 'Click Me!' the element has the bid '13'.

Actions:
- click('13')
- fill('42', 'some text')
- select_option('7', 'label')
- press('42', 'Enter')
- scroll(0, 300)
- noop()

Answer with exactly one action on one line, and nothing else."""

_BID = re.compile(r"^\s*\[(\w+)\]")


@dataclass
class Seen:
    """What an episode has shown beside its steps."""

    url: str = ""
    """Address of the page."""
    rewards: list[float] = field(default_factory=list)
    """One a step."""
    unreadable: list[int] = field(default_factory=list)
    """Which answers were no action, counted from 0."""
    picture: bytes | None = None
    """PNG of the page as it is, in the size that the model sees."""
    is_smaller: bool = False
    """Whether that is smaller than the page's own screenshot, whose pixels are what coordinates count."""
    pictures: list[bytes] = field(default_factory=list)
    """Those that answers were given to, one a step."""


class BrowserGymPolicy:
    """Answers one episode's pages; `seen` is kept up to date by whoever plays it."""

    def __init__(self, model: LanguageModel, settings: GrpoSettings, seen: Seen) -> None:
        self.fingerprint = model.fingerprint
        self._model, self._settings, self._seen = model, settings, seen

    async def act(self, turn: Turn) -> PolicyOutput:
        """Answer one page (`Policy.act`)."""
        settings, num_steps = self._settings, len(turn.history)
        past, page = public_part(settings, turn.history, turn.observation)

        def encode(start: int, shown: str) -> list[int]:
            messages = public_messages(settings, turn.instruction, past[start:], shown, self._seen, num_steps)
            return encode_chat(self._model.tokenizer, messages)

        prompt = fit_prompt(self._model.tokenizer, encode, page, len(past), settings.max_prompt_tokens, cut_lines)
        answer = await self._model.generate(prompt.ids, settings.sampling(turn.seed))
        return PolicyOutput.of(answer, prompt.observation)


def public_part(settings: GrpoSettings, history: tuple[Step, ...], page: str) -> tuple[tuple[Step, ...], str]:
    """The past steps, and as much of the page, as the public scripts show."""
    return history[max(0, len(history) - settings.history_steps) :], page[: settings.max_page_chars]


def public_messages(
    settings: GrpoSettings, instruction: str, past: Sequence[Step], page: str, seen: Seen, num_steps: int
) -> list[Message]:
    """The chat of the public scripts at one step; arguments as of `user_text`."""
    system = Message("system", settings.system_prompt or SYSTEM_PROMPT)
    return [system, Message("user", user_text(instruction, past, page, seen, num_steps))]


def user_text(instruction: str, past: Sequence[Step], page: str, seen: Seen, num_steps: int) -> str:
    """The user's message at one step.

    Args:
        past: the steps that are shown, oldest first.
        num_steps: steps of the episode so far.
    """
    lines = [f"Step: {num_steps + 1}", f"Goal: {instruction}", f"Current URL: {seen.url or 'unknown'}"]
    lines += ["Previous steps:", *(_past_line(step, seen) for step in past)] if past else ["Previous steps: none"]
    error = past[-1].error if past else ""
    lines.append(f"Last action error: {' '.join(error.split())[:200] if error else 'no'}")
    bids = [match[1] for line in page.split("\n") if INTERACTIVE.search(line) and (match := _BID.match(line))]
    lines.append(f"Clickable elements: {', '.join(bids) or 'none found'}")
    return "\n".join([*lines, "", "Page structure:", page, "", "Answer with exactly one action."])


def _past_line(step: Step, seen: Seen) -> str:
    reward = seen.rewards[step.index] if step.index < len(seen.rewards) else 0.0
    return f"{step.index + 1}. {step.action} -> reward {reward:+.2f}{' (error)' if step.error else ''}"
