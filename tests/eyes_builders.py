"""Tiny random vision-language models of several families, with processors that are built from nothing."""

import asyncio
import io
from functools import partial
from pathlib import Path
from typing import Any

import lfm2_builders
from llm_builders import build_tokenizer, llama_sizes

from webrl.config import EngineConfig, ModelsConfig
from webrl.llm.interface import Sampling
from webrl.llm.local.model import LocalModel

_QWEN = ("qwen2_5_vl", "qwen3_vl", "qwen3_5")
IN_TEMPLATE = {
    "gemma3": "<start_of_image>",
    **dict.fromkeys(("idefics3", "lfm2_vl", "smolvlm"), "<image>"),
    **dict.fromkeys(_QWEN, "<|vision_start|><|image_pad|><|vision_end|>"),
}
TEMPLATE = (
    "{{ bos_token }}{% for m in messages %}<|start_header_id|>{{ m['role'] }}<|end_header_id|>\n\n"
    "{% for b in m['content'] %}{% if b['type'] == 'image' %}PICTURE{% elif b['type'] == 'text' %}{{ b['text'] }}"
    "{% endif %}{% endfor %}<|eot_id|>{% endfor %}"
    "{% if add_generation_prompt %}<|start_header_id|>assistant<|end_header_id|>\n\n{% endif %}"
)
QWEN_SPECIAL = ["<|vision_start|>", "<|vision_end|>", "<|image_pad|>", "<|video_pad|>"]
IDEFICS_SPECIAL = ["<fake_token_around_image>", "<image>", "<end_of_utterance>", "<global-img>", "<row_1_col_1>"]
IDEFICS_SPECIAL += ["<row_1_col_2>", "<row_2_col_1>", "<row_2_col_2>"]


def png(color: tuple[int, int, int] = (200, 30, 30), size: tuple[int, int] = (96, 64), dot: int = 0) -> bytes:
    """A picture of one color, with a white square `dot` pixels from the left."""
    from PIL import Image

    image = Image.new("RGB", size, color)
    image.paste((255, 255, 255), (dot, 8, dot + 24, 32))
    out = io.BytesIO()
    image.save(out, format="PNG")
    return out.getvalue()


def build_vlm(family: str, folder: Path, seed: int = 0, *, hidden: int = 32) -> tuple[Any, Any]:
    """(processor, model) of a family, saved to a folder; without the processor where loading it needs torchvision."""
    import torch

    torch.manual_seed(seed)
    processor = _PROCESSORS[family]()
    processor.tokenizer.chat_template = processor.chat_template
    tokenizer = processor.tokenizer
    text = llama_sizes(tokenizer, hidden, 2048) | {"intermediate_size": 64, "initializer_range": 0.3}
    model = _MODELS[family](text, tokenizer)
    model.eval().save_pretrained(folder)
    tokenizer.save_pretrained(folder)
    if family in ("gemma3", "idefics3", "lfm2_vl"):
        processor.save_pretrained(folder)
    return processor, model


def _tokenizer(special: list[str], **named: str) -> Any:
    tokenizer = build_tokenizer()
    tokenizer.add_special_tokens({"additional_special_tokens": [*special, *named.values()]})
    for name, token in named.items():
        setattr(tokenizer, name, token)
    return tokenizer


def _template(family: str) -> str:
    return TEMPLATE.replace("PICTURE", IN_TEMPLATE[family])


def _idefics3_processor() -> Any:
    from transformers import Idefics3ImageProcessorPil, Idefics3Processor

    images = Idefics3ImageProcessorPil(
        size={"longest_edge": 64}, max_image_size={"longest_edge": 32}, do_image_splitting=True
    )
    return Idefics3Processor(images, _tokenizer(IDEFICS_SPECIAL), image_seq_len=4, chat_template=_template("idefics3"))


def _smolvlm_processor() -> Any:
    """Its video half needs torchvision, and num2words only counts a video's frames."""
    from transformers import SmolVLMImageProcessorPil
    from transformers.models.smolvlm import processing_smolvlm

    processing_smolvlm.num2words = processing_smolvlm.num2words or str
    images = SmolVLMImageProcessorPil(
        size={"longest_edge": 64}, max_image_size={"longest_edge": 32}, do_image_splitting=True
    )
    kind = _without_video(processing_smolvlm.SmolVLMProcessor)
    return kind(images, _tokenizer(IDEFICS_SPECIAL), None, image_seq_len=4, chat_template=_template("smolvlm"))


def _gemma3_processor() -> Any:
    from transformers import Gemma3ImageProcessorPil, Gemma3Processor

    tokenizer = _tokenizer(
        [], boi_token="<start_of_image>", eoi_token="<end_of_image>", image_token="<image_soft_token>"
    )
    for name in ("boi_token", "eoi_token", "image_token"):
        setattr(tokenizer, f"{name}_id", tokenizer.convert_tokens_to_ids(getattr(tokenizer, name)))
    images = Gemma3ImageProcessorPil(size={"height": 32, "width": 32})
    return Gemma3Processor(images, tokenizer, chat_template=_template("gemma3"), image_seq_length=4)


def _qwen_processor(family: str) -> Any:
    from transformers import Qwen2_5_VLProcessor, Qwen2VLImageProcessorPil, Qwen3VLProcessor

    patch = 14 if family == "qwen2_5_vl" else 16
    images = Qwen2VLImageProcessorPil(
        patch_size=patch, size={"shortest_edge": 28 * 28, "longest_edge": 128 * 128}, merge_size=2
    )
    kind = _without_video(Qwen2_5_VLProcessor if family == "qwen2_5_vl" else Qwen3VLProcessor)
    return kind(images, _tokenizer(QWEN_SPECIAL), None, chat_template=_template(family))


