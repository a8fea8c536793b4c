"""Models that see, in the trainer: log-probs and values are of the picture, and nothing is trained blind."""

import asyncio
import hashlib
from dataclasses import replace
from pathlib import Path

import pytest
import torch
from eyes_builders import IN_TEMPLATE, build_vlm, png, sampled_together
from llm_builders import save_tiny_model
from test_reward_data import make_trajectory

from webrl.cli import main
from webrl.config import RunConfig, SftConfig, load_config
from webrl.config.resources import find_config
from webrl.errors import DataError, ModelError, StageError, TrainingError, UsageError
from webrl.llm import open_policy
from webrl.llm.eyes import Eyes
from webrl.llm.interface import Message, Turn
from webrl.llm.pictures import Example, Picture, shrink
from webrl.preflight import check_inputs, check_settings
from webrl.replay.demonstrations import open_encoder
from webrl.training.critic import load_critic, load_value_lm, states_of
from webrl.training.models import PackedActor, PackedCritic, load_actor
from webrl.training.packing import Item, make_item, pack
from webrl.training.scoring import score_actions, score_targets, score_values
from webrl.training.update import train_actor, train_critic, train_sft
from webrl.types import StepRecord

SHORT = [Message("system", "Act."), Message("user", "Goal: go")]
LONG = [Message("system", "Act."), Message("user", "Goal: click the red button, then wait for [12] button 'OK'")]
SEEING = ("rollout.screenshots=true", "rollout.image_size=96", "actor.objective=filtered_bc", "tasks.source=fresh")


def saved(folder: Path, png_bytes: bytes) -> Picture:
    digest = hashlib.sha256(png_bytes).hexdigest()
    path = folder / f"{digest[:16]}.png"
    path.write_bytes(png_bytes)
    return Picture(path, digest)


def sample(eyes: Eyes, model, pictures: list[bytes]):
    """(prompt ids, answer) for each picture, by the sampler of rollouts."""

    chats = [(SHORT, LONG)[i % 2] for i in range(len(pictures))]
    prompts = [eyes.encode(chat, eyes.look(p)) for chat, p in zip(chats, pictures, strict=True)]
    return sampled_together(eyes, model, prompts, pictures)


@pytest.mark.parametrize("family", sorted(IN_TEMPLATE))
def test_the_trainer_gives_the_log_probs_that_were_sampled_and_its_gradient_reaches_the_pixels(family, tmp_path):
    processor, model = build_vlm(family, tmp_path)
    eyes = Eyes(str(tmp_path), processor=processor)
    pictures = [png(), png((20, 90, 200), (64, 96), dot=40), png((0, 160, 0), dot=60)]
    answers = sample(eyes, model, pictures)
    actor = PackedActor(model, "plain", eyes)
    examples = [Example(a.prompt_ids, a.ids, saved(tmp_path, p)) for a, p in zip(answers, pictures, strict=True)]
    items = [make_item(example, 2048) for example in examples]
    scored = score_targets(actor.eval(), items, 4096, "cpu")
    for answer, own in zip(answers, scored, strict=True):
        assert own.tolist() == pytest.approx(list(answer.logprobs), abs=1e-4)
    with pytest.raises(TrainingError, match="a sample lacks its screenshot: the model would train blind"):
        actor(pack([replace(items[0], picture=None)]))
    other = replace(items[0], picture=saved(tmp_path, png((20, 90, 200), dot=50)))
    (wrong,) = score_targets(actor, [other], 4096, "cpu")
    assert (wrong - scored[0]).abs().max() > 1e-2, "another picture would be noticed"

    logprobs = actor.train()(pack(items[:1]))
    torch.testing.assert_close(logprobs.detach(), scored[0], atol=1e-4, rtol=0)
    logprobs.sum().backward()
    tower = [p for name, p in model.named_parameters() if "vis" in name and p.grad is not None]
    assert max(float(p.grad.abs().max()) for p in tower) > 0


def record_of(answer, name: str, picture: Picture, root: Path, **fields) -> StepRecord:
    values = {"step_id": f"{name}:0", "trajectory_id": name, "instruction": "go", "site": "s", "phase": 1, "index": 0}
    values |= {"num_steps": 1, "prompt_ids": answer.prompt_ids, "action_ids": answer.ids, "outcome": 1}
    values |= {"screenshot": str(picture.path.relative_to(root)), "screenshot_sha256": picture.sha256}
    return StepRecord(**values | fields)


def seeing_config(folder: Path, runs: Path, *more: str) -> RunConfig:
    config = [f"models.actor={folder}", f"runs_dir={runs}", "models.device=cpu", "models.max_prompt_tokens=1500"]
    return load_config(find_config("demo"), [*config, *SEEING, *more])


