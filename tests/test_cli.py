"""The command line as a user types it: help, errors and exit codes, configs and overrides."""

import json
import os
import re
import subprocess
import sys
from pathlib import Path

import pytest
import yaml
from processes import python

from webrl import cli
from webrl.cli.options import COMMON
from webrl.config import RunConfig, describe_options, load_config, plugins
from webrl.phase import STAGES
from webrl.runs.store import write_text

ROOT = Path(__file__).parent.parent
SUBCOMMANDS = cli.command_names()


def write_config(folder: Path, **values: object) -> Path:
    path = folder / "own.yaml"
    # With the section, the shipped models are looked for from the folder that the test is in when it loads the file.
    path.write_text(yaml.safe_dump({"models": {}} | values), encoding="utf-8")
    return path


def shown_help(*arguments, capsys):
    with pytest.raises(SystemExit) as ended:
        cli.main([*arguments])
    assert ended.value.code == 0
    return capsys.readouterr().out


def test_the_commands_help_is_one_screen_in_groups(capsys):
    shown = shown_help("--help", capsys=capsys)
    lines = shown.splitlines()
    assert all(f" {name}" in shown for name in SUBCOMMANDS)
    assert len(lines) <= 48
    headings = [line for line in lines if line.endswith(":") and not line.startswith(" ")]
    assert headings == [name for name in ("options:", "run:", "look:", "serve:", "make:") if name in headings]
    assert len(headings) == 5 or not plugins.names(plugins.COMMANDS), "without companions a group may have no command"


def test_help_all_lists_every_option_of_run_with_default_and_description(capsys):
    shown = shown_help("run", "--help-all", capsys=capsys)
    for option in describe_options():
        assert option.description, option.keys[0]
        assert f"  {option.keys[0]}=" in shown
        assert " ".join(option.description.split()) in " ".join(shown.split())
        assert all(f"{key}=" in shown for key in option.keys)
    assert "critic.lr=1e-06" in shown
    assert "orm.lr=5e-06" in shown, "the default shown is the one in force, not the base class's"


def test_help_lists_what_people_change_and_a_sections_options_when_asked(capsys):
    short = shown_help("run", "--help", capsys=capsys)
    keys = [line.partition("=")[0].strip() for line in short.splitlines() if re.match(r"  [\w.]+=", line)]
    assert set(keys) <= COMMON
    assert 25 <= len(keys) <= 35
    section = shown_help("rollout", "--help", "accept", capsys=capsys)
    assert "  accept.alpha=0.1" in section
    assert "  actor." not in section


def test_help_imports_neither_torch_nor_playwright():
    code = (
        "import sys\nfrom webrl import cli\n"
        "for arguments in (['--help'], ['--version'], ['run', '--help'], ['rollout', '--help']):\n"
        "    try: cli.main(arguments)\n    except SystemExit: pass\n"
        "    heavy = {'torch', 'transformers', 'playwright', 'sklearn', 'matplotlib', 'numpy'} & set(sys.modules)\n"
        "    if heavy: sys.exit(f'{arguments} imported {heavy}')"
    )
    python("-c", code)


def test_a_working_folder_that_was_removed_is_one_line(tmp_path, monkeypatch, webrl):
    (tmp_path / "gone").mkdir()
    monkeypatch.chdir(tmp_path / "gone")
    (tmp_path / "gone").rmdir()
    assert webrl(2, "doctor").err == "webrl: the working directory no longer exists; change to another one (cd)\n"


def test_dry_run_writes_nothing_and_shows_every_stage_of_every_phase_beside_a_config_to_run(
    tmp_path, monkeypatch, capsys
):
    path = write_config(tmp_path, num_phases=1)
    monkeypatch.chdir(tmp_path)
    assert cli.main(["run", str(path), "--dry-run"]) == 0
    assert [p.name for p in tmp_path.iterdir()] == ["own.yaml"]
    shown = capsys.readouterr().out
    assert shown.startswith("# plan of runs/run\n")
    stages = ", ".join(STAGES)
    assert [line for line in shown.splitlines() if line.startswith("# phase")] == [
        f"# phase {phase}: {stages} to do" for phase in (0, 1)
    ]
    (tmp_path / "shown.yaml").write_text(shown, encoding="utf-8")
    assert load_config(tmp_path / "shown.yaml") == load_config(path)
    named = "# missing on this machine: the model 'ann/agent' (hf download ann/agent)"
    for given in ("models.actor=ann/agent", "--against=ann/agent"):
        assert cli.main(["eval", str(path), given, "--dry-run"]) == 0
        assert capsys.readouterr().out.splitlines()[-1] == named


