"""The arena's tasks: what is asked, how it is measured, and what is refused."""

import json
import sqlite3
from collections import Counter
from dataclasses import replace
from fnmatch import fnmatchcase
from itertools import combinations
from pathlib import Path

import pytest
import yaml
from browsers import run, shared_browser

from webrl.cli import main
from webrl.config import RunConfig
from webrl.config.extras import is_installed
from webrl.errors import UsageError
from webrl.rollouts.suite import find_suite, seed_tasks, suite_of
from webrl.tasks.filter import leaks, load_rules
from webrl_arena.scoring import End, score, string_match, url_match
from webrl_arena.tasks import draw, entities
from webrl_arena.templates import MAX_WAITS, WAIT, all_templates, by_type
from webrl_arena.world.content import catalogue
from webrl_site.record import expert_tasks

ROOT = Path(__file__).resolve().parents[3]
_NAMING = (
    *("product", "other", "customer", "number", "name", "last", "words", "category", "line", "topic", "ticket"),
    *("mail", "address"),
)
"""Slots that hold an entity; the others are values such as a price or a text."""


def _config(**settings) -> RunConfig:
    return RunConfig(tasks={"suite": "arena", **settings})


def _all(split: str, held_out: bool, count: int) -> list[dict]:
    return [task for t in all_templates() if t.held_out == held_out for task in draw(t, split, count)]


@pytest.mark.quick
def test_there_are_tasks_enough_and_each_can_be_read_back_from_its_words():
    assert len(all_templates()) >= 24
    assert len({template.key for template in all_templates()}) == len(all_templates())
    assert by_type().keys() == {template.key for template in all_templates()}
    experts = yaml.safe_load((ROOT / "packages/webrl-arena/webrl_arena/experts.yaml").read_text())
    del experts["macros"]
    assert {f"arena.{site}.{name}" for site, names in experts.items() for name in names} == by_type().keys()
    assert all(template.script for template in all_templates())
    training = seed_tasks(_config(num_seed_tasks=600))
    assert len({task.instruction for task in training}) >= 500
    heldout = find_suite("arena").eval_tasks(_config(num_eval_tasks=10_000, num_heldout_tasks=10_000))
    assert sum(task.split == "eval" for task in heldout) >= 150
    assert sum(task.split == "eval_heldout" for task in heldout) >= 150
    by_key = {template.key: template for template in all_templates()}
    for task in (*training, *heldout):
        assert by_key[task.site].read(task.instruction), task.instruction
        assert suite_of(task).__class__.__name__ == "ArenaSuite"
    for template in all_templates():
        for task in draw(template, "train", 12):
            assert template.read(task["intent"]) == task["instantiation_dict"]


def test_training_and_evaluation_share_no_entity_and_no_held_out_template():
    train = [task for template in all_templates() for task in draw(template, "train", 60)]
    evaluation = [task for template in all_templates() for task in draw(template, "eval", 60)]
    for slot in _NAMING:
        named = [{t["instantiation_dict"].get(slot) for t in tasks} - {None} for tasks in (train, evaluation)]
        assert named[0], slot
        assert not named[0] & named[1], slot
    titles = {product.title for product in entities("eval").products}
    assert not titles & {str((t["eval"]["reference_answers"] or {}).get("exact_match")) for t in train}
    mine, theirs = entities("train"), entities("eval")
    assert {p.upc for p in mine.products} | {p.upc for p in theirs.products} == {p.upc for p in catalogue().products}
    held = {template.key for template in all_templates() if template.held_out}
    assert not held & {task.site for task in seed_tasks(_config(num_seed_tasks=600))}
    asked = find_suite("arena").eval_tasks(_config(num_heldout_tasks=1000))
    assert held == {t.site for t in asked if t.split == "eval_heldout"}
    assert not held & {task.site for task in expert_tasks(_config(), 3)}
    instructions = {task.instruction for task in find_suite("arena").heldout_tasks(_config())}
    assert not instructions & {task.instruction for task in seed_tasks(_config(num_seed_tasks=1000))}


def test_the_config_requests_the_whole_evaluation():
    tasks = yaml.safe_load((ROOT / "configs" / "arena.yaml").read_text())["tasks"]
    asked = find_suite("arena").eval_tasks(_config(num_eval_tasks=10_000, num_heldout_tasks=10_000))
    counted = Counter(t.split for t in asked)
    assert counted == {"eval": tasks["num_eval_tasks"], "eval_heldout": tasks["num_heldout_tasks"]}


def test_the_feasibility_check_has_rules_for_each_site_of_every_template():
    patterns = [pattern for pattern in load_rules() if pattern != "all"]
    for template in all_templates():
        found = [pattern for pattern in patterns if fnmatchcase(template.key, pattern)]
        assert len(found) == len(template.site.split("+")), (template.key, found)


