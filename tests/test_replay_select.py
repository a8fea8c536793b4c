"""Perplexity, band edges, and what replay keeps, worked out by hand; what was scored once is never computed again."""

import dataclasses
import json
import math
import random
from collections import Counter
from dataclasses import replace

import pytest
from replay_builders import select_replay

from webrl.config import ReplayConfig
from webrl.errors import DataError, ModelError
from webrl.replay.score import Scorer
from webrl.replay.sources import Source, Tools
from webrl.replay.stage import (
    action_perplexity,
    add_history,
    draw,
    in_band,
    need_of,
    refuse_other_weights,
    sampler_difference,
)
from webrl.runs.problems import ProblemLog
from webrl.types import StepRecord

END = 9


def make_step(trajectory="t0", index=0, *, instruction=None, p=0.7, outcome=1, phase=0, **changes):
    """A step of two action tokens of probability `p` each and a certain end token."""
    named = (f"{trajectory}:{index}", trajectory, instruction or f"do {trajectory}", "miniwob.click-button")
    sampled = {"prompt_ids": (1, 2, 3), "action_ids": (4, 5, END), "ref_logprobs": (math.log(p), math.log(p), 0.0)}
    record = StepRecord(*named, phase, index, 1, outcome=outcome, **sampled)
    return replace(record, **changes)


def choose(history, num_current=100, seed=0, tokenizer="", **config):
    return select_replay(history, num_current, ReplayConfig(**config), random.Random(seed), {END}, tokenizer)


LIKELY, LESS = math.log(0.5), math.log(0.125)


@pytest.mark.parametrize(
    ("logprobs", "ids", "perplexity"),
    [
        ([LIKELY, LESS], [1, 2], 4.0),  # sqrt(0.5 * 0.125) = 0.25
        ([LIKELY, LIKELY, math.log(1e-6)], [1, 2, END], 2.0),  # the end token is left out
        ([LIKELY, LESS, 0.0], [END, 2, END], 4.0),  # but not inside of the action
        ([-2.0] * 5000, [1] * 5000, math.exp(2.0)),
        ([-1e6], [1], math.inf),
        ([-0.1], [END], None),
        ([], [], None),
    ],
)
def test_perplexity_is_the_inverse_geometric_mean_probability_of_the_action_s_tokens(logprobs, ids, perplexity):
    assert action_perplexity(logprobs, ids, {END}) == pytest.approx(perplexity)
    with pytest.raises(ValueError, match="2 log-probs for 1 action tokens"):
        action_perplexity([-0.1, -0.1], [1], {END})


@pytest.mark.parametrize(
    ("p", "kept"), [(0.95, True), (0.9501, False), (0.5, False), (0.5001, True), (1.0, False), (0.3, False)]
)
def test_band_keeps_token_probability_above_one_half_up_to_095(p, kept):
    value = action_perplexity([math.log(p)] * 7, [1] * 7, {END})
    assert in_band(value, 1 / 0.95, 2.0) is kept


@pytest.mark.parametrize(
    ("perplexity", "kept"), [(1.5, True), (2.0, False), (1.999999, True), (math.nan, False), (math.inf, False)]
)
def test_band_edges_in_perplexity_are_closed_below_and_open_above(perplexity, kept):
    assert in_band(perplexity, 1.5, 2.0) is kept


def test_only_successes_are_replayed_and_unjudged_ones_are_counted_apart():
    selection = choose([make_step("a"), make_step("b", outcome=0), make_step("c", outcome=None)])
    assert [(r.step_id, r.source) for r in selection.records] == [("a:0", "replay")]
    assert selection.counts == {"kept": 1, "failed": 1, "unjudged": 1}


def test_the_first_success_of_a_task_is_replayed():
    outcomes = {"a": 0, "b": 1, "c": 1}
    history = [make_step(name, outcome=outcome, instruction="x") for name, outcome in outcomes.items()]
    history[2:2] = [make_step("b", 1, instruction="x")]
    history.append(make_step("d", instruction="y"))
    selection = choose(history)
    assert [r.step_id for r in selection.records] == ["b:0", "b:1", "d:0"]
    assert selection.counts == {"kept": 3, "failed": 1, "repeated_task": 1}


