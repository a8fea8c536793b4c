"""Two environments of one browser share nothing that a page can keep, and a reset leaves nothing of it behind."""

import json
from collections import Counter

import pytest
from browsers import open_env
from rollouts_builders import answers, at, bid_of, in_browser, reply, serve

pytestmark = pytest.mark.browser

PAGE = """<title>t</title><input aria-label=field><a href=/file download>get</a>
<button onclick="alert('told ' + document.querySelector('input').value)">tell</button><script>
window.heard = null;
new BroadcastChannel('k').onmessage = (event) => { heard = event.data };
const ask = (word) => new Promise((resolve) => {
  const { port } = new SharedWorker('/shared');
  port.onmessage = ({ data }) => resolve(data);
  port.postMessage(word);
});
const open = () => new Promise((resolve, reject) => {
  const opening = indexedDB.open('k', 1);
  opening.onsuccess = () => { opening.result.close(); resolve(); };
  opening.onerror = reject;
});</script>"""
SHARED = """let kept = null;
onconnect = ({ ports: [port] }) => {
  port.onmessage = ({ data }) => { kept = data === '?' ? kept : data; port.postMessage(kept); };
};"""
KEPT = {
    # What writes, what reads it, and what is read where nothing was written.
    "cookie": ("document.cookie = 'k=v; max-age=600'", "document.cookie", ""),
    "localStorage": ("localStorage.setItem('k', 'v')", "localStorage.getItem('k')", None),
    "sessionStorage": ("sessionStorage.setItem('k', 'v')", "sessionStorage.getItem('k')", None),
    "IndexedDB": ("open()", "indexedDB.databases().then((found) => found.length)", 0),
    "cache storage": (
        "caches.open('k').then((cache) => cache.put('/x', new Response('v')))",
        "caches.keys().then((keys) => keys.length)",
        0,
    ),
    "service worker": (
        "navigator.serviceWorker.register('/worker').then(() => navigator.serviceWorker.ready).then(() => 1)",
        "navigator.serviceWorker.getRegistrations().then((found) => found.length)",
        0,
    ),
    "shared worker": ("ask('v')", "ask('?')", None),
    "broadcast": ("new BroadcastChannel('k').postMessage('v')", "heard", None),
    "name of the window": ("window.name = 'v'", "window.name", ""),
}


def beside(play, **pages):
    """Run `play(env, neighbour, url)` with two environments of one browser that have been reset to the page."""

    async def both(env):
        served = {"/": PAGE} | {f"/{name}": page for name, page in pages.items()}
        async with serve(served) as url, open_env(env._config) as neighbour:
            for each in (env, neighbour):
                await each.reset(at(url + "/"))
            return await play(env, neighbour, url + "/")

    return in_browser(both)


@pytest.mark.parametrize("kind", KEPT)
def test_what_a_page_keeps_is_its_environments_alone_until_the_reset(kind):
    write, read, nothing = KEPT[kind]

    async def play(env, neighbour, url):
        await env.tab.evaluate_in_page(f"Promise.resolve({write}).then(() => null)")
        await env.step("noop(100)")
        found = [await each.tab.evaluate_in_page(read) for each in (env, neighbour)]
        await env.reset(at(url))
        return [*found, await env.tab.evaluate_in_page(read)]

    own, neighbours, after = beside(
        play,
        worker=answers("onfetch = () => {};", kind="text/javascript"),
        shared=answers(SHARED, kind="text/javascript"),
    )
    assert own != nothing
    assert neighbours == nothing
    assert after == nothing


def test_permissions_that_a_page_asks_for_change_nothing_for_others_nor_after_the_reset():
    names = json.dumps(["geolocation", "notifications", "clipboard-read", "camera", "persistent-storage"])
    read = f"Promise.all({names}.map((name) => navigator.permissions.query({{ name }}).then(({{ state }}) => state)))"
    ask = "Notification.requestPermission().then(() => navigator.storage.persist()).then(() => null)"

    async def play(env, neighbour, url):
        before = await neighbour.tab.evaluate_in_page(read)
        await env.tab.evaluate_in_page(ask)
        after = await neighbour.tab.evaluate_in_page(read)
        await env.reset(at(url))
        return before, after, await env.tab.evaluate_in_page(read)

    before, after, own = beside(play)
    assert before == after == own
    assert "granted" not in before[:4]


def test_files_are_cached_for_one_environment_and_one_episode():
    asked = Counter()

    async def asset(path, writer):
        asked[path] += 1
        await reply(writer, "window.loaded = true", headers="Cache-Control: max-age=600\r\n", kind="text/javascript")

    async def play(env):
        pages = {"/": "<title>t</title><script src=/a.js></script>", "/a.js": asset}
        async with serve(pages) as url, open_env(env._config) as neighbour:
            await env.reset(at(url + "/"))
            await env.step(f"goto('{url}/?again')")
            counts = [asked["/a.js"]]
            for each in (neighbour, env):
                await each.reset(at(url + "/"))
                counts.append(asked["/a.js"])
            return counts

    assert in_browser(play) == [1, 2, 3]


def test_the_focus_dialogs_and_downloads_are_an_environments_own():
    attached = "Content-Disposition: attachment; filename=data.bin\r\n"

    async def play(env, neighbour, url):
        text = (await env.step("noop(0)")).observation.text
        field, tell, get = (
            bid_of(text, role, name) for role, name in (("textbox", "field"), ("button", "tell"), ("link", "get"))
        )
        for each in (env, neighbour):
            await each.step(f"click('{field}')")
        # Both have the focus, and keys go to the page of the environment that presses them.
        await env.step("keyboard_type('mine')")
        await neighbour.step("keyboard_type('theirs')")
        focused = [await each.tab.evaluate_in_page("document.hasFocus()") for each in (env, neighbour)]
        told = (await env.step(f"click('{tell}')")).observation.text
        got = (await env.step(f"click('{get}')")).observation.text
        for _ in range(20):  # Playwright tells of a download a little later
            got += (await env.step("noop(100)")).observation.text if "download" not in got else ""
        next_to_it = (await neighbour.step("noop(100)")).observation.text
        return focused, told, got, next_to_it, (await env.reset(at(url))).text

    focused, told, got, next_to_it, after = beside(play, file=answers("data", headers=attached, kind="text/plain"))
    assert focused == [True, True]
    assert "alert box 'told mine', closed" in told
    assert "download 'data.bin', refused" in got
    assert "value='theirs'" in next_to_it
    for text in (next_to_it, after):
        assert "box" not in text.replace("textbox", "")
        assert "download" not in text
    assert "mine" not in after
