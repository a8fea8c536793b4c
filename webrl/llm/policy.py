"""The language model as a policy: builds the prompt, asks the model, gives back exactly what was sampled."""

from __future__ import annotations

import logging
import random
from collections.abc import Sequence

from webrl.config import RunConfig
from webrl.errors import PolicyError
from webrl.llm.interface import Completion, LanguageModel, PolicyOutput, Sampling
from webrl.llm.prompts import build_policy_prompt, policy_messages
from webrl.llm.sampling import check_sampling
from webrl.types import Step

logger = logging.getLogger(__name__)


class ModelPolicy:
    """`Policy` over a `LanguageModel`.

    Args:
        temperature: replaces `rollout.temperature` (evaluation).
        training: refuse sampling that biases the recorded log-probs (`check_sampling`).
    """

    def __init__(
        self, model: LanguageModel, config: RunConfig, *, temperature: float | None = None, training: bool = False
    ) -> None:
        rollout = config.rollout
        if temperature is not None:
            rollout = rollout.model_copy(update={"temperature": temperature})
        check_sampling(rollout, training)
        self._model = model
        self._config = config.model_copy(update={"rollout": rollout})
        self._training = training
        self._seeds = random.Random(config.seed)
        if training and model.tokenizer is None:
            raise PolicyError(f"{model.name!r} gives no token ids, so its rollouts cannot be trained on")

    @property
    def fingerprint(self) -> str:
        """The model's."""
        return self._model.fingerprint

    async def act(
        self, instruction: str, history: Sequence[Step], observation: str, *, seed: int | None = None
    ) -> PolicyOutput:
        """Answer one page (`Policy.act`)."""
        rollout = self._config.rollout
        sampling = Sampling(
            temperature=rollout.temperature,
            top_p=rollout.top_p,
            top_k=rollout.top_k,
            max_new_tokens=rollout.max_new_tokens,
            seed=self._seeds.getrandbits(63) if seed is None else seed,
        )
        if self._model.tokenizer is None:
            messages = policy_messages(instruction, history, observation, rollout.dialect)
            return _output(await self._model.chat(messages, sampling), observation)
        prompt = build_policy_prompt(
            self._model.tokenizer,
            instruction,
            history,
            observation,
            max_tokens=self._config.models.max_prompt_tokens,
            prompt_format=self._config.models.prompt_format,
            dialect=rollout.dialect,
        )
        if prompt.num_page_tokens_cut or prompt.num_history_cut:
            logger.debug("prompt cut: %d page tokens, %d steps", prompt.num_page_tokens_cut, prompt.num_history_cut)
        return _output(await self._model.generate(prompt.ids, sampling), prompt.observation)


def _output(completion: Completion, observation: str) -> PolicyOutput:
    return PolicyOutput(
        prompt_ids=completion.prompt_ids,
        action_ids=completion.ids,
        logprobs=completion.logprobs,
        text=completion.text,
        observation_shown=observation,
    )