def test_a_step_whose_picture_is_gone_or_another_is_an_error_that_names_the_file(vlm, tmp_path):
    config = seeing_config(vlm, tmp_path)
    config.run_dir.mkdir()
    picture = saved(config.run_dir, png())
    (answer,) = sample(Eyes(str(vlm)), load_actor(vlm, sees=True).lm, [png()])
    record = record_of(answer, "t0", picture, config.run_dir)
    (scored,) = score_actions([record], vlm, config)
    assert scored.ref_logprobs == pytest.approx(answer.logprobs, abs=1e-4)

    blind = replace(record, step_id="t1:0", screenshot="", screenshot_sha256="")
    with pytest.raises(TrainingError, match=r"step 't1:0' was played without a screenshot, and rollout.image_size=96"):
        score_actions([record, blind], vlm, config)
    with pytest.raises(TrainingError, match=r"step 't0:0' was played with a screenshot, and rollout.image_size=None"):
        score_actions([record], vlm, load_config(find_config("demo"), [f"runs_dir={tmp_path}"]))
    with pytest.raises(TrainingError, match=r"with a picture and an action of .* do not fit the context of 20 tokens"):
        make_item(Example(answer.prompt_ids, answer.ids, picture), 20)

    picture.path.write_bytes(png((1, 2, 3)))
    with pytest.raises(DataError, match=rf"{picture.path}: not the screenshot that the model was shown"):
        score_actions([record], vlm, config)
    taller = saved(config.run_dir, png(size=(32, 96)))
    with pytest.raises(TrainingError, match=rf"{taller.path}: a prompt has \d+ picture tokens, and the processor"):
        score_actions([record_of(answer, "t0", taller, config.run_dir)], vlm, config)
    picture.path.unlink()
    with pytest.raises(DataError, match=rf"{picture.path}: the screenshot cannot be read .*is needed for training"):
        score_actions([record], vlm, config)


def test_supervised_training_learns_what_only_pixels_tell_and_writes_a_model_that_sees(vlm, tmp_path):
    eyes = Eyes(str(vlm))
    letters = [eyes.tokenizer(text, add_special_tokens=False)["input_ids"][0] for text in ("a", "b")]
    examples = []
    for number in range(12):
        is_red = number % 2
        picture = png((220, 20, 20) if is_red else (20, 20, 220), dot=2 * number)
        prompt = eyes.encode(SHORT, eyes.look(picture))
        examples.append(Example(prompt, (letters[is_red],), saved(tmp_path, picture)))
    config = seeing_config(vlm, tmp_path, "sft.lr=1e-2", "sft.batch_size=4", "sft.epochs=15")
    options = {"seed": 0, "metrics_path": tmp_path / "m.jsonl", "device": "cpu"}
    train_sft(examples[:8], vlm, tmp_path / "out", config.sft, heldout=examples[8:], **options)
    trained = load_actor(tmp_path / "out", sees=True)
    assert trained.eyes.encode(SHORT, trained.eyes.look(png())) == eyes.encode(SHORT, eyes.look(png()))
    scores = score_targets(trained.eval(), [make_item(e, 2048) for e in examples[8:]], 4096, "cpu")
    assert min(float(s.exp()) for s in scores) > 0.7, "without pixels the two would share 1"
    with pytest.raises(TrainingError, match="screenshots is untested with lora_rank=4: leave that out"):
        train_sft(examples, vlm, tmp_path / "lora", config.sft.model_copy(update={"lora_rank": 4}), **options)


def test_demonstrations_are_encoded_as_the_policy_is_prompted(vlm, tmp_path):
    config = seeing_config(vlm, tmp_path)
    config.run_dir.mkdir()
    picture = saved(config.run_dir, png())
    shown = make_trajectory(0, 1, num_steps=1)
    seen = replace(shown.steps[0], screenshot=picture.path.name, screenshot_sha256=picture.sha256)
    encode = open_encoder(None, str(vlm), config)

    async def act():
        async with open_policy(str(vlm), config) as policy:
            return await policy.act(Turn(shown.instruction, (), seen.observation, seed=1, screenshot=png()))

    output = asyncio.run(act())
    encoded = encode(replace(shown, steps=(seen,)), 0)
    assert encoded.prompt_ids == output.prompt_ids
    assert Eyes(str(vlm)).tokenizer.decode(encoded.action_ids) == f"{seen.response}<|eot_id|>"
    with pytest.raises(DataError, match=r"t0:0 has no screenshot, which rollout.image_size=96 needs: record it"):
        encode(shown, 0)

    def encode_shown(png_bytes: bytes) -> None:
        picture = saved(config.run_dir, png_bytes)
        step = replace(seen, screenshot=picture.path.name, screenshot_sha256=picture.sha256)
        encode(replace(shown, steps=(step,)), 0)

    page = png(size=(400, 200))
    encode_shown(shrink(page, 96))
    encode_shown(shrink(png(), 0))  # of a page that is not larger than it would be shown
    for size, found in ((48, "48x24"), (0, "400x200")):
        said = rf"t0:0: its screenshot is {found} pixels, and rollout.image_size=96 shows that page at 96x48: record"
        with pytest.raises(DataError, match=said):
            encode_shown(shrink(page, size))


