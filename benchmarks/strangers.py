"""Pages and answers that broke other people's agents: what our environment makes of them, beside stock BrowserGym.

`python benchmarks/strangers.py` plays each case once in ours and, with `--stock`, once in BrowserGym (two to three
minutes). A case is right if what the agent is told at the end matches what a person would see. The last line is
JSON: `{"cases", "right", "silent", "crash", "better_than_stock"}`; `silent` is wrong without a word, `crash` an
exception.
"""

from __future__ import annotations

import argparse
import functools
import http.server
import json
import re
import sys
import tempfile
import threading
import time
from collections import Counter
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path

from webrl import Task, load_config, make_env

_FOUND_HERE = """Symbol Event MouseEvent InputEvent CSS performance Element HTMLElement HTMLInputElement
HTMLSelectElement HTMLOptionElement NodeFilter getComputedStyle requestAnimationFrame Object Array String Math Number"""
GLOBALS = {
    "Map": "microsoft/playwright#16041", "Set": "microsoft/playwright#34443", "WeakMap": "microsoft/playwright#34443",
    "WeakSet": "microsoft/playwright#34443", "eval": "microsoft/playwright#18326", "Node": "puppeteer/puppeteer#5327",
    "MutationObserver": "puppeteer/puppeteer#597", "Promise": "puppeteer/puppeteer#5330",
    "JSON": "ariya/phantomjs#12615", "RegExp": "microsoft/playwright#21112", "Date": "microsoft/playwright#21112",
    "setTimeout": "hugomrdias/playwright-test#426",
} | dict.fromkeys(_FOUND_HERE.split(), "")  # fmt: skip
"""Names that a page takes for itself, and who met that; "": found here."""
PROTOTYPES = {
    "Array.prototype.map": "microsoft/playwright#22460", "Array.prototype.filter": "microsoft/playwright#6750",
    "Array.from": "microsoft/playwright#6869", "Array.prototype.find": "", "Array.prototype.push": "",
    "Element.prototype.getAttribute": "", "Element.prototype.matches": "", "Element.prototype.closest": "",
    "Document.prototype.querySelectorAll": "",
}  # fmt: skip
PIXEL = "data:image/gif;base64,R0lGODlhAQABAIAAAAAAAP///yH5BAEAAAAALAAAAAABAAEAAAIBRAA7"
DONE = "<button onclick=\"this.textContent='done'\">Go</button>"
LIST = "<select onchange=\"o.textContent='got '+this.value\">{}</select><p id=o>none</p>"
AREA = '<textarea oninput="o.textContent=JSON.stringify(this.value)"></textarea><p id=o>none</p>'


@dataclass(frozen=True)
class Case:
    """A page, what is done there, and what the agent must be told in the end."""

    name: str
    report: str
    """Public report, as OWNER/NAME#NUMBER; "": found here."""
    page: str
    actions: tuple[str, ...]
    right: str
    """Regular expression over the last error and page text. `{id:ROLE}` in an action is the first such element's id."""


