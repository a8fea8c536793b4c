"""A critic that sees: its values are of the picture, and WebRL's own update takes them."""

from dataclasses import replace
from pathlib import Path

import pytest
import torch
from eyes_builders import IN_TEMPLATE, build_vlm, png, sampled_together
from test_training_eyes import SHORT, record_of, saved, seeing_config

from webrl.errors import DataError, ModelError, TrainingError
from webrl.llm.eyes import Eyes
from webrl.llm.pictures import Picture
from webrl.training.critic import load_critic, load_value_lm, states_of
from webrl.training.models import PackedCritic, load_actor
from webrl.training.packing import Item, pack
from webrl.training.scoring import score_actions, score_values
from webrl.training.update import train_actor, train_critic
from webrl.types import StepRecord

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
    with pytest.raises(TrainingError, match="without its screenshot: nothing is trained blind"):
        critic(pack([Item((1, 2, 3), 0)]))


@pytest.fixture(scope="module")
def folder(tmp_path_factory) -> Path:
    path = tmp_path_factory.mktemp("vlm")
    build_vlm("idefics3", path)
    return path


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


def test_webrls_update_takes_screenshots(folder, tmp_path):
    critic = ("critic.lr=3e-3", "critic.batch_size=4", "critic.epochs=12")
    actor = ("actor.objective=webrl", "actor.lr=1e-3", "actor.batch_size=4", "actor.epochs=2")
    config = seeing_config(folder, tmp_path, *critic, *actor)
    records = records_of(folder, config.run_dir, 6)
    metrics = config.run_dir / "metrics.jsonl"
    train_critic(records[:8], folder, config.run_dir / "critic", config, seed=0, metrics_path=metrics)
    valued = score_values(records, config.run_dir / "critic", config)
    for record in valued[8:]:  # of pictures that it was not trained on
        assert record.value is not None
        assert (record.value > 0.5) == record.outcome, "without pixels the values of both would be one"
    assert [r.next_value for r in valued[8:]] == [valued[9].value, 0.0, valued[11].value, 0.0]
    reopened = load_critic(config.run_dir / "critic", sees=True)
    assert reopened.eyes.look(png()) == Eyes(str(folder)).look(png())
    with pytest.raises(ModelError, match="not a critic; train one with"):
        load_critic(folder, sees=True)

    scored = score_actions(valued, folder, config)
    counts = train_actor(scored, folder, config.run_dir / "actor", config, seed=0, metrics_path=metrics)
    assert counts["actor_samples"] == len(records)
    before = {r.step_id: sum(r.ref_logprobs or ()) for r in scored}
    after = {r.step_id: sum(r.ref_logprobs or ()) for r in score_actions(records, config.run_dir / "actor", config)}
    gains = {o: [after[r.step_id] - before[r.step_id] for r in records if r.outcome == o] for o in (0, 1)}
    assert sum(gains[1]) > sum(gains[0]), "what succeeded became likelier than what failed"


def test_a_state_that_a_step_carries_along_brings_its_picture(folder, tmp_path):
    config = seeing_config(folder, tmp_path)
    first, second = records_of(folder, config.run_dir, 1)
    carried = {"next_screenshot": second.screenshot, "next_screenshot_sha256": second.screenshot_sha256}
    alone = replace(first, next_prompt_ids=second.prompt_ids, **carried)
    states = states_of([alone], config.run_dir)
    assert [state.picture for state in states.values()] == [Picture.of(r, config.run_dir) for r in (first, second)]
    train_critic([alone], folder, config.run_dir / "critic", config, seed=0, metrics_path=tmp_path / "m.jsonl")
    (valued,) = score_values([alone], config.run_dir / "critic", config)
    both = score_values([first, second], config.run_dir / "critic", config)
    assert (valued.value, valued.next_value) == pytest.approx((both[0].value, both[1].value), abs=1e-6)
    assert valued.next_screenshot == "", "from here on its value is enough"
    with pytest.raises(TrainingError, match="without its screenshot: nothing is trained blind"):
        score_values([replace(alone, next_screenshot_sha256="")], config.run_dir / "critic", config)
    (config.run_dir / second.screenshot).unlink()
    with pytest.raises(DataError, match="the screenshot cannot be read"):
        score_values([alone], config.run_dir / "critic", config)


def test_a_critic_is_not_given_steps_that_were_played_blind(folder, tmp_path):
    config = seeing_config(folder, tmp_path)
    (seen, _) = records_of(folder, config.run_dir, 1)
    blind = replace(seen, screenshot="", screenshot_sha256="")
    for call in (
        lambda: train_critic([blind], folder, tmp_path / "critic", config, seed=0, metrics_path=tmp_path / "m.jsonl"),
        lambda: score_values([blind], folder, config),
    ):
        with pytest.raises(TrainingError, match=r"step 't0:0' was played without a screenshot, and rollout.image_size"):
            call()
    lora = seeing_config(folder, tmp_path, "critic.lora_rank=4")
    with pytest.raises(TrainingError, match="been trained on screenshots with lora_rank=4: leave that out"):
        train_critic([seen], folder, tmp_path / "critic", lora, seed=0, metrics_path=tmp_path / "m.jsonl")


def test_a_critic_whose_folder_lacks_weights_is_refused_by_their_name(folder, tmp_path):
    critic = load_critic(folder, fresh=True, sees=True)
    state = {name: value for name, value in critic.lm.state_dict().items() if name != "score.weight"}
    critic.lm.save_pretrained(tmp_path / "broken", state_dict=state)
    critic.eyes.processor.save_pretrained(tmp_path / "broken")
    with pytest.raises(ModelError, match=r"model .*broken.* has files without score.weight in the"):
        load_critic(tmp_path / "broken", sees=True)