def test_a_policy_that_sees_is_never_asked_blind_nor_with_a_picture_that_leaves_no_room(vlm, tmp_path):
    async def act(*more: str, **given):
        async with open_policy(str(vlm), seeing_config(vlm, tmp_path, *more)) as policy:
            return await policy.act(Turn("go", (), "[1] button 'x'", seed=1, **given))

    with pytest.raises(StageError, match=r"step 0: there is no screenshot, which rollout.image_size asks for"):
        asyncio.run(act())
    with pytest.raises(StageError, match=r"of 96x64 pixels is \d+ tokens .*models.max_prompt_tokens is 16: lower"):
        asyncio.run(act("models.max_prompt_tokens=16", screenshot=png()))
    with pytest.raises(StageError, match=r"of 200x64 pixels is larger than rollout.image_size=96: show it, and record"):
        asyncio.run(act(screenshot=png(size=(200, 64))))


def test_an_actor_from_which_the_text_is_withheld_is_told_how_to_point(vlm, tmp_path):
    alone = ("rollout.show_text=false", "rollout.image_size=0")
    config = seeing_config(vlm, tmp_path, *alone)
    check_settings(config, "demo.yaml")

    async def act():
        async with open_policy(str(vlm), config) as policy:
            return await policy.act(Turn("go", (), "[1] button 'Unread'", seed=1, screenshot=png()))

    output = asyncio.run(act())
    text = Eyes(str(vlm)).tokenizer.decode(output.prompt_ids)
    assert output.observation_shown == ""
    assert "Unread" not in text
    assert "mouse_click(x, y) clicks a point of it" in text


@pytest.mark.parametrize(
    ("override", "said"),
    [
        ("actor.lora_rank=8", "actor.lora_rank=8: not yet"),
        ("actor.engine=zero2", "actor.engine=zero2: not yet"),
        ("actor.precision=bf16", "actor.precision=bf16: not yet"),
        (
            "actor.objective=webrl_released",
            "values a state after the last step, of which there is no screenshot; set actor.objective=webrl_scaled",
        ),
        ("tasks.source=curriculum", "filter.critic_band=true asks the critic about pages of which there is no"),
    ],
)
def test_what_cannot_take_screenshots_is_refused_by_name_before_anything_starts(vlm, tmp_path, override, said):
    def check(*overrides: str) -> None:
        config = seeing_config(vlm, tmp_path, *overrides)
        check_settings(config, "demo.yaml")
        check_inputs(config, ("rollout", "train"))

    check()
    with pytest.raises(UsageError) as refused:
        check(override)
    assert said in str(refused.value)


def test_the_options_of_a_critic_that_sees_are_looked_at_where_one_is_trained(vlm, tmp_path):
    lora = "critic.lora_rank=8"
    check_inputs(seeing_config(vlm, tmp_path, lora), ("train",))
    check_inputs(seeing_config(vlm, tmp_path, "actor.objective=webrl"), ("train",))
    with pytest.raises(UsageError, match=r"screenshots: critic\.lora_rank=8: not yet"):
        check_inputs(seeing_config(vlm, tmp_path, "actor.objective=webrl", lora), ("train",))


def test_a_model_is_shown_what_it_can_read_or_refused(vlm, tmp_path, capsys):
    text = save_tiny_model(tmp_path / "text")
    with pytest.raises(ModelError, match=rf"rollout.image_size=96: model {str(text)!r} has no vision"):
        check_inputs(seeing_config(text, tmp_path), ("rollout",))
    with pytest.raises(ModelError, match=r"would see only the page's text: set rollout.image_size"):
        check_inputs(load_config(find_config("demo"), [f"models.actor={vlm}", f"runs_dir={tmp_path}"]), ("rollout",))
    arguments = ["sft", "demo", f"models.actor={vlm}", f"runs_dir={tmp_path}", *SEEING, "sft.lora_rank=4"]
    assert main([*arguments, "--data", str(tmp_path)]) == 2
    assert "rollout.image_size is not supported yet with sft.lora_rank=4" in capsys.readouterr().err


