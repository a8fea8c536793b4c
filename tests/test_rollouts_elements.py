"""`rollout.every_element`: pages whose controls are not those of HTML are read and acted on too."""

import json
import re
from functools import partial

import pytest
import rollouts_builders
from browsers import is_older_than
from rollouts_builders import NEVER, answers, at, bid_of, id_of, in_browser, miniwob, reply, serve, visit

from webrl.errors import BrowserError
from webrl.rollouts.execute import KEEPS_LOADING

pytestmark = pytest.mark.browser
carry_out = partial(rollouts_builders.carry_out, every_element=True)


def on_page(page, *actions, **settings):
    """The texts before and after each action, and the errors."""
    texts, results, _ = rollouts_builders.on_page(page, *actions, **{"every_element": True} | settings)
    return texts, [result.error for result in results]


def test_what_listens_to_clicks_or_takes_the_focus_has_an_id_though_it_has_no_role():
    page = """<title>t</title><div id=a>listens</div><div style="cursor:pointer" data-n=b>points</div>
    <span aria-label="November 12, 2026" tabindex=-1>12</span><div>plain</div>
    <div id=all><p>many</p><button>one</button></div><div id=edge></div><div aria-label="Total 15">15</div>
    <script>
    a.addEventListener('click', () => { a.textContent = 'heard' });
    document.addEventListener('click', (e) => { if (e.target.dataset.n) document.title = 'delegated' });
    document.querySelector('span').onclick = () => { document.title = 'day' };
    document.querySelector('#all').addEventListener('click', () => {}); edge.addEventListener('mousedown', () => {});
    </script>"""
    texts = carry_out(page, "click('{listens}')", "click('{points}')", "click('{November 12}')")
    assert re.search(r"\[\d+\] generic, clickable\n\t+StaticText 'listens'", texts[0])
    assert re.search(r"\[\d+\] generic 'November 12, 2026', clickable", texts[0])
    assert "\n\tStaticText 'plain'" in texts[0]
    assert "StaticText '15'" in texts[0], "the name of what is not printed hides no text"
    assert texts[0].count("clickable") == 3, "neither what is there for its content nor what says nothing"
    assert "heard" in texts[1]
    assert "delegated" in texts[2]
    assert "'day'" in texts[3]


def test_what_calls_itself_a_control_has_an_id_where_the_page_hears_its_clicks_at_the_root():
    page = """<title>t</title><div class="ui-select" data-on=open>Size<b>any</b></div>
    <div aria-expanded=false>More</div><div class=btn-row><p>row</p></div><button class=btn>Own
    <i class=btn-icon>x</i></button><div class=dropdown><select><option>1</select></div><p class=selected>text</p>
    <ul id=l hidden><li class=option data-on=Large>Large</ul>
    <script>const hear = ({ target }) => { const on = target.closest('[data-on]')?.dataset.on;
      if (on === 'open') l.hidden = false; else if (on) document.title = `got ${on}` }; HEARS</script>"""
    hears = ("document.addEventListener('click', hear)", "document.onclick = hear", "document.body.onclick = hear")
    for listening in (*hears, "addEventListener('click', hear)"):
        texts = carry_out(page.replace("HEARS", listening), "click('{Size}')", "click('{Large}')")
        assert "got Large" in texts[-1]
        assert [text.count("clickable") for text in texts] == [2, 3, 3], "what is beside them is text"
    more = "<i data-action=save>Save</i><i class='tab active'>One</i><i class=close>×</i><i class=tab-content>words</i>"
    (text,), _ = on_page(f"{more}<script>document.addEventListener('mousedown', () => {{}})</script>")
    assert text.count("clickable") == 3
    (text,), _ = on_page(page.replace("HEARS", ""))
    assert "clickable" not in text, "nobody hears it"


def test_shapes_and_empty_cells_that_listen_have_an_id_and_are_clicked():
    page = """<title>t</title><style>div { width: 30px; height: 30px } .cell { border: 1px solid }</style>
    <svg width=200 height=40><rect id="(0,1)" class=point width=30 height=30 fill=blue />
    <circle cx=60 cy=15 r=15 fill=red /><circle cx=120 cy=15 r=15 />
    <rect id=clear x=150 width=30 height=30 fill=none /></svg>
    <div id=a1 class=cell></div><div id=a2></div><div id=a3 class=cell style="opacity:0"></div>
    <div id=a4 class=cell></div>
    <div class=cell id=veil style="width:99vw;height:90vh"></div>
    <b id=handle tabindex=0 style="display:block;width:9px;height:9px;background:red"></b>
    <script>for (const element of document.querySelectorAll('rect, [r="15"][fill], div:not(#a4)'))
      element.addEventListener('click', () => { document.title += ` ${element.id || element.localName}` });</script>"""
    texts = carry_out(page, "click('{(0,1)}')", "click('{circle red}')", "click('{cell}')", "focus('{handle}')")
    used = [line.strip().partition("] ")[2] for line in texts[0].splitlines() if "clickable" in line]
    assert used == [
        "graphics-symbol '', clickable, icon='(0,1)', shape='square blue 30x30 at 23,23'",
        "graphics-symbol '', clickable, shape='circle red 30x30 at 68,23'",
        "generic, clickable, icon='cell'",
        "generic, clickable, icon='handle'",
    ], "neither what nobody sees, nor what covers the page, nor what does not listen"
    assert "'t (0,1) circle a1'" in texts[-1]
    (stock,), _ = on_page(page, every_element=None)
    assert "clickable" not in stock


@pytest.mark.parametrize(
    ("page", "words"), [("tic-tac-toe", "ttt-4"), ("grid-coordinate", "(1,-2)"), ("navigate-tree", "hitarea")]
)
def test_miniwob_s_cells_and_shapes_can_be_clicked(page, words):
    async def play(env):
        text = (await env.reset(miniwob(page))).text
        return await env.step(f"click('{id_of(text, words)}')")

    result = in_browser(play, every_element=True)
    assert not result.error
    assert (
        result.done or result.observation.text.count("icon='mark-") + result.observation.text.count("collapsable") > 0
    )


def test_without_the_option_the_text_is_browsergym_s():
    page = "<div onclick='1'>listens</div><x-y tabindex=0 role=button>own</x-y><div contenteditable>w</div>"
    texts, _ = on_page(page, every_element=None)
    assert texts[0].splitlines()[1:] == ["\tStaticText 'listens'", "\tbutton 'own'", "\tStaticText 'w'"]


COMPONENTS = """<title>t</title><x-select></x-select><x-tab role=tab tabindex=0 value=v>Payment</x-tab>
<x-inner>Upload</x-inner><p id=out></p><script>
const shadow = (name, html, ready) => customElements.define(name, class extends HTMLElement {
  static observedAttributes = ['value'];
  connectedCallback() { this.attachShadow({ mode: 'open' }).innerHTML = html; ready(this, this.shadowRoot); }
  attributeChangedCallback(name, old) { if (old !== null) out.textContent += ' changed'; }
});
shadow('x-option', '<div><slot></slot></div>', (host) => { host.setAttribute('role', 'option'); host.tabIndex = -1; });
shadow('x-select', '<label id=l>City</label><button aria-labelledby=l><slot name=s>none</slot></button>' +
  '<div role=listbox><slot></slot></div>' +
  '<select aria-label=Size><option>S<option>L</select>' +
  '<label><input type=checkbox style="position:absolute;opacity:0"><b>Gift</b></label>', (host) => {
  host.innerHTML = '<x-option>Berlin</x-option><x-option>Paris</x-option>';
  for (const option of host.children) option.onclick = () => { out.textContent = option.textContent; };
});
shadow('x-tab', '<slot></slot>', (host) => { host.value = 'w'; host.onclick = () => { out.textContent = 'tab'; }; });
customElements.define('x-inner', class extends HTMLElement {
  constructor() {
    super();
    this.attachInternals().role = 'button';
    this.onclick = () => { out.textContent = 'inner'; };
  }
});
</script>"""


def test_elements_of_the_page_s_own_making_have_ids_and_can_be_acted_on_in_their_shadow():
    texts = carry_out(
        COMPONENTS,
        *("click('{Paris}')", "click('{Payment}')", "click('{Upload}')"),
        *("select_option('{combobox}', 'L')", "check('{checkbox}')"),
    )
    assert re.search(r"\[\d+\] tab 'Payment'", texts[0])
    assert re.search(r"\[\d+\] button 'Upload'", texts[0])
    assert re.search(r"\[\d+\] button 'City'", texts[0])
    assert "StaticText 'Paris'" in texts[1].rpartition("paragraph")[2]
    assert "StaticText 'tab'" in texts[2]
    assert "StaticText 'inner'" in texts[3]
    assert "value='L'" in texts[4]
    assert "checked='true'" in texts[5]
    assert "changed" not in texts[5], "an attribute of a component is its program's"


def test_a_text_with_markup_has_an_id_and_can_be_filled_in_frames_too():
    pages = {
        "/": "<title>t</title><div contenteditable><p>old words</p></div><iframe src=/in></iframe>",
        "/in": "<title>in</title><body contenteditable><p>inner words</p></body>",
    }
    texts = carry_out(pages, "fill('{old words}', 'new')", "click('{inner words}')")
    assert re.search(r"\[\d+\] generic value='old words', editable", texts[0])
    assert "'new'" in texts[1]
    assert re.search(r"\[a\d+\] generic.*editable", texts[1])


