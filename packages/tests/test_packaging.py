"""What ships: wheel contents, declared dependencies, pins, run information."""

import ast
import functools
import json
import re
import shutil
import subprocess
import sys
import tomllib
import zipfile
from importlib import metadata
from pathlib import Path

import pytest
from packaging.requirements import Requirement
from processes import python

import webrl
from webrl import cli
from webrl.config import RunConfig, load_config, plugins
from webrl.config.resources import configs_dir, find_config, shipped_configs
from webrl.errors import UsageError
from webrl.phase import STAGES
from webrl.runs.folder import git_commit, package_versions, run_info

ROOT = Path(__file__).resolve().parents[2]
PROJECT = tomllib.loads((ROOT / "pyproject.toml").read_text(encoding="utf-8"))["project"]


def requirement_names(requirements: list[str]) -> set[str]:
    return {normalize(re.match(r"[\w.-]+", r).group()) for r in requirements}  # type: ignore[union-attr]


def normalize(name: str) -> str:
    return re.sub(r"[-_.]+", "-", name).lower()


# Both take seconds, and three tests ask.
distributions = functools.cache(metadata.packages_distributions)


@functools.cache
def own_modules() -> set[str]:
    ours = {"webrl", "tests", "scripts", "benchmarks"} | {path.name for path in ROOT.glob("packages/*/webrl_*")}
    folders = [*map(ROOT.joinpath, ("tests", "benchmarks", "scripts")), *ROOT.glob("packages/**/tests")]
    return ours | {path.stem for folder in folders for path in folder.rglob("*")}


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


COMPANIONS = {
    path.parent.name: tomllib.loads(path.read_text(encoding="utf-8"))["project"]
    for path in sorted(ROOT.glob("packages/*/pyproject.toml"))
}
CORE = requirement_names(PROJECT["dependencies"])


def test_every_imported_distribution_of_the_core_is_declared():
    declared = CORE | {"triton"}  # torch brings it along on CUDA
    for extra in ("deepspeed", "trackers", "vllm"):
        declared |= requirement_names(PROJECT["optional-dependencies"][extra])
    assert_declared(sorted((ROOT / "webrl").rglob("*.py")), declared, anywhere=True)


@pytest.mark.parametrize("companion", COMPANIONS)
def test_every_imported_distribution_of_a_companion_is_declared_by_it_or_the_core(companion):
    project = COMPANIONS[companion]
    declared = CORE | requirement_names(project["dependencies"]) | {"triton"}
    for extra in project.get("optional-dependencies", {}).values():
        declared |= requirement_names(extra)
    modules = sorted((ROOT / "packages" / companion / companion.replace("-", "_")).rglob("*.py"))
    assert_declared(modules, declared, anywhere=True)


def test_the_core_imports_no_extra_before_it_is_asked_to():
    kernels = ROOT / "webrl/training/layers/kernels.py"  # Triton's, where there is Triton
    paths = [path for path in sorted((ROOT / "webrl").rglob("*.py")) if path != kernels]
    assert_declared(paths, CORE, anywhere=False)


def test_the_companions_are_of_the_cores_version_and_its_extras():
    extras = PROJECT["optional-dependencies"]
    for name, project in COMPANIONS.items():
        assert project["version"] == metadata.version(name) == webrl.__version__
        assert f"webrl=={webrl.__version__}" in project["dependencies"]
        for requirement in project["dependencies"]:
            if requirement.startswith("webrl"):
                assert requirement.endswith(f"=={webrl.__version__}")
        assert extras[name.removeprefix("webrl-")] == [f"{name}=={webrl.__version__}"]
    assert extras["all"] == [f"{name}=={webrl.__version__}" for name in COMPANIONS]
    assert {name.removeprefix("webrl-") for name in COMPANIONS} == set(plugins.COMPANIONS)


def test_the_tests_import_what_make_test_installs():
    projects = [PROJECT, *COMPANIONS.values()]
    dev = requirement_names([r for project in projects for r in project["dependencies"]])
    dev |= requirement_names(PROJECT["optional-dependencies"]["dev"])
    folders = [ROOT / "tests", *ROOT.glob("packages/**/tests")]
    assert_declared(sorted(path for folder in folders for path in folder.rglob("*.py")), dev, anywhere=False)


def brought_by(requirements: list[str]) -> set[str]:
    """Names of the packages that pip installs for these requirements on this machine."""
    todo = [Requirement(text) for text in requirements]
    seen: set[str] = set()
    while todo:
        wanted = todo.pop()
        if (key := str(wanted)) in seen:
            continue
        seen.add(key)
        for text in metadata.requires(wanted.name) or []:
            needed = Requirement(text)
            extras = ("", *wanted.extras)
            if needed.marker is None or any(needed.marker.evaluate({"extra": extra}) for extra in extras):
                todo.append(needed)
    return {normalize(Requirement(text).name) for text in seen}


def test_the_core_brings_at_most_sixty_packages_beside_those_of_torch():
    others = brought_by(PROJECT["dependencies"]) - brought_by(["torch"])
    assert len(others) <= 60, sorted(others)


def test_every_dependency_is_pinned():
    pins = dict(re.findall(r"^([\w.-]+)==([^\s;]+)", (ROOT / "constraints.txt").read_text(encoding="utf-8"), re.M))
    pinned = {normalize(name) for name in pins}
    ours = {"webrl", *COMPANIONS}
    assert pinned >= CORE
    assert requirement_names(PROJECT["optional-dependencies"]["dev"]) <= pinned
    for name in ("webrl-grpo", "webrl-report", "webrl-serve", "webrl-site", "webrl-study"):
        assert requirement_names(COMPANIONS[name]["dependencies"]) - ours <= pinned


