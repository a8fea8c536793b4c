"""Checks that a model's config, weights, adapter and tokenizer fit together, without reading the weights."""

from __future__ import annotations

import contextlib
from pathlib import Path
from typing import Any

from webrl.errors import ModelError
from webrl.llm import loading
from webrl.llm.tokens import closing_ids, controls, end_token_ids, render_chat
from webrl.runs.clock import spent_on

_TOLD = "Act."


@spent_on("model files")
def check_model(
    name: str, *, sees: bool | None = None, prompt_format: str = "webrl", use: str = "transformers"
) -> None:
    """Check that the model of that name can be loaded and has embeddings for all ids that its tokenizer produces.

    The model is built without memory (on torch's meta device), and transformers and peft compare it with the names and
    shapes in the headers of the weight files; of a model of the Hub, loading it makes the same comparison. For
    quantized weights, whose names differ, only the tokenizer is compared.

    Args:
        sees: whether it is loaded as a vision-language model (`rollout.image_size`); None: if its config says so.
        prompt_format: of its prompts; all but `webrl` need a chat template.
        use: the kind of engine that is to run it, or `training`. Quantized weights cannot be trained; vLLM reads them
            itself, transformers with another package.

    Raises:
        ModelError: it cannot; the message explains the mismatch and how to fix it.
    """
    base = loading.base_of(name)
    folder = loading.model_folder(base or name)
    if folder is None:
        return
    from webrl.llm.eyes import Eyes  # imports torch, which what is not there can do without

    model = _empty_model(base or name, folder, sees, "training" if base else use)
    if base:
        path = Path(name).expanduser() / loading.ADAPTER_FILE
        loading.merge_adapter(model, name, base, loading.headers(name, path))
    tokenizer = Eyes(name).tokenizer if sees else loading.load_tokenizer(name)
    # Control tokens that neither template nor page writes may lie beyond the embeddings: Gemma 3's placeholder of
    # pictures has no row in its models of text.
    pattern = controls(tokenizer).any
    unwritten = {i for i, t in tokenizer.added_tokens_decoder.items() if pattern and pattern.fullmatch(t.content)}
    ids: set[int] = {*tokenizer.get_vocab().values()} - unwritten
    ids |= {*tokenizer("a").input_ids, *closing_ids(tokenizer, "chat")}
    read = tokenizer.decode(tokenizer(loading.TEXT, add_special_tokens=False).input_ids)
    if "".join(loading.TEXT.split()) not in "".join(read.split()):
        raise ModelError(
            f"tokenizer of {name!r} makes {read!r} of {loading.TEXT!r}: the model would be trained on other texts than "
            "are executed; use a model whose tokenizer keeps case, accents and punctuation"
        )
    end_token_ids(name, tokenizer)
    chat = [{"role": role, "content": loading.TEXT} for role in ("user", "assistant", "user")]
    if prompt_format != "webrl":
        asked = render_chat(tokenizer, chat[:1])
        answered = render_chat(tokenizer, chat[:2], add_generation_prompt=False).partition(asked)[2]
        header = answered.partition(loading.TEXT)[0]  # of the answer; a thinking model's may be its own to write
        is_ignored = asked == render_chat(tokenizer, chat[:1], add_generation_prompt=False)
        if is_ignored and pattern and pattern.search(header):
            raise ModelError(
                f"chat template of {name!r} leaves the answer's {header!r} to the model, as it ignores "
                "add_generation_prompt: end it with {% if add_generation_prompt %}{{ " + repr(header) + " }}{% endif %}"
            )
        told = [{"role": "system", "content": _TOLD}, *chat[:1]]
        if _TOLD not in render_chat(tokenizer, told) and "{# left out" not in tokenizer.chat_template:
            raise ModelError(
                f"chat template of {name!r} leaves out the system message, which tells the model what to do: write "
                "its content there, or {# left out #} if the model was trained without it"
            )
    with contextlib.suppress(ModelError):  # no template, or one for other chats
        ids |= {*tokenizer(render_chat(tokenizer, chat)).input_ids}
    rows, largest = len(model.get_input_embeddings().weight), max(ids)
    if largest >= rows:
        raise ModelError(
            f"model {name!r} has embeddings for {rows} tokens, but its tokenizer writes ids up to {largest}: restore "
            "the tokenizer that the model was trained with, or resize the model and train it: "
            "model.resize_token_embeddings(len(tokenizer))"
        )


def _empty_model(name: str, folder: Path, sees: bool | None, use: str) -> Any:
    from transformers import AutoModelForCausalLM, AutoModelForImageTextToText, GenerationConfig
    from transformers.quantizers.auto import AutoHfQuantizer

    config = loading.config_of(str(folder), is_trained=use == "training")
    sees = hasattr(config, "vision_config") if sees is None else sees
    auto: Any = AutoModelForImageTextToText if sees else AutoModelForCausalLM
    classes = auto._model_mapping
    if type(config) not in classes:
        if hasattr(config, "auto_map"):
            raise ModelError(f"cannot load the model {name!r}: {loading.CODE_REFUSED}")
        wanted = "vision-language model" if sees else "causal language model"
        raise ModelError(f"model {name!r}: transformers has no {wanted} for its model type {config.model_type!r}")
    with loading.as_model_error(f"cannot load the model {name!r}"), loading.quiet():
        if hasattr(config, "quantization_config"):
            import torch

            if use == "transformers":
                AutoHfQuantizer.from_config(config.quantization_config).validate_environment()
            with torch.device("meta"):
                return classes[type(config)]._from_config(config)
        model, found = classes[type(config)].from_pretrained(
            None,
            config=config,
            generation_config=GenerationConfig(),
            state_dict={k: v for file in loading.weight_files(name) for k, v in loading.headers(name, file).items()},
            device_map={"": "meta"},
            ignore_mismatched_sizes=True,
            output_loading_info=True,
        )
    loading.refuse_gaps(name, model, found)
    return model


def weights_of(name: str) -> tuple[int, int] | None:
    """Return the parameters of a model and its copy's bytes (an adapter's: merged, in float32); None if not here."""
    name = (base := loading.base_of(name)) or name
    files = loading.weight_files(name)
    if not files or not all(file.is_file() for file in files):
        return None
    tensors = [tensor for file in files for tensor in loading.headers(name, file, scaled=True).values()]
    parameters = sum(tensor.numel() for tensor in tensors)
    return parameters, 4 * parameters if base else sum(file.stat().st_size for file in files)
