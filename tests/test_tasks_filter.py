"""The filters: order, counts, band edges, leakage, feasibility by a real server, balance."""

import asyncio
import math
from collections import Counter

import pytest
from curriculum_builders import PAGE, ChatServer, build_task

from webrl.config import EngineConfig, FilterConfig, GenerateConfig, RunConfig
from webrl.tasks.filter import (
    check_feasibility,
    filter_tasks,
    leaks,
    load_rules,
    missing_from_page,
    read_verdict,
    rules_for,
)
from webrl.types import Task

CONFIG = FilterConfig()


def run(tasks, *, known=(), heldout=(), config=CONFIG, **arguments):
    return asyncio.run(filter_tasks(tasks, known=known, heldout=heldout, config=config, **arguments))


def named(*instructions, site="shopping", **fields):
    return [build_task(text, site, **fields) for text in instructions]


@pytest.mark.parametrize(
    ("value", "reason"),
    [
        *((value, None) for value in (0.05, 0.4, 0.75)),
        *((value, "value_low") for value in (math.nextafter(0.05, 0), 0.0)),
        *((value, "value_high") for value in (math.nextafter(0.75, 1), 1.0)),
    ],
)
def test_both_edges_of_the_critic_s_band_are_kept(value, reason):
    assert run(named("Open the cart"), values=lambda left: [value]).counts == ({reason: 1} if reason else {})


@pytest.mark.parametrize("value", [math.nan, -0.1, 1.5, math.inf])
def test_a_value_that_is_no_probability_stops_the_stage(value):
    with pytest.raises(ValueError, match="is not in"):
        run(named("Open the cart"), values=lambda left: [value])


@pytest.mark.companion("webarena")
def test_filters_run_in_order_and_every_drop_is_counted_with_its_reason():
    tasks = [
        *named("Open the cart", "Open", "open the CART.", "Please open the cart", "Sort the mice by price"),
        *named("Show my last order", start_url="__SHOPPING__"),
        *named("Show the newest reviews", "Compare two phones", "List all shoes", "Find a red hat"),
    ]
    intent = {"webarena": {"intent": "Show me my last order"}}
    heldout = [Task("wa.1", "shopping", start_url="x", split="eval", extra=intent)]
    seen = []

    async def judge(left):
        seen.append([task.instruction for task in left])
        return [("infeasible", "answer 'NO'") if t.instruction == "Compare two phones" else None for t in left], ""

    values = {"Sort the mice by price": 0.01, "Show the newest reviews": 0.9, "List all shoes": 0.5}
    values["Find a red hat"] = 0.75
    options = {"known": named("Open the cart!", seed=7), "config": CONFIG.model_copy(update={"max_tasks": 1})}
    judged = {"judge": judge, "values": lambda left: [values[task.instruction] for task in left]}
    report = run(tasks, heldout=heldout, **options, **judged)
    assert [task.instruction for task in report.kept] == ["Find a red hat"]
    reasons = ("malformed", "near_duplicate", "leakage", "infeasible", "value_low", "value_high", "budget")
    assert report.counts == dict.fromkeys(reasons, 1) | {"exact_duplicate": 2}
    kept = {"malformed": 9, "duplicate": 6, "leakage": 5, "feasibility": 4, "critic": 2, "budget": 1}
    assert [(stage["name"], stage["num_kept"]) for stage in report.stages] == list(kept.items())
    assert seen == [
        ["Sort the mice by price", "Show the newest reviews", "Compare two phones", "List all shoes", "Find a red hat"]
    ]
    assert report.stages[0]["dropped_examples"] == ["Open (has fewer than two words)"]
    details = {drop.task.instruction: drop.detail for drop in report.dropped}
    assert details["Sort the mice by price"] == "value 0.01 < 0.05"
    assert details["Please open the cart"].endswith("Open the cart!")


def test_filters_that_cannot_run_are_skipped_and_say_why():
    report = run(named("Open the cart"))
    assert [stage["note"] for stage in report.stages] == ["", "", "", "no model to judge with", "no critic"]
    off = CONFIG.model_copy(update={"feasibility": False, "critic_band": False})
    report = run(named("Open the cart"), config=off, values=lambda left: [0.0])
    assert [stage["note"] for stage in report.stages[3:]] == ["off by config"] * 2
    assert len(report.kept) == 1


