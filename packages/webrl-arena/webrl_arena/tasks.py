"""The arena's tasks: templates filled with entities of a split, the same on every machine.

API: `training_tasks(config)`, `evaluation_tasks(config)`, `find_task(name, seed)`, `eval_of(task)`,
`draw(template, split, count)`, whose entries, in WebArena's format, `as_task` makes tasks of.

A quarter of the products and customers (with their orders), and a third of the categories, belong to the evaluation;
training neither names them nor has them as an answer. The held-out templates are in no training task either.

A Task's site is `arena.SITE.TEMPLATE`, its start_url begins with `__SHOP__`; `extra["arena"]` holds who is logged in
and the entry's `eval`. One without start_url is looked up by `find_task`, by its site and seed.
"""

from __future__ import annotations

import difflib
import itertools
import random
import re
from collections.abc import Sequence
from functools import cache
from typing import Any, Literal

from webrl.config import RunConfig
from webrl.errors import DataError, UsageError
from webrl.rollouts.suite import in_turn
from webrl.types import Lineage, Task
from webrl_arena.draws import Entities
from webrl_arena.templates import Template, all_templates, by_type
from webrl_arena.world.content import Product, catalogue, for_evaluation, load_words
from webrl_arena.world.forum import forum
from webrl_arena.world.mail import mail
from webrl_arena.world.tracker import tracker

Split = Literal["train", "eval"]
PREFIX = "arena."
KEY = "arena"
"""Of a task's `extra`."""
NUM_EVAL_TASKS = 8
"""Evaluation tasks of a training template."""
NUM_HELDOUT_TASKS = 12
"""Evaluation tasks of a held-out template."""
_TRIES = 40
"""Draws for each task that is requested, before there are said to be no more."""
_TOO_MUCH = 1000
_ID = re.compile(r"(.+)-(train|eval)-([0-9]{1,10}(?:\.[0-9]{1,4})?)-([0-9]{1,3})")
"""Of a template's task: its key, whose entities it is about, seed and number."""


def eval_of(task: Task) -> dict[str, Any] | None:
    """Return how success is measured; None if the outcome model judges."""
    found: dict[str, Any] | None = task.extra.get(KEY, {}).get("eval")
    return found


def sites_of(task: Task) -> list[str]:
    """Return the sites that a task is played on, for any type of task."""
    return [f"{PREFIX}{site}" for site in task.site.split(".")[1].split("+")]


@cache
def entities(split: Split) -> Entities:
    """Return what the tasks of a split may be about."""
    content, words, mine = catalogue(), load_words("tasks"), split == "eval"
    sides: dict[bool, list[Product]] = {False: [], True: []}
    for i, product in enumerate(content.products):
        sides[for_evaluation(i)].append(product)
    customers = tuple(c for i, c in enumerate(content.customers) if for_evaluation(i) == mine)
    emails = {customer.email for customer in customers}
    shelves = [path for path in content.categories if len(path) > 1]
    names = [f"{first} {second}" for first, second in itertools.product(words.first_names, words.second_names)]
    upcs = {product.upc for product in sides[mine]}
    plans = itertools.product(tracker().owners, (milestone.name for milestone in tracker().milestones))
    problems = itertools.product(words.things, words.faults)
    kinds = list(dict.fromkeys(product.kind for product in content.products))
    return Entities(
        products=tuple(sides[mine]),
        spared=frozenset() if mine else frozenset(product.upc for product in sides[True]),
        customers=customers,
        orders=tuple(order for order in content.orders if order.email in emails and order.total < _TOO_MUCH),
        shelves=tuple(path for i, path in enumerate(shelves) if (i % 3 == 0) == mine),
        kinds=tuple(kind for i, kind in enumerate(kinds) if for_evaluation(i) == mine),
        topics=tuple(topic for topic in forum().topics if topic.evaluation == mine),
        surnames=tuple(name for i, name in enumerate(words.surnames) if for_evaluation(i) == mine),
        names=tuple(name for i, name in enumerate(names) if for_evaluation(i) == mine),
        tickets=tuple(
            ticket
            for ticket in tracker().tickets
            if (ticket.upc in upcs if ticket.upc else f"{ticket.reporter}@example.com" in emails)
        ),
        shelf_pages=tuple(page for i, page in enumerate(tracker().shelves) if (i % 3 == 0) == mine),
        plans=tuple(plan for i, plan in enumerate(plans) if for_evaluation(i) == mine),
        problems=tuple(" ".join(p) for i, p in enumerate(problems) if for_evaluation(i) == mine),
        mails=tuple(each for each in mail().conversations if each.evaluation == mine),
    )


