"""Tiny real models for the tests of webrl.llm: a byte-level tokenizer and a random-weight Llama."""

from functools import lru_cache
from pathlib import Path
from typing import Any

CHAT_TEMPLATE = (
    "{{ bos_token }}{% for m in messages %}<|start_header_id|>{{ m['role'] }}<|end_header_id|>\n\n"
    "{{ m['content'] | trim }}<|eot_id|>{% endfor %}"
    "{% if add_generation_prompt %}<|start_header_id|>assistant<|end_header_id|>\n\n{% endif %}"
)
PAGE = "RootWebArea 'Choose List', focused\n\t[12] button 'OK', clickable\n\t[13] textbox 'Name' value='x'\n"


def build_tokenizer() -> Any:
    """Byte-level BPE with Llama-3's control tokens, digits split."""
    from tokenizers import Tokenizer, decoders, models, pre_tokenizers, trainers
    from transformers import PreTrainedTokenizerFast

    inner = Tokenizer(models.BPE())
    inner.pre_tokenizer = pre_tokenizers.Sequence(
        [pre_tokenizers.Digits(individual_digits=True), pre_tokenizers.ByteLevel(add_prefix_space=False)]
    )
    inner.decoder = decoders.ByteLevel()
    special = ["<|begin_of_text|>", "<|start_header_id|>", "<|end_header_id|>", "<|eot_id|>", "<|pad|>"]
    trainer = trainers.BpeTrainer(
        vocab_size=384,
        special_tokens=special,
        initial_alphabet=sorted(pre_tokenizers.ByteLevel.alphabet()),
        show_progress=False,
    )
    inner.train_from_iterator([PAGE, "click('12') fill('13', 'hello') YES NO Goal: History: none Page:"] * 8, trainer)
    tokenizer = PreTrainedTokenizerFast(
        tokenizer_object=inner, bos_token="<|begin_of_text|>", eos_token="<|eot_id|>", pad_token="<|pad|>"
    )
    tokenizer.chat_template = CHAT_TEMPLATE
    return tokenizer


def llama_sizes(tokenizer: Any, hidden: int, positions: int) -> dict[str, Any]:
    """Of a tiny Llama's config: 2 layers, grouped-query attention, the tokenizer's ids."""
    size = {"vocab_size": len(tokenizer), "hidden_size": hidden, "intermediate_size": 2 * hidden}
    heads = {"num_hidden_layers": 2, "num_attention_heads": 4, "num_key_value_heads": 2}
    tokens = {name: getattr(tokenizer, name) for name in ("bos_token_id", "eos_token_id", "pad_token_id")}
    return size | heads | tokens | {"max_position_embeddings": positions}


def save_tiny_model(folder: Path, *, seed: int = 0, tie: bool = True, hidden: int = 64, positions: int = 1024) -> Path:
    """A random-weight Llama (2 layers, grouped-query attention) with its tokenizer, saved to `folder`."""
    import torch
    from transformers import LlamaConfig, LlamaForCausalLM

    tokenizer = build_tokenizer()
    tokenizer.save_pretrained(folder)
    torch.manual_seed(seed)
    spread = 0.2 * (64 / hidden) ** 0.5
    config = LlamaConfig(**llama_sizes(tokenizer, hidden, positions), tie_word_embeddings=tie, initializer_range=spread)
    LlamaForCausalLM(config).save_pretrained(folder)
    return folder


def score(folder: Path, prompt_ids: Any, action_ids: Any, dtype: str = "float32") -> list[float]:
    """Log-probabilities of `action_ids` after `prompt_ids` by one plain transformers forward pass."""
    import torch

    model = _reference_model(folder, dtype)
    ids = torch.tensor([[*prompt_ids, *action_ids]])
    with torch.no_grad():
        log_probs = model(ids).logits[0].float().log_softmax(-1)
    before = log_probs[len(prompt_ids) - 1 : -1]
    return before.gather(1, torch.tensor(action_ids)[:, None])[:, 0].tolist()


@lru_cache(maxsize=4)
def _reference_model(folder: Path, dtype: str) -> Any:
    from transformers import AutoModelForCausalLM

    return AutoModelForCausalLM.from_pretrained(folder, dtype=dtype).eval()
