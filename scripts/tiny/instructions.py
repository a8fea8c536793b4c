"""Instructions about a MiniWoB page beyond its own, for the shipped models: proposed, checked, accomplished or not.

API: `propose(expert, observation, rng)`, `is_valid(expert, instruction, observation)`, `accomplished(expert, …)`;
`proposed_tasks(recorded, seed)`. The experts (`webrl_site/experts.py`) know the wordings and their goals;
`draws.yaml` says how the slots of new ones are drawn, with the functions of `DRAWS`.
"""

from __future__ import annotations

import datetime
import random
import string
from collections.abc import Callable, Iterable, Sequence
from dataclasses import replace
from functools import cache
from pathlib import Path
from typing import Any

import yaml

from webrl.rollouts.actions import Action, read_any
from webrl.types import Task, Trajectory
from webrl_site.experts import (
    ATTRIBUTES,
    EVERYTHING,
    EXCEPT,
    Expert,
    Goal,
    Intent,
    Page,
    Slots,
    detail_of,
    experts,
    holds,
    read_letters,
    read_page,
    read_table,
    read_words,
    selected_in,
)

_OWN_WORDING = 0.6
_CLICKS = frozenset({"click", "dblclick"})
_TOUCHES = frozenset({"click", "dblclick", "fill", "focus", "clear", "press", "hover"})
_CLICK_KEYS = frozenset({"Enter", "Space", " "})
_FIELDS = ("textbox", "searchbox", "Date", "InputTime")
_ONSETS = (
    "b", "br", "c", "d", "f", "g", "h", "j", "k", "l", "m", "n", "p", "r", "s", "t", "tr", "v", "w", "z", "st", "ch",
)  # fmt: skip
_VOWELS = ("a", "e", "i", "o", "u", "ia", "ee", "ie")
_CODAS = ("", "", "n", "l", "r", "s", "nda", "tta", "lyn", "na", "ck", "th", "ra", "lie")


def propose(expert: Expert, observation: str, rng: random.Random, *, own_share: float = 0.0) -> str | None:
    """Return a new feasible instruction for this page; None if it offers nothing.

    Args:
        own_share: probability of the page's own intent in its own words, with another target.
    """
    page, intents = read_page(observation), expert.intents
    own = rng.random() < own_share
    # The page's own intent is as likely as all others together.
    weights = [max(1, len(intents) - 1), *[1] * (len(intents) - 1)]
    intent = intents[0] if own else rng.choices(intents, weights)[0]
    slots: Slots = {}
    for name, ((draw, options),) in ((name, call.items()) for name, call in _draws().get(intent.name, {}).items()):
        if (value := DRAWS[draw](page, rng, **options)) is None:
            return None
        slots[name] = value
    if not _is_feasible(intent, slots, page):
        return None
    others = intent.templates[1:]
    wording = rng.choice(others) if others and not own and rng.random() > _OWN_WORDING else intent.templates[0]
    return wording.format(**slots)


@cache
def _draws() -> dict[str, dict[str, dict[str, Any]]]:
    """By intent and slot: a function of `DRAWS` with its options."""
    found: dict[str, dict[str, dict[str, Any]]] = yaml.safe_load(Path(__file__).with_name("draws.yaml").read_text())
    return found


def proposed_tasks(recorded: Iterable[Trajectory], seed: int) -> list[Task]:
    """The recorded pages again, each with an instruction that is proposed for it."""
    tasks = []
    for trajectory in recorded:
        rng = random.Random(f"{seed}:{trajectory.task.task_id}")
        instruction = propose(experts()[trajectory.task.site], trajectory.steps[0].observation, rng)
        if instruction:
            task_id = f"{trajectory.task.task_id}.proposed"
            tasks.append(replace(trajectory.task, task_id=task_id, instruction=instruction))
    return tasks


def is_valid(expert: Expert, instruction: str, observation: str) -> bool:
    """Return whether an instruction is understood and feasible, as far as the first page shows."""
    found = expert.match(instruction)
    return found is not None and _is_feasible(*found, read_page(observation))


