"""What all tests share: a quiet, offline process, and skips for hardware that this machine lacks."""

import gc
import inspect
import os
import sys
import traceback
from collections.abc import Callable, Generator, Iterator
from pathlib import Path
from types import SimpleNamespace
from typing import TYPE_CHECKING, Any

import pytest

from webrl.config import plugins, redaction
from webrl.config.extras import EXTRAS, is_installed

if TYPE_CHECKING:
    from openenv_builders import Servers

    from webrl_arena.world.client import Arena

# Before torch is imported: the CPU settings that webrl's launcher sets, and no look-ups on model hubs.
os.environ.setdefault("OMP_WAIT_POLICY", "passive")
os.environ.setdefault("TOKENIZERS_PARALLELISM", "false")
os.environ.setdefault("HF_HUB_OFFLINE", "1")
# `make engines` puts vLLM beside the environment that runs the tests.
_VLLM_PYTHON = Path(f"{sys.prefix}-vllm/bin/python")
if _VLLM_PYTHON.is_file() and not is_installed("vllm"):
    os.environ.setdefault("WEBRL_VLLM_PYTHON", str(_VLLM_PYTHON))

_CORE = Path(__file__).parent / "tests"
_NOT_QUICK = ("slow", "arena", "deepspeed", "ray", "vllm", "webarena")
"""Markers of tests that take long, or that need what `make engines` installs."""
_SLOW_S = 1800
"""Deadline of a slow test; the others have `timeout` of pyproject.toml."""


@pytest.fixture(scope="session")
def arena(tmp_path_factory: pytest.TempPathFactory) -> Iterator["Arena"]:
    """A running arena that the tests of a process share."""
    from arena_server import serving

    with serving(tmp_path_factory.mktemp("arena"), tmp_path_factory) as served:
        yield served


@pytest.fixture(scope="session")
def servers() -> Iterator["Servers"]:
    """`webrl serve-env` in this process, on a browser that the tests of a process share."""
    from openenv_builders import Servers

    with Servers() as running:
        yield running


@pytest.fixture(scope="module")
def notes(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Any]:
    """`examples/notes_app` on loopback, for the tests of a file."""
    from web_builders import notes_app

    with notes_app(tmp_path_factory.mktemp("notes")) as app:
        yield app


@pytest.fixture(scope="module")
def kept_browsers() -> Iterator[None]:
    """Browsers that all stages which a file's tests run play on, if their settings are the same."""
    from webrl.rollouts.pool import keep_browsers

    with keep_browsers():
        yield


