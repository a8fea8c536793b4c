"""Synthetic pages that teach a small model to look up and copy: the "pretraining" of the tiny checkpoints.

A page is written in the form of a flattened accessibility tree with nonsense labels, a goal names some of
them, and the answer is the next action. Recipe: digits are separate tokens, pages are short, every example is fresh.
"""

from __future__ import annotations

import random
import string
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field

SYLLABLES = [c + v for c in "bcdfghjklmnprstvwz" for v in "aeiou"] + ["an", "er", "in", "on", "us", "et", "al"]
CLICK_GOALS = (
    'Click on the "{x}" {role}.',
    'Click the {role} "{x}".',
    "Click on {x}.",
    'Click "{x}".',
    'Press the "{x}" {role}.',
    'Open "{x}".',
    "Choose {x}.",
    "Find and click on the {role} named {x}.",
    'Go to "{x}".',
)
FILL_GOALS = (
    'Enter "{t}" into the "{x}" field.',
    'Type "{t}" into {x}.',
    'Set {x} to "{t}".',
    'Write "{t}" in the {x} box.',
)
NTH = ("1st", "2nd", "3rd", "4th", "5th", "6th")
SUBMITS = ("Submit", "OK", "Save", "Send", "Search", "Login", "Apply", "Go")


@dataclass(frozen=True)
class Example:
    """One decision: what the agent is told, what it sees, and what it should answer."""

    goal: str
    history: tuple[str, ...]
    page: str
    action: str


@dataclass(frozen=True)
class Verdict:
    """One judgement: what was asked, what was done, how the page looks now, and whether that does it."""

    goal: str
    actions: tuple[str, ...]
    page: str
    success: bool


@dataclass(frozen=True)
class Proposal:
    """One new instruction: failed ones of the same kind, the page, and an instruction that fits it."""

    failed: tuple[str, ...]
    page: str
    goal: str


@dataclass
class _Page:
    """Lines of a page under construction; bids grow from top to bottom as BrowserGym numbers them."""

    rng: random.Random
    lines: list[str] = field(default_factory=list)
    bid: int = 0

    def __post_init__(self) -> None:
        self.bid = self.rng.randint(8, 40)
        self.lines.append(f"RootWebArea '{title(self.rng)}', focused")

    def add(self, role: str, name: str, props: str = "", depth: int = 1) -> str:
        self.bid += self.rng.choice((1, 1, 1, 2, 2, 3, 5))
        self.lines.append("\t" * depth + f"[{self.bid}] {role} '{name}'{props}")
        return str(self.bid)

    def text(self, words: str, depth: int = 1) -> None:
        self.lines.append("\t" * depth + f"StaticText '{words}'")

    def noise(self) -> None:
        if self.rng.random() < 0.3:
            self.text(phrase(self.rng, 1, 4))


class Words(random.Random):
    """Randomness with a vocabulary: words of recorded pages, so that every token of theirs is copied in training."""

    def __new__(cls, seed: int, lexicon: Sequence[str] = ()) -> Words:  # noqa: ARG004 - random.Random takes the seed here
        """Make the generator; the lexicon is kept by `__init__`."""
        return super().__new__(cls, seed)  # type: ignore[call-arg]

    def __init__(self, seed: int, lexicon: Sequence[str] = ()) -> None:
        super().__init__(seed)
        self.lexicon = lexicon


def word(rng: random.Random) -> str:
    """A recorded word, if the generator knows some, or a nonsense word, name or code."""
    lexicon: Sequence[str] = getattr(rng, "lexicon", ())
    if lexicon and rng.random() < 0.4:
        return rng.choice(lexicon)
    if rng.random() < 0.25:
        return "".join(rng.choices(string.ascii_letters + string.digits, k=rng.randint(2, 7)))
    made = "".join(rng.choices(SYLLABLES, k=rng.randint(1, 4)))
    return made.capitalize() if rng.random() < 0.5 else made


def phrase(rng: random.Random, low: int = 1, high: int = 2) -> str:
    """One or several words."""
    return " ".join(word(rng) for _ in range(rng.randint(low, high)))


def title(rng: random.Random) -> str:
    """A page title."""
    return " ".join(word(rng).capitalize() for _ in range(rng.randint(1, 3))) + " Task"


def labels(rng: random.Random, count: int) -> list[str]:
    """Distinct labels."""
    found: dict[str, None] = {}
    while len(found) < count:
        found[phrase(rng, 1, rng.choice((1, 1, 2)))] = None
    return list(found)


