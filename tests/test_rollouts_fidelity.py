"""Stock BrowserGym and ours, side by side: same goal, same elements and bids, same reward and done.

Stock runs in a process of its own (`benchmarks/stock_browsergym.py`) and writes down everything that has to be the
same, step by step; ours replays the same actions.
"""

import asyncio
import difflib
import json
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import pytest
from processes import python
from rollouts_builders import in_browser, miniwob

from webrl.rollouts.env import BrowserEnv

ROOT = Path(__file__).parent.parent
# Pages on which two runs of stock BrowserGym differ as well: prices, cursors and pictures that move with the clock.
CLOCKED = {
    "stock-market": "the price changes on its own, four times a second",
    "terminal": "the cursor blinks",
    "visual-addition": "BrowserGym marks it as nondeterministic",
    "click-pie": "BrowserGym marks it as nondeterministic: the menu's animation",
    "click-pie-nodelay": "BrowserGym marks it as nondeterministic",
}


def stock_record(pages: list[str], seed: int, num_steps: int) -> list[dict]:
    script = ROOT / "benchmarks" / "stock_browsergym.py"
    arguments = ["record", "--pages", ",".join(pages), "--seed", str(seed), "--steps", str(num_steps)]
    done = python(script, *arguments, PYTHONPATH=str(ROOT))
    return [json.loads(line) for line in done.stdout.splitlines()]


async def differences(env: BrowserEnv, record: dict) -> list[str]:
    """What differs when ours plays what stock has played."""
    observation = await env.reset(miniwob(record["page"], record["seed"]))
    await env.page.evaluate(record["prepared"])
    found = []
    if observation.goal != record["goal"]:
        found.append(f"goal: stock {record['goal']!r}, ours {observation.goal!r}")
    text, reward, done, error = observation.text, 0.0, False, ""
    for step in record["steps"]:
        if step["action"]:
            result = await env.step(step["action"])
            text, reward, done, error = result.observation.text, result.reward, result.done, result.error
        # What stock gave up after 0.5 s on a busy machine has not happened there: nothing to compare from here on.
        if "Timeout 500ms" in step["error"] and not error:
            break
        if (reward, done) != (step["reward"], step["done"]):
            found.append(f"{step['action']}: stock {step['reward'], step['done']}, ours {reward, done}")
        if text != step["text"]:
            lines = difflib.unified_diff(
                step["text"].splitlines(), text.splitlines(), "stock", "ours", lineterm="", n=0
            )
            found.append(f"{step['action'] or 'reset'}:\n" + "\n".join(lines))
    return found


def compare(pages: list[str], seed: int, num_steps: int) -> dict[str, list[str]]:
    """What differs on each page that differs. Stock mostly waits: three processes of it at a time, ahead of ours."""
    parts = [pages[start : start + 16] for start in range(0, len(pages), 16)]

    async def play(env):
        found = {}
        loop = asyncio.get_running_loop()
        with ThreadPoolExecutor(3) as pool:
            ahead = [loop.run_in_executor(pool, stock_record, part, seed, num_steps) for part in parts]
            for records in ahead:
                for record in await records:
                    found[record["page"]] = await differences(env, record)
        return found

    found = in_browser(play)
    assert set(found) == set(pages)
    return {page: texts for page, texts in found.items() if texts}


@pytest.mark.browser
@pytest.mark.browsergym
@pytest.mark.slow
@pytest.mark.timeout(3600)
def test_all_pages_are_the_same_as_in_stock_browsergym_but_for_those_that_follow_the_clock():
    import browsergym.miniwob.all as stock

    names = {task.subdomain for task in vars(stock).values() if hasattr(task, "subdomain")}
    assert len(names) == 125
    found = compare(sorted(names), seed=1, num_steps=3)
    print("\n".join(f"{page}: {text}" for page, texts in found.items() for text in texts))
    assert set(found) <= set(CLOCKED), {page: texts for page, texts in found.items() if page not in CLOCKED}
