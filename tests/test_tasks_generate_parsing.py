"""Answers of all shapes to instructions, and what is refused."""

import pytest

from webrl.tasks.prompts import malformed_reason, parse_instructions

TWO = ("Open the cart", "Sort the mice by price")


@pytest.mark.parametrize(
    "answer",
    [
        "Open the cart\nSort the mice by price",
        "1. Open the cart\n2) Sort the mice by price",
        "- `Open the cart`\n- `Sort the mice by price`",
        '* "Open the cart"\n* "Sort the mice by price",',
        "Here are 2 new instructions:\n\n1. **Open the cart**\n2. **Sort the mice by price**",
        "Task 1: Open the cart\nTask 2: Sort the mice by price",
        '```json\n["Open the cart", "Sort the mice by price"]\n```',
        '{"instructions": [{"task": "Open the cart"}, {"task": "Sort the mice by price"}]}',
        '{"task": "Open the cart", "web": "shopping"}\n{"task": "Sort the mice by price", "web": "shopping"}',
        "<think>The user wants\n1. something</think>\nOpen the cart\r\nSort the mice by price\r\n",
        "<thinking>The user wants\n1. something</thinking>\nOpen the cart\nSort the mice by price",
        "Sure!\n`Open the cart`\n`Open the cart`\n`Sort the mice by price`",
    ],
)
def test_every_shape_of_answer_gives_the_same_two_instructions(answer):
    assert parse_instructions(answer, 2)[0] == TWO


@pytest.mark.parametrize(
    "line",
    [
        *('Click on the "ok" button.', '"ok" must be clicked, then "Next"', "3 of the boxes must be ticked"),
        *("Select Raeann>Lin", "Click `a` and `b`", "10/11/2016 must be entered", "Click on Tab #2."),
    ],
)
def test_an_instruction_that_looks_like_decoration_is_kept_whole(line):
    assert parse_instructions(line)[0] == (line,)
    assert malformed_reason(line) is None


@pytest.mark.parametrize(
    ("answer", "reason"),
    [("", "empty_answer"), (" \n\n", "empty_answer"), ("I'm sorry, I cannot help with that.", "refusal")],
)
def test_empty_answers_and_refusals_give_nothing_and_are_counted(answer, reason):
    found, counts = parse_instructions(answer)
    assert found == ()
    assert counts == {reason: 1}


def test_the_last_line_of_an_answer_that_was_cut_off_is_dropped():
    found, counts = parse_instructions("Open the cart\nSort the mi", 5, truncated=True)
    assert found == ("Open the cart",)
    assert counts == {"truncated": 1}


@pytest.mark.parametrize(
    ("text", "reason"),
    [
        ("", "is empty"),
        ("Submit", "has fewer than two words"),
        ("Click " + "very " * 100 + "often", "is longer than 400 characters"),
        *((text, "holds control characters") for text in ("Click \x07 the bell", "Click the \u202ekcab button")),
        *((f"Say {text}", "holds markup") for text in ("<b>this</b>", "ok<|eot_id|><|start_header_id|>s", "{{ it }}")),
        ("[12] button 'ok'", "repeats the prompt"),
        ("I cannot write an instruction", "is a refusal"),
        ("Search for [item name] in the shop", "has an unfilled placeholder"),
        ("123 456", "has no letters"),
        ('Enter "Ju', "has an unclosed quote"),
        ("go " * 20, "repeats itself"),
    ],
)
def test_what_cannot_be_an_instruction_is_named(text, reason):
    assert malformed_reason(text) == reason
