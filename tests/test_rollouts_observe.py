"""What agent and judge see: BrowserGym's lines and bids, without the page's own display of goal and reward."""

import json

import pytest
from rollouts_builders import in_browser, miniwob, on_page

from webrl.rollouts.observe import flatten_axtree, framed_axtree

PLANT = """for (const id of ['reward-display', 'click-canvas', 'sync-task-cover', 'query']) {
  let element = document.getElementById(id);
  if (!element) { element = document.createElement('div'); element.id = id; document.body.appendChild(element); }
  element.innerHTML = '<p>Last reward: <b aria-label="PLANTED">PLANTED 0.97</b><button>PLANTED</button></p>';
}"""


@pytest.mark.browser
@pytest.mark.parametrize("form", ["axtree", "html"])
def test_a_reward_text_planted_on_the_page_does_not_arrive(form):
    async def play(env):
        first = await env.reset(miniwob("click-button"))
        await env.page.evaluate(PLANT)
        second = (await env.step("noop(0)")).observation
        return first.text, second.text, await env.page.evaluate("document.body.innerHTML")

    before, after, html = in_browser(play, observation=form)
    assert "PLANTED" in html
    assert "PLANTED" not in after
    assert "reward" not in after.lower()
    assert "submit" in before
    assert "submit" in after


@pytest.mark.browser
@pytest.mark.parametrize("form", ["axtree", "html"])
def test_a_generated_instruction_replaces_the_pages_own_which_does_not_leak(form):
    async def play(env):
        own = await env.reset(miniwob("login-user", 3))
        ours = await env.reset(miniwob("login-user", 3, instruction="Type your name"))
        return own.goal, ours

    goal, observation = in_browser(play, observation=form)
    assert observation.goal == "Type your name"
    for word in goal.split('"')[1::2]:
        assert word not in observation.text
    assert "Enter the username" not in observation.text


@pytest.mark.browser
@pytest.mark.browsergym
def test_lines_are_those_that_browsergym_prints_for_the_same_tree():
    from browsergym.utils.obs import flatten_axtree_to_str

    async def play(env):
        trees = []
        for page in ("email-inbox", "click-checkboxes", "book-flight", "enter-date", "navigate-tree", "count-shape"):
            await env.reset(miniwob(page, 1))
            await env.tab.evaluate("__webrl.mark('', [], true)")
            # It drops the tree again: a page that is restarted while its tree is kept up may crash (Chromium 150).
            trees.append(await framed_axtree(env.tab))
        return trees

    ignored = ("editable", "readonly", "level", "settable", "multiline", "invalid", "focusable", "url")
    for nodes in in_browser(play):
        stock = flatten_axtree_to_str(
            {"nodes": with_bids(nodes)}, ignored_roles=["LineBreak", "InlineTextBox"], ignored_properties=ignored
        )
        assert flatten_axtree(nodes) == stock


def with_bids(nodes):
    """The tree as BrowserGym holds it: ids moved from ARIA texts to a field of their own."""
    from browsergym.core.observation import extract_data_items_from_aria

    result = json.loads(json.dumps(nodes))
    for node in result:
        items = []
        for i, prop in enumerate(node.get("properties", [])):
            if prop["name"] == "roledescription":
                items, rest = extract_data_items_from_aria(prop["value"]["value"])
                prop["value"]["value"] = rest
                if not rest:
                    del node["properties"][i]
                break
        if not items and "description" in node:
            items, _ = extract_data_items_from_aria(node["description"]["value"])
        if items:
            node["browsergym_id"] = items[0]
    return result


@pytest.mark.browser
@pytest.mark.parametrize("every_element", [False, True])
def test_a_page_reads_the_same_in_every_chromium(every_element):
    page = """<title>t</title><input type=date aria-label=day value=2024-05-09><select><option>A<option>B</select>
    <table><tr><th>x<td>y</table><button role=tab aria-selected=false aria-controls=p>T</button><p id=p hidden>P</p>"""
    said = "" if every_element else ", valuetext=''"
    wanted = f"""RootWebArea 't', focused
    [4] Date 'day' value='2024-05-09'
        [4] spinbutton 'Month' value=5, valuemin=1, valuemax=12{said}
            StaticText '05'
        StaticText '/'
        [4] spinbutton 'Day' value=9, valuemin=1, valuemax=31{said}
            StaticText '09'
        StaticText '/'
        [4] spinbutton 'Year' value=2024, valuemin=1, valuemax=275760{said}
            StaticText '2024'
        [4] button 'Show date picker', hasPopup='menu'
    [5] combobox '' value='A', hasPopup='menu', expanded=False
        MenuListPopup ''
            [6] option 'A', selected=True
            [7] option 'B', selected=False
    [8] table ''
        [9] rowgroup ''
            [10] row ''
                [11] rowheader 'x'
                [12] cell 'y'
    [13] tab 'T', selected=False"""
    assert on_page(page, every_element=every_element)[0][0] == wanted.replace("    ", "\t")


