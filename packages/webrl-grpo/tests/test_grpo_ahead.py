"""GRPO with episodes collected ahead: which weights play, what is trained on, and how the second process ends."""

import asyncio
import contextlib
import os
import resource
import signal
import sys
from pathlib import Path

import psutil
import pytest
import torch
from grpo_builders import DEMO, TINY_ACTOR, grpo
from llm_builders import score
from processes import wait_until
from rollouts_builders import miniwob

from webrl.errors import ModelError, StageError, UsageError
from webrl.llm.loading import load_causal_lm
from webrl.types import Trajectory
from webrl_grpo.settings import GrpoSettings, load_settings

ROOT = Path(__file__).resolve().parents[3]
SMALL = ["dataset_size=6", "num_generations=4", "per_device_train_batch_size=4", "gradient_accumulation_steps=1"]
ADAPTER = ("--use-peft", "learning_rate=1e-2")
VLLM_PYTHON = os.environ.get("WEBRL_VLLM_PYTHON") or None
SMALL += ["generation_batch_size=8", "learning_rate=1e-3", "report_to=none", "envs_per_worker=4"]
AHEAD = [DEMO, "--model-id", TINY_ACTOR, *SMALL, "max_staleness=1"]
pytestmark = pytest.mark.grpo


def settings(**values) -> GrpoSettings:
    return load_settings(None, values)


def test_ratios_are_truncated_only_where_episodes_are_played_ahead(tmp_path):
    from webrl_grpo.train import _trl_config

    small = {"per_device_train_batch_size": 4, "report_to": "none"}
    assert _trl_config(settings(**small), tmp_path, on_gpu=False).delta is None
    assert _trl_config(settings(max_staleness=1, **small), tmp_path, on_gpu=False).delta == 3.0


def test_weights_of_another_model_are_refused_by_the_copy_that_plays_and_leave_it_as_it_was(tiny_model):
    from safetensors.torch import save

    from webrl_grpo.sampler import PolicyCopy

    copy = PolicyCopy(settings(model_name=str(tiny_model)), None, "cpu")
    weights = {name: torch.zeros_like(weight) for name, weight in copy.module.named_parameters()}
    name = "model.layers.1.mlp.up_proj.weight"
    for change, given in (
        ({name: torch.zeros(1, 1)}, rf"{name} is \[1, 1\] and should be \[128, 64\]"),
        ({"other": torch.zeros(1)}, r"other is \[1\] and should be absent"),
    ):
        with pytest.raises(ModelError, match=rf"the weights 'm@1' are not of model '.*model', which plays: {given}"):
            copy.take("m@1", save(weights | change))
    with pytest.raises(ModelError, match=rf"{name} is absent and should be \[128, 64\]"):
        copy.take("m@1", save({key: weight for key, weight in weights.items() if key != name}))
    assert all(weight.any() for weight in copy.module.parameters())
    copy.take("m@1", save(weights))
    assert not any(weight.any() for weight in copy.module.parameters())


def test_a_batch_is_played_by_weights_that_are_max_staleness_batches_behind_and_no_more(tiny_model, tmp_path):
    num_batches, max_staleness = 4, 2
    from webrl_grpo.collector import Collector

    module = load_causal_lm(str(tiny_model), dtype="float32")
    with Collector(settings(model_name=str(tiny_model), max_staleness=max_staleness), tmp_path) as collector:
        collector.check([])
        collector.wait()
        taken = []
        for version in range(num_batches):
            collector.hand_over(f"m@{version}", module)
            while len(collector.asked) <= max_staleness and version + len(collector.asked) < num_batches:
                collector.ask(version, [])
            taken.append(collector.take(version)[1])
        assert taken == [min(k, max_staleness) for k in range(num_batches)]
        collector.ask(0, [])
        with pytest.raises(StageError, match=rf"{max_staleness + 1} generation batches behind .* max_staleness="):
            collector.take(max_staleness + 1)
    assert not psutil.pid_exists(collector.pid)


def test_the_process_that_plays_deletes_the_weights_for_vllm_even_where_the_other_one_cannot(tmp_path):
    from webrl_grpo.collector import HANDOVER, Collector

    python = tmp_path / "python"
    python.write_text("#!/bin/sh\nexit 3\n")
    python.chmod(0o755)
    with Collector(settings(use_vllm=True, vllm_python=str(python)), tmp_path) as collector:
        (tmp_path / HANDOVER / "1").mkdir(parents=True)
        collector.check([])
        with pytest.raises(ModelError, match="the model server ended while it started"):
            collector.wait()
        assert not (tmp_path / HANDOVER).exists()


