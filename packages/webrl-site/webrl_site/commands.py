"""Commands for your own site."""

from webrl.cli.command import Command

INIT_SITE = Command(
    "write a config and first instructions for your own site, and try it", "webrl_site.cli.init_site", "make"
)
