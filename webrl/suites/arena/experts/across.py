"""How the tasks across the staff's sites are done."""

from __future__ import annotations

import re

from webrl.arena.forum.words import ANNOUNCEMENTS
from webrl.suites.arena.experts.dashboard import find_order, set_status
from webrl.suites.arena.experts.forum import open_topic, post, start_topic
from webrl.suites.arena.experts.mail import reply, ticked, write
from webrl.suites.arena.experts.script import Script, Step, below, beside, click, noting
from webrl.suites.arena.experts.tracker import find_ticket, new_ticket


def _find_order(slots: dict[str, str]) -> list[Step]:
    """That whose number the message's subject names."""
    number = "".join(re.findall(r"\d+", slots["mail"]))
    return [click("Dashboard"), *find_order({"number": number})]


def _milestone(slots: dict[str, str], site: str) -> list[Step]:
    return [*find_ticket(slots["ticket"]), noting(beside("Milestone:"), click(site))]


SCRIPTS: dict[str, Script] = {
    "cancel-order": lambda slots: [*ticked("Archive")(slots), *_find_order(slots), *set_status("Cancelled")],
    "answer-total": lambda slots: [
        *_find_order(slots),
        noting(below("Order Total"), click("Return to site")),
        click("Mail"),
        *reply(slots["mail"], slots.get("note", "")),
    ],
    "report-fault": lambda slots: [
        *ticked("Archive")(slots),
        click("Tracker"),
        *new_ticket({"name": slots["mail"], "component": slots["component"]}),
    ],
    "tell-milestone": lambda slots: [
        *_milestone(slots, "MAIL"),
        *write(slots["address"], slots["name"], slots.get("note", "")),
    ],
    "ticket-of-topic": lambda slots: [
        *open_topic(slots["topic"]),
        click("Post reply"),
        *post(slots["text"]),
        click("Shop", "link"),
        click("Tracker"),
        *new_ticket({"name": slots["topic"], "component": slots["component"]}),
    ],
    "announce-milestone": lambda slots: [
        *_milestone(slots, "FORUM"),
        *start_topic(ANNOUNCEMENTS, slots["name"], slots.get("note", "")),
    ],
}
"""By template."""
