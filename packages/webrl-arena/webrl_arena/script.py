"""What the arena's experts are made of: a script is a list of steps, and a step reads the page and names an action.

API: `script_of(site, name)`, from `experts.yaml`, whose head says how its lines read; `notes_in(text)`.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Iterator, Mapping, Sequence
from functools import cache

from webrl_arena.world.content import catalogue, load_yaml, shelves
from webrl_site.experts import Element, Page

Slots = Mapping[str, str]
Read = Callable[[Page, Slots], "str | None"]
"""A text of the page; None if it is not there."""
Step = Callable[[Page, Slots], "str | None"]
"""The action on a page; None if the page lacks what it needs."""
Script = Sequence[Step]
NOTE = "# Note: "
"""Starts a comment line above an action; an agent sees its own earlier actions, comments included."""
_ROLES = {"click": ("link", "button"), "fill": ("textbox",), "select": ("combobox",)}
"""Of what a step works on, where it names none."""
_ROLE = re.compile(r"(.*?) ?\[([a-zA-Z]+)(?: (-?\d+))?\]")


def notes_in(text: str) -> list[str]:
    """Return what an answer writes down above its action."""
    return [line.removeprefix(NOTE) for line in text.split("\n") if line.startswith(NOTE)]


@cache
def script_of(site: str, name: str) -> Script:
    """Return how a template's tasks are done."""
    return tuple(map(_step, _lines(load_yaml("experts.yaml")[site][name])))


def _lines(text: str) -> Iterator[str]:
    """Yield the lines of a script, and those of a macro where it is called."""
    for line in text.splitlines():
        verb, _, given = line.partition(" ")
        if macro := load_yaml("experts.yaml")["macros"].get(verb):
            for number, argument in enumerate(given.split(" | "), start=1):
                macro = macro.replace(f"${number}", argument)
            yield from _lines(macro)
        else:
            yield line


def _step(line: str) -> Step:
    verb, _, rest = line.partition(" ")
    match verb:
        case "say":
            read = _read(rest)
            return lambda page, slots: f"send_msg_to_user({text!r})" if (text := read(page, slots)) else None
        case "note":
            what, _, following = rest.partition(" -> ")
            note, then = _read(what), _step(following)
            return lambda page, slots: (
                f"{NOTE}{text}\n{action}" if (text := note(page, slots)) and (action := then(page, slots)) else None
            )
        case "write_aisle":
            return _write_aisle
    where, _, text = rest.partition(" = ")

    def act(page: Page, slots: Slots) -> str | None:
        value = text.format(**slots)
        element = _find(page, where, slots, _ROLES[verb])
        if element is None:
            return None
        action = {"click": "click", "fill": "fill", "select": "select_option"}[verb]
        return f"{action}({element.bid!r}" + (")" if verb == "click" else f", {value!r})")

    return act


def _find(page: Page, where: str, slots: Slots, roles: tuple[str, ...] = ()) -> Element | None:
    """Find an element of the page: `NAME [ROLE INDEX]`, or that `after` a landmark or `in` a row."""
    what, relation, landmark = re.fullmatch(r"(.*?)(?:(?:^| )(after|in) (.*))?", where).groups()  # type: ignore[union-attr]
    name, roles, index = _parts(what, roles)
    match relation:
        case "after":
            there = _after(page, *_parts(landmark, ("link",))[:2], slots)
        case "in":
            there = _row(page, landmark.split(" & "), slots)
        case _:
            there = [e for e in page.all(*roles) if not e.disabled]
    found = [e for e in there if e.role in roles and _is_called(e, name, slots)]
    return next(iter(found[index:]), None)


def _parts(text: str, roles: tuple[str, ...]) -> tuple[str, tuple[str, ...], int]:
    """Split `NAME [ROLE INDEX]` into its name, its roles (without one, those that are given) and its index."""
    found = _ROLE.fullmatch(text)
    return (found[1], (found[2],), int(found[3] or 0)) if found else (text, roles, 0)


def _is_called(element: Element, name: str, slots: Slots) -> bool:
    """Whether an element has that name; without one, any has; after `~` stands a regular expression."""
    if name.startswith("~"):
        pattern = name[1:].format(**{key: re.escape(value) for key, value in slots.items()})
        return re.search(pattern, element.name) is not None
    return not name or element.name == name.format(**slots)


def _after(page: Page, name: str, roles: tuple[str, ...], slots: Slots) -> Sequence[Element]:
    """Return what follows the first element of that name and role."""
    places = (i for i, e in enumerate(page.elements) if e.role in roles and _is_called(e, name, slots))
    return page.elements[next(places, len(page.elements)) + 1 :]


