"""Record a person's own clicks as demonstrations: `webrl record-demos --by-hand`.

API: `tasks = hand_tasks(config)`; `await Recorder(config, out, say, inbox, visible, unseen).record(tasks)`.

Each attempt is an episode with the person as its policy. Its actions are then played again, without the person, from a
new start (after the site's reset); what is kept is that second episode, where it comes to the same end.
"""

from __future__ import annotations

import contextlib
import re
import shutil
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from functools import cached_property
from pathlib import Path

from webrl.config import RolloutConfig, RunConfig
from webrl.demos.record import DEMONSTRATION_SEED
from webrl.errors import UsageError
from webrl.evaluate import is_success
from webrl.llm.interface import Policy, PolicyOutput, Turn
from webrl.rollouts.actions import parse_action
from webrl.rollouts.browser import Browser
from webrl.rollouts.collect import screenshot_folder, screenshot_saver, without_secrets
from webrl.rollouts.env import BrowserEnv
from webrl.rollouts.episode import run_episode
from webrl.rollouts.suite import suite_of
from webrl.runs import store
from webrl.suites import open_sites, parts, seed_tasks
from webrl.types import Label, Step, Task, Trajectory
from webrl_site.hand import BIDS, CHOICES, HumanPolicy, Inbox, Stopped

_A_DAY_S = 86_400.0


class ReplayMismatch(Exception):
    """An episode that is played again does not go as it went; the text says at which step."""


class ReplayPolicy:
    """Plays recorded steps again; compares each element with the one that was recorded."""

    fingerprint = HumanPolicy.fingerprint

    def __init__(self, steps: Sequence[Step]) -> None:
        self._steps = steps

    async def act(self, turn: Turn) -> PolicyOutput:
        """Return the next action. Raises ReplayMismatch: the last one failed, or the element is another."""
        number = len(turn.history)
        if number and (last := turn.history[-1]).error:
            raise ReplayMismatch(f"step {number}, {last.action}: {last.error}")
        if number == len(self._steps):
            raise ReplayMismatch(f"after step {number} the page does not end the episode, as it did")
        step = self._steps[number]
        arguments = parse_action(step.action).arguments
        for bid in (arguments[name] for name in BIDS if name in arguments):
            was, now = (element_of(text, bid) for text in (step.observation, turn.observation))
            if was != now:
                raise ReplayMismatch(f"step {number + 1}, {step.action}: {bid} was {was}, now it is {now}")
        return PolicyOutput((), (), (), step.action, turn.observation)


def element_of(observation: str, bid: str) -> str:
    """Return the role and name of an element in an observation."""
    quoted = r"""'(?:[^'\\]|\\.)*'|"(?:[^"\\]|\\.)*\""""
    found = re.search(rf"^\s*\[{bid}\] (\w+(?: (?:{quoted}))?)", observation, re.MULTILINE)
    return found[1] if found else "not there"


def hand_tasks(config: RunConfig) -> list[Task]:
    """Return the training tasks that a person plays: those of phase 0, drawn as the experts' are.

    Raises:
        UsageError: a suite that cannot be recorded by hand, an observation or dialect of its own, no instructions.
    """
    rollout = config.rollout
    for suite, _ in parts(config):
        if not suite.can_record_by_hand:
            raise UsageError(f"tasks.suite={suite.name} cannot be recorded by hand; use web, miniwob or arena")
    if rollout.env != "browser":
        raise UsageError(f"--by-hand needs rollout.env=browser, not {rollout.env}")
    if rollout.observation == "html" or rollout.dialect != "browsergym":
        raise UsageError(
            "--by-hand records rollout.dialect=browsergym on rollout.observation=axtree, not "
            f"{rollout.dialect} on {rollout.observation}"
        )
    tasks = seed_tasks(config.model_copy(update={"seed": DEMONSTRATION_SEED + config.seed}))
    if not tasks:
        raise UsageError("--by-hand needs instructions: name files in rollout.web.train_files")
    return tasks


