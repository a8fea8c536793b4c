"""Opening a model on the engine that the config names."""

from __future__ import annotations

from collections.abc import AsyncIterator, Awaitable, Callable
from contextlib import asynccontextmanager

from webrl.config import EngineConfig, ModelsConfig, RunConfig
from webrl.errors import ModelError
from webrl.llm.interface import LanguageModel, Policy
from webrl.runs.memory import without_collections


@asynccontextmanager
async def open_model(
    name: str, engine: EngineConfig, models: ModelsConfig, *, sees: bool = False
) -> AsyncIterator[LanguageModel]:
    """Load or reach a model, close it (threads, memory, server processes) at the end of the block.

    Example: `async with open_model("data/tiny/actor", config.rollout.engine, config.models) as model: …`

    Args:
        sees: open it as a vision-language model, whose prompts have an image each.

    Raises:
        ModelError: unusable folder, architecture or server, or a model that cannot see.
    """
    # Engines are imported here: torch, httpx and process handling are wanted by the one that is used.
    model: LanguageModel
    if engine.kind == "transformers":
        with without_collections():
            if sees:
                from webrl.llm.local.vision import VisionModel

                model = VisionModel.load(name, engine, models)
            else:
                from webrl.llm.local.model import LocalModel

                model = LocalModel(name, engine, models)
    elif engine.kind == "openai":
        if sees:
            raise ModelError("engine.kind=openai: not yet with screenshots; take transformers or vllm")
        from webrl.llm.servers.openai import OpenAIModel

        model = await OpenAIModel.connect(name, engine, thinking=models.enable_thinking)
    else:
        from webrl.llm.servers.vllm import VllmModel

        model = await VllmModel.start(name, engine, models, sees=sees)
    try:
        yield model
    finally:
        await model.close()


@asynccontextmanager
async def open_policy(
    name: str,
    config: RunConfig,
    *,
    temperature: float | None = None,
    training: bool = False,
    verify: Callable[[LanguageModel], Awaitable[None]] | None = None,
) -> AsyncIterator[Policy]:
    """Open a model on `rollout.engine` as the policy of a run, with vision where `rollout.image_size` is set.

    Args:
        temperature, training: as of `ModelPolicy`.
        verify: called with the model before it is used.

    Raises:
        ModelError: unusable folder, architecture or server, or a model that cannot see.
        UsageError: sampling that a training rollout may not use.
    """
    from webrl.llm.policy import ModelPolicy

    sees = config.rollout.image_size is not None
    async with open_model(name, config.rollout.engine, config.models, sees=sees) as model:
        if verify is not None:
            await verify(model)
        yield ModelPolicy(model, config, temperature=temperature, training=training)
