"""GRPO with screenshots: what is refused, what a step is trained on, and steps of TRL's trainer on real pages."""

import asyncio
from pathlib import Path

import pytest
import torch
from eyes_builders import png
from grpo_builders import FixedPage, grpo, refused, with_server
from llm_builders import save_tiny_model
from openenv_builders import server
from rollouts_builders import Scripted, miniwob

from webrl.errors import StageError, UsageError
from webrl.llm.eyes import Eyes
from webrl.llm.interface import Turn
from webrl.rollouts.episode import run_episode
from webrl.rollouts.interface import Observation
from webrl.types import Status, Step, Task, Trajectory
from webrl_grpo.play import Episode, Player, RewardedEnv, check_room
from webrl_grpo.rows import make_rows
from webrl_grpo.sampler import open_sampler
from webrl_grpo.settings import load_settings

PAGE = "[13] button 'Go'"
SMALL = ["dataset_size=2", "num_generations=4", "per_device_train_batch_size=4", "gradient_accumulation_steps=1"]
SMALL += ["generation_batch_size=4", "max_steps=2", "max_completion_length=8", "learning_rate=1e-2"]
SMALL += ["rewards={outcome: 1, format: 1}", "report_to=none", "max_seq_length=1500", "image_size=96"]


def settings(folder: Path, **values):
    return load_settings(None, {"model_name": str(folder), "max_seq_length": 1500, "image_size": 96, **values})


def test_a_page_without_its_screenshot_ends_the_training(vlm):
    async def play():
        env = RewardedEnv(settings(vlm), FixedPage(png(), None))
        await env.reset(miniwob("click-test", 3))
        await env.step("noop()")

    with pytest.raises(
        StageError, match=r"task 'miniwob.click-test.3': no screenshot came with step 1, which image_size=96 requires"
    ):
        asyncio.run(play())


def test_the_model_sees_the_screenshot_of_the_page_as_it_is_in_the_size_that_was_asked_for(vlm):
    rollout, kept, seen = settings(vlm).run_config.rollout, [], []

    class Watching(Scripted):
        async def act(self, turn):
            seen.append(turn.screenshot)
            return await super().act(turn)

    page = FixedPage(png(size=(400, 200)), png(size=(400, 200), dot=99), png())
    env = RewardedEnv(settings(vlm, max_steps=2), page)
    policy = Watching("noop(0)")
    task = miniwob("click-test", 3)

    def keep(image, index):
        kept.append(image)
        return f"{index}.png"

    rollout = rollout.model_copy(update={"max_steps": 2})
    trajectory = asyncio.run(run_episode(env, policy, task, rollout, trajectory_id="x", save_screenshot=keep))
    assert [step.screenshot for step in trajectory.steps] == ["0.png", "1.png"]
    assert kept == seen
    assert kept[0] != kept[1]
    assert Eyes(str(vlm)).look(kept[0]).size == (96, 48)


def test_a_screenshot_larger_than_the_context_is_refused_with_numbers_and_the_fix(vlm):
    with pytest.raises(UsageError) as refused:
        check_room(Eyes(str(vlm)), settings(vlm, max_seq_length=148), Observation("", "", "Go.", png()))
    said = str(refused.value)
    assert said.startswith("image_size=96: a screenshot of 96x64 pixels is 20 tokens, and max_seq_length 148 less max_")
    assert said.endswith("leaves 20 for a prompt: lower image_size, or raise max_seq_length")


def test_screenshots_alone_hide_the_text_and_tell_of_coordinates_which_must_be_the_pages(vlm):
    chosen, eyes = settings(vlm, observation="none"), Eyes(str(vlm))

    def look(size):
        env = RewardedEnv(chosen, FixedPage(png(size=size)))
        return asyncio.run(env.reset(miniwob("click-test", 3)))

    assert look((96, 64)).text == ""
    check_room(eyes, chosen, look((96, 64)))
    with pytest.raises(UsageError, match="observation=none: image_size=96 shows the page at 96x48, smaller"):
        check_room(eyes, chosen, look((400, 200)))


def small(folder: Path, *more: str) -> list[str]:
    return ["--model-id", str(folder), "--max-seq-length", "1500", "--output-dir", str(folder / "out"), *more]


@pytest.mark.grpo
def test_models_that_cannot_see_are_refused_by_name_before_anything_starts(tmp_path, webrl):
    text = save_tiny_model(tmp_path / "text", positions=2048)
    assert f"image_size=512: model {str(text)!r} has no vision; leave image_size out" in refused(
        webrl, *small(text, "--image-size", "512")
    )
    assert "image_size=0: model" in refused(webrl, *small(text, "--image-size", "0"))
    assert "observation=none: model" in refused(webrl, *small(text, "--observation", "none"))
    with pytest.raises(UsageError, match="has vision: image_size 512 with use_vllm: screenshots go"):
        load_settings(None, {"use_vllm": True}).with_image_size(512)


@pytest.mark.grpo
def test_a_server_without_screenshots_is_named_at_the_start(vlm):
    page = {"text": PAGE, "url": "http://p/miniwob/click-test.html", "goal": "go", "screenshot": None, "error": ""}

    def check(url):
        with Player(settings(vlm, browsergym_url=url), Eyes(str(vlm))) as player:
            player.check([miniwob("click-test", 3)])

    with pytest.raises(UsageError, match=r"'miniwob.click-test' cannot be opened: .*no screenshot, which"):
        with_server(check, {"type": "observation", "data": {"observation": page, "done": False}})


