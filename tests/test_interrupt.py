"""Ctrl-C in a terminal (SIGINT to the process group): one line, exit code 130, and nothing stays behind."""

from collections.abc import Callable
from pathlib import Path

import pytest
from processes import descendants, interrupt

SMALL = (
    "num_phases=1", "tasks.train_sites=[miniwob.click-button]", "tasks.num_seed_tasks=40", "tasks.num_eval_tasks=2",
    "rollout.num_workers=1", "rollout.envs_per_worker=3", "rollout.max_steps=4", "trackers=[]",
)  # fmt: skip

pytestmark = pytest.mark.browser


def runs(name: str) -> Callable[[int], bool]:
    return lambda pid: bool(descendants(pid, (name,)))


@pytest.mark.parametrize("name", ["node", "chrom"])
def test_while_a_browser_starts_in_the_command_itself(name: str) -> None:
    code, said = interrupt(["doctor", "browser"], runs(name))
    assert (code, said) == (130, ["webrl: interrupted"])


@pytest.mark.slow
def test_while_a_worker_starts_its_browser(tmp_path: Path) -> None:
    code, said = interrupt(["run", "configs/demo.yaml", f"runs_dir={tmp_path}", *SMALL], runs("node"))
    stages = [f"phase 0: {stage}" for stage in ("gen-tasks", "filter-tasks", "rollout")]
    assert (code, said) == (130, [*stages, "webrl: interrupted; the same command resumes from here"])


@pytest.mark.slow
def test_in_the_middle_of_episodes(tmp_path: Path) -> None:
    episodes = tmp_path / "demo" / "phase_00" / "trajectories.jsonl"
    code, said = interrupt(
        ["run", "configs/demo.yaml", f"runs_dir={tmp_path}", *SMALL],
        lambda _: episodes.exists() and episodes.stat().st_size > 0,
    )
    said = [line for line in said if not line.startswith("rollout p00: ")]  # on a slow machine
    assert (code, said[-1]) == (130, "webrl: interrupted; the same command resumes from here")
    assert len(said) == 4, said