def test_what_is_dragged_and_where_it_is_dropped_have_ids():
    page = """<title>t</title><span draggable=true>card</span><div style="height:50px">done</div><script>
    const [card, done] = [document.querySelector('span'), document.querySelector('div')];
    card.ondragstart = (e) => e.dataTransfer.setData('text', 'x');
    done.addEventListener('dragover', (e) => e.preventDefault());
    done.addEventListener('drop', (e) => { e.preventDefault(); done.textContent = 'dropped'; });</script>"""
    texts = carry_out(page, "drag_and_drop('{card}', '{done}')")
    assert re.search(r"\[\d+\] generic, droppable", texts[0])
    assert "dropped" in texts[1]


@pytest.mark.parametrize("every", [None, True])
def test_an_editor_that_builds_its_text_anew_where_it_is_marked_does_not_hold_the_page(every):
    page = """<title>t</title><div contenteditable role=textbox aria-label=note><p>words</p></div><button>Go</button>
    <script>const note = document.querySelector('div');
    new MutationObserver((records) => {
      const other = records.filter((r) => r.target !== note && r.type === 'attributes').map((r) => r.target);
      for (const element of new Set(other)) {
        if (!note.contains(element)) continue;
        const copy = document.createElement('p');
        copy.textContent = element.textContent;
        element.replaceWith(copy);
      }
    }).observe(note, { subtree: true, attributes: true, childList: true });</script>"""
    texts = carry_out(page, "fill('{textbox}', 'other words')", "click('{Go}')", every_element=every)
    assert "words" in texts[0]
    assert "other words" in texts[2]
    assert bid_of(texts[2], "textbox", "note") == bid_of(texts[0], "textbox", "note")


def test_a_page_that_answers_every_mark_with_a_new_element_is_read():
    page = """<title>t</title><ul><li>one</li></ul><script>
    const list = document.querySelector('ul');
    const fresh = () => Object.assign(document.createElement('li'), { textContent: 'one' });
    const begun = new MutationObserver(() => list.replaceChildren(fresh()));
    begun.observe(list, { subtree: true, attributes: true });</script>"""
    texts, _ = on_page(page)
    assert "StaticText 'one'" in texts[0]


def test_a_label_that_nobody_sees_has_no_line_and_one_that_is_drawn_has():
    page = """<style>.d::before { content: ''; position: absolute; width: 9px; height: 9px; background: red }</style>
    <label for=f></label><label for=f style="display: inline-block; width: 9px; height: 9px"></label>
    <label for=f>Name</label><label for=f class=d></label><input id=f>"""
    texts = carry_out(page, "click('{LabelText}')")
    assert texts[0].count("LabelText") == 3
    assert "textbox 'Name', focused" in texts[1]


def test_a_box_that_its_label_draws_is_ticked_by_its_label():
    page = """<title>t</title><style>.o{position:absolute;opacity:0} .b{position:absolute;background:#ccc;inset:0}
    .w{position:relative;display:inline-block}
    .v{position:absolute;width:1px;height:1px;clip:rect(0 0 0 0);margin:-1px}</style>
    <label class=w><input type=checkbox class=o><span class=b></span>Cover</label>
    <p><input type=radio class=v id=x><label for=x>Away</label></p>
    """
    texts = carry_out(page, "click('{checkbox}')", "check('{radio}')", every_element=None)
    assert "checkbox 'Cover', focused, checked='true'" in texts[1]
    assert "radio 'Away', focused, checked='true'" in texts[2]


def test_what_is_named_by_the_icon_of_a_font_has_its_title_for_a_name():
    page = """<title>t</title><style>i::before{content:'\\f1f8'}</style>
    <a href=#a title="Delete record"><i></i></a><button><i></i></button><button title=x><i></i> Save</button>"""
    texts, _ = on_page(page)
    assert re.search(r"\[\d+\] link 'Delete record'", texts[0])
    assert re.search(r"\[\d+\] button '\\uf1f8'", texts[0]), "without a title that is all there is"
    assert re.search(r"\[\d+\] button '\\uf1f8 .*Save'", texts[0])
    assert not re.search(r"StaticText '\\uf1f8'", texts[0])
    stock, _ = on_page(page, every_element=None)
    assert "link '\\uf1f8'" in stock[0]


def test_a_text_field_that_cannot_be_edited_says_so():
    page = """<title>t</title><input aria-label=date readonly onclick="this.value = 'picked'"><input aria-label=name>"""
    texts, errors = on_page(page, "fill('{date}', '12/01/2016')", "click('{date}')")
    assert re.search(r"\[\d+\] textbox 'date', readonly\n", texts[0])
    assert re.search(r"\[\d+\] textbox 'name'\s*$", texts[0])
    assert "not editable" in errors[0]
    assert "value='picked'" in texts[2]
    stock, _ = on_page(page, every_element=None)
    assert "readonly" not in stock[0]


GLOBALS = (
    *("Map", "Set", "WeakMap", "WeakSet", "Symbol", "Node", "Element", "HTMLElement", "HTMLInputElement", "CSS"),
    *("HTMLSelectElement", "HTMLTextAreaElement", "Event", "CustomEvent", "FocusEvent", "MouseEvent", "EventTarget"),
    *("MutationObserver", "NodeFilter", "Array", "Object", "Number", "String", "Math", "JSON", "Promise", "Reflect"),
    *("RegExp", "performance", "getComputedStyle", "history", "Error", "DOMRect", "Range", "XPathEvaluator", "Boolean"),
    *("DataTransfer", "ClipboardEvent", "getSelection"),
)
REPLACED = f"""<script>{{
  const [arrays, elements, documents] = [Array.prototype, Element.prototype, Document.prototype];
  const [define, keys] = [Object.defineProperty, Reflect.ownKeys];
  const bad = () => {{ throw 'replaced'; }};
  for (const list of [Map.prototype, Set.prototype, WeakMap.prototype, WeakSet.prototype]) {{
    for (const name of keys(list)) if (typeof name === 'string') define(list, name, {{ value: bad }});
  }}
  for (const name of {json.dumps(GLOBALS)}) define(window, name, {{ value: {{ theme: 'dark' }}, writable: true }});
  for (const name of ['querySelectorAll', 'querySelector', 'getElementsByTagName', 'elementFromPoint']) {{
    define(documents, name, {{ value: bad }});
  }}
  for (const name of ['querySelectorAll', 'getAttribute', 'setAttribute', 'matches', 'closest', 'getClientRects',
    'getBoundingClientRect', 'checkVisibility', 'scrollIntoViewIfNeeded', 'addEventListener', 'attachShadow']) {{
    define(elements, name, {{ value: bad }});
  }}
  for (const name of keys(arrays)) if (typeof name === 'string') define(arrays, name, {{ value: bad }});
}}</script>"""
CONTROLS = """<!doctype html><title>t</title>%s<button onclick="this.textContent =
'done'; setTimeout(() => { late.textContent = 'came late' }, 300)">Go</button>
<div onclick="this.textContent = 'heard'">listens</div><div id=late>late</div>
<input aria-label=name oninput="out.textContent = this.value"><textarea aria-label=notes></textarea>
<label><input type=checkbox onchange="out.textContent = this.checked"> Agree</label>
<select aria-label=size onchange="out.textContent = this.value"><option>Small<option>Large</select>
<a href="#x" ondblclick="out.textContent = 'twice'">twice</a><p id=out>nothing</p>
<p onmouseover="out.textContent = 'over'">hover</p><button onkeydown="out.textContent = event.key">keys</button>
<iframe srcdoc="%s<button onclick='this.textContent = 1'>inner</button>"></iframe>
<div draggable=true id=from>from</div><div ondragover="return false" ondrop="out.textContent = 'dropped'">goal</div>
<script>late.onclick = () => {}</script>"""


@pytest.mark.parametrize("form", ["axtree", "html"])
def test_a_page_that_replaces_globals_and_methods_is_read_and_acted_on_like_one_that_does_not(form):
    actions = ["click('{Go}')", "click('{listens}')", "fill('{name}', 'Ann')", "clear('{name}')"]
    actions += ["fill('{notes}', 'a note')", "check('{checkbox}')", "uncheck('{checkbox}')", "dblclick('{twice}')"]
    actions += ["select_option('{size}', 'Large')", "hover('{hover}')", "press('{keys}', 'a')", "focus('{size}')"]
    actions += ["drag_and_drop('{from}', '{goal}')", "click('{inner}')", "click('999')", "scroll(0, 100)", "noop(10)"]
    actions += ["press('{notes}', 'Control+a')", "press('{notes}', 'Control+c')", "press('{name}', 'Control+v')"]
    if form == "html":
        actions = ["click('0')", "scroll(0, 100)"]
    plain = on_page(CONTROLS % (2 * ("<script></script>",)), *actions, observation=form)
    inner = REPLACED.replace('"', "&quot;")
    assert on_page(CONTROLS % (REPLACED, inner), *actions, observation=form) == plain
    assert "came late" in plain[0][1]
    if form == "axtree":
        shown = ("done", "heard", "Ann", "'name', focused", "a note", "true", "false", "twice", "Large", "over", "'a'")
        for words, text in zip(shown, plain[0][1:], strict=False):
            assert words in text
        assert "dropped" in plain[0][13]
        assert "button '1'" in plain[0][14]
        assert "textbox 'name' value='a note'" in plain[0][-1]
        assert [bool(error) for error in plain[1]] == [action == "click('999')" for action in actions]


