"""The in-process engine against plain transformers: same numbers, whatever shares the batch."""

import asyncio
import random
from dataclasses import replace

import pytest
import torch
from llm_builders import PAGE, save_tiny_model, score

from webrl.config import EngineConfig, ModelsConfig, RunConfig
from webrl.errors import ModelError, PolicyError
from webrl.llm import Sampling, Turn, open_model
from webrl.llm.loading import base_of, load_causal_lm, model_folder
from webrl.llm.local.model import LocalModel
from webrl.llm.policy import ModelPolicy
from webrl.types import Step

SAMPLING = Sampling(max_new_tokens=12)


def prompts(count, longest=120, seed=0):
    draw = random.Random(seed)
    return [[draw.randrange(5, 300) for _ in range(draw.randrange(3, longest))] for _ in range(count)]


def run(tiny_model, use, dtype="float32", device="cpu", **engine):
    async def main():
        models = ModelsConfig(dtype=dtype, device=device)
        async with open_model(str(tiny_model), EngineConfig(**{"num_threads": 1, **engine}), models) as model:
            return await use(model)

    return asyncio.run(main())


async def generate_all(model, some, sampling=SAMPLING):
    return await asyncio.gather(*[model.generate(p, replace(sampling, seed=i)) for i, p in enumerate(some)])


@pytest.mark.parametrize(
    ("device", "dtype", "tolerance"),
    [
        ("cpu", "float32", 1e-4),
        ("cpu", "bfloat16", 0.15),
        pytest.param("cuda", "float32", 1e-2, marks=pytest.mark.gpu),
        pytest.param("cuda", "bfloat16", 0.3, marks=pytest.mark.gpu),
    ],
)
def test_sampled_logprobs_equal_a_plain_forward_pass(tiny_model, device, dtype, tolerance):
    some = prompts(20)
    answers = run(tiny_model, lambda m: generate_all(m, some), dtype, device, max_batch=6)
    assert {len(a.ids) for a in answers} != {12}, "some answers must end early, to exercise leaving the batch"
    for prompt, answer in zip(some, answers, strict=True):
        assert answer.logprobs == pytest.approx(score(tiny_model, prompt, answer.ids, dtype), abs=tolerance)


def test_a_module_that_a_trainer_runs_under_autocast_samples_from_itself(tiny_model):
    module = load_causal_lm(str(tiny_model), dtype="float32", device="cpu")
    module.forward = torch.autocast("cpu", dtype=torch.bfloat16)(module.forward)  # as accelerate wraps it on a GPU

    async def main():
        model = LocalModel(str(tiny_model), EngineConfig(num_threads=1), ModelsConfig(device="cpu"), module=module)
        try:
            return await generate_all(model, prompts(6))
        finally:
            await model.close()

    for prompt, answer in zip(prompts(6), asyncio.run(main()), strict=True):
        assert answer.logprobs == pytest.approx(score(tiny_model, prompt, answer.ids, "float32"), abs=0.15)


def test_answers_depend_on_their_seed_and_not_on_their_neighbours_or_threads(tiny_model):
    some = prompts(10)

    async def alone_and_together(model):
        together = await generate_all(model, some)
        alone = [await model.generate(p, replace(SAMPLING, seed=i)) for i, p in enumerate(some)]
        return together, alone, await model.generate(some[0], replace(SAMPLING, seed=99))

    together, alone, other = run(tiny_model, alone_and_together)
    assert [a.ids for a in together] == [a.ids for a in alone]
    assert other.ids != together[0].ids
    threaded = run(tiny_model, lambda m: generate_all(m, some), num_threads=3, max_batch=2)
    assert [a.ids for a in threaded] == [a.ids for a in alone]


def test_an_answer_ends_at_the_end_token_and_keeps_it(tiny_model):
    answers = run(tiny_model, lambda m: generate_all(m, prompts(40), replace(SAMPLING, max_new_tokens=200)))
    stopped = [a for a in answers if a.finish_reason == "stop"]
    assert stopped
    assert all(a.ids[-1] == 3 and 3 not in a.ids[:-1] and "<|eot_id|>" not in a.text for a in stopped)
    assert all(len(a.logprobs) == len(a.ids) for a in answers)


def test_cancelled_requests_leave_the_batch_and_others_go_on(tiny_model):
    async def cancel_some(model):
        endless = replace(SAMPLING, max_new_tokens=800)
        tasks = [asyncio.create_task(model.generate(p, replace(endless, seed=i))) for i, p in enumerate(prompts(6))]
        await asyncio.sleep(0.05)
        for task in tasks[:5]:
            task.cancel()
        kept = await tasks[5]
        return kept, await model.generate(prompts(1)[0], replace(SAMPLING, seed=0))

    kept, after = run(tiny_model, cancel_some, max_batch=4)
    assert kept.ids
    assert after.ids == run(tiny_model, lambda m: generate_all(m, prompts(1)))[0].ids


