"""`webrl view` in a real browser: keys, labels, growing runs, no JavaScript, hostile runs, accessibility."""

import re

import pytest
from browsers import run as in_loop
from browsers import shared_browser
from view_builders import HOSTILE, make_run, trajectory, viewer, write

pytestmark = pytest.mark.browser

UNNAMED = """() => [...document.querySelectorAll('a, button, select, input:not([type=hidden]), summary, img, table')]
  .filter((e) => e.checkVisibility())
  .filter((e) => !(e.innerText || e.ariaLabel || e.alt || [...(e.labels || [])].some((l) => l.textContent.trim())))
  .map((e) => e.outerHTML)"""
OUTLINE = """() => ({
  h1: document.querySelectorAll('h1').length,
  levels: [...document.querySelectorAll('h1, h2, h3')].filter((h) => h.checkVisibility()).map((h) => +h.tagName[1]),
  landmarks: ['header', 'main'].map((tag) => document.querySelectorAll(tag).length),
  lang: document.documentElement.lang, title: document.title,
  twice: [...document.querySelectorAll('[id]')].map((e) => e.id).filter((id, i, all) => all.indexOf(id) !== i),
  stuck: [...document.querySelectorAll('pre, .tokens')]
    .filter((e) => e.scrollHeight > e.clientHeight && e.tabIndex < 0).length,
})"""


@pytest.fixture(scope="module")
def run(tmp_path_factory):
    folder = make_run(tmp_path_factory.mktemp("view") / "run")
    hostile = trajectory(
        "../p02-x", phase=2, site=HOSTILE, instruction=HOSTILE, page=HOSTILE * 2000, final_observation=HOSTILE,
        message=HOSTILE, actions=(HOSTILE,),
    )  # fmt: skip
    write(folder / "phase_02" / "trajectories.jsonl", [hostile])
    return folder


@pytest.fixture(scope="module")
def served(run):
    with viewer(run) as (url, _):
        yield url


def browse(url, look, *, javascript=True, **options):
    """Run `look` with a page that has opened the address; nothing may be said on the console."""

    async def play():
        async with shared_browser() as browser:
            context = await browser.new_context(java_script_enabled=javascript, **options)
            try:
                page = await context.new_page()
                said = []
                page.on("console", lambda message: said.append(message.text))
                page.on("pageerror", lambda error: said.append(str(error)))
                page.on("dialog", lambda dialog: said.append(dialog.message))
                await page.goto(url)
                await look(page)
                assert said == []
            finally:
                await context.close()

    in_loop(play())


def test_keys_move_open_and_label(served, run):
    async def look(page):
        await page.goto(served + "?phase=0&sort=oldest")
        await page.keyboard.press("j")
        await page.keyboard.press("j")
        assert await page.evaluate("document.activeElement.textContent") == "Choose <b>two</b>."
        await page.keyboard.press("k")
        await page.keyboard.press("Enter")
        await page.wait_for_url("**/t/0/phase_00/trajectories.jsonl/1?phase=0&sort=oldest")
        await page.keyboard.press("j")
        await page.keyboard.press("j")
        assert (await page.evaluate("document.activeElement.innerText")).startswith("Step 2")
        assert await page.inner_text("#step-1 mark") == "[17] button 'Cancel'"
        await page.keyboard.press("f")
        await page.wait_for_selector('button[value="0"][aria-pressed=true]')
        await page.wait_for_load_state()
        assert b'"success":0' in (run / "hand_labels.jsonl").read_bytes()
        await page.keyboard.press("u")
        await page.wait_for_selector("button[value='']:disabled")
        await page.wait_for_load_state()
        assert (run / "hand_labels.jsonl").read_bytes() == b""
        await page.keyboard.press("ArrowRight")
        await page.wait_for_url("**/2?phase=0&sort=oldest")
        await page.keyboard.press("ArrowLeft")
        await page.wait_for_url("**/1?phase=0&sort=oldest")
        await page.keyboard.press("c")
        await page.wait_for_url(re.compile("/compare"))
        assert "they diverge at step 2" in await page.inner_text("main")
        await page.keyboard.press("?")
        assert await page.is_visible("dialog")
        await page.keyboard.press("Escape")
        assert not await page.is_visible("dialog")
        await page.keyboard.press("/")
        await page.keyboard.type("jk?two")
        assert await page.input_value("#q") == "jk?two"

    browse(served, look)


def test_a_filter_applies_at_once_and_what_is_new_is_said(served, run):
    async def look(page):
        await page.select_option("#f-match", "disagree")
        await page.wait_for_url("**/?match=disagree&sort=disagreements")
        assert await page.locator(".list tbody tr").count() == 1
        write(run / "phase_00" / "trajectories.jsonl", [trajectory("p00-new", phase=0)], "ab")
        await page.wait_for_selector("#live button")
        await page.keyboard.press("r")
        await page.wait_for_function("!document.querySelector('#live button')")
        await page.wait_for_load_state()
        await page.fill("#q", "p00-new")
        await page.keyboard.press("Enter")
        await page.wait_for_url("**/?q=p00-new**")
        assert "Nothing matches" in await page.inner_text("main")

    browse(served, look)


def test_everything_can_be_browsed_without_javascript(served):
    async def look(page):
        await page.select_option("#f-kind", "eval")
        await page.click("button.apply")
        await page.click(".list .what a")
        assert await page.inner_text("h1") == "Click the Ok button."
        await page.click("#compare")
        assert await page.inner_text("h1") == "Side by side"

    browse(served, look, javascript=False)


def test_a_hostile_run_is_text(served):
    async def look(page):
        await page.goto(served + "?phase=2")
        await page.click(".list .what a")
        assert await page.inner_text("h1") == HOSTILE.replace("\x1b", "␛").replace("\u202e", "⟨U+202E⟩")
        assert await page.evaluate("[window.hacked, document.images.length]") == [None, 0]
        async with page.expect_navigation():
            await page.click("text=Show all")
        assert await page.evaluate("[window.hacked, document.contentType]") == [None, "text/plain"]

    browse(served, look)


def test_pages_can_be_used_by_everybody(served):
    base = served.rstrip("/")

    async def look(page):
        other = "0/phase_00/trajectories.jsonl/2"
        for path in ("/", "/?match=disagree", "/t/0/phase_00/trajectories.jsonl/1", f"/compare?a={other}&b={other}"):
            for width in (1280, 800, 400):
                await page.set_viewport_size({"width": width, "height": 800})
                await page.goto(base + path)
                assert await page.evaluate(UNNAMED) == []
                outline = await page.evaluate(OUTLINE)
                assert (outline["h1"], outline["landmarks"], outline["lang"]) == (1, [1, 1], "en")
                assert (outline["twice"], outline["stuck"]) == ([], 0)
                assert all(b - a <= 1 for a, b in zip(outline["levels"], outline["levels"][1:], strict=False))
                assert await page.evaluate("document.documentElement.scrollWidth") <= width
            await page.keyboard.press("Tab")
            assert await page.evaluate("getComputedStyle(document.activeElement).outlineStyle") == "solid"

    browse(served, look)
