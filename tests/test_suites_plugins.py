"""Suites that other packages bring: found by their entry points, played as webrl's own, and refused by name."""

import asyncio
import contextlib
import json
import math
import os
import subprocess
import sys
from pathlib import Path

import pytest
from processes import OF_THE_HUB
from report_builders import trajectory
from rollouts_builders import Scripted
from toy_builders import toy_package
from toy_suite import install

from webrl.config import RolloutConfig, RunConfig, plugins
from webrl.errors import StageError
from webrl.rollouts.episode import run_episode
from webrl.rollouts.interface import Observation, Score, StepResult
from webrl.rollouts.suite import API_VERSION, Suite, score_episode
from webrl.runs.folder import RunFolder
from webrl.runs.store import read_records
from webrl.types import Label, Task, Trajectory

ROOT = Path(__file__).resolve().parents[1]
SMALL = [
    "tasks.suite=toy", "tasks.source=fresh", "tasks.num_seed_tasks=3", "tasks.num_eval_tasks=3", "num_phases=1",
    "rollout.num_workers=1", "rollout.envs_per_worker=3", "rollout.max_steps=3", "critic.steps=1", "actor.steps=1",
    "accept.tasks=0", "models.max_prompt_tokens=400", "label.max_prompt_tokens=400", "replay.demos=[]",
]  # fmt: skip


@pytest.fixture
def toy(tmp_path, monkeypatch):
    """The toy package on the path of every process that is started."""
    with toy_package(tmp_path / "site-packages", monkeypatch) as folder:
        yield folder


class InPoints(float):
    """An environment of somebody who scores from 0 to 100: this much, at once."""

    async def reset(self, task):
        return Observation("a page", "about:blank", "Press.")

    async def step(self, text):
        return StepResult(await self.reset(None), text, "", done=True, reward=float(self), agent_done=False)

    async def finish(self):
        return Score(float(self))


@pytest.mark.parametrize("points", [-1.0, 0.3, 1.0, 1.5, 100.0, math.nan, -math.inf])
def test_a_reward_above_1_or_none_is_not_cut_to_1_but_ends_the_stage_by_step_or_score(points):
    task, env = Task("t", "toy.press"), InPoints(points)
    by_step = run_episode(env, Scripted("noop()"), task, RolloutConfig(), trajectory_id="t", phase=0, seed=0)
    for played in (by_step, score_episode(env, trajectory(task, 0, None))):
        refused = pytest.raises(StageError, match=rf"the environment's reward is {points}; scale it to \[0, 1\]")
        with contextlib.nullcontext() if points <= 1 and math.isfinite(points) else refused:
            assert asyncio.run(played).env_reward == points


class Plain(Suite):
    """No more than a suite has to have."""

    name, api_version = "plain", API_VERSION

    def training_tasks(self, config, draw=0):
        return []

    def eval_tasks(self, config):
        return []


def python(*arguments, folder=None, path=()):
    """Run `python ARGUMENTS`; `path`: folders in place of the toy's."""
    environment = os.environ | ({"PYTHONPATH": os.pathsep.join(map(str, path))} if path else {})
    command = [sys.executable, *arguments]
    return subprocess.run(command, cwd=folder, env=environment, capture_output=True, text=True, timeout=500)


def webrl(*arguments, **where):
    return python("-m", "webrl.cli", *arguments, **where)


EACH = """
import contextlib, io, json, sys
from webrl import cli
for command in sys.argv[1:]:
    with contextlib.redirect_stdout(io.StringIO()) as out, contextlib.redirect_stderr(io.StringIO()) as err:
        try:
            code = cli.main(command.split())
        except SystemExit as end:  # argparse's
            code = end.code
    print(json.dumps([code, out.getvalue(), err.getvalue()]))
"""


def each(*commands, folder=None, path=()):
    """Exit code, stdout and stderr of each `webrl COMMAND`, all of them in one process: to start one takes a second."""
    done = python("-c", EACH, *commands, folder=folder, path=path)
    assert done.returncode == 0, done.stderr
    return [json.loads(line) for line in done.stdout.splitlines()]


@pytest.mark.browser
@pytest.mark.companion("site")
def test_a_suite_of_another_package_records_demonstrations(toy, tmp_path):
    recorded = webrl("record-demos", "demo", "--per-type", "3", *SMALL, f"runs_dir={tmp_path}")
    assert recorded.returncode == 0, recorded.stderr
    assert "toy.press                            3/3 solved" in recorded.stdout
    demos = list(read_records(tmp_path / "demo" / "demos" / "trajectories.jsonl", Trajectory))
    assert [(each.env_reward, len(each.steps)) for each in demos] == [(1.0, 1)] * 3


