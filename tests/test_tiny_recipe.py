"""What the shipped actor is trained on."""

import sys
from pathlib import Path

from transformers import AutoTokenizer

sys.path.append(str(Path(__file__).parent.parent / "scripts"))
from tiny import recipe

from webrl.types import Status, Step, Task, Trajectory

PAGE = "RootWebArea 'Click Test Task', focused\n\t[13] button 'Ok'\n\t[14] button 'no'\n\t[15] textbox ''"


def demonstration(seed: int, site: str = "miniwob.click-button") -> Trajectory:
    actions = ("fill('15', 'Ada')", "click('13')")
    return Trajectory(
        trajectory_id=f"demos-{site}.{seed}", task=Task(task_id=f"{site}.{seed}", site=site, seed=seed),
        instruction='Enter "Ada" and press Ok.', phase=0,
        steps=tuple(Step(i, PAGE, action, action) for i, action in enumerate(actions)),
        final_observation=PAGE, status=Status.PAGE_ENDED, env_reward=1.0,
    )  # fmt: skip


def test_half_of_the_examples_are_synthetic_and_held_out_demonstrations_are_not_shown():
    demos = [demonstration(seed) for seed in range(recipe.ACTOR_HELD_OUT + 3)]
    demos += [demonstration(seed, "miniwob.find-word") for seed in range(recipe.ACTOR_HELD_OUT + 3)]
    shown, held_out = recipe.split_demos(demos)
    assert len(shown) == 2 * 3
    assert not {t.trajectory_id for t in shown} & {t.trajectory_id for t in held_out}
    examples = recipe.actor_examples(AutoTokenizer.from_pretrained("data/tiny/actor"), demos)
    assert len(examples) == 2 * recipe.ACTOR_PASSES * 3 * 2  # `find-word` is left out; two steps each
    assert all(prompt and answer for prompt, answer, _ in examples)
