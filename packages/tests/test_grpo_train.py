"""GRPO in the browser: what an episode records, what ends it, and steps of TRL's trainer on real pages."""

import asyncio
import math

import pytest
import torch
from grpo_builders import DEMO, TINY_ACTOR, FixedPage, grpo, with_server
from llm_builders import score
from openenv_builders import server
from rollouts_builders import Scripted, miniwob
from safetensors.torch import load_file, save_file
from transformers import AutoModelForCausalLM

from webrl import cli
from webrl.config import EngineConfig, ModelsConfig
from webrl.errors import StageError, UsageError
from webrl.llm import open_model
from webrl.llm.interface import Turn
from webrl.llm.loading import base_of, load_causal_lm, load_tokenizer
from webrl.rollouts.episode import run_episode
from webrl.types import Step
from webrl_arena.world import running
from webrl_grpo.play import Player, RewardedEnv, user_text
from webrl_grpo.settings import GrpoSettings, load_settings

SMALL = [DEMO, "--model-id", TINY_ACTOR, "dataset_size=4", "num_generations=4", "per_device_train_batch_size=4"]
SMALL += ["gradient_accumulation_steps=2", "generation_batch_size=8"]
UP = "model.layers.1.mlp.up_proj.weight"


def settings(**values) -> GrpoSettings:
    return load_settings(None, values)


def test_an_unreadable_answer_becomes_the_fallback_action_and_is_counted():
    async def play():
        env = FixedPage(reward=0.5, goal="")
        rewarded = RewardedEnv(settings(fallback_action="scroll(0, 100)", default_goal="Do it."), env)
        first = await rewarded.reset(miniwob("click-test"))
        await rewarded.step("I would click")
        last = await rewarded.step("click('13')")
        return env, rewarded, first, last

    env, seen, first, last = asyncio.run(play())
    assert env.acted == ["scroll(0, 100)", "click('13')"]
    assert (seen.rewards, seen.unreadable, seen.url) == ([0.5, 0.5], [0], "http://page/2")
    assert first.goal == last.observation.goal == "Do it.", "a page that gives no goal has the default one"


def test_a_reward_that_is_no_number_ends_the_training_and_one_above_1_that_of_outcomes():
    async def play(reward, **values):
        env, rollout = RewardedEnv(settings(**values), FixedPage(reward=reward)), settings().run_config.rollout
        await run_episode(env, Scripted("noop(0)"), miniwob("click-test", 3), rollout, trajectory_id="x")
        return env.rewards

    for reward in (math.nan, math.inf):
        with pytest.raises(StageError, match=rf"task 'miniwob.click-test.3': the reward of step 0 is {reward}"):
            asyncio.run(play(reward))
    with pytest.raises(StageError, match=r"x: the environment's reward is 20\.0; scale it to \[0, 1\]"):
        asyncio.run(play(20.0))
    assert set(asyncio.run(play(20.0, rewards={"sum": 1.0}))) == {20.0}


def test_answers_are_drawn_among_the_tokens_that_top_k_leaves_whatever_the_prompt(tiny_model):
    async def draw(**values) -> set[tuple[int, ...]]:
        chosen = settings(model_name=str(tiny_model), max_seq_length=1024, max_completion_length=8, **values)
        async with open_model(str(tiny_model), EngineConfig(num_threads=1), ModelsConfig(device="cpu")) as model:
            policy = Player(chosen)._policy(model, RewardedEnv(chosen))
            turns = [Turn("Click OK.", (), "[13] button 'OK'", seed=seed) for seed in range(3)]
            return {(await policy.act(turn)).action_ids for turn in turns}

    for prompt in ("chat", "browsergym"):
        assert len(asyncio.run(draw(prompt_format=prompt))) == 3
        assert len(asyncio.run(draw(prompt_format=prompt, top_k=1))) == 1


def test_the_public_prompt_shows_goal_history_errors_and_clickable_elements():
    steps = [Step(0, "", "r", "click('3')"), Step(1, "", "r", "noop()", error="no element\nwith bid '3'")]
    page = "RootWebArea 'x'\n\t[13] button 'Click Me!'\n\t[14] generic\n\tStaticText 'a'\n\t[a7] textbox ''"
    env = RewardedEnv(settings())
    env.url, env.rewards = "http://p/", [0.0, 0.5]
    text = user_text("Click it.", steps, page, env, 2)
    assert text.splitlines()[:7] == [
        "Step: 3",
        "Goal: Click it.",
        "Current URL: http://p/",
        "Previous steps:",
        "1. click('3') -> reward +0.00",
        "2. noop() -> reward +0.50 (error)",
        "Last action error: no element with bid '3'",
    ]
    assert "Clickable elements: 13, a7\n" in text
    assert page in text


