"""The score cache: what was scored once is never computed again, and never mistaken for something else."""

import dataclasses

import pytest
from test_replay_select import make_step

from webrl.errors import DataError
from webrl.replay.score import Scorer


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
    with pytest.raises(ValueError, match="scoring gave 0 records for 1"):
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
