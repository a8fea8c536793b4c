"""Your own web application (`tasks.suite=web`, docs/own_site.md), in the order in which an episode meets it.

sites, locks: what WebArena and the arena use, too. tasks: the instructions. hooks, login: the site before a stage and
an episode. env: its environment and limits. checks: its score. explore: pages for the generator and `webrl init-site`;
starter: what that writes and tries. suite: all this as a `Suite`.
"""

import webrl.config  # noqa: F401 - which imports settings.py: in the other order that would be half there
