"""Stock BrowserGym on MiniWoB, as it comes: what our environment is held against (fidelity test, benchmark).

`python benchmarks/stock_browsergym.py record --pages a,b --seed 0 --steps 3` prints one JSON line a page: goal and, for
reset and every scripted action, observation text, reward and done flag.
`python benchmarks/stock_browsergym.py digest --pages a,http://b --actions "click('13')"` prints one JSON line a page:
everything that the whole observations of reset and these actions say, in comparable form.
`python benchmarks/stock_browsergym.py loop --pages a,b --seconds 20` runs the null-policy loop and prints its steps.
Only the browser's path is ours (BrowserGym has no setting for its chat's browser), and what newer Chromium needs to
keep a page's size (`keep_sessions`); the rest is its defaults.
"""

from __future__ import annotations

import argparse
import functools
import json
import os
import random
import re
import time
from base64 import b64encode
from collections.abc import Iterator
from typing import Any

from webrl.rollouts.browser import find_chromium
from webrl.rollouts.observe import as_newest
from webrl.rollouts.sites import miniwob_root

TEXT_OPTIONS = {
    "ignored_roles": ["LineBreak", "InlineTextBox"],
    "ignored_properties": ("editable", "readonly", "level", "settable", "multiline", "invalid", "focusable", "url"),
}
"""BrowserGym's defaults without what only recent Chromium adds."""

_TIMEOUT_MS = 60_000
"""Longest wait for a page to load: MiniWoB's 5 s pass on a busy machine. (Actions have their own 0.5 s.)"""


def patch_browser() -> None:
    """Make every Chromium that BrowserGym launches the one that `find_chromium` finds."""
    import playwright.sync_api

    launch = playwright.sync_api.BrowserType.launch

    @functools.wraps(launch)
    def launch_ours(self: Any, **options: Any) -> Any:
        return launch(self, **({"executable_path": str(find_chromium())} | options))

    playwright.sync_api.BrowserType.launch = launch_ours  # type: ignore[method-assign]


def keep_sessions() -> None:
    """Let BrowserGym's DevTools sessions end with their page.

    Chromium 156 gives up a page's viewport when one of its sessions is detached, which BrowserGym does after each part
    of an observation: from the first one on its pages are 800 x 600. Ours keeps one session a page.
    """
    import playwright.sync_api

    playwright.sync_api.CDPSession.detach = lambda _: None  # type: ignore[method-assign]


def make_env(page: str) -> Any:
    """A stock environment of one MiniWoB page, or of any page by its address."""
    os.environ["MINIWOB_URL"] = (miniwob_root() / "miniwob").as_uri() + "/"
    import browsergym.miniwob  # noqa: F401
    import gymnasium

    return gymnasium.make(f"browsergym/{site_of(page)}", **options_of(page), timeout=_TIMEOUT_MS).unwrapped


def site_of(page: str) -> str:
    """The task of a page, by its name or address."""
    return "openended" if page.startswith("http") else f"miniwob.{page}"


def options_of(page: str) -> dict[str, Any]:
    """What an environment of the page is made with."""
    address = {"task_kwargs": {"start_url": page, "goal": "look around"}} if page.startswith("http") else {}
    return {"action_mapping": _coordinates_too(), **address}


def inline_pictures(page: str) -> str:
    """JavaScript that writes the pictures of a page's own style sheets into them, so that they are there at once.

    A click may bring up one that was not shown before. Until it is loaded it has no size, so that what the second click
    of a double click hits would depend on which of the two comes first.
    """
    folder = miniwob_root() / "miniwob"
    found = re.findall(r"""url\(["']?([^"')]+)""", (folder / f"{page}.html").read_text(encoding="utf-8"))
    files = {address: folder / address for address in found if (folder / address).is_file()}
    pictures = {
        name: f"data:image/{file.suffix[1:]};base64,{b64encode(file.read_bytes()).decode()}"
        for name, file in files.items()
    }
    return f"""() => {{
      const pictures = {json.dumps(pictures)};
      const inline = (all, name) => `url(${{pictures[name] ?? name}})`;
      for (const style of document.querySelectorAll('style')) {{
        const text = style.textContent.replace(/url\\(["']?([^"')]+)["']?\\)/g, inline);
        if (text !== style.textContent) style.textContent = text;
      }}
    }}"""


@functools.cache
def _coordinates_too() -> Any:
    from browsergym.core.action.highlevel import HighLevelActionSet

    return HighLevelActionSet(["chat", "infeas", "bid", "nav", "tab", "coord"]).to_python_code


def text_of(observation: dict[str, Any]) -> str:
    """The observation's accessibility tree as text, in the newest Chromium's words."""
    from browsergym.utils.obs import flatten_axtree_to_str

    as_newest(observation["axtree_object"]["nodes"])
    text: str = flatten_axtree_to_str(observation["axtree_object"], **TEXT_OPTIONS)
    return text