@pytest.mark.slow
@pytest.mark.browser
def test_a_suite_of_another_package_is_rolled_out_trained_on_and_evaluated(toy, tmp_path):
    done = webrl("run", "demo", *SMALL, f"runs_dir={tmp_path}")
    assert done.returncode == 0, done.stderr
    summary = json.loads((tmp_path / "demo" / "summary.json").read_text())
    for phase in summary["phases"]:
        assert (phase["eval"]["episodes"], phase["eval"]["errors"]) == (3, 0)
        assert f"toy says {phase['eval']['successes']}/3" in done.stdout
    phases = [RunFolder(tmp_path / "demo").phase(number) for number in (0, 1)]
    drawn = [[each.task.seed for each in read_records(phase.trajectories, Trajectory)] for phase in phases]
    assert [len(seeds) for seeds in drawn] == [3, 3]
    assert drawn[0] != drawn[1]


WORKS = " ".join(("eval --dry-run tasks.suite=toy tasks.source=fresh", *OF_THE_HUB))
_BROKEN = {
    "old": ({"old": "old:Old"}, "from webrl_toy import Toy\nclass Old(Toy):\n    name, api_version = 'old', 1\n"
            "    def check_settings(self, config, *, mixed): pass\n", "old",
            "'old' has api_version 1, but this webrl needs 2"),
    "gone": ({"gone": "gone:Gone"}, "import nowhere\n", "gone", "gone:Gone of gone cannot be imported: ModuleNotFound"),
    "none": ({"none": "none:Thing"}, "Thing = dict\n", "none", "'none' is <class 'dict'>, not a subclass of"),
    "other": ({"other": "webrl_toy:Toy"}, "\n", "other", "'other' calls it 'toy'"),
}  # fmt: skip


def test_suites_that_cannot_be_used_are_named_and_the_others_work(toy):
    for package, (rows, code, _, _) in _BROKEN.items():
        install(toy, package, rows, code)
    for package in ("one", "two"):
        install(toy, package, {"twins": f"{package}:Toy"}, "Toy = None\n")
    names = {name: words for _, _, name, words in _BROKEN.values()} | {"twins": "'twins' is provided by one and two"}
    *refused, works = each(*(f"run tasks.suite={name} --dry-run" for name in names), WORKS)
    assert works[0] == 0
    for (code, _, said), words in zip(refused, names.values(), strict=True):
        assert (code, words in said, "Traceback" in said) == (2, True, False), said


def test_a_package_that_offers_a_suite_of_webrl_s_own_is_named_and_the_others_work(toy):
    install(toy, "other", {"miniwob": "other:Toy"}, "Toy = None\n")
    commands = ("run demo --dry-run", "rollout tasks.suite=miniwob --dry-run", "run --help", WORKS)
    *refused, shown, works = each(*commands, folder=toy)  # without runs, or the newest is named too
    assert shown[0] == works[0] == 0
    for code, _, said in refused:
        (line,) = said.splitlines()
        assert code == 2
        assert "'miniwob' is provided by other and webrl (webrl.suites); uninstall all but one of them" in line


def core_alone(folder):
    """A path on which webrl is installed without its companions: an installed package is what its metadata say."""
    path = folder / "alone"
    path.mkdir()
    for name in ("webrl", "configs", "data"):
        (path / name).symlink_to(ROOT / name)
    for name in ("webrl", *(f"webrl-{extra}" for extra in plugins.COMPANIONS)):  # the first of a name counts
        metadata = path / f"{name.replace('-', '_')}-9.9.dist-info"
        metadata.mkdir()
        (metadata / "METADATA").write_text(f"Metadata-Version: 2.1\nName: {name}\nVersion: 9.9\n")
    (path / "webrl-9.9.dist-info/entry_points.txt").write_text(
        "[webrl.suites]\nminiwob = webrl.suites.miniwob:MiniWoB\n"
    )
    return path


def test_a_config_with_the_settings_of_an_absent_companion_loads_and_says_what_it_leaves_out(tmp_path):
    """As a run of another suite was saved where all companions are."""
    (tmp_path / "old.yaml").write_text("rollout: {web: {name: notes, read_only: false}, arena: {score_steps: true}}\n")
    shown = webrl("run", "old.yaml", *OF_THE_HUB, "--dry-run", folder=tmp_path, path=[core_alone(tmp_path)])
    assert shown.returncode == 0, shown.stderr
    assert f"rollout.web is left out: {absent('web', 'site')}" in shown.stderr
    assert "rollout.arena is left out" in shown.stderr
    twice = "import logging; logging.basicConfig(level=20)\nfrom webrl.config import load_config, plugins\n"
    twice += "from pathlib import Path\nfor _ in range(2): load_config(Path('old.yaml')); plugins.hook('loss-figure')\n"
    said = python("-c", twice, folder=tmp_path, path=[tmp_path / "alone"]).stderr
    assert said.count("rollout.arena is left out") == 1
    figure = (
        "there is no loss figure: its package is not installed: pip install 'webrl[report]' (in a clone: make setup)"
    )
    assert said.count(figure) == 1
    assert "rollout.webarena" not in shown.stderr
    assert "\n  web: {}\n" in shown.stdout


