"""Builds the prompt of the public GRPO scripts: goal, past steps with rewards, errors, clickable elements, page.

API: `GrpoPolicy(model, settings, log)` is a `Policy`, of text or with the page's screenshot in each prompt;
`check_room(eyes, settings, page)` refuses a screenshot that leaves no room for the rest. The same information in the
same order as in TRL's OpenEnv examples; the wording is ours.
"""

from __future__ import annotations

import re
from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import Any

from webrl.errors import UsageError
from webrl.llm.eyes import Eyes
from webrl.llm.interface import LanguageModel, Message, PolicyOutput, Turn
from webrl.llm.pictures import png_size, shrink
from webrl.llm.prompts import INTERACTIVE, build_policy_prompt, by_coordinates, cut_lines, fit_prompt
from webrl.llm.tokens import encode_chat
from webrl.rollouts.interface import Observation
from webrl.types import Step
from webrl_grpo.settings import GrpoSettings

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
class EpisodeLog:
    """State of an episode that its steps do not hold."""

    url: str = ""
    """Address of the page."""
    rewards: list[float] = field(default_factory=list)
    """Reward of each step."""
    unreadable: list[int] = field(default_factory=list)
    """Indices of the answers that were not an action."""
    screenshots: list[bytes] = field(default_factory=list)
    """Screenshot in the prompt of each step."""


class GrpoPolicy:
    """Answers the pages of one episode; `RewardedEnv` keeps `log` up to date."""

    def __init__(self, model: LanguageModel, settings: GrpoSettings, log: EpisodeLog) -> None:
        self.fingerprint = model.fingerprint
        self._model, self._settings, self._log = model, settings, log

    async def act(self, turn: Turn) -> PolicyOutput:
        """Answer one page (`Policy.act`)."""
        settings, model = self._settings, self._model
        past = turn.history[max(0, len(turn.history) - settings.history_steps) :]
        page = turn.observation[: settings.max_page_chars]

        def encode(start: int, shown: str) -> list[int]:
            text = user_text(turn.instruction, past[start:], shown, self._log, len(turn.history))
            return _encode(model.tokenizer, model.eyes, settings, text, turn.screenshot)

        prompt = fit_prompt(model.tokenizer, encode, page, len(past), settings.max_prompt_tokens, cut_lines)
        answer = await model.generate(prompt.ids, settings.sampling(turn.seed), turn.screenshot)
        return PolicyOutput.of(answer, prompt.observation)


def _encode(tokenizer: Any, eyes: Eyes | None, settings: GrpoSettings, text: str, image: bytes | None) -> list[int]:
    messages = [Message("system", settings.system_prompt or SYSTEM_PROMPT), Message("user", text)]
    if settings.observation == "none" and not settings.system_prompt:
        messages = by_coordinates(messages)
    return eyes.encode(messages, eyes.look(image)) if eyes and image else encode_chat(tokenizer, messages)


def check_room(eyes: Eyes, settings: GrpoSettings, page: Observation) -> None:
    """Check that a page's screenshot leaves room for the rest of a prompt, and shows the page's coordinates.

    Raises:
        UsageError: it does not.
        ModelError: the model has no place for it.
    """
    assert page.screenshot is not None  # `RewardedEnv` checks it
    image = shrink(page.screenshot, settings.image_size or 0)
    look = eyes.look(image)
    size = f"{look.size[0]}x{look.size[1]}"
    if settings.observation == "none" and png_size(image) != png_size(page.screenshot):
        raise UsageError(
            f"observation=none: image_size={settings.image_size} shows the page at {size}, smaller than it is, so that "
            "the model cannot tell coordinates: take image_size=0, or a smaller viewport"
        )
    if settings.prompt_format == "browsergym":
        text = user_text(page.goal, [], "", EpisodeLog(), 0)
        needed = len(_encode(eyes.tokenizer, eyes, settings, text, image))
    else:
        models = settings.run_config.models.model_copy(update={"max_prompt_tokens": 1 << 30})
        shows_text = settings.observation != "none"
        prompt = build_policy_prompt(
            eyes.tokenizer, page.goal, [], "", models, eyes=eyes, image=image, show_text=shows_text
        )
        needed = len(prompt.ids)
    if needed > settings.max_prompt_tokens:
        raise UsageError(
            f"image_size={settings.image_size}: a screenshot of {size} pixels is "
            f"{look.num_tokens} tokens, with instructions and goal {needed}, and max_seq_length "
            f"{settings.max_seq_length} less max_completion_length {settings.max_completion_length} leaves "
            f"{settings.max_prompt_tokens}: lower image_size, or raise max_seq_length (beyond "
            f"{needed + settings.max_completion_length}: the page's text needs room too)"
        )


def user_text(instruction: str, past: Sequence[Step], page: str, log: EpisodeLog, num_steps: int) -> str:
    """Returns the user's message of the public scripts at one step.

    Args:
        past: the steps that are shown, oldest first.
        num_steps: steps of the episode so far.
    """
    lines = [f"Step: {num_steps + 1}", f"Goal: {instruction}", f"Current URL: {log.url or 'unknown'}"]
    lines.append("Previous steps:" if past else "Previous steps: none")
    for step in past:
        reward = log.rewards[step.index] if step.index < len(log.rewards) else 0.0
        lines.append(f"{step.index + 1}. {step.action} -> reward {reward:+.2f}{' (error)' if step.error else ''}")
    error = past[-1].error if past else ""
    lines.append(f"Last action error: {' '.join(error.split())[:200] if error else 'no'}")
    bids = [match[1] for line in page.split("\n") if INTERACTIVE.search(line) and (match := _BID.match(line))]
    lines.append(f"Clickable elements: {', '.join(bids) or 'none found'}")
    return "\n".join([*lines, "", "Page structure:", page, "", "Answer with exactly one action."])
