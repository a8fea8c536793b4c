"""Find the tokens that end a model's turn.

A model may end its turn with several tokens: its tokenizer's, those of its generation config (Gemma's `<end_of_turn>`,
Llama's `<|eom_id|>`), the one its chat template writes after an answer. Sampling stops at any of them; training
targets end with the one that the prompt format writes.
"""

from __future__ import annotations

from typing import Any

from webrl.errors import ModelError
from webrl.llm.loading import adapter_base, model_folder
from webrl.llm.tokens import controls, render_chat

RELEASED_END = "<|eot_id|>"
"""The token that ends an action of the released checkpoints, for every model."""
_MARK = "webrl answer"


def end_token_ids(name: str, tokenizer: Any) -> tuple[int, ...]:
    """Return every id that ends an answer of the model; the first is the tokenizer's own, if it has one.

    Args:
        name: folder (a LoRA folder: its base's settings count too) or hub name.

    Raises:
        ModelError: generation_config.json or config.json name an id outside the vocabulary.
    """
    from transformers import AutoConfig, GenerationConfig

    folder = model_folder(name)
    base = adapter_base(folder) if folder else None
    configured: list[int] = []
    size = len(tokenizer)
    for source in filter(None, (name, base)):
        try:
            config: Any = AutoConfig.from_pretrained(source, trust_remote_code=False).get_text_config()
        except (OSError, ValueError):
            config = None  # a LoRA folder, or a tokenizer alone
        else:
            size = max(size, int(getattr(config, "vocab_size", 0) or 0))
        try:
            generation: Any = GenerationConfig.from_pretrained(source)
        except (OSError, ValueError):
            generation = config
        ends = getattr(generation, "eos_token_id", None)
        configured += [ends] if isinstance(ends, int) else list(ends or [])
    for end in configured:
        if not 0 <= end < size:
            raise ModelError(
                f"model {name!r}: generation_config.json or config.json names end token {end} (eos_token_id), but the "
                f"vocabulary has {size} tokens; correct eos_token_id there"
            )
    found = [tokenizer.eos_token_id] if tokenizer.eos_token_id is not None else []
    found += configured
    found += [end for end in (_template_end(tokenizer), _added(tokenizer, RELEASED_END)) if end is not None]
    return tuple(dict.fromkeys(found))


def closing_ids(tokenizer: Any, prompt_format: str) -> tuple[int, ...]:
    """The token that ends an answer in training targets, as a tuple; empty for a tokenizer without one.

    `webrl`: that of the released checkpoints; otherwise what the chat template writes behind an answer.
    """
    end = _added(tokenizer, RELEASED_END) if prompt_format == "webrl" else _template_end(tokenizer)
    end = tokenizer.eos_token_id if end is None else end
    return () if end is None else (end,)


def without_end(text: str) -> str:
    """An imported answer without the end token's text, which released actions carry along."""
    return text.removesuffix(RELEASED_END)


def _template_end(tokenizer: Any) -> int | None:
    """The first control token that the chat template writes behind an answer."""
    pattern = controls(tokenizer).any
    if not getattr(tokenizer, "chat_template", None) or pattern is None:
        return None
    chat = [{"role": "user", "content": "goal"}, {"role": "assistant", "content": _MARK}]
    match = pattern.match(render_chat(tokenizer, chat, add_generation_prompt=False).rpartition(_MARK)[2].lstrip())
    return int(tokenizer.convert_tokens_to_ids(match.group())) if match else None


def _added(tokenizer: Any, name: str) -> int | None:
    return next((i for i, token in tokenizer.added_tokens_decoder.items() if token.content == name), None)
