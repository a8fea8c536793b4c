"""Real vLLM servers of a tiny model: exact ids and log-probs, weight changes, death and revival.

vLLM pins its own torch, so it may live in another environment: `make engines` makes one that conftest.py finds;
`WEBRL_VLLM_PYTHON=/path/to/python pytest -m vllm` names another.
"""

import asyncio
import os
import signal

import httpx
import pytest
from llm_builders import save_tiny_model, score

from webrl.config import EngineConfig, ModelsConfig
from webrl.errors import ModelError
from webrl.llm import Sampling, open_model
from webrl.llm.servers.vllm import verify_logprobs
from webrl.llm.servers.vllm_fleet import keep_servers
from webrl.runs.machine import query_gpus, visible_gpus

PYTHON = os.environ.get("WEBRL_VLLM_PYTHON") or None
pytestmark = [pytest.mark.vllm, pytest.mark.slow, pytest.mark.timeout(1200)]
EXTRA = ("--max-num-seqs", "8")


def scorer(folder, dtype="float32"):
    return lambda samples: [score(folder, prompt, action, dtype) for prompt, action, _ in samples]


def run(folder, use, dtype="float32", **engine):
    async def main():
        config = EngineConfig(kind="vllm", vllm_python=PYTHON, extra_args=EXTRA, start_timeout_s=600, **engine)
        models = ModelsConfig(dtype=dtype, max_prompt_tokens=400)
        async with open_model(str(folder), config, models) as model:
            await use(model)

    asyncio.run(main())


def leader(model):
    return model.fleet.servers[0]._process.pid


def test_ids_logprobs_new_weights_revival_and_breakdown(tmp_path):
    first, second = (save_tiny_model(tmp_path / str(i), seed=i, tie=False, hidden=256) for i in range(2))

    async def use(model):
        differences = await verify_logprobs(model, scorer(first), 1e-3)
        print(f"vllm float32: {max(differences):.2g} at most")
        assert max(differences) < 1e-3
        again = [await model.generate([5, 6, 7], Sampling(max_new_tokens=8, seed=1)) for _ in range(2)]
        assert again[0] == again[1]
        choices = await model.choice_logprobs([5, 6, 7], [8, 9])
        assert choices == pytest.approx([score(first, [5, 6, 7], [t])[0] for t in (8, 9)], abs=1e-3)

        (server,) = model.fleet.servers
        async with httpx.AsyncClient(trust_env=False) as stranger:
            for path in ("/collective_rpc", "/reset_prefix_cache", "/v1/completions", "/tokenize"):
                answer = await stranger.post(server.base_url + path, json={"method": "reload_weights"})
                assert answer.status_code == 401, path

        pid, fingerprint = leader(model), model.fingerprint
        await model.load_weights(second)
        assert leader(model) == pid, "reloaded in place"
        assert model.fingerprint != fingerprint
        await verify_logprobs(model, scorer(second), 1e-3)
        with pytest.raises(ModelError, match="differ from the trainer's"):
            await verify_logprobs(model, scorer(first), 1e-3)

        os.killpg(pid, signal.SIGKILL)
        await verify_logprobs(model, scorer(second), 1e-3)
        assert leader(model) != pid

        os.killpg(leader(model), signal.SIGKILL)
        with pytest.raises(ModelError, match=r"(?s)died again.*server0.log"):
            await model.generate([5, 6, 7], Sampling(max_new_tokens=8))

    run(first, use)


def test_adapters_are_loaded_beside_their_base(tmp_path):
    import torch
    from peft import LoraConfig, get_peft_model
    from transformers import AutoModelForCausalLM

    base = save_tiny_model(tmp_path / "base", tie=False, hidden=256)
    scorers = []
    for index in range(2):
        torch.manual_seed(index)
        config = LoraConfig(r=4, target_modules=["q_proj", "o_proj", "down_proj"], init_lora_weights=False)
        peft = get_peft_model(AutoModelForCausalLM.from_pretrained(base), config)
        peft.save_pretrained(tmp_path / f"lora{index}")
        peft.merge_and_unload().save_pretrained(tmp_path / f"merged{index}")
        scorers.append(scorer(tmp_path / f"merged{index}"))

    async def use(model):
        pid = leader(model)
        await verify_logprobs(model, scorers[0], 2e-3)
        await model.load_weights(tmp_path / "lora1")
        assert leader(model) == pid, "hot-loaded"
        await verify_logprobs(model, scorers[1], 2e-3)
        with pytest.raises(ModelError, match="differ from the trainer's"):
            await verify_logprobs(model, scorers[0], 2e-3)
        await model.load_weights(base)
        assert leader(model) == pid, "the base has been there all along"
        await verify_logprobs(model, scorer(base), 2e-3)

    run(tmp_path / "lora0", use)


def test_a_run_keeps_its_servers_and_tied_weights_take_each_others_place(tmp_path):
    folders = [save_tiny_model(tmp_path / str(i), seed=i, hidden=256) for i in range(2)]
    pids = []

    def check(folder, *others):
        async def use(model):
            pids.append(leader(model))
            differences = await verify_logprobs(model, scorer(folder, "bfloat16"), 0.05)
            print(f"vllm bfloat16: {max(differences):.2g} at most")
            for other in others:
                with pytest.raises(ModelError, match="differ from the trainer's"):
                    await verify_logprobs(model, scorer(other, "bfloat16"), 0.05)

        run(folder, use, dtype="bfloat16")

    with keep_servers():
        check(folders[0])
        check(folders[1], folders[0])
        check(folders[0], folders[1])
        assert len(set(pids)) == 1
    with pytest.raises(ProcessLookupError):
        os.killpg(pids[0], 0)


@pytest.mark.gpu
def test_sleeping_servers_leave_the_gpu_to_others(tmp_path):
    folder = save_tiny_model(tmp_path / "model", hidden=256)

    def free():
        gpus = set(visible_gpus())
        return sum(int(free) for *names, free in query_gpus("index,uuid,memory.free") if gpus & set(names))

    async def use(model):
        pid, awake = leader(model), free()
        async with model.asleep():
            asleep = free()
        print(f"MiB free: {awake} awake, {asleep} asleep, {free()} awake again")
        assert asleep - awake > 1024
        assert leader(model) == pid
        await verify_logprobs(model, scorer(folder, "bfloat16"), 0.05)

    run(folder, use, dtype="bfloat16", gpu_memory_utilization=0.1)
