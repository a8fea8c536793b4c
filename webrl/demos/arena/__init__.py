"""Scripted experts for the arena's templates; text in, text out, as the agent has it."""

from __future__ import annotations

from webrl.demos.arena.dashboard import SCRIPTS as _DASHBOARD
from webrl.demos.arena.forum import SCRIPTS as _FORUM
from webrl.demos.arena.script import ArenaExpert
from webrl.demos.arena.storefront import SCRIPTS as _STOREFRONT
from webrl.demos.arena.tracker import SCRIPTS as _TRACKER
from webrl.suites.arena.draw import TEMPLATES

_SCRIPTS = {
    "shop": _STOREFRONT,
    "shop_admin": _DASHBOARD,
    "forum": _FORUM,
    "forum+shop": _FORUM,
    "shop+forum": _FORUM,
    "tracker": _TRACKER,
    "tracker+shop_admin": _TRACKER,
    "shop_admin+tracker": _TRACKER,
    "shop+tracker": _TRACKER,
}

ARENA_EXPERTS: dict[str, ArenaExpert] = {
    template.key: ArenaExpert(template, _SCRIPTS[template.site][template.name]) for template in TEMPLATES
}
"""By task type."""