def cases() -> Iterator[Case]:
    """All of them."""
    for name, report in GLOBALS.items():
        script = f"<script>window[{name!r}] = class Mine {{}}</script>"
        yield Case(f"own {name}", report, script + DONE, ("click('{id:button}')",), "button 'done'")
    for name, report in PROTOTYPES.items():
        script = f"<script>{name} = () => {{ throw Error('mine') }}</script>"
        yield Case(f"own {name}", report, script + DONE, ("click('{id:button}')",), "button 'done'")
    half = "<p id=p></p><script>p.textContent = 'Well done \U0001f600'.slice(0, 11) + '!'</script>"
    yield Case("half an emoji in a text", "microsoft/playwright-mcp#1410", half, (), "Well done \ufffd!")
    title = "<script>document.title = 'a\\ud83d'</script>" + DONE
    yield Case("half an emoji in a title", "microsoft/playwright-mcp#1447", title, (), "RootWebArea 'a\ufffd'")
    value = "<input id=i><script>i.value = 'b\\ude00'</script>"
    yield Case("half an emoji in a value", "microsoft/playwright-mcp#1100", value, (), "b\ufffd")
    emoji = ("fill('{id:textbox}', 'hi \ud83d')",)
    yield Case("half an emoji typed", "UKGovernmentBEIS/inspect_ai#3802", AREA, emoji, "hi \ufffd")
    lines = "fill('{id:textbox}', '''Notes\n\n# Title\n- item''')"
    yield Case(
        "blank and # lines typed", "langchain-ai/langchain#887", AREA, (lines,), r"Notes(\\+n){2}# Title\\+n- item"
    )
    fence = "fill('{id:textbox}', 'a\\n```\\nb')"
    yield Case("a fence typed", "browser-use/browser-use#4510", AREA, (fence,), r"a(\\+n)```(\\+n)b")
    yield Case(
        "U+2028 typed", "awslabs/gluonts#920", AREA, ("fill('{id:textbox}', 'a\u2028b')",), r"a(\u2028|\\u2028)b"
    )
    for name, report, label, asked in (
        ("indented by &nbsp;", "microsoft/playwright#40210", "&nbsp;&nbsp;Bags", "Bags"),
        ("&nbsp; inside", "mxschmitt/playwright-go#131", "t&nbsp;3", "t 3"),
        ("a space at the end", "microsoft/playwright#33288", "Bags ", "Bags "),
    ):
        page = LIST.format(f"<option value=1>Root<option value=2>{label}")
        yield Case(f"option {name}", report, page, (f"select_option('{{id:combobox}}', '{asked}')",), "got 2")
    page = LIST.format("<option value=1>Root<option value=2 disabled>Bags")
    choose = ("select_option('{id:combobox}', 'Bags')",)
    yield Case("disabled option", "microsoft/playwright#36376", page, choose, r"(?s)disabled.*StaticText 'none'")
    page = LIST.format("<option>Root<optgroup disabled><option value=1>Bags</optgroup><option value=2>Bags")
    yield Case("its label again, enabled", "select2/select2#2306", page, choose, "got 2")
    page = LIST.format("<option value=1>Root<option value=2>Bags")
    yield Case("click on an option", "microsoft/playwright#15626", page, ("click('{id:option Bags}')",), "got 2")
    hidden = "<div aria-hidden=true><h1>Orders</h1><button>Export</button></div>"
    yield Case("aria-hidden left behind", "reticlehq/reticle#672", hidden, (), "Export|not shown")
    chip = (
        "<div role=button tabindex=0>Ann <span style='cursor:pointer' title=Remove onclick=\"event.stopPropagation();"
        "o.textContent='removed'\">×</span></div><p id=o>none</p>"
    )
    yield Case("the x of a chip", "browser-use/jev-ultrafast#23", chip, ("click('{id:generic|clickable}')",), "removed")
    style = "<style>body{margin:0;display:flex;height:100vh;overflow:hidden}main{flex:1;overflow:auto}</style>"
    inner = (
        "<main onscroll=\"o.textContent='at '+this.scrollTop\"><p id=o>at 0</p><div style='height:9000px'>tall</div>"
        "</main>"
    )
    yield Case("inner scroll", "EndeavorYen/chrome-cdp-ex#326", style + inner, ("scroll(0, 900)",), "at [1-9]")
    yield Case("nothing scrolls", "browser-use/browser-use#5361", DONE, ("scroll(0, 900)",), "nothing to scroll")
    inside = "<body onclick=this.textContent=`started` style=height:120px>press"
    frame = f'<iframe title=Board width=300 height=150 srcdoc="{inside}"></iframe>'
    yield Case("click a frame", "", frame, ("click('{id:Iframe}')",), "started")
    area = (
        f"<img usemap=#m src={PIXEL} width=90 height=90 alt=map><map name=m><area href=#x alt=North shape=rect "
        "coords=0,0,80,80 onclick=\"o.textContent='north'\"></map><p id=o>none</p>"
    )
    yield Case("image map", "puppeteer/puppeteer#4147", area, ("click('{id:link North}')",), "north")
    yield Case("relative address", "OnetapInc/chromy#49", "<p>start</p>", ("goto('other.html')",), "the other page")
    yield Case("unknown id", "browser-use/browser-use#286", DONE, ("click('999')",), "999")
    shown = "<object data=other.html type=text/html width=300 height=90></object>"
    yield Case("page in an object", "microsoft/playwright#14988", shown, (), "the other page|not shown")
    leave = "<script>onbeforeunload = e => e.preventDefault()</script><textarea></textarea>"
    draft = ("fill('{id:textbox}', 'draft')", "goto('other.html')")
    yield Case(
        "a draft lost on leaving", "MarketSquare/robotframework-browser#2098", leave, draft, "(?s)not saved|lost|Leave"
    )
    host = "<div id=h></div><script>const r = h.attachShadow({mode: 'closed'}); r.innerHTML = `" + DONE + "`</script>"
    yield Case("closed shadow tree", "microsoft/playwright#23047", host, ("click('{id:button}')",), "button 'done'")
    tall = "<div style=height:3000px></div>"
    lazy = f"{tall}<section style=content-visibility:auto>{DONE}</section>"
    yield Case("content-visibility", "w3c/csswg-drafts#5857", lazy, ("click('{id:button}')",), "button 'done'")
    smooth = f"<style>html {{ scroll-behavior: smooth }}</style>{tall}{DONE}{tall}"
    yield Case("smooth scrolling", "microsoft/playwright#42625", smooth, ("click('{id:button}')",), "button 'done'")
    sandbox = "<iframe sandbox srcdoc='<label><input type=checkbox>Agree</label>'></iframe>"
    tick = ("click('{id:checkbox}')",)
    root = "document.addEventListener('click', (e) => { if (e.target.closest('.dropdown')) o.textContent = 'open' })"
    drop = f"<div class=dropdown>Size</div><p id=o>none</p><script>{root}</script>"
    yield Case("a dropdown that its document hears for", "", drop, ("click('{id:clickable}')",), "open")
    yield Case("frame without scripts", "microsoft/playwright#33343", sandbox, tick, "checkbox 'Agree'.*true")
    shown = "oninput=\"o.textContent='got '+this.value\"><p id=o>none</p>"
    parts = ("focus('{id:Date}')", "keyboard_type('1122')", "keyboard_type('2020')")
    date = f"<input type=date {shown}"
    yield Case("a date typed in parts", "db-ux-design-system/core-web#8058", date, parts, "got 2020-11-22")
    wrong = ("fill('{id:InputTime}', '14:30')", "fill('{id:InputTime}', '2:30 PM')")
    clock = f"<input type=time {shown}"
    yield Case(
        "a time that is none", "microsoft/playwright#1676", clock, wrong, r"(?s)'14:30'.*value='14:30'.*got 14:30"
    )
    ticked = (
        "<fieldset disabled><legend><label><input type=checkbox>Use</label></legend><button>Send</button></fieldset>"
    )
    legend = "microsoft/playwright#35041"
    yield Case("the legend of a disabled fieldset", legend, ticked, tick, "checked='true'")
    yield Case("such a legend in a frame", legend, f'<iframe srcdoc="{ticked}"></iframe>', tick, "checked='true'")
    yield Case("an inert part", "", "<div inert><p>draft</div><p>text</p>", (), "draft|Not shown")
    refused = "<ul><li draggable=true>Milk<li id=b ondrop=\"document.title='taken'\">Bread</ul>"
    drop = ("drag_and_drop('{id:listitem}', '{id:list}')",)
    yield Case("a drop that no place takes", "", refused, drop, "does not take what was dropped")
    none = r"there is no earlier page(?s:.*)'start'"
    yield Case("back to before the first page", "browser-use/browser-use#5641", "<p>start", ("go_back()",), none)
    choose = ("click('{id:button}')",)
    yield Case("a file dialog", "browser-use/browser-use#4681", "<input type=file>", choose, "closed without a file")
    opens = "<button onclick=\"const i = document.createElement('input'); i.type = 'file'; i.click()\">Add</button>"
    yield Case("a file dialog of no field", "vercel-labs/agent-browser#1102", opens, choose, "closed without a file")
    beside = ("mouse_click(5000, 9)",)
    yield Case("a click beside the window", "UKGovernmentBEIS/inspect_ai#5496", DONE, beside, "outside the window")
    yield Case("keys that go nowhere", "", DONE, ("keyboard_type('x')",), "has the focus")
    asks = "<p>behind<dialog id=d>Sure?</dialog><script>d.showModal()</script>"
    yield Case("behind a dialog", "cashew-labs/libretto#515", asks, (), "'behind'|behind a dialog")
    named = f"<form onsubmit=return(false)><input name=getAttribute><input name=matches>{DONE}</form>"
    yield Case("fields named getAttribute", "jsdom/jsdom#2036", named, ("click('{id:button}')",), "button 'done'")
    again = "<p>hello<script>setTimeout(() => location.reload(), 450)</script>"
    yield Case("a page that reloads itself", "codeceptjs/CodeceptJS#1232", again, ("noop()",), "hello")
    yield Case("a draft in a tab that is closed", "", leave, (draft[0], "tab_close()"), "not saved|lost|Leave")
    mail = "<a href=mailto:ann@a.example>Write</a>"
    leads = "leads out of the browser"
    yield Case("a link to an e-mail program", "ariya/phantomjs#11460", mail, ("click('{id:link}')",), leads)
    refresh = "<meta http-equiv=refresh content=0><p>hello"
    yield Case("a page that refreshes at once", "w3c/wcag#1012", refresh, (), "(?s)keeps loading.*hello")
    drawn = "<canvas id=c width=500 height=300></canvas><script>c.getContext('2d').fillText('Total', 9, 9)</script>"
    yield Case("a text on a canvas", "drisplabs/browser-mcp#27", drawn, (), "Canvas '', shape='drawing")
    slider = f"<input type=range step=5 {shown}"
    between = ("fill('{id:slider}', '33')",)
    yield Case("a slider between its steps", "lightpanda-io/browser#2277", slider, between, "got 35")
    sees = "<a href={} style='display:block;height:0'><img alt=Pic width=60 height=40 style='float:left'></a>"
    link = ("click('{id:link}')",)
    yield Case("a link around a float", "philc/vimium#357", sees.format("other.html"), link, "the other page")
    part = "<button style='position:absolute;left:0;width:300px' onclick=\"this.textContent='done'\">Go</button>"
    cover = f"{part}<div style='position:absolute;left:0;width:200px;height:50px;background:white'></div>"
    click = ("click('{id:button}')",)
    yield Case("a button behind something", "lavague-ai/LaVague#592", cover, click, "button 'done'")
    boxless = (
        "<label style='display:contents'>Agree<input type=checkbox style='display:none' {}></label><p id=o>none</p>"
    )
    label = boxless.format("onchange=\"o.textContent='got it'\"")
    yield Case("a label without a box", "w3c/webdriver#1887", label, ("click('{id:LabelText}')",), "got it")
    moves = '<style>::view-transition-group(*){animation-duration:1.5s}</style><button onclick="document.'
    moves += f'startViewTransition(() => {{ n.hidden = false }})">Show</button><div id=n hidden>{DONE}</div>'
    steps = ("click('{id:button Show}')", "click('{id:button Go}')")
    yield Case("a view transition", "w3c/csswg-drafts#11596", moves, steps, "button 'done'")
    waits = '<iframe srcdoc="<a href=/slow/other.html>Next</a>"></iframe>'
    yield Case("a slow page in a frame", "puppeteer/puppeteer#3845", waits, link, "the other page")
    printed = "<button onclick=print()>Print</button>"
    yield Case("a print dialog", "objectstack-ai/objectui#4462", printed, click, "print dialog")
    digits = "<input onbeforeinput='if (/\\D/.test(this.value + event.data)) event.preventDefault()'>"
    typed = ("fill('{id:textbox}', 'abc')",)
    yield Case("a field that refuses a text", "vercel-labs/agent-browser#1920", digits, typed, "it is as it was before")
    short = "<input maxlength=4>"
    code = ("fill('{id:textbox}', '12345')",)
    yield Case("a field for a part of a text", "SimpleBrowserDotNet/SimpleBrowser#49", short, code, "at most 4")
    code = ("fill('{id:textbox}', 'abc\U0001f600')",)
    yield Case("a field that ends within an emoji", "", short, code, "at most 3 of the 4")
    data = "<a href='data:text/html,more'>More</a>"
    yield Case("a link to data", "raelmax/certfico#1", data, link, "Not allowed to navigate")
    caged = "<iframe sandbox=allow-scripts srcdoc='<button onclick=window.open(`/`)>Go</button>'></iframe>"
    yield Case("a tab out of a sandbox", "BuildFire/sdk#41", caged, click, "Blocked opening")
    full = f"<div id=f><button onclick=f.requestFullscreen()>Full</button></div>{DONE}"
    steps = ("click('{id:button Full}')", "click('{id:button Go}')")
    yield Case("full screen", "microsoft/playwright#30156", full, steps, "button 'done'")
    bare = "<a href=/bare/other.html>Next</a>"
    steps = ("click('{id:link Next}')", "scroll(0, 300)")
    yield Case("a page that may not run scripts", "", bare, steps, "the other page")
    back = "setTimeout(() => { this.textContent = `old` }, 9)"
    editor = ("fill('{id:generic|generic|paragraph}', 'new')",)
    kept = "did not keep"
    yield Case("an editor that puts its text back", "", f'<p contenteditable oninput="{back}">old', editor, kept)
    select = "<select onchange='requestAnimationFrame(() => { this.value = `a` })'><option>a<option>b</select>"
    yield Case("a choice put back with the next frame", "", select, ("select_option('{id:combobox}', 'b')",), kept)
    stuck = "<p>half<script src=/stuck></script>"
    yield Case("a script that never comes", "segment-boneyard/nightmare#1138", stuck, (), "(?s)/stuck.*'half'")
    nothing = "nothing to show .status 204"
    yield Case("a link to nothing", "puppeteer/puppeteer#9458", "<a href=/status/204>Go</a>", link, nothing)
    yield Case("a link to an empty page", "", "<a href=/status/404>Go</a>", link, "empty page .status 404")
    blink = '<p>main<button onclick="const w = window.open(``); setTimeout(() => w.close(), 100)">Go</button>'
    yield Case("a tab that is closed again", "", blink, click, "'main'")
    items = "".join(f"<button style='display:block;height:40px'>{name}</button>" for name in "ABC")
    sort = f"""<div id=l>{items}</div><script>let d; const at = (item) => [...l.children].indexOf(item);
    l.onmousedown = (e) => {{ d = e.target }}; onmouseup = () => {{ d = null }};
    onmousemove = ({{ clientX, clientY }}) => {{ const t = d && document.elementFromPoint(clientX, clientY);
    if (t && t !== d && t.parentElement === l) t[at(t) > at(d) ? 'after' : 'before'](d) }}</script>"""
    drag = ("drag_and_drop('{id:button A}', '{id:button C}')",)
    yield Case("a list that is sorted by dragging", "puppeteer/puppeteer#3735", sort, drag, "(?s)'B'.*'C'.*'A'")
    yield Case("a number in single precision", "", "<input type=range max=9 step=.1 value=7.3>", (), "value=7.3,")
    paint = "<input type=color value=#123456>"
    for name, work in (
        ("a database", "const r = indexedDB.open('a'); r.onsuccess = () => { let n = 300; const store = r.result."
         "transaction('s', 'readwrite').objectStore('s'), put = () => { store.put(1, --n).onsuccess = n ? put : done "
         "}; put() }; r.onupgradeneeded = () => r.result.createObjectStore('s')"),
        ("a password that is hashed", "const { subtle } = crypto, s = new Uint8Array(8); subtle.importKey('raw', s, "
         "'PBKDF2', false, ['deriveBits']).then((key) => subtle.deriveBits({ name: 'PBKDF2', hash: 'SHA-256', salt: s, "
         "iterations: 400000 }, key, 256)).then(done)"),
        ("a scheduled task", "scheduler.postTask(done, { delay: 300 })"),
        ("idle time", "let n = 6; const f = () => { o.textContent = n; --n ? requestIdleCallback(f) : done() }; f()"),
        ("a picture", "Object.assign(new Image(), { onerror: done, src: '/soon/none.png' })"),
        ("a picture of its own", "const i = document.createElement('img'); i.src = '/soon/none.png'; i.onerror = done"),
        ("a canvas", "const c = document.createElement('canvas'); c.width = 500; c.toBlob(() => c.toBlob(done))"),
        ("a font", "new FontFace('f', 'url(/soon/none.woff)').load().then(done, done)"),
        ("a frame that is sent elsewhere", "const f = document.createElement('iframe'); f.hidden = true; "
         "document.body.append(f); f.onload = done; f.contentWindow.location = '/soon/other.html'"),
        ("one of several deadlines", "AbortSignal.any([AbortSignal.timeout(300)]).onabort = done"),
        ("a sound", "const s = document.createElement('audio'); s.onerror = done; s.src = '/soon/none.wav'"),
        ("a service worker", "navigator.serviceWorker.register('/soon/none.js').catch(done)"),
        ("a lock", "let n = 40; const f = () => (--n ? navigator.locks.request('a', () => {}).then(f) : done()); f()"),
        ("what comes into sight", "let n = 6; const f = () => new IntersectionObserver((_, seer) => { "
         "seer.disconnect(); --n ? f() : done() }).observe(document.body.appendChild(document.createElement('p'))); "
         "f()"),
        ("a stream", "const read = (from) => from.read().then((part) => (part.done ? done() : read(from))); "
         "fetch('/parts').then((r) => read(r.body.getReader()))"),
    ):  # fmt: skip
        page = "<button id=b>Go</button><p id=o>none</p><script>const done = () => { o.textContent = 'got it' };"
        yield Case(f"what waits for {name}", "", f"{page} b.onclick = () => {{ {work} }}</script>", click, "got it")
    for event in ("dblclick", "contextmenu", "pointerdown", "pointerup", "mouseup"):
        part = f"<div on{event}=\"this.textContent='done'\">Go</div>"
        press = {"dblclick": "dblclick('{id:generic}')", "contextmenu": "click('{id:generic}', 'right')"}
        yield Case(f"only {event} is heard", "", part, (press.get(event, "click('{id:generic}')"),), "'done'")
    hint = "<label>When <input placeholder=MM/DD/YYYY></label>"
    yield Case("a hint in a field with a name", "", hint, (), "MM/DD/YYYY")
    held = "<form action=other.html><div hidden><label>Zip <input required></label></div><button>Send</button></form>"
    yield Case("a hidden field that holds a form back", "", held, click, "'Zip'.*Please fill out this field")
    cleared = "<form><input value=old><button type=reset>Clear</button></form>"
    steps = ("fill('{id:textbox}', 'new')", "click('{id:button}')")
    yield Case("a form that is reset", "", cleared, steps, "value='old'")
    for what, page, right in (
        ("the numbers of a list", "<ol start=5><li>five</ol>", r"ListMarker '5\.'"),
        ("a button without a label of its own", "<form><input type=submit></form>", "button 'Submit'"),
        ("the order of a column", "<table><tr><th aria-sort=descending>Age<tr><td>1</table>", "sort=.descending"),
        ("the page that is shown", "<a href=# class=active aria-current=page>A</a>", "current=.page"),
        ("the word for a value", "<input type=range aria-valuetext=Medium>", "Medium"),
        ("small text above another", "<ruby>漢<rt>kan</rt></ruby>", "kan"),
        ("a title", "<button title='Cannot be undone'>Delete</button>", "Cannot be undone"),
        ("an icon's class", "<button><i class=icon-trash>\ue900</i></button>", "icon-trash"),
        ("a price that is struck out", "<p>was <span style='text-decoration:line-through'>12</span> 9</p>", "struck"),
        ("words for readers", "<button aria-describedby=d>Go</button><p id=d hidden>For ever", "For ever"),
        ("a hint by ARIA", "<p contenteditable role=textbox aria-label=a aria-placeholder=Write>", "Write"),
        (
            "a box that its label draws",
            "<label>Dark<input type=checkbox checked style=display:none></label>",
            "checked",
        ),
    ):
        yield Case(what, "", page, (), right)
    toast = "<button onclick='o.value = `Saved`; setTimeout(() => { o.value = `` }, 200)'>Go</button><output id=o>"
    yield Case("a toast that is gone at once", "", toast, click, "Saved")
    told = "did not open: its server has not answered"
    yield Case(
        "a server that does not answer",
        "shaun0927/openchrome#304",
        "<a href=/stuck>Next",
        ("click('{id:link}')",),
        told,
    )
    late = "<button onclick=\"fetch('/stuck').then(() => { this.textContent = 'Done' })\">Go"
    yield Case("an answer that is late", "browser-use/browser-use#3972", late, click, "not answered yet: 1")
    tab = "<a href=/stuck target=_blank>Next"
    yield Case("a tab that does not come", "", tab, ("click('{id:link}')",), "new tab .* has not opened yet")
    menu = ("click('{id:link}', 'right')",)
    yield Case("the menu of the browser", "", "<a href=other.html>Next</a>", menu, "menu of the browser itself")
    off = "<label>Agree<input type=checkbox disabled></label>"
    yield Case("the label of a disabled box", "", off, ("click('{id:LabelText}')",), "field of this label is disabled")
    none = f"(?s)\\A(?!.*has not opened yet).*{nothing}"
    yield Case("a tab of nothing", "", "<a href=/status/204 target=_blank>Go</a>", link, none)
    blob = (
        "<button onclick=\"window.open(window.URL.createObjectURL(new Blob(['the file'], { type: 'text/html' })))\">Go"
    )
    yield Case("a tab of a blob", "", blob, click, "StaticText 'the file'")
    for what, work in (
        ("that runs for ever", "for (;;);"),
        ("that waits for a server", "const r = new XMLHttpRequest(); r.open('GET', '/stuck', false); r.send()"),
    ):
        hangs = "did not come to an end|waited for a server that does not answer"
        yield Case(f"a script {what}", "", f'<button onclick="{work}">Go', click, hangs)
    moves = "<input aria-label=a onfocus='queueMicrotask(() => b.focus())'><input id=b>"
    yield Case(
        "a field that passes the focus on", "", moves, ("fill('{id:textbox a}', 'x')",), "went to another element"
    )
    for what, part in (
        ("the head of a column", "<table><caption>All</caption><tr><th {}>Age<th>Name<tr><td>1<td>Ann</table>"),
        ("a cell of a layout", "<table><tr><td {}>1<td>2</table>"),
        ("a row of a layout", "<table><tr {}><td>1<td>2</table>"),
        ("a term", "<dl><dt {}>Term<dd>What it means</dl>"),
        ("a strong word", "<strong {}>Go</strong>"),
    ):
        yield Case(f"a click on {what}", "Skyvern-AI/skyvern#1596", part.format("onclick=1"), (), "', clickable")
    for what, part in (
        ("card", "<div draggable=true>Card</div>"),
        ("section", "<section draggable=true>Card</section>"),
    ):
        yield Case(f"a {what} to drag", "", part, (), "draggable")
    lane = "<section aria-label=Done ondragover=event.preventDefault() ondrop=\"o.textContent='got it'\">Done</section>"
    far = f"<div draggable=true>Card</div><div style=height:3000px></div>{lane}<p id=o>none</p>"
    drag = ("drag_and_drop('{id:group|generic}', '{id:region}')",)
    yield Case("a drop below the window", "microsoft/playwright#17621", far, drag, "got it")
    up = "o.textContent='got '+i.value.length"
    for where, part, words in (
        ("above a field", f'<div onkeyup="{up}"><input id=i></div>', "ann"),
        ("above all", f"<input id=i><script>document.addEventListener('keyup', () => {{ {up} }})</script>", "ann"),
        ("after lines", f'<textarea id=i onkeyup="{up}"></textarea>', "a\\nb"),
        ("in an editor", f'<p id=i role=textbox contenteditable onkeyup="i.value=this.innerText;{up}"></p>', "ann"),
    ):
        fill = (f"fill('{{id:textbox}}', '{words}')",)
        report = "YusukeIwaki/capybara-playwright-driver#98"
        yield Case(f"a key that goes up {where}", report, f"{part}<p id=o>none</p>", fill, "got 3")
    lazy = "<div style=height:9000px></div><iframe loading=lazy src=other.html></iframe>"
    report = "dequelabs/axe-core-npm#727"
    yield Case("a frame that comes with scrolling", report, lazy, (), "once they are scrolled to: 1")
    yield Case("such a frame, scrolled to", report, lazy, ("scroll(0, 20000)",), "the other page")
    keyed = "<button accesskey=s onclick=\"o.textContent='got it'\">Save</button><p id=o>none</p>"
    yield Case("an access key", "electron/electron#2448", keyed, ("keyboard_press('Alt+s')",), "got it")
    fixed = "<p id=o style=position:fixed>at 0</p><script>onscroll = () => { o.textContent = `at ${scrollY}` }</script>"
    for key in ("PageDown", "End", "ArrowDown"):
        tall = f"<div style=height:3000px></div>{fixed}"
        yield Case(f"what scrolls by {key}", "BrowserMCP/mcp#102", tall, (f"keyboard_press('{key}')",), "at [1-9]")
    again = "<p id=o></p><script>o.textContent = `time ${(sessionStorage.n = +(sessionStorage.n ?? 0) + 1)}`</script>"
    yield Case("a key that loads a page again", "microsoft/fara#54", again, ("keyboard_press('F5')",), "time 2")
    keys = ("keyboard_press('Alt+ArrowLeft')",)
    yield Case("a key of the browser itself", "microsoft/playwright#34948", "<p>one", keys, "does nothing here")
    told = "event.stopPropagation();o.textContent='got {}'"
    buy = f'<button style="width:200px" onclick="{told.format("the button")}">Buy</button>'
    card = f'<div role=button tabindex=0 aria-label=Card onclick="{told.format("it")}" style="{{}}">{buy}</div>'
    item = f'<li role=treeitem onclick="{told.format("the item")}">Part</li>'
    for what, role, part in (
        ("card", "button Card", card.format("width:300px;text-align:center")),
        ("row", "row", f'<table><caption>All</caption><tr onclick="{told.format("it")}"><td>1<td>{buy}<td>2</table>'),
        (
            "tree",
            "treeitem",
            f'<ul role=tree><li role=treeitem onclick="{told.format("it")}">All<ul>{item * 3}</ul></ul>',
        ),
    ):
        choose = (f"click('{{id:{role}}}')",)
        yield Case(f"a {what} around others", "microsoft/playwright#13512", f"{part}<p id=o>none</p>", choose, "got it")
    framed = f"{card.format('width:300px;text-align:center')}<p id=o>none</p>".replace("'", "&#39;").replace(
        '"', "&quot;"
    )
    choose = ("click('{id:button Card}')",)
    yield Case("a card in a frame", "", f'<iframe width=500 srcdoc="{framed}"></iframe>', choose, "got it")
    yield from met_by_agents()
    written = "<p>main<iframe id=f></iframe><script>f.contentDocument.open(); f.contentDocument.write('<b>in')</script>"
    yield Case("a frame that is written and never closed", "", written, (), "(?s)'main'.*'in'")
    yield Case("a color without one", "citrolabs/ego-lite#190", paint, ("clear('{id:ColorWell}')",), "value='#123456'")


