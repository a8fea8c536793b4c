"""A transformers model in this process, which answers many prompts at once.

Requests join and leave between decoding steps. Prompts are prefilled in groups, with logits at each prompt's last
position only. Their rows then move into a cache, with which one step advances every open answer by one token
(`runner.py`); where there is no such cache, a group of answers is written to its end.
"""

from __future__ import annotations

import asyncio
import logging
import math
import random
import threading
import time
from collections import deque
from collections.abc import Sequence
from concurrent.futures import Future
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any

import torch
from transformers.cache_utils import DynamicCache

from webrl.config import EngineConfig, ModelsConfig
from webrl.errors import ModelError, PolicyError
from webrl.llm.interface import Completion, Message, Sampling
from webrl.llm.loading import load_causal_lm, load_tokenizer, model_fingerprint, pick_device, pick_dtype
from webrl.llm.local.runner import SlotCache, WholeRunner, draw_tokens, padded_pass, similar
from webrl.llm.products import use_products
from webrl.llm.tokens import decode_action, encode_chat, end_token_ids, refuse_image
from webrl.runs.clock import spent_on

if TYPE_CHECKING:
    from webrl.llm.eyes import Eyes

logger = logging.getLogger(__name__)

_MAX_PREFILL_TOKENS = 16384
"""Tokens, padding included, in one prefill pass (at least one prompt)."""
_GATHER_S = 0.005
"""How long a batch whose answers are generated whole waits for concurrent requests."""
_CLOSED = "the model was closed while it answered"

Answer = tuple[list[int], list[float]]


class LocalModel:
    """`LanguageModel` over a transformers model: of text, or with an image in each prompt.

    Answers are reproducible given `Sampling.seed`, regardless of the rest of the batch, up to floating-point noise of
    differently shaped matrix products (about 1e-6 in fp32; it can flip a draw only at a tie of that size).
    """

    def __init__(
        self, name: str, engine: EngineConfig, models: ModelsConfig, *, eyes: Eyes | None = None, module: Any = None
    ) -> None:
        """Load tokenizer and weights.

        Args:
            eyes: image processor of a vision-language model, whose prompts (`Eyes.encode`) have an image each.
            module: the model itself, where it is loaded already: it answers with the weights that it has then.

        Raises:
            ModelError: the folder is unusable.
        """
        self.name, self.eyes = name, eyes
        device = pick_device(models.device)
        self._thinking = models.enable_thinking
        self.tokenizer: Any = eyes.tokenizer if eyes else load_tokenizer(name)
        if module is None:
            dtype = pick_dtype(models.dtype, device)
            module = load_causal_lm(name, dtype=dtype, device=device, sees=eyes is not None)
            use_products(module)
        self._model = module
        self.fingerprint = model_fingerprint(name, self._model)
        self.end_ids = end_token_ids(name, self.tokenizer)
        if not self.end_ids:
            raise ModelError(f"model {name!r} names no end token (eos_token_id): answers would never stop")
        text = self._model.config.get_text_config()
        kinds = set(getattr(text, "layer_types", None) or ["full_attention"])
        slides = getattr(text, "sliding_window", None) and getattr(text, "use_sliding_window", True)
        others = kinds - {"full_attention"}  # the kinds of layers that a `SlotCache` does not hold
        if not getattr(text, "num_attention_heads", 0):
            others = others or {"recurrent"}
        elif slides and not getattr(text, "layer_types", None):
            others = {"sliding_attention"}
        whole = None
        if others or eyes:
            whole = WholeRunner(self._model, name, ", ".join(sorted(others)), self.end_ids, eyes)
        self._old_num_threads = torch.get_num_threads()
        self._batcher = Batcher(self._model, whole, self.end_ids, engine.max_batch, engine.num_threads)

    async def generate(self, prompt_ids: Sequence[int], sampling: Sampling, image: bytes | None = None) -> Completion:
        """Continue token ids (`LanguageModel.generate`).

        After an image, an answer also ends with an image token (`Eyes.picture_ids`): there is no picture for it to
        represent.

        Raises:
            ModelError: its probabilities are not numbers; an image for a text model, or none for one that sees.
        """
        self._check_image(image)
        prompt = self._checked(prompt_ids, sampling.max_new_tokens)
        request = Request(prompt, sampling, image=image, generator=random.Random(sampling.seed))
        with spent_on("sampling"):
            ids, logprobs = await self._ask(request)
        if any(math.isnan(logprob) for logprob in logprobs):
            narrow = ", or float16 is too narrow (models.dtype=bfloat16)" * (str(self._model.dtype) == "torch.float16")
            raise ModelError(
                f"the log-probabilities of model {self.name!r} are nan: "
                f"the folder is damaged, or its training diverged (lower lr){narrow}"
            )
        return Completion(
            ids=tuple(ids),
            logprobs=tuple(logprobs),
            text=decode_action(self.tokenizer, ids, self.end_ids),
            finish_reason="stop" if ids[-1] in self.end_ids else "length",
            prompt_ids=tuple(prompt),
        )

    async def chat(self, messages: Sequence[Message], sampling: Sampling) -> Completion:
        """Answer chat messages (`LanguageModel.chat`)."""
        return await self.generate(encode_chat(self.tokenizer, messages, thinking=self._thinking), sampling)

    async def choice_logprobs(self, prompt_ids: Sequence[int], token_ids: Sequence[int]) -> list[float]:
        """Log-probabilities of some tokens at the first answer position (`LanguageModel.choice_logprobs`)."""
        self._check_image(None)
        prompt = self._checked(prompt_ids, 1)
        self._checked(token_ids, 0)
        with spent_on("scoring"):
            _, logprobs = await self._ask(Request(prompt, Sampling(), choices=list(token_ids)))
        return logprobs

    async def close(self) -> None:
        """Stop the thread; open requests fail with PolicyError."""
        await asyncio.to_thread(self._batcher.close)
        torch.set_num_threads(self._old_num_threads)  # training in this process gets its own back

    async def _ask(self, request: Request) -> Answer:
        future = self._batcher.submit(request)
        try:
            return await asyncio.wrap_future(future)
        except asyncio.CancelledError:
            request.abandoned = True
            raise

    def _check_image(self, image: bytes | None) -> None:
        if not self.eyes:
            refuse_image(self.name, image)
        elif image is None:
            raise ModelError(f"model {self.name!r} is opened with vision: each prompt needs its image")

    def _checked(self, prompt_ids: Sequence[int], num_new: int) -> list[int]:
        """Return token ids that the model can continue by `num_new`; PolicyError for none, unknown ones or too many."""
        prompt = list(prompt_ids)
        if not prompt:
            raise PolicyError("empty prompt")
        config = self._model.config.get_text_config()
        size, limit = int(config.vocab_size), int(getattr(config, "max_position_embeddings", 0))
        if not 0 <= min(prompt) <= max(prompt) < size:
            raise PolicyError(f"there is a token id outside the vocabulary of {self.name!r} (0 … {size - 1})")
        if limit and len(prompt) + num_new > limit:
            raise PolicyError(
                f"prompt of {len(prompt)} + {num_new} new tokens exceeds the {limit} positions of {self.name!r}; "
                "lower models.max_prompt_tokens or rollout.max_new_tokens"
            )
        return prompt