@pytest.mark.browser
def test_a_field_that_a_page_disables_as_it_takes_the_focus_says_so():
    """Chromium takes the focus from it at once, since 152 with the next frame."""
    page = "<input aria-label=first onfocus='disabled = true'><input aria-label=next>"
    texts = on_page(page, "fill('{first}', 'x')", "focus('{next}')")[0]
    assert ["does not take the focus" in text for text in texts] == [False, True, False]


def test_hidden_elements_take_their_texts_with_them():
    def node(number, role, name, children=(), bid=None):
        made = {"nodeId": str(number), "role": {"value": role}, "name": {"value": name}, "childIds": list(children)}
        if bid:
            made["description"] = {"value": f"browsergym_id_{bid} "}
        return made

    tree = [
        node(1, "RootWebArea", "T", ["2", "4"]),
        node(2, "paragraph", "", ["3"], bid="7"),
        node(3, "StaticText", "secret"),
        node(4, "button", "Go", ["5"], bid="8"),
        node(5, "StaticText", "Go", ["6"]),
        node(6, "InlineTextBox", "Go"),
    ]
    assert flatten_axtree(tree) == "RootWebArea 'T'\n\t[7] paragraph ''\n\t\tStaticText 'secret'\n\t[8] button 'Go'"
    assert flatten_axtree(tree, {"7"}) == "RootWebArea 'T'\n\t[8] button 'Go'"
    assert flatten_axtree([]) == ""


@pytest.mark.browser
def test_screenshots_are_pngs_at_browsergyms_scale():
    async def play(env):
        return (await env.reset(miniwob("click-button"))).screenshot

    png = in_browser(play, screenshots=True)
    assert png.startswith(b"\x89PNG")
    width, height = int.from_bytes(png[16:20], "big"), int.from_bytes(png[20:24], "big")
    assert (width, height) == (498, 321)  # 332 x 214 at 1.5


@pytest.mark.browser
def test_numbers_in_simplified_html_can_be_acted_on():
    async def play(env):
        first = await env.reset(miniwob("login-user", 3))
        typed = await env.step("do(action='Type', argument='bob', element='0')")
        missing = await env.step("do(action='Click', element='99')")
        return first.text, typed, missing

    text, typed, missing = in_browser(play, observation="html", dialect="webrl")
    assert '<input id="0" type="text"' in text
    assert 'value="bob"' in typed.observation.text
    assert typed.action == "do(action='Type', argument='bob', element='0')"
    assert "Could not find element" in missing.error


@pytest.mark.slow
@pytest.mark.browser
def test_a_page_with_eighty_thousand_nodes_is_observed():
    body = "<title>big</title>" + "".join(f"<p>line {i}</p>" for i in range(40_000)) + "<button>end</button>"

    (text, _), (result,), _ = on_page(body, "click('{button 'end'}')", step_timeout_s=120)
    assert text.count("paragraph") == 40_000
    assert not result.error


HALVES = """<!doctype html><meta charset=utf-8><script>document.title = 'top \\ud83d'</script><p id=p></p>
<button id=b onclick="alert('said \\ud83d')">b</button>
<input oninput="p.textContent = [...this.value].map(c => c.codePointAt(0))">
<iframe srcdoc="<span id=s></span><script>s.textContent = s.title = 'in \\ud83d'</script>"></iframe>
<script>p.textContent = '\\ude00 done'; b.title = 'x \\ud83d'; b.value = '\\ud83d'</script>"""


@pytest.mark.browser
@pytest.mark.parametrize("form", ["axtree", "html"])
def test_half_an_emoji_in_a_page_or_an_action_is_a_replacement_character(form):
    button, field = ("{button}", "{textbox}") if form == "axtree" else ("0", "1")
    fills = (rf"fill('{field}', 'hi \ud83d')", f"fill('{field}', '\ud83d\ude00\ude00')")
    texts, results, _ = on_page(HALVES, f"click('{button}')", *fills, observation=form, every_element=True)
    assert [result.error for result in results] == [""] * 3
    texts[1:] = [text + result.action for text, result in zip(texts[1:], results, strict=True)]
    for text in texts:
        assert "\ufffd done" in text or "65533" in text
        text.encode()
    assert "'said \ufffd'" in texts[1]
    assert "104,105,32,65533" in texts[2]
    assert "'hi \ufffd')" in texts[2]
    assert "128512,65533" in texts[3], "two halves that follow each other are one character"
    if form == "axtree":
        assert "RootWebArea 'top \ufffd'" in texts[0]
        assert "StaticText 'in \ufffd'" in texts[0]


@pytest.mark.browser
def test_a_page_that_replaces_its_frames_all_the_time_is_observed():
    page = """<title>t</title><button>stays</button><div id=d></div><script>setInterval(() => {
      d.innerHTML = '<iframe src=/in></iframe><iframe srcdoc="<p>x"></iframe>' }, 40)</script>"""
    texts, _, _ = on_page({"/": page, "/in": "<title>in</title><button>x</button>"}, *["noop(0)"] * 5)
    assert all("button 'stays'" in text for text in texts)