def met_by_agents() -> Iterator[Case]:
    """What other browser agents did not see, or did without effect."""
    got, got_it = "<p id=o>none</p>", "onclick=\"o.textContent='got it'\""
    covered = "intercepts pointer events"
    click = ("click('{id:button}')",)
    tall = "<div style=height:3000px></div>"
    pages = {
        "vercel-labs/agent-browser#1044": ("a link below the window",
            f"<a href=#x>Up</a>{tall}<a href=other.html>Next",
            ("click('{id:link Next}')",), "the other page"),
        "microsoft/playwright#37622": ("a drawer beside the window",
            "<div style='position:fixed;right:0;transform:"
            f"translateX(100%)'><button {got_it}>Save</button></div>{got}", click, "outside of the viewport"),
        "microsoft/playwright-mcp#852": ("a layer over a button",
            f"<div style='position:relative'><button {got_it}>Go"
            f"</button><div style='position:absolute;inset:0'></div></div>{got}", click, covered),
        "NousResearch/hermes-agent#38843": ("a chat over a button",
            "<button style='position:fixed;right:5px;top:5px' "
            f"{got_it}>Send</button><div style='position:fixed;right:0;top:0;width:300px;height:300px'>Chat</div>{got}",
            click, covered),
        "browser-use/browser-use#2519": ("a frame under a dialog",
            f"<iframe srcdoc='<button>In</button>'></iframe>{got}"
            "<div style='position:fixed;inset:0'>Sure?</div>", click, covered),
        "vercel-labs/agent-browser#1072": ("a link that takes no clicks",
            "<a href=other.html style=pointer-events:none>Next", ("click('{id:link}')",), covered),
        "microsoft/playwright#3105": ("a header that stays",
            "<style>body { margin: 0 }</style><header style='position:"
            f"sticky;top:0;height:120px' onclick=\"o.textContent='header'\">Shop</header>{got}" + "".join(
                f"<button style='display:block;height:150px' onclick=\"o.textContent='got {n}'\">B{n}</button>"
                for n in range(30)), ("scroll(0, 2000)", "click('{id:button B3}')"), "got 3"),
        "browser-use/browser-use#5274": ("a field of React that is cleared",
            """<input id=i><p id=o></p><script>
            const { get, set } = Object.getOwnPropertyDescriptor(HTMLInputElement.prototype, 'value'); let known = '';
            Object.defineProperty(i, 'value', { configurable: true, get() { return get.call(this) },
              set(value) { known = `${value}`; set.call(this, value) } });
            i.addEventListener('input', () => { if (get.call(i) !== known) o.textContent = `got "${i.value}"`;
              known = get.call(i) })</script>""", ("fill('{id:textbox}', 'ann')", "clear('{id:textbox}')"), 'got ""'),
        "browserbase/stagehand#1249": ("a date",
            f"<input type=date oninput='o.textContent=`got `+this.value'>{got}",
            ("fill('{id:Date}', '2025-11-15')",), "got 2025-11-15"),
        "microsoft/playwright-mcp#833": ("a frame with a pointer",
            "<iframe style=cursor:pointer srcdoc='<button>In'>", (),
            "button 'In'"),
        "Lum1104/dsh-browser#85": ("a dialog over 1500 links",
            "<a href=#x>x</a> " * 1500 + "<dialog id=d><input "
            "aria-label=Post></dialog><script>d.showModal()</script>", (), "textbox 'Post'"),
        "sightmap/sightmap#42": ("a menu at the end of the page",
            f"""<button id=b>Open</button>{got}<script>
            b.onclick = () => {{ const item = document.createElement('div'); item.textContent = 'Archive';
              item.onclick = () => {{ o.textContent = 'got it' }}; document.body.append(item) }}</script>""",
            ("click('{id:button}')", "click('{id:clickable}')"), "got it"),
        "invergent-ai/surogates#238": ("a frame in a frame",
            f"{tall}<iframe height=400 srcdoc=\"<div style=height:900px>"
            "</div><iframe srcdoc='<div style=height:700px></div><button onclick=top.o.textContent=7*6>Deep</button>'>"
            f"</iframe>\"></iframe>{got}", ("click('{id:button Deep}')",), "'42'"),
        "OpenHands/OpenHands#5615": ("a link without an address",
            f"<a id=x>×</a>{got}<script>x.addEventListener('click', "
            "() => { o.textContent = 'got it' })</script>", ("click('{id:link}')",), "got it"),
        "ServiceNow/BrowserGym#112": ("a plus that is a span",
            f"<span id=x>+</span>{got}<script>x.onclick = () => {{ "
            "o.textContent = 'got it' }</script>", ("click('{id:clickable}')",), "got it"),
        "browser-use/jev-ultrafast#75": ("a list that draws what is seen",
            """<div id=v style=height:200px;overflow:auto>
            <div id=s style=height:4000px;position:relative></div></div><script>(v.onscroll = () => { s.innerHTML = '';
            const first = Math.floor(v.scrollTop / 40); for (let n = first; n < first + 6; n++) s.innerHTML +=
              `<p style="position:absolute;top:${n * 40}px">Row ${n}` })()</script>""",
            ("scroll(0, 2000)",), r"Row 5\d"),
        "hamc/blastproof#22": ("a menu under the mouse",
            "<style>ul ul { display: none } li:hover ul { display: block }"
            "</style><ul><li>Products<ul><li><a href=other.html>Shoes</a></ul></ul>",
            ("hover('{id:listitem}')", "click('{id:link}')"), "the other page"),
        "react/react#18404": ("a field in capitals",
            f"<input oninput='o.textContent=this.value=this.value.toUpperCase()'"
            f">{got}", ("fill('{id:textbox}', 'abc')",), "StaticText 'ABC'"),
        "RobinHerbots/Inputmask#103": ("a field that hears keys alone",
            f"<input id=i>{got}<script>i.onkeydown = (e) => {{ "
            "if (/^[0-9]$/.test(e.key)) { e.preventDefault(); o.textContent = i.value += e.key } }</script>",
            ("fill('{id:textbox}', '415')",), "StaticText '415'"),
        "microsoft/playwright-mcp#147": ("a picture to click",
            f"<svg id=g width=40 height=40><circle r=30></svg>{got}"
            "<script>g.addEventListener('click', () => { o.textContent = 'got it' })</script>",
            ("click('{id:image}')",), "got it"),
        "browser-use/browser-use#5438": ("an element that has gone",
            f"<button id=b>Old</button>{got}<script>b.onfocus = "
            "() => { b.outerHTML = '<button>New</button>' }</script>", ("focus('{id:button}')", "click('4')"),
            "(?s)4.*button 'New'"),
        "mdx-editor/editor#299": ("an editor in a shadow tree",
            """<div id=h></div><script>const r = h.attachShadow({ mode:
            'open' }); r.innerHTML = '<p contenteditable role=textbox>old</p><p></p>'; r.firstChild.oninput = (e) => {
            r.lastChild.textContent = `got ${e.target.innerText}` }</script>""",
            ("fill('{id:textbox}', 'new')",), "got new"),
    }  # fmt: skip
    for report, (name, page, actions, right) in pages.items():
        yield Case(name, report, page, actions, right)


