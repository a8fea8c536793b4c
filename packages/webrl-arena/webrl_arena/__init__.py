"""Practice sites of webrl: a shop, a forum, a tracker and mail, with tasks and scripted experts."""

import webrl.config  # noqa: F401 - which imports settings.py: in the other order that would be half there