@pytest.mark.browser
def test_a_page_that_cannot_be_opened_is_told_before_vllm_starts(tmp_path):
    from webrl_grpo.collector import Collector

    (tmp_path / "python").write_text(f"#!/bin/sh\ntouch {tmp_path}/started\nexit 3\n")
    (tmp_path / "python").chmod(0o755)
    needs_vllm = settings(use_vllm=True, vllm_python=str(tmp_path / "python"))
    refused = pytest.raises(UsageError, match=r"task 'miniwob.no-such-page' cannot be opened")
    with Collector(needs_vllm, tmp_path) as collector, refused:
        collector.check([miniwob("no-such-page", 1)])
    assert not (tmp_path / "started").exists()


def test_weights_that_find_no_room_are_the_error_of_a_full_disk(tiny_model, tmp_path):
    from webrl_grpo.sampler import write_weights

    module, limits = load_causal_lm(str(tiny_model), dtype="float32"), resource.getrlimit(resource.RLIMIT_FSIZE)
    resource.setrlimit(resource.RLIMIT_FSIZE, (8192, limits[1]))
    try:
        with pytest.raises(OSError, match="File too large") as raised:
            write_weights(settings(model_name=str(tiny_model)), module, tmp_path / "weights")
    finally:
        resource.setrlimit(resource.RLIMIT_FSIZE, limits)
    assert raised.value.filename == str(tmp_path / "weights")


def test_a_process_that_was_killed_ends_the_training_with_its_exit_code(tmp_path):
    from webrl_grpo.collector import Collector

    with Collector(settings(max_staleness=1), tmp_path) as collector:
        os.kill(collector.pid, signal.SIGKILL)
        with pytest.raises(StageError, match="the process that collects episodes ended with exit code -9"):
            collector.check([])


@pytest.mark.slow
def test_a_server_that_is_not_there_is_named_as_it_is_without_a_second_process(tmp_path, webrl):
    arguments = ["grpo", DEMO, "--model-id", TINY_ACTOR, "--space-url", "http://127.0.0.1:9", "--output-dir"]
    said = []
    for staleness in (0, 1):
        said.append(webrl(2, *arguments, tmp_path / str(staleness), f"max_staleness={staleness}").err.splitlines()[-1])
        assert not list(tmp_path.rglob("model.safetensors"))
    assert said[0] == said[1]
    assert "no OpenEnv server can be used: OpenEnv server http://127.0.0.1:9" in said[0]


@pytest.mark.slow
@pytest.mark.parametrize(("number", "code"), [(signal.SIGINT, 130), (signal.SIGKILL, -9)])
def test_nothing_is_left_of_a_training_that_is_interrupted_or_killed_while_episodes_are_awaited(tmp_path, number, code):
    asked = asyncio.Event()

    async def never_answer(reader, writer):
        asked.set()
        with contextlib.suppress(ConnectionError):
            while await reader.read(1000):
                pass
        writer.close()

    async def interrupt() -> None:
        server = await asyncio.start_server(never_answer, "127.0.0.1", 0)
        url = f"http://127.0.0.1:{server.sockets[0].getsockname()[1]}"
        # A job in the background ignores it.
        heeds = "import signal; signal.signal(signal.SIGINT, signal.default_int_handler)"
        code_of_command = f"{heeds}; import sys; from webrl import cli; sys.exit(cli.main(sys.argv[1:]))"
        command = [sys.executable, "-c", code_of_command, "grpo", DEMO, "max_staleness=1", "--model-id", TINY_ACTOR]
        command += ["--space-url", url, "--output-dir", str(tmp_path / "out")]
        process = await asyncio.create_subprocess_exec(*command, cwd=ROOT)
        await asyncio.wait_for(asked.wait(), 300)
        children = psutil.Process(process.pid).children(recursive=True)
        assert any("webrl_grpo.collector" in child.cmdline() for child in children)
        process.send_signal(number)
        assert await asyncio.wait_for(process.wait(), 120) == code
        await asyncio.to_thread(wait_until, lambda: not any(child.is_running() for child in children))
        server.close()

    asyncio.run(interrupt())


def merged(adapter: Path, folder: Path) -> Path:
    """The tiny actor with an adapter, as one model."""
    from peft import PeftModel

    adapted = PeftModel.from_pretrained(load_causal_lm(TINY_ACTOR, dtype="float32"), adapter)
    adapted.merge_and_unload().save_pretrained(folder / "merged")
    return folder / "merged"


def assert_played_by(model: Path, episodes: list[Trajectory]) -> None:
    for step in [t.steps[0] for t in episodes]:
        assert list(step.logprobs) == pytest.approx(score(str(model), step.prompt_ids, step.action_ids), abs=1e-3)


def in_eights(episodes: list[Trajectory]) -> list[list[Trajectory]]:
    return [episodes[i : i + 8] for i in range(0, len(episodes), 8)]


