"""Scripted experts: what a user would do, as steps that find their elements in the observation by role and name."""

from __future__ import annotations

import re
from dataclasses import dataclass, field

from webrl.errors import PolicyError
from webrl.llm.interface import PolicyOutput, Turn

Script = tuple[tuple[str, ...], ...]

# BrowserGym's task number: steps. ("click", role, name), ("fill", role, name, text), ("select", role, name, option),
# ("enter", role, name), ("goto", path), ("say", answer).
SCRIPTS: dict[int, Script] = {
    # One Stop Market
    117: (
        ("click", "link", "My Account"),
        ("click", "link", "My Orders"),
        ("say", "Your first purchase was on 3/2/22."),
    ),
    118: (
        ("fill", "combobox", "Search", "jaw bruxism mouth guard"),
        ("click", "button", "Search"),
        ("say", "Here it is."),
    ),
    276: (("fill", "combobox", "Search", "switch accessories"), ("click", "button", "Search"), ("say", "Done.")),
    313: (("click", "link", "Contact Us"), ("say", "N/A")),
    431: (("tab", "1"), ("click", "button", "Add to Cart"), ("say", "Added.")),
    506: (
        ("click", "link", "Meat Substitutes"),
        ("click", "link", "Plant-based burger"),
        ("click", "button", "Add to Cart"),
        ("click", "link", "Proceed to Checkout"),
        ("click", "button", "Place Order"),
        ("say", "Bought."),
    ),
    516: (("click", "button", "Add to Wish List"), ("say", "Added.")),
    521: (
        ("click", "link", "My Account"),
        ("click", "link", "Newsletter Subscriptions"),
        ("click", "checkbox", "General Subscription"),
        ("click", "button", "Save"),
        ("say", "Subscribed."),
    ),
    574: (
        ("click", "link", "My Account"),
        ("click", "link", "Address Book"),
        ("click", "link", "Edit Address"),
        ("fill", "textbox", "Street Address", "111 Magnolia Path"),
        ("fill", "textbox", "City", "Atlanta"),
        ("select", "combobox", "State/Province", "Georgia"),
        ("fill", "textbox", "Zip/Postal Code", "30303"),
        ("click", "button", "Save Address"),
        ("say", "Updated."),
    ),
    657: (
        ("click", "link", "Contact Us"),
        (
            "fill",
            "textbox",
            "What’s on your mind?",
            "I want a refund: the speaker broke after three days of use. Order 148, SKU B003FVW3VA.",
        ),
        ("say", "Filled in, not sent."),
    ),
    # the shop's administration
    77: (("click", "link", "Pending Reviews"), ("say", "There are 5 pending reviews")),
    95: (("click", "link", "Invoices"), ("say", "The grand total of invoice 000000002 is $39.64.")),
    157: (("click", "link", "All Customers"), ("say", "Here they are.")),
    454: (
        ("click", "link", "Products"),
        ("click", "link", "Edit Ryker"),
        ("select", "combobox", "Enable Product", "No"),
        ("click", "button", "Save"),
        ("say", "Disabled."),
    ),
    470: (
        ("click", "link", "Orders"),
        ("click", "link", "View 302"),
        ("click", "button", "Cancel"),
        ("say", "Cancelled."),
    ),
    488: (
        ("click", "link", "Pages"),
        ("click", "link", "Edit Home Page"),
        ("fill", "textbox", "Page Title", "This is the home page!! Leave here!!"),
        ("click", "button", "Save"),
        ("say", "Changed."),
    ),
    704: (
        ("click", "link", "Sales Report"),
        ("fill", "textbox", "From", "2/1/23"),
        ("fill", "textbox", "To", "2/28/23"),
        ("click", "button", "Show Report"),
        ("say", "Here is the report."),
    ),
    # GitLab
    44: (("click", "link", "To-Do List"), ("say", "Your to-do list.")),
    173: (("click", "link", "Issues"), ("click", "link", "Better initial load"), ("say", "No, it is open")),
    182: (("click", "link", "Issues"), ("click", "link", "homepage content"), ("say", "Yes")),
    259: (("click", "link", "Access Tokens"), ("say", "TMN_bBn9Z48qVbUFZV45")),
    419: (
        ("click", "link", "Edit profile"),
        ("fill", "textbox", "What's your status?", "Enjoying life"),
        ("click", "button", "Update profile settings"),
        ("say", "Set."),
    ),
    476: (
        ("click", "link", "New project"),
        ("fill", "textbox", "Project name", "awesome_llm_reading"),
        ("click", "button", "Create project"),
        ("say", "Made."),
    ),
    485: (
        ("click", "link", "Projects"),
        ("click", "link", "byteblaze/dotfiles"),
        ("click", "link", "Members"),
        ("fill", "textbox", "Username or email address", "vinta"),
        ("select", "combobox", "Select a role", "Guest"),
        ("click", "button", "Invite"),
        ("say", "Invited."),
    ),
    809: (
        ("click", "link", "Projects"),
        ("click", "link", "a11yproject/a11yproject.com"),
        ("click", "link", "New issue"),
        ("fill", "textbox", "Title (required)", "404 for many URLs"),
        ("select", "combobox", "Assignee", "Assign to me"),
        ("fill", "textbox", "Due date", "2030-01-03"),
        ("click", "button", "Create issue"),
        ("say", "Created."),
    ),
    # the forum
    401: (
        ("click", "link", "MarvelsGrantMan136"),
        ("click", "link", "Edit biography"),
        ("fill", "textbox", "Biography", "Seeking SDE positions"),
        ("click", "button", "Save"),
        ("say", "Changed."),
    ),
    404: (
        ("click", "link", "Forums"),
        ("click", "link", "books"),
        ("click", "link", "Adults reading"),
        ("click", "button", "Upvote"),
        ("say", "Liked."),
    ),
    582: (
        ("click", "link", "Create forum"),
        ("fill", "textbox", "Name", "Cyberpunk"),
        ("fill", "textbox", "Description", "Welcome to the future"),
        ("fill", "textbox", "Sidebar", "Games Books Movies Future"),
        ("click", "button", "Create forum"),
        ("say", "Created."),
    ),
    601: (
        ("click", "link", "Forums"),
        ("click", "link", "nyc"),
        ("click", "link", "Submit here"),
        ("fill", "textbox", "Title", "is car necessary in NYC"),
        ("click", "button", "Create submission"),
        ("say", "Posted."),
    ),
    641: (
        ("click", "link", "Forums"),
        ("click", "link", "books"),
        ("click", "link", "Submit here"),
        ("fill", "textbox", "Title", "Virtual meetup of Harry Potter enthusiasts on July 8th"),
        ("click", "button", "Create submission"),
        ("say", "Posted."),
    ),
    652: (("fill", "textbox", "Comment", "???"), ("click", "button", "Post"), ("say", "Replied.")),
    # the map
    71: (("fill", "textbox", "Search", "Chatham University"), ("click", "button", "Go"), ("say", "15232")),
    287: (
        ("click", "link", "Find directions"),
        ("select", "combobox", "Directions type", "Car (OSRM)"),
        ("fill", "textbox", "From", "Pittsburgh"),
        ("fill", "textbox", "To", "Philadelphia"),
        ("click", "button", "Directions"),
        ("say", "8h 33min"),
    ),
    369: (
        ("fill", "textbox", "Search", "Carnegie Music Hall"),
        ("click", "button", "Go"),
        ("click", "link", "Carnegie Music Hall"),
        ("say", "Here."),
    ),
    762: (
        ("click", "link", "Find directions"),
        ("select", "combobox", "Directions type", "Car (OSRM)"),
        ("fill", "textbox", "From", "Carnegie Hall"),
        ("fill", "textbox", "To", "Carnegie Mellon University"),
        ("click", "button", "Directions"),
        ("say", "The route is shown."),
    ),
    # across sites
    673: (
        ("fill", "combobox", "Search", "racing wheel overdrive"),
        ("click", "button", "Search"),
        ("click", "link", "Racing Wheel Overdrive"),
        ("visit", "reddit", "/submit/gaming"),
        ("fill", "textbox", "Title", "real user feedback on Racing Wheel Overdrive for Xbox X"),
        (
            "fill",
            "textbox",
            "Body",
            "Unable to set neutral steering; Doesn’t work with PC; Crazy problems in automatic mode; "
            "pedals stopped working; Only works with certain games",
        ),
        ("click", "button", "Create submission"),
        ("say", "Posted."),
    ),
    741: (
        ("visit", "wikipedia", "/A/Boston_Celtics"),
        ("visit", "map", "/directions"),
        ("select", "combobox", "Directions type", "Car (OSRM)"),
        ("fill", "textbox", "From", "Carnegie Mellon University"),
        ("fill", "textbox", "To", "TD Garden"),
        ("click", "button", "Directions"),
        ("say", "The route is shown."),
    ),
    760: (
        ("visit", "shopping_admin", "/customer/index/"),
        ("visit", "map", "/directions"),
        ("select", "combobox", "Directions type", "Car (OSRM)"),
        ("fill", "textbox", "From", "Allentown, PA"),
        ("fill", "textbox", "To", "Hoboken, NJ"),
        ("click", "button", "Directions"),
        ("say", "The route is shown."),
    ),
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
        return PolicyOutput((), (), (), self._action(step, turn.observation), turn.observation)

    def _action(self, step: tuple[str, ...], page: str) -> str:
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


@dataclass
class Numbered:
    """The same scripts in the released checkpoints' language, on simplified HTML."""

    script: Script
    fingerprint: str = "numbered"

    async def act(self, turn: Turn) -> PolicyOutput:
        step = self.script[min(len(turn.history), len(self.script) - 1)]
        return PolicyOutput((), (), (), self._action(step, turn.observation), turn.observation)

    @staticmethod
    def _action(step: tuple[str, ...], page: str) -> str:
        kind, *rest = step
        if kind == "say":
            return f"exit(message={rest[0]!r})"
        if kind == "do":
            return rest[0]
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