def _rows(page: Page) -> list[list[Element]]:
    """Split the page's elements into table rows."""
    rows: list[list[Element]] = []
    for element in page.elements:
        if element.role == "row":
            rows.append([])
        elif rows:
            rows[-1].append(element)
    return rows


def _row(page: Page, names: Sequence[str], slots: Slots) -> list[Element]:
    """Return the first row that has cells of all these names, or elements if they are expressions; [] if none has."""
    for row in _rows(page):
        cells = [e for e in row if e.role == "cell" or names[0].startswith("~")]
        if all(any(_is_called(e, name, slots) for e in cells) for name in names):
            return row
    return []


def _read(text: str) -> Read:
    """Return what reads a text of the page."""
    verb, _, rest = text.partition(" ")
    match verb:
        case "number":
            read = _read(rest)
            return lambda page, slots: next(iter(re.findall(r"\d+", read(page, slots) or "")), None)
        case "beside":
            return lambda page, slots: _name(page, f"[cell] after {rest} [rowheader]", slots)
        case "line":
            index, _, heading = rest.partition(" below ")
            return lambda page, slots: _name(page, f"[StaticText {index}] after {heading} [heading]", slots)
        case "below":
            return lambda page, _: _column(page, rest)
        case "match":
            what, _, heading = rest.partition(" below ")
            pattern, roles, _ = _parts(what, ("StaticText",))
            return lambda page, slots: next(
                (
                    found[1]
                    for e in (_after(page, heading, ("heading",), slots) if heading else page.elements)
                    if e.role in roles and (found := re.search(pattern, e.name))
                ),
                None,
            )
        case "name":
            return lambda page, slots: _name(page, rest, slots)
    return _READS[text]


def _name(page: Page, where: str, slots: Slots) -> str | None:
    element = _find(page, where, slots)
    return element.name if element else None


def _column(page: Page, header: str) -> str | None:
    """Read a column's cell in the first row below its header."""
    rows = _rows(page)
    for i, row in enumerate(rows[:-1]):
        names = [e.name for e in row if e.role == "columnheader"]
        if header in names:
            cells = [e.name for e in rows[i + 1] if e.role == "cell"]
            return cells[names.index(header)] if len(cells) == len(names) else None
    return None


def _author(page: Page, slots: Slots) -> str | None:
    """Read who wrote the review `{title}`."""
    rest = _after(page, "{title}", ("link",), slots)
    start = next((i for i, e in enumerate(rest) if e.role == "strong"), len(rest))
    return next((e.name for e in rest[start:] if e.role == "StaticText"), None)


def _writers(page: Page) -> list[Element]:
    """Return the link to each post's writer, in order."""
    starts = [i for i, e in enumerate(page.elements) if e.role == "StaticText" and e.name == "By:"]
    found = (next((e for e in page.elements[i:] if e.role == "link"), None) for i in starts)
    return [link for link in found if link]


def _recommended(page: Page, slots: Slots) -> str | None:
    """Read which finish the post of `{customer}` recommends."""
    finishes = sorted({finish for shelf in shelves() for finish in shelf.finishes}, key=len, reverse=True)
    link = next((link for link in _writers(page) if link.name == slots["customer"]), None)
    if link is None:
        return None
    texts = [e.name for e in page.elements[page.elements.index(link) :] if e.role == "StaticText"]
    return next((finish for finish in finishes if finish in texts[1]), None)  # the first is the date


def _write_aisle(page: Page, slots: Slots) -> str | None:
    """Fill the wiki's text in again, with the aisle `{value}`."""
    field = next((e for e in page.all("textbox") if "||= Aisle =||" in e.value), None)
    if field is None:
        return None
    new = re.sub(r"(\|\|= Aisle =\|\| ).*?( \|\|)", rf"\g<1>{slots['value']}\2", field.value)
    return f"fill({field.bid!r}, {new!r})"


_READS: dict[str, Read] = {
    "author": _author,
    "last writer": lambda page, _: found[-1].name if (found := _writers(page)) else None,
    "replies": lambda page, _: str(len(_writers(page)) - 1),
    "recommended finish": _recommended,
    "product asked about": lambda page, _: max(
        (p.title for p in catalogue().products if any(p.title in text for text in page.texts())), key=len, default=None
    ),
    "messages": lambda page, slots: (
        str(shown) if (shown := sum(text in (slots["mail"], f"Re: {slots['mail']}") for text in page.texts())) else None
    ),
}