def _is_feasible(intent: Intent, slots: Slots, page: Page) -> bool:
    if intent.goal is None:  # a contact: only the contact shown first is known to exist; others are on later pages
        return slots["attribute"] in ATTRIBUTES and ("name" not in slots or bool(page.named(slots["name"], "heading")))
    return intent.goal(slots, page) is not None


def accomplished(
    expert: Expert, instruction: str, actions: Sequence[str], observations: Sequence[str], final_observation: str
) -> bool:
    """Return whether the actions did exactly what the instruction says, independent of the page's reward.

    Args:
        instruction: The episode's instruction.
        actions: One per observation; unreadable ones count as nothing done.
        observations: The page before each action, the initial page first.
        final_observation: The page after the last action.
    """
    found = expert.match(instruction)
    if found is None or len(actions) != len(observations):
        return False
    kept = [(a, read_page(o)) for a, o in zip(actions, observations, strict=True)]
    if expert.popup:
        kept = [(a, p) for a, p in kept if not p.named("Cancel", "button")]
    (intent, slots), final = found, read_page(final_observation)
    done, pages = [a for a, _ in kept], [p for _, p in kept]
    if intent.goal is None:
        return _reached_contact(slots, pages, done)
    goal = intent.goal(slots, pages[0] if pages else final)
    return goal is not None and _reached(goal, pages, done, final)


def _reached(goal: Goal, pages: Sequence[Page], actions: Sequence[str], final: Page) -> bool:
    """Return whether the actions did exactly what the goal requires; `pages[i]` is the page before `actions[i]`."""
    commits: list[int] = []
    for i, text in enumerate(actions):
        action = read_any(text)
        if not _counts(goal, pages[i], action):
            continue
        if commits and action is not None and action == read_any(actions[commits[-1]]):
            # The same click again, as after a time-out, is one; on a tab, which it may close, if nothing changed.
            before = pages[commits[-1]]
            if before.by_bid[action.arguments["bid"]].role != "tab" or before == pages[i]:
                continue
        commits.append(i)
    if len(commits) != len(goal.clicks):
        return False
    for i, accepted in zip(commits, goal.clicks, strict=True):
        action = read_any(actions[i])
        if action is None or action.arguments["bid"] not in accepted:
            return False
    # The state must hold before the last click, which may end the episode.
    first = pages[0] if pages else final
    page = pages[commits[-1]] if commits else final
    done = [a for text in (actions[: commits[-1]] if commits else actions) if (a := read_any(text))]
    if goal.fills:
        untouched = {e.bid: e.value for e in first.all(*_FIELDS) if e.bid not in goal.fills}
        if any(bid in page.by_bid and page.by_bid[bid].value != value for bid, value in untouched.items()):
            return False
    if any(not holds(page, bid, text, done) for bid, text in goal.fills.items()):
        return False
    if goal.checked is not None and goal.checked != {e.bid for e in page.all("checkbox", "radio") if e.checked}:
        return False
    return all(selected_in(page, bid) == set(labels) for bid, labels in goal.selected.items())


def _counts(goal: Goal, page: Page, action: Action | None) -> bool:
    if action is None or action.arguments.get("bid") not in page.by_bid:
        return False
    element = page.by_bid[action.arguments["bid"]]
    if element.role not in goal.roles or element.disabled:
        return False
    if action.name == "press" and not goal.touch:
        return action.arguments["key_comb"] in _CLICK_KEYS
    return action.name in (_TOUCHES if goal.touch else _CLICKS)


def _reached_contact(slots: Slots, pages: Sequence[Page], actions: Sequence[str]) -> bool:
    """The first detail clicked is the wanted one of the wanted contact."""
    moved = 0
    for page, text in zip(pages, actions, strict=True):
        action = read_any(text)
        element = page.by_bid.get(action.arguments["bid"]) if action and action.name in ("click", "dblclick") else None
        if element is None or element.role != "link":
            continue
        if element.name in ("<", ">"):
            moved += 1 if element.name == ">" else -1
        elif not element.name.isdigit():
            here = bool(page.named(slots["name"], "heading")) if "name" in slots else moved == 1
            return here and element.bid == detail_of(page, slots["attribute"])
    return False