@pytest.mark.parametrize(
    ("site", "name", "extra"), [("arena.shop.price", "arena", "arena"), ("gitlab+map", "gitlab", "webarena")]
)
def test_a_task_of_an_absent_companion_is_not_taken_for_a_plain_page(site, name, extra, tmp_path):
    code = f"from webrl.rollouts.suite import suite_at; suite_at({site!r})"
    shown = python("-c", code, folder=tmp_path, path=[core_alone(tmp_path)]).stderr
    assert f"ExtraMissing: tasks.suite: {absent(name, extra)}" in shown


def test_no_suite_is_imported_before_it_is_named():
    code = (
        "import sys; from webrl.config import load_config; from webrl.rollouts.suite import seed_tasks\n"
        "seed_tasks(load_config('demo'))\n"
        "print([name for name in sys.modules if name.startswith('webrl.suites.')])"
    )
    shown = python("-c", code, folder=ROOT).stdout
    assert "webrl.suites.miniwob" in shown
    assert not [name for name in ("arena", "webrl_site.", "webarena") if name in shown]


def test_an_instruction_that_no_page_rewards_counts_by_the_outcome_model_and_never_as_failed():
    """What nobody judged is in no rate."""
    suite, config = Plain(), RunConfig()
    episodes = [trajectory(Task(name, "plain.look", instruction="Look."), 0, None) for name in "abc"]
    names = [each.trajectory_id for each in episodes]
    labels = {names[0]: Label(names[0], None, 1, "judge"), names[1]: Label(names[1], None, 0, "judge")}
    assert suite.needs_judge(episodes[0].task)
    counts = suite.summarize(config, episodes, Path(), labels)
    assert (counts["successes"], counts["episodes"], counts["undecided"]) == (1, 2, 1)


COMMAND = "from webrl.cli.command import Command\nHELLO = Command('say hello', 'hello', 'look', False)\n"


def test_a_command_of_another_package_is_listed_and_run(tmp_path):
    body = (
        "def add_arguments(parser): parser.add_argument('name')\ndef main(args): print('hello', args.name); return 3\n"
    )
    folder = install(tmp_path, "hello", {"hello": "hello:HELLO"}, COMMAND + body, group="webrl.commands")
    path = [folder, ROOT]
    assert "  hello         say hello\n" in webrl("--help", path=path).stdout
    done = webrl("hello", "you", path=path)
    assert (done.returncode, done.stdout) == (3, "hello you\n")


def test_a_command_that_cannot_be_used_is_named_and_the_others_work(tmp_path):
    rows = {"gone": "gone:GONE", "twice": "gone:TWICE"}
    install(tmp_path, "gone", rows, "import nowhere\n", group="webrl.commands")
    install(tmp_path, "other", {"twice": "other:TWICE"}, "\n", group="webrl.commands")
    (code, listed, _), *refused, works = each("--help", "gone", "twice", "constraints", path=[tmp_path, ROOT])
    assert code == works[0] == 0
    assert "cannot be used: 'gone': gone:GONE of gone cannot be imported: ModuleNotFoundError" in listed
    assert "cannot be used: 'twice' is provided by gone and other" in listed
    for name, (code, _, said) in zip(("gone", "twice"), refused, strict=True):
        assert (code, f"webrl: '{name}'" in said, "Traceback" in said) == (2, True, False), said


def absent(name, extra):
    return f"'{name}' is not installed: pip install 'webrl[{extra}]' (in a clone: make setup)"


def test_what_needs_a_companion_that_is_not_installed_says_what_installs_it(tmp_path):
    needs = {
        "view --help": ("view", "report"),
        "serve-env --help": ("serve-env", "serve"),
        "init-site --help": ("init-site", "site"),
        "record-demos --by-hand": ("record-demos", "site"),
        "doctor --sites": ("check-sites", "webarena"),
        "rollout demo rollout.env=openenv rollout.urls=[http://127.0.0.1:9]": ("openenv", "serve"),
        "run tasks.suite=arena": ("arena", "arena"),
    }
    said = [f"webrl: {absent(*what)}\n" for what in needs.values()]
    said[-1] = said[-1].replace("webrl: ", "webrl: the command line: tasks.suite = 'arena': ")
    assert each(*needs, folder=tmp_path, path=[core_alone(tmp_path)]) == [[2, "", line] for line in said]


def test_traces_and_the_published_scripts_name_the_companion_that_reads_them(tmp_path):
    (tmp_path / "result/traces").mkdir(parents=True)
    (tmp_path / "failures.jsonl").write_text('{"task": "Buy it", "web": "shopping"}')
    path = [core_alone(tmp_path)]
    code = "from webrl.runs.problems import *; list(read_foreign(Path('result'), ProblemLog()))"
    said = python("-c", code, folder=tmp_path, path=path).stderr
    assert f"ExtraMissing: result: {absent('read-vab', 'webarena')}\n" in said
    for name, *options in (("process_data",), ("gen_task", "--failures", "failures.jsonl")):
        done = python(str(ROOT / "scripts" / f"{name}.py"), *options, folder=tmp_path, path=path)
        said = f"{name}: {absent(name.replace('_', '-'), 'webarena')}\n"
        assert (done.returncode, done.stderr) == (2, said)
