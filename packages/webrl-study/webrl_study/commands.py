"""The command that compares methods."""

from webrl.cli.command import RESUMES, Command

STUDY = Command(
    "compare methods and ablations: seeds, equal budgets, tables, figures",
    "webrl_study.cli.study",
    "look",
    after_ctrl_c=RESUMES,
)
