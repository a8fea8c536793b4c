"""The commands that show runs and publish their models."""

from webrl.cli.command import RESUMES, Command

REPORT = Command(
    "write runs as one HTML page: charts, curriculum, judge, time, settings",
    "webrl_report.cli.report",
    "look",
    uses_torch=False,
)
VIEW = Command("browse a run's episodes, and label them by hand", "webrl_report.cli.view", "look", uses_torch=False)
PUSH = Command(
    "upload a run's model to the Hugging Face Hub, with card and report",
    "webrl_report.cli.push",
    "serve",
    after_ctrl_c=RESUMES,
)
