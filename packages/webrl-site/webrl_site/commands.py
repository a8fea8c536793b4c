"""Commands for your own site, and for demonstrations."""

from webrl.cli.command import RESUMES, Command

INIT_SITE = Command(
    "write a config and first instructions for your own site, and try it", "webrl_site.cli.init_site", "make"
)
RECORD_DEMOS = Command(
    "record demonstrations, by scripted experts or by hand", "webrl_site.cli.record_demos", "make", after_ctrl_c=RESUMES
)
