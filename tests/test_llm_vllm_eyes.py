"""A real vLLM server that is shown pictures: the trainer's tokens, its log-probs, and weights that change.

Idefics3 stands for the others: vLLM reads its pictures without torchvision, which the environment of the tests has not.
"""

import asyncio
import os

import pytest
from eyes_builders import PICTURE_TOKEN, build_vlm, png
from test_training_eyes import LONG, SHORT, saved, seeing_config

from webrl.config import EngineConfig, ModelsConfig
from webrl.errors import ModelError
from webrl.llm import open_model, open_policy
from webrl.llm.eyes import Eyes
from webrl.llm.interface import Sampling
from webrl.llm.servers.http_pool import MalformedAnswer
from webrl.llm.servers.openai import parse_seen
from webrl.training.models import load_actor
from webrl.training.packing import Example, make_item
from webrl.training.scoring import score_targets

PYTHON = os.environ.get("WEBRL_VLLM_PYTHON") or None
PICTURES = (png(), png((20, 90, 200), (64, 96), dot=40), png((0, 160, 0), dot=60))


@pytest.mark.parametrize("family", sorted(PICTURE_TOKEN))
def test_a_prompt_is_folded_to_one_placeholder_that_stands_for_its_pictures_tokens(family, tmp_path):
    processor, _ = build_vlm(family, tmp_path)
    eyes = Eyes(str(tmp_path), processor=processor)
    for picture in PICTURES:
        look = eyes.look(picture)
        prompt = eyes.encode(LONG, look)
        folded = eyes.fold(prompt, look)
        text = eyes.tokenizer.decode(folded)
        assert text.count(PICTURE_TOKEN[family]) == 1
        assert text.replace(PICTURE_TOKEN[family], look.text) == eyes.tokenizer.decode(prompt)
    cut = [token for token in prompt if token not in eyes.picture_ids]
    with pytest.raises(ModelError, match="has its picture's tokens otherwise than they are written alone"):
        eyes.fold(cut, look)


def test_a_family_that_vllm_was_not_tried_with_is_refused_before_a_server_starts(tmp_path):
    build_vlm("lfm2_vl", tmp_path / "vlm")
    config = seeing_config(tmp_path / "vlm", tmp_path, "rollout.engine.kind=vllm")

    async def act():
        async with open_policy(str(tmp_path / "vlm"), config):
            raise AssertionError("opened")

    with pytest.raises(ModelError, match=r"is of type 'lfm2_vl', whose answers from vLLM to screenshots have not been"):
        asyncio.run(act())


def test_an_answer_to_another_prompt_or_without_log_probs_is_not_taken():
    choice = {"token_ids": [7], "logprobs": {"content": [{"token_id": 7, "logprob": -0.5}]}}
    answer = {"prompt_token_ids": [1, 2, 4], "choices": [choice]}
    assert parse_seen(answer, [1, 2, 4], "m") == ([7], [-0.5])
    for prompt, said in (([1, 2, 3], "3 tokens for 3, and they part at 2"), ([1, 2], "3 tokens for 2, and they part")):
        with pytest.raises(ModelError, match=rf"continued another prompt than model 'm' is trained on: {said}"):
            parse_seen(answer, prompt, "m")
    for broken in ({"token_id": 7, "logprob": -9999.0}, {"token_id": 8, "logprob": -0.5}, {"token_id": 7}):
        choice["logprobs"]["content"] = [broken]
        with pytest.raises(MalformedAnswer, match="no token ids or log-probs in"):
            parse_seen(answer, [1, 2, 4], "m")


@pytest.mark.vllm
@pytest.mark.slow
@pytest.mark.timeout(1800)
def test_tokens_and_log_probs_are_the_trainers_before_and_after_a_change_of_weights(tmp_path):
    folders = [tmp_path / str(seed) for seed in range(2)]
    for seed, folder in enumerate(folders):
        build_vlm("idefics3", folder, seed, hidden=128)
    actors = [load_actor(folder, sees=True).eval() for folder in folders]
    eyes = actors[0].eyes
    prompts = [eyes.encode((SHORT, LONG, SHORT)[i], eyes.look(picture)) for i, picture in enumerate(PICTURES)]

    def differences(answers, actor):
        items = [
            make_item(Example(answer.prompt_ids, answer.ids, saved(tmp_path, picture)), 2048)
            for answer, picture in zip(answers, PICTURES, strict=True)
        ]
        scored = score_targets(actor, items, 4096, "cpu")
        return [
            abs(a - b) for x, own in zip(answers, scored, strict=True) for a, b in zip(x.logprobs, own, strict=True)
        ]

    async def ask(model):
        asked = [
            model.generate(prompt, Sampling(max_new_tokens=12, seed=i), picture)
            for i, (prompt, picture) in enumerate(zip(prompts, PICTURES, strict=True))
        ]
        return await asyncio.gather(*asked)

    async def use():
        engine = EngineConfig(kind="vllm", vllm_python=PYTHON, extra_args=("--max-num-seqs", "8"), start_timeout_s=1200)
        async with open_model(
            str(folders[0]), engine, ModelsConfig(dtype="float32", max_prompt_tokens=400), sees=True
        ) as m:
            first = await ask(m)
            await m.load_weights(folders[1])
            second = await ask(m)
        return first, second

    first, second = asyncio.run(use())
    assert [a.prompt_ids for a in first] == [tuple(p) for p in prompts]
    largest = [
        float(max(differences(*pair))) for pair in ((first, actors[0]), (second, actors[1]), (second, actors[0]))
    ]
    print(f"vllm float32 with pictures: {largest}")
    assert largest[0] < 1e-3
    assert largest[1] < 1e-3, "nothing of the old weights is left, nor of what they saw"
    assert largest[2] > 1e-2