def test_the_constraints_of_a_release_can_be_printed(capsys):
    assert cli.main(["constraints"]) == 0
    assert capsys.readouterr().out == (ROOT / "constraints.txt").read_text(encoding="utf-8")


def build_wheel(folder: Path, out: Path) -> tuple[set[str], str]:
    """The names in a package's wheel, and its entry points."""
    pytest.importorskip("hatchling.build", reason="hatchling is fetched by pip when it builds")
    code = f"import os, hatchling.build; os.chdir({str(folder)!r}); print(hatchling.build.build_wheel({str(out)!r}))"
    done = python("-c", code)
    with zipfile.ZipFile(out / done.stdout.split()[-1]) as wheel:
        names = set(wheel.namelist())
        entry = wheel.read(next(n for n in names if n.endswith("entry_points.txt"))).decode()
    return names, entry


def test_the_wheel_holds_the_typed_package_and_its_configs(tmp_path):
    names, entry = build_wheel(ROOT, tmp_path)
    assert {
        "webrl/py.typed",
        "webrl/cli/__main__.py",
        "webrl/configs/demo.yaml",
        "webrl/configs/feasibility.yaml",
        "webrl/constraints.txt",
        *(f"webrl/data/tiny/{model}/model.safetensors" for model in ("actor", "generator", "orm")),
    } <= names
    assert not [n for n in names if n.startswith(("tests/", "data/", "runs/", "packages/", "webrl_"))]
    assert "webrl = webrl.cli:main" in entry
    assert next(tmp_path.glob("*.whl")).stat().st_size < 20e6


@pytest.mark.parametrize("companion", COMPANIONS)
def test_the_wheel_of_a_companion_holds_all_its_files(companion, tmp_path):
    folder = ROOT / "packages" / companion
    names, entry = build_wheel(folder, tmp_path)
    package = folder / companion.replace("-", "_")
    ours = [path for path in package.rglob("*") if path.is_file() and "__pycache__" not in path.parts]
    assert {str(path.relative_to(folder)) for path in ours} <= names
    assert not [name for name in names if name.startswith("tests/")]
    assert f"= {package.name}." in entry


def test_openenvs_own_commands_pass_the_environments_folder_and_list_it_in_a_catalogue(tmp_path):
    def openenv(*arguments):
        return python("-m", "openenv.cli", *arguments, cwd=tmp_path)

    shutil.copytree(ROOT / "envs", tmp_path / "envs")
    for name in ("pyproject.toml", "LICENSE"):
        shutil.copy(ROOT / name, tmp_path)
    for command in (["init", "-q"], ["add", "."], ["-c", "user.name=a", "-c", "user.email=a@b", "commit", "-qm", "a"]):
        subprocess.run(["git", *command], cwd=tmp_path, check=True, timeout=60)
    assert "PASS  static.manifest" in openenv("validate", "envs/webrl", "--level", "static").stdout
    source = ["--repository", ".", "--repository-uri", "https://github.com/ann/webrl.git", "--publisher", "ann.test"]
    assert "1 records" in openenv("catalog", "build", *source, "--output", "catalog.json").stderr
    (entry,) = json.loads((tmp_path / "catalog.json").read_text())["entries"]
    assert (entry["data"]["name"], entry["data"]["license"]) == ("webrl", "Apache-2.0")


def test_the_tiny_models_are_found_from_any_folder(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    models = load_config(find_config("demo")).models
    for name, folder in {"actor": models.actor, "generator": models.generator, "orm": models.orm}.items():
        assert Path(folder) == ROOT / "data" / "tiny" / name
    (tmp_path / "data" / "tiny" / "orm").mkdir(parents=True)
    assert load_config(find_config("demo")).models.orm == "data/tiny/orm", "the working folder's own comes first"
    assert load_config(find_config("demo"), ["models.orm=data/tiny/mine"]).models.orm == "data/tiny/mine"


@pytest.mark.parametrize("path", shipped_configs(), ids=lambda path: path.stem)
def test_every_shipped_config_passes_the_dry_run(path, tmp_path, monkeypatch, capsys):
    monkeypatch.chdir(tmp_path)
    assert cli.main(["run", path.stem, "--dry-run"]) == 0
    shown = capsys.readouterr().out
    assert f"name: {path.stem}\n" in shown
    assert f"# phase {load_config(path).num_phases}: {', '.join(STAGES)} to do\n" in shown


def test_configs_are_found_by_name_by_shipped_path_and_by_own_path(tmp_path, monkeypatch):
    own = tmp_path / "own.yaml"
    own.write_text("seed: 3\n", encoding="utf-8")
    monkeypatch.chdir(tmp_path)
    assert find_config("own.yaml").resolve() == own
    for name in ("demo", "demo.yaml", "configs/demo.yaml"):
        assert find_config(name).resolve() == configs_dir().resolve() / "demo.yaml"
    with pytest.raises(UsageError, match=r"no config 'sub/demo': there is no such file; shipped ones: .*demo"):
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


def test_what_benchmarks_scripts_and_examples_import_of_webrl_is_there():
    paths = [path for folder in ("benchmarks", "scripts", "examples") for path in (ROOT / folder).rglob("*.py")]
    imports = {
        (node.module, alias.name, path.name)
        for path in paths
        for node in ast.walk(ast.parse(path.read_text(encoding="utf-8")))
        if isinstance(node, ast.ImportFrom) and node.level == 0 and node.module and node.module.startswith("webrl")
        for alias in node.names
    }
    assert len(imports) > 100
    for module, name, path in sorted(imports):
        assert hasattr(__import__(module, fromlist=[name]), name), f"{path}: {module}.{name}"