def digest(observation: dict[str, Any], outcome: tuple[Any, ...], info: dict[str, Any]) -> dict[str, Any]:
    """What an observation says, without times and paths of files, and of which types and shapes it is."""
    from browsergym.utils.obs import flatten_axtree_to_str, flatten_dom_to_str

    properties = observation["extra_element_properties"]
    everything = {"with_visible": True, "with_clickable": True, "with_center_coords": True, "with_som": True}
    same = ("goal", "goal_object", "focused_element_bid", "last_action", "last_action_error", "open_pages_titles")
    return {
        "types": {key: [type(value).__name__, _shape(value)] for key, value in observation.items()},
        "axtree": flatten_axtree_to_str(observation["axtree_object"], extra_properties=properties, **everything),
        "dom": flatten_dom_to_str(observation["dom_object"], extra_properties=properties, **everything),
        "elements": properties,
        "chat": [[message["role"], message["message"], sorted(message)] for message in observation["chat_messages"]],
        "tabs": [list(observation["open_pages_urls"]), observation["active_page_index"].tolist()],
        "url": observation["url"],
        **{key: observation[key] for key in same},
        "outcome": [float(value) for value in outcome],
        "info": {key: sorted(value) if isinstance(value, dict) else [] for key, value in info.items()},
    }


def _shape(value: Any) -> Any:
    if hasattr(value, "dtype"):
        return [str(value.dtype), list(value.shape)]
    return [type(part).__name__ for part in value] if isinstance(value, tuple) else []


def digests(env: Any, actions: list[str], seed: int) -> list[dict[str, Any]]:
    """Digests of reset and of these actions, one after the other."""
    found = []
    try:
        observation, info = env.reset(seed=seed)
        found.append(digest(observation, (), info))
        for action in actions:
            observation, *outcome, info = env.step(action)
            found.append(digest(observation, tuple(outcome), info))
    finally:
        env.close()
    return found


def scripted_action(text: str, rng: random.Random) -> str:
    """An action that fits a random element of the page; the same for the same text and generator state."""
    elements = re.findall(r"\[([a-zA-Z]*\d+)\] (\w+)", text)
    if not elements:
        return f"mouse_click({rng.randrange(10, 230)}, {rng.randrange(80, 300)})"
    bid, role = rng.choice(elements)
    if role in ("textbox", "searchbox", "spinbutton"):
        return rng.choice([f"fill('{bid}', 'alpha 7')", f"press('{bid}', 'a')", f"click('{bid}')"])
    if role in ("combobox", "listbox"):
        labels = re.findall(r"option '([^']+)'", text)
        return f"select_option('{bid}', {rng.choice(labels)!r})" if labels else f"click('{bid}')"
    return rng.choice([f"click('{bid}')"] * 3 + [f"hover('{bid}')", f"dblclick('{bid}')"])


def record(page: str, seed: int, num_steps: int) -> dict[str, Any]:
    """Play scripted actions on one page; everything that has to be the same in our environment."""
    env = make_env(page)
    try:
        observation, _ = env.reset(seed=seed)
        prepared = inline_pictures(page)
        env.page.evaluate(prepared)
        rng = random.Random(f"{page}:{seed}")
        steps = [{"action": "", "text": text_of(observation), "reward": 0.0, "done": False, "error": ""}]
        for _ in range(num_steps):
            action = scripted_action(steps[-1]["text"], rng)
            observation, reward, done, _, _ = env.step(action)
            error = observation["last_action_error"].splitlines()[:1]
            result = {"text": text_of(observation), "reward": float(reward), "done": bool(done)}
            steps.append({"action": action, **result, "error": "".join(error)})
            if done:
                break
        return {"page": page, "seed": seed, "prepared": prepared, "goal": observation["goal"], "steps": steps}
    finally:
        env.close()


def null_loop(pages: list[str], seconds: float) -> Iterator[int]:
    """The null policy: a scripted click a step, episodes of at most ten steps; yields steps done so far."""
    start = time.perf_counter()
    total = 0
    rng = random.Random(0)
    while time.perf_counter() - start < seconds:
        env = make_env(rng.choice(pages))
        observation, _ = env.reset(seed=rng.randrange(10**6))
        for _ in range(10):
            observation, _, done, _, _ = env.step(scripted_action(text_of(observation), rng))
            total += 1
            yield total
            if done or time.perf_counter() - start >= seconds:
                break
        env.close()


def main() -> None:
    """Command line; see the module docstring."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("mode", choices=["record", "digest", "loop"])
    parser.add_argument("--pages", required=True)
    parser.add_argument("--seed", type=int, default=0)
    parser.add_argument("--actions", nargs="*", default=[])
    parser.add_argument("--steps", type=int, default=3)
    parser.add_argument("--seconds", type=float, default=20)
    options = parser.parse_args()
    pages = options.pages.split(",")
    patch_browser()
    if options.mode != "loop":  # what is timed is stock's own way
        keep_sessions()
    if options.mode == "record":
        for page in pages:
            print(json.dumps(record(page, options.seed, options.steps)), flush=True)
    elif options.mode == "digest":
        for page in pages:
            print(json.dumps(digests(make_env(page), options.actions, options.seed)), flush=True)
    else:
        start = time.perf_counter()
        steps = max(null_loop(pages, options.seconds))
        print(json.dumps({"steps": steps, "seconds": time.perf_counter() - start}), flush=True)


if __name__ == "__main__":
    main()
