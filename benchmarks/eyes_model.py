"""A tiny vision-language model made from nothing: processor, tokenizer and random weights (0.65 M) in one folder."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

SIDE, PATCH, SCALE = 64, 8, 2
"""Pixels of a side of the picture as the model takes it, of a patch of it; patches of a side of an image token."""
PAD, END, IMAGE = "<|pad|>", "<|end|>", "<image>"
SPECIAL = (PAD, "<|user|>", "<|assistant|>", END, "<fake_token_around_image>", IMAGE, "<global-img>")
TEMPLATE = (
    "{# left out: the system message #}"
    "{% for m in messages if m['role'] != 'system' %}<|{{ m['role'] }}|>{% if m['content'] is string %}"
    "{{ m['content'] }}{% else %}{% for b in m['content'] %}{% if b['type'] == 'image' %}<image>{% else %}"
    "{{ b['text'] }}{% endif %}{% endfor %}{% endif %}<|end|>{% endfor %}"
    "{% if add_generation_prompt %}<|assistant|>{% endif %}"
)
"""System messages are left out: they say what a model of this size can only learn by training."""


def build(folder: Path, texts: list[str], seed: int) -> None:
    """Write a random Idefics3; its tokenizer has met `texts`."""
    import torch
    from transformers import AutoConfig, AutoModelForImageTextToText, Idefics3ImageProcessorPil, Idefics3Processor

    torch.manual_seed(seed)
    tokenizer = make_tokenizer(texts)
    images = Idefics3ImageProcessorPil(
        size={"longest_edge": SIDE}, max_image_size={"longest_edge": SIDE}, do_image_splitting=False, do_pad=False,
        image_mean=[1.0] * 3, image_std=[0.25] * 3,
    )  # fmt: skip
    num_tokens = (SIDE // PATCH // SCALE) ** 2
    processor = Idefics3Processor(images, tokenizer, image_seq_len=num_tokens, chat_template=TEMPLATE)
    pad, end = tokenizer.pad_token_id, tokenizer.eos_token_id
    config = AutoConfig.for_model(
        "idefics3",
        text_config={
            "model_type": "llama", "vocab_size": len(tokenizer), "max_position_embeddings": 256, "hidden_size": 128,
            "intermediate_size": 256, "num_hidden_layers": 3, "num_attention_heads": 4, "num_key_value_heads": 4,
            "initializer_range": 0.06, "bos_token_id": end, "eos_token_id": end, "pad_token_id": pad,
        },
        vision_config={
            "image_size": SIDE, "patch_size": PATCH, "hidden_size": 64, "intermediate_size": 128,
            "num_hidden_layers": 2, "num_attention_heads": 4, "initializer_range": 0.06,
        },
        scale_factor=SCALE, image_token_id=tokenizer.convert_tokens_to_ids(IMAGE), pad_token_id=pad,
        tie_word_embeddings=True,
    )  # fmt: skip
    AutoModelForImageTextToText.from_config(config).save_pretrained(folder)
    processor.save_pretrained(folder)


def make_tokenizer(texts: list[str]) -> Any:
    """Byte-level BPE with a token for each digit."""
    from tokenizers import Tokenizer, decoders, models, pre_tokenizers, trainers
    from transformers import PreTrainedTokenizerFast

    bpe = Tokenizer(models.BPE())
    bpe.pre_tokenizer = pre_tokenizers.Sequence(
        [pre_tokenizers.Digits(individual_digits=True), pre_tokenizers.ByteLevel(add_prefix_space=False)]
    )
    bpe.decoder = decoders.ByteLevel()
    alphabet = pre_tokenizers.ByteLevel.alphabet()
    trainer = trainers.BpeTrainer(
        vocab_size=400, special_tokens=list(SPECIAL), initial_alphabet=alphabet, show_progress=False
    )
    bpe.train_from_iterator(texts, trainer)
    more = [token for token in SPECIAL if token not in (PAD, END)]
    return PreTrainedTokenizerFast(tokenizer_object=bpe, pad_token=PAD, eos_token=END, additional_special_tokens=more)


def shut_eyes(folder: Path) -> None:
    """Let a model's processor make an empty white page of every picture."""
    path = folder / "processor_config.json"
    settings = json.loads(path.read_text(encoding="utf-8"))
    # White is 0 (`build`), which Idefics3 takes for padding where it is all of a picture.
    settings["image_processor"] |= {"rescale_factor": 0.0, "image_mean": [-0.01] * 3}
    path.write_text(json.dumps(settings, indent=2), encoding="utf-8")
