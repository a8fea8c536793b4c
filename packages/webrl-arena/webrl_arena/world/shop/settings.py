"""Django set up for the arena, with shop, forum and mail: no caches, nothing outside of this machine.

`settings.yaml` has what is not computed.
"""

from __future__ import annotations

from pathlib import Path
from typing import Any

import django
import oscar
import yaml
from django.apps import apps
from django.conf import settings
from machina import MACHINA_MAIN_TEMPLATE_DIR
from oscar import defaults

_MACHINA_APPS = (
    *("forum", "forum_conversation", "forum_conversation.forum_attachments", "forum_conversation.forum_polls"),
    *("forum_feeds", "forum_moderation", "forum_search", "forum_tracking", "forum_member", "forum_permission"),
)


def configure(secret: str) -> None:
    """Set Django up in this process, once; `secret` signs its cookies and forms."""
    here = Path(__file__)
    ours: dict[str, Any] = yaml.safe_load(here.with_suffix(".yaml").read_text(encoding="utf-8"))
    ours["TEMPLATES"][0]["DIRS"] = [str(here.with_name("templates")), MACHINA_MAIN_TEMPLATE_DIR]
    machina = [f"machina.apps.{name}" for name in _MACHINA_APPS]
    ours |= {"SECRET_KEY": secret, "INSTALLED_APPS": [*oscar.INSTALLED_APPS, "mptt", "machina", *machina, "postman"]}
    oscar_defaults = {name: value for name, value in vars(defaults).items() if name.isupper()}
    settings.configure(**(oscar_defaults | ours))
    django.setup()
    # The tables are made as they are today, not by way of ten years of migrations.
    settings.MIGRATION_MODULES = dict.fromkeys(apps.app_configs)
