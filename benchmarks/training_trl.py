"""TRL's SFTTrainer with packing on the samples of `training_engine.py`: the row to hold ours against.

Its defaults where they matter: packing `bfd` without padding, the model's float32 weights under bfloat16 autocast (a
LoRA's base in bfloat16), fused AdamW, no checkpointing. Attention is flash-attn's where it is installed, else sdpa with
a block-diagonal mask, which is what transformers then builds.
"""

from __future__ import annotations

import importlib.util
import tempfile
import time
from typing import Any

import torch
from training_engine import BATCH, TINY_BATCH, Figures, Shape, Steps, make_records
from training_shapes import shrink

from webrl.errors import TrainingError
from webrl.training.trainer import peak_memory_gib


def measure_trl(shape: Shape, steps: Steps, device: str, tiny: bool) -> Figures:
    """Tokens per second of the steps after the warm-up; rows are halved until they fit.

    Raises:
        TrainingError: TRL is not installed, or no row fits.
    """
    if importlib.util.find_spec("trl") is None:
        raise TrainingError("TRL is not installed; pip install trl")
    max_tokens = shape.max_tokens
    while max_tokens >= 2048:
        try:
            return train_trl(shape, max_tokens, steps, device, tiny)
        except torch.OutOfMemoryError:
            torch.cuda.empty_cache()
            max_tokens //= 2
    raise TrainingError("TRL: out of memory with rows of 2,048 tokens")


def train_trl(shape: Shape, max_tokens: int, steps: Steps, device: str, tiny: bool) -> Figures:
    """One training with rows of `max_tokens`."""
    from datasets import Dataset
    from transformers import AutoModelForCausalLM, TrainerCallback
    from trl import SFTConfig, SFTTrainer

    config = shrink(shape.config()) if tiny else shape.config()
    flash = importlib.util.find_spec("flash_attn") is not None
    with torch.device(device):
        model = AutoModelForCausalLM.from_config(
            config,
            dtype=torch.bfloat16 if shape.lora_rank else torch.float32,
            attn_implementation="flash_attention_2" if flash else "sdpa",
        )
    batch = TINY_BATCH if tiny else BATCH
    records = make_records(batch * steps.total, config.get_text_config().vocab_size)
    rows = [
        {"input_ids": [*r.prompt_ids, *r.action_ids], "labels": [-100] * len(r.prompt_ids) + list(r.action_ids)}
        for r in records
    ]
    num_tokens = sum(len(row["input_ids"]) for row in rows)
    rows_a_step = max(1, round(num_tokens / len(rows) * batch / max_tokens))
    ends: list[float] = []

    class Clock(TrainerCallback):
        def on_step_end(self, *_: Any, **__: Any) -> None:
            if device == "cuda":
                torch.cuda.synchronize()
            ends.append(time.perf_counter())

    with tempfile.TemporaryDirectory() as folder:
        options = SFTConfig(
            output_dir=folder, packing=True, max_length=max_tokens, per_device_train_batch_size=1,
            gradient_accumulation_steps=rows_a_step, num_train_epochs=1, learning_rate=1e-6, bf16=True,
            gradient_checkpointing=False, optim="adamw_torch_fused", logging_steps=1000, save_strategy="no",
            report_to="none", disable_tqdm=True, dataloader_drop_last=True, use_cpu=device == "cpu",
        )  # fmt: skip
        if device == "cuda":
            torch.cuda.reset_peak_memory_stats()
        SFTTrainer(
            model=model, args=options, train_dataset=Dataset.from_list(rows), processing_class=make_tokenizer(),
            callbacks=[Clock()], peft_config=make_lora(shape.lora_rank),
        ).train()  # fmt: skip
    timed = len(ends) - steps.warm_up
    if timed < 1:
        raise TrainingError(f"TRL made {len(ends)} steps of {num_tokens} tokens; more than {steps.warm_up} are needed")
    seconds = ends[-1] - ends[steps.warm_up - 1]
    return {
        "tokens_per_s": round(num_tokens * timed / len(ends) / seconds),
        "step_s": round(seconds / timed, 4),
        "row_tokens": max_tokens,
        "rows_a_step": rows_a_step,
        "attention": "flash" if flash else "sdpa",
        "peak_gib": round(peak_memory_gib(), 1),
    }


def make_lora(rank: int) -> Any:
    """Adapters as ours: in every matrix of the decoder."""
    if not rank:
        return None
    from peft import LoraConfig

    return LoraConfig(r=rank, lora_alpha=16, lora_dropout=0.0, target_modules="all-linear", task_type="CAUSAL_LM")


def make_tokenizer() -> Any:
    """Something for the trainer to hold; the samples are token ids already."""
    from tokenizers import Tokenizer
    from tokenizers.models import WordLevel
    from transformers import PreTrainedTokenizerFast

    words = Tokenizer(WordLevel({"a": 0, "b": 1}, unk_token="a"))
    return PreTrainedTokenizerFast(tokenizer_object=words, eos_token="b", pad_token="a", unk_token="a")
