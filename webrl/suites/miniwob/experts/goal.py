"""What an instruction asks of a page: a state of its fields, then clicks in order."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field

from webrl.suites.miniwob.experts.page import Action, Page, read_action, read_actions

DONE = "send_msg_to_user('done')"
_CLICKS = frozenset({"click", "dblclick"})
_TOUCHES = frozenset({"click", "dblclick", "fill", "focus", "clear", "press", "hover"})
_CLICK_KEYS = frozenset({"Enter", "Space", " "})
_FIELDS = ("textbox", "searchbox", "Date", "InputTime")


@dataclass(frozen=True)
class Goal:
    """Bids of one page: the fields' wanted state, then the clicks that follow.

    A click is a set of bids any of which will do (two buttons of the same name).
    """

    fills: dict[str, str] = field(default_factory=dict)
    """Field → text it must hold; other text fields must stay as they were."""
    checked: frozenset[str] | None = None
    """Exactly these checkboxes or radio buttons are ticked; None: they do not matter."""
    selected: dict[str, tuple[str, ...]] = field(default_factory=dict)
    """List → labels selected in it, exactly."""
    clicks: tuple[tuple[str, ...], ...] = ()
    """Clicks in order, after the state holds."""
    roles: frozenset[str] = frozenset({"button", "link", "tab", "menuitem"})
    """Roles whose clicks count: one more or another order of these is a mistake."""
    touch: bool = False
    """True where filling or focusing counts as a click (the instruction is about the focus)."""

    def next_action(self, page: Page, history: Sequence[str]) -> str:
        """The next action towards the goal, `DONE` if nothing is left."""
        done = read_actions(history)
        for bid, text in self.fills.items():
            if not _holds(page, bid, text, done):
                return f"fill({bid!r}, {text!r})"
        for element in page.all("checkbox", "radio") if self.checked is not None else []:
            if element.checked != (element.bid in (self.checked or ())) and _can_toggle(element.role, element.checked):
                return f"click({element.bid!r})"
        for bid, labels in self.selected.items():
            if _selected(page, bid) != set(labels):
                return f"select_option({bid!r}, {labels[0] if len(labels) == 1 else list(labels)!r})"
        remaining = self._remaining(done)
        return f"click({remaining[0][0]!r})" if remaining else DONE

    def reached(self, pages: Sequence[Page], actions: Sequence[str], final: Page) -> bool:
        """Whether the actions (`pages[i]` is what was there before `actions[i]`) did what was asked, no more."""
        commits: list[int] = []
        for i, text in enumerate(actions):
            if self._counts(pages[i], read_action(text)) and not (
                commits and _is_retry(pages, actions, commits[-1], i)
            ):
                commits.append(i)
        if len(commits) != len(self.clicks):
            return False
        for i, accepted in zip(commits, self.clicks, strict=True):
            action = read_action(actions[i])
            if action is None or action.bid not in accepted:
                return False
        before = commits[-1] if commits else len(actions)
        page = pages[before] if commits else final
        return self._state_holds(pages[0] if pages else final, page, read_actions(actions[:before]))

    def _counts(self, page: Page, action: Action | None) -> bool:
        if action is None or action.bid not in page.by_bid:
            return False
        element = page.by_bid[action.bid]
        if element.role not in self.roles or element.disabled:
            return False
        if action.name == "press" and not self.touch:
            return bool(action.values) and action.values[0] in _CLICK_KEYS
        return action.name in (_TOUCHES if self.touch else _CLICKS)

    def _remaining(self, done: Sequence[Action]) -> tuple[tuple[str, ...], ...]:
        left = self.clicks
        for action in done:
            if left and action.name in _CLICKS and action.bid in left[0]:
                left = left[1:]
        return left

    def _state_holds(self, first: Page, page: Page, done: Sequence[Action]) -> bool:
        if self.fills:
            untouched = {e.bid: e.value for e in first.all(*_FIELDS) if e.bid not in self.fills}
            if any(bid in page.by_bid and page.by_bid[bid].value != value for bid, value in untouched.items()):
                return False
        if any(not _holds(page, bid, text, done) for bid, text in self.fills.items()):
            return False
        if self.checked is not None and self.checked != {e.bid for e in page.all("checkbox", "radio") if e.checked}:
            return False
        return all(_selected(page, bid) == set(labels) for bid, labels in self.selected.items())


def _is_retry(pages: Sequence[Page], actions: Sequence[str], earlier: int, later: int) -> bool:
    """The same click again, as after a time-out; on a tab, which a second click may close, only if nothing changed."""
    first, second = read_action(actions[earlier]), read_action(actions[later])
    if first is None or first != second:
        return False
    return pages[earlier].by_bid[first.bid].role != "tab" or pages[earlier] == pages[later]


def _holds(page: Page, bid: str, text: str, done: Sequence[Action]) -> bool:
    """Whether a field shows `text`; a masked field (bullets) is believed if the last fill of it was `text`."""
    value = page.by_bid[bid].value if bid in page.by_bid else ""
    if value and set(value) == {"•"}:
        fills = [a.values[0] for a in done if a.name == "fill" and a.bid == bid and a.values]
        return bool(fills) and fills[-1] == text and len(value) == len(text)
    return value == text or (value != "" and value == text.strip())


def _selected(page: Page, owner: str) -> set[str]:
    return {o.name for o in page.options(owner) if o.selected}


def _can_toggle(role: str, checked: bool) -> bool:
    return role == "checkbox" or not checked