def test_an_instruction_on_another_first_page_or_site_is_another_task():
    history = [
        make_step("a", instruction="x", prompt_ids=(1, 2)),
        make_step("a", 1, instruction="x", prompt_ids=(1, 2, 7)),
        make_step("b", instruction="x", prompt_ids=(1, 3)),
        make_step("b", 1, instruction="x", prompt_ids=(1, 2)),  # only later where "a" began
        make_step("c", instruction="x", prompt_ids=(1, 2), screenshot_sha256="c0ffee"),
        make_step("d", instruction="x", prompt_ids=(1, 3)),
        make_step("e", instruction="x", prompt_ids=(1, 3), site="miniwob.click-link"),
    ]
    selection = choose(history)
    assert {r.trajectory_id for r in selection.records} == {"a", "b", "c", "e"}
    assert selection.counts["repeated_task"] == 1


def test_a_trajectory_that_the_history_has_twice_is_replayed_once():
    history = [make_step("a"), make_step("a", 1), make_step("b")]
    assert choose([*history, *history]).counts == {"kept": 3, "repeated_task": 3}
    assert choose([*history[:2], *history[:2]]).counts == {"kept": 2, "repeated_task": 2}


def test_records_from_before_there_were_groups_and_screenshots_are_replayed(tmp_path):
    step = make_step("a", site="old").to_json()
    newer = ("group", "tokenizer", "screenshot", "screenshot_sha256", "next_screenshot", "next_screenshot_sha256")
    old = {name: value for name, value in step.items() if name not in newer}
    (tmp_path / "history.jsonl").write_text(json.dumps(old) + "\n" + json.dumps(old | {"trajectory_id": "b"}) + "\n")
    (tmp_path / "train.jsonl").write_text(json.dumps(old) + "\n")
    sources, tools = [Source(tmp_path / "history.jsonl", "records")], Tools(ProblemLog(), end_token_ids=(END,))
    files = tmp_path / "train.jsonl", 1, sources, tools, ReplayConfig(), random.Random(0), tmp_path / "out.jsonl"
    assert add_history(*files) == ({"kept": 1, "repeated_task": 1}, {"old": 1})


def test_a_success_outside_the_band_is_still_the_one_of_its_task():
    # As published: the first success, then the band.
    history = [make_step("a", instruction="x", p=0.99), make_step("b", instruction="x", p=0.7)]
    assert choose(history).counts == {"kept": 0, "too_certain": 1, "repeated_task": 1}


def test_the_band_is_applied_to_each_step_and_counted_on_both_sides():
    history = [make_step("a", i, p=p) for i, p in enumerate((0.99, 0.7, 0.4))]
    selection = choose(history)
    assert [r.index for r in selection.records] == [1]
    assert selection.counts == {"kept": 1, "too_certain": 1, "too_uncertain": 1}


def test_unscored_steps_and_empty_actions_are_counted_not_kept():
    history = [make_step("a", ref_logprobs=None), make_step("b", action_ids=(END,), ref_logprobs=(-0.1,))]
    assert choose(history).counts == {"kept": 0, "unscored": 1, "empty_action": 1}


def test_steps_of_another_tokenizer_are_dropped():
    history = [make_step("a", tokenizer="new"), make_step("b", tokenizer="old"), make_step("c", tokenizer="")]
    selection = choose(history, tokenizer="new")
    assert [r.trajectory_id for r in selection.records] == ["a", "c"]
    assert selection.counts["other_tokenizer"] == 1


def test_at_most_twice_the_current_steps_are_replayed_and_a_fraction_rounds_down():
    history = [make_step(f"t{i}") for i in range(50)]
    assert choose(history, num_current=10).counts == {"kept": 20, "over_ratio": 30}
    for num_current, max_ratio, kept in ((10, 2.0, 20), (0, 2.0, 0), (25, 2.0, 50), (5, 0.5, 2), (10, 2.9, 29)):
        assert len(choose(history, num_current, max_ratio=max_ratio).records) == kept


def drawn(sizes, need, limit, seed=0):
    """Steps of each site that are drawn by need out of `sizes`."""
    sites = [site for site, num in sizes.items() for _ in range(num)]
    positions = draw(sites, need, limit, ReplayConfig(max_ratio=1), random.Random(seed))
    assert positions == sorted(set(positions))
    return Counter(sites[position] for position in positions)