@pytest.mark.parametrize(
    ("arguments", "expected"),
    [
        ("--seed 7 actor.lr=2e-5 --dry-run name=other", {"seed": 7, "name": "other", "num_phases": 2}),
        ("--run 2024/7 --dry-run", {"runs_dir": "2024", "name": "7"}),
    ],
)
def test_settings_stand_on_both_sides_of_an_option_and_run_names_the_folder(
    arguments, expected, tmp_path, monkeypatch, webrl
):
    path = write_config(tmp_path, num_phases=2)
    monkeypatch.chdir(tmp_path)
    shown = yaml.safe_load(webrl(0, "run", path, *arguments.split()).out)
    assert expected.items() <= shown.items()
    assert (shown["actor"]["lr"] == 2e-5) is ("actor.lr" in arguments)


def test_a_stage_without_config_takes_the_newest_run_folder(tmp_path, monkeypatch, webrl):
    monkeypatch.chdir(tmp_path)
    for age, name in enumerate(["newest", "older"]):
        folder = tmp_path / "runs" / name
        folder.mkdir(parents=True)
        data = RunConfig(name=name).model_dump(mode="json")
        (folder / "config.yaml").write_text(yaml.safe_dump(data), encoding="utf-8")
        os.utime(folder / "config.yaml", (1_000_000 - age, 1_000_000 - age))
    shown = webrl(0, "label", "--dry-run")
    assert yaml.safe_load(shown.out)["name"] == "newest"
    assert "newest run folder: runs/newest" in shown.err


@pytest.mark.parametrize(
    "command", ["train", "run", "train-orm", "sft", pytest.param("record-demos", marks=pytest.mark.companion("site"))]
)
def test_help_says_which_config_a_command_takes_without_one(command, tmp_path, monkeypatch, capsys):
    monkeypatch.chdir(tmp_path)
    (tmp_path / "runs/mine").mkdir(parents=True)
    write_text(tmp_path / "runs/mine/config.yaml", "name: mine\n")
    with pytest.raises(SystemExit):
        cli.main([command, "--help"])
    says_newest = "without a CONFIG: the config of the newest run folder" in capsys.readouterr().out
    cli.main([command, "--dry-run"])
    assert says_newest is ("newest run folder: runs/mine" in capsys.readouterr().err)


@pytest.mark.parametrize(
    ("name", "said"),
    [
        ("run", "interrupted; the same command resumes from here"),
        ("doctor", "interrupted"),
        pytest.param("record-demos", "interrupted; the same command resumes from here",
                     marks=pytest.mark.companion("site")),
        ("sft", "interrupted; the same command resumes from the last training state that sft.save_every wrote, or"
         " starts again"),
    ],
)  # fmt: skip
def test_ctrl_c_promises_to_resume_only_what_a_command_resumes(name, said, monkeypatch, webrl):
    def interrupted(*_: object) -> int:
        raise KeyboardInterrupt

    target = "cli._run_stages" if name == "run" else f"cli.{name.replace('-', '_')}.main"
    monkeypatch.setattr(f"{'webrl_site' if name == 'record-demos' else 'webrl'}.{target}", interrupted)
    assert webrl(130, name).err == f"webrl: {said}\n"


def test_freed_memory_stays_in_the_process_without_a_restart(tmp_path):
    code = (
        "import json, os, resource\nfrom webrl.runs.machine import use_cpu_settings\n"
        "use_cpu_settings()\nfor _ in range(20): bytearray(64 << 20)\n"
        "faults = lambda: resource.getrusage(resource.RUSAGE_SELF).ru_minflt\nbefore = faults()\n"
        "for _ in range(20): bytearray(64 << 20)\n"
        "print(json.dumps([os.environ['OMP_WAIT_POLICY'], faults() - before]))"
    )
    bare = {k: v for k, v in os.environ.items() if not k.startswith(("MALLOC", "OMP", "TOKENIZERS"))}
    done = subprocess.run(
        [sys.executable, "-c", code], env=bare, capture_output=True, text=True, timeout=60, check=True, cwd=ROOT
    )
    policy, faults = json.loads(done.stdout)
    assert policy == "passive"
    assert faults < 20 * (64 << 20) / 4096 / 10  # mapped and unmapped each time, every page would fault