def find_id(text: str, wanted: str) -> str:
    """Id of the first element whose line has the role (and name) wanted; alternatives with `|`."""
    for choice in wanted.split("|"):
        role, _, name = choice.partition(" ")
        for line in text.splitlines():
            found = re.match(r"\s*\[(\w+)\] (\w+)(.*)", line)
            if found and (found[2] == role or (role == "clickable" and "clickable" in line)) and name in found[3]:
                return found[1]
    return "none"


def filled(action: str, text: str) -> str:
    """The action with ids in place of `{id:…}`."""
    return re.sub(r"\{id:([^}]*)\}", lambda m: find_id(text, m[1]), action)


def ours(url: str, case: Case) -> tuple[str, str]:
    """(what the agent is told in the end, the last error)."""
    origin = url.rpartition("/")[0]
    config = load_config(None, ["rollout.web.name=t", f"rollout.web.start_urls=[{origin}/]"])
    task = Task(task_id="web.t.1", site="web.t", start_url=url, instruction="look around")
    with make_env(task, config.rollout) as env:
        text, error = env.reset().text, ""
        for action in case.actions:
            result = env.step(filled(action, text))
            text, error = result.observation.text, result.error
        return text, error


def stock(url: str, case: Case) -> tuple[str, str]:
    """The same of BrowserGym."""
    from browsergym.utils.obs import flatten_axtree_to_str
    from stock_browsergym import TEXT_OPTIONS, make_env

    def read(obs: dict[str, object]) -> str:
        return str(
            flatten_axtree_to_str(
                obs["axtree_object"], extra_properties=obs["extra_element_properties"], **TEXT_OPTIONS
            )
        )

    env = make_env(url)
    try:
        obs, _ = env.reset()
        for action in case.actions:
            obs, *_ = env.step(filled(action, read(obs)))
        return read(obs), str(obs["last_action_error"])
    finally:
        env.close()


