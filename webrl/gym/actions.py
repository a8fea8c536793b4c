"""Actions as an agent's own `HighLevelActionSet` reads them, carried out by us: its Python code is never run.

API: `ActionReader(action_mapping)(text) -> Action`; `FORCED` are the handlers of a second try, `retry_with_force`.
"""

from __future__ import annotations

import dataclasses
import inspect
from collections.abc import Callable, Sequence
from typing import Any

from browsergym.core.action import functions
from browsergym.core.action.highlevel import HighLevelActionSet

from webrl.errors import UsageError
from webrl.rollouts.actions import ACTIONS, Action, ActionError, parse_action
from webrl.rollouts.execute import Handler, Tabs, attempt, click_holding, fill_in, locate, set_value


class ActionReader:
    """Reads what an agent writes: the calls that its action set finds in it, one after the other."""

    def __init__(self, action_mapping: Callable[[str], str] | None) -> None:
        """Take the mapping that an agent gives an environment.

        Raises:
            UsageError: it is no `HighLevelActionSet.to_python_code`, or one with what is not done here.
        """
        action_set = getattr(action_mapping, "__self__", None)
        if not isinstance(action_set, HighLevelActionSet) or action_mapping != action_set.to_python_code:
            raise UsageError(
                f"action_mapping={action_mapping!r:.200}: only the `to_python_code` of a HighLevelActionSet is known; "
                "Python code is not run here"
            )
        if action_set.demo_mode not in (None, "off"):
            raise UsageError(f"demo_mode={action_set.demo_mode!r} of the action set: nothing is shown; leave it off")
        for name in action_set.action_set:
            if name not in ACTIONS or inspect.getsource(getattr(functions, name)) not in action_set.python_includes:
                raise UsageError(f"action {name!r} of the action set is not BrowserGym's: no others are known here")
        self._set = action_set
        self.retries_with_force = bool(action_set.retry_with_force)
        """Whether a click that waits for its element in vain is tried again without waiting."""

    def __call__(self, text: str) -> Action:
        """The first action, with the others in its `rest`. Raises ActionError in BrowserGym's words."""
        try:
            code = self._set.to_python_code(text)
        except Exception as error:  # whatever pyparsing raises is the agent's error
            raise ActionError(f"{type(error).__name__}: {error}") from None
        try:
            # Functions first, then one call a line: a repr has no line breaks.
            first, *rest = map(parse_action, code.removeprefix(self._set.python_includes).strip().split("\n"))
        except ActionError as error:
            raise ActionError(f"ValueError: {error}") from None
        return dataclasses.replace(first, rest=tuple(rest)) if rest else first


async def _fill(tabs: Tabs, bid: str, value: str, enable_autocomplete_menu: bool) -> None:
    await fill_in(tabs, bid, value, enable_autocomplete_menu, force=True)


async def _select_option(tabs: Tabs, bid: str, options: str | list[str]) -> None:
    await set_value(tabs, bid, "select_option", options, force=True)


def _by_name(method: str) -> Handler:
    async def handle(tabs: Tabs, bid: str, modifiers: Sequence[str] | None = None, **options: Any) -> None:
        element = await locate(tabs.page, bid)
        if modifiers is None:
            await attempt(element, method, force=True, **options)
        else:
            await click_holding(tabs, element, method, modifiers, force=True, **options)

    return handle


FORCED: dict[str, Handler] = {
    "fill": _fill,
    "select_option": _select_option,
    **{name: _by_name(name) for name in ("click", "dblclick", "hover", "check", "uncheck")},
}
"""The actions that BrowserGym forces, by name."""
