"""Opens the policy where episodes are played: the trainer's own module, TRL's vLLM engine, or the collector's copy.

The copy takes weights between two batches: `PolicyCopy` samples in the process itself, `ServedCopy` on vLLM servers.
"""

from __future__ import annotations

import asyncio
import contextlib
import math
import shutil
from collections.abc import AsyncIterator, Callable, Coroutine, Sequence
from contextlib import AbstractAsyncContextManager
from pathlib import Path
from typing import Any

import torch
from safetensors.torch import load

from webrl.errors import ModelError, PolicyError
from webrl.llm.eyes import Eyes
from webrl.llm.interface import Completion, LanguageModel, Message, Sampling
from webrl.llm.loading import load_causal_lm, load_tokenizer, pick_device, pick_dtype
from webrl.llm.servers.vllm import VllmModel
from webrl.llm.tokens import completion_of, encode_chat, refuse_image
from webrl.llm.verify import Sample, verify_logprobs
from webrl.runs.disk import make_folder
from webrl_grpo.settings import GrpoSettings

Generate = Callable[[list[list[int]]], tuple[Any, ...]]
"""Prompts -> (prompt ids, answers' ids, log-probs [A][1], …): `VLLMGeneration.generate`."""
_HANDOVER = ".handover"
"""Folder of the weights that the servers read, in the output folder."""


@contextlib.asynccontextmanager
async def closing(model: LanguageModel) -> AsyncIterator[LanguageModel]:
    """Lend a model for the block and close it, so that training has its threads."""
    try:
        yield model
    finally:
        await model.close()


def open_sampler(settings: GrpoSettings, module: Any, eyes: Eyes | None, fingerprint: str) -> LanguageModel:
    """Returns a model that answers with the module's current weights."""
    from webrl.llm.local.model import LocalModel

    config = settings.run_config
    name = eyes.name if eyes else settings.model_name
    model = LocalModel(name, config.rollout.engine, config.models, eyes=eyes, module=module)
    model.fingerprint = fingerprint
    return model


def lora_config(settings: GrpoSettings) -> Any:
    """Returns PEFT's configuration of the adapter."""
    from peft import LoraConfig

    return LoraConfig(
        r=settings.lora_r,
        lora_alpha=settings.lora_alpha,  # type: ignore[arg-type]
        lora_dropout=settings.lora_dropout,
        bias=settings.lora_bias,
        use_rslora=settings.use_rslora,
        target_modules=list(settings.lora_target_modules) or "all-linear",
        task_type="CAUSAL_LM",
    )


class TrlVllmModel:
    """TRL's vLLM engine: answers waiting prompts in batches, with the trainer's sampling settings and weights."""

    def __init__(self, name: str, tokenizer: Any, end_ids: Sequence[int], generate: Generate, fingerprint: str) -> None:
        self.name, self.eyes = name, None
        self.tokenizer = tokenizer
        self.fingerprint = fingerprint
        self._end_ids = tuple(end_ids)
        self._generate = generate
        self._waiting: list[tuple[list[int], asyncio.Future[tuple[list[int], list[float]]]]] = []
        self._draining: asyncio.Task[None] | None = None

    async def generate(
        self,
        prompt_ids: Sequence[int],
        sampling: Sampling,  # noqa: ARG002 - the trainer's
        image: bytes | None = None,
    ) -> Completion:
        """Continue token ids (`LanguageModel.generate`)."""
        refuse_image(self.name, image)
        future: asyncio.Future[tuple[list[int], list[float]]] = asyncio.get_running_loop().create_future()
        self._waiting.append((list(prompt_ids), future))
        if self._draining is None or self._draining.done():
            self._draining = asyncio.create_task(self._drain())
        ids, logprobs = await future
        return completion_of(self.tokenizer, prompt_ids, ids, logprobs, self._end_ids)

    async def _drain(self) -> None:
        """Answer all prompts that wait, and those that have come meanwhile."""
        while self._waiting:
            await asyncio.sleep(0)  # let others ask who are about to
            batch, self._waiting = self._waiting, []
            answers: Sequence[tuple[list[int], list[float]] | PolicyError]
            try:
                answers = await asyncio.to_thread(self._answer, [prompt for prompt, _ in batch])
                if len(answers) != len(batch):
                    raise PolicyError(f"vLLM gave {len(answers)} answers to {len(batch)} prompts")
            except Exception as error:  # boundary: any exception of the engine becomes the requests' error
                problem = error if isinstance(error, PolicyError) else PolicyError(f"vLLM failed: {error}")
                answers = [problem] * len(batch)
            for (_, future), answer in zip(batch, answers, strict=True):
                if future.done():
                    continue
                if isinstance(answer, PolicyError):
                    future.set_exception(answer)
                else:
                    future.set_result(answer)

    def _answer(self, prompts: list[list[int]]) -> list[tuple[list[int], list[float]] | PolicyError]:
        """Return ids and the sampled tokens' log-probs of each answer; a missing one is NaN."""
        _, answers, logprobs, *_ = self._generate(prompts)
        return [
            (list(ids), [math.nan if row[0] is None else float(row[0]) for row in rows])
            if ids
            else PolicyError("vLLM gave an empty answer")
            for ids, rows in zip(answers, logprobs, strict=True)
        ]

    async def chat(self, messages: Sequence[Message], sampling: Sampling) -> Completion:
        """Answer chat messages (`LanguageModel.chat`)."""
        return await self.generate(encode_chat(self.tokenizer, messages), sampling)

    async def choice_logprobs(self, prompt_ids: Sequence[int], token_ids: Sequence[int]) -> list[float]:  # noqa: ARG002
        """Raises ModelError: the trainer's engine samples only."""
        raise ModelError("TRL's vLLM engine scores no choices")

    async def close(self) -> None:
        """Let what is being answered end; the engine is the trainer's."""
        if self._draining is not None:
            await asyncio.gather(self._draining, return_exceptions=True)


