"""The language model as a policy: builds the prompt, asks the model, returns exactly what was sampled."""

from __future__ import annotations

import logging
import random
from collections.abc import Callable
from typing import Any

from webrl.config import RunConfig
from webrl.errors import PolicyError, StageError
from webrl.llm.budget import Prompt
from webrl.llm.interface import LanguageModel, PolicyOutput, Sampling, Turn
from webrl.llm.prompts import build_policy_prompt, policy_messages
from webrl.llm.sampling import policy_config
from webrl.llm.threads import with_tokenizer
from webrl.llm.trained_prompt import prompt_of

logger = logging.getLogger(__name__)


class ModelPolicy:
    """`Policy` over a `LanguageModel`.

    Args:
        temperature, training: as of `policy_config`.
        sampling: returns how an answer is drawn with a seed; None: as the config says.
    """

    def __init__(
        self,
        model: LanguageModel,
        config: RunConfig,
        *,
        temperature: float | None = None,
        training: bool = False,
        sampling: Callable[[int], Sampling] | None = None,
    ) -> None:
        self._model = model
        self._config = policy_config(config, temperature, training)
        rollout = self._config.rollout
        self._sampling = sampling or (
            lambda seed: Sampling(temperature=rollout.temperature, max_new_tokens=rollout.max_new_tokens, seed=seed)
        )
        self._seeds = random.Random(config.seed)
        if training and model.tokenizer is None:
            raise PolicyError(f"{model.name!r} gives no token ids, so its rollouts cannot be trained on")

    @property
    def fingerprint(self) -> str:
        """The model's."""
        return self._model.fingerprint

    async def act(self, turn: Turn) -> PolicyOutput:
        """Answer one page (`Policy.act`).

        Raises:
            StageError: a vision-language model without a screenshot, a text model with one, or a screenshot that
                leaves no room.
        """
        models, rollout, eyes = self._config.models, self._config.rollout, self._model.eyes
        if eyes is None and turn.screenshot is not None:
            raise StageError("rollout.image_size: this policy reads text alone; open it with open_policy")
        if eyes is not None and turn.screenshot is None:
            raise StageError(f"step {len(turn.history)}: there is no screenshot, which rollout.image_size asks for")
        goal, past, page = turn.instruction, turn.history, turn.observation
        sampling = self._sampling(self._seeds.getrandbits(63) if turn.seed is None else turn.seed)
        if self._model.tokenizer is None:
            prompt = prompt_of(None, models.prompt)
            messages = policy_messages(goal, past, page, rollout.dialect, models.prompt_format, prompt)
            return PolicyOutput.of(await self._model.chat(messages, sampling), page)

        def build(tokenizer: Any) -> Prompt:
            return build_policy_prompt(
                tokenizer, goal, past, page, models, rollout.dialect, eyes=eyes, image=turn.screenshot,
                image_size=rollout.image_size or 0, show_text=rollout.show_text,
            )  # fmt: skip

        # an image processor has a tokenizer of its own, which no other thread may use
        built = build(eyes.tokenizer) if eyes else await with_tokenizer(self._model.tokenizer, build)
        if built.num_page_tokens_cut or built.num_history_cut:
            logger.debug("prompt cut: %d page tokens, %d steps", built.num_page_tokens_cut, built.num_history_cut)
        return PolicyOutput.of(await self._model.generate(built.ids, sampling, built.image), built.observation)