def test_a_page_whose_own_css_or_map_is_another_can_be_acted_on():
    for own in ("const CSS = {theme: 'dark'}", "class Map {}; class Set {}; let performance = 1", "var Node = 1"):
        page = f"<!doctype html><script>{own}</script><button onclick=\"this.textContent='done'\">Go</button>"
        texts, errors = on_page(page, "click('{Go}')", "click('999')", every_element=None)
        assert "button 'done'" in texts[1]
        assert errors[0] == ""
        assert "Could not find element" in errors[1]


PIXEL = "data:image/gif;base64,R0lGODlhAQABAIAAAAAAAP///ywAAAAAAQABAAACAUwAOw=="
ROLES = f"""<!doctype html><title>t</title><style>dialog {{ position: static }}</style>
<header>head</header><nav><a href=#a>link</a></nav><main><h1>title</h1>
<p>words <strong>b</strong> <em>i</em> <code>c</code></p>
<article><section aria-label=s>part</section></article><ul><li>one</ul><dl><dt>term<dd>said</dl>
<blockquote>q</blockquote><table><caption>table</caption><thead><tr><th>h<tbody><tr><td>c</table>
<figure><img alt=pic width=20 height=20 src="{PIXEL}">
<figcaption>fig</figcaption></figure><form aria-label=f><fieldset><legend>set</legend><label>name <input></label>
<input type=checkbox aria-label=box><input type=radio aria-label=dot><input type=range aria-label=r><input type=number>
<input type=search><input type=password><input type=date><input type=color><input list=l><input type=button value=ib>
<datalist id=l><option>x</datalist><textarea></textarea><button type=button>b</button><meter value=1>m</meter>
<progress value=1></progress><output>o</output></fieldset></form><select aria-label=size><option>Small
<optgroup label=big><option>Large</optgroup></select><select size=2 aria-label=many multiple><option>A<option>B</select>
<details><summary>more</summary>text</details><div role=tablist><div role=tab>tab</div></div><div role=switch>sw</div>
<div role=menu><div role=menuitem tabindex=0>item</div></div><div role=tree><div role=treeitem>leaf</div></div><hr>
<div contenteditable>rich</div><canvas width=9 height=9>cv</canvas><svg width=20 height=20 role=img aria-label=v></svg>
<video controls width=200 height=60></video><time>now</time><mark>m</mark><dialog open>dialog</dialog>
<map name=m><area href=#r shape=rect coords=1,1,20,20 alt=rect><area href=#c shape=circle coords=60,20,15 alt=circle>
<area href=#p shape=poly coords=80,0,120,0,80,40 alt=poly><area href=#d shape=default alt=rest></map>
<img usemap=#m width=150 height=50 alt=map src="{PIXEL}">
<iframe title=Board width=300 height=150
srcdoc="<select aria-label=in><option>&amp;nbsp;Yes<option>&amp;nbsp;No</select>"></iframe>
</main><footer>foot</footer>"""


@pytest.mark.parametrize("action", ["click", pytest.param("hover", marks=pytest.mark.slow)])
def test_every_id_that_is_shown_can_be_clicked_and_pointed_at(action):
    async def play(env, _, text):
        failed = {}
        for bid, role in re.findall(r"^\s*\[(\w+)\] (\w+)", text, re.MULTILINE):
            result = await env.step(f"{action}('{bid}')")
            if result.error:
                failed[f"{bid} {role}"] = result.error
            await env.step("noop(0)" if action == "hover" else "keyboard_press('Escape')")
        return failed, text

    failed, text = visit(ROLES, play, viewport=(1280, 2000), step_timeout_s=30)
    assert len(re.findall(r"\[\w+\]", text)) > 60
    # What is in a list that is closed can be chosen; there is nothing to point at. (In Chromium 119 it is a menu.)
    closed = {"option", "menuitem", "group"} if action == "hover" else {"group"}
    assert {name.split()[1] for name in failed} <= closed, failed


def test_the_areas_of_an_image_map_are_clicked_where_they_are():
    texts = carry_out(
        ROLES.replace("href=#", "onclick='document.title = this.alt' href=#"),
        *(f"click('{{link {name!r}}}')" for name in ("rect", "circle", "poly", "rest")),
    )
    assert [re.match(r"RootWebArea '(\w+)'", text)[1] for text in texts] == ["t", "rect", "circle", "poly", "rest"]


def test_a_frame_s_id_is_the_frame():
    page = """<iframe title=Board width=300 height=150 srcdoc="<body onclick=&quot;this.textContent='started'&quot;
    onkeydown=&quot;this.textContent=event.key&quot; style='height:120px'>press anywhere"></iframe>"""
    texts = carry_out(page, "click('{Iframe}')", "press('{Iframe}', 'x')", "hover('{Iframe}')", every_element=None)
    assert "started" in texts[1]
    assert "StaticText 'x'" in texts[2]


def test_an_option_is_chosen_by_its_name_as_it_is_shown_and_by_its_id():
    options = "<option value=1>Root<option value=2>&nbsp;&nbsp;Bags<option value=3>\n Big   bags&nbsp;</option>"
    page = f"""<meta charset=utf-8><select onchange="o.textContent='got '+this.value">{options}
    <option value=4>&nbsp;Root<option value=Bags>No bags</select><p id=o></p><iframe
    srcdoc="<select onchange=&quot;q.textContent='got '+this.value&quot;>{options}</select><p id=q></p>"></iframe>"""
    actions = [f"select_option('{{combobox}}', '{name}')" for name in ("Bags", "Big bags", "Root", "\\xa0Root")]
    texts = carry_out(page, *actions, "click('{No bags}')", "click('{combobox}')", every_element=None)
    assert [re.search(r"got (\w+)", text)[1] for text in texts[1:6]] == ["Bags", "3", "1", "4", "Bags"]
    frame = page.partition("<iframe")[2]
    texts = carry_out("<iframe" + frame, *actions[:2], "click('{ 'Root'}')", every_element=None)
    assert [re.search(r"got (\w+)", text)[1] for text in texts[1:]] == ["2", "3", "1"]


TALL, NOTED = "<div style=height:3000px></div>", "oninput=\"o.textContent='got '+this.value\"><p id=o>none</p>"
NAMES = (
    *("matches", "getAttribute", "setAttribute", "textContent", "parentElement", "parentNode", "children"),
    *("tagName", "localName", "attributes", "childNodes", "getClientRects", "isConnected", "hasChildNodes"),
    *("querySelector", "remove", "assignedSlot aria-label=n"),
)
LEGEND = "<iframe srcdoc='<fieldset disabled><legend><input type=checkbox><input aria-label=n></legend>'></iframe>"
LOCK = "<button onclick=this.requestPointerLock()>Go</button><input type=checkbox>"
GO = "<button onclick=\"this.textContent='done'\">Go</button>"
CLIPPED = GO.replace("<button", "<button style='clip-path: inset(0 0 0 80%); width: 200px'")
FIELDS = f"<form onsubmit=return(false)>{''.join(f'<input name={name}>' for name in NAMES)}{GO}</form>"


USED = {
    "closed shadow tree": (
        "<div id=h></div><p id=o></p><script>const r = h.attachShadow({mode: 'closed'}); r.innerHTML = `" + GO
        + "`; o.textContent = `${h.shadowRoot} ${r.mode} ${h.outerHTML}`</script>", ["click('{Go}')"],
        ["button 'done'", 'null closed <div id="h"></div>']),
    "content-visibility": (
        f"{TALL}<style>section {{ content-visibility: auto }}</style><section id=s>{GO}</section><p id=o></p>"
        "<script>s.addEventListener('click', () => { o.textContent = s.getAttribute('style') + '!' })</script>",
        ["click('{Go}')"], ["button 'done'", "null!"]),
    "smooth": (
        f"<style>html {{ scroll-behavior: smooth }}</style>{TALL}{GO}{TALL}", ["click('{Go}')"], ["button 'done'"]),
    "sandbox": (
        "<iframe sandbox srcdoc='<label><input type=checkbox>Agree</label><input aria-label=n>'></iframe>",
        ["click('{checkbox}')", "fill('{'n'}', 'Ann')"], ["checked='true'", "value='Ann'"]),
    "date": (
        f"<input type=date {NOTED}", ["focus('{Date}')", "keyboard_type('1122')", "keyboard_type('2020')"],
        ["got 2020-11-22"]),
    "shadow tree that the HTML has closed": (
        "<p id=o></p><div id=h><template shadowrootmode=closed><b>old</b></template></div><script>"
        "const r = h.attachShadow({mode: 'closed'}); r.innerHTML = `<button style='position: fixed; inset: 0' "
        "onclick=\"this.textContent = 'done'\">Go</button>`; o.textContent = `${r.mode} ${h.shadowRoot}`</script>",
        ["mouse_click(300, 200)"], ["button 'done'", "closed null"]),
    "form with fields named as what we ask of it": (
        "<style>* { scroll-behavior: smooth } form { content-visibility: auto }</style><form><input type=hidden>"
        f"<input name=children><input name=style>{GO.replace('<button', '<button type=button')}</form>",
        ["click('{Go}')"], ["button 'done'"]),
    "form with fields named as what scripts ask": (
        FIELDS, ["fill('{'n'}', 'Ann')", "click('{Go}')"], ["value='Ann'", "button 'done'"]),
    "legend in a frame": (
        LEGEND, ["click('{checkbox}')", "fill('{textbox}', 'Ann')"], ["checked='true'", "value='Ann'"]),
    "locked pointer": (LOCK, ["click('{Go}')", "click('{checkbox}')"], ["checked='true'"]),
    "slider": (f"<input type=range step=5 {NOTED}", ["fill('{slider}', '33')"], ["got 35"]),
    "color": (f"<input type=color {NOTED}", ["fill('{ColorWell}', '#00FF00')"], ["got #00ff00"]),
    "link around a float": (
        "<a href=javascript:o.textContent='got' style='display: block; height: 0'><img alt=Pic width=60 height=40 "
        "style='float: left; background: red'></a><p id=o>", ["click('{link}')"], ["'got'"]),
    "clipped": (CLIPPED, ["click('{Go}')"], ["button 'done'"]),
    "a box without a size below": (
        f"{TALL}<label>Far<input type=checkbox style='appearance: none; width: 0; height: 0'></label>",
        ["click('{checkbox}')"], ["checked='true'"]),
    "view transition": (
        "<style>::view-transition-group(*) { animation-duration: 2.5s }</style><button onclick=\"document."
        "startViewTransition(() => { n.hidden = false })\">Show</button><button hidden id=n "
        "onclick=\"this.textContent='done'\">Next</button>", ["click('{Show}')", "click('{Next}')"], ["button 'done'"]),
    "full screen": (
        f"<div id=f><button onclick=f.requestFullscreen()>Full</button></div>{GO}", ["click('{Full}')"], ["'Go'"]),
}  # fmt: skip


