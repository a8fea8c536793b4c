"""What the arena's experts are made of: a script is a list of steps, and a step reads the page and names an action."""

from __future__ import annotations

import re
from collections.abc import Callable, Sequence

from webrl.suites.miniwob.experts.page import Element, Page

Step = Callable[[Page], "str | None"]
"""The action on a page; None if the page has not what it takes."""
NOTE = "# Note: "
"""Begins a line of comment above an action; an agent sees its own actions again, comments included."""
Script = Callable[[dict[str, str]], list[Step]]
"""The steps for a template's slots."""


def click(name: str, *roles: str) -> Step:
    """The first element of that name; of any role, or of these."""
    return lambda page: click_on(find(page, name, *roles))


def click_after(landmark: str, name: str | None, role: str) -> Step:
    """The first element of that role, and of that name, that follows a link of the landmark's name."""
    return lambda page: click_on(first(after(page, landmark, "link"), role, name))


def click_in_row(role: str, *names: str) -> Step:
    """The first element of that role in the row that has cells of all these names."""
    return lambda page: click_on(first(row_with(page, *names), role))


def fill(name: str, text: str, role: str = "textbox") -> Step:
    """A field by its name."""
    return lambda page: fill_in(find(page, name, role), text)


def fill_nth(role: str, index: int, text: str) -> Step:
    """A field without a name, by its place."""

    def step(page: Page) -> str | None:
        found = page.all(role)
        return fill_in(found[index], text) if index < len(found) else None

    return step


def select(name: str, option: str) -> Step:
    """An option of a list."""

    def step(page: Page) -> str | None:
        found = find(page, name, "combobox")
        return f"select_option({found.bid!r}, {option!r})" if found else None

    return step


def say(read: Callable[[Page], str | None]) -> Step:
    """Answer with what is read from the page."""

    def step(page: Page) -> str | None:
        text = read(page)
        return f"send_msg_to_user({text!r})" if text else None

    return step


def noting(read: Callable[[Page], str | None], then: Step) -> Step:
    """Write what is read from the page above the next action: scripts find the last one in their slot `note`."""

    def step(page: Page) -> str | None:
        text, action = read(page), then(page)
        return f"{NOTE}{text}\n{action}" if text and action else None

    return step


def find(page: Page, name: str, *roles: str) -> Element | None:
    """The first element of that name."""
    roles = roles or ("link", "button")
    return next((e for e in page.all(*roles) if e.name == name and not e.disabled), None)


def first(elements: Sequence[Element], role: str, name: str | None = None) -> Element | None:
    """The first element of a role, and of a name."""
    return next((e for e in elements if e.role == role and name in (None, e.name)), None)


def after(page: Page, name: str, *roles: str) -> Sequence[Element]:
    """What follows the first element of that name and role."""
    places = (i for i, e in enumerate(page.elements) if e.name == name and e.role in roles)
    return page.elements[next(places, len(page.elements)) + 1 :]


def beside(header: str) -> Callable[[Page], str | None]:
    """Reads the cell after a row's header."""

    def read(page: Page) -> str | None:
        cell = first(after(page, header, "rowheader"), "cell")
        return cell.name if cell else None

    return read


def below(header: str) -> Callable[[Page], str | None]:
    """Reads a column's cell in the first row below its header."""

    def read(page: Page) -> str | None:
        rows = rows_of(page)
        for i, row in enumerate(rows[:-1]):
            names = [e.name for e in row if e.role == "columnheader"]
            if header in names:
                cells = [e.name for e in rows[i + 1] if e.role == "cell"]
                return cells[names.index(header)] if len(cells) == len(names) else None
        return None

    return read


def text_below(heading: str, index: int = 0) -> Callable[[Page], str | None]:
    """Reads a line of text below a heading, by its place."""

    def read(page: Page) -> str | None:
        texts = [e.name for e in after(page, heading, "heading") if e.role == "StaticText"]
        return texts[index] if index < len(texts) else None

    return read


def rows_of(page: Page) -> list[list[Element]]:
    """The elements of each table row."""
    rows: list[list[Element]] = []
    for element in page.elements:
        if element.role == "row":
            rows.append([])
        elif rows:
            rows[-1].append(element)
    return rows


def row_with(page: Page, *names: str) -> list[Element]:
    """The first row that has cells of all these names; [] if none has."""
    return next((row for row in rows_of(page) if set(names) <= {e.name for e in row if e.role == "cell"}), [])


def number_in(read: Callable[[Page], str | None]) -> Callable[[Page], str | None]:
    """The first number in what is read."""

    def found(page: Page) -> str | None:
        match = re.search(r"\d+", read(page) or "")
        return match[0] if match else None

    return found


def click_on(element: Element | None) -> str | None:
    """The action that clicks it; None if it is not there."""
    return f"click({element.bid!r})" if element else None


def fill_in(element: Element | None, text: str) -> str | None:
    """The action that fills it; None if it is not there."""
    return f"fill({element.bid!r}, {text!r})" if element else None
