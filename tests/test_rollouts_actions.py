"""Both action languages, read as data, never evaluated; and the action in a model's answer: what is taken from which
shape, and which error names the fix.
"""

import inspect
import sys
import warnings
from concurrent.futures import ThreadPoolExecutor

import pytest

from webrl.rollouts.actions import ACTIONS, REQUIRED, ActionError, parse_action, read_answer


@pytest.mark.parametrize(
    ("text", "canonical"),
    [
        ('click("12", button="right")', "click('12', 'right')"),
        ("click('12', modifiers=['Shift'])", "click('12', modifiers=['Shift'])"),
        ("click('12', 'left', [])", "click('12')"),
        ("fill('a3', value='it\\'s')", "fill('a3', \"it's\")"),
        ("select_option('7', ['red', 'blue'])", "select_option('7', ['red', 'blue'])"),
        ("scroll(0, -200.5)", "scroll(0, -200.5)"),
        (r"fill('7', 'C:\temp\p')", r"fill('7', 'C:\temp\\p')"),
        ("noop()", "noop()"),
        ("noop(20)", "noop(20)"),
        ("tab_focus(1)", "tab_focus(1)"),
        ("# why: it says so\nclick('12')", "click('12')"),
        ("send_msg_to_user('é ( \\n')", "send_msg_to_user('é ( \\n')"),
    ],
)
def test_equal_actions_have_one_spelling(text, canonical):
    assert parse_action(text).canonical == canonical


@pytest.mark.parametrize(
    ("text", "reason"),
    [
        *((text, "There is no action") for text in ("", "# only a comment")),
        ("click('1'); click('2')", "several actions"),
        *((text, "Not an action") for text in ("x = click('1')", "os.system('ls')", "lambda: 0", "click('\0')")),
        ("__import__('os')", "No action '__import__'"),
        *((text, "must be literals") for text in ("click(open('/etc/passwd'))", "click(f'{1}')", "click(*['1'])")),
        ("click(**{'bid': '1'})", "unnamed"),
        ("click('1', bid='1')", "twice"),
        ("click('1', colour='red')", "no argument"),
        ("click()", "missing"),
        *((text, "square brackets") for text in ("click(1.5)", "click(Save)")),
        ("click('1', 'sideways')", "button"),
        ("click('1', 'left', ['Hyper'])", "modifiers"),
        ("tab_focus(1.5)", "int"),
        *((text, "number") for text in ("mouse_click(True, 3)", "mouse_click(1e999, 3)")),
        ("fill('1', 'x', 'y', 'z')", "takes 3"),
    ],
)
def test_everything_else_is_refused_with_a_reason(text, reason):
    with pytest.raises(ActionError, match=reason):
        parse_action(text)


@pytest.mark.browsergym
def test_all_actions_of_browsergym_are_known_with_their_parameters():
    from browsergym.core.action import functions

    placeholders = {"add_demo_mode_effects", "call_fun", "get_elem_by_bid", "highlight_by_box", "map_coordinates"}
    placeholders |= {"smooth_move_visual_cursor_to"}
    stock = {name: f for name, f in inspect.getmembers(functions, inspect.isfunction) if name not in placeholders}
    assert set(ACTIONS) == set(stock)
    for name, function in stock.items():
        expected = [(p.name, p.default) for p in inspect.signature(function).parameters.values()]
        ours = [(p.name, inspect.Parameter.empty if p.default is REQUIRED else p.default) for p in ACTIONS[name]]
        assert ours == expected, name