@pytest.mark.parametrize(("page", "actions", "seen"), USED.values(), ids=USED)
def test_what_a_person_can_use_the_agent_can(page, actions, seen):
    if "startViewTransition" in page and is_older_than(138):
        pytest.xfail("without a screen its transitions begin after 4 s")
    texts = carry_out(page, *actions)
    assert [part for part in seen if part not in texts[-1]] == [], texts[-1]


def test_fields_named_as_what_we_ask_of_a_form_are_read_and_filled_as_html():
    page = FIELDS.replace("<form", "<form class=button").replace("<input", "Name <input", 1)
    actions = (f"fill('{len(NAMES) - 1}', 'Ann')", f"click('{len(NAMES)}')")
    texts = carry_out(page, *actions, observation="html", every_element=None)
    assert texts[0].count("<input") == len(NAMES)
    assert re.search(r'<form [^>]*data-text="Name"', texts[0])
    assert 'value="Ann"' in texts[1]
    assert "> done </button>" in texts[2]


@pytest.mark.parametrize("depth", [150, 700, 5000])
def test_html_shows_what_is_nested_deeper_than_its_parser_reads_in_the_order_of_the_page(depth):
    deep = f"{'<div>' * depth}{GO}<p>two<b>three</b></p><p>four</p>{'</div>' * depth}<p>five"
    texts = carry_out(f"<p>one</p>{deep}", "click('0')", observation="html", every_element=None)
    assert re.findall(r"> (one|done|two|three|four|five) ", texts[1]) == ["one", "done", "two", "three", "four", "five"]


def test_a_canvas_that_is_seen_and_has_no_text_is_told():
    page = """<canvas width=500 height=300></canvas><canvas width=9 height=9></canvas><canvas aria-label=Chart width=99
    height=99></canvas><canvas width=99 height=99>text</canvas><div aria-hidden=true><canvas width=200></canvas></div>
    <div><template shadowrootmode=open><b>inner</b></template></div>"""
    (text,), _ = on_page(page)
    assert re.findall(r"\] (Canvas.*)", text) == [
        *("Canvas '', shape='drawing 500x300 at 258,158'", "Canvas ''", "Canvas 'Chart'", "Canvas ''"),
        "Canvas '', shape='drawing 200x150 at 108,383'",
    ]
    (text,), _ = on_page(page.replace(">text<", "><"), observation="html", every_element=None)
    assert text == "Not shown: what is drawn on 3 canvases.\nNot shown: 1 shadow trees.", "where there is nothing else"


def test_a_link_that_leads_out_of_the_browser_is_told_at_once():
    page = """<a href=mailto:a@b.example>Mail</a><a href=zoommtg:x target=_blank>Zoom</a>
    <a href="javascript:void 0">JS</a><button onclick="location = 'tel:1'">Call</button>
    <iframe srcdoc="<a href='sms:2'>Text</a>"></iframe>"""
    names = ("Mail", "Zoom", "JS", "Call", "Text")
    texts = carry_out(page, *(f"click('{{{name}}}')" for name in names), settle_cap_s=60)
    told = [text.partition(" leads out of the browser: nothing was opened\n")[0] for text in texts[1:]]
    assert [line if len(line) < 30 else "" for line in told] == [
        *("'mailto:a@b.example'", "'zoommtg:x'", "", "'tel:1'", "'sms:2'")
    ]
    texts, _ = on_page("<p>Opening the app<script>location = 'zoommtg:x'</script>", "noop()")
    assert ["'zoommtg:x' leads out" in text for text in texts] == [True, False]
    assert all("Opening the app" in text for text in texts)


def test_what_the_browser_does_not_follow_is_told_in_its_words_and_not_waited_for():
    page = """<a href=data:text/html,x>Data</a><a href=file:///x>File</a><a href=file:///x target=_blank>Tab</a>
    <iframe sandbox=allow-scripts srcdoc="<a href=/ target=_blank>Open</a><button onclick=alert(1)>Ask</button>
    <form action=/><button>Send</button></form>"></iframe>"""
    names = ("Data", "File", "Tab", "Open", "Ask", "Send")
    texts = carry_out(page, *(f"click('{{{name}'}}')" for name in names), "noop()", settle_cap_s=60)
    told = [re.findall(r"^the browser says: ['\"](Not allowed to \w+|\w+ \w+)", text) for text in texts]
    assert told == [
        *([], ["Not allowed to navigate"], ["Not allowed to load"], ["Not allowed to load"]),
        *(["Blocked opening"], ["Ignored call"], ["Blocked form"], []),
    ]


def test_what_the_browser_only_reports_and_a_picture_that_it_does_not_load_are_not_told():
    frame = "<iframe srcdoc='<form action=file:///y><button>File</button></form>'></iframe>"
    page = f"<img src=file:///x><form action=/sent><button>Send</button></form>{frame}"
    pages = {
        "/": answers(page, headers="Content-Security-Policy-Report-Only: form-action 'none'\r\n"),
        "/sent": "<p>sent",
    }
    texts = carry_out(pages, "click('{File}')", "click('{Send}')", settle_cap_s=60)
    assert ["the browser says" in text for text in texts] == [False, True, False]
    assert not any("still loading" in text for text in texts)
    assert "'sent'" in texts[2]


def test_a_large_part_that_is_covered_is_looked_at_in_few_places():
    page = f"""<div style='position: fixed; inset: 0; background: white'></div>
    <table>{"<tr><td>a<td>b" * 400}</table>"""

    async def play(env, _, text):
        await env.tab.evaluate("""(() => {
            const { elementFromPoint } = Document.prototype;
            window.hits = 0;
            Document.prototype.elementFromPoint = function (...at) {
                window.hits += 1;
                return elementFromPoint.apply(this, at);
            };
        })()""")
        result = await env.step(f"click('{id_of(text, 'table')}')")
        return result.error, await env.tab.evaluate("window.hits")

    error, hits = visit(page, play)
    assert "intercepts pointer events" in error
    assert 0 < hits < 3000


@pytest.mark.parametrize(
    ("loops", "shown"),
    [
        ("<meta http-equiv=refresh content=0><p>hello", "'hello'"),
        ("<p>hello<script>onload = () => location.reload()</script>", "'hello'"),
        ("<p>hello<script>location.reload()</script>", "RootWebArea"),
    ],
)
def test_a_page_that_keeps_loading_itself_is_shown_and_told(loops, shown):
    actions = ("click('{go}')", "noop()", "goto('/loop')")
    texts = carry_out({"/": "<a href=/loop>go</a>", "/loop": loops}, *actions, settle_cap_s=0.5)
    # A busy machine may stop it between two documents: that is told, and not laid at the server's door.
    assert all(shown in text or text == f"{KEEPS_LOADING}\nRootWebArea '', focused" for text in (texts[1], texts[3]))
    assert all(text.count(KEEPS_LOADING) < 2 for text in texts)
    assert any(text.startswith(KEEPS_LOADING) for text in texts), (
        "on a slow machine not each time: it is seen in between"
    )


def test_what_is_inert_takes_neither_text_nor_keys_and_what_takes_no_focus_is_told():
    page = """<div inert><input><select><option>a<option>b</select></div><input aria-label=own autofocus><p>text</p>
    <input list=l><datalist id=l><option value=Alpha><option value=Beta></datalist><dialog id=d><input></dialog>"""
    inert = ("fill('3', 'x')", "press('3', 'Enter')", "select_option('4', 'b')", "click('6')")
    texts, errors = on_page(page, *inert, "press('{paragraph}', 'z')")
    names = [action.partition("(")[0] for action in inert]
    refused = [f"Error: {name} was not carried out: the element is inert, or behind a dialog" for name in names]
    assert errors == [*refused, ""]
    assert texts[-1].startswith("the element does not take the focus: keys go to what has it\n")
    assert """offers=["Alpha","Beta"]""" in texts[0]
    named = on_page("<form aria-label=f><select name=list><option>a</select></form>")[0][0]
    assert "form 'f'" in named
    assert "offers" not in named
    shown = "<dialog id=over><input aria-label=top></dialog><script>d.showModal(); over.showModal()</script>"
    texts, errors = on_page(page.replace(" inert", "") + shown, "fill('3', 'x')", "fill('{top}', 'y')")
    assert ["behind a dialog" in error for error in errors] == [True, False]
    assert "textbox 'top' value='y'" in texts[-1]