def examples(rng: random.Random) -> Iterator[Example]:
    """An endless stream of decisions."""
    makers = (
        click_label, click_label, click_nth, fill_field, choose_many, choose_option, fill_form, fill_date, read_cell,
        finished,
    )  # fmt: skip
    while True:
        yield rng.choice(makers)(rng)


def verdicts(rng: random.Random) -> Iterator[Verdict]:
    """An endless stream of judgements, half of them successes."""
    makers = (judge_click, judge_choices, judge_choices, judge_form, judge_form)
    while True:
        yield rng.choice(makers)(rng, rng.random() < 0.5)


def proposals(rng: random.Random) -> Iterator[Proposal]:
    """An endless stream of new instructions that keep the failed ones' wording and the page's labels."""
    while True:
        page, names, role = _labelled_page(rng)
        many = rng.random() < 0.4
        template = rng.choice(("Select {x} and click {role}.", "Tick {x}.") if many else CLICK_GOALS)
        failed = [
            template.format(x=", ".join(labels(rng, rng.randint(1, 3) if many else 1)), role=role)
            for _ in range(rng.randint(1, 3))
        ]
        wanted = rng.sample(names, rng.randint(1, min(3, len(names))) if many else 1)
        yield Proposal(tuple(failed), "\n".join(page.lines), template.format(x=", ".join(wanted), role=role))


def judge_click(rng: random.Random, success: bool) -> Verdict:
    """Was the right element clicked?"""
    page, names, role = _labelled_page(rng)
    bids = [line.split("[")[1].split("]")[0] for line in page.lines if "[" in line]
    index = rng.randrange(len(names))
    wrong = rng.choice([b for i, b in enumerate(bids) if i != index])
    actions: tuple[str, ...] = (f"click('{bids[index] if success else wrong}')",)
    if not success and rng.random() < 0.15:
        actions = ()
    goal = rng.choice(CLICK_GOALS).format(x=names[index], role=role)
    return Verdict(goal, actions, "\n".join(page.lines), success)


def judge_choices(rng: random.Random, success: bool) -> Verdict:
    """Are exactly the named boxes ticked, and was the button pressed?"""
    page = _Page(rng)
    names = labels(rng, rng.randint(2, 7))
    wanted = rng.sample(names, rng.randint(1, min(4, len(names))))
    ticked, pressed = list(wanted), True
    if not success:
        spoil = rng.choice(("missing", "extra", "other", "unpressed"))
        rest = [n for n in names if n not in wanted]
        if spoil in ("missing", "other") or not rest:
            ticked.pop(rng.randrange(len(ticked)))
        if spoil in ("extra", "other") and rest:
            ticked.append(rng.choice(rest))
        pressed = spoil != "unpressed" or ticked != wanted
    bids = {}
    for name in names:
        bids[name] = page.add("checkbox", name, f", checked='{str(name in ticked).lower()}'", depth=2)
        if rng.random() < 0.5:
            page.text(name, depth=2)
    submit = rng.choice(SUBMITS)
    button = page.add("button", submit)
    rng.shuffle(ticked)
    actions = [f"click('{bids[n]}')" for n in ticked] + ([f"click('{button}')"] if pressed else [])
    goal = rng.choice(("Select {x} and click {s}.", "Tick {x}, then press {s}.")).format(x=", ".join(wanted), s=submit)
    return Verdict(goal, tuple(actions), "\n".join(page.lines), success)


def judge_form(rng: random.Random, success: bool) -> Verdict:
    """Do the named fields hold the named texts, and was the button pressed?"""
    page = _Page(rng)
    count = rng.randint(1, 3)
    names, texts = labels(rng, count), [phrase(rng, 1, 2) for _ in range(count)]
    written, pressed = list(texts), True
    if not success:
        spoil = rng.choice(("changed", "changed", "empty", "unpressed"))
        index = rng.randrange(count)
        if spoil == "changed":
            written[index] = _similar(rng, texts[index])
        elif spoil == "empty":
            written[index] = ""
        pressed = spoil != "unpressed"
    actions = []
    for name, text in zip(names, written, strict=True):
        page.text(name)
        bid = page.add("textbox", "", f" value='{text}'" if text else "")
        if text:
            actions.append(f"fill('{bid}', '{text}')")
    submit = rng.choice(SUBMITS)
    button = page.add("button", submit)
    actions += [f"click('{button}')"] if pressed else []
    parts = [f'the {n} "{t}"' for n, t in zip(names, texts, strict=True)]
    return Verdict(f"Enter {' and '.join(parts)} and press {submit}.", tuple(actions), "\n".join(page.lines), success)


