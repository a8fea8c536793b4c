"""The policy as it answers in a process of ours: the trainer's own module, or the collector's copy of it."""

from __future__ import annotations

from typing import Any

from webrl.grpo.settings import GrpoSettings
from webrl.llm.eyes import Eyes
from webrl.llm.interface import LanguageModel


def open_sampler(settings: GrpoSettings, module: Any, eyes: Eyes | None, fingerprint: str) -> LanguageModel:
    """Who answers with the module's weights of now."""
    config = settings.run_config
    if eyes:
        from webrl.llm.local.vision import VisionModel

        return VisionModel(eyes, module, max_batch=config.rollout.engine.max_batch, fingerprint=fingerprint)
    from webrl.llm.local.model import LocalModel

    model = LocalModel(settings.model_name, config.rollout.engine, config.models, module=module)
    model.fingerprint = fingerprint
    return model


def lora_config(settings: GrpoSettings) -> Any:
    """PEFT's configuration of the adapter."""
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