def test_a_field_that_takes_a_part_of_a_text_says_so():
    page = "<input aria-label=code maxlength=4><textarea aria-label=note maxlength=4></textarea>"
    actions = ("fill('{code}', '1234')", "fill('{code}', '12345')", "fill('{note}', 'abcde')", "fill('{note}', '')")
    texts = carry_out(page, *actions)
    said = "the field takes at most 4 of the 5 characters: the rest was left out\n"
    assert [text.startswith(said) for text in texts] == [False, False, True, True, False]
    texts, _ = on_page(page, "fill('{code}', 'abc\U0001f600')", "fill('{note}', '\U0001f600\U0001f600')")
    assert "value='abc'" in texts[1], "half an emoji is none"
    assert texts[1].startswith(said.replace("4 of the 5", "3 of the 4"))
    assert "left out" not in texts[2]
    digit = "<input maxlength=1 aria-label=digit onkeydown='' oninput='nextElementSibling?.focus()'>"
    texts, _ = on_page(digit * 3, "fill('{digit}', '123')")
    assert "left out" not in texts[-1], "the other fields took the rest"
    assert re.findall("value='(.)'", texts[-1]) == ["1", "2", "3"]


def test_a_field_that_does_not_take_a_text_says_so():
    page = """<input aria-label=own value=old oninput="this.value='old'"><input aria-label=other onfocus=last.focus()>
    <input id=last aria-label=last><input type=color value=#123456 aria-label=paint>
    <input type=date value=2024-01-02>"""
    actions = ("fill('{own}', 'x')", "fill('{last}', 'x')", "fill('{other}', 'y')", "clear('{last}')", "clear('{own}')")
    texts, errors = on_page(page, *actions, "clear('{paint}')", "clear('{Date}')")
    said = (
        "the page did not keep what was filled in",
        "the element does not take the focus",
        "went to another element",
    )
    kept, nothing = (True, False, False), (False, False, False)
    assert [tuple(words in text for words in said) for text in texts] == [
        *(nothing, kept, nothing, (False, True, True), nothing, kept),
        *(nothing, nothing),
    ]
    assert errors == [*[""] * 5, "Error: '' is not what a color field takes, e.g. '#ff0000'", ""]
    assert "ColorWell 'paint' value='#123456'" in texts[-1]
    assert "2024" not in texts[-1]


def test_a_text_that_goes_where_the_page_has_moved_the_focus_meanwhile_says_so():
    page = """<input aria-label=first onfocus="queueMicrotask(() => last.focus())"><input id=last aria-label=last>"""
    texts = carry_out(page, "fill('{first}', 'x')", "fill('{last}', 'y')")
    assert ["what was filled in went to another element" in text for text in texts] == [False, True, False]
    assert "textbox 'last' value='y'" in texts[-1]


def test_a_picture_of_a_style_that_has_not_come_yet_can_be_clicked_already():
    page = "<style>img { content: url(/none.png) }</style><img class=star onclick='this.className = 1'>"
    assert "image '', clickable, icon='star'" in on_page(page)[0][0]


def test_a_form_that_is_called_as_a_method_of_the_document_does_not_stand_in_for_it():
    assert "button 'hi'" in on_page("<form name=getAnimations></form><button>hi</button>")[0][0]


def test_what_a_page_says_for_a_moment_alone_is_told():
    page = """<button onclick="o.textContent = 'Saved'; setTimeout(() => o.textContent = '', 100)">Save</button>
    <button onclick="o.textContent = 'Sent'">Send</button><p role=status id=o></p>
    <button onclick="this.insertAdjacentHTML('afterend', '<div><p role=alert>Wrong code</p></div>');
    setTimeout(() => this.nextSibling.remove(), 100)">Check</button>"""
    texts = carry_out(page, "click('{Save}')", "click('{Check}')", "click('{Send}')", "noop(0)")
    found = [re.findall("^for a moment the page said (.*)", text, re.MULTILINE) for text in texts]
    assert found == [[], ['"Saved"'], ['"Wrong code"'], [], []]


def test_a_line_through_a_text_a_placeholder_and_a_description_for_readers_are_told():
    page = """<p>was <span style="text-decoration: line-through">12</span> <del>11</del> now 9</p>
    <ul><li style="text-decoration: line-through">milk<li>eggs</ul><a href=x style="text-decoration: line-through">x</a>
    <div contenteditable role=textbox aria-label=note aria-placeholder="Write here"></div>
    <button aria-describedby="hidden seen">Delete</button><p id=hidden hidden>For ever</p><p id=seen>Seen</p>
    <button aria-description="Opens mail">Send</button>"""
    text = on_page(page, every_element=True)[0][0]
    lines = [line.strip().partition("] ")[2] for line in text.splitlines()]
    assert [line for line in lines if "struck" in line] == [
        "generic, struck",
        "listitem '', struck",
        "link 'x', struck",
    ]
    assert "deletion ''" in lines
    assert any(line.startswith("textbox 'note'") and line.endswith(', placeholder="Write here"') for line in lines)
    assert [re.sub(".*description=", "", line) for line in lines if "description=" in line] == [
        '"For ever"',
        '"Opens mail"',
    ]


def test_a_drop_that_crashes_the_page_is_an_error_at_once_and_the_next_reset_heals_it():
    frame = """<iframe id=f width=400 height=300 srcdoc="<p draggable=true>Milk</p><p ondragover=event.preventDefault()
    ondrop='parent.document.getElementById(`f`).remove()'>here</p>"></iframe>"""

    async def play(env, url, text):
        error = ""
        try:
            await env.step(f"drag_and_drop('{id_of(text, 'Milk')}', '{id_of(text, 'here')}')")
        except BrowserError as problem:
            error = str(problem)
        return error, (await env.reset(at(url + "/"))).text == text

    error, is_healed = visit(frame, play, step_timeout_s=60, every_element=True)
    assert not error or error.endswith(": the page has crashed"), "or a Chromium that does not crash"
    assert is_healed


def test_a_field_that_cannot_have_a_value_keeps_its_own_and_says_what_it_takes():
    texts, errors = on_page(f"<input type=time {NOTED}", "fill('{InputTime}', '14:30')", "fill('{InputTime}', '2 PM')")
    assert errors == ["", "Error: '2 PM' is not what a time field takes, e.g. '14:30'"]
    assert "value='14:30'" in texts[-1]


def test_pickers_that_are_open_are_no_harm():
    """Before 138 Chromium ends a page whose tree is asked for then."""
    page = f"<select><option>A<option>B</select><input type=color><input type=date {NOTED}"
    opens = ("click('{combobox}')", "noop(50)", "keyboard_press('Escape')", "click('{ColorWell}')", "noop(50)")
    texts = carry_out(page, *opens, "focus('{Date}')", "keyboard_press('Alt+ArrowDown')", every_element=None)
    assert "focused" in texts[-1]


def test_a_relative_address_is_one_of_the_page_s_site():
    async def play(env):
        async with serve({"/a/": "<title>a</title>", "/a/work.html": "<title>work</title>"}) as url:
            await env.reset(at(url + "/a/"))
            results = [await env.step(f"goto({to!r})") for to in ("work.html", "/a/", "?q=1", "//example.com/a/")]
            return [(result.error, result.observation.url.removeprefix(url)) for result in results]

    *found, (error, url) = in_browser(play)
    assert found == [("", "/a/work.html"), ("", "/a/"), ("", "/a/?q=1")]
    assert url == "/a/?q=1"
    assert "'http://example.com/a/' is outside the hosts" in error


def test_what_is_clicked_within_a_button_or_a_link_has_an_id_of_its_own():
    page = """<div role=button tabindex=0 onclick="o.textContent = 'opened'">Ann<svg id=x aria-hidden=true
    width=16 height=16 style="cursor:pointer"><path d="M0 0L16 16" stroke=black /></svg></div>
    <button><b>Bob</b></button>
    <a href="#t">news <span id=y style="cursor:pointer">close</span></a><button><span id=z>whole</span></button>
    <p id=o>none</p>
    <script>for (const e of [x, y, z]) e.addEventListener('click', v => {
      v.preventDefault(); v.stopPropagation(); o.textContent = 'removed ' + e.id })</script>"""
    actions = ("click('{image}')", "click('{StaticText 'close'}')", "click('{Ann}')", "click('{whole}')")
    texts = carry_out(page, *actions)
    for text, words in zip(texts[1:], ("removed x", "removed y", "opened", "removed z"), strict=True):
        assert words in text
    assert texts[0].count("clickable") == 2, "neither the text of a button nor what is all of one"


def test_what_a_person_uses_is_shown_though_it_is_hidden_from_readers_and_the_page_stays_as_it_is():
    page = """<div id=root aria-hidden=true><h1>Orders</h1><button onclick="document.title =
    root.getAttribute('aria-hidden')">Export</button></div><a href="#a">read<i aria-hidden=true>icon</i></a>"""
    texts = carry_out(page, "click('{Export}')")
    assert "heading 'Orders'" in texts[0]
    assert "RootWebArea 'true'" in texts[1]
    assert "icon" not in texts[0]
    stock, _ = on_page(page, every_element=None)
    assert "Orders" not in stock[0]
    assert "StaticText 'read'" in on_page("<div aria-hidden=true><p>read</div><b aria-hidden=true>drawn</b>")[0][0]


