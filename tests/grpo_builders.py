"""What tests of `webrl grpo` share: short trainings, refusals, and pages and servers with fixed answers."""

import asyncio
import json
from collections.abc import Callable
from pathlib import Path
from typing import Any

from websockets.asyncio.server import serve

from webrl import cli
from webrl.rollouts.interface import Observation, StepResult
from webrl.runs.store import read_records
from webrl.types import Trajectory

TINY_ACTOR = str(Path(__file__).parent.parent / "data" / "tiny" / "actor")
DEMO = str(Path(__file__).parent.parent / "configs" / "grpo_demo.yaml")


def grpo(out: Path, *arguments: str) -> tuple[dict[str, Any], list[Trajectory]]:
    """A training into `out`; its report and its episodes."""
    assert cli.main(["grpo", *arguments, "--output-dir", str(out)]) == 0
    return json.loads((out / "report.json").read_text()), list(read_records(out / "trajectories.jsonl", Trajectory))


def refused(webrl: Callable[..., Any], *arguments: str) -> str:
    """The one line that `webrl grpo` refuses arguments with."""
    lines = webrl(2, "grpo", *arguments).err.splitlines()
    assert len(lines) == 1, lines
    return str(lines[0])


class FixedPage:
    """A page with these screenshots, one after the other, and this reward."""

    def __init__(self, *screenshots: bytes | None, reward: float = 0.0, goal: str = "Go.") -> None:
        self.screenshots, self.reward, self.goal = list(screenshots), reward, goal
        self.acted: list[str] = []

    def _observe(self) -> Observation:
        screenshot = self.screenshots.pop(0) if self.screenshots else None
        return Observation("[13] button 'Go'", f"http://page/{len(self.acted)}", self.goal, screenshot)

    async def reset(self, task: Any) -> Observation:
        return self._observe()

    async def step(self, action_text: str) -> StepResult:
        self.acted.append(action_text)
        return StepResult(self._observe(), action_text, "", False, self.reward, agent_done=False)

    async def close(self) -> None:
        pass


def with_server(use: Any, *answers: dict[str, Any]) -> Any:
    """Call `use(url)` of a server of another make, every connection to which gets these answers in turn."""

    async def answer(connection: Any) -> None:
        for each in ({"type": "state", "data": {}}, *answers):
            await connection.recv()
            await connection.send(json.dumps(each))
        await connection.wait_closed()

    async def run() -> Any:
        async with serve(answer, "127.0.0.1", 0) as server:
            port = server.sockets[0].getsockname()[1]
            return await asyncio.to_thread(use, f"http://127.0.0.1:{port}")

    return asyncio.run(run())
