"""Both action languages: read as data, never evaluated."""

import sys
import warnings
from concurrent.futures import ThreadPoolExecutor

import pytest

from webrl.rollouts.actions import ACTIONS, REQUIRED, ActionError, parse_action, read_answer


@pytest.mark.parametrize(
    ("text", "canonical"),
    [
        ("click('12')", "click('12')"),
        ("click(bid='12')", "click('12')"),
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
        ("click(12)", "click('12')"),
        ("send_msg_to_user('é ( \\n')", "send_msg_to_user('é ( \\n')"),
    ],
)
def test_equal_actions_have_one_spelling(text, canonical):
    assert parse_action(text).canonical == canonical


@pytest.mark.parametrize(
    ("text", "reason"),
    [
        ("", "There is no action"),
        ("# only a comment", "There is no action"),
        ("click '12'", "Not an action"),
        ("click('12'", "Not an action"),
        ("click('1'); click('2')", "several actions"),
        ("x = click('1')", "Not an action"),
        ("os.system('ls')", "Not an action"),
        ("__import__('os')", "No action '__import__'"),
        ("click(open('/etc/passwd'))", "must be literals"),
        ("click(f'{1}')", "must be literals"),
        ("click(*['1'])", "must be literals"),
        ("click(**{'bid': '1'})", "unnamed"),
        ("click('1', bid='1')", "twice"),
        ("click('1', colour='red')", "no argument"),
        ("click()", "missing"),
        ("click(1.5)", "square brackets"),
        ("click(Save)", "square brackets"),
        ("fill('1', Ann)", "put it in quotes: 'Ann'"),
        ("click('1', 'sideways')", "button"),
        ("click('1', 'left', ['Hyper'])", "modifiers"),
        ("tab_focus(1.5)", "int"),
        ("mouse_click(True, 3)", "number"),
        ("mouse_click(1e999, 3)", "number"),
        ("fill('1', 'x', 'y', 'z')", "takes 3"),
        ("lambda: 0", "Not an action"),
        ("click('1')" * 20_000, "characters long"),
        ("(" * 3000, "Not an action"),
        ("click('\0')", "Not an action"),
    ],
)
def test_everything_else_is_refused_with_a_reason(text, reason):
    with pytest.raises(ActionError, match=reason):
        parse_action(text)


@pytest.mark.browsergym
def test_all_actions_of_browsergym_are_known_with_their_parameters():
    import inspect

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
