"""Decoding steps equal one pass over the whole text, and every architecture samples exactly what its model says."""

import asyncio
import math
import random

import pytest
import torch
import transformers
from llm_builders import build_tokenizer, save_tiny_model, score
from peft import LoraConfig, get_peft_model
from transformers import AutoTokenizer, LlamaConfig, LlamaForCausalLM
from transformers.cache_utils import DynamicCache

from webrl.config import EngineConfig, ModelsConfig
from webrl.errors import ModelError, PolicyError
from webrl.llm import Sampling, open_model
from webrl.llm.loading import model_fingerprint, tokenizer_fingerprint
from webrl.llm.local.runner import SlotCache, draw_tokens, padded_pass

LLAMA3_ROPE = {"rope_type": "llama3", "rope_theta": 10000.0, "factor": 8.0, "low_freq_factor": 1.0}
LLAMA3_ROPE |= {"high_freq_factor": 4.0, "original_max_position_embeddings": 128}


def llama(**changes):
    torch.manual_seed(0)
    size = {"vocab_size": 300, "hidden_size": 64, "intermediate_size": 96, "num_hidden_layers": 3}
    heads = {"num_attention_heads": 4, "num_key_value_heads": 2, "max_position_embeddings": 512}
    return LlamaForCausalLM(LlamaConfig(**(size | heads | {"initializer_range": 0.2} | changes))).eval()


def prompts(count):
    draw = random.Random(0)
    return [[draw.randrange(300) for _ in range(draw.randrange(1, 90))] for _ in range(count)]


@pytest.mark.parametrize(
    "changes",
    [
        {},
        {"num_key_value_heads": 4, "tie_word_embeddings": True},
        {"num_key_value_heads": 1, "head_dim": 32},
        {"rope_parameters": LLAMA3_ROPE},
        {"attention_bias": True},
    ],
)
@torch.inference_mode()
def test_decoding_steps_equal_one_pass_over_the_whole_text_as_rows_leave(changes):
    model = llama(**changes)
    cache, prefilled, texts = SlotCache(model, 8), DynamicCache(), prompts(6)
    logits = padded_pass(model, texts, past_key_values=prefilled, use_cache=True)
    for row, text in enumerate(texts):
        cache.admit(prefilled, row, len(text))
    for token in range(20):
        for text, found in zip(texts, logits, strict=True):
            assert torch.allclose(found, model(torch.tensor([text])).logits[0, -1], atol=1e-4)
        if token in (5, 9):
            cache.release(token % 3)
            texts[token % 3] = texts[-1]
            texts.pop()
        last = [(token * 7 + row) % 300 for row in range(len(texts))]
        texts = [[*text, new] for text, new in zip(texts, last, strict=True)]
        logits = cache.decode(last)


@torch.inference_mode()
def test_the_head_runs_where_prompts_end_under_an_adapter_too():
    shapes, model = [], llama()
    model.lm_head.register_forward_pre_hook(lambda _, args: shapes.append(args[0].shape[:2]))
    adapted = get_peft_model(model, LoraConfig(r=2, target_modules=["q_proj"], task_type="CAUSAL_LM")).eval()
    texts = [[1] * 50, [2] * 40]
    logits = padded_pass(adapted, texts, use_cache=False)
    assert shapes == [(2, 2)]
    for text, found in zip(texts, logits, strict=True):
        assert torch.allclose(found, adapted(torch.tensor([text])).logits[0, -1], atol=1e-4)


OTHERS = {
    "Mistral": {"sliding_window": 16},
    "Gemma3": {"sliding_window": 16, "head_dim": 8, "layer_types": ["sliding_attention", "full_attention"]},
    "Lfm2": {"layer_types": ["conv", "full_attention"]},
    "Qwen2": {},
}


def save(folder, kind):
    """A tiny model of an architecture with its tokenizer; returns the folder's name."""
    tokenizer = build_tokenizer()
    tokenizer.save_pretrained(folder)
    torch.manual_seed(0)
    config_class = getattr(transformers, f"{'Gemma3Text' if kind == 'Gemma3' else kind}Config")
    size = {"vocab_size": len(tokenizer), "hidden_size": 32, "intermediate_size": 64, "num_hidden_layers": 2}
    heads = {"num_attention_heads": 4, "num_key_value_heads": 2, "max_position_embeddings": 256}
    config = config_class(
        **size, **heads, initializer_range=0.2, eos_token_id=tokenizer.eos_token_id, **OTHERS[kind]
    )  # fmt: skip
    getattr(transformers, f"{kind}ForCausalLM")(config).save_pretrained(folder)
    return str(folder)


