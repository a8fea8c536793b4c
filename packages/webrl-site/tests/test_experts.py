"""Experts: grammar, plans and ground truth on recorded observations; two seeds each in the real browser."""

import json
import random
import sys
from pathlib import Path

import browsers
import pytest

from webrl.rollouts.env import BrowserEnv

sys.path.append(str(Path(__file__).parents[3] / "scripts"))
from tiny.instructions import accomplished as judged
from tiny.instructions import is_valid, propose

from webrl.config import RolloutConfig
from webrl.rollouts.actions import read_any
from webrl.suites.miniwob import HELDOUT_SITES, TRAIN_SITES
from webrl.types import Task
from webrl_site.experts import experts, read_page

PAGES = json.loads((Path(__file__).parent / "test_experts_pages.json").read_text(encoding="utf-8"))
"""First observation and goal of every type at task seed 7, recorded from the real environment."""

PAYS_FOR_PARTS = ("miniwob.click-checkboxes", "miniwob.phone-book")
"""Their pages reward most boxes right, or the right contact but another detail."""
DONE = "send_msg_to_user('done')"
BOXES = """RootWebArea 'Click Checkboxes Task', focused
	[17] LabelText ''
		[18] checkbox 'AU', checked='{}'
		StaticText 'AU'
	[20] LabelText ''
		[21] checkbox 'HF2', checked='{}'
		StaticText 'HF2'
	[24] button 'Submit'"""
LOGIN = """RootWebArea 'Login User Task', focused
	[15] LabelText ''
		StaticText 'Username'
	[16] textbox ''{}
	[19] textbox ''{}
	[20] button 'Login'"""


def boxes(first: str, second: str) -> str:
    return BOXES.format(first, second)


def test_a_page_is_read_with_names_values_and_properties() -> None:
    page = read_page(
        "RootWebArea 'x'\n\t[13] combobox '' value='Bob', hasPopup='menu', expanded=False\n\t\tMenuListPopup ''\n"
        "\t\t\t[14] option \"O'Hara\", selected=False\n\t\t\t[15] option 'Bob', selected=True\n"
        "\t[16] button 'Submit', focused, disabled=True\n"
        "\t[17] spinbutton 'Month' value=5, valuemin=1\n\t[18] butt"
    )
    assert [e.bid for e in page.elements] == ["", "13", "", "14", "15", "16", "17", "18"]
    assert page.by_bid["13"].value == "Bob"
    assert page.by_bid["17"].value == "5"
    assert [(o.name, o.selected) for o in page.options("13")] == [("O'Hara", False), ("Bob", True)]
    assert [e.disabled for e in page.elements] == [e.bid == "16" for e in page.elements]


def test_a_lists_options_are_found_as_older_and_newer_browsers_print_them() -> None:
    newer = "[1] combobox '' value='a', hasPopup='menu'\n\tMenuListPopup ''\n\t\t[2] option 'a'\n\t\t[3] option 'b'\n"
    older = "[1] combobox '' value='a', hasPopup='menu'\n\t[2] menuitem 'a'\n\t[3] menuitem 'b'\n"
    for text in (newer, older):
        assert [option.name for option in read_page(f"{text}[4] button 'Submit'").options("1")] == ["a", "b"]


def test_every_type_that_is_trained_or_evaluated_has_an_expert() -> None:
    assert set(experts()) == set(TRAIN_SITES) | set(HELDOUT_SITES)


@pytest.mark.parametrize("site", sorted(experts()))
def test_the_pages_own_goal_is_understood_and_has_a_first_action(site: str) -> None:
    expert, page = experts()[site], PAGES[site]
    assert expert.match(page["goal"]) is not None
    action = read_any(expert.plan(page["goal"], page["observation"], []) or "")
    assert action is not None
    assert action.arguments["bid"] in read_page(page["observation"]).by_bid


@pytest.mark.parametrize("site", TRAIN_SITES)
def test_proposals_are_valid_varied_and_reproducible(site: str) -> None:
    expert, observation = experts()[site], PAGES[site]["observation"]
    proposals = [propose(expert, observation, random.Random(seed)) for seed in range(60)]
    found = [p for p in proposals if p]
    assert len(found) >= 50
    assert len(set(found)) >= 3
    assert all(is_valid(expert, p, observation) and expert.plan(p, observation, []) for p in found)
    assert proposals == [propose(expert, observation, random.Random(seed)) for seed in range(60)]


@pytest.mark.parametrize(
    ("site", "instruction"),
    [
        ("click-button", 'Click on the "does not exist" button.'),
        ("click-button", "Do something nice."),
        ("click-tab", "Click on Tab #7."),
        ("click-checkboxes", "Select NotThere and click Submit."),
        ("focus-text-2", "Focus into the 9th input textbox."),
        ("enter-date", "Enter 02/30/2012 as the date and hit submit."),
        ("enter-time", "Enter 13:77 PM as the time and press submit."),
        ("read-table", "Enter the value of Shoe size into the text field and press Submit."),
        ("phone-book", "Find Nobody in the contact book and click on their address."),
        ("phone-book", "Go to the next contact in the book and click on their photo."),
    ],
)
def test_what_the_page_does_not_offer_is_not_valid(site: str, instruction: str) -> None:
    assert not is_valid(experts()[f"miniwob.{site}"], instruction, PAGES[f"miniwob.{site}"]["observation"])


