"""What ships: wheel contents, declared dependencies, pins, run information."""

import ast
import functools
import re
import subprocess
import sys
import tomllib
import zipfile
from importlib import metadata
from pathlib import Path

import pytest

from webrl import cli
from webrl.config import RunConfig, load_config
from webrl.config.resources import configs_dir, find_config, shipped_configs
from webrl.errors import UsageError
from webrl.runs.provenance import git_commit, package_versions, run_info

ROOT = Path(__file__).parent.parent
PROJECT = tomllib.loads((ROOT / "pyproject.toml").read_text(encoding="utf-8"))["project"]


def requirement_names(requirements: list[str]) -> set[str]:
    return {normalize(re.match(r"[\w.-]+", r).group()) for r in requirements}  # type: ignore[union-attr]


def normalize(name: str) -> str:
    return re.sub(r"[-_.]+", "-", name).lower()


# Both take seconds, and three tests ask.
distributions = functools.cache(metadata.packages_distributions)


@functools.cache
def own_modules() -> set[str]:
    return {"webrl", "tests", "scripts", "benchmarks"} | {
        p.stem for folder in ("tests", "benchmarks", "scripts") for p in (ROOT / folder).rglob("*")
    }


def third_party_imports(path: Path, *, anywhere: bool) -> set[str]:
    """Top-level names of a file's imports; `anywhere` includes those inside functions."""
    tree = ast.parse(path.read_text(encoding="utf-8"))
    names: set[str] = set()
    for node in ast.walk(tree) if anywhere else tree.body:
        if isinstance(node, ast.Import):
            names |= {alias.name.partition(".")[0] for alias in node.names}
        elif isinstance(node, ast.ImportFrom) and node.level == 0:
            names.add((node.module or "").partition(".")[0])
    return names - set(sys.stdlib_module_names) - own_modules()


def assert_declared(paths: list[Path], declared: set[str], *, anywhere: bool) -> None:
    owners = distributions()
    for path in paths:
        for module in third_party_imports(path, anywhere=anywhere):
            # Of a package that is not installed nobody knows its modules: Django's apps are called after theirs.
            found = {normalize(d) for d in owners.get(module, [module, f"django-{module}"])}
            found |= {"openenv"} if module == "openenv" else set()  # an older environment has it from openenv-core
            assert found & declared, f"{path} imports {module} of {found}, not declared in pyproject.toml"


def test_every_imported_distribution_is_declared():
    declared = requirement_names(PROJECT["dependencies"]) | {"torchao", "triton"}  # which torch brings along on CUDA
    for extra in PROJECT["optional-dependencies"].values():
        declared |= requirement_names(extra)
    assert_declared(sorted((ROOT / "webrl").rglob("*.py")), declared, anywhere=True)


def test_the_core_imports_no_extra_before_it_is_asked_to():
    # WebArena's bridge is imported by the evaluator's thread alone, Triton's kernels where there is Triton, TRL's
    # trainer after `webrl grpo` has asked for it; the arena's shop is a process of its own, started after the same;
    # `webrl.gym` asks for BrowserGym when it is imported.
    late = ("scoring.py", "kernels.py", "sums.py", "trl_trainer.py")
    folders = {ROOT / "webrl" / "arena" / "shop", ROOT / "webrl" / "gym"}
    paths = [p for p in sorted((ROOT / "webrl").rglob("*.py")) if p.name not in late and folders.isdisjoint(p.parents)]
    assert_declared(paths, requirement_names(PROJECT["dependencies"]), anywhere=False)


def test_the_tests_import_what_make_test_installs():
    dev = requirement_names(PROJECT["dependencies"] + PROJECT["optional-dependencies"]["dev"])
    assert_declared(sorted((ROOT / "tests").rglob("*.py")), dev, anywhere=False)


def test_every_core_dependency_is_pinned():
    pins = dict(re.findall(r"^([\w.-]+)==([^\s;]+)", (ROOT / "constraints.txt").read_text(encoding="utf-8"), re.M))
    pinned = {normalize(name) for name in pins}
    assert requirement_names(PROJECT["dependencies"]) <= pinned
    assert requirement_names(PROJECT["optional-dependencies"]["dev"]) <= pinned


def test_the_constraints_of_a_release_can_be_printed(capsys):
    assert cli.main(["constraints"]) == 0
    assert capsys.readouterr().out == (ROOT / "constraints.txt").read_text(encoding="utf-8")