@pytest.mark.parametrize(
    ("text", "names", "written"),
    [
        ('do(action="Click", element="12")', ["click"], "do(action='Click', element='12')"),
        ("do(action='Click', element=12)", ["click"], "do(action='Click', element='12')"),
        ("do(action='Right Click', element='3')", ["click"], "do(action='Right Click', element='3')"),
        (
            "# Element: the 'Search' box\n# Note: done\ndo(action='Search', argument='tea', element='4')",
            ["fill", "press"],
            "do(action='Search', argument='tea', element='4')",
        ),
        ("do(action='Type', argument=7, element='4')", ["fill"], "do(action='Type', argument='7', element='4')"),
        ("do(action='Scroll Down')", ["scroll"], "do(action='Scroll Down')"),
        ("do(action='Switch Tab', argument='1')", ["tab_focus"], "do(action='Switch Tab', argument='1')"),
        (
            "do(action='Select Dropdown Option', argument='Red', element='9')",
            ["select_option"],
            "do(action='Select Dropdown Option', argument='Red', element='9')",
        ),
        ("do(action='Press Enter')", ["keyboard_press"], "do(action='Press Enter')"),
        ("do(action='Wait')", ["noop"], "do(action='Wait')"),
        ("exit(message='42')", ["send_msg_to_user"], "exit(message='42')"),
        ("exit()", ["send_msg_to_user"], "exit(message='')"),
        ("go_backward()", ["go_back"], "go_backward()"),
        ("go_forward()", ["go_forward"], "go_forward()"),
    ],
)
def test_webrl_actions_become_browsergym_actions(text, names, written):
    action = read_answer(text, "webrl")
    assert [action.name, *(part.name for part in action.rest)] == names
    assert action.canonical == written


def test_a_webrl_scroll_goes_two_thirds_of_the_released_window():
    assert read_answer("do(action='Scroll Up')", "webrl").arguments == {"delta_x": 0, "delta_y": -720 * 2 / 3}


@pytest.mark.parametrize(
    ("text", "reason"),
    [
        ("do(action='Fly')", "Invalid action"),
        ("do(action='Click')", "needs an element"),
        ("do(action='Type', element='3')", "needs an argument"),
        ("do(action='Switch Tab', argument='next')", "number"),
        ("click('3')", "No action 'click': did you mean do"),
        ("do(element='3')", "missing"),
        ("exit(message=quit())", "literals"),
    ],
)
def test_webrl_actions_are_refused_with_a_reason(text, reason):
    with pytest.raises(ActionError, match=reason):
        read_answer(text, "webrl")


def test_actions_read_in_several_threads_leave_warnings_as_they_were():
    before, interval = list(warnings.filters), sys.getswitchinterval()
    sys.setswitchinterval(1e-6)
    try:
        with ThreadPoolExecutor(4) as pool:
            list(pool.map(parse_action, ["noop()"] * 4000))
        assert warnings.filters == before
    finally:
        sys.setswitchinterval(interval)
        warnings.filters[:] = before


FIRST = "the first of 2 actions, answer with one"
CLICKS = (
    "click('18')", 'click("18")', "click(18)", "click(bid='18')", "click(id=18)", "click([18])", "click('[18]')",
    "click('[18] link \\'Renda\\'')", "Click('18')", "  click('18')  \n", "click('18').", "click('18');",
    "`click('18')`", "```\nclick('18')\n```", "```python\nclick('18')\n```", "```click('18')```",
    "Sure, here it is:\n```python\nclick('18')\n```", "```python\nclick('18')\n```\nThis presses the button.",
    "Action: click('18')", "**Action:** `click('18')`", "Thought: click('3') was wrong.\nAction: click('18')",
    "Step 1: click('18')", "1. click('18')", "- click('18')", "I press the option(s): click('18')",
    "I press the button (blue) with click(): click('18')", "click('18') presses the button.",
    "<action>click('18')</action>", "I think so.\n<action>\nclick('18')\n</action>",
    "<think>perhaps click('3')</think>\nclick('18')",
    '<tool_call>\n{"name": "click", "arguments": {"bid": "18"}}\n</tool_call>',
    '{"type": "function", "function": {"name": "click", "arguments": "{\\"bid\\": 18}"}}',
    '{"thought": "so", "action": "click(\'18\')"}', "# Note: the button\nclick('18')",
    "Here:\n# not click('3')\nclick('18')  # but this", "page.click('18')",
)  # fmt: skip
"""Answers from which click('18') is taken."""
TAKEN = [
    *((answer, "click('18')") for answer in CLICKS),
    ("click(a18)", "click('a18')"),
    ('{"action": "fill", "element": 18, "text": "Ann"}', "fill('18', 'Ann')"),
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
