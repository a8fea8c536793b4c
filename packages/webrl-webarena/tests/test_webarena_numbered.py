"""Episodes in the released checkpoints' form: simplified HTML in, `do(...)` and `exit(...)` out."""

from collections.abc import Sequence

import browsers
import pytest
from standins.experts import Numbered, Script
from standins.play import lite_tasks, opened
from standins.world import World

from webrl.rollouts.episode import run_episode
from webrl.rollouts.interface import StepResult
from webrl.rollouts.suite import score_episode
from webrl.types import Status, Trajectory

pytestmark = [pytest.mark.browser, pytest.mark.webarena]

SCRIPTS: dict[int, Script] = {
    276: (("search", "<input", "switch accessories"), ("say", "Done.")),
    574: (
        ("click", "My Account"),
        ("click", "Address Book"),
        ("click", "Edit Address"),
        ("type", 'value="101', "111 Magnolia Path"),
        ("type", 'value="San Mateo', "Atlanta"),
        ("select", "California", "georg"),
        ("type", 'value="94010', "30303"),
        ("click", "Save Address"),
        ("say", "Updated."),
    ),
}


async def play(world: World, number: int) -> Trajectory:
    config = world.config(observation="html", dialect="webrl", max_steps=12)
    async with opened(config, browsers.shared_browser) as make:
        env, policy = make(), Numbered(SCRIPTS[number])
        trajectory = await run_episode(env, policy, lite_tasks()[number], config, trajectory_id=str(number))
        return await score_episode(env, trajectory)


@pytest.mark.parametrize("number", SCRIPTS)
def test_an_expert_in_the_released_language_solves_its_task(world: World, number: int):
    trajectory = browsers.run(play(world, number))
    assert trajectory.env_reward == 1, [(step.action, step.error) for step in trajectory.steps]
    assert trajectory.status is Status.AGENT_DONE
    assert trajectory.steps[0].observation.startswith("<html")
    assert trajectory.steps[0].response.startswith("# Element: ")
    assert trajectory.steps[0].action.startswith("do(")
    assert trajectory.final_observation.startswith("<html")


async def steps(world: World, actions: Sequence[str]) -> list[StepResult]:
    config = world.config(observation="html", dialect="webrl")
    async with opened(config, browsers.shared_browser) as make:
        env = make()
        await env.reset(lite_tasks()[762])
        return [await env.step(action) for action in actions]


def test_unreadable_actions_and_missing_elements_are_told_apart(world: World):
    unreadable, missing, scroll, switch = browsers.run(
        steps(world, ["click it", 'do(action="Click", element="99")', 'do(action="Scroll Down")', "go_backward()"])
    )
    assert (unreadable.action, bool(unreadable.error)) == ("", True)
    assert missing.action.startswith("do(")
    assert '"99"' in missing.error
    assert scroll.error == ""
    assert (switch.action, switch.error) == ("go_backward()", "Error: there is no earlier page in this tab")
    assert scroll.observation.text.startswith("scroll: there is nothing to scroll that way\n<html")
