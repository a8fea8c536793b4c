"""`benchmarks/arena_way.py`: how much of an expert's way an agent has gone."""

import sys
from dataclasses import replace
from pathlib import Path

import pytest

sys.path.append(str(Path(__file__).parent.parent / "benchmarks"))

from arena_way import follow

from webrl.errors import DataError
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
        ([(SEARCH, "fill('67', 'Elm Spoon')")], 0, "another value"),
        ([WAY[0], (SEARCH, "# Note: 5\nclick('68')")], 1, "another note"),
        ([*WAY[:2], (FOUND, "send_msg_to_user('done')")], 2, "says done too early"),
        ([(SEARCH, "I search for it.")], 0, "no action"),
        ([*WAY[:2]], 2, "other"),
    ],
    ids=["all", "element", "action", "value", "note", "early", "none", "cut off"],
)
def test_an_episode_is_followed_as_far_as_its_actions_are_the_experts(actions, made, how):
    steps = tuple(Step(n, observation, action, action) for n, (observation, action) in enumerate(actions))
    task = Task("arena.shop.open-product-eval-0-0", "arena.shop.open-product", split="eval")
    episode = Trajectory(task.task_id, task, 'Open the page of "Oak Spoon".', 0, steps, "", Status.AGENT_DONE)
    assert follow(episode) == (made, 3, how)


def test_actions_that_failed_are_tried_again_and_another_instruction_is_refused():
    task = Task("arena.shop.open-product-eval-0-0", "arena.shop.open-product", split="eval")
    actions = [*WAY[:2], WAY[1], WAY[2]]
    steps = tuple(Step(n, page, act, act, "Error: busy" if n == 1 else "") for n, (page, act) in enumerate(actions))
    episode = Trajectory(task.task_id, task, 'Open the page of "Oak Spoon".', 0, steps, "", Status.AGENT_DONE)
    assert follow(episode) == (3, 3, "all the way")
    with pytest.raises(DataError, match=r"'Dance\.' is none of arena\.shop\.open-product's"):
        follow(replace(episode, instruction="Dance."))