def test_held_out_seeds_types_and_instructions_never_pass():
    heldout = [
        build_task(None, "miniwob.click-tab", 1_000_001, split="eval"),
        build_task(None, "miniwob.unicode-test", 2_000_001, split="eval_heldout"),
        build_task("Show my last order", "shopping", start_url="__SHOPPING__", split="eval"),
    ]
    tasks = [
        build_task("Click on Tab #1.", "miniwob.click-tab", 1_000_001),
        build_task("Click on Tab #1.", "miniwob.click-tab", 5),
        build_task("Click on the é button", "miniwob.unicode-test", 5),
        build_task("Please show my last order", "shopping", start_url="__SHOPPING__/other"),
        build_task("Show my first order", "shopping", start_url="__SHOPPING__"),
    ]
    verdicts = leaks(tasks, heldout, CONFIG.duplicate_threshold)
    assert [verdict is None for verdict in verdicts] == [False, True, False, False, True]
    assert verdicts[0] == ("leakage", "seed 1000001 of miniwob.click-tab is held out")


@pytest.mark.companion("webarena")
def test_webarena_s_held_out_instructions_are_found_without_start_pages_and_across_sites():
    """Evaluation tasks have their text in the task file's object; generated ones may have no start page at all."""

    def scored(intent: str, *sites: str) -> Task:
        evaluation = {"eval_types": ["string_match"], "reference_answers": {"exact_match": "3"}}
        config = {"sites": list(sites), "intent": intent, "start_url": f"__{sites[0].upper()}__", "eval": evaluation}
        return build_task(None, "+".join(sites), split="eval", extra={"webarena": config}, task_id=intent)

    heldout = [scored("How many orders are pending?", "shopping_admin"), scored("Find the way to CMU", "map", "gitlab")]
    tasks = [
        build_task("Please tell me how many orders are pending", "shopping_admin"),
        build_task("Find the way to CMU.", "gitlab", start_url="__GITLAB__/x"),
        build_task("Find the way to CMU", "reddit+map"),
        build_task("Find the way to CMU", "shopping"),
        build_task("How many orders are complete?", "shopping_admin"),
    ]
    verdicts = leaks(tasks, heldout, CONFIG.duplicate_threshold)
    assert verdicts == [
        ("leakage", "held-out instruction: How many orders are pending?"),
        ("leakage", "held-out instruction: Find the way to CMU"),
        ("leakage", "held-out instruction: Find the way to CMU"),
        None,
        None,
    ]


def test_a_copy_of_a_held_out_instruction_is_found_beside_a_task_that_is_nearer_to_it():
    heldout = [build_task("Show the newest review of the red kettle", "shopping", start_url="__SHOPPING__")]
    copy = "Show the newest review of the red kettle in a list for me and then tell me"
    longer = "Show the newest review of the red kettle in a list for me and then tell me now please"
    tasks = [build_task(text, "shopping", start_url="__SHOPPING__") for text in (longer, copy)]
    assert [v is None for v in leaks(tasks, heldout, CONFIG.duplicate_threshold)] == [True, False]
    assert [v is None for v in leaks(tasks[::-1], heldout, CONFIG.duplicate_threshold)] == [False, True]


def test_tasks_whose_initial_page_is_not_known_pass_the_band_and_are_counted():
    tasks = named("Open the cart", "Sort the mice", "Find a hat")
    report = run(tasks, values=lambda left: [None, 0.9, 0.5])
    assert [task.instruction for task in report.kept] == ["Open the cart", "Find a hat"]
    assert report.stages[-1]["note"] == "not applied to 1 tasks: initial page unknown"


def test_rules_of_an_own_file_are_added_to_the_shipped_ones(tmp_path):
    path = tmp_path / "rules.yaml"
    path.write_text("shopping:\n  - We sell no shoes.\nall:\n  - Be brief.\n", encoding="utf-8")
    shipped, extended = load_rules(), load_rules(path)
    assert rules_for(extended, "shopping")[-1] == "We sell no shoes."
    of_both = {*rules_for(shipped, "shopping"), *rules_for(shipped, "map")}
    assert set(rules_for(extended, "shopping+map")) > of_both
    assert rules_for(extended, "unknown") == [*rules_for(shipped, "unknown"), "Be brief."]


