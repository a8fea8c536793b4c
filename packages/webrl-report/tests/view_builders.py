"""Small run folders for the viewer's tests, and `webrl view` as users start it."""

import httpx
import orjson
from served import served

from webrl.types import Label, Status, Step, StepRecord, Task, Trajectory

HOSTILE = "<script>window.hacked = 1</script><img src=x onerror='window.hacked = 2'>{{ 7 * 7 }}\x1b[31m\u202eevil"
"""Markup, a template, an escape sequence of terminals, and a change of the direction of writing."""
PAGE = "RootWebArea 'Test', focused\n\t[12] button 'Ok'\n\t[17] button 'Cancel'"


def trajectory(name="p01-t1", *, phase=1, site="miniwob.click-button", reward=1.0, actions=("click('12')",), **more):
    page, screenshot = more.pop("page", PAGE), more.pop("screenshot", "")
    steps = tuple(
        Step(i, page, action, action, "", (1, 2, i), (5, 6), (-0.5, -0.25), screenshot=screenshot)
        for i, action in enumerate(actions)
    )
    task = Task(task_id=more.pop("task_id", name.partition("-")[2]), site=site)
    values = {"instruction": "Click the Ok button.", "final_observation": "the end", "status": Status.PAGE_ENDED}
    return Trajectory(
        trajectory_id=name, task=task, phase=phase, steps=steps, env_reward=reward, policy=f"actor{phase}",
        **(values | more),
    )  # fmt: skip


def write(path, records, mode="wb"):
    path.parent.mkdir(parents=True, exist_ok=True)
    with path.open(mode) as file:
        file.writelines(orjson.dumps(record.to_json()) + b"\n" for record in records)


def make_run(folder):
    """Two phases: a label against the truth, one with it, an unlabelled one, evaluation, and trained steps."""
    (folder / "phase_00").mkdir(parents=True)
    (folder / "config.yaml").write_text("name: tiny\n")
    write(
        folder / "phase_00" / "trajectories.jsonl",
        [
            trajectory("p00-a", phase=0, reward=0.0, actions=("click('12')", "click('17')")),
            trajectory("p00-b", phase=0, reward=1.0, instruction="Choose <b>two</b>."),
            trajectory("p00-c", phase=0, reward=None, status=Status.ENV_ERROR, message="the page is gone"),
        ],
    )
    labels = [Label("p00-a", 0.9, 1, "judge"), Label("p00-b", 0.25, 0), Label("p00-b", 0.75, 1)]
    write(folder / "phase_00" / "labels.jsonl", labels)
    write(folder / "phase_00" / "train_scored.jsonl", [step_record("p00-a", 0, 2), step_record("p00-a", 1, 2)])
    write(folder / "phase_01" / "eval.jsonl", [trajectory("e01-a", phase=1, task_id="a")])
    return folder


def step_record(name, index, num_steps, **more):
    values = {"value": 0.25, "next_value": 0.5, "logprobs": (-0.5, -0.25), "ref_logprobs": (-0.5, -0.25)}
    values |= {"prompt_ids": (1, 2, index), "action_ids": (5, 6), "outcome": 1}
    return StepRecord(
        f"{name}:{index}", name, "Click the Ok button.", "miniwob.click-button", 0, index, num_steps, **(values | more)
    )  # fmt: skip


def viewer(*runs, stderr=None):
    """A viewer on a free port; a context that gives the address to open, and its process."""
    command = ["view", *map(str, runs), "--port", "0"]
    return served(command, r"open (http://127\.0\.0\.1:\d+/[\w-]+/)\n", stderr=stderr)


def admitted(url):
    """A client that knows the token, as a browser does."""
    return httpx.Client(base_url=url, follow_redirects=True, timeout=30)