def test_a_model_of_text_is_given_no_picture_and_none_is_left_out_of_a_training(vlm, tmp_path):
    text = load_actor(save_tiny_model(tmp_path / "text"))
    picture = saved(tmp_path, png())
    with pytest.raises(TrainingError, match="a sample has a screenshot, but this model reads only text"):
        text(pack([Item((1, 2, 3), 1), Item((4, 5), 1, picture)]))
    mixed = [Example((1, 2), (3,)), Example((4,), (5,), picture)]
    options = {"seed": 0, "metrics_path": tmp_path / "m.jsonl", "device": "cpu"}
    for part, rest in ((mixed, []), (mixed[:1], mixed[1:])):
        with pytest.raises(DataError, match="sft: some examples have a screenshot and others have none"):
            train_sft(part, vlm, tmp_path / "out", SftConfig(), heldout=rest, **options)


def test_a_family_that_gives_logits_of_all_positions_is_refused_by_name(vlm, tmp_path):
    actor = load_actor(vlm, sees=True)
    (answer,) = sample(actor.eyes, actor.lm, [png()])
    row = pack([make_item(Example(answer.prompt_ids, answer.ids, saved(tmp_path, png())), 2048)])
    own = actor.lm.forward
    actor.lm.forward = lambda logits_to_keep, **given: own(**given)
    with pytest.raises(TrainingError, match=r"returns logits of \d+ positions instead of \d+: it cannot be"):
        actor(row)


RED, BLUE = (220, 20, 20), (20, 20, 220)


@pytest.mark.parametrize("family", sorted(IN_TEMPLATE))
def test_a_critic_reads_the_actors_hidden_state_at_the_last_token_and_its_gradient_reaches_the_pixels(family, tmp_path):
    processor, model = build_vlm(family, tmp_path / "actor")
    eyes = Eyes(str(tmp_path / "actor"), processor=processor)
    critic = PackedCritic(load_value_lm(tmp_path / "actor", fresh=True, seed=3), "plain", eyes)
    picture = saved(tmp_path, png(RED))
    row = pack([Item(tuple(eyes.encode(SHORT, eyes.look(picture.read()))), 0, picture)])
    ids = row.input_ids
    hidden = model(
        input_ids=ids, attention_mask=torch.ones_like(ids), output_hidden_states=True,
        **eyes.inputs(ids, [picture.read()]),
    ).hidden_states[-1]  # fmt: skip
    logits = critic.eval()(row)
    torch.testing.assert_close(logits, critic.lm.score(hidden[:, -1]), atol=1e-5, rtol=1e-4)

    critic.lm.save_pretrained(tmp_path / "critic")
    again = PackedCritic(load_value_lm(tmp_path / "critic", fresh=False), "plain", eyes).eval()
    torch.testing.assert_close(again(row), logits)
    other = pack([Item(tuple(ids[0].tolist()), 0, saved(tmp_path, png(BLUE, dot=50)))])
    assert (critic(other) - logits).abs().max() > 1e-4, "another picture would be noticed"

    critic.train()(row).sum().backward()
    tower = [p for name, p in critic.lm.named_parameters() if "vis" in name and p.grad is not None]
    assert max(float(p.grad.abs().max()) for p in tower) > 0
    with pytest.raises(TrainingError, match="a sample lacks its screenshot: the model would train blind"):
        critic(pack([Item((1, 2, 3), 0)]))


