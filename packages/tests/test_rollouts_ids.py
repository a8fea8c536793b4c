"""`rollout.random_ids`: the numbers of elements change from task to task, and stay what actions find elements by."""

import dataclasses
import re

import pytest
from rollouts_builders import at, bid_of, in_browser, serve

from webrl.config import RolloutConfig, RunConfig
from webrl.errors import UsageError
from webrl.types import Task
from webrl_serve.openenv.server import check_options
from webrl_serve.openenv.session import ServerOptions

PAGES = {
    "/": """<title>first</title><a href=/next>Next</a>
    <iframe srcdoc="<button onclick='this.textContent = 7'>In</button>"></iframe>""",
    "/next": """<title>second</title>
    <button onclick="document.body.append('pressed', document.createElement('input'))">Go</button>""",
}


def numbers(text):
    """The numbers of a text's elements, those of frames too."""
    return [int(number) for number in re.findall(r"^\s*\[[a-zA-Z]*(\d+)\]", text, re.MULTILINE)]


def shift(texts, plain):
    """What is added to all numbers of an episode, on every page and in every frame."""
    shifted, stock = ([number for text in some for number in numbers(text)] for some in (texts, plain))
    (by,) = {a - b for a, b in zip(shifted, stock, strict=True)}
    return by


async def visit(env, task):
    """The texts of an episode that acts in a frame, on the next page and on what that makes."""
    texts = [(await env.reset(task)).text]
    for role, name in (("button", "In"), ("link", "Next"), ("button", "Go")):
        result = await env.step(f"click('{bid_of(texts[-1], role, name)}')")
        assert not result.error
        texts.append(result.observation.text)
    assert re.search(r"button '7'", texts[1])
    assert "pressed" in texts[3]
    return texts


@pytest.mark.browser
def test_a_training_task_has_numbers_of_its_own_and_an_evaluation_browsergym_s():
    async def play(env):
        async with serve(PAGES) as url:
            task = dataclasses.replace(at(url + "/"), task_id="a", seed=3)
            others = (task, dataclasses.replace(task, seed=4), dataclasses.replace(task, split="eval"))
            return [await visit(env, each) for each in (task, *others)]

    first, again, other, plain = in_browser(play, random_ids=True)
    assert first == again, "all attempts at a task see the same"
    shifts = [shift(first, plain), shift(other, plain)]
    assert shifts[0] != shifts[1], "another task has other numbers"
    assert all(0 < by < 1000 for by in shifts)
    for shifted, stock in zip(first, plain, strict=True):
        assert re.sub(r"\[([a-zA-Z]*)\d+\]", r"[\1]", shifted) == re.sub(r"\[([a-zA-Z]*)\d+\]", r"[\1]", stock)


@pytest.mark.browser
def test_a_page_that_is_started_anew_in_place_has_the_numbers_of_its_task():
    async def play(env):
        texts = [(await env.reset(Task("t", "miniwob.click-button", seed))).text for seed in (1, 2, 1)]
        return [*texts, (await env.reset(Task("t", "miniwob.click-button", 1, split="eval"))).text]

    first, other, again, plain = in_browser(play, random_ids=True)
    assert first == again
    assert min(numbers(first)) - min(numbers(plain)) not in (0, min(numbers(other)) - min(numbers(plain)))


@pytest.mark.parametrize(
    "settings",
    [
        {"observation": "html"},
        {"env": "openenv", "urls": ["http://127.0.0.1:8000"]},
        {"show_text": False, "image_size": 0, "screenshots": True},
    ],
    ids=["html", "openenv", "no text"],
)
def test_where_ids_are_not_ours_or_not_shown_the_option_is_refused(settings):
    with pytest.raises(ValueError, match="random_ids=true"):
        RolloutConfig(random_ids=True, **settings)


def test_where_no_episode_is_known_to_be_for_training_the_option_is_refused():
    with pytest.raises(UsageError, match="random_ids=true is for training"):
        check_options(RunConfig(rollout=RolloutConfig(random_ids=True)), ServerOptions())
