"""Everything that webrl plays: all its suites, in browsers of its own or on OpenEnv servers."""

from __future__ import annotations

from webrl.openenv.client import RemotePool
from webrl.rollouts.suite import WebPages, World
from webrl.suites.arena.suite import ArenaSuite
from webrl.suites.web.suite import OwnSite
from webrl.suites.webarena.suite import WebArena

WORLD = World("webrl.suites.world:WORLD", (WebArena(), OwnSite(), ArenaSuite(), WebPages()), RemotePool)