@pytest.fixture(scope="session")
def actor(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The folder of a Llama of 12 k parameters (`training_builders`), which no test changes."""
    from training_builders import make_actor

    return make_actor(tmp_path_factory.mktemp("tiny") / "actor")


@pytest.fixture(scope="session")
def tiny_model(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The folder of a Llama that reads bytes (`llm_builders`), which no test changes."""
    from llm_builders import save_tiny_model

    return save_tiny_model(tmp_path_factory.mktemp("tiny") / "model")


@pytest.fixture(scope="session")
def reader(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """As `tiny_model`, with room for whole pages."""
    from llm_builders import save_tiny_model

    return save_tiny_model(tmp_path_factory.mktemp("tiny") / "long", positions=4096)


@pytest.fixture(scope="session")
def tokenizer() -> Any:
    """The tokenizer of these models, which no test changes."""
    from llm_builders import build_tokenizer

    return build_tokenizer()


@pytest.fixture(scope="session")
def vlm(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The folder of a tiny vision-language model (`eyes_builders`), which no test changes."""
    from eyes_builders import build_vlm

    build_vlm("idefics3", folder := tmp_path_factory.mktemp("tiny") / "vlm")
    return folder


@pytest.fixture
def webrl(capsys: pytest.CaptureFixture[str]) -> Callable[..., Any]:
    """`webrl(code, *arguments)` runs the command here, which has to end with that code; gives its `out` and `err`."""
    from webrl import cli

    def run(code: int, *arguments: object) -> Any:
        capsys.readouterr()
        assert cli.main([*map(str, arguments)]) == code
        return capsys.readouterr()

    return run


@pytest.fixture(autouse=True)
def _secrets_of_one_test(monkeypatch: pytest.MonkeyPatch) -> None:
    """What a test calls a secret ("other", say) is none to the tests after it."""
    monkeypatch.setattr(redaction, "_known", set(redaction._known))


def pytest_sessionfinish() -> None:
    """End the browser that tests have shared."""
    gc.unfreeze()  # Hypothesis, which the summary imports, asks who refers to what
    if "browsers" in sys.modules:
        sys.modules["browsers"].close()


def pytest_itemcollected(item: pytest.Item) -> None:
    """Mark the core's tests `quick`, which is what `make test` runs; one of each companion bears the marker itself."""
    if item.path.is_relative_to(_CORE) and not any(item.get_closest_marker(name) for name in _NOT_QUICK):
        item.add_marker("quick")


@pytest.hookimpl(trylast=True)  # after what `-m` and `-k` leave out
def pytest_collection_modifyitems(items: list[pytest.Item]) -> None:
    """Skip tests marked `gpu` or with the name of an extra where there is none; a missing browser is an error."""
    lacking = {name: f"{name} is not installed: {fix}" for name, (fix, _) in EXTRAS.items() if not is_installed(name)}
    if os.environ.get("WEBRL_VLLM_PYTHON"):
        lacking.pop("vllm", None)
    if not _has_gpu(items):
        lacking["gpu"] = "no GPU that torch can use"
    for item in items:
        if item.get_closest_marker("slow"):
            item.add_marker(pytest.mark.timeout(_SLOW_S))
        for name in (name for mark in item.iter_markers("companion") for name in mark.args if not _has(name)):
            item.add_marker(pytest.mark.skip(reason=f"webrl-{name} is not installed"))
        for name, reason in lacking.items():
            if item.get_closest_marker(name):
                item.add_marker(pytest.mark.skip(reason=reason))


def pytest_collection_finish(session: pytest.Session) -> None:
    """Keep the search for garbage, which each training ends with, out of what all imports and tests have made.

    Playwright 1.44 asks who calls it, and for the source of every frame: below pytest, with torch imported, that takes
    most of a browser test's time.
    """
    if any(item.get_closest_marker("browser") for item in session.items):
        from playwright._impl import _connection

        vars(_connection)["inspect"] = SimpleNamespace(stack=_stack)
    gc.collect()
    gc.freeze()


@pytest.hookimpl(wrapper=True)
def pytest_runtest_makereport(item: pytest.Item) -> Generator[None, pytest.TestReport, pytest.TestReport]:
    """In CI everything runs but what needs a GPU: any other skip is an error."""
    report = yield
    skipped = report.skipped and not hasattr(report, "wasxfail")
    if skipped and os.environ.get("CI") and not item.get_closest_marker("gpu"):
        report.outcome = "failed"
        report.longrepr = f"skipped in CI: {report.longrepr}"
    return report


def _stack(_lines: int = 0) -> list[inspect.FrameInfo]:
    """As `inspect.stack`, which newer Playwrights give a number of lines, without a look at the sources."""
    found = traceback.walk_stack(sys._getframe(1))
    return [inspect.FrameInfo(f, f.f_code.co_filename, line, f.f_code.co_name, None, None) for f, line in found]


def _has(companion: str) -> bool:
    return all(set(names) <= set(plugins.names(group)) for group, names in plugins.COMPANIONS[companion].items())


def _has_gpu(items: list[pytest.Item]) -> bool:
    if not any(item.get_closest_marker("gpu") for item in items):
        return False
    import torch

    return torch.cuda.is_available()
