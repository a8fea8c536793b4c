"""The toy suite (`toy_suite.py`) as an installed package."""

import contextlib
import os
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest
from app_server import serving
from toy_suite import PAGE, install
from werkzeug import Response

_SOURCES = [folder for folder in sys.path if any(Path(folder).glob("webrl*/__init__.py"))]
"""Where webrl and its companions are imported from, if not from site-packages alone."""


@contextlib.contextmanager
def toy_package(folder: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[Path]:
    """The suite in a package of its own, on the path of every process that is started; its page is served."""
    install(folder, "webrl_toy", {"toy": "webrl_toy:Toy"})
    monkeypatch.setenv("PYTHONPATH", os.pathsep.join([str(folder), *_SOURCES]))
    with serving(Response(PAGE, mimetype="text/html")) as url:
        monkeypatch.setenv("TOY_URL", f"{url}/")
        yield folder
