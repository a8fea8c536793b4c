# ruff: noqa: E501 - markup
"""Simplified HTML and prompts against the released tools' values (fixtures/README.md)."""

import contextlib
import json
import re
import time
from pathlib import Path

import browsers
import pytest
from playwright.async_api import Page

from webrl.llm.prompts import released_parts
from webrl.rollouts.devtools import ChannelClosed, ChannelError, Tab, load_script
from webrl.rollouts.html import observe_html, simplify
from webrl.types import Step
from webrl_webarena.env import hide_scrollbars

FIXTURES = Path(__file__).parent / "fixtures"


def read(name: str) -> list[dict]:
    return [json.loads(line) for line in (FIXTURES / name).read_text(encoding="utf-8").splitlines()]


SCRIPT = load_script("world", "mark")
_SELECT = """(([label, name]) => {
  const select = window[Symbol.for('webrl.html')].labels.get(label);
  select.value = [...select.options].find((option) => option.label === name).value;
  for (const type of ['input', 'change']) select.dispatchEvent(new Event(type, { bubbles: true }));
})"""


async def observe(page: Page, port: int) -> str:
    tab = await Tab.open(page, port, SCRIPT)
    try:
        return (await observe_html(tab, ()))[0]
    finally:
        await tab.close()


async def replay(operations: list[list], wanted: list[str]) -> list[str]:
    """Observe, act, observe, … on the fixture's pages, as the recording did; it waits for what an action brings."""
    texts = []
    async with browsers.shared_browser() as browser:
        context = await browser.new_context(viewport={"width": 1280, "height": 720})
        await context.add_init_script(load_script("settle"))
        page = await context.new_page()
        await hide_scrollbars(page)
        await page.goto((FIXTURES / "pages" / "shop.html").as_uri())
        await page.evaluate("document.fonts.ready.then(() => 1)")
        for (kind, *rest), expected in zip(operations, wanted, strict=True):
            text, deadline = "", time.monotonic() + 10
            while text != expected and time.monotonic() < deadline:
                with contextlib.suppress(ChannelError, ChannelClosed):  # it goes to another page
                    text = await observe(page, browser.port)
            texts.append(text)
            if kind == "select":
                tab = await Tab.open(page, browser.port, SCRIPT)
                await tab.evaluate(f"{_SELECT}({json.dumps(rest)})")
                await tab.close()
            if kind in ("click", "type"):
                [box] = re.findall(rf'<\w+ id="{rest[0]}" [^>]*?data-bbox="([^"]+)"', text)
                left, top, width, height = map(float, box.split(","))
                await page.mouse.click(left + width / 2, top + height / 2)
            if kind == "type":
                await page.keyboard.type(rest[1])
            if kind == "scroll":
                await page.mouse.move(640, 360)
                await page.mouse.wheel(0, rest[0])
    return texts


@pytest.mark.browser
def test_observations_of_a_trace_equal_the_released_tool_byte_for_byte():
    trace = read("trace.jsonl")
    seen = browsers.run(replay([line["do"] for line in read("prompts.jsonl")], [step["html"] for step in trace]))
    assert len(seen) == len(trace) == 10
    for step, text in zip(trace, seen, strict=True):
        assert text == step["html"], f"step {step['index']}"


@pytest.mark.quick
def test_prompts_of_a_trace_equal_the_released_constructor_byte_for_byte():
    trace = read("trace.jsonl")
    history: list[Step] = []
    for step, golden in zip(trace, read("prompts.jsonl"), strict=True):
        parts = released_parts(step["target"], history, step["html"])
        assert "".join(text for text, _ in parts) == golden["prompt"]
        history.append(Step(step["index"], step["html"], step["response"], action=""))


@pytest.mark.browser
def test_observing_leaves_the_page_as_it_is():
    async def run() -> tuple[str, str]:
        async with browsers.shared_browser() as browser:
            page = await (await browser.new_context()).new_page()
            await page.goto((FIXTURES / "pages" / "shop.html").as_uri())
            before = await page.content()
            await observe(page, browser.port)
            await observe(page, browser.port)
            return before, await page.content()

    before, after = browsers.run(run())
    assert before == after


BOX = 'data-bbox="0,0,9,9"'
SIMPLE = {
    "an element without anything to show gives way to its children": (
        f"<html><body {BOX}><div {BOX}><p {BOX}>word</p></div></body></html>", f"<p {BOX}> word </p>"),
    "an element with two speaking children is kept": (
        f"<html><div {BOX}><p {BOX}>a</p><p {BOX}>b</p></div></html>",
        f"<div {BOX}> <p {BOX}> a </p> <p {BOX}> b </p> </div>"),
    # Text that is not seen still makes its parent one of two speaking children worth keeping.
    "what is outside of the window is dropped with its text": (
        f'<html><body {BOX}><p data-bbox="0,101,9,9">far</p><p data-bbox="0,100,9,9">edge</p></body></html>',
        f'<body {BOX}> <p data-bbox="0,100,9,9"> edge </p> </body>'),
    "so is what is hidden from readers": (f'<html><p aria-hidden="true" {BOX}>no</p><p>no box</p></html>', ""),
    "a numbered element is kept, and repeated values and hidden types are not shown": (
        f'<html><body><input data-label-id="3" type="hidden" title="Go" value="Go" placeholder=" x " {BOX}></body></html>',
        f'<input id="3" title="Go" placeholder="x" {BOX}> </input>'),
    "texts are cut at 500 characters": (
        f'<html><p {BOX} title="{"t" * 600}">{"x" * 600}</p></html>', f'<p title="{"t" * 500}" {BOX}> {"x" * 500} </p>'),
    "options of a kept select are kept although they have no box": (
        f'<html><select {BOX} data-text="A"><option value="1">A</option><option>B</option></select></html>',
        f'<select data-text="A" {BOX}> <option value="1"> A </option> <option> B </option> </select>'),
}  # fmt: skip


@pytest.mark.parametrize("rule", SIMPLE)
def test_html_is_simplified_by_the_released_tool_s_rules(rule):
    html, simple = SIMPLE[rule]
    assert simplify(html, 100, 100) == simple