def click_label(rng: random.Random) -> Example:
    """Click the one element with a label."""
    names = labels(rng, rng.randint(2, 10))
    page = _Page(rng)
    role = rng.choice(("button", "link", "tab", "menuitem", "listitem", "heading", "option", "row"))
    mixed = rng.random() < 0.3
    bids = []
    for name in names:
        page.noise()
        kind = rng.choice(("button", "link", "tab", "textbox", "checkbox")) if mixed else role
        bids.append(page.add(kind, name, depth=rng.choice((1, 1, 2))))
    index = rng.randrange(len(names))
    goal = rng.choice(CLICK_GOALS).format(x=names[index], role=role)
    return Example(goal, _old_history(rng), "\n".join(page.lines), f"click('{bids[index]}')")


def click_nth(rng: random.Random) -> Example:
    """Click the n-th element of a kind."""
    page = _Page(rng)
    role = rng.choice(("link", "textbox", "button", "tab", "radio", "checkbox"))
    count = rng.randint(2, 6)
    bids = []
    for _ in range(count):
        page.noise()
        bids.append(page.add(role, phrase(rng) if rng.random() < 0.5 else ""))
        if rng.random() < 0.2:
            page.add("button" if role != "button" else "link", phrase(rng))
    index = rng.randrange(count)
    template = rng.choice(("Click the {n} {role}.", "Focus into the {n} {role}.", "Open {role} number {i}."))
    goal = template.format(n=NTH[index], role=role, i=index + 1)
    return Example(goal, (), "\n".join(page.lines), f"click('{bids[index]}')")


def fill_field(rng: random.Random) -> Example:
    """Copy a text into the field with a label."""
    page = _Page(rng)
    names = labels(rng, rng.randint(1, 5))
    bids = []
    for name in names:
        if rng.random() < 0.5:
            page.text(name)
            bids.append(page.add("textbox", ""))
        else:
            bids.append(page.add("textbox", name))
    index = rng.randrange(len(names))
    text = phrase(rng, 1, 3)
    goal = rng.choice(FILL_GOALS).format(x=names[index], t=text)
    return Example(goal, (), "\n".join(page.lines), f"fill('{bids[index]}', '{text}')")


def choose_many(rng: random.Random) -> Example:
    """Tick the named boxes that are not ticked yet, then the button."""
    page = _Page(rng)
    names = labels(rng, rng.randint(2, 7))
    wanted = rng.sample(names, rng.randint(1, min(4, len(names))))
    done = rng.randint(0, len(wanted))
    role = rng.choice(("checkbox", "checkbox", "radio"))
    if role == "radio":
        wanted, done = wanted[:1], min(done, 1)
    bids = {}
    for name in names:
        ticked = "true" if name in wanted[:done] else "false"
        bids[name] = page.add(role, name, f", checked='{ticked}'", depth=2)
        if rng.random() < 0.5:
            page.text(name, depth=2)
    submit = rng.choice(SUBMITS)
    button = page.add("button", submit)
    goal = rng.choice(("Select {x} and click {s}.", "Tick {x}, then press {s}.")).format(x=", ".join(wanted), s=submit)
    action = f"click('{bids[wanted[done]] if done < len(wanted) else button}')"
    return Example(goal, tuple(f"click('{bids[n]}')" for n in wanted[:done]), "\n".join(page.lines), action)


def choose_option(rng: random.Random) -> Example:
    """Pick an entry of a list, then the button."""
    page = _Page(rng)
    names = labels(rng, rng.randint(3, 9))
    wanted, current = rng.choice(names), names[0]
    chosen = rng.random() < 0.4
    if chosen:
        current = wanted
    box = page.add("combobox", "", f" value='{current}', hasPopup='menu', expanded=False")
    page.lines.append("\t\tMenuListPopup ''")
    for name in names:
        page.add("option", name, f", selected={name == current}", depth=3)
    submit = rng.choice(SUBMITS)
    button = page.add("button", submit)
    goal = rng.choice(("Select {x} from the list and click {s}.", 'Pick "{x}" and press {s}.')).format(
        x=wanted, s=submit
    )
    select = f"select_option('{box}', '{wanted}')"
    if current == wanted:
        return Example(goal, (select,) if chosen else (), "\n".join(page.lines), f"click('{button}')")
    return Example(goal, (), "\n".join(page.lines), select)


