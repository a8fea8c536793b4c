"""The tiny models' tokenizer: byte-level BPE on our own text, one token per digit, a two-turn chat template."""

from __future__ import annotations

from collections.abc import Iterable

from tokenizers import Tokenizer, decoders, models, pre_tokenizers, trainers
from transformers import PreTrainedTokenizerFast

VOCABULARY = 2048
PAD, USER, ASSISTANT, END = "<|pad|>", "<|user|>", "<|assistant|>", "<|end|>"
CHAT_TEMPLATE = (
    "{% for m in messages %}"
    "{% if m['role'] == 'system' %}{# left out: short prompts for small models #}{% endif %}"
    "{% if m['role'] == 'user' %}" + USER + "{{ m['content'] }}" + END + "{% endif %}"
    "{% if m['role'] == 'assistant' %}" + ASSISTANT + "{{ m['content'] }}" + END + "{% endif %}"
    "{% endfor %}"
    "{% if add_generation_prompt %}" + ASSISTANT + "{% endif %}"
)
"""System messages are left out: they say what a model of this size can only learn by training."""


def train_tokenizer(texts: Iterable[str], vocabulary: int = VOCABULARY) -> PreTrainedTokenizerFast:
    """Byte-level BPE; `YES` and `NO` are kept whole, so that a judge's answer is one token."""
    bpe = Tokenizer(models.BPE())
    bpe.pre_tokenizer = pre_tokenizers.Sequence(
        [pre_tokenizers.Digits(individual_digits=True), pre_tokenizers.ByteLevel(add_prefix_space=False)]
    )
    bpe.decoder = decoders.ByteLevel()
    trainer = trainers.BpeTrainer(
        vocab_size=vocabulary,
        special_tokens=[PAD, USER, ASSISTANT, END],
        initial_alphabet=pre_tokenizers.ByteLevel.alphabet(),
        show_progress=False,
    )
    bpe.train_from_iterator(texts, trainer)
    tokenizer = PreTrainedTokenizerFast(
        tokenizer_object=bpe, pad_token=PAD, eos_token=END, additional_special_tokens=[USER, ASSISTANT]
    )
    tokenizer.chat_template = CHAT_TEMPLATE
    for answer in ("YES", "NO"):
        if len(tokenizer.encode(answer)) != 1:
            raise ValueError(f"{answer!r} is not one token; add more judge answers to the tokenizer's text")
    return tokenizer
