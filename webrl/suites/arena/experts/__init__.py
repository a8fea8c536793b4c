"""Scripted experts for the arena's templates; text in, text out, as the agent has it."""

from __future__ import annotations

from webrl.suites.arena.across import ACROSS
from webrl.suites.arena.dashboard import DASHBOARD
from webrl.suites.arena.experts.across import SCRIPTS as _ACROSS
from webrl.suites.arena.experts.dashboard import SCRIPTS as _DASHBOARD
from webrl.suites.arena.experts.forum import SCRIPTS as _FORUM
from webrl.suites.arena.experts.mail import SCRIPTS as _MAIL
from webrl.suites.arena.experts.script import ArenaExpert
from webrl.suites.arena.experts.storefront import SCRIPTS as _STOREFRONT
from webrl.suites.arena.experts.tracker import SCRIPTS as _TRACKER
from webrl.suites.arena.forum import FORUM
from webrl.suites.arena.mail import MAIL
from webrl.suites.arena.storefront import STOREFRONT
from webrl.suites.arena.tracker import TRACKER

_SCRIPTS = (
    *((STOREFRONT, _STOREFRONT), (DASHBOARD, _DASHBOARD), (FORUM, _FORUM), (TRACKER, _TRACKER)),
    *((MAIL, _MAIL), (ACROSS, _ACROSS)),
)

ARENA_EXPERTS: dict[str, ArenaExpert] = {
    template.key: ArenaExpert(template, scripts[template.name])
    for templates, scripts in _SCRIPTS
    for template in templates
}
"""By task type."""