def fill_date(rng: random.Random) -> Example:
    """Write a date in the form that a date field takes."""
    page = _Page(rng)
    year, month, day = rng.randint(1990, 2029), rng.randint(1, 12), rng.randint(1, 28)
    page.noise()
    bid = page.add(rng.choice(("Date", "Date", "textbox")), "")
    button = page.add("button", rng.choice(SUBMITS))
    goal = rng.choice(("Enter {d} as the date and hit submit.", "Set the date to {d}.", "Pick {d}, then press submit."))
    written, wanted = f"{month:02d}/{day:02d}/{year}", f"fill('{bid}', '{year}-{month:02d}-{day:02d}')"
    if rng.random() < 0.3:
        return Example(goal.format(d=written), (wanted,), "\n".join(page.lines), f"click('{button}')")
    return Example(goal.format(d=written), (), "\n".join(page.lines), wanted)


def read_cell(rng: random.Random) -> Example:
    """Copy what a page says about something into a field."""
    page = _Page(rng)
    names = labels(rng, rng.randint(2, 6))
    values = [phrase(rng, 1, 2) for _ in names]
    as_rows = rng.random() < 0.6
    for name, value in zip(names, values, strict=True):
        if as_rows:
            page.add("row", "")
            page.add("cell", name, depth=2)
            page.add("cell", value, depth=2)
        else:
            page.text(name)
            page.text(value)
    bid = page.add("textbox", "")
    page.add("button", rng.choice(SUBMITS))
    index = rng.randrange(len(names))
    goal = rng.choice(("Enter the value of {x} into the text field and press Submit.", "Type what {x} is."))
    return Example(goal.format(x=names[index]), (), "\n".join(page.lines), f"fill('{bid}', '{values[index]}')")


def fill_form(rng: random.Random) -> Example:
    """Fill every named field, then the button; filled fields show their value."""
    page = _Page(rng)
    count = rng.randint(1, 3)
    names, texts = labels(rng, count), [phrase(rng, 1, 2) for _ in range(count)]
    done = rng.randint(0, count)
    bids = []
    for index, name in enumerate(names):
        value = f" value='{texts[index]}'" if index < done else ""
        page.text(name)
        bids.append(page.add("textbox", "", value))
        if value and rng.random() < 0.7:
            page.text(texts[index], depth=2)
    submit = rng.choice(SUBMITS)
    button = page.add("button", submit)
    parts = [f'the {n} "{t}"' for n, t in zip(names, texts, strict=True)]
    goal = f"Enter {' and '.join(parts)} and press {submit}."
    history = tuple(f"fill('{b}', '{t}')" for b, t in zip(bids[:done], texts[:done], strict=True))
    action = f"click('{button}')" if done == count else f"fill('{bids[done]}', '{texts[done]}')"
    return Example(goal, history, "\n".join(page.lines), action)


def finished(rng: random.Random) -> Example:
    """A click goal that was just carried out: say so."""
    made = click_label(rng)
    return Example(made.goal, (made.action,), made.page, "send_msg_to_user('done')")


def _old_history(rng: random.Random) -> tuple[str, ...]:
    return tuple(f"click('{rng.randint(8, 99)}')" for _ in range(rng.choice((0, 0, 0, 1, 2))))


def _labelled_page(rng: random.Random) -> tuple[_Page, list[str], str]:
    names = labels(rng, rng.randint(2, 9))
    page = _Page(rng)
    role = rng.choice(("button", "link", "tab", "checkbox", "menuitem", "listitem", "radio"))
    for name in names:
        page.noise()
        page.add(role, name, ", checked='false'" if role in ("checkbox", "radio") else "", rng.choice((1, 1, 2)))
    return page, names, role


def _similar(rng: random.Random, text: str) -> str:
    """Another text: a new one, or the same with one character changed, dropped or doubled."""
    if rng.random() < 0.4 or len(text) < 2:
        other = phrase(rng, 1, 2)
    else:
        at = rng.randrange(len(text))
        other = text[:at] + rng.choice(("", text[at] * 2, rng.choice(string.ascii_lowercase))) + text[at + 1 :]
    return other if other.strip() and other != text else text + rng.choice(string.ascii_lowercase)
