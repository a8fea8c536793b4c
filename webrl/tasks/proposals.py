"""Instructions from none at all: the generator proposes them for pages of one's own site that a short look found."""

from __future__ import annotations

import random
from collections.abc import Sequence
from typing import Any

from webrl.config import RunConfig
from webrl.rollouts.kept import run
from webrl.runs.folder import PhaseFolder
from webrl.suites import proposing
from webrl.tasks.curriculum import write_answers
from webrl.tasks.generate import GenerationRequest, split_evenly
from webrl.types import Task


def propose(config: RunConfig, *, rng: random.Random, folder: PhaseFolder) -> dict[str, Any]:
    """Write `tasks.num_seed_tasks` instructions and the page of each into the phase's folder (`generated`, `pages`).

    Returns:
        Counts: as `curriculum.propose`, and `num_explored` pages.

    Raises:
        SiteError: the site does not answer.
        ModelError: the generator is unusable.
    """
    suite = proposing(config)
    assert suite is not None
    seen = run(suite.explore(config))
    requests = requests_for(config, seen)
    return write_answers(config, requests, rng, folder) | {"num_explored": len(seen)}


def requests_for(config: RunConfig, seen: Sequence[tuple[Task, str]]) -> list[GenerationRequest]:
    """Share the tasks evenly among the pages, at most `generate.tasks_per_prompt` a prompt."""
    shares = split_evenly(config.tasks.num_seed_tasks, {target.task_id: 1.0 for target, _ in seen})
    requests = []
    for target, text in seen:
        left = shares[target.task_id]
        while left > 0:
            size = min(left, config.generate.tasks_per_prompt)
            requests.append(GenerationRequest("exploration", target.site, (), target, text, size))
            left -= size
    return requests