@pytest.mark.slow
@pytest.mark.browser
def test_batches_are_played_ahead_with_recorded_weights_and_trained_on_with_their_probabilities(tmp_path, monkeypatch):
    """The ratio's denominator is what the weights of the record give to the tokens; a resumed training goes on so."""
    from webrl_grpo import trl_trainer

    batches = []

    class Watched(trl_trainer.AheadTrainer):
        def _generate_and_score_completions(self, inputs):
            batch = super()._generate_and_score_completions(inputs)
            for row in range(len(batch["prompt_ids"]) if not batches else 0):  # cut to its own prompt, it scores alike
                mine = {key: batch[key][row : row + 1] for key in ("prompt_ids", "prompt_mask", "completion_ids")}
                mine["completion_mask"] = mask = batch["completion_mask"][row : row + 1]
                recorded = batch["old_per_token_logps"][row : row + 1]
                torch.testing.assert_close(self.score(mine) * mask, recorded * mask, atol=1e-4, rtol=0)
            batches.append(batch)
            return batch

    monkeypatch.setattr(trl_trainer, "AheadTrainer", Watched)
    out = tmp_path / "out"
    report, episodes = grpo(out, *AHEAD, "save_interval=2")
    assert report["staleness"] == [0, 1, 1]
    versions = [[t.policy.partition("@step-")[2] for t in played] for played in in_eights(episodes)]
    assert versions == [["0"] * 8, ["0"] * 8, ["2"] * 8], "the last one by the weights that the first has trained"
    folders = {"0": TINY_ACTOR, "2": str(out / "checkpoint-2")}
    num_rows = 0
    for played, batch in zip(in_eights(episodes), batches, strict=True):
        folder = folders[played[0].policy.partition("@step-")[2]]
        steps = [s for t in played for s in t.steps]
        for row in range(len(batch["prompt_ids"])):
            prompt = batch["prompt_ids"][row][batch["prompt_mask"][row] == 1].tolist()
            answer = batch["completion_ids"][row][batch["completion_mask"][row] == 1].tolist()
            if not answer:  # it only fills up
                continue
            num_rows += 1
            behaviour = batch["old_per_token_logps"][row][: len(answer)].tolist()
            same = [s.logprobs for s in steps if (list(s.prompt_ids), list(s.action_ids)) == (prompt, answer)]
            assert any(behaviour == pytest.approx(list(recorded), abs=1e-7) for recorded in same)
            assert behaviour == pytest.approx(score(folder, prompt, answer), abs=1e-4)
    assert num_rows > 0

    report, episodes = grpo(out, *AHEAD, "--resume-from-checkpoint", str(out / "checkpoint-2"))
    assert report["staleness"] == [0, 1]
    assert {t.policy.partition("@step-")[2] for t in episodes[24:]} == {"2"}
    assert len(episodes) == 24 + 16


@pytest.mark.slow
@pytest.mark.browser
def test_an_adapter_is_handed_over_as_it_is_trained(tmp_path):
    out = tmp_path / "out"
    report, episodes = grpo(out, *AHEAD, *ADAPTER, "save_interval=2")
    assert report["staleness"] == [0, 1, 1]
    assert_played_by(merged(out / "checkpoint-2", tmp_path), episodes[16:])


def test_a_python_that_is_not_there_is_refused_before_anything_starts(tmp_path, webrl):
    options = ["--output-dir", str(tmp_path / "out"), "use_vllm=true", "vllm_python=/no/such/python"]
    for given, is_told in (([], False), (["vllm_server_url=http://h:1"], True), (["--vllm-mode", "server"], True)):
        said = webrl(2, "grpo", DEMO, "--model-id", TINY_ACTOR, *SMALL, *options, *given).err
        assert "vllm_python '/no/such/python' is not an executable" in said
        assert ("vllm_mode and vllm_server_url change nothing" in said) is is_told
    assert not (tmp_path / "out").exists()


@pytest.mark.vllm
@pytest.mark.slow
@pytest.mark.browser
@pytest.mark.timeout(1200)
@pytest.mark.parametrize(("whole", "max_staleness"), [(True, 0), (False, 1)])
def test_servers_of_our_own_play_with_what_is_handed_over_and_end_with_the_training(tmp_path, whole, max_staleness):
    out = tmp_path / "out"
    before = set(psutil.Process().children(recursive=True))  # browsers that tests share
    servers = [f"vllm_python={VLLM_PYTHON}"] if VLLM_PYTHON else []
    servers += ["use_vllm=true", f"max_staleness={max_staleness}"]
    report, episodes = grpo(out, *AHEAD, *(() if whole else ADAPTER), "save_interval=2", *servers)
    assert report["staleness"] == [0, max_staleness, max_staleness]
    checkpoint = out / f"checkpoint-{4 - 2 * max_staleness}"
    assert_played_by(checkpoint if whole else merged(checkpoint, tmp_path), episodes[16:])
    assert not list(out.glob(".*"))
    assert set(psutil.Process().children(recursive=True)) <= before