def test_what_is_behind_a_dialog_or_off_the_window_stays_hidden_and_is_counted():
    page = """<main aria-hidden=true><button>behind</button><a href=/>too</a></main>
    <div style="position:fixed;inset:0;background:white" role=dialog><button>in front</button></div>"""
    slides = "<div aria-hidden=true style='position:absolute;left:-900px'><a href=/x>next</a></div><p>slide</p>"
    frame = f'<iframe srcdoc="{slides}"></iframe><p>page</p>'
    modal = "<body onload=d.showModal()><p>behind<dialog id=d>why</dialog><b inert aria-hidden=true><a href=/>x</a></b>"
    pages = {page: (2, "in front"), slides: (1, "slide"), frame: (1, "page"), modal: (2, "why")}
    for html, (number, shown) in pages.items():
        (text,), _ = on_page(html)
        assert shown in text
        assert "'behind'" not in text
        told = f"'Not shown: {number} elements that the page hides from readers (aria-hidden, inert, behind a dialog).'"
        assert text.endswith(f"\tStaticText {told}")


def test_a_person_sees_what_is_inert_ticks_a_box_of_a_disabled_fieldsets_legend_and_sees_a_drop_refused():
    page = """<div inert>draft</div><fieldset disabled><legend><label><input type=checkbox>Use</label></legend>
    <button>Send</button></fieldset><ul><li draggable=true>Milk<li>Bread</ul><p ondragover=event.preventDefault()
    ondrop="document.title = 'taken'">here</p>"""
    texts, errors = on_page(
        page,
        *("click('{checkbox}')", "click('{Send}')"),
        *(f"drag_and_drop('{{Milk}}', '{place}')" for place in ("{Bread}", "{here}")),
    )
    assert "Not shown: 1 elements that the page hides from readers (aria-hidden, inert, behind a dialog)." in texts[0]
    assert (errors[0], "checked='true'" in texts[1]) == ("", True)
    assert "not enabled" in errors[1]
    assert [text.startswith("drag_and_drop: ") and "does not take" in text for text in texts[3:]] == [True, False]
    assert "'taken'" in texts[4]


def test_a_drop_may_take_the_page_away():
    page = """<title>t</title><p draggable=true>Milk</p><p ondragover=event.preventDefault() ondrop="DROP">here</p>"""
    first = "<title>first</title><a href=/away target=_blank rel=opener>open</a>"
    waits = {"/": page.replace("DROP", "location = '/never'"), "/never": NEVER}
    closes = {"/": first, "/away": page.replace("DROP", "window.close()")}
    drag = "drag_and_drop('{Milk}', '{here}')"
    told = r"'\S+/never' did not open: its server has not answered\n"
    opened = (closes, ["click('{open}')", drag], "RootWebArea 'first'")
    for pages, actions, start in ((waits, [drag], f"{told}RootWebArea 't'"), opened):
        assert re.match(start, carry_out(pages, *actions, settle_cap_s=1, step_timeout_s=6)[-1])


# Stock BrowserGym gives an `object` or `embed` a number like any element, and shows nothing of the page that is in it.
def test_pages_in_objects_embeds_and_framesets_are_shown_and_acted_on():
    inner = "<title>in</title><button onclick=\"this.textContent = 'pressed'\">x</button>"
    pages = {
        "/": "<object data=/in type=text/html></object><embed src=/in type=text/html><iframe src=/in></iframe>",
        "/in": inner,
    }
    texts = carry_out(pages, *(f"click('{bid}')" for bid in ("a4", "b4", "c4")), every_element=None)
    assert [text.count("button 'pressed'") for text in texts] == [0, 1, 2, 3]
    pages["/"] = "<frameset cols='50%,50%'><frame src=/in><frame src=/in></frameset>"
    texts = carry_out(pages, "click('b4')", every_element=None)
    assert "[b4] button 'pressed'" in texts[1]
    assert on_page(pages, observation="html")[0] == ["Not shown: the pages in 2 frames."]


def test_icons_without_a_name_show_their_file_class_or_id():
    page = """<style>.trash::before { content: "x" } span { cursor: pointer }</style>
    <button><svg class="ui-icon ui-icon-pencil" width=9 height=9></svg></button>
    <img src="/pictures/star.png?v=2" onclick="document.title = 'starred'"><button id=send></button>
    <input id=field><button class=named aria-label=Save></button><button class=text>Copy</button>
    <button class="a-class-name-that-is long-enough-to-fill a-line-by-itself icon-bin"></button>
    <form><input type=hidden name=id value=5><input type=hidden name=title><input type=radio aria-label=box></form>"""
    text, after = carry_out(page, "click('{star.png}')")
    assert "starred" in after
    assert "radio 'box'" in text
    for line in ("button '', icon='ui-icon ui-icon-pencil'", "image '', clickable, icon='star.png'"):
        assert line in text
    assert "button '', icon='send'" in text
    assert "icon='icon-bin'" in text
    assert not re.search("'(named|text|field)'", text)
    (stock,), _ = on_page(page, every_element=None)
    assert "icon=" not in stock


@pytest.mark.parametrize(
    ("event", "action"),
    [
        ("dblclick", "dblclick('{Go}')"),
        ("contextmenu", "click('{Go}', 'right')"),
        ("pointerdown", "click('{Go}')"),
    ],
)
def test_what_hears_any_press_of_the_mouse_has_an_id(event, action):
    page = f"""<div on{event}="this.textContent = 'done'"><p>Go</p></div><div id=b><p>Then</p></div>
    <script>b.addEventListener('{event}', () => {{ b.textContent = 'heard' }})</script>"""
    texts = carry_out(page, action, action.replace("Go", "Then"))
    assert texts[0].count("clickable") == 2
    assert "'done'" in texts[1]
    assert "'heard'" in texts[2]


def test_the_hint_in_an_empty_field_is_told_beside_its_name():
    page = """<label>When <input placeholder='MM/DD  "YYYY"'></label><input placeholder=Only>
    <textarea title=Note placeholder=short></textarea><input aria-label=Full placeholder=gone value=5>
    <input title=City list=l class=selected placeholder=Any><datalist id=l><option value=Rome></datalist>"""
    (text, after), _ = on_page(page, "fill('{When}', 'x')")
    assert (
        """textbox 'When', placeholder="MM/DD \\"YYYY\\""
"""
        in text
    )
    assert "textbox 'Only'\n" in text
    assert "textbox 'Note', placeholder=\"short\"" in text
    assert ', offers=["Rome"], placeholder="Any", selected' in text
    assert "gone" not in text
    assert "MM/DD" not in after


def test_what_a_person_sees_of_a_state_a_picture_and_a_number_is_told():
    page = """<ul><li class="page-item active"><a href="#1">1</a></li><li><a href="#2">2</a></li></ul>
    <button class=odd>Odd</button><button class="even selected">Even</button><button class=active disabled>Off</button>
    <p class=active>plain
    <p><span>a</span> <span>b</span></p><ul><li onclick="document.title = 'muted'">Mute</li></ul>
    <img src=x.png width=9 height=9 onclick="0"><img src=y.png><input type=number><input type=number min=1 max=9>
    <input type=range min=0.1 max=9 step=0.1 value=7.3>"""
    (text, after), _ = on_page(page, "click('{Mute}')")
    for line in ("link '1', active", "button 'Even', selected", "listitem '', clickable"):
        assert line in text
    assert "image '', clickable, icon='x.png'" in text
    assert text.count("active") + text.count("selected") == 2
    assert "'muted'" in after
    assert "StaticText ''" not in text
    bounds = [re.findall(r"value(?:min|max)=\d", line) for line in text.splitlines() if "spinbutton" in line]
    assert bounds == [[], ["valuemin=1", "valuemax=9"]]
    assert re.search("slider '' value=7.3, .*valuemin=0.1, valuemax=9$", text)


def test_an_svg_shape_says_what_a_person_sees_of_it():
    page = """<body style="margin:0"><svg width=200 height=100 style="display:block">
    <circle cx=20 cy=30 r=10 fill=blue style="cursor:pointer"></circle>
    <polygon points="50,50 60,30 70,50" style="cursor:pointer;fill:#12ab34"></polygon>
    <rect x=100 y=10 width=40 height=20 fill=none stroke=red style="cursor:pointer"></rect>
    <text x=150 y=50 font-size="20px" fill=aqua style="cursor:pointer">w</text></svg>"""
    texts, _ = on_page(page)
    shapes = re.findall(r"\[\d+\] .*shape='(.*)'", texts[0])
    assert shapes[:3] == [
        "circle blue 20x20 at 20,30",
        "triangle #12ab34 20x20 at 60,40",
        "rectangle red 40x20 at 120,20",
    ]
    assert shapes[3].startswith("text cyan 20px at 15")
    assert "shape=" not in on_page(page, every_element=None)[0][0]


def test_boxes_that_a_person_counts_are_counted():
    page = """<style>b { float: left; width: 10px; height: 10px; background: blue } p { clear: both }
    .off { background: none; border: 1px solid }</style>
    <span><b></b><b></b><b></b></span> and <span><b></b><b class=off></b></span>
    <p><b></b>words</p><button aria-label=menu><b></b><b></b></button><p><b style="width:300px"></b></p>"""
    (text,), _ = on_page(page)
    assert re.findall("shape='(.*)'", text) == ["3 boxes blue 10x10", "1 box blue 10x10, 1 box 12x12"]


