"""What needs an optional package says so in one line before it does anything, with the command that installs it."""

import contextlib
import importlib
import sys
import tomllib
from pathlib import Path

import pytest

from webrl import cli
from webrl.config import RolloutConfig, load_config
from webrl.config.extras import EXTRAS, TESTED, require, warn_of_openenv_conflict
from webrl.errors import ExtraMissing
from webrl.preflight import check_inputs
from webrl_serve.openenv.client import RemotePool

ROOT = Path(__file__).resolve().parents[2]
DEEPSPEED, RAY, VLLM = (f"pip install 'webrl[{name}]'" for name in ("deepspeed", "ray", "vllm"))
TRACKERS = "pip install 'webrl[trackers]'"


def hide(name: str, monkeypatch: pytest.MonkeyPatch) -> None:
    """As if the extra were not installed."""
    for module in EXTRAS[name][1]:
        monkeypatch.setitem(sys.modules, module.partition(".")[0], None)
        monkeypatch.setitem(sys.modules, module, None)


@pytest.mark.parametrize(
    ("command", "extra", "option", "fix"),
    [
        ("run", "ray", "rollout.backend=ray", RAY),
        ("run", "vllm", "rollout.engine.kind=vllm", VLLM),
        ("gen-tasks", "vllm", "generate.engine.kind=vllm", VLLM),
        ("label", "vllm", "label.engine.kind=vllm", VLLM),
        ("train-orm", "deepspeed", "orm.engine=zero3", DEEPSPEED),
        ("train", "deepspeed", "critic.engine=zero2", DEEPSPEED),
        ("eval", "webarena", "tasks.suite=webarena", "make webarena"),
        ("run", "wandb", "trackers=[wandb]", TRACKERS),
        ("label", "trackio", "trackers=[trackio]", TRACKERS),
        (f"sft --data {ROOT / 'data' / 'samples'}", "deepspeed", "sft.engine=zero2", DEEPSPEED),
    ],
)
def test_an_option_whose_extra_is_missing(command, extra, option, fix, tmp_path, monkeypatch, capsys):
    hide(extra, monkeypatch)
    name, *rest = command.split()
    assert cli.main([name, "demo", f"runs_dir={tmp_path}", option, *rest]) == 2
    said = capsys.readouterr().err.splitlines()
    assert len(said) == 1
    assert said[0].startswith(f"webrl: {option} needs {extra}, which is not installed: {fix}")
    assert list(tmp_path.iterdir()) == []


def test_the_dry_run_names_every_extra_that_is_missing(tmp_path: Path, monkeypatch, capsys) -> None:
    for name in ("ray", "vllm"):
        hide(name, monkeypatch)
    options = ["rollout.backend=ray", "rollout.engine.kind=vllm"]
    assert cli.main(["run", "demo", f"runs_dir={tmp_path}", *options, "--dry-run"]) == 0
    named = [line for line in capsys.readouterr().out.splitlines() if line.startswith("# missing on this machine: ")]
    assert [line.split(": ", 1)[1].partition(" needs ")[0] for line in named] == options
    assert f"which is not installed: {RAY}" in named[0]
    assert cli.main(["label", "demo", f"runs_dir={tmp_path}", *options, "--dry-run"]) == 0
    assert "# missing" not in capsys.readouterr().out


def test_a_stage_asks_for_what_it_uses_only(monkeypatch) -> None:
    for name in EXTRAS:
        hide(name, monkeypatch)
    config = load_config(None, ["rollout.backend=ray", "actor.engine=zero3", "label.engine.kind=vllm"])
    check_inputs(config, ("replay",))
    with pytest.raises(ExtraMissing, match=r"label\.engine\.kind=vllm"):
        check_inputs(config, ("label",))
    check_inputs(load_config(None, ["rollout.engine.kind=vllm"]), ("sft",))
    elsewhere = ["rollout.engine.kind=vllm", "rollout.engine.vllm_python=/elsewhere/bin/python"]
    check_inputs(load_config(None, elsewhere), ("rollout",))


def install_metadata(name: str, version: str, folder: Path, monkeypatch) -> None:
    """A package of this name and version, found before any other."""
    info = folder / f"{name.replace('-', '_')}-{version}.dist-info"
    info.mkdir(parents=True)
    (info / "METADATA").write_text(f"Metadata-Version: 2.1\nName: {name}\nVersion: {version}\n")
    monkeypatch.syspath_prepend(str(folder))