def test_a_model_that_writes_answers_whole_ends_between_two_of_them_when_it_is_closed(tmp_path):
    folder = save(tmp_path, "Mistral")

    async def main():
        async with open_model(folder, EngineConfig(num_threads=1), ModelsConfig(device="cpu")) as model:
            sampling = Sampling(max_new_tokens=150, temperature=0.0)
            tasks = [asyncio.create_task(model.generate([5, 6, i], sampling)) for i in range(7, 19)]
            await asyncio.wait(tasks, return_when=asyncio.FIRST_COMPLETED)
            await model.close()
            return await asyncio.gather(*tasks, return_exceptions=True)

    failed = [answer for answer in asyncio.run(main()) if isinstance(answer, PolicyError)]
    assert failed
    assert all("closed" in str(error) for error in failed)


@pytest.mark.parametrize("kind", OTHERS)
def test_every_architecture_samples_exactly_and_a_slow_one_says_so(kind, tmp_path, caplog):
    folder = save(tmp_path, kind)
    draw = random.Random(1)
    some = [[draw.randrange(5, 300) for _ in range(draw.randrange(3, 60))] for _ in range(5)]

    async def main():
        models = ModelsConfig(device="cpu", dtype="float32")
        async with open_model(folder, EngineConfig(max_batch=3, num_threads=1), models) as model:
            jobs = [model.generate(p, Sampling(max_new_tokens=4 + 3 * i, seed=i)) for i, p in enumerate(some)]
            scored = [model.choice_logprobs(p, [7, 8]) for p in some]
            return await asyncio.gather(asyncio.gather(*jobs), asyncio.gather(*scored))

    answers, choices = asyncio.run(main())
    for prompt, got in zip(some, choices, strict=True):
        assert got == pytest.approx([score(folder, prompt, [token])[0] for token in (7, 8)], abs=1e-4)
    assert ("engine.kind=vllm is faster" in caplog.text) is (kind != "Qwen2")
    assert max(len(p) + len(a.ids) for p, a in zip(some, answers, strict=True)) > 32  # twice the window
    for prompt, answer in zip(some, answers, strict=True):
        assert answer.logprobs == pytest.approx(score(folder, prompt, answer.ids), abs=1e-4)


PROBABILITIES = [0.5, 0.3, 0.15, 0.05, 0.0]


def draw(sampling, count=4000):
    logits = torch.tensor(PROBABILITIES).log().expand(count, -1)
    tokens, logprobs = draw_tokens(logits, [sampling] * count, [random.Random(i) for i in range(count)])
    assert all(
        lp == pytest.approx(math.log(PROBABILITIES[t]), abs=1e-5) for t, lp in zip(tokens, logprobs, strict=True)
    )
    return [tokens.count(i) / count for i in range(5)]


@pytest.mark.parametrize(
    ("sampling", "expected"),
    [
        (Sampling(), PROBABILITIES),
        (Sampling(temperature=0.0), [1, 0, 0, 0, 0]),
        (Sampling(temperature=0.5), [x * x / 0.365 for x in PROBABILITIES]),
        (Sampling(top_k=2), [0.625, 0.375, 0, 0, 0]),
        (Sampling(top_p=0.9), [0.5 / 0.95, 0.3 / 0.95, 0.15 / 0.95, 0, 0]),
        (Sampling(top_p=0.01), [1, 0, 0, 0, 0]),
    ],
)
def test_draws_follow_the_distribution(sampling, expected):
    assert draw(sampling) == pytest.approx(expected, abs=0.03)


def test_rows_of_one_batch_keep_their_own_settings():
    logits = torch.tensor(PROBABILITIES).log().expand(3, -1)
    settings = [Sampling(temperature=0.0), Sampling(top_k=1), Sampling()]
    for seed in range(20):
        tokens, _ = draw_tokens(logits, settings, [random.Random(seed) for _ in range(3)])
        alone, _ = draw_tokens(logits[:1], [Sampling()], [random.Random(seed)])
        assert tokens == [0, 0, alone[0]]


def test_the_largest_uniform_number_never_points_past_the_last_possible_token():
    class Top(random.Random):
        def random(self):
            return 1 - 2**-53

    tokens, _ = draw_tokens(torch.tensor([PROBABILITIES]).log(), [Sampling()], [Top()])
    assert tokens == [3]


def test_tokenizer_fingerprint_survives_saving_and_sees_a_changed_vocabulary(tmp_path):
    tokenizer = build_tokenizer()
    before = tokenizer_fingerprint(tokenizer)
    tokenizer.save_pretrained(tmp_path)
    tokenizer(["padded", "x"], padding=True, truncation=True, max_length=3)
    assert tokenizer_fingerprint(tokenizer) == before == tokenizer_fingerprint(AutoTokenizer.from_pretrained(tmp_path))
    tokenizer.add_tokens(["<new>"])
    assert tokenizer_fingerprint(tokenizer) != before


def test_weights_fingerprint_sees_other_weights(tmp_path):
    first = model_fingerprint(str(save_tiny_model(tmp_path / "a")))
    assert first == model_fingerprint(str(save_tiny_model(tmp_path / "b")))
    assert first != model_fingerprint(str(save_tiny_model(tmp_path / "c", seed=1)))
    with pytest.raises(ModelError, match="holds no weights"):
        model_fingerprint(str(tmp_path))