@pytest.mark.parametrize(
    ("site", "instruction", "missing"),
    [
        ("click-button", 'Click on the "ok" button.', None),
        ("click-button", 'Click on the "Ok" button.', "Ok"),
        ("click-button", 'Press the "Next" button.', None),
        ("click-button", 'Press the "ext" button.', "ext"),
        ("enter-text", 'Enter "anything" into the text field and press "ok".', None),
        ("click-option", "Select ok, Next and click Submit.", None),
        ("click-option", "Select ok, Prev and click Submit.", "Prev"),
        ("click-checkboxes", "Select nothing and click Submit.", None),
        ("choose-list", "Pick button in the list, then press Submit.", None),
        ("choose-list", "Pick banana in the list, then press Submit.", "banana"),
    ],
)
def test_named_things_must_be_on_the_page_as_whole_words(site, instruction, missing):
    task = build_task(instruction, f"miniwob.{site}")
    assert missing_from_page(task, PAGE, load_rules()) == missing
    assert missing_from_page(task, "", load_rules()) is None


@pytest.mark.parametrize(
    ("answer", "verdict"),
    [
        *((answer, True) for answer in ("YES", "**Yes**, it is", "<Thinking>maybe no</Thinking>\nYES")),
        ("no.", False),
        *((answer, None) for answer in ("Not sure", "", "Yesterday")),
    ],
)
def test_the_first_word_is_the_verdict(answer, verdict):
    assert read_verdict(answer) is verdict


def judge_all(server, tasks, cache, pages=None):
    async def work():
        async with server.running(), server.model() as model:
            config = RunConfig(generate=GenerateConfig(engine=EngineConfig(max_batch=2)))
            return await check_feasibility(tasks, pages or [""] * len(tasks), model, config, cache)

    return asyncio.run(work())


def test_the_model_judges_with_the_rules_of_the_site_and_unreadable_answers_judge_nothing(tmp_path):
    answers = {"Open the cart": "YES", "Buy the moon": "NO: not sold", "Hm hm": "It depends"}
    server = ChatServer(lambda user, _: next(a for i, a in answers.items() if f"Instruction: {i}\n" in user))
    drops, skipped = judge_all(server, named(*answers), tmp_path / "answers.jsonl")
    assert drops == [None, ("infeasible", "answer 'NO: not sold'"), None]
    assert not skipped
    judge_all(server, named(*answers), tmp_path / "other.jsonl")
    assert len(server.prompts) == 6


def test_a_model_that_cannot_judge_is_left_out_after_a_few_questions_and_page_rules_still_hold(tmp_path):
    server = ChatServer(lambda user, _: "Click on the blue button.")
    tasks = [build_task(f'Click on the "ok" button {i} times.', seed=i) for i in range(30)]
    tasks.append(build_task('Click on the "absent" button.'))
    drops, skipped = judge_all(server, tasks, tmp_path / "answers.jsonl", [PAGE] * 31)
    assert drops == [None] * 30 + [("infeasible", "'absent' is not on the page")]
    assert "answers neither YES nor NO ('Click on the blue button.')" in skipped
    assert len(server.prompts) == 16


@pytest.mark.parametrize(("max_tasks", "kept"), [(1, "d"), (2, "bd"), (3, "bcd"), (4, "abcd"), (9, "abcd")])
def test_a_budget_keeps_tasks_evenly_over_the_order(max_tasks, kept):
    names = {"a": "Open the cart", "b": "Sort the mice by price", "c": "Find a red hat", "d": "Log out of the account"}
    report = run(named(*names.values()), config=CONFIG.model_copy(update={"max_tasks": max_tasks}))
    assert [task.instruction for task in report.kept] == [names[name] for name in kept]
    assert report.counts == ({"budget": 4 - len(kept)} if len(kept) < 4 else {})
    assert run([], config=CONFIG.model_copy(update={"max_tasks": max_tasks})).kept == []


@pytest.mark.parametrize(
    ("max_tasks", "kept"), [(1, [0, 0, 1]), (2, [0, 1, 1]), (3, [1, 1, 1]), (4, [1, 2, 1]), (6, [1, 4, 1])]
)
def test_a_budget_leaves_no_site_out_that_it_has_room_for(max_tasks, kept):
    texts = ("Open the cart", "Sort the mice by price", "Find a red hat", "Log out of the account", "Rate a lamp")
    tasks = [*named("Read the news", site="forum"), *named(*texts), *named("Close a ticket", site="tracker")]
    report = run(tasks, config=CONFIG.model_copy(update={"max_tasks": max_tasks}))
    counts = Counter(task.site for task in report.kept)
    assert [counts[site] for site in ("forum", "shopping", "tracker")] == kept
