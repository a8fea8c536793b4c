"""A stage's wall time by what was under way, and the shares that the benchmark makes of it."""

import asyncio
import importlib.util
from pathlib import Path

import pytest

from webrl.runs.clock import Clock, spent_on

SPEC = importlib.util.spec_from_file_location("phase_benchmark", Path(__file__).parents[1] / "benchmarks" / "phase.py")


def test_every_moment_belongs_to_the_kinds_that_are_under_way():
    async def work():
        with spent_on("browsers"):
            await asyncio.sleep(0.001)
            await asyncio.gather(sample(), sample(), asyncio.to_thread(score))

    async def sample():
        with spent_on("sampling"):
            await asyncio.sleep(0.01)

    def score():
        with spent_on("scoring"):
            pass

    with Clock() as clock:
        asyncio.run(work())
        with pytest.raises(RuntimeError), spent_on("failing"):
            raise RuntimeError
    assert {"", "browsers", "browsers+sampling", "failing"} <= set(clock.seconds)
    assert any("scoring" in kinds for kinds in clock.seconds)
    assert all(seconds >= 0 for seconds in clock.seconds.values())
    before = dict(clock.seconds)
    with spent_on("browsers"):
        pass
    assert clock.seconds == before, "nobody measures any more"


def test_the_benchmark_s_kinds_add_up_to_the_stage():
    benchmark = importlib.util.module_from_spec(SPEC)
    SPEC.loader.exec_module(benchmark)
    spent = {
        "": 1.0, "browsers": 2.0, "browsers+sampling": 3.0, "sampling": 4.0, "scoring": 5.0, "gradient steps": 6.0,
        "sampling+server verification": 7.0, "model files+server sleep": 8.0, "browsers+scoring": 0.5,
        "model files": 0.25,
    }  # fmt: skip
    parts = benchmark.divide(40.0, spent)
    assert parts == {
        "browsers": 2.0, "sampling": 4.0, "browsers and sampling": 3.0, "scoring": 5.5, "gradient steps": 6.0,
        "servers": 15.0, "model files": 0.25, "rest": 4.25,
    }  # fmt: skip
    assert sum(parts.values()) == 40.0