def test_checkboxes_are_ticked_one_by_one_unticked_if_wrong_and_submitted() -> None:
    expert = experts()["miniwob.click-checkboxes"]
    both = "Select HF2, AU and click Submit."
    assert expert.plan(both, boxes("false", "false"), []) == "click('18')"
    assert expert.plan(both, boxes("true", "false"), ["click('18')"]) == "click('21')"
    assert expert.plan(both, boxes("true", "true"), ["click('18')", "click('21')"]) == "click('24')"
    assert expert.plan("Select AU and click Submit", boxes("true", "true"), []) == "click('21')"
    assert expert.plan("select everything except AU and click Submit.", boxes("false", "false"), []) == "click('21')"
    assert expert.plan("Select nothing and click Submit.", boxes("false", "false"), []) == "click('24')"
    assert expert.plan("Select AU, but do not click Submit.", boxes("true", "false"), ["click('18')"]) == DONE


def test_checkbox_outcome_compares_the_state_at_submit() -> None:
    expert, none, first = experts()["miniwob.click-checkboxes"], boxes("false", "false"), boxes("true", "false")
    wanted = "Select AU and click Submit."
    assert judged(expert, wanted, ["click('18')", "click('24')"], [none, first], first)
    assert not judged(
        expert, wanted, ["click('21')", "click('24')"], [none, boxes("false", "true")], boxes("false", "true")
    )
    assert not judged(expert, wanted, ["click('24')", "click('18')"], [none, none], first), "ticked after submitting"
    assert not judged(expert, wanted, ["click('18')", DONE], [none, first], first), "never submitted"
    assert judged(expert, wanted, ["click('18')", "click('24')", "click('24')"], [none, first, first], first), "retry"
    only = "Select AU, but do not click Submit."
    assert judged(expert, only, ["click('18')", DONE], [none, first], first)
    assert not judged(expert, only, ["click('18')", "click('24')"], [none, first], first)


def test_a_masked_password_is_believed_only_if_it_was_the_text_filled_in() -> None:
    expert = experts()["miniwob.login-user"]
    wanted = 'Enter the username "ann" and the password "x1Y" into the text fields and press login.'
    empty = LOGIN.format("", "")
    user = LOGIN.format(" value='ann'", "")
    full = LOGIN.format(" value='ann'", " value='•••'")
    good = ["fill('16', 'ann')", "fill('19', 'x1Y')", "click('20')"]
    assert [expert.plan(wanted, o, good[:i]) for i, o in enumerate((empty, user, full))] == good
    assert judged(expert, wanted, good, [empty, user, full], full)
    bad = ["fill('16', 'ann')", "fill('19', 'xxx')", "click('20')"]
    assert expert.plan(wanted, full, bad[:2]) == "fill('19', 'x1Y')"
    assert not judged(expert, wanted, bad, [empty, user, full], full)
    assert not judged(expert, 'Enter only the username "ann" and do not press login.', good[:2], [empty, user], full)


def test_dates_and_times_are_written_as_the_fields_take_them() -> None:
    date, time = (experts()[f"miniwob.{name}"] for name in ("enter-date", "enter-time"))
    shown = PAGES["miniwob.enter-date"]["observation"]
    assert (date.plan("Set the date to 05/09/2011 and click Submit.", shown, []) or "").endswith("'2011-05-09')")
    shown = PAGES["miniwob.enter-time"]["observation"]
    for said, written in (("12:04 AM", "00:04"), ("12:30 PM", "12:30"), ("9:37 PM", "21:37")):
        assert (time.plan(f"Enter {said} as the time and press submit.", shown, []) or "").endswith(f"'{written}')")


@pytest.mark.browser
def test_experts_reach_the_environments_reward_and_their_own_proposals() -> None:
    async def run() -> None:
        async with browsers.shared_browser() as browser:
            env = BrowserEnv(browser, RolloutConfig())
            for site in sorted(experts()):
                for seed in (11, 12):
                    await check(env, Task(task_id=f"{site}.{seed}", site=site, seed=seed))
            await env.close()

    async def check(env: object, task: Task) -> None:
        reward, done, instruction, first = await play(env, task)
        assert (done, reward) == (True, 1), f"{task.task_id}: expert failed at {instruction!r}"
        proposal = propose(experts()[task.site], first, random.Random(task.seed))
        assert proposal is not None
        _, done, _, _ = await play(env, Task(task_id="generated", site=task.site, seed=task.seed, instruction=proposal))
        assert done, f"{task.task_id}: expert did not accomplish {proposal!r}"

    async def play(env: object, task: Task) -> tuple[float, bool, str, str]:
        expert, shown, actions = experts()[task.site], [await env.reset(task)], []  # type: ignore[attr-defined]
        done_actions: list[str] = []
        reward = 0.0
        for _ in range(15):
            action = expert.plan(shown[0].goal, shown[-1].text, done_actions)
            assert action is not None, f"{task.task_id}: no action for {shown[0].goal!r}"
            result = await env.step(action)  # type: ignore[attr-defined]
            actions.append(action)
            done_actions += [] if result.error else [action]
            shown.append(result.observation)
            reward = result.reward
            if result.done or result.agent_done:
                break
        texts = [o.text for o in shown]
        did = judged(expert, shown[0].goal, actions, texts[:-1], texts[-1])
        assert did or task.site in PAYS_FOR_PARTS or task.instruction, f"{task.task_id}: {actions}"
        return reward, did, shown[0].goal, texts[0]

    browsers.run(run())