@dataclass(frozen=True)
class Recorder:
    """Lets a person play tasks, one after the other."""

    config: RunConfig
    """The run's; one environment is played, with the site reset for every episode."""
    out: Path
    """JSONL of Trajectory, appended to, with `labels.jsonl` next to it: by the suite's own reward, else by the person's
    word that it is done."""
    say: Callable[[str], None]
    """Shows a line in the terminal."""
    inbox: Inbox
    """Lines that the person types there; `quit` ends everything."""
    visible: Browser
    """The person's."""
    unseen: Browser
    """Plays again."""
    keep_all: bool = False
    """Keep what the suite's check fails (labelled so) and what does not replay."""

    @cached_property
    def _rollout(self) -> RolloutConfig:
        web = self.config.rollout.web
        if web.reset.is_set:
            web = web.model_copy(update={"reset": web.reset.model_copy(update={"every": "episode"})})
        return self.config.rollout.model_copy(update={"num_workers": 1, "envs_per_worker": 1, "web": web})

    async def record(self, tasks: Sequence[Task]) -> None:
        """Record the tasks that `out` has no demonstration of yet.

        Raises:
            UsageError: `out` has trajectories without labels; anything that the suite rejects.
            SiteError: the site cannot be reset or logged in to.
        """
        labels = self.out.with_name("labels.jsonl")
        if self.out.exists() and not labels.exists():
            raise UsageError(f"{self.out} holds another recording, without labels; choose another --out")
        for task in tasks:
            suite_of(task).check(task, self._rollout)
        async with open_sites(self.config.model_copy(update={"rollout": self._rollout}), tasks):
            with store.Appender(labels) as verdicts, store.Appender(self.out) as file, contextlib.suppress(Stopped):
                there = {each.trajectory_id: each.task.instruction for each in store.read_records(self.out, Trajectory)}
                waiting = [task for task in tasks if f"hand-{task.task_id}" not in there]
                for task in tasks:
                    recorded = there.get(f"hand-{task.task_id}", task.instruction)
                    if recorded != task.instruction:
                        raise UsageError(
                            f"{self.out}: {task.task_id} was recorded for {recorded!r}, now it asks "
                            f"{task.instruction!r}; choose another --out"
                        )
                for number, task in enumerate(waiting, start=1):
                    self.say(f"{number}/{len(waiting)} {task.task_id}")
                    if kept := await self._record(task):
                        trajectory, is_solved = kept
                        verdicts.append(Label(trajectory.trajectory_id, None, int(is_solved), HumanPolicy.fingerprint))
                        file.append(trajectory)

    async def _record(self, task: Task) -> tuple[Trajectory, bool] | None:
        """Return the demonstration of a task and whether it solves it; None if it is skipped. Raises Stopped."""
        name = f"hand-{task.task_id}"
        while True:
            try:
                kept = await self._verdict(*await self._attempt(name, task))
                if kept is not None:
                    return kept
                choice = await self._choose()
            except Stopped as stopped:
                choice = str(stopped)
                if choice not in CHOICES:
                    self.say(f"  {choice}: this attempt cannot be recorded")
                    choice = await self._choose()
            shutil.rmtree(screenshot_folder(self.out, name), ignore_errors=True)
            if choice == "quit":
                raise Stopped(choice)
            if choice == "skip":
                return None

    async def _attempt(self, name: str, task: Task) -> tuple[Trajectory, str]:
        """Let the person play an episode. Raises Stopped."""
        while not self.inbox.empty():
            early = self.inbox.get_nowait()  # what else is from before is of no use
            if isinstance(early, str) and early.strip() == "quit":
                raise Stopped("quit")
        # What an agent must keep to, the replay holds: a person may take a way round, and need not hurry.
        patient = {"max_steps": 1000, "max_repeats": 1000, "episode_timeout_s": _A_DAY_S}
        env = suite_of(task).make_env(self.visible, self._rollout)
        hand = HumanPolicy(env, self.say, self.inbox)
        return await self._play(env, hand, name, task, self._rollout.model_copy(update=patient))

    async def _verdict(self, played: Trajectory, url: str) -> tuple[Trajectory, bool] | None:
        """Decide what is kept: the person's verdict counts only if the task has no check and the replay succeeds."""
        reward = "no check measures it" if played.env_reward is None else f"reward {played.env_reward:g}"
        self.say(f"  {len(played.steps)} steps, {played.status}, {reward} {played.env_error}".rstrip())
        refusal = ""
        if not played.status.finished:
            refusal = played.message or str(played.status)
        elif played.env_reward is not None and not is_success(played) and not self.keep_all:
            refusal = "the suite's own check fails it (--keep-all keeps such)"
        elif played.env_error and played.env_reward is None and not self.keep_all:
            refusal = "the suite's own check could not be made"
        if refusal:
            self.say(f"  not kept: {refusal}")
            return None
        try:
            again = await self._replay(played, url)
        except ReplayMismatch as difference:
            self.say(f"  played again it does not come to the same end: {difference}")
            if self.keep_all and any(step.screenshot for step in played.steps):
                self.say("  not kept: its screenshots are overwritten by now")
                return None
            return (played, is_success(played)) if self.keep_all else None
        self.say(f"  kept: played again, {len(again.steps)} steps come to the same end")
        unchecked = again.env_reward is None and not again.env_error
        return again, unchecked or is_success(again)

    async def _replay(self, played: Trajectory, url: str) -> Trajectory:
        """Play it again without the person, first without idle clicks. Raises ReplayMismatch."""
        worked = [step for step in played.steps if not step.error]
        shorter = without_idle_clicks(worked)
        if len(shorter) < len(worked):
            with contextlib.suppress(ReplayMismatch):
                return await self._same(played, url, shorter)
        return await self._same(played, url, worked)

    async def _same(self, played: Trajectory, url: str, steps: Sequence[Step]) -> Trajectory:
        env = suite_of(played.task).make_env(self.unseen, self._rollout)
        again, url_again = await self._play(env, ReplayPolicy(steps), played.trajectory_id, played.task, self._rollout)
        if again.status is not played.status:
            raise ReplayMismatch(f"it ends with {again.status} ({again.message}) after step {len(again.steps)}")
        if again.env_reward != played.env_reward:
            raise ReplayMismatch(
                f"the reward is {again.env_reward}, it was {played.env_reward} {again.env_error}".rstrip()
            )
        if played.env_reward is None and url_again != url:
            raise ReplayMismatch(f"it ends at {url_again}, not at {url}")
        return again

    async def _play(
        self, env: BrowserEnv, policy: Policy, name: str, task: Task, config: RolloutConfig
    ) -> tuple[Trajectory, str]:
        save = screenshot_saver(config, self.out, name)
        try:
            episode = await run_episode(env, policy, task, config, trajectory_id=name, save_screenshot=save)
            url = env.page.url if env.context is not None else ""
            return without_secrets(await suite_of(task).finish(env, episode)), url
        finally:
            await env.close()

    async def _choose(self) -> str:
        self.say(f"  {', '.join(CHOICES)}?")
        while True:
            line = await self.inbox.get()
            if isinstance(line, str) and line.strip() in CHOICES:
                return line.strip()


def without_idle_clicks(steps: Sequence[Step]) -> list[Step]:
    """Drop clicks into a field that is filled right after: `fill` needs none."""
    return [
        step
        for step, following in zip(steps, [*steps[1:], None], strict=True)
        if following is None
        or not re.fullmatch(r"click\('\w+'\)", step.action)
        or not following.action.startswith(f"fill{step.action.removeprefix('click').removesuffix(')')},")
    ]