def test_the_wheel_holds_the_typed_package_and_its_configs(tmp_path):
    build = pytest.importorskip("hatchling.build", reason="hatchling is fetched by pip when it builds")
    del build
    code = f"import os, hatchling.build; os.chdir({str(ROOT)!r}); print(hatchling.build.build_wheel({str(tmp_path)!r}))"
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, timeout=120, check=True)
    with zipfile.ZipFile(tmp_path / done.stdout.split()[-1]) as wheel:
        names = set(wheel.namelist())
        entry = wheel.read(next(n for n in names if n.endswith("entry_points.txt"))).decode()
    assert {
        "webrl/py.typed",
        "webrl/cli/__main__.py",
        "webrl/reports/page/page.html.j2",
        "webrl/reports/page/page.css",
        "webrl/reports/hub/card.md.j2",
        "webrl/arena/data/shop.yaml",
        "webrl/configs/demo.yaml",
        "webrl/configs/feasibility.yaml",
        "webrl/constraints.txt",
        "webrl/arena/shop/templates/oscar/base.html",
        "webrl/view/static/view.js",
        "webrl/view/templates/list.html",
        *(f"webrl/data/tiny/{model}/model.safetensors" for model in ("actor", "generator", "orm")),
    } <= names
    assert not [n for n in names if n.startswith(("tests/", "data/", "runs/"))]
    assert "webrl = webrl.cli:main" in entry


def test_the_tiny_models_are_found_from_any_folder(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    models = load_config(find_config("demo")).models
    for name, folder in {"actor": models.actor, "generator": models.generator, "orm": models.orm}.items():
        assert Path(folder) == ROOT / "data" / "tiny" / name
    (tmp_path / "data" / "tiny" / "orm").mkdir(parents=True)
    assert load_config(find_config("demo")).models.orm == "data/tiny/orm", "the working folder's own comes first"
    assert load_config(find_config("demo"), ["models.orm=data/tiny/mine"]).models.orm == "data/tiny/mine"


def test_every_shipped_config_is_valid():
    shipped = shipped_configs()
    assert "demo.yaml" in [path.name for path in shipped]
    for path in shipped:
        load_config(path)


@pytest.mark.parametrize("path", shipped_configs(), ids=lambda path: path.stem)
def test_every_shipped_config_passes_the_dry_run(path, tmp_path, monkeypatch, capsys):
    monkeypatch.chdir(tmp_path)
    assert cli.main(["run", path.stem, "--dry-run"]) == 0
    shown = capsys.readouterr().out
    assert f"name: {path.stem}\n" in shown
    assert f"phase {load_config(path).num_phases}: eval         to do" in shown


def test_configs_are_found_by_name_by_shipped_path_and_by_own_path(tmp_path, monkeypatch):
    own = tmp_path / "own.yaml"
    own.write_text("seed: 3\n", encoding="utf-8")
    monkeypatch.chdir(tmp_path)
    assert find_config("own.yaml").resolve() == own
    for name in ("demo", "demo.yaml", "configs/demo.yaml"):
        assert find_config(name).resolve() == configs_dir().resolve() / "demo.yaml"
    with pytest.raises(UsageError, match=r"no config 'sub/demo'; shipped ones: .*demo"):
        find_config("sub/demo")


def test_run_information_names_versions_seed_commit_and_config():
    info = run_info(RunConfig(seed=5))
    assert info["seed"] == info["config"]["seed"] == 5
    assert info["versions"]["torch"] == metadata.version("torch")
    assert dict(package_versions())["python"].startswith("3.")
    if (ROOT / ".git").exists():
        assert re.fullmatch(r"[0-9a-f]{40}(-dirty)?", git_commit() or "")


def test_commands_of_the_documents_exist():
    text = "".join((ROOT / name).read_text(encoding="utf-8") for name in ("README.md", "AGENTS.md"))
    makefile = (ROOT / "Makefile").read_text(encoding="utf-8")
    for target in set(re.findall(r"`make ([a-z-]+)", text)):
        assert re.search(rf"^{target}:", makefile, re.M), f"make {target}"
    for script in set(re.findall(r"^(?:python|bash) (\S+)", text, re.M)):
        assert (ROOT / script).is_file(), script
