"""The policy of a vision-language model: the prompts of text models, with the page's screenshot in them.

API: `SeeingPolicy(model, settings, seen)` is a `Policy`; `check_room(eyes, settings, goal, seen)` refuses a screenshot
that leaves no room for the rest.
"""

from __future__ import annotations

from collections.abc import Sequence

from webrl.errors import StageError, UsageError
from webrl.grpo.prompts import Seen, public_messages, public_part
from webrl.grpo.settings import GrpoSettings
from webrl.llm.budget import Prompt, cut_lines, fit_prompt
from webrl.llm.eyes import Eyes
from webrl.llm.interface import Message, PolicyOutput, Turn
from webrl.llm.prompts import policy_messages
from webrl.llm.screenshots import by_coordinates
from webrl.llm.seeing import SeeingModel
from webrl.llm.trained_prompt import prompt_of
from webrl.types import Step


class SeeingPolicy:
    """Answers one episode's pages; `seen` is kept up to date by whoever plays it."""

    def __init__(self, model: SeeingModel, settings: GrpoSettings, seen: Seen) -> None:
        self.fingerprint = model.fingerprint
        self._model, self._settings, self._seen = model, settings, seen

    async def act(self, turn: Turn) -> PolicyOutput:
        """Answer one page (`Policy.act`).

        Raises:
            StageError: there is no screenshot of it.
        """
        png = self._seen.picture
        if png is None:
            raise StageError(f"step {len(turn.history)}: there is no screenshot, which image_size asks for")
        prompt = _fit(self._model.eyes, self._settings, turn, self._seen, png)
        answer = await self._model.generate(prompt.ids, png, self._settings.sampling(turn.seed))
        self._seen.pictures.append(png)
        return PolicyOutput.of(answer, prompt.observation)


def check_room(eyes: Eyes, settings: GrpoSettings, goal: str, seen: Seen) -> None:
    """Return if a page's screenshot leaves room for the rest of a prompt, and its coordinates can be told.

    Raises:
        UsageError: it does not, or they cannot.
        ModelError: the model has no place for it.
    """
    assert seen.picture is not None  # `RewardedEnv` has seen to it
    look = eyes.look(seen.picture)
    if settings.observation == "none" and seen.is_smaller:
        raise UsageError(
            f"observation=none: image_size={settings.image_size} shows the page at {look.size[0]}x{look.size[1]}, "
            "smaller than it is, so that the model cannot tell coordinates: take image_size=0, or a smaller viewport"
        )
    needed = len(eyes.encode(_messages(eyes, settings, goal, [], "", Seen(), 0), look))
    if needed > settings.max_prompt_tokens:
        raise UsageError(
            f"image_size={settings.image_size}: a screenshot of {look.size[0]}x{look.size[1]} pixels is "
            f"{look.num_tokens} tokens, with instructions and goal {needed}, and max_seq_length "
            f"{settings.max_seq_length} less max_completion_length {settings.max_completion_length} leaves "
            f"{settings.max_prompt_tokens}: lower image_size, or raise max_seq_length (beyond "
            f"{needed + settings.max_completion_length}: the page's text needs room too)"
        )


def _fit(eyes: Eyes, settings: GrpoSettings, turn: Turn, seen: Seen, png: bytes) -> Prompt:
    look = eyes.look(png)
    past, page = turn.history, turn.observation
    if settings.prompt_format == "browsergym":
        past, page = public_part(settings, past, page)

    def encode(start: int, shown: str) -> list[int]:
        messages = _messages(eyes, settings, turn.instruction, past[start:], shown, seen, len(turn.history))
        return eyes.encode(messages, look)

    return fit_prompt(eyes.tokenizer, encode, page, len(past), settings.max_prompt_tokens, cut_lines)


def _messages(
    eyes: Eyes, settings: GrpoSettings, instruction: str, past: Sequence[Step], page: str, seen: Seen, num_steps: int
) -> list[Message]:
    if settings.prompt_format == "browsergym":
        messages = public_messages(settings, instruction, past, page, seen, num_steps)
    else:
        prompt = "brief" if settings.observation == "none" else prompt_of(eyes.tokenizer)
        messages = policy_messages(instruction, past, page, prompt_format=settings.prompt_format, prompt=prompt)
    if settings.observation == "none" and not settings.system_prompt:
        return by_coordinates(messages)
    return messages