OTHER_FIELDS = {"type": "observation", "data": {"observation": {"html": "<p>"}, "reward": 0, "done": False}}
NO_TEXT = {"text": "", "url": "http://p/miniwob/click-test.html", "goal": "go", "error": "", "last_action_error": False}


@pytest.mark.parametrize(
    ("answers", "said"),
    [
        ([OTHER_FIELDS], "malformed observation: KeyError: 'text'"),
        ([{"type": "error", "data": {"message": "Unknown task 'click-test'"}}], "Unknown task 'click-test'"),
        ([{"type": "observation", "data": {"observation": NO_TEXT, "reward": 0, "done": False}}] * 2, "has no text"),
    ],
)
def test_a_server_of_another_version_or_without_the_task_is_named_at_the_start(answers, said):
    def check(url):
        with Player(settings(browsergym_url=url)) as player:
            player.check([miniwob("click-test", 3)])

    with pytest.raises(UsageError) as refused:
        with_server(check, *answers)
    assert "'miniwob.click-test'" in str(refused.value)
    assert said in str(refused.value)


@pytest.mark.grpo
@pytest.mark.slow
@pytest.mark.browser
def test_two_steps_on_real_pages_move_the_weights_and_leave_every_sampled_token(tmp_path, capsys):
    report, episodes = grpo(tmp_path / "out", *SMALL, "learning_rate=1e-3")
    assert len(episodes) == 16
    assert {t.status.finished for t in episodes} == {True}
    groups = {}
    for t in episodes:
        groups.setdefault(t.task.task_id, []).append(t)
    assert {len(g) for g in groups.values()} == {4}, "a group attempts the same page"
    for group in groups.values():
        assert len({t.steps[0].observation for t in group}) == 1, "which looks the same to all of them"
    tokenizer = load_tokenizer(TINY_ACTOR)
    for step in (s for t in episodes for s in t.steps):
        assert len(step.logprobs) == len(step.action_ids) > 0
        assert tokenizer.decode(step.action_ids).removesuffix("<|end|>") == step.response
    first = episodes[0].steps[0]
    assert first.logprobs == pytest.approx(score(TINY_ACTOR, first.prompt_ids, first.action_ids), abs=1e-4)
    assert report["reward_first"]["episodes"] == report["reward_last"]["episodes"] == 8
    said = capsys.readouterr().out
    assert "mean reward, last" in said
    assert f"saved {tmp_path / 'out'}\nThese rewards are from training pages: measure the model" in said
    before, after = (load_causal_lm(str(f), dtype="float32") for f in (TINY_ACTOR, tmp_path / "out"))
    moved = [(a - b).abs().max().item() for a, b in zip(before.parameters(), after.parameters(), strict=True)]
    assert max(moved) > 1e-5
    code = cli.main(["grpo", DEMO, "--model-id", TINY_ACTOR, "--output-dir", str(tmp_path / "out")])
    assert code == 2, "a folder that holds a training is not written over"


@pytest.mark.grpo
@pytest.mark.slow
@pytest.mark.browser
def test_steps_of_a_rate_that_is_far_too_high_are_taken_back_until_the_training_ends(tmp_path, capsys, monkeypatch):
    monkeypatch.setattr("webrl_grpo.trl_trainer._MAX_LOWERED", 1)
    steps = ["gradient_accumulation_steps=1", "generation_batch_size=8", "dataset_size=8", "lr_scheduler_type=constant"]
    report, _ = grpo(tmp_path / "out", *SMALL, *steps, "learning_rate=1", "max_kl=0.5")
    assert [line.partition(": ")[2] for line in report["taken_back"]] == [
        "back to the weights of step 0, at learning_rate=0.25"
    ]
    assert "past max_kl=0.5: the weights of step 0 are saved; lower learning_rate" in report["stopped"]
    assert len(report["kl"]) == 2
    said = capsys.readouterr().out
    assert f"taken back: {report['taken_back'][0]}" in said
    assert f"ended early: {report['stopped']}" in said
    short, _ = grpo(tmp_path / "short", *SMALL, *steps, "dataset_size=4", "learning_rate=1", "max_kl=0.5")
    assert short["taken_back"][0].endswith("back to the weights of step 0"), "no step is left"
    before, after = (load_causal_lm(str(f), dtype="float32") for f in (TINY_ACTOR, tmp_path / "out"))
    assert all(torch.equal(a, b) for a, b in zip(before.parameters(), after.parameters(), strict=True))