def verdict(play: object, url: str, case: Case) -> str:
    """`right`, `said` (wrong, but the agent was told an error), `silent` or `crash`."""
    try:
        text, error = play(url, case)  # type: ignore[operator]
    except Exception as problem:  # a crash is what is looked for
        sys.stderr.write(f"{case.name}: {type(problem).__name__}: {str(problem)[:200]!a}\n")
        return "crash"
    if re.search(case.right, f"{error}\n{text}"):
        return "right"
    return "said" if error else "silent"


def main() -> int:
    """Play all, print a line each and the totals."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--stock", action="store_true", help="play stock BrowserGym beside ours")
    parser.add_argument("--only", default="", help="cases whose name contains this")
    args = parser.parse_args()
    handler = functools.partial(_Quiet, directory=tempfile.mkdtemp(prefix="webrl-strangers-"))
    server = http.server.ThreadingHTTPServer(("127.0.0.1", 0), handler)
    threading.Thread(target=server.serve_forever, daemon=True).start()
    folder = Path(handler.keywords["directory"])
    (folder / "other.html").write_text("<!doctype html><p>the other page</p>", encoding="utf-8")
    if args.stock:
        from stock_browsergym import keep_sessions, patch_browser

        patch_browser()
        keep_sessions()
    counts: Counter[str] = Counter()
    for number, case in enumerate(c for c in cases() if args.only in c.name):
        name = f"{number}.html"
        (folder / name).write_text(f"<!doctype html><meta charset=utf-8>{case.page}", encoding="utf-8")
        url = f"http://127.0.0.1:{server.server_port}/{name}"
        mine = verdict(ours, url, case)
        theirs = verdict(stock, url, case) if args.stock else "-"
        counts.update(["cases", mine, *(["better_than_stock"] if mine == "right" != theirs and args.stock else [])])
        print(f"{mine:7} {theirs:7} {case.name}  {case.report}", flush=True)
    server.shutdown()
    print(json.dumps({key: counts[key] for key in ("cases", "right", "silent", "crash", "better_than_stock")}))
    return 0 if counts["silent"] == counts["crash"] == 0 else 1


class _Quiet(http.server.SimpleHTTPRequestHandler):
    is_bare = False

    def do_GET(self) -> None:
        if self.path == "/stuck":
            time.sleep(20)
        if self.path == "/parts":
            self.send_response(200)
            self.end_headers()
            for part in (b"a", b"b", b"c"):
                time.sleep(0.2)
                self.wfile.write(part)
            return
        if self.path.startswith("/status/"):
            self.send_response(int(self.path.removeprefix("/status/")))
            self.end_headers()
            return
        for place, wait_s in (("/slow/", 1), ("/soon/", 0.3)):
            if self.path.startswith(place):
                time.sleep(wait_s)
                self.path = self.path[len(place) - 1 :]
        self.is_bare = self.path.startswith("/bare/")
        self.path = self.path.removeprefix("/bare")
        super().do_GET()

    def end_headers(self) -> None:
        if self.is_bare:
            self.send_header("Content-Security-Policy", "sandbox")
        super().end_headers()

    def log_message(self, *_: object) -> None:
        pass


if __name__ == "__main__":
    sys.exit(main())
