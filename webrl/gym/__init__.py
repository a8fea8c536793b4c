"""Our environment under gymnasium ids, as BrowserGym's agents know environments; importing this registers the ids.

    import gymnasium, webrl.gym
    env = gymnasium.make("webrl/miniwob.click-test")

`webrl/miniwob.PAGE` is each installed MiniWoB++ page, `webrl/openended` any page (`task_kwargs={"start_url": …, "goal":
…}`). What an environment takes and returns: `webrl/gym/env.py`.
"""

from __future__ import annotations

from webrl.config.extras import require
from webrl.rollouts.miniwob import page_names

require("browsergym", "webrl.gym")
import gymnasium  # noqa: E402

OPENENDED = "openended"


def _register(name: str) -> None:
    # As BrowserGym: whether a page follows the clock is not known of all of them.
    gymnasium.register(
        id=f"webrl/{name}", entry_point="webrl.gym.env:WebEnv", kwargs={"site": name}, nondeterministic=True
    )


# An id that is not registered cannot be made, so that the import has to know the pages.
for _site in (OPENENDED, *(f"miniwob.{name}" for name in sorted(page_names()))):
    _register(_site)