def _without_video(kind: type) -> type:
    """A processor class that does without its video half, which needs torchvision."""

    class PicturesOnly(kind):  # type: ignore[misc, valid-type]
        def check_argument_for_proper_class(self, argument_name: str, argument: Any) -> Any:
            if argument_name == "video_processor":
                return type(None)
            return super().check_argument_for_proper_class(argument_name, argument)

    PicturesOnly.__name__ = kind.__name__
    return PicturesOnly


def _idefics(family: str, text: dict[str, Any], tokenizer: Any) -> Any:
    from transformers import AutoConfig, AutoModelForImageTextToText

    vision = {"hidden_size": 32, "intermediate_size": 64, "num_hidden_layers": 2, "num_attention_heads": 2}
    config = AutoConfig.for_model(
        family,
        text_config={"model_type": "llama", **text},
        vision_config={**vision, "image_size": 32, "patch_size": 8, "initializer_range": 0.3},
        scale_factor=2,
        image_token_id=tokenizer.convert_tokens_to_ids("<image>"),
        pad_token_id=text["pad_token_id"],
    )
    return AutoModelForImageTextToText.from_config(config)


def _gemma3(text: dict[str, Any], tokenizer: Any) -> Any:
    import torch
    from transformers import Gemma3Config, Gemma3ForConditionalGeneration

    vision = {"hidden_size": 32, "intermediate_size": 64, "num_hidden_layers": 2, "num_attention_heads": 2}
    text |= {"head_dim": 8, "layer_types": ["sliding_attention", "full_attention"], "sliding_window": 16}
    config = Gemma3Config(
        text_config=text | {"query_pre_attn_scalar": 8},
        vision_config={**vision, "image_size": 32, "patch_size": 8},
        mm_tokens_per_image=4,
        image_token_id=tokenizer.image_token_id,
        boi_token_index=tokenizer.boi_token_id,
        eoi_token_index=tokenizer.eoi_token_id,
        initializer_range=0.3,
    )
    model = Gemma3ForConditionalGeneration(config)
    torch.nn.init.normal_(model.model.multi_modal_projector.mm_input_projection_weight, std=0.3)  # zero from the start
    return model


def _qwen(family: str, text: dict[str, Any], tokenizer: Any) -> Any:
    from transformers import AutoConfig, AutoModelForImageTextToText

    vision: dict[str, Any] = {"depth": 2, "num_heads": 2, "intermediate_size": 64, "out_hidden_size": 32}
    vision |= {"hidden_size": 32, "spatial_merge_size": 2, "temporal_patch_size": 2}
    rope = {"rope_type": "default", "rope_theta": 10000.0, "mrope_section": [2, 1, 1]}
    if family == "qwen2_5_vl":
        vision |= {"patch_size": 14, "fullatt_block_indexes": [1], "window_size": 56}
    else:
        vision |= {"patch_size": 16, "num_position_embeddings": 64}
        text = {**text, "head_dim": 8}
        rope |= {"mrope_interleaved": True}
    if family == "qwen3_vl":
        vision |= {"deepstack_visual_indexes": [0]}
    if family == "qwen3_5":
        rope |= {"partial_rotary_factor": 1.0}
        text |= {"layer_types": ["linear_attention", "full_attention"], "linear_key_head_dim": 8}
        text |= {"linear_value_head_dim": 8, "linear_num_key_heads": 2, "linear_num_value_heads": 4}
    names = ("image_pad", "video_pad", "vision_start", "vision_end")
    keys = ("image_token_id", "video_token_id", "vision_start_token_id", "vision_end_token_id")
    ids = {key: tokenizer.convert_tokens_to_ids(f"<|{name}|>") for key, name in zip(keys, names, strict=True)}
    config = AutoConfig.for_model(family, text_config={**text, "rope_parameters": rope}, vision_config=vision, **ids)
    return AutoModelForImageTextToText.from_config(config)


_PROCESSORS = {
    "gemma3": _gemma3_processor,
    "idefics3": _idefics3_processor,
    "lfm2_vl": lambda: lfm2_builders.build_processor(_tokenizer(lfm2_builders.SPECIAL), _template("lfm2_vl")),
    "smolvlm": _smolvlm_processor,
    **{family: partial(_qwen_processor, family) for family in _QWEN},
}
_MODELS = {
    "gemma3": _gemma3,
    **{family: partial(_idefics, family) for family in ("idefics3", "smolvlm")},
    "lfm2_vl": lfm2_builders.build_model,
    **{family: partial(_qwen, family) for family in _QWEN},
}


def sampled(eyes: Any, model: Any, *asked: tuple[Any, Sampling, bytes], max_batch: int = 8) -> list[Any]:
    """The sampler's answers to (prompt, sampling, picture), asked for at once."""

    async def sample() -> list[Any]:
        engine, models = EngineConfig(max_batch=max_batch), ModelsConfig(device="cpu", dtype="float32")
        sampler = LocalModel(eyes.name, engine, models, eyes=eyes, module=model)
        try:
            return await asyncio.gather(*(sampler.generate(*each) for each in asked))
        finally:
            await sampler.close()

    return asyncio.run(sample())


def sampled_together(eyes: Any, model: Any, prompts: Any, pngs: Any) -> list[Any]:
    """The sampler's answers of at most twelve tokens to prompts with a picture each."""
    settings = [Sampling(max_new_tokens=12, seed=i) for i in range(len(prompts))]
    return sampled(eyes, model, *zip(prompts, settings, pngs, strict=True))
