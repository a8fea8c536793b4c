"""Parsers of what models, pages and people write, held against generated input: no surprise, nothing lost."""

import string

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from webrl.config import RunConfig, load_config, validate_config
from webrl.config.yaml_file import parse_yaml
from webrl.errors import UsageError
from webrl.rollouts.actions import ACTIONS, Action, ActionError, parse_action, read_answer
from webrl.rollouts.html import simplify
from webrl.tasks.filter import read_verdict
from webrl.tasks.prompts import malformed_reason, parse_instructions

few = settings(derandomize=True, deadline=None, max_examples=60, database=None)

TEXT = st.text(
    st.one_of(
        st.characters(),  # lone surrogates included
        st.sampled_from("\x00\x07\x1b\u202e\u2028\ufeff'\"`\\()[]{}<>#,:=\n\t "),
    ),
    max_size=60,
)
ACTION_LIKE = st.text(st.sampled_from("click(fill)do='\"12,\\[]{}#\n `x.-:*\x00é"), max_size=60)
NUMBERS = st.one_of(st.integers(-(10**8), 10**8), st.floats(-1e8, 1e8, allow_nan=False))
VALUES = {
    "str": TEXT,
    "number": NUMBERS,
    "int": st.integers(-(10**20), 10**20),
    "bool": st.booleans(),
    "bid": st.from_regex(r"[a-zA-Z]{0,2}[0-9]{1,4}", fullmatch=True),
    "strs": st.one_of(TEXT, st.lists(TEXT, max_size=3)),
    "button": st.sampled_from(("left", "middle", "right")),
    "modifiers": st.lists(st.sampled_from(("Alt", "Control", "Shift")), max_size=2),
}


@st.composite
def actions(draw):
    name = draw(st.sampled_from(sorted(ACTIONS)))
    return Action(name, {p.name: draw(VALUES[p.kind]) for p in ACTIONS[name]})


@few
@given(actions())
def test_an_action_comes_back_from_its_canonical_form(action):
    again = parse_action(action.canonical)
    assert (again.name, again.arguments) == (action.name, action.arguments)
    assert again.canonical == action.canonical


@few
@given(st.one_of(TEXT, ACTION_LIKE), st.sampled_from(("browsergym", "webrl")))
def test_any_text_is_an_action_or_an_action_error(text, dialect):
    try:
        action = read_answer(text, dialect)
    except ActionError as error:
        assert len(str(error)) < 1000
        return
    assert read_answer(action.canonical, dialect).canonical == action.canonical


@pytest.mark.parametrize(
    "text",
    ["(" * 5000, "click(" + "[" * 3000 + "]" * 3000 + ")", "click(" + "-" * 9000 + "1)", "click(" + "9" * 5000 + ")", "scroll(1e999, 0)", "click(" + "f'{" * 100 + ")", "click('" + "x" * 50_000 + "')",
     "click(\x00'1')", "\ufeffclick('1", "click(*[" * 50, "click(b'1')", "click(...)", "click(1j)", "tab_focus(" + "9" * 4000 + ")"],
)  # fmt: skip
def test_hostile_actions_are_refused_in_one_short_sentence(text):
    for dialect in ("browsergym", "webrl"):
        with pytest.raises(ActionError) as refused:
            read_answer(text, dialect)
        assert len(str(refused.value)) < 1000


@few
@given(TEXT, st.integers(1, 5), st.booleans())
def test_any_answer_gives_instructions_that_are_counted(answer, num_wanted, truncated):
    found, counts = parse_instructions(answer, num_wanted, truncated)
    assert len(found) <= num_wanted
    assert len(set(found)) == len(found)
    assert all(count > 0 for count in counts.values())
    assert found or counts
    for instruction in found:
        malformed_reason(instruction)


@pytest.mark.parametrize(
    "answer",
    ["[" * 100_000, '{"a":' * 50_000, "```" * 50_000, "<think>" * 50_000, "- " * 50_000, "1. " * 50_000, "# " * 50_000,
     "[{" * 40_000, '"' * 100_000, "*" * 100_000, "> > " * 40_000, "\u202e" * 100_000, "<a " * 40_000, "[x " * 40_000,
     "\n" * 200_000, "{" + "," * 100_000 + "}", "**task**: " * 20_000],
)  # fmt: skip
def test_long_repetitions_in_an_answer_are_read_in_linear_time(answer):
    """The suite's time limit for a test is what a quadratic or worse pattern would exceed."""
    for instruction in parse_instructions(answer, 3)[0]:
        malformed_reason(instruction)
    assert read_verdict(answer) is None


