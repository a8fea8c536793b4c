"""A stage's wall time by what was under way."""

import asyncio

import pytest

from webrl.runs.clock import Clock, spent_on


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