@dataclass(eq=False)
class Request:
    """One prompt waiting for, or in, generation."""

    prompt_ids: list[int]
    sampling: Sampling
    image: bytes | None = None
    """PNG of a prompt for a model that sees."""
    choices: list[int] | None = None
    """Score these tokens at the first answer position instead of generating."""
    future: Future[Answer] = field(default_factory=Future)
    """Result: (sampled ids, log-probs), or ([], log-probs of the choices)."""
    generator: random.Random = field(default_factory=random.Random)
    ids: list[int] = field(default_factory=list)
    logprobs: list[float] = field(default_factory=list)
    abandoned: bool = False
    """Set by a caller that no longer waits: the row is freed at the next step."""


class Batcher:
    """Owns a thread that runs a model. All methods may be called from any thread.

    `num_threads` (0: torch's own) is set for that thread, but MKL's part of it for the whole process: the owner of the
    batcher resets it after `close`.

    Args:
        whole: writes the model's answers where a `SlotCache` cannot hold them; else None.
    """

    def __init__(
        self, model: Any, whole: WholeRunner | None, end_ids: Sequence[int], max_batch: int, num_threads: int
    ) -> None:
        self._model, self._whole = model, whole
        self._end_ids = frozenset(end_ids)
        self._max_batch = max_batch
        self._num_threads = num_threads
        self._waiting: deque[Request] = deque()
        self._active: list[Request] = []
        self._cache: Any = None if whole else SlotCache(model, max_batch)
        self._wake = threading.Condition()
        self._closing = False
        self._thread = threading.Thread(target=self._run, name="webrl-llm", daemon=True)
        self._thread.start()

    def submit(self, request: Request) -> Future[Answer]:
        """Queue a request; cancelling its future takes it out of the queue, `abandoned` out of the batch."""
        with self._wake:
            if self._closing:
                raise PolicyError("the model is closed")
            self._waiting.append(request)
            self._wake.notify()
        return request.future

    def close(self) -> None:
        """Stop after the current pass; open requests fail with PolicyError."""
        with self._wake:
            self._closing = True
            self._wake.notify()
        self._thread.join()

    def _run(self) -> None:
        """Take waiting requests into free rows and decode one step, until closed."""
        if self._num_threads:
            torch.set_num_threads(self._num_threads)
        try:
            # a module that answers whole may be a trainer's, and keep tensors of this pass for its next
            with torch.no_grad() if self._whole else torch.inference_mode():
                while True:
                    with self._wake:
                        while not (self._closing or self._active or self._waiting):
                            self._wake.wait()
                    if self._whole:
                        time.sleep(_GATHER_S)
                    with self._wake:
                        if self._closing:
                            return
                        free = self._max_batch - len(self._active)
                        taken = [self._waiting.popleft() for _ in range(min(free, len(self._waiting)))]
                    try:
                        self._admit([r for r in taken if r.future.set_running_or_notify_cancel()])
                        self._decode()
                    except Exception as error:  # boundary: any exception of the model becomes the requests' error
                        logger.exception("the in-process model failed")
                        self._fail_active(_as_policy_error(error))
        finally:
            closed = PolicyError(_CLOSED)
            self._fail_active(closed)
            with self._wake:
                waiting = list(self._waiting)
                self._waiting.clear()
            for request in waiting:
                if request.future.set_running_or_notify_cancel():
                    request.future.set_exception(closed)

    def _admit(self, requests: list[Request]) -> None:
        """Prefill or score requests in groups of one kind and similar length."""
        requests.sort(key=lambda r: len(r.prompt_ids))
        for scored in (True, False):
            alike = [r for r in requests if (r.choices is not None) == scored]
            lengths = [len(r.prompt_ids) for r in alike]
            for group in self._whole.group(lengths, scored=scored) if self._whole else similar(lengths):
                size = max(1, _MAX_PREFILL_TOKENS // len(alike[group[-1]].prompt_ids))
                for start in range(0, len(group), size):
                    self._prefill([alike[i] for i in group[start : start + size]], scored=scored)

    def _prefill(self, group: list[Request], *, scored: bool) -> None:
        """Score a group, or draw its first tokens and assign rows to the answers that continue."""
        prompts = [r.prompt_ids for r in group]
        try:
            if scored:
                log_probs = torch.log_softmax(padded_pass(self._model, prompts, use_cache=False).float(), dim=-1)
                for request, row in zip(group, log_probs, strict=True):
                    request.future.set_result(([], row[request.choices].tolist()))
                return
            if self._whole:
                if self._closing or all(request.abandoned for request in group):
                    for request in group:
                        request.future.set_exception(PolicyError(_CLOSED))
                    return
                answers = self._whole.write(prompts, [r.sampling for r in group], [r.image for r in group])
                for request, answer in zip(group, answers, strict=True):
                    request.future.set_result(answer)
                return
            prefilled = DynamicCache()
            logits = padded_pass(self._model, prompts, past_key_values=prefilled, use_cache=True)
            for row, (request, is_done) in enumerate(zip(group, self._take_tokens(group, logits), strict=True)):
                if is_done:
                    request.future.set_result((request.ids, request.logprobs))
                else:
                    self._cache.admit(prefilled, row, len(request.prompt_ids))
                    self._active.append(request)
        except Exception as error:  # this group fails alone; answers already open continue
            logger.exception("prefill failed")
            for request in group:
                if not request.future.done() and request not in self._active:
                    request.future.set_exception(_as_policy_error(error))

    def _decode(self) -> None:
        """Advance every open answer by one token."""
        for row in reversed(range(len(self._active))):
            if self._active[row].abandoned:
                self._release(row)
        if not self._active:
            return
        finished = self._take_tokens(self._active, self._cache.decode([r.ids[-1] for r in self._active]))
        for row in reversed(range(len(finished))):
            if finished[row]:
                request = self._release(row)
                request.future.set_result((request.ids, request.logprobs))

    def _take_tokens(self, requests: list[Request], logits: torch.Tensor) -> list[bool]:
        """Draw one token for each request; returns which answers are complete."""
        tokens, logprobs = draw_tokens(logits, [r.sampling for r in requests], [r.generator for r in requests])
        finished = []
        for request, token, logprob in zip(requests, tokens, logprobs, strict=True):
            request.ids.append(token)
            request.logprobs.append(logprob)
            finished.append(token in self._end_ids or len(request.ids) >= request.sampling.max_new_tokens)
        return finished

    def _release(self, row: int) -> Request:
        """Take a row out; the last row takes its place, in the cache and here."""
        request = self._active[row]
        self._cache.release(row)
        self._active[row] = self._active[-1]
        self._active.pop()
        return request

    def _fail_active(self, error: Exception) -> None:
        for request in self._active:
            request.future.set_exception(error)
        self._active.clear()
        self._cache = None if self._whole else SlotCache(self._model, self._max_batch)


def _as_policy_error(error: Exception) -> PolicyError:
    hint = "; lower engine.max_batch" if isinstance(error, torch.OutOfMemoryError) else ""
    return PolicyError(f"the in-process model failed: {error}{hint}")