def draw(template: Template, split: Split, count: int, seed: int | str = 0) -> list[dict[str, Any]]:
    """Draw at most `count` different tasks of a template, as entries in WebArena's format."""
    rng, sites = random.Random(f"{template.key} {split} {seed}"), template.site.split("+")
    found: dict[str, dict[str, Any]] = {}
    for _ in range(_TRIES * count):
        if len(found) == count:
            break
        if (drawn := template.draw(entities(split), rng)) is None:
            continue
        (slots, login, evaluation), wording = drawn, rng.choice(template.wordings)
        entry = {
            "task_id": f"{template.site}.{template.name}-{split}-{seed}-{len(found)}",
            "sites": sites,
            "require_login": True,
            "login": login,
            "start_url": f"__{sites[0].upper()}__/",
            "intent_template_id": template.name,
            "intent_template": wording,
            "instantiation_dict": slots,
            "intent": wording.format(**slots),
            "eval": evaluation,
        }
        found.setdefault(str(sorted(slots.items())), entry)
    return list(found.values())


def as_task(entry: dict[str, Any], split: str) -> Task:
    """Make the task of an entry."""
    return Task(
        task_id=f"{PREFIX}{entry['task_id']}",
        site=f"{PREFIX}{'+'.join(entry['sites'])}.{entry['intent_template_id']}",
        instruction=entry["intent"],
        start_url=entry["start_url"],
        split=split,
        lineage=Lineage(strategy="seed"),
        extra={KEY: {"login": entry["login"], "eval": entry["eval"]}},
    )


def training_tasks(config: RunConfig, seed: int | str | None = None) -> list[Task]:
    """Draw `num_seed_tasks` of a phase from the training templates in turn.

    Args:
        seed: of the draw; None: the run's.

    Raises:
        UsageError: an unknown or held-out template in `tasks.train_sites`.
    """
    count, seed = config.tasks.num_seed_tasks, config.seed if seed is None else seed
    templates = _chosen(config.tasks.train_sites, held_out=False)
    # One seed may draw too few of some templates (few categories): the others make up for it.
    per_type = max(1, -(-count // len(templates)))
    while True:
        tasks = _drawn(templates, "train", per_type, "train", seed)
        if len(tasks) >= count or per_type > count:
            return tasks[:count]
        per_type *= 2


def find_task(name: str, seed: int) -> Task:
    """Find a task by its id, or draw one by the name of a training template and a seed.

    Raises:
        DataError: there is none of that name, or the template is held out and no id is named.
    """
    if template := by_type().get(name):
        if template.held_out:
            raise DataError(f"task type {name!r} is held out of training; its tasks have ids: {name}-eval-0-0, …")
        return as_task(draw(template, "train", 1, seed)[0], "train")
    found = _ID.fullmatch(name)
    if found and (template := by_type().get(found[1])):
        split: Split = "train" if found[2] == "train" else "eval"
        number = int(found[4])
        entries = draw(template, split, number + 1, found[3])
        if number >= len(entries):
            raise DataError(f"no task {name!r}: that seed draws {len(entries)} of this type")
        return as_task(entries[number], split)
    nearest = difflib.get_close_matches(name, by_type(), n=1, cutoff=0)
    raise DataError(f"the arena has no task {name!r}; the nearest type is {nearest[0]!r}")


def evaluation_tasks(config: RunConfig) -> tuple[list[Task], list[Task]]:
    """Return those of the training templates, and of the held-out ones, for every seed."""
    seen = _chosen(config.tasks.train_sites, held_out=False)
    unseen = _chosen(config.tasks.heldout_sites, held_out=True)
    return (
        _drawn(seen, "eval", NUM_EVAL_TASKS, "eval", 0),
        _drawn(unseen, "eval", NUM_HELDOUT_TASKS, "eval_heldout", 0),
    )


def _drawn(templates: Sequence[Template], entities: Split, per_type: int, split: str, seed: int | str) -> list[Task]:
    drawn = (draw(template, entities, per_type, seed) for template in templates)
    return in_turn([as_task(entry, split) for entry in entries] for entries in drawn)


def _chosen(names: Sequence[str], *, held_out: bool) -> tuple[Template, ...]:
    for name in names:
        if name not in by_type():
            nearest = difflib.get_close_matches(name, by_type(), n=1, cutoff=0)
            raise UsageError(f"unknown task type {name!r} of the arena; the nearest is {nearest[0]!r}")
        if by_type()[name].held_out != held_out:
            where = "tasks.heldout_sites" if not held_out else "tasks.train_sites"
            raise UsageError(f"task type {name!r} belongs in {where}")
    return tuple(by_type()[name] for name in names) or tuple(t for t in all_templates() if t.held_out == held_out)
