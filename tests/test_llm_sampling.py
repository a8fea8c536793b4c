"""Draws follow their distribution, and log-probs are always the model's own."""

import math
import random

import pytest
import torch
from llm_builders import build_tokenizer, save_tiny_model
from transformers import AutoTokenizer

from webrl.errors import ModelError
from webrl.llm.interface import Sampling
from webrl.llm.loading import tokenizer_fingerprint, weights_fingerprint
from webrl.llm.local.runner import draw_tokens

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
    first = weights_fingerprint(save_tiny_model(tmp_path / "a"))
    assert first == weights_fingerprint(save_tiny_model(tmp_path / "b"))
    assert first != weights_fingerprint(save_tiny_model(tmp_path / "c", seed=1))
    with pytest.raises(ModelError, match="holds no weights"):
        weights_fingerprint(tmp_path)