def test_a_click_reaches_what_changes_when_the_mouse_comes_and_nothing_that_is_there_instead():
    page = """<title>t</title><style>b { display: inline-block; content: url(/a.svg) } b:hover { content: url(/b.svg) }
    i:hover { pointer-events: none }</style>
    <div onclick="o.textContent += ' around'"><b onclick="o.textContent += ' hit'; event.stopPropagation()"></b>
    <i onclick="o.textContent += ' flees'">flees</i></div><p id=o>so far:"""
    svg = "<svg xmlns='http://www.w3.org/2000/svg' width='20' height='20'><rect width='20' height='20'/></svg>"
    draw = answers(svg, kind="image/svg+xml")
    actions = ("click('{image}')", "click('{flees}')")
    texts, errors = on_page({"/": page, "/a.svg": draw, "/b.svg": draw}, *actions)
    assert "'so far: hit'" in texts[1]
    assert "'so far: hit'" in texts[2]
    assert not errors[0]
    assert "moves away from the mouse" in errors[1] or "intercepts pointer events" in errors[1]


FLEES = """<title>t</title><p id=o>log:</p><p id=p>log:</p><button id=b onclick="log(o, 'hit')">Flees</button>
<style>button { position: absolute; left: 20px; top: 200px; width: 100px; height: 40px }</style>
<script>const log = (place, words) => { place.textContent += ` ${words}` };
const flee = ({ currentTarget }) => { currentTarget.style.left = '300px' };
b.addEventListener('mouseover', flee, { once: true });</script>"""


MOVED = {
    "click": ("", "", "click('{Flees}')", ["'log: hit'"]),
    "dblclick": ("", "b.ondblclick = () => log(p, 2)", "dblclick('{Flees}')", ["'log: hit hit'", "'log: 2'"]),
    "dblclick that it comes back for": (
        "", "b.ondblclick = () => log(p, 2); window.addEventListener('pointerup', () => { b.style.left = '' }, true)",
        "dblclick('{Flees}')", ["'log: hit hit'", "'log: 2'"]),
    "right button": ("", "b.oncontextmenu = () => log(p, 'menu')", "click('{Flees}', 'right')", ["'log: menu'"]),
    "one of several parts": (
        "<input aria-label=n oninput='log(p, this.value)'><a href=#x onclick=\"log(p, 'counted')\">Count</a>", "",
        "fill('{'n'}', 'Ann')\nclick('{Flees}')\nclick('{Count}')", ["'log: hit'", "'log: Ann counted'"]),
    "hover": (
        "<p onclick=\"log(p, 'chosen')\" style='position: absolute; top: 190px; width: 150px; height: 50px'></p>", "",
        "hover('{Flees}')\nmouse_click(70, 220)", ["'log:'", "'log: chosen'"]),
    "alert": (
        "", "document.onclick = () => alert('now')", "click('{Flees}')", ["alert box 'now', closed", "'log: hit'"]),
    "label": (
        "<input type=checkbox id=c style='position: absolute; opacity: 0; pointer-events: none' onchange='log(p, "
        "this.checked)'><label id=l for=c style='position: relative'>Agree</label>",
        "l.addEventListener('mouseover', flee, { once: true })", "check('{checkbox}')",
        ["'log: true'", "checked='true'"]),
}  # fmt: skip


@pytest.mark.parametrize(("before", "script", "action", "seen"), MOVED.values(), ids=MOVED)
def test_a_click_that_its_element_moves_away_from_is_made_again_and_nothing_else_is(before, script, action, seen):
    texts = carry_out(FLEES.replace("<button", f"{before}<button") + f"<script>{script}</script>", action)
    assert [part for part in seen if part not in texts[1]] == [], texts[1]
    assert texts[1].count("alert") <= 1


@pytest.mark.parametrize("form", ["axtree", "html"])
def test_a_click_that_reaches_nothing_is_made_four_times(form):
    always = FLEES.replace("= '300px'", "= b.style.left === '300px' ? '20px' : '300px'").replace(", { once: true }", "")
    always += "<script>document.onclick = () => { p.textContent += ' heard' }</script>"

    async def play(env):
        results = []
        async with serve({"/": FLEES, "/always": always}) as url:
            for path in ("/", "/always"):
                text = (await env.reset(at(url + path))).text
                number = bid_of(text, "button", "Flees") if form == "axtree" else "0"
                results.append(await env.step(f"click('{number}')"))
            results.append(await env.step("mouse_click(600, 400)"))
        return results

    once, never, later = in_browser(play, observation=form)
    assert (once.error, never.error) == ("", "Error: the click reached nothing: the element moves away from the mouse")
    assert "log: hit" in once.observation.text
    assert not re.search("hit|heard", never.observation.text)
    assert "log: heard" in later.observation.text


def test_a_scroll_moves_the_part_of_a_page_that_scrolls_and_says_what_is_left():
    page = """<title>t</title><p>Terms<textarea disabled style="width: 99px; height: 50px"></textarea>
    <button disabled>Agree</button><script>const text = document.querySelector('textarea');
    text.value = 'one\\n'.repeat(99); text.onscroll = () => { document.querySelector('button').disabled =
    text.scrollTop + text.clientHeight < text.scrollHeight - 1 }</script>"""
    texts, _ = on_page(page, "scroll(0, 100)", "scroll(0, 9000)", "scroll(0, 100)")
    assert re.match(r"scroll: 1\d\d\d more pixels that way\n", texts[1])
    assert texts[2].startswith("scroll: this is the end\n")
    assert "button 'Agree', disabled" in texts[1]
    assert "button 'Agree', disabled" not in texts[2]
    assert texts[3].startswith("scroll: there is nothing to scroll that way\n")


@pytest.mark.parametrize(
    ("style", "mode", "actions", "hints"),
    [
        ("direction: rtl", None, ["-100, 0", "100, 0", "100, 0"], ["1600 more", "this is the end", "there is nothing"]),
        ("flex-flow: column-reverse", "closed", ["0, -100", "0, 100"], ["700 more", "this is the end"]),
        ("flex-flow: row-reverse", "open", ["-9000, 0", "100, 0"], ["this is the end", "1600 more"]),
        ("writing-mode: vertical-rl", None, ["-100, 0", "0, 100"], ["1600 more", "700 more"]),
    ],
)
def test_a_part_that_begins_at_its_other_end_is_scrolled_in_shadow_trees_too(style, mode, actions, hints):
    big = "<p style='min-width: 2000px; min-height: 1000px; margin: 0'></p>"
    box = f"<div style='display: flex; overflow: scroll; width: 315px; height: 215px; {style}'>{big}</div>"
    inside = f"<div id=h></div><script>h.attachShadow({{ mode: '{mode}' }}).innerHTML = `{box}`</script>"
    texts, _ = on_page(inside if mode else f"<title>t</title>{box}", *(f"scroll({by})" for by in actions))
    assert [hint in text for text, hint in zip(texts[1:], hints, strict=True)] == [True] * len(hints), texts[1:]


def test_what_scrolls_by_itself_meanwhile_does_not_say_what_is_left():
    page = """<style>div { width: 300px; height: 200px; overflow: auto }</style><div id=a><p style="height: 1000px">read
    </div><div id=b><p style="height: 5000px">news</div><script>a.onwheel = () => { b.scrollTop = 50 }</script>"""
    texts, _ = on_page(page, "scroll_at(50, 50, 0, 300)")
    assert re.match(r"scroll: [45]\d\d more pixels", texts[1])


def test_marks_are_drawn_and_removed_where_a_page_forbids_styles_of_its_elements():
    page = """<title>t</title><link rel=stylesheet href=/s.css><section id=s><button id=b></button></section>
    <script src=/s.js></script>"""
    script = """s.style.setProperty('content-visibility', 'auto', 'important'); s.style.color = 'red';
    const [root] = document.children; root.style.setProperty('scroll-behavior', 'smooth', 'important');
    b.onclick = () => { b.textContent = [s, root, b].map((each) => each.getAttribute('style')).join(' ') };
    document.onsecuritypolicyviolation = () => { document.title = 'broken' };"""

    async def send(path, writer):
        css = "section { margin: 3000px 0 }"
        body, kind = {"/": (page, "html"), "/s.js": (script, "javascript"), "/s.css": (css, "css")}[path]
        await reply(writer, body, headers="Content-Security-Policy: style-src 'self'\r\n", kind=f"text/{kind}")

    texts = carry_out(dict.fromkeys(("/", "/s.js", "/s.css"), send), "click('{button}')")
    styles = "content-visibility: auto !important; color: red; scroll-behavior: smooth !important;"
    assert f"button {styles!r}" in texts[1]
    assert "broken" not in texts[1]


def test_a_click_goes_beside_inner_controls_but_not_where_one_is_all_there_is_of_what_hears_of_no_click():
    day = """<table role=grid><tr><td role=gridcell tabindex=0 style=padding:10px><button {}>21</button></table>"""
    item = """<ul role=menubar><li role=menuitem style=display:inline-block;padding:10px><a href=# {}>Home</a></ul>"""
    part = "<li role=treeitem>Part</li>"
    tree = "<ul role=tree {}><li role=treeitem>All<ul role=group>" + part * 3 + "</ul></li></ul>"
    card = "<div role=button tabindex=0 onclick=event.stopPropagation();say(this) style=width:300px;text-align:center>"
    card += "<button style=width:200px {}>Buy</button></div>"
    heard = "onclick=event.stopPropagation();say(event.target)"
    script = "<p id=o></p><script>const say = (at) => { o.textContent = `${at.getAttribute('role')} ${at.localName}` }"
    cases = ((day, "gridcell", "null button"), (item, "menuitem", "null a"), (tree, "treeitem", "treeitem li"))
    for page, role, said in (*cases, (card, "button", "button div")):
        texts = carry_out(page.format(heard) + script + "</script>", f"click('{{{role}}}')")
        assert f"StaticText '{said}'" in texts[1]


