"""Registers our environment under gymnasium ids, for BrowserGym's agents.

    import gymnasium, webrl_serve.gym
    env = gymnasium.make("webrl/miniwob.click-test")

`webrl/miniwob.PAGE` is each installed MiniWoB++ page, `webrl/openended` any page (`task_kwargs={"start_url": …, "goal":
…}`). Options, observations and actions of an environment: `webrl_serve/gym/env.py`.
"""

from __future__ import annotations

from webrl.config.extras import require
from webrl.rollouts.sites import page_names

require("browsergym", "webrl_serve.gym")
import gymnasium  # noqa: E402

OPENENDED = "openended"

# An id that is not registered cannot be made, so that the import has to know the pages.
for _site in (OPENENDED, *(f"miniwob.{name}" for name in sorted(page_names()))):
    # As in BrowserGym: it is not known of every page whether it depends on the time.
    gymnasium.register(
        id=f"webrl/{_site}", entry_point="webrl_serve.gym.env:WebEnv", kwargs={"site": _site}, nondeterministic=True
    )