@pytest.mark.grpo
@pytest.mark.slow
@pytest.mark.browser
def test_a_training_whose_first_steps_were_taken_back_goes_on_at_a_rate_that_it_stands(tmp_path):
    steps = ["gradient_accumulation_steps=1", "generation_batch_size=8", "dataset_size=8", "lr_scheduler_type=constant"]
    report, _ = grpo(tmp_path / "out", *SMALL, *steps, "learning_rate=4e-4", "max_kl=0.5")
    assert len(report["taken_back"]) == 1, report["kl"]
    assert not report["stopped"]
    assert report["kl"][-1] <= 0.5 < report["kl"][0]
    before, after = (load_causal_lm(str(f), dtype="float32") for f in (TINY_ACTOR, tmp_path / "out"))
    moved = [(a - b).abs().max().item() for a, b in zip(before.parameters(), after.parameters(), strict=True)]
    assert 1e-5 < max(moved) < 5e-4, "four steps at 1e-4"


@pytest.mark.grpo
@pytest.mark.slow
@pytest.mark.browser
def test_weights_that_the_last_step_has_broken_are_not_saved(tmp_path, capsys):
    small = ["dataset_size=1", "num_generations=4", "per_device_train_batch_size=4", "gradient_accumulation_steps=1"]
    small += ["generation_batch_size=4", "temperature=3"]
    broken = ["learning_rate=1.0e+39", "weight_decay=1", "lr_scheduler_type=constant"]
    out = str(tmp_path / "out")
    assert cli.main(["grpo", DEMO, "--model-id", TINY_ACTOR, "--output-dir", out, *small, *broken]) == 1
    assert "is not finite after step 1: not saved; lower learning_rate" in capsys.readouterr().err
    assert not list(tmp_path.rglob("*.safetensors"))


@pytest.mark.grpo
@pytest.mark.slow
@pytest.mark.browser
def test_on_a_server_with_lora_the_public_prompt_and_several_steps_on_one_batch(tiny_model, tmp_path):
    out = tmp_path / "out"
    more = ["prompt_format=browsergym", "--use-peft", "gradient_accumulation_steps=1", "generation_batch_size=8"]
    more += ["max_seq_length=1024", "max_page_chars=400", "rewards={outcome: 1, format: 1}"]
    more += ["--model-id", str(tiny_model)]
    with server(num_sessions=8) as (url, _):
        report, episodes = grpo(out, *SMALL, *more, "save_interval=2", "--space-url", url)
        assert (out / "adapter_config.json").is_file()
        assert len(episodes) == 16
        _, episodes = grpo(
            out, *SMALL, *more, "--space-url", url, "--resume-from-checkpoint", str(out / "checkpoint-2")
        )
        assert len(episodes) == 24, "the second half again"
        # No reward, no gradient: the adapter is still the one that changes nothing.
        weights = load_file(out / "adapter_model.safetensors")
        save_file(
            {key: torch.full_like(weight, 0.1) for key, weight in weights.items()}, out / "adapter_model.safetensors"
        )
        further, _ = grpo(tmp_path / "further", *SMALL, *more, "--model-id", str(out), "--space-url", url)
    assert report["settings"]["rewards"] == {"outcome": 1.0, "format": 1.0}
    start = AutoModelForCausalLM.from_pretrained(tmp_path / "further" / "start").state_dict()
    adapted = load_causal_lm(str(out), dtype="float32").state_dict()
    assert all(torch.allclose(start[name], weight, atol=1e-6) for name, weight in adapted.items())
    assert not torch.equal(start[UP], AutoModelForCausalLM.from_pretrained(tiny_model).state_dict()[UP])
    assert further["settings"]["model_name"] == str(out)
    assert base_of(str(tmp_path / "further")) == str(tmp_path / "further" / "start")


@pytest.mark.grpo
@pytest.mark.arena
@pytest.mark.slow
@pytest.mark.browser
def test_the_arena_is_trained_on_beside_miniwob(tmp_path, arena):
    names = ["arena.shop_admin.order-customer", "miniwob.focus-text-2", "arena.shop.open-category"]
    small = ["num_generations=2", "dataset_size=4", "max_steps=2", "generation_batch_size=4", "rewards={format: 1}"]
    small += ["gradient_accumulation_steps=1", "num_workers=1", "envs_per_worker=4", "--task-name", *names]
    before = running.num_sessions(arena.folder)  # of other tests
    report, episodes = grpo(tmp_path / "here", *SMALL, *small, "--arena-folder", str(arena.folder))
    assert sorted(t.task.site for t in episodes) == sorted([*names, names[0]] * 2)
    assert report["failed_episodes"] == 0, [t.message for t in episodes]
    assert {t.env_reward for t in episodes} <= {0.0, 1.0}
    assert running.num_sessions(arena.folder) == before