class PolicyCopy:
    """The policy in this process, with the weights that were handed over last."""

    def __init__(self, settings: GrpoSettings, eyes: Eyes | None, device: str = "auto") -> None:
        self._settings = settings
        self._eyes = eyes
        self._fingerprint = ""
        self.module = load_causal_lm(
            settings.model_name, dtype="float32", device=pick_device(device), sees=eyes is not None
        )
        if settings.use_peft:
            from peft import get_peft_model

            self.module = get_peft_model(self.module, lora_config(settings)).eval()

    def take(self, fingerprint: str, data: bytes) -> None:
        """Replace the weights.

        Raises:
            ModelError: they are of another model.
        """
        new = load(data)
        own = {name: weight for name, weight in self.module.named_parameters() if weight.requires_grad}
        if {n: w.shape for n, w in new.items()} != {n: w.shape for n, w in own.items()}:
            odd = sorted(own.keys() ^ new.keys()) or [n for n in own if own[n].shape != new[n].shape]
            raise ModelError(f"the trainer's {self._settings.model_name!r} is not the collector's: {odd[:3]} differ")
        with torch.no_grad():
            for name, weight in own.items():
                weight.copy_(new[name])
        self._fingerprint = fingerprint

    def open(self) -> AbstractAsyncContextManager[LanguageModel]:
        """Lend the model with these weights."""
        return closing(open_sampler(self._settings, self.module, self._eyes, self._fingerprint))


class ServedCopy:
    """A text policy on vLLM servers of our own, which share the GPUs with the trainer.

    New weights go into the running servers as a checkpoint, or an adapter, and are verified by a handful of
    log-probabilities against a copy on the CPU.

    Args:
        run: completes a coroutine on the loop that the episodes are played on.

    Raises:
        ModelError: vLLM does not start, or does not know the architecture.
    """

    def __init__(self, settings: GrpoSettings, out: Path, run: Callable[[Coroutine[Any, Any, Any]], Any]) -> None:
        self._run = run
        self._copy = PolicyCopy(settings, None, device="cpu")
        self._tokenizer: Any = load_tokenizer(settings.model_name)
        self._folder = out / _HANDOVER
        shutil.rmtree(self._folder, ignore_errors=True)
        self._number = 0
        config = settings.run_config
        self._dtype = pick_dtype(config.models.dtype, "cuda" if torch.cuda.is_available() else "cpu")
        try:
            self._served: VllmModel = run(VllmModel.start(str(self._write()), config.rollout.engine, config.models))
        except BaseException:
            shutil.rmtree(self._folder, ignore_errors=True)
            raise

    def take(self, fingerprint: str, data: bytes) -> None:
        """Replace the weights.

        Raises:
            ModelError: they are of another model, or the servers do not answer with them.
        """
        self._copy.take(fingerprint, data)
        self._run(self._serve(self._write()))
        self._served.fingerprint = fingerprint

    async def _serve(self, folder: Path) -> None:
        await self._served.load_weights(folder)
        await verify_logprobs(self._served, self._score, 1e-3 if self._dtype == "float32" else 0.1)
        for old in self._folder.iterdir():
            if old != folder:
                shutil.rmtree(old)

    def _write(self) -> Path:
        """Write the copy's weights to a new folder for vLLM."""
        self._number += 1
        folder = self._folder / str(self._number)
        make_folder(folder)
        self._copy.module.save_pretrained(folder)
        self._tokenizer.save_pretrained(folder)
        return folder

    @torch.no_grad()
    def _score(self, samples: Sequence[Sample]) -> list[list[float]]:
        """Return the log-probabilities of the actions under the copy."""
        scores = []
        for prompt, action, _ in samples:
            ids = torch.tensor([[*prompt, *action]])
            logits = self._copy.module(input_ids=ids).logits[0, len(prompt) - 1 : -1]
            chosen = logits.float().log_softmax(-1).gather(1, ids[0, len(prompt) :, None])
            scores.append(chosen[:, 0].tolist())
        return scores

    def open(self) -> AbstractAsyncContextManager[LanguageModel]:
        """Lend the model with these weights; the servers run until `stop`."""
        return contextlib.nullcontext(self._served)

    def stop(self) -> None:
        """Stop the servers, and delete their weights."""
        self._run(self._served.close())
        shutil.rmtree(self._folder, ignore_errors=True)
