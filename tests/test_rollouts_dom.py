"""Observation `dom`: the elements and bids of the accessibility tree, in whatever Chromium runs the test."""

import json

import pytest
from rollouts_builders import at, in_browser, miniwob, serve

from webrl.rollouts.observe import observe_axtree
from webrl.rollouts.probe import ALL, differing, foreign_elements

PAGES = [
    "book-flight",
    "choose-date",
    "choose-list",
    "click-button",
    "click-checkboxes",
    "click-collapsible",
    "click-color",
    "click-dialog",
    "click-menu",
    "click-option",
    "click-scroll-list",
    "click-tab-2",
    "click-widget",
    "email-inbox",
    "enter-date",
    "enter-password",
    "enter-time",
    "form-sequence-3",
    "guess-number",
    "login-user",
    "multi-layouts",
    "navigate-tree",
    "read-table",
    "search-engine",
    "social-media",
    "use-autocomplete",
    "use-slider",
    "use-spinner",
]
CONTROLS = [
    '<input><input value="it\'s" placeholder="p"><label>Name <input value="x" required></label><input type="wrong">',
    '<input type="search" value="q" title="t"><input type="email" value="a@b.c" readonly><input type="tel" disabled>',
    '<input type="password" value="secret"><label for="a">P</label><input id="a" type="password">',
    '<input type="number" value="7" min="1"><label>N <input type="number" value="1.5" max="9" step="0.1"></label>',
    '<input type="range" value="7" max="9"><label>R <input type="range" disabled></label>',
    '<input type="color" value="#123456"><label>C <input type="color" list="d"></label>',
    '<input type="file"><input type="file" multiple required><label>F <input type="file"></label>',
    '<input type="checkbox" checked><label><input type="checkbox" required> c</label>',
    '<input type="checkbox" role="switch"><input type="checkbox" title="t" disabled>',
    '<label><input type="radio" name="r" required> r</label><input type="radio" name="r" checked disabled>',
    '<input type="button" value="B"><input type="submit"><input type="reset" value="R">',
    '<label>S <input type="submit"></label><input type="submit" value="V" disabled><input type="button">',
    '<input type="image" alt="I" src="data:,">',
    '<input list="d" value="x"><input type="url" list="d"><datalist id="d"><option value="5">five</datalist>',
    '<input type="date"><label>D <input type="date" value="2024-03-05" min="2024-01-01" max="2024-12-31"></label>',
    '<input type="date" disabled><input type="date" readonly value="2024-03-05"><input type="date" required>',
    '<input type="time" value="13:05:07"><input type="time" step="0.001"><label>T <input type="time"></label>',
    '<input type="datetime-local" value="2024-03-05T13:05"><input type="datetime-local" step="1">',
    '<input type="month" value="2024-03"><input type="month"><input type="week" value="2024-W09"><input type="week">',
    '<textarea placeholder="p"></textarea><textarea>one\ntwo\n\n three </textarea>',
    "<label>T <textarea disabled>x</textarea></label>",
    "<select><option>a<option selected>b</select><select disabled><option>a</select>",
    "<select><option disabled>a</select><select><option value=1></select>",
    '<label>S <select required><option value="">none<option label="L">x</select></label><select></select>',
    '<select><option>a<optgroup label="G"><option>b</optgroup></select>',
    '<select><optgroup label="H" disabled><option>c</optgroup></select>',
    '<select multiple><option>a<option selected>b</select><select size="2"><optgroup label="G"><option>a</select>',
    '<meter value="3" max="10">three</meter><meter value="0.5" min="-1"></meter><label>M <meter></meter></label>',
    '<progress value="3" max="10">p</progress><progress></progress><label>P <progress value="0.25"></progress></label>',
    "<details><summary>s</summary>x <a href='#'>y</a></details><details open><summary>s</summary><p>x</p></details>",
    "<details><a href='#'>x</a></details><details open>x</details>",
    "<audio controls></audio><audio></audio>",
    "<video></video><video controls></video>",
    "<button>b</button><button disabled>b <i>c</i></button><button title='t'></button>",
    "<button aria-expanded='true' aria-controls='e'>h</button><p id=e>x</p><button aria-pressed='false'>i</button>",
    "<fieldset disabled><legend>L</legend><input><button>b</button><select><option>a</select></fieldset>",
    "<output>5</output><dialog open>d</dialog><form><input></form><form aria-label='f'><input></form>",
    "<div contenteditable>c</div><div contenteditable role='textbox'>d</div><div role='combobox' tabindex='0'>e</div>",
    "<ul><li>a<ol><li>b</ol></ul><dl><dt>c<dd>d</dl><menu><li role='menuitem'>e</menu>",
    "<table><tr><td>1<td>2</table><table><tr><th>a<td>1</table><table role='presentation'><tr><td>1</table>",
    "<main><header>a</header><footer>b</footer></main><header>c</header><section>d</section><section aria-label='e'>f",
    "<img alt='i' src='data:,'><img alt='' src='data:,'><img src='data:,'><figure>x<figcaption>f</figcaption></figure>",
    "<p><abbr title='t'>a</abbr><q>b</q><s>c</s><dfn>d</dfn><ruby>e<rt>f</rt></ruby></p>",
    "<pre>g\n h</pre><object>i</object><iframe srcdoc='<p>j'></iframe>",
    "<div role='tree'><div role='treeitem'>a</div></div><div role='listbox'><div role='option'>b</div></div>",
    "<div role='grid'><div role='row'><div role='gridcell'>a</div></div></div>",
    "<div role='slider' aria-valuenow='3' tabindex='0'></div><div role='switch' aria-checked='true'>s</div>",
]