def _ordinal(number: int) -> str:
    """1 → `1st`, 2 → `2nd`, 3 → `3rd`, 4 → `4th` (one digit, as the pages count)."""
    return f"{number}{({1: 'st', 2: 'nd', 3: 'rd'}).get(number, 'th')}"


def random_name(rng: random.Random) -> str:
    """A pronounceable capitalised name of two syllables and an ending (`Bratona`)."""
    syllables = [rng.choice(_ONSETS) + rng.choice(_VOWELS) for _ in range(rng.randint(1, 2))]
    return ("".join(syllables) + rng.choice(_CODAS)).capitalize()


def random_code(rng: random.Random) -> str:
    """Letters and digits of both cases, two to six long (`a9Xk`)."""
    return "".join(rng.choice(string.ascii_letters + string.digits) for _ in range(rng.randint(2, 6)))


def _one_of(items: Sequence[str], rng: random.Random) -> str | None:
    return rng.choice(items) if items else None


def _name(page: Page, rng: random.Random, *, role: str) -> str | None:
    return _one_of(sorted({e.name for e in page.all(role) if e.name}), rng)


def _dialog_button(page: Page, rng: random.Random) -> str | None:
    name = _name(page, rng, role="button") if page.all("dialog") else None
    return "x" if name == "Close" else name


def _position(page: Page, rng: random.Random, *, role: str) -> str | None:
    count = len(page.all(role))
    return _ordinal(rng.randint(1, count)) if count else None


def _boxes(page: Page, rng: random.Random) -> str | None:
    names = [e.name for e in page.all("checkbox")]
    if not names:
        return None
    kind = rng.random()
    if kind < 0.08:
        return EVERYTHING
    if kind < 0.14:
        return "nothing"
    excluded = kind < 0.28 and len(names) > 1
    count = rng.randint(1, min(2, len(names) - 1)) if excluded else rng.randint(1, min(4, len(names)))
    return (EXCEPT if excluded else "") + ", ".join(rng.sample(names, count))


def _options(page: Page, rng: random.Random, *, role: str, at_most: int = 1) -> str | None:
    lists = page.all(role)
    names = [o.name for o in page.options(lists[0].bid) if o.name and ", " not in o.name] if lists else []
    return ", ".join(rng.sample(names, rng.randint(1, min(at_most, len(names))))) if names else None


def _date(_page: Page, rng: random.Random) -> str:
    day = datetime.date(2010, 1, 1) + datetime.timedelta(days=rng.randrange(3650))
    return day.strftime("%m/%d/%Y")


def _length(page: Page, rng: random.Random) -> str | None:
    count = len(read_letters(page))
    return str(rng.randint(1, count - 1)) if count > 1 else None


def _word_position(page: Page, rng: random.Random) -> str | None:
    count = len(read_words(page))
    return _ordinal(rng.randint(1, count)) if count else None


DRAWS: dict[str, Callable[..., str | None]] = {
    "name": _name,
    "dialog_button": _dialog_button,
    "tab": lambda page, rng: _one_of([tab.name.removeprefix("Tab #") for tab in page.all("tab")], rng),
    "position": _position,
    "boxes": _boxes,
    "options": _options,
    "number": lambda _, rng: str(rng.randint(-10, 50)) if rng.random() < 0.7 else random_code(rng),
    "contact": lambda page, _: next((heading.name for heading in page.all("heading")), None),
    "attribute": lambda _, rng: rng.choice(list(ATTRIBUTES)),
    "text": lambda _, rng: random_name(rng) if rng.random() < 0.5 else random_code(rng),
    "code": lambda _, rng: random_code(rng),
    "user": lambda _, rng: random_name(rng).lower(),
    "table": lambda page, rng: _one_of(list(read_table(page)), rng),
    "field": lambda page, rng: _one_of([page.label_of(b.bid).removesuffix(":") for b in page.all("textbox")], rng),
    "date": _date,
    "time": lambda _, rng: f"{rng.randint(1, 12)}:{rng.randrange(60):02} {rng.choice(('AM', 'PM'))}",
    "length": _length,
    "word": _word_position,
}
"""(page, generator, options) -> a slot of a new instruction; None where the page offers nothing."""
