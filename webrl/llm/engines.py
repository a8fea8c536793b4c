"""Opening a model on the engine that the config names."""

from __future__ import annotations

from collections.abc import AsyncIterator
from contextlib import asynccontextmanager

from webrl.config import EngineConfig, ModelsConfig
from webrl.llm.interface import LanguageModel


@asynccontextmanager
async def open_model(name: str, engine: EngineConfig, models: ModelsConfig) -> AsyncIterator[LanguageModel]:
    """Load or reach a model, close it (threads, memory, server processes) at the end of the block.

    Example: `async with open_model("data/tiny/actor", config.rollout.engine, config.models) as model: …`

    Raises:
        ModelError: unusable folder, architecture or server.
    """
    model = await _start(name, engine, models)
    try:
        yield model
    finally:
        await model.close()


async def _start(name: str, engine: EngineConfig, models: ModelsConfig) -> LanguageModel:
    # Engines are imported here: torch, httpx and process handling are wanted by the one that is used.
    if engine.kind == "transformers":
        from webrl.llm.local.model import LocalModel

        return LocalModel(name, engine, models)
    if engine.kind == "openai":
        from webrl.llm.servers.openai import OpenAIModel

        return await OpenAIModel.connect(name, engine, thinking=models.enable_thinking)
    from webrl.llm.servers.vllm import VllmModel

    return await VllmModel.start(name, engine, models)