def test_the_same_tasks_are_drawn_everywhere_and_a_seed_draws_others():
    first = seed_tasks(_config(num_seed_tasks=60))
    assert first == seed_tasks(_config(num_seed_tasks=60))
    other = seed_tasks(RunConfig(tasks={"suite": "arena", "num_seed_tasks": 60}, seed=1))
    assert [t.instruction for t in first] != [t.instruction for t in other]
    asked = find_suite("arena").eval_tasks(_config())
    assert asked == find_suite("arena").eval_tasks(RunConfig(tasks={"suite": "arena"}, seed=1))


def test_each_phase_of_a_run_without_curriculum_can_have_other_tasks():
    config = _config(source="fresh", num_seed_tasks=116)
    phases = [seed_tasks(config, phase) for phase in range(3)]
    for one, other in combinations(phases, 2):
        same = {task.instruction for task in one} & {task.instruction for task in other}
        assert len(same) < 30, "short lists (statuses, shelves) come again"
    assert len({task.task_id for tasks in phases for task in tasks}) == 3 * 116
    assert seed_tasks(_config(source="fixed"), 2) == seed_tasks(_config())


def test_task_types_are_chosen_by_name_and_kept_to_their_split():
    one = seed_tasks(_config(num_seed_tasks=5, train_sites=("arena.shop.price",)))
    assert [task.site for task in one] == ["arena.shop.price"] * 5
    with pytest.raises(UsageError, match=r"'arena\.shop\.prize'.*nearest is 'arena\.shop\.price'"):
        seed_tasks(_config(train_sites=("arena.shop.prize",)))
    with pytest.raises(UsageError, match=r"'arena\.shop\.dearest' belongs in tasks\.heldout_sites"):
        seed_tasks(_config(train_sites=("arena.shop.dearest",)))


def test_a_generated_task_keeps_who_is_logged_in_and_no_reference():
    task = seed_tasks(_config(num_seed_tasks=1))[0]
    assert not suite_of(task).needs_judge(task)
    kept = suite_of(task).without_reference(task.extra)
    assert kept == {"arena": {"login": task.extra["arena"]["login"]}}


def test_what_a_generator_writes_in_the_words_of_an_evaluation_is_dropped_whatever_it_was_written_for():
    config = _config()
    seed, held = seed_tasks(config)[0], find_suite("arena").heldout_tasks(config)
    assert leaks(seed_tasks(config), held, 0.9) == [None] * len(seed_tasks(config))
    shop = [task for task in held if task.site.startswith("arena.shop.")]
    known = next(task for task in shop if task.split == "eval" and task.site != seed.site)
    unseen = next(task for task in shop if task.split == "eval_heldout")
    template = next(template for template in all_templates() if template.key == unseen.site)
    (other,) = draw(template, "train", 1)
    written = (known.instruction, unseen.instruction, other["intent"], "Put the cheapest tea pot into my basket.")
    tasks = [replace(seed, task_id=f"g{i}", instruction=text) for i, text in enumerate(written)]
    first, second, third, fourth = leaks(tasks, held, 0.9)
    assert first == ("leakage", f"held-out instruction: {known.instruction}")
    assert second == third == ("leakage", f"site {unseen.site} is held out")
    assert fourth is None


_ANSWERS = [
    ({"must_include": ["3"]}, "There are 3.", True),
    ({"must_include": ["3"]}, "There are 13.", False),
    ({"must_include": ["3"]}, "3", True),
    ({"must_include": ["$71.00"]}, "It costs $71.00, tax included", True),
    ({"must_include": ["$71.00"]}, "$171.00", False),
    ({"must_include": ["Ann Lee", "Leeds"]}, "ann lee of LEEDS", True),
    ({"must_include": ["Ann Lee", "Leeds"]}, "Ann Lee", False),
    ({"exact_match": "1750 g"}, " '1750 G' ", True),
    ({"exact_match": "1750 g"}, "1750", False),
    ({"exact_match": "1750 g"}, "", False),
]
_ADDRESSES = [
    ("http://a:1/catalogue/x_1/", "http://a:1/catalogue/x_1/?from=here", True),
    ("http://a:1/catalogue/x_1/", "http://a:1/catalogue/x_2/", False),
    ("http://a:1/search/?q=Tea+Pot", "http://a:1/search/?q=Tea%20Pot&page=2", True),
    ("http://a:1/search/?q=Tea", "http://a:1/search/?q=Coffee", False),
    ("http://a:1/x", "http://b:1/x", False),
]


@pytest.mark.parametrize(("reference", "answer", "holds"), _ANSWERS)
def test_an_answer_is_matched(reference, answer, holds):
    assert string_match(reference, answer) == holds
    assert not string_match(reference, None)


@pytest.mark.parametrize(("reference", "url", "holds"), _ADDRESSES)
def test_an_address_is_matched(reference, url, holds):
    assert url_match(reference, url) == holds


