"""Stand-in sites for the tests of this folder."""

from collections.abc import Iterator
from pathlib import Path

import pytest
from standins.world import World


@pytest.fixture
def world(tmp_path: Path) -> Iterator[World]:
    with World(tmp_path) as running:
        yield running