@pytest.mark.grpo
@pytest.mark.parametrize(
    ("version", "was_tested"),
    [("1.16.0", True), ("1.16.3", True), ("1.15.0", False), ("1.17.0", False), ("1.17.0.dev0", False), ("0.29", False)],
)
def test_a_version_of_trl_that_was_not_tested_is_refused(version, was_tested, tmp_path, monkeypatch):
    install_metadata("trl", version, tmp_path, monkeypatch)
    said = rf"webrl grpo needs trl>=1.16,<1.17, but {version} is installed: pip install 'webrl\[grpo\]'"
    with contextlib.nullcontext() if was_tested else pytest.raises(ExtraMissing, match=said):
        require("grpo", "webrl grpo")


def test_the_tested_versions_are_those_that_the_package_asks_for() -> None:
    for name, packages in TESTED.items():
        own = ROOT / "packages" / f"webrl-{name}" / "pyproject.toml"
        path = own if own.is_file() else ROOT / "pyproject.toml"
        project = tomllib.loads(path.read_text(encoding="utf-8"))["project"]
        wanted = project["dependencies"] if own.is_file() else project["optional-dependencies"][name]
        for package, versions in packages.items():
            assert f"{package}{versions}" in wanted


@pytest.mark.grpo
def test_both_packages_of_the_module_openenv_are_named_with_the_fix_wherever_openenv_is_spoken(
    tmp_path: Path, monkeypatch, caplog, capsys
) -> None:
    install_metadata("openenv", "0.10.0", tmp_path / "a", monkeypatch)
    install_metadata("openenv-core", "0.3.0", tmp_path / "b", monkeypatch)
    found = "openenv 0.10.0 and openenv-core 0.3.0 both install the module openenv, which is now a mixture of the two"
    fix = "pip uninstall -y openenv openenv-core, then pip install openenv"
    for speak in (
        lambda: cli.main(["serve-env", "--dry-run"]),
        lambda: RemotePool(RolloutConfig(env="openenv", urls=("http://127.0.0.1:9",))),
        lambda: cli.main(["grpo", "--model-id", "./nowhere"]),
    ):
        warn_of_openenv_conflict.cache_clear()
        caplog.clear()
        speak()
        assert f"{found}: {fix}" in capsys.readouterr().err + caplog.text
    assert cli.main(["doctor", "openenv"]) == 0
    lines = [line.split(maxsplit=2) for line in capsys.readouterr().out.splitlines()]
    assert lines == [["warning", "openenv", found], ["fix:", *fix.split(maxsplit=1)]]


def test_the_gymnasium_environments_ask_when_they_are_imported(monkeypatch) -> None:
    hide("browsergym", monkeypatch)
    monkeypatch.delitem(sys.modules, "webrl_serve.gym", raising=False)
    with pytest.raises(ExtraMissing, match=r"webrl_serve.gym needs browsergym, which is not installed: pip install"):
        importlib.import_module("webrl_serve.gym")


def test_training_on_a_gpu_asks_for_a_c_compiler_before_it_starts(tmp_path: Path, monkeypatch) -> None:
    config = load_config(None, [])
    check_inputs(config, ("train", "replay"))  # imports all that would import triton, before there is an empty one
    (tmp_path / "triton").mkdir()
    (tmp_path / "triton" / "__init__.py").touch()
    monkeypatch.syspath_prepend(tmp_path)
    monkeypatch.setenv("CUDA_VISIBLE_DEVICES", "0")
    monkeypatch.setenv("CC", "--no-compiler")
    for stage in ("sft", "train", "train-orm"):
        with pytest.raises(
            ExtraMissing, match=r"training on a GPU needs a C compiler, but CC='--no-compiler' is not a"
        ):
            check_inputs(config, (stage,))
    check_inputs(config, ("replay",))
    check_inputs(load_config(None, ["models.device=cpu"]), ("train",))
    monkeypatch.setenv("CC", sys.executable)
    check_inputs(config, ("train",))
    monkeypatch.delenv("CC")
    monkeypatch.setenv("PATH", str(tmp_path))
    with pytest.raises(ExtraMissing, match=r"but there is neither gcc nor clang \(Debian: apt-get install gcc\)"):
        check_inputs(config, ("train",))
    monkeypatch.setenv("CUDA_VISIBLE_DEVICES", "")
    check_inputs(config, ("train",))
