"""What the arena's experts are made of: a script is a list of steps, and a step reads the page and names an action.

Names and texts of a script may hold its template's `{slots}`, and `{note}`, the last text that `noting` wrote down.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Mapping, Sequence

from webrl.suites.miniwob.experts.page import Element, Page

Slots = Mapping[str, str]
Read = Callable[[Page, Slots], "str | None"]
"""A text of the page; None if it is not there."""
Step = Callable[[Page, Slots], "str | None"]
"""The action on a page; None if the page lacks what it needs."""
Script = Sequence[Step]
NOTE = "# Note: "
"""Starts a comment line above an action; an agent sees its own earlier actions, comments included."""


def click(name: str, *roles: str) -> Step:
    """Click the first element of that name; of any role, or of these."""
    return lambda page, slots: click_on(find(page, name.format(**slots), *roles))


def click_after(landmark: str, name: str | None, role: str) -> Step:
    """Click the first element of that role, and of that name, that follows a link of the landmark's name."""
    return lambda page, slots: click_on(first(after(page, landmark.format(**slots), "link"), role, name))


def click_in_row(role: str, *names: str) -> Step:
    """Click the first element of that role in the row that has cells of all these names."""
    return lambda page, slots: click_on(first(row_with(page, *(name.format(**slots) for name in names)), role))


def click_where(holds: Callable[[str, Slots], bool]) -> Step:
    """Click the first link whose name meets a condition."""
    return lambda page, slots: click_on(next((link for link in page.all("link") if holds(link.name, slots)), None))


def fill(name: str, text: str, role: str = "textbox") -> Step:
    """Fill a field by its name."""
    return lambda page, slots: fill_in(find(page, name, role), text.format(**slots))


def fill_nth(role: str, index: int, text: str) -> Step:
    """Fill a field without a name, by its position among those of its role."""
    return lambda page, slots: fill_in(next(iter(page.all(role)[index:]), None), text.format(**slots))


def select(name: str, option: str) -> Step:
    """Select an option of a list."""
    return lambda page, slots: select_in(find(page, name.format(**slots), "combobox"), option.format(**slots))


def say(read: Read) -> Step:
    """Answer with what is read from the page."""
    return lambda page, slots: f"send_msg_to_user({text!r})" if (text := read(page, slots)) else None


def noting(read: Read, then: Step) -> Step:
    """Write what is read from the page above the next action; later steps use it as `{note}`."""
    return lambda page, slots: (
        f"{NOTE}{text}\n{action}" if (text := read(page, slots)) and (action := then(page, slots)) else None
    )


def notes_in(text: str) -> list[str]:
    """Return what an answer writes down above its action."""
    return [line.removeprefix(NOTE) for line in text.split("\n") if line.startswith(NOTE)]


def beside(header: str) -> Read:
    """Read the cell after a row's header."""
    return lambda page, _: name_of(first(after(page, header, "rowheader"), "cell"))


def below(header: str) -> Read:
    """Read a column's cell in the first row below its header."""

    def read(page: Page, _: Slots) -> str | None:
        rows = rows_of(page)
        for i, row in enumerate(rows[:-1]):
            names = [e.name for e in row if e.role == "columnheader"]
            if header in names:
                cells = [e.name for e in rows[i + 1] if e.role == "cell"]
                return cells[names.index(header)] if len(cells) == len(names) else None
        return None

    return read


def text_below(heading: str, index: int = 0) -> Read:
    """Read a line of text below a heading, by its position."""
    return lambda page, _: next(
        iter([e.name for e in after(page, heading, "heading") if e.role == "StaticText"][index:]), None
    )


def matched(pattern: str, role: str = "StaticText", heading: str = "") -> Read:
    """Read the first group of a pattern in the first element of a role that matches; below a heading, if named."""
    return lambda page, _: next(
        (
            match[1]
            for e in (after(page, heading, "heading") if heading else page.elements)
            if e.role == role and (match := re.search(pattern, e.name))
        ),
        None,
    )


def number_in(read: Read) -> Read:
    """Read the first number in what is read."""
    return lambda page, slots: next(iter(re.findall(r"\d+", read(page, slots) or "")), None)


def find(page: Page, name: str, *roles: str) -> Element | None:
    """Find the first element of that name that is not disabled."""
    roles = roles or ("link", "button")
    return next((e for e in page.all(*roles) if e.name == name and not e.disabled), None)


def first(elements: Sequence[Element], role: str, name: str | None = None) -> Element | None:
    """Return the first element of a role, and of a name."""
    return next((e for e in elements if e.role == role and name in (None, e.name)), None)


def after(page: Page, name: str, *roles: str) -> Sequence[Element]:
    """Return what follows the first element of that name and role."""
    places = (i for i, e in enumerate(page.elements) if e.name == name and e.role in roles)
    return page.elements[next(places, len(page.elements)) + 1 :]


def rows_of(page: Page) -> list[list[Element]]:
    """Split the page's elements into table rows."""
    rows: list[list[Element]] = []
    for element in page.elements:
        if element.role == "row":
            rows.append([])
        elif rows:
            rows[-1].append(element)
    return rows


def row_with(page: Page, *names: str) -> list[Element]:
    """Return the first row that has cells of all these names; [] if none has."""
    return next((row for row in rows_of(page) if set(names) <= {e.name for e in row if e.role == "cell"}), [])


def name_of(element: Element | None) -> str | None:
    """Return the element's name; None if it is not there."""
    return element.name if element else None


def click_on(element: Element | None) -> str | None:
    """Return the action that clicks it; None if it is not there."""
    return f"click({element.bid!r})" if element else None


def fill_in(element: Element | None, text: str) -> str | None:
    """Return the action that fills it; None if it is not there."""
    return f"fill({element.bid!r}, {text!r})" if element else None


def select_in(element: Element | None, option: str) -> str | None:
    """Return the action that selects an option of it; None if it is not there."""
    return f"select_option({element.bid!r}, {option!r})" if element else None