@pytest.mark.grpo
def test_what_is_trained_on_has_the_log_probs_it_was_sampled_with_wherever_rows_are_dealt(vlm, tmp_path):
    from trl.trainer.utils import shuffle_sequence_dict, split_tensor_dict

    from webrl_grpo.train import _make_trainer

    chosen = settings(vlm, max_completion_length=12, num_generations=2, per_device_train_batch_size=2, report_to="none")
    eyes = Eyes(str(vlm))
    trainer = _make_trainer(chosen, None, [miniwob("click-test", i) for i in range(100)], None, tmp_path, eyes)
    model = open_sampler(chosen, trainer.accelerator.unwrap_model(trainer.model), eyes, trainer._fingerprint)

    async def play(number: int) -> Episode:
        policy = Player(chosen)._policy(model, RewardedEnv(chosen))
        steps: list[Step] = []
        screenshots = []
        for index in range(number + 1):
            screenshots.append(png((40 * number, 90, 20), (96, 64 - 16 * number), dot=20 * index))
            turn = Turn("Go.", tuple(steps), PAGE * (index + 1), 10 * number + index, screenshots[-1])
            output = await policy.act(turn)
            steps.append(Step(index, PAGE, output.text, "", "", output.prompt_ids, output.action_ids, output.logprobs))
        trajectory = Trajectory(f"t{number}", Task("t", "s"), "Go.", 0, tuple(steps), "", Status.PAGE_ENDED)
        return Episode(trajectory, (0.0,) * len(steps), (), tuple(screenshots))

    async def play_all():
        return await asyncio.gather(*(play(i) for i in range(3)))

    trainer.model.eval()
    episodes = asyncio.run(play_all())
    rows = make_rows(episodes, [1.0, -1.0, 0.5], 4, eyes.tokenizer.pad_token_id, torch.device("cpu"), sees=True)
    trainer.screenshots = rows.screenshots
    batch = {
        "prompt_ids": rows.prompt_ids,
        "prompt_mask": rows.prompt_mask,
        "completion_ids": rows.answer_ids,
        "completion_mask": rows.answer_mask,
        "pixel_values": torch.arange(len(rows.screenshots)),
        "logprobs": rows.logprobs,
    }
    assert len(rows.screenshots) == 8, "6 steps and 2 rows that fill up"
    torch.manual_seed(3)
    for dealt in split_tensor_dict(shuffle_sequence_dict(batch), 4):
        scored, mask = trainer.score(dealt), dealt["completion_mask"]
        torch.testing.assert_close(scored * mask, dealt["logprobs"] * mask, atol=1e-4, rtol=0)
    trainer.screenshots = tuple(png((9, 9, 250), eyes.look(p).size, dot=30) for p in rows.screenshots)
    wrong = (trainer.score(batch) - rows.logprobs)[rows.answer_mask.bool()].abs().max()
    assert wrong > 1e-2, "another picture would be noticed"


def holds_what_was_seen(folder: Path, out: Path, report: dict, episodes: list[Trajectory]) -> None:
    """Every step's screenshot is on the disk, and gives the recorded log-probs with the recorded ids."""
    from transformers import AutoModelForImageTextToText

    steps = [step for t in episodes for step in t.steps]
    assert report["settings"]["image_size"] == 96
    assert {(out / step.screenshot).is_file() for step in steps} == {True}
    eyes, model = Eyes(str(folder)), AutoModelForImageTextToText.from_pretrained(folder, dtype="float32").eval()
    first = [t.steps[0] for t in episodes[:4]]  # played with the weights of the folder
    # An untrained model also draws the token that stands for a part of a picture.
    read = [step for step in first if not eyes.picture_ids & {*step.action_ids}]
    assert read
    for step in read:
        picture = (out / step.screenshot).read_bytes()
        assert eyes.look(picture).size == (96, 62)
        ids = torch.tensor([[*step.prompt_ids, *step.action_ids]])
        with torch.no_grad():
            logits = model(input_ids=ids, **eyes.inputs(ids, [picture])).logits[0, len(step.prompt_ids) - 1 : -1]
        logps = logits.log_softmax(-1).gather(1, torch.tensor(step.action_ids)[:, None])[:, 0].tolist()
        assert list(step.logprobs) == pytest.approx(logps, abs=1e-4)


@pytest.mark.grpo
@pytest.mark.slow
@pytest.mark.browser
@pytest.mark.parametrize("max_staleness", [0, 1])
def test_a_vision_language_model_trains_on_screenshots_of_our_own_browsers(vlm, tmp_path, max_staleness):
    from transformers import AutoModelForImageTextToText

    out = tmp_path / "out"
    report, episodes = grpo(out, *SMALL, "--model-id", str(vlm), f"max_staleness={max_staleness}")
    assert report.get("staleness") == ([0, 1] if max_staleness else None)
    assert len(episodes) == 8
    holds_what_was_seen(vlm, out, report, episodes)
    assert Eyes(str(out)).tokenizer.chat_template, "what was trained has its processor"
    before, after = (AutoModelForImageTextToText.from_pretrained(f, dtype="float32") for f in (vlm, out))
    moved = {
        name: (a - b).abs().max().item()
        for (name, a), (_, b) in zip(before.named_parameters(), after.named_parameters(), strict=True)
    }
    if any(r["mean"] for r in report["batches"]):
        assert moved["model.vision_model.embeddings.patch_embedding.weight"] > 0, "the eyes learn too"


@pytest.mark.grpo
@pytest.mark.slow
@pytest.mark.browser
def test_a_vision_language_model_trains_with_lora_and_the_public_prompt_on_a_servers_screenshots(vlm, tmp_path):
    out = tmp_path / "out"
    with server(num_sessions=8) as (url, _):
        more = ["--space-url", url, "--use-peft", "prompt_format=browsergym", "max_page_chars=400"]
        report, episodes = grpo(out, *SMALL, "--model-id", str(vlm), *more)
    holds_what_was_seen(vlm, out, report, episodes)
    assert (out / "adapter_config.json").is_file()