@few
@given(TEXT)
def test_a_verdict_is_yes_no_or_nothing(answer):
    assert read_verdict(answer) in (True, False, None)
    assert read_verdict(f"YES{answer}"[:3]) is True
    assert read_verdict("<think>YES</think> No, " + answer) is False


LEAVES = st.one_of(
    st.none(),
    st.booleans(),
    st.integers(-(10**18), 10**18),
    st.floats(allow_nan=False, allow_infinity=False),
    st.text(string.ascii_letters + string.digits + " .-_/", max_size=12),
)
TREES = st.recursive(
    LEAVES,
    lambda inner: st.one_of(st.lists(inner, max_size=3), st.dictionaries(st.sampled_from("abcde"), inner)),
    max_leaves=8,
)
KEYS = st.one_of(st.sampled_from(("name", "seed", "actor", "actor.lr", "rollout.urls", "replay.demos")), TEXT)


@few
@given(TEXT)
def test_any_text_is_yaml_or_a_usage_error_of_one_line(text):
    try:
        parse_yaml(text, "there")
    except UsageError as error:
        assert str(error).startswith("there: ")
        assert "\n" not in str(error)


@few
@given(KEYS, st.one_of(TREES.map(repr), TEXT))
def test_any_override_is_applied_or_refused_with_its_key(key, value):
    override = f"{key}={value}"
    try:
        config = load_config(None, [override])
    except UsageError as error:
        assert len(str(error).splitlines()) <= 3
        return
    assert isinstance(config, RunConfig)


@few
@given(st.dictionaries(st.sampled_from(("name", "seed", "actor", "models", "rollout", "tasks", "filter", "x")), TREES))
def test_any_mapping_is_a_config_or_a_usage_error(data):
    try:
        validate_config(data, "c.yaml")
    except UsageError as error:
        assert 1 <= len(str(error).splitlines()) <= 3
        assert all(line.startswith(("c.yaml: ", "and ")) for line in str(error).splitlines())


TAGS = st.sampled_from(
    ("html", "body", "div", "a", "select", "option", "script", "style", "svg", "table", "tr", "td", "p", "x-y")
)
ATTRIBUTES = st.sampled_from(('data-label-id="1"', 'data-bbox="0,0,9,9"', 'data-bbox="a,b"', 'data-bbox="1e999,nan,0,0"',
                              'title="x"', "value=\"'<\"", 'aria-hidden="true"', "selected"))  # fmt: skip
MARKUP = st.lists(
    st.one_of(
        st.tuples(TAGS, ATTRIBUTES).map(lambda t: f"<{t[0]} {t[1]}>"),
        TAGS.map(lambda t: f"</{t}>"),
        TEXT,
        st.sampled_from(
            ("<!--", "-->", "<![CDATA[", "<?xml", "<meta charset=utf-16>", "&#0;", "&#xd800;", "<", "</", "<script")
        ),
    ),
    max_size=12,
).map("".join)


@few
@given(MARKUP)
def test_any_markup_becomes_text(html):
    assert isinstance(simplify(html, 1280, 720), str)


@pytest.mark.parametrize(
    "html",
    ["<div>" * 20_000, "<div><p>" * 3000 + "x", "<!--" * 20_000, "<script" * 20_000, "<style>" * 20_000, "<style" + ">" * 50_000, "\x00" * 1000,
     "<!-- only a comment -->", "<?xml version='1.0' encoding='utf-16'?>", "<a title='" + "x" * 200_000, "&" * 100_000, " " * 200_000],
)  # fmt: skip
def test_hostile_markup_becomes_text_in_linear_time(html):
    assert isinstance(simplify(html, 1280, 720), str)


@pytest.mark.parametrize("value", ["*hunter2", "!hunter2", "[hunter2", "&hunter2 *x", "{a: hunter2"])
@pytest.mark.parametrize("key", ["rollout.webarena.accounts.gitlab.password", "rollout.webarena.accounts"])
def test_a_password_that_is_no_yaml_is_refused_without_being_quoted(key, value):
    with pytest.raises(UsageError, match="put the value in quotes") as refused:
        load_config(None, [f"{key}={value}"])
    assert "hunter2" not in str(refused.value)
