"""`benchmarks/arena_way.py`: how much of an expert's way an agent has gone."""

import sys
from pathlib import Path

import pytest

sys.path.append(str(Path(__file__).parent.parent / "benchmarks"))

from arena_way import follow

from webrl.types import Status, Step, Task, Trajectory

SEARCH = "RootWebArea 'Shop'\n\t[67] textbox 'Search'\n\t[68] button 'Search'"
FOUND = "RootWebArea 'Found'\n\t[118] link 'Oak Spoon'\n\t[119] link 'Elm Spoon'"
PRODUCT = "RootWebArea 'Oak Spoon'\n\trowheader 'Price'\n\tcell '$5.00'\n\t\tStaticText '$5.00'"
WAY = [(SEARCH, "fill('67', 'Oak Spoon')"), (SEARCH, "click('68')"), (FOUND, "click('118')")]


@pytest.mark.parametrize(
    ("actions", "made", "how"),
    [
        ([*WAY, (PRODUCT, "send_msg_to_user('done')")], 3, "all the way"),
        ([*WAY[:2], (FOUND, "# the other\nclick('119')")], 2, "another element"),
        ([*WAY[:2], (FOUND, "fill('118', 'x')")], 2, "other"),
        ([*WAY[:2], (FOUND, "send_msg_to_user('done')")], 2, "says done too early"),
        ([(SEARCH, "I search for it.")], 0, "no action"),
        ([*WAY[:2]], 2, "other"),
    ],
    ids=["all", "element", "action", "early", "none", "cut off"],
)
def test_an_episode_is_followed_as_far_as_its_actions_are_the_experts(actions, made, how):
    steps = tuple(Step(n, observation, action, action) for n, (observation, action) in enumerate(actions))
    task = Task("arena.shop.open-product-eval-0-0", "arena.shop.open-product", split="eval")
    episode = Trajectory(task.task_id, task, 'Open the page of "Oak Spoon".', 0, steps, "", Status.AGENT_DONE)
    assert follow(episode) == (made, 3, how)
