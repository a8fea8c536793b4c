"""The action in a model's answer: what is taken from which shape, and which error names the fix."""

import pytest

from webrl.rollouts.actions import ActionError, read_answer

FIRST = "the first of 2 actions, answer with one"
TAKEN = [
    ("click('18')", "click('18')"),
    ('click("18")', "click('18')"),
    ("click(18)", "click('18')"),
    ("click(bid='18')", "click('18')"),
    ("click(id=18)", "click('18')"),
    ("click([18])", "click('18')"),
    ("click('[18]')", "click('18')"),
    ("click('[18] link \\'Renda\\'')", "click('18')"),
    ("click(a18)", "click('a18')"),
    ("Click('18')", "click('18')"),
    ("  click('18')  \n", "click('18')"),
    ("click('18').", "click('18')"),
    ("click('18');", "click('18')"),
    ("`click('18')`", "click('18')"),
    ("```\nclick('18')\n```", "click('18')"),
    ("```python\nclick('18')\n```", "click('18')"),
    ("```click('18')```", "click('18')"),
    ("Sure, here it is:\n```python\nclick('18')\n```", "click('18')"),
    ("```python\nclick('18')\n```\nThis presses the button.", "click('18')"),
    ("Action: click('18')", "click('18')"),
    ("**Action:** `click('18')`", "click('18')"),
    ("Thought: click('3') was wrong.\nAction: click('18')", "click('18')"),
    ("Step 1: click('18')", "click('18')"),
    ("1. click('18')", "click('18')"),
    ("- click('18')", "click('18')"),
    ("I press the option(s): click('18')", "click('18')"),
    ("I press the button (blue) with click(): click('18')", "click('18')"),
    ("click('18') presses the button.", "click('18')"),
    ("<action>click('18')</action>", "click('18')"),
    ("I think so.\n<action>\nclick('18')\n</action>", "click('18')"),
    ("<think>perhaps click('3')</think>\nclick('18')", "click('18')"),
    ('<tool_call>\n{"name": "click", "arguments": {"bid": "18"}}\n</tool_call>', "click('18')"),
    ('{"type": "function", "function": {"name": "click", "arguments": "{\\"bid\\": 18}"}}', "click('18')"),
    ('{"action": "fill", "element": 18, "text": "Ann"}', "fill('18', 'Ann')"),
    ('{"thought": "so", "action": "click(\'18\')"}', "click('18')"),
    ("# Note: the button\nclick('18')", "click('18')"),
    ("Here:\n# not click('3')\nclick('18')  # but this", "click('18')"),
    ("page.click('18')", "click('18')"),
    ("fill('12', 7)", "fill('12', '7')"),
    ("fill(\u201812\u2019, \u201cAnn\u201d)", "fill('12', 'Ann')"),
    ("send_msg_to_user('see click(3)')", "send_msg_to_user('see click(3)')"),
    # Lines of a quoted text are the text's.
    ("fill('12', 'one\ntwo')", r"fill('12', 'one\ntwo')"),
    ("fill('12', '''one\n\n# two\n```\nthree''')", r"fill('12', 'one\n\n# two\n```\nthree')"),
    ("Action: fill('12', '''one\n\n# two''')", r"fill('12', 'one\n\n# two')"),
    ("fill('12', 'a\u2028b\x0cc\x85d')", r"fill('12', 'a\u2028b\x0cc\x85d')"),
    ("fill('12', '<think>a</think>b')", "fill('12', '<think>a</think>b')"),
]
TAKEN_WITH_A_NOTE = [
    ("click('18')\nclick('19')", "click('18')", FIRST),
    ("click('18') | click('19')", "click('18')", FIRST),
    ("click('18'); click('19')", "click('18')", FIRST),
    ("1. fill('12', 'Ann')\n2. press('12', 'Enter')", "fill('12', 'Ann')", FIRST),
    ('[{"name": "click", "arguments": {"bid": 18}}, {"name": "noop", "arguments": {}}]', "click('18')", FIRST),
    ("type('12', 'Ann')", "fill('12', 'Ann')", "for type('12', 'Ann')"),
    ("type(text='Ann', bid=12)", "fill('12', 'Ann')", "for type(text='Ann', bid=12)"),
    ("type('Ann')", "keyboard_type('Ann')", "for type('Ann')"),
    ("tap('18')", "click('18')", "for tap('18')"),
    ("choose('33', 'Spain')", "select_option('33', 'Spain')", "for choose('33', 'Spain')"),
    ("press('Enter')", "keyboard_press('Enter')", "for press('Enter')"),
    ("send_keys(keys='Enter')", "keyboard_press('Enter')", "for send_keys(keys='Enter')"),
    ("send_keys('Enter')", "keyboard_press('Enter')", "for send_keys('Enter')"),
    ('send_keys("Control+a")', "keyboard_press('Control+a')", "for send_keys('Control+a')"),
    ("send_keys('Ann + Bob')", "keyboard_type('Ann + Bob')", "for send_keys('Ann + Bob')"),
    ("scroll('up')", "scroll(0, -480)", "for scroll('up')"),
    ("scroll(down)", "scroll(0, 480)", "for scroll('down')"),
]
REFUSED = [
    ("type('12', 'Ann', 'Enter')", r"No action 'type': did you mean fill\('12', 'text'\)\?"),
    ("<think>so</think>swipe()", "No action 'swipe'"),
    ("I click(Renda) now", "ids are the numbers in square brackets"),
    ("I try swipe('18') and click('3')", "No action 'swipe'"),
    ("stop('42')", r"did you mean send_msg_to_user\('text'\)"),
    ("click(Renda)", r"ids are the numbers in square brackets, e.g. click\('18'\); got 'Renda'"),
    ("fill('12', Ann)", "put it in quotes: 'Ann'"),
    ("fill('12', 1.50)", "value must be a string"),
    ("scroll('sideways')", "delta_x must be a number"),
    ("I don't know.", r"Not an action: .* Expected one call such as click\('12'\)"),
    ("click", "Not an action"),
    ("The button (disabled) cannot be pressed", "Not an action"),
    ("click('18'", "Not an action"),
    ("send_msg_to_user('It's done')", "Not an action"),
    ("a(" * 9000, "Not an action"),
    ("click('1')" * 20_000, "characters long"),
]


@pytest.mark.parametrize(("answer", "action"), TAKEN)
def test_an_action_is_taken_out_of_an_answer_however_it_is_wrapped(answer, action):
    taken = read_answer(answer, "browsergym")
    assert (taken.canonical, taken.note) == (action, "")


@pytest.mark.parametrize(("answer", "action", "note"), TAKEN_WITH_A_NOTE)
def test_what_is_taken_is_told_where_the_answer_says_something_else(answer, action, note):
    taken = read_answer(answer, "browsergym")
    assert (taken.canonical, taken.note) == (action, note)


@pytest.mark.parametrize(("answer", "reason"), REFUSED)
def test_what_is_not_certain_is_refused_with_the_fix(answer, reason):
    with pytest.raises(ActionError, match=reason):
        read_answer(answer, "browsergym")


def test_the_released_language_is_found_in_an_answer_that_says_more():
    answer = "I search.\n```\n# Element: the box\ndo(action='Search', argument='a # b', element='4')\n```"
    assert read_answer(answer, "webrl").canonical == "do(action='Search', argument='a # b', element='4')"
    with pytest.raises(ActionError, match=r"No action 'stop': did you mean exit\(message"):
        read_answer("stop('42')", "webrl")