def test_task_types_are_replayed_in_proportion_to_their_need():
    # Turns of a at 0, 2, 4, …, 18, 20 and of b at 0, 10, 20: the twelve lowest are ten of a and two of b.
    assert drawn({"a": 30, "b": 300}, {"a": 0.5, "b": 0.1}, 12) == {"a": 10, "b": 2}
    # c has two steps only, at 0 and 2. Of thirteen, a's are those at 0, 2, …, 16.
    assert drawn({"a": 20, "b": 20, "c": 2}, {"a": 0.5, "b": 0.1, "c": 0.5}, 13) == {"a": 9, "b": 2, "c": 2}
    assert drawn({"a": 20, "b": 20}, {"a": 0.99, "b": 0.01}, 2) == {"a": 1, "b": 1}, "no type goes without"


def test_need_is_the_failure_rate_of_the_phases_tasks_with_a_floor():
    attempts = [("a", "t1", 0), ("a", "t1", 1), ("a", "t2", 0), ("a", "t3", None), ("b", "t1", 1), ("b", "t2", 1)]
    # a fails 1.5 of two tasks, b none of two, c was not tried; four tasks of the common rate, 1.5/4, are added to each.
    assert need_of({"a", "b", "c"}, attempts) == {"a": 3 / 6, "b": 1.5 / 6, "c": 1.5 / 4}
    assert need_of({"a", "b"}, [("a", "t1", 1), ("b", "t2", 1)]) == {"a": 0.1, "b": 0.1}
    assert need_of({"a", "b"}, []) == {"a": 1.0, "b": 1.0}


def test_what_the_phase_fails_at_is_replayed_more_than_what_the_buffer_is_full_of():
    history = [make_step(f"e{i}", site="easy") for i in range(40)]
    history += [make_step(f"h{i}", site="hard") for i in range(10)]
    current = [make_step(f"c{i}", site="easy", group=f"g{i}") for i in range(12)]
    current += [make_step(f"d{i}", site="hard", group=f"g{i}", outcome=0) for i in range(4)]
    # Hard fails (4 + 1)/8 = 0.625, easy (0 + 1)/16, so 0.1. Turns of hard at 0, 1.6, …, 9.6, 11.2, of easy at 0 and 10.
    options = {"rng": random.Random(0), "end_token_ids": {END}, "current": current}
    by_need = select_replay(history, 4, ReplayConfig(), **options)
    assert by_need.by_type == {"hard": 7, "easy": 1}
    assert by_need.counts == {"kept": 8, "over_ratio": 42}
    uniform = Counter()
    for seed in range(50):
        options["rng"] = random.Random(seed)
        uniform.update(select_replay(history, 4, ReplayConfig(draw="uniform"), **options).by_type)
    # Four of five steps are easy: 320 of 400 expected, standard deviation 7.4: five of them.
    assert abs(uniform["easy"] - 320) < 38


def test_the_draw_is_seeded_and_keeps_the_history_order():
    history = [make_step(f"t{i:02}") for i in range(50)]
    first, again, other = (choose(history, num_current=5, seed=s).records for s in (1, 1, 2))
    assert first == again
    assert first != other
    assert [r.step_id for r in first] == sorted(r.step_id for r in first)