def test_frames_that_load_once_they_are_scrolled_to_are_counted_unless_they_name_no_page():
    for src, told in (("/other", "frames of this page that load once they are scrolled to: 1\n"), ("about:blank", "")):
        page = f"<div style=height:9000px></div><iframe loading=lazy src={src}></iframe>"
        actions = ("noop()", "scroll(0, 20000)", "scroll(0, -20000)")
        texts = carry_out({"/": page, "/other": "<p>other"}, *actions)
        assert texts[0].startswith(f"{told}RootWebArea")
        assert not any("load once" in text for text in texts[2:])


def test_a_field_that_listens_to_keys_is_filled_by_typing():
    page = """<input aria-label=filter value=old onkeyup="o.textContent = 'only ' + this.value"><input aria-label=plain>
    <p id=o>all</p><script>document.querySelectorAll('input')[1].oninput = (e) => { o.textContent = e.data }</script>"""
    texts = carry_out(page, "fill('{filter}', 'Ann E')", "fill('{plain}', 'Bob')")
    assert "StaticText 'only Ann E'" in texts[1]
    assert texts[2].count("'Bob'") == 3, "the field, its text, and all of it in one event"


def test_the_key_that_goes_up_after_a_text_has_no_code_of_a_key_that_moves_or_deletes():
    page = """<textarea></textarea><p id=o></p><script>document.addEventListener('keyup', ({ key, keyCode }) => {
    o.textContent += `${key} is ${keyCode}, ` })</script>"""
    texts = carry_out(page, *(f"fill('{{textbox}}', '{text}')" for text in ("Ann", "a 5", "a.", "f(", "Tom &")))
    assert "StaticText 'n is 78, 5 is 53, . is 0, ( is 0, & is 0,'" in texts[-1]  # as codes: Delete, Down and Up


def test_a_text_is_typed_into_a_field_that_listens_to_keys_as_text_and_in_time():
    page = """<input id=i aria-label=filter><p id=o></p><script>i.addEventListener('keydown', ({ ctrlKey }) => {
    const start = performance.now();
    while (!ctrlKey && performance.now() - start < 80);
    o.textContent = `heard ${i.value.length}` })</script>"""
    held = ("keyboard_down('Control')", "fill('{filter}', 'aaa')", "keyboard_up('Control')")
    long = "0123456789" * 10
    texts = carry_out(page, *held, f"fill('{{filter}}', '{long}')", step_timeout_s=6)
    assert "textbox 'filter' value='aaa'" in texts[2]
    assert f"textbox 'filter' value='{long}'" in texts[4]
    assert int(re.search(r"heard (\d+)", texts[4])[1]) in range(9, 90), "as much as there is time for"


def test_a_field_out_of_sight_that_keeps_a_form_from_being_sent_is_named_with_the_browser_s_words():
    field = "<div hidden><label>Zip <input pattern=[0-9]+ value=abc></label></div>"
    form = f"<form action=/2>{field}<button>Send</button></form>"
    page = f"""{form}<iframe srcdoc="{form}"></iframe><form action=/2><label>Name <input required></label>
    <select required name=country style='visibility:hidden'><option value=''>-</select><button>Next</button></form>"""
    texts = carry_out(page, "click('{Send}')", "noop(0)", "click('{button 'Next'}')", "click('{[a7] button}')")
    says = "the form was not sent: its field {!r}, which is not shown, says {!r}\n"
    zip_code = says.format("Zip", "Please match the requested format.")
    told = ["".join(line for line in text.splitlines(keepends=True) if line.startswith("the form")) for text in texts]
    assert told == ["", zip_code, "", says.format("country", "Please select an item in the list."), zip_code]
    assert "alert 'Please fill out this field.'" in texts[3]


def test_what_attributes_say_or_stands_above_a_text_and_the_tree_leaves_out_is_told():
    page = """<nav><a href=#a class=active aria-current=page>A</a><a href=#b aria-current=false>B</a></nav>
    <table><tr><th aria-sort=ascending>Name<th aria-sort=none>Age<tr><td>x<td>1</table>
    <input aria-label=Mail aria-invalid=true><p><ruby>漢<rp>(</rp><rt>kan</rt><rp>)</rp></ruby></p>
    <div role=slider tabindex=0 aria-valuenow=2 aria-valuemin=1 aria-valuemax=3 aria-valuetext=Medium></div>
    <span title="Ann Lee">A.</span><b title="B.">B.</b><button title="Cannot be undone">Delete</button>
    <button title=Close>\ue900</button><button><i class=icon-trash>\ue901</i></button>"""
    (text,), _ = on_page(page)
    for line in (
        "link 'A', current=\"page\"\n", "link 'B'\n", "columnheader 'Name', sort=\"ascending\"\n",
        "columnheader 'Age'\n", "textbox 'Mail', invalid\n", "Ruby '', ruby=\"kan\"\n",
        "valuemax=3, valuetext=\"Medium\"\n", "StaticText 'B.'\n", "button 'Delete', title='Cannot be undone'\n",
        "button 'Close'\n", "button '\\ue901', icon='icon-trash'",
    ):  # fmt: skip
        assert line in text
    has_spans = not is_older_than(138)  # whose trees leave them out
    assert ("generic, title='Ann Lee'\n" in text) == has_spans
    assert text.count("title=") == 1 + has_spans, "not where it is the name, or the text"


def test_what_is_written_for_readers_changes_neither_labels_nor_numbers_nor_what_a_form_is_reset_to():
    page = """<form id=f><input id=a value=first><input id=c type=checkbox checked><button type=reset>Clear</button>
    <input type=submit></form><ol start=5><li>five</ol><progress></progress><select id=s><option>Red</select>
    <button onclick="s.options[0].text = 'Blue'; document.title = s.value; a.defaultValue = 'second'">Change</button>"""
    actions = ("fill('{textbox}', 'mine')", "uncheck('{checkbox}')", "click('{Clear}')")
    texts = carry_out(page, *actions, "fill('{textbox}', 'mine')", "click('{Change}')", "click('{Clear}')")
    assert "button 'Submit'" in texts[1]
    assert "ListMarker '5.'" in texts[1]
    assert "progressbar '', valuemin" in texts[1], "its state is unknown, not 0"
    assert "value='mine'" in texts[2]
    assert "checked='false'" in texts[2]
    assert "value='first'" in texts[3]
    assert "checked='true'" in texts[3]
    assert "RootWebArea 'Blue'" in texts[5]
    assert "value='second'" in texts[6]


def test_the_label_of_a_box_that_is_not_drawn_says_that_it_is_ticked():
    box = "<label>{}<input type=checkbox style=display:none></label>"
    page = box.format("Dark") + box.format("Loud") + "<label>Name<input></label>"
    texts, _ = on_page(page, "click('{'Dark'}')")
    assert "checked" not in texts[0]
    assert texts[1].count("LabelText '', checked\n\t\tStaticText 'Dark'") == texts[1].count("checked") == 1


MAILS = """<ul id=l></ul><p id=o>none</p><script>
const names = ['Ann', 'Ben', 'Cid', 'Dan', 'Eve', 'Fay']; let first = 0;
for (let n = 0; n < 4; n += 1) {
  const row = l.appendChild(document.createElement('li'));
  row.innerHTML = '<a href="#">?</a> <button>Delete</button>';
  row.onclick = ({ target }) => { o.textContent = `${target.localName} of ${row.dataset.name}` };
}
const draw = () => [...l.children].forEach((row, n) => {
  row.querySelector('a').textContent = row.dataset.name = names[first + n];
});
draw();</script>"""
MOVES = {
    "the row of a list": ("click('{link 'Ann'}')", "first += 1; draw()", '"Ben", no longer "Ann"'),
    "a row that comes back": ("click('{link 'Cid'}')", "first += 1; draw()", '"Dan", no longer "Cid"'),
    "the button of a row": ("click('{Delete}')", "first += 1; draw()", '"Ben Delete", no longer "Ann Delete"'),
    "a link that leads elsewhere": (
        "click('{link 'Ann'}')",
        "const a = document.querySelector('a'); a.textContent = 'Zoe'; a.href = '#zoe'",
        '"Zoe", no longer "Ann"',
    ),
    "nothing": ("click('{link 'Ann'}')", "draw()", ""),
    "a count": (
        "click('{link 'Ann'}')",
        "document.querySelectorAll('a').forEach((a, n) => { a.textContent += n + 7 })",
        "",
    ),
    "what a button does next": ("click('{link 'Ann'}')", "document.querySelector('a').textContent = 'Pause'", ""),
    "a note in the row": ("click('{link 'Ann'}')", "l.firstChild.append('seen just now')", ""),
}


@pytest.mark.parametrize("name", MOVES)
@pytest.mark.parametrize("where", ["page", "frame"])
def test_what_the_page_has_put_another_item_into_since_it_was_shown_is_not_acted_on(name, where):
    action, change, said = MOVES[name]

    async def play(env, _, text):
        frame = env.page.frames[-1]
        await frame.evaluate(f"{{ {change} }}")
        return await env.step(re.sub(r"\{([^}]+)\}", lambda m: id_of(text, m[1]), action))

    pages = {"/": MAILS} if where == "page" else {"/": "<iframe src=/in height=400></iframe>", "/in": MAILS}
    result = visit(pages, play, every_element=True)
    words = f"Error: click was not carried out: the page has put another item in its place: {said}"
    assert result.error == (words if said else "")
    assert f"StaticText '{'none' if said else 'a of Ann'}'" in result.observation.text