async def tree_of(env):
    hidden = json.dumps(list(env._site.hidden_ids))
    seen = await env.tab.evaluate(f"__webrl.mark('', {hidden}, true)")
    return await observe_axtree(env.tab, seen["frames"], frozenset(seen["hidden"]))


def elements(text):
    """Lines with a bid, without indentation."""
    return [line.strip() for line in text.splitlines() if line.strip().startswith("[")]


async def is_read_by_us(env):
    return not (await env.tab.evaluate(f"__webrl.extract({json.dumps(list(env._site.hidden_ids))})"))["foreign"]


@pytest.mark.browser
def test_task_pages_have_the_elements_and_bids_of_the_tree_and_plain_ones_are_read_by_our_own_extractor():
    async def play(env):
        for page in PAGES:
            own = (await env.reset(miniwob(page, 2))).text
            assert elements(own) == elements(await tree_of(env)), page
            if await is_read_by_us(env):
                by_us.append(page)

    by_us = []
    in_browser(play, observation="dom", step_timeout_s=120)
    assert {"click-button", "click-checkboxes", "email-inbox", "login-user", "navigate-tree"} <= set(by_us)
    assert len(by_us) > len(PAGES) / 3  # fewest on the oldest versions: their lists, tables and tabs look different


@pytest.mark.browser
def test_controls_of_all_kinds_have_the_elements_and_bids_of_the_tree():
    pages = {f"/{i}": f"<!doctype html><title>t</title>{html}" for i, html in enumerate(CONTROLS)}

    async def play(env):
        async with serve(pages) as url:
            await env.reset(at(url))
            for path, html in pages.items():
                own = (await env.step(f"goto('{url}{path}')")).observation.text
                assert elements(own) == elements(await tree_of(env)), html

    in_browser(play, observation="dom", step_timeout_s=120)


@pytest.mark.browser
def test_what_is_done_to_a_control_shows_as_in_the_tree(tmp_path):
    page = """<title>t</title><input type="date"><input type="file" multiple><input type="range">
        <select multiple><option>a<option>b</select><details><summary>more</summary><button>in</button></details>"""
    (tmp_path / "a.txt").write_text("a")

    async def play(env):
        async with serve({"/": page}) as url:
            text = (await env.reset(at(url + "/"))).text
            bids = {line.split()[1]: line.split("]")[0][1:] for line in elements(text)}
            steps = {
                f"focus('{bids['Date']}')": "spinbutton 'Month' value=0, focused",
                "keyboard_press('ArrowRight')": "spinbutton 'Day' value=0, focused",
                f"fill('{bids['Date']}', '2024-03-05')": "Date '' value='2024-03-05'",
                f"select_option('{bids['listbox']}', ['a', 'b'])": "option 'a', selected=True",
                f"press('{bids['slider']}', 'ArrowRight')": "slider '' value=51, focused",
                f"click('{bids['DisclosureTriangle']}')": "button 'in'",
            }
            for step, shown in steps.items():
                result = await env.step(step)
                assert not result.error, step
                assert shown in result.observation.text
                assert elements(result.observation.text) == elements(await tree_of(env)), step
            await env.page.set_input_files("input[type=file]", [tmp_path / "a.txt"])
            result = await env.step("noop(0)")
            assert elements(result.observation.text) == elements(await tree_of(env))
            return result.observation.text

    assert "value='a.txt'" in in_browser(play, observation="dom", step_timeout_s=120)


@pytest.mark.browser
def test_a_page_with_a_foreign_element_anywhere_is_read_from_the_tree():
    pages = {
        "/": "<title>outer</title><button>one</button><iframe src='/inner'></iframe>",
        "/inner": "<title>inner</title><p>x</p><input type='date'>",
        "/shadow": "<title>t</title><div id=a></div><script>a.attachShadow({mode: 'open'}).innerHTML = "
        "'<input type=time>'</script>",
        "/plain": "<title>plain</title><button>one</button><p hidden><input type='date'></p>",
    }

    async def play(env):
        async with serve(pages) as url:
            for path in ("/", "/shadow", "/plain"):
                own = (await env.reset(at(url + path))).text
                assert own == await tree_of(env), path
                by_us.append(await is_read_by_us(env))
            env._browser.foreign_elements = "button"  # as if this Chromium showed buttons in a way of its own
            await env.close()
            own = (await env.reset(at(url + "/plain"))).text
            by_us.append(await is_read_by_us(env))
            assert own == await tree_of(env)
            assert "button 'one'" in own

    by_us = []
    in_browser(play, own_browser=True, observation="dom", step_timeout_s=120)
    assert by_us == [True, False, True, False]  # the first has it in a frame: its own document is ours


@pytest.mark.browser
def test_the_browser_is_learnt_once():
    async def play(env):
        first = await foreign_elements(env._browser)
        env._browser.foreign_elements = "marker"
        return first, await foreign_elements(env._browser), len(env._browser._browser.contexts)

    first, second, contexts = in_browser(play, own_browser=True)
    assert first != ALL
    assert "object" in first  # its content is shown in a way that our extractor does not follow
    assert "h1" not in first
    assert (second, contexts) == ("marker", 0)


def test_groups_that_are_not_the_same_line_by_line_are_foreign():
    root, first, second, third = "RootWebArea 't'", "\t[1] group 'a, b'", "\t[3] group 'c'", "\t[4] group 'd'"
    tree = [root, first, "\t\t[2] link 'x'", second, "\t\tStaticText 'y'", third]
    ours = [root, first, "\t\t[2] link 'x'", second, "\t\t[9] image ''", "\t\tStaticText 'y'"]
    assert differing(tree, tree) == ""
    assert differing(tree, ours) == "c, d"
    assert differing(tree, []) == "a, b, c, d"
    assert differing([root], ours) == ALL
