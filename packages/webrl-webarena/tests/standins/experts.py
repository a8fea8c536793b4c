"""Scripted experts: what a user would do, as steps that find their elements in the observation by role and name."""

import re
from dataclasses import dataclass, field
from pathlib import Path

import yaml

from webrl.errors import PolicyError
from webrl.llm.interface import PolicyOutput, Turn

Script = tuple[tuple[str, ...], ...]

SCRIPTS: dict[int, Script] = {
    number: tuple(map(tuple, steps))
    for number, steps in yaml.safe_load(Path(__file__).with_name("experts.yaml").read_text(encoding="utf-8")).items()
}
DO_NOTHING: Script = (("wait",), ("say", "I am done."))


@dataclass
class Scripted:
    """A policy that plays a script; it says so when an element is not on the page."""

    script: Script
    urls: dict[str, str] = field(default_factory=dict)
    fingerprint: str = "scripted"

    async def act(self, turn: Turn) -> PolicyOutput:
        step = self.script[min(len(turn.history), len(self.script) - 1)]
        return PolicyOutput((), (), (), self.action(step, turn.observation), turn.observation)

    def action(self, step: tuple[str, ...], page: str) -> str:
        kind, *rest = step
        if kind == "say":
            return f"send_msg_to_user({rest[0]!r})"
        if kind == "wait":
            return "noop(0)"
        if kind == "visit":
            return f"goto({self.urls[rest[0]] + rest[1]!r})"
        if kind == "tab":
            return f"tab_focus({rest[0]})"
        bid = find(page, rest[0], rest[1])
        if kind == "click":
            return f"click({bid!r})"
        return f"{'fill' if kind == 'fill' else 'select_option'}({bid!r}, {rest[2]!r})"


def find(page: str, role: str, name: str) -> str:
    """Bid of the first element with this role whose name starts with (else contains) `name`."""
    lines = re.findall(rf"^\s*\[(\w+)\] {role} (['\"])(.*?)\2", page, re.MULTILINE)
    for matches in (lambda text: text == name, lambda text: text.startswith(name), lambda text: name in text):
        for bid, _, text in lines:
            if matches(text):
                return bid
    raise PolicyError(f"no {role} {name!r} on this page:\n{page}")


class Numbered(Scripted):
    """The same in the released checkpoints' language, on simplified HTML."""

    def action(self, step: tuple[str, ...], page: str) -> str:
        kind, *rest = step
        if kind == "say":
            return f"exit(message={rest[0]!r})"
        number = find_number(page, rest[0])
        note = f"# Element: {rest[0]}\n"
        if kind == "click":
            return f'{note}do(action="Click", element="{number}")'
        action = {"type": "Type", "search": "Search", "select": "Select Dropdown Option"}[kind]
        return f'{note}do(action="{action}", argument={rest[1]!r}, element="{number}")'


def find_number(html: str, needle: str) -> str:
    """Number of the first numbered element whose tag, attributes or own text hold `needle`."""
    for text, number in re.findall(r'(<[\w-]+ id="(\d+)"[^<]*)', html):
        if needle in text:
            return number
    raise PolicyError(f"no element {needle!r} on this page:\n{html}")