def records_of(folder: Path, run: Path, number: int) -> list[StepRecord]:
    """Trajectories of two steps each, sampled by the model; whether they succeeded only their pictures tell."""
    run.mkdir(exist_ok=True)
    eyes, model = Eyes(str(folder)), load_actor(folder, sees=True).lm
    pictures = [png((BLUE, RED)[i // 2 % 2], dot=3 * i) for i in range(2 * number)]
    prompts = [eyes.encode(SHORT, eyes.look(picture)) for picture in pictures]
    answers = sampled_together(eyes, model, prompts, pictures)
    return [
        record_of(
            answer, f"t{i // 2}", saved(run, picture), run, step_id=f"t{i // 2}:{i % 2}", index=i % 2, num_steps=2,
            outcome=i // 2 % 2, logprobs=answer.logprobs,
        )
        for i, (answer, picture) in enumerate(zip(answers, pictures, strict=True))
    ]  # fmt: skip


def test_webrls_update_takes_screenshots(vlm, tmp_path):
    critic = ("critic.lr=3e-3", "critic.batch_size=4", "critic.epochs=12")
    actor = ("actor.objective=webrl", "actor.lr=1e-3", "actor.batch_size=4", "actor.epochs=2")
    config = seeing_config(vlm, tmp_path, *critic, *actor)
    records = records_of(vlm, config.run_dir, 6)
    metrics = config.run_dir / "metrics.jsonl"
    train_critic(records[:8], vlm, config.run_dir / "critic", config, seed=0, metrics_path=metrics)
    valued = score_values(records, config.run_dir / "critic", config)
    for record in valued[8:]:  # of pictures that it was not trained on
        assert record.value is not None
        assert (record.value > 0.5) == record.outcome, "without pixels the values of both would be one"
    assert [r.next_value for r in valued[8:]] == [valued[9].value, 0.0, valued[11].value, 0.0]
    reopened = load_critic(config.run_dir / "critic", sees=True)
    assert reopened.eyes.look(png()) == Eyes(str(vlm)).look(png())
    with pytest.raises(ModelError, match="not a critic; train one with"):
        load_critic(vlm, sees=True)

    scored = score_actions(valued, vlm, config)
    counts = train_actor(scored, vlm, config.run_dir / "actor", config, seed=0, metrics_path=metrics)
    assert counts["actor_samples"] == len(records)
    before = {r.step_id: sum(r.ref_logprobs or ()) for r in scored}
    after = {r.step_id: sum(r.ref_logprobs or ()) for r in score_actions(records, config.run_dir / "actor", config)}
    gains = {o: [after[r.step_id] - before[r.step_id] for r in records if r.outcome == o] for o in (0, 1)}
    assert sum(gains[1]) > sum(gains[0]), "what succeeded became likelier than what failed"


def test_a_state_that_a_step_carries_along_brings_its_picture(vlm, tmp_path):
    config = seeing_config(vlm, tmp_path)
    first, second = records_of(vlm, config.run_dir, 1)
    carried = {"next_screenshot": second.screenshot, "next_screenshot_sha256": second.screenshot_sha256}
    alone = replace(first, next_prompt_ids=second.prompt_ids, **carried)
    states = states_of([alone], config.run_dir)
    assert [state.picture for state in states.values()] == [Picture.of(r, config.run_dir) for r in (first, second)]
    train_critic([alone], vlm, config.run_dir / "critic", config, seed=0, metrics_path=tmp_path / "m.jsonl")
    (valued,) = score_values([alone], config.run_dir / "critic", config)
    both = score_values([first, second], config.run_dir / "critic", config)
    assert (valued.value, valued.next_value) == pytest.approx((both[0].value, both[1].value), abs=1e-6)
    assert valued.next_screenshot == "", "from here on its value is enough"
    with pytest.raises(TrainingError, match="a sample lacks its screenshot: the model would train blind"):
        score_values([replace(alone, next_screenshot_sha256="")], config.run_dir / "critic", config)
    (config.run_dir / second.screenshot).unlink()
    with pytest.raises(DataError, match="the screenshot cannot be read"):
        score_values([alone], config.run_dir / "critic", config)


def test_a_critic_is_not_given_steps_that_were_played_blind(vlm, tmp_path):
    config = seeing_config(vlm, tmp_path)
    (seen, _) = records_of(vlm, config.run_dir, 1)
    blind = replace(seen, screenshot="", screenshot_sha256="")
    for call in (
        lambda: train_critic([blind], vlm, tmp_path / "critic", config, seed=0, metrics_path=tmp_path / "m.jsonl"),
        lambda: score_values([blind], vlm, config),
    ):
        with pytest.raises(TrainingError, match=r"step 't0:0' was played without a screenshot, and rollout.image_size"):
            call()
    lora = seeing_config(vlm, tmp_path, "critic.lora_rank=4")
    with pytest.raises(TrainingError, match="screenshots is untested with lora_rank=4: leave that out"):
        train_critic([seen], vlm, tmp_path / "critic", lora, seed=0, metrics_path=tmp_path / "m.jsonl")


def test_a_critic_whose_folder_lacks_weights_is_refused_by_their_name(vlm, tmp_path):
    critic = load_critic(vlm, fresh=True, sees=True)
    state = {name: value for name, value in critic.lm.state_dict().items() if name != "score.weight"}
    critic.lm.save_pretrained(tmp_path / "broken", state_dict=state)
    critic.eyes.processor.save_pretrained(tmp_path / "broken")
    with pytest.raises(ModelError, match=r"model .*broken.* has files without score.weight in the"):
        load_critic(tmp_path / "broken", sees=True)
