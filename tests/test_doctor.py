"""The doctor against this machine, and against a machine that lacks things."""

import os
import re
import runpy
import sys
import tomllib
from pathlib import Path

import pytest
from packaging.specifiers import SpecifierSet

from webrl import cli
from webrl.cli import doctor
from webrl.rollouts.devtools import load_script
from webrl.rollouts.env import BrowserEnv

ROOT = Path(__file__).resolve().parent.parent


@pytest.mark.parametrize("version", ["3.10.13", "3.14.0"])
def test_another_python_is_refused_by_name_when_webrl_is_imported(version, monkeypatch):
    monkeypatch.setattr(sys, "version", f"{version} (main)")
    monkeypatch.setattr(sys, "version_info", tuple(map(int, version.split("."))))
    with pytest.raises(ImportError, match=re.escape(f"webrl needs Python 3.11, 3.12 or 3.13; this is {version}")):
        runpy.run_path(str(ROOT / "webrl" / "__init__.py"))
    project = tomllib.loads((ROOT / "pyproject.toml").read_text(encoding="utf-8"))["project"]
    assert not SpecifierSet(project["requires-python"]).contains(version)


@pytest.mark.browser
def test_the_browser_is_really_started():
    found = doctor.check_browser()
    assert found.state == doctor.OK, found
    assert found.detail.startswith("Chromium ")


@pytest.mark.browser
def test_a_browser_in_which_no_episode_begins_is_missing(monkeypatch):
    script = f"delete window.MutationObserver; {load_script('settle', 'miniwob')}"
    monkeypatch.setattr(BrowserEnv, "_page_script", script)
    found = doctor.check_browser()
    assert (found.state, found.detail.partition(":")[0]) == (doctor.MISSING, "reset of 'page'"), found


@pytest.mark.browser
def test_a_browser_that_does_not_start_is_missing_with_a_fix(tmp_path, monkeypatch, capsys, webrl):
    broken = tmp_path / "chromium"
    broken.write_text("#!/bin/sh\nexit 3\n", encoding="utf-8")
    broken.chmod(0o755)
    monkeypatch.setenv("WEBRL_CHROMIUM", str(broken))
    monkeypatch.setattr("webrl.rollouts.browser.LAUNCH_TIMEOUT_S", 3)
    shown = webrl(1, "doctor", "browser").out
    assert shown.startswith("missing")
    assert "fix: make setup" in shown
    monkeypatch.chdir(tmp_path)
    monkeypatch.setenv("WEBRL_CHROMIUM", "nowhere/chromium")
    assert doctor.check_browser().detail.startswith("WEBRL_CHROMIUM=nowhere/chromium: no executable there")
    assert doctor.check_browser().fix.startswith("apt-get install chromium-headless-shell, or playwright install")
    assert cli.main(["run", "demo", f"runs_dir={tmp_path}/runs"]) == 1
    assert "WEBRL_CHROMIUM=nowhere/chromium: no executable there" in capsys.readouterr().err
    assert not list(tmp_path.glob("runs/demo/phase_*"))  # before anything starts


def test_an_absent_extra_is_optional_and_installed_with_the_clone_s_files_where_there_is_one(tmp_path, monkeypatch):
    found = doctor.check_extra("surely-not-installed")
    assert (found.state, found.detail) == (doctor.OPTIONAL, "not installed")
    assert found.fix.endswith("pip install -c constraints.txt -e '.[surely-not-installed]'")
    monkeypatch.chdir(tmp_path)
    monkeypatch.setattr(sys, "executable", "/opt/two words/bin/python")
    found = doctor.check_extra("surely-not-installed")
    assert found.fix == "'/opt/two words/bin/pip' install 'webrl[surely-not-installed]'"


def test_an_extra_that_does_not_import_or_is_of_an_untested_version_is_a_warning(tmp_path, monkeypatch):
    for name in ("halfthere", "vllm"):
        (tmp_path / f"{name}-0.1.dist-info").mkdir()
        (tmp_path / f"{name}-0.1.dist-info" / "METADATA").write_text(f"Name: {name}\nVersion: 0.1\n", encoding="utf-8")
    (tmp_path / "halfthere.py").write_text("raise RuntimeError('operator torchvision::nms does not exist')")
    monkeypatch.syspath_prepend(tmp_path)
    monkeypatch.setenv("PYTHONPATH", str(tmp_path))
    found = doctor.check_extra("halfthere")
    assert found.state == doctor.WARNING
    assert "torchvision::nms" in found.detail
    assert "pip uninstall torchvision" in found.fix
    found = doctor.check_extra("vllm")
    assert found.state == doctor.WARNING
    assert re.fullmatch("webrl needs vllm>=.*, but 0.1 is installed", found.detail)


def test_a_read_only_folder_is_missing(tmp_path, monkeypatch):
    tmp_path.chmod(0o555)
    monkeypatch.chdir(tmp_path if os.geteuid() else "/proc/self")  # root may write in any other folder
    assert doctor.check_disk().state == doctor.MISSING


def test_a_warning_or_an_absent_extra_is_no_failure(tmp_path, monkeypatch, webrl):
    monkeypatch.chdir(tmp_path)
    found = webrl(0, "doctor", "python", "memory", "ray", "disk").out.splitlines()
    assert [line.split()[1] for line in found if "fix: " not in line] == ["python", "memory", "ray", "disk"]
    assert found[0].endswith(f"({sys.executable})")


@pytest.mark.companion("webarena")
@pytest.mark.browser
def test_without_webarena_sites_the_doctor_says_how_to_name_them(monkeypatch, webrl):
    for name in [n for n in os.environ if n.startswith("WA_")]:
        monkeypatch.delenv(name)
    said = webrl(1, "doctor", "--sites").out
    assert "no WebArena site is configured" in said
    assert "set rollout.webarena.sites in a config" in said