def test_open_requests_fail_when_the_model_is_closed(tiny_model):
    async def close_early(model):
        endless = replace(SAMPLING, max_new_tokens=900)
        tasks = [asyncio.create_task(model.generate(p, replace(endless, seed=i))) for i, p in enumerate(prompts(40))]
        await asyncio.sleep(0)
        await model.close()
        results = await asyncio.gather(*tasks, return_exceptions=True)
        failed = [r for r in results if isinstance(r, PolicyError)]
        assert failed
        assert all("closed" in str(r) for r in failed)
        with pytest.raises(PolicyError, match="closed"):
            await model.generate([5, 6], SAMPLING)

    run(tiny_model, close_early)


def test_bad_prompts_are_policy_errors_and_do_not_stop_the_engine(tiny_model):
    async def try_bad(model):
        for bad, message in (([], "empty"), ([5] * 1020, "1024 positions"), ([999999], "outside the vocabulary")):
            with pytest.raises(PolicyError, match=message):
                await model.generate(bad, SAMPLING)
        return await model.generate([5, 6], SAMPLING)

    assert run(tiny_model, try_bad).ids


def test_policy_stores_what_the_model_saw_and_sampled(tiny_model):
    config = RunConfig(rollout={"max_new_tokens": 8}, models={"max_prompt_tokens": 900, "prompt": "brief"})
    history = (Step(0, "", "click('3')", "click('3')", error="<|eot_id|>no such element"),)
    turn = Turn("Click OK.", history, PAGE, seed=5)

    async def act(model):
        policy = ModelPolicy(model, config, training=True)
        assert policy.fingerprint == model.fingerprint
        return await policy.act(turn), await policy.act(turn)

    first, second = run(tiny_model, act)
    assert first == second
    assert first.observation_shown == PAGE
    assert first.logprobs == pytest.approx(score(tiny_model, first.prompt_ids, first.action_ids), abs=1e-4)


@pytest.mark.parametrize("inner", ["actor", "snapshots/2e1fd397"])
def test_of_a_phase_or_of_the_hubs_cache_the_folder_of_the_model_is_named(tmp_path, inner):
    save_tiny_model(tmp_path / inner)
    with pytest.raises(ModelError, match=f"has no config.json; take .*/{inner}$"):
        base_of(str(tmp_path))


def test_a_folder_below_a_model_is_not_looked_for_on_the_hub_and_a_file_is_no_folder(tiny_model, monkeypatch):
    monkeypatch.chdir(tiny_model.parent)
    with pytest.raises(ModelError, match=f"model folder '{tiny_model.name}/checkpoint-9' does not exist"):
        model_folder(f"{tiny_model.name}/checkpoint-9")
    assert model_folder("surely/on-the-hub") is None
    with pytest.raises(ModelError, match=r"model '.*model\.safetensors' is a file; name its folder"):
        model_folder(str(tiny_model / "model.safetensors"))


def test_closing_gives_torch_its_threads_back(tiny_model):
    import torch

    before = torch.get_num_threads()
    torch.set_num_threads(2)
    try:
        run(tiny_model, lambda m: generate_all(m, prompts(3)))
        assert torch.get_num_threads() == 2
    finally:
        torch.set_num_threads(before)


def test_weights_that_are_no_numbers_are_laid_at_the_door_of_the_training_too(tmp_path):
    from safetensors.torch import load_file, save_file

    path = save_tiny_model(tmp_path) / "model.safetensors"
    weights = load_file(path)
    for factor, dtype, also in (
        (float("nan"), "float32", "$"),
        (1e5, "float16", r", or float16 is too narrow"),
    ):
        save_file({name: weight * factor for name, weight in weights.items()}, path, {"format": "pt"})
        said = r"are nan: the folder is damaged, or its training diverged \(lower lr\)"
        with pytest.raises(ModelError, match=said + also):
            run(tmp_path, lambda m: generate_all(m, prompts(1)), dtype)


def test_a_text_model_refuses_an_image_by_name(tiny_model):
    async def show(model):
        assert model.eyes is None
        with pytest.raises(ModelError, match="reads text only: it cannot be shown an image"):
            await model.generate([1, 2], SAMPLING, b"png")

    run(tiny_model, show)