def test_strategies_for_ablation():
    history = [make_step(f"t{i}", phase=i // 4, p=0.99) for i in range(12)]
    assert choose(history, strategy="none").counts == {"kept": 0, "strategy_none": 12}
    assert len(choose(history, strategy="perplexity").records) == 0
    assert len(choose(history, strategy="all").records) == 12
    assert len(choose([make_step(ref_logprobs=None)], strategy="all").records) == 1


def test_the_samplers_log_probs_are_held_against_the_scored_ones(tmp_path):
    steps = tmp_path / "train.jsonl"
    lines = [
        {"logprobs": [-1.0, -2.0], "ref_logprobs": [-1.5, -2.0]},
        {"logprobs": [], "ref_logprobs": [-3.0]},
        {"logprobs": [-0.25], "ref_logprobs": [-0.5]},
    ]
    steps.write_text("".join(json.dumps(line) + "\n" for line in lines))
    assert sampler_difference(steps) == {"tokens": 3, "mean": 0.25, "max": 0.5}


def test_a_sampler_that_disagrees_with_the_trainer_stops_the_stage():
    refuse_other_weights("runs/a/actor", {"tokens": 3, "mean": 0.1, "max": 0.5}, 0.1)
    for mean in (1.93, float("nan")):
        with pytest.raises(ModelError, match=r"runs/a/actor.*replay\.sampler_tolerance=0\.1"):
            refuse_other_weights("runs/a/actor", {"tokens": 3, "mean": mean, "max": 2.5}, 0.1)


def halve(records):
    """A stand-in for the model pass: a number that depends on the ids."""
    return [dataclasses.replace(r, ref_logprobs=tuple(-i / 7 for i in r.action_ids)) for r in records]


def refuse(records):
    raise AssertionError(f"computed {len(records)} steps again")


def run(path, records, score, fingerprint="actor-1", chunk_tokens=18):  # 18 tokens are three steps
    with Scorer(path, fingerprint, score) as scorer:
        return list(scorer.stream(records, chunk_tokens)), dict(scorer.counts)


def test_only_unknown_steps_are_computed_in_order_and_a_second_run_computes_nothing_and_gives_the_same_bits(tmp_path):
    records = [make_step(f"t{i}", ref_logprobs=None) for i in range(10)]
    _, counts = run(tmp_path / "scores.db", records[::2], halve)
    assert counts == {"computed": 5, "cached": 0}
    first, counts = run(tmp_path / "scores.db", records, halve)
    assert counts == {"computed": 5, "cached": 5}
    assert [r.step_id for r in first] == [r.step_id for r in records]
    assert first[0].ref_logprobs == (-4 / 7, -5 / 7, -9 / 7)
    assert run(tmp_path / "scores.db", records, refuse) == (first, {"computed": 0, "cached": 10})


def test_another_actor_other_ids_or_another_picture_under_the_same_step_id_are_computed(tmp_path):
    record = make_step(ref_logprobs=None)
    run(tmp_path / "scores.db", [record], halve)
    assert run(tmp_path / "scores.db", [record], halve, "actor-2")[1]["computed"] == 1
    for changed in ({"prompt_ids": (1, 2)}, {"screenshot_sha256": "00" * 32}):
        other = dataclasses.replace(record, **changed)
        assert run(tmp_path / "scores.db", [other], halve)[1]["computed"] == 1


def test_scores_made_before_a_kill_are_kept(tmp_path):
    def fail_late(records):
        if records[0].step_id == "t3:0":
            raise KeyboardInterrupt
        return halve(records)

    records = [make_step(f"t{i}", ref_logprobs=None) for i in range(6)]
    with pytest.raises(KeyboardInterrupt):
        run(tmp_path / "scores.db", records, fail_late)
    assert run(tmp_path / "scores.db", records, halve)[1] == {"computed": 3, "cached": 3}


def test_a_file_that_is_no_cache_is_one_clear_error(tmp_path):
    path = tmp_path / "scores.db"
    path.write_bytes(b"not a database, but long enough to look like one" * 100)
    with pytest.raises(DataError, match=r"scores\.db: cannot be used as score cache"):
        Scorer(path, "actor-1", halve)


def test_scoring_that_loses_records_is_refused(tmp_path):
    with pytest.raises(ValueError, match="scoring returned 0 records for 1"):
        run(tmp_path / "scores.db", [make_step(ref_logprobs=None)], lambda records: [])


def test_the_cache_needs_no_memory_shared_between_machines(tmp_path):
    """A write-ahead log keeps its index in shared memory, which a network disk does not have."""
    records = [make_step("s1", ref_logprobs=None)]
    with Scorer(tmp_path / "scores.sqlite", "actor-1", halve) as scorer:
        first = list(scorer.stream(records))
        assert [p.name for p in tmp_path.iterdir()] == ["scores.sqlite"]
        copy = tmp_path / "copy.sqlite"
        copy.write_bytes((tmp_path / "scores.sqlite").read_bytes())  # all that was stored is in the one file
        assert run(copy, records, refuse)[0] == first
