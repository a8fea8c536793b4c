"""Opens the policy where episodes are played: the trainer's own module, or the collector's copy of it.

The copy takes weights between two batches: `PolicyCopy` samples in the process itself, `ServedCopy` on vLLM servers.
"""

from __future__ import annotations

import contextlib
import shutil
from collections.abc import AsyncIterator, Callable, Coroutine
from contextlib import AbstractAsyncContextManager
from pathlib import Path
from typing import Any

import torch
from safetensors.torch import load

from webrl.errors import ModelError
from webrl.llm.eyes import Eyes
from webrl.llm.interface import LanguageModel
from webrl.llm.loading import load_causal_lm, load_tokenizer, pick_device, quiet
from webrl.llm.servers.vllm import VllmModel, verify_logprobs
from webrl.runs.disk import full_disk_named, make_folder
from webrl.training.scoring import score_samples
from webrl_grpo.settings import GrpoSettings


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
        """Replace the weights. Raises ModelError if they are of another model."""
        new = load(data)
        own = {name: weight for name, weight in self.module.named_parameters() if weight.requires_grad}
        for name in sorted(own.keys() | new.keys()):
            due, given = (list(held[name].shape) if name in held else "absent" for held in (own, new))
            if due != given:
                raise ModelError(
                    f"the weights {fingerprint!r} are not of model {self._settings.model_name!r}, which plays: {name} "
                    f"is {given} and should be {due}; start again, with the same model_name and LoRA options"
                )
        with torch.no_grad():
            for name, weight in own.items():
                weight.copy_(new[name])
        self._fingerprint = fingerprint

    def open(self) -> AbstractAsyncContextManager[LanguageModel]:
        """Lend the model with these weights."""
        return closing(open_sampler(self._settings, self.module, self._eyes, self._fingerprint))


def write_weights(settings: GrpoSettings, module: Any, folder: Path) -> None:
    """Write the trained module, or its adapter, for vLLM, with the numbers that it computes with. Raises OSError."""
    make_folder(folder)
    weights = None
    if not settings.use_peft:  # on the CPU: beside vLLM and the trainer, a GPU may have no room for a copy
        dtype, state = torch.bfloat16 if torch.cuda.is_available() else torch.float32, module.state_dict()
        cast = {(w.data_ptr(), w.shape): w.to("cpu", dtype) for w in state.values()}  # a tied head stays the embeddings
        weights = {name: cast[w.data_ptr(), w.shape] for name, w in state.items()}
    with full_disk_named(folder), quiet():
        module.save_pretrained(folder, state_dict=weights)
        load_tokenizer(settings.model_name).save_pretrained(folder)


class ServedCopy:
    """A text policy on vLLM servers of our own, which share the GPUs with the trainer.

    New weights go into the running servers as a checkpoint, or an adapter, and are verified by a handful of
    log-probabilities, computed from the same files on the CPU.

    Args:
        folder: for weights to begin with, where the model has an adapter; not there yet.
        run: completes a coroutine on the loop that the episodes are played on.

    Raises:
        ModelError: vLLM does not start, or does not know the architecture.
    """

    def __init__(self, settings: GrpoSettings, folder: Path, run: Callable[[Coroutine[Any, Any, Any]], Any]) -> None:
        self._run = run
        self._tolerance = 0.1 if torch.cuda.is_available() else 1e-3
        config, self._folder = settings.run_config, folder
        if settings.use_peft:  # servers that start with an adapter take others later
            write_weights(settings, PolicyCopy(settings, None, device="cpu").module, folder)
        name = str(folder) if settings.use_peft else settings.model_name
        self._served: VllmModel = run(VllmModel.start(name, config.rollout.engine, config.models))

    def take(self, fingerprint: str, folder: Path) -> None:
        """Replace the weights by those of a folder (`write_weights`), and delete the folder before it.

        Raises:
            ModelError: the servers do not answer with them.
        """
        self._run(self._serve(folder))
        self._served.fingerprint = fingerprint
        shutil.rmtree(self._folder, ignore_errors=True)
        self._folder = folder

    async def _serve(self, folder: Path) -> None:
        await self._served.load_weights(folder)
        await verify_logprobs(self._served, lambda s: score_samples(s, folder, torch.float32), self._tolerance)

    def open(self) -> AbstractAsyncContextManager[LanguageModel]:
        """Lend the model with these weights; the servers run until `stop`."""
        return contextlib.nullcontext(self._served)

    def stop(self) -> None:
        """Stop the servers."""
        self._run(self._served.close())