@pytest.mark.webarena
def test_answers_and_addresses_are_matched_as_webarena_matches_them(tmp_path, monkeypatch):
    from webrl_webarena.scoring import _VARIABLES, _import

    evaluators = _import(dict.fromkeys(_VARIABLES, "http://a:1")).full
    # Its tokenizer's data are a download; what it does with these answers is written out.
    monkeypatch.setattr(evaluators, "word_tokenize", lambda text: text.rstrip(".").split())
    path = tmp_path / "task.json"
    for reference, answer, holds in _ANSWERS:
        path.write_text(json.dumps({"intent": "", "eval": {"reference_answers": reference}}))
        stock = evaluators.StringEvaluator()([{}, {"answer": answer}], path)
        assert stock == holds, (reference, answer)

    class Page(evaluators.PseudoPage):
        def __init__(self, url):
            self.url = url

    for reference, url, holds in _ADDRESSES:
        path.write_text(json.dumps({"eval": {"reference_url": reference}}))
        assert evaluators.URLEvaluator()([], path, Page(url)) == holds, (reference, url)


@pytest.mark.browser
def test_pages_and_the_database_are_looked_at_and_what_cannot_be_found_out_is_no_zero(tmp_path):
    database = tmp_path / "shop.sqlite3"
    for path, value in ((database, 3), (tmp_path / "tracker.sqlite3", 5)):
        with sqlite3.connect(path) as connection:
            connection.execute("CREATE TABLE t (n INTEGER)")
            connection.execute("INSERT INTO t VALUES (?)", (value,))
    page_file = tmp_path / "page.html"
    page_file.write_text("<p id=a>Tea &amp; Coffee</p>")

    def pages(included, locator="document.querySelector('#a').outerText", url="last"):
        target = {"url": url, "locator": locator, "required_contents": {"must_include": [included]}}
        return {"eval_types": ["program_html"], "program_html": [target]}

    def query(text, equals, **site):
        return {"eval_types": ["database"], "database": [{"query": text, "equals": equals, **site}]}

    elsewhere = {"eval_types": ["database", "url_match"], "reference_url": "http://elsewhere/x"}
    cases = [
        (pages("tea & coffee"), 1.0),
        (pages("Cocoa"), 0.0),
        (pages("Tea", "document.querySelector('#b').outerText"), 0.0),
        (pages("Tea", url=page_file.as_uri()), 1.0),
        (pages("Tea", url="http://127.0.0.1:9/"), None),
        (query("SELECT n FROM t", 3), 1.0),
        (query("SELECT n FROM t", 4), 0.0),
        (query("SELECT n FROM t", 5, site="tracker"), 1.0),
        (query("SELECT n FROM t", 3, site="shop_admin"), 1.0),
        (query("SELECT n FROM gone", 3), None),
        (query("DELETE FROM t", None), None),
        (query("WITH RECURSIVE c(x) AS (SELECT 1 UNION ALL SELECT x FROM c) SELECT count(*) FROM c", 1), None),
        (query("SELECT n FROM gone", 3) | elsewhere, 0.0),
    ]

    async def work():
        async with shared_browser() as browser:
            context = await browser.new_context()
            page = await context.new_page()
            await page.goto(page_file.as_uri())
            slow = "RECURSIVE"
            scores = []
            for evaluation, _ in cases:
                endless = slow in json.dumps(evaluation)
                scores.append(await score(evaluation, End(context, page, None, database, 0.5 if endless else 60)))
            return [found.reward for found in scores]

    assert run(work()) == [wanted for _, wanted in cases]


def test_without_an_arena_a_stage_stops_before_its_first_episode(tmp_path, capsys):
    folder = tmp_path / "none"
    arguments = ["eval", "arena", f"rollout.arena.folder={folder}", "tasks.num_eval_tasks=1", f"runs_dir={tmp_path}"]
    assert main(arguments) == 2
    fix = "webrl arena up" if is_installed("arena") else "pip install 'webrl[arena]'"
    assert fix in capsys.readouterr().err


def test_an_expert_waits_a_few_times_for_a_page_that_has_not_come_and_is_no_further_in_its_script():
    expert = by_type()["arena.forum.open-topic"]
    instruction = next(iter(draw(expert, "eval", 1)))["intent"]
    empty, page = "RootWebArea ''", "RootWebArea ''\n\t[3] searchbox 'Search'\n\t[4] button 'Search'"
    assert expert.plan(instruction, empty, []) == WAIT
    filled = expert.plan(instruction, page, [WAIT] * (MAX_WAITS - 1))
    assert filled is not None
    assert filled.startswith("fill('3'")
    assert expert.plan(instruction, page, [WAIT, filled]) == "click('4')"
    assert expert.plan(instruction, empty, [filled, *[WAIT] * (MAX_WAITS - 1)]) == WAIT
    assert expert.plan(instruction, empty, [filled, *[WAIT] * MAX_WAITS]) is None


def test_an_expert_types_no_note_that_nobody_has_written_down():
    expert = by_type()["arena.forum+shop.answer-price"]
    instruction = next(iter(draw(expert, "train", 1)))["intent"]
    page = "RootWebArea ''\n\t[3] textbox 'Message'\n\t[4] button 'Submit'"
    noted = "# Note: $12.50\nclick('9')"
    worked = [noted, *["click('1')"] * (len(expert.script) - 3)]
    assert expert.plan(instruction, page, worked) == "fill('3', '$12.50')"
    assert expert.plan(instruction, page, ["click('9')", *worked[1:]]) is None
