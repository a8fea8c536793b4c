"""An update stays near the policy that it starts from, or begins again more slowly; demonstrations join its batches."""

import dataclasses
import json
import math
import re
from pathlib import Path
from typing import Any, cast

import pytest
import torch
from safetensors.torch import load_file
from training_builders import FAR, make_config, make_record, make_records, make_scored

from webrl.errors import DataError
from webrl.evaluate import sign_test
from webrl.llm.pictures import Example
from webrl.training.checkpoint import Checkpoints
from webrl.training.scoring import score_actions
from webrl.training.trust import TrustRegion, make_region
from webrl.training.update import train_actor


def weights_of(folder: Path) -> dict[str, torch.Tensor]:
    return load_file(folder / "model.safetensors")


def are_equal(first: Path, second: Path) -> bool:
    one, other = weights_of(first), weights_of(second)
    return all(torch.equal(one[name], other[name]) for name in one)


def metric_lines(path: Path) -> list[dict[str, float]]:
    return [json.loads(line) for line in path.read_text().splitlines()]


def test_the_region_ends_an_update_by_kl_or_by_what_successes_lose() -> None:
    region = TrustRegion(parts=[], is_success=[True, True, False, False], max_kl=0.5, max_success_drop=0.1)
    inside = region.measure({"kl": 1.2, "drop": 0.1}, 4)
    assert inside == {"trust_kl": 0.3, "trust_success_drop": 0.05}
    region.check(inside, 2)
    assert not region.stopped
    region.check(region.measure({"kl": 1.2, "drop": 0.3}, 4), 4)
    assert region.stopped == "step 4: successful actions lost 0.15 nats, past actor.max_success_drop=0.1"
    region.check(region.measure({"kl": 2.4, "drop": 0.0}, 4), 5)
    assert region.stopped == "step 5: KL 0.6 passed actor.max_kl=0.5"
    region.stopped = ""
    region.check(region.measure({"kl": math.nan, "drop": 0.0}, 4), 6)
    assert region.stopped


def test_a_part_of_the_sample_decides_only_what_is_far_inside_the_region() -> None:
    region = TrustRegion(parts=[], is_success=[True, False, True, True, True], max_kl=0.5, max_success_drop=0.1)
    assert region.measure({"kl": 1.0, "drop": 0.36}, 5) == {"trust_kl": 0.2, "trust_success_drop": 0.09}
    assert region.is_far_inside(region.measure({"kl": 0.5, "drop": 0.05}, 2)), "0.25 and 0.05: half of each limit"
    for sums in ({"kl": 0.6, "drop": 0.0}, {"kl": 0.0, "drop": 0.06}, {"kl": math.nan, "drop": 0.0}):
        assert not region.is_far_inside(region.measure(sums, 2))


def test_the_sample_is_checked_after_powers_of_two_at_the_end_and_where_a_batch_has_gone_too_far() -> None:
    region = TrustRegion(parts=[], is_success=[], max_kl=0.5, max_success_drop=math.inf, num_steps=11)
    assert [step for step in range(1, 12) if region.is_due(step, 0.1)] == [1, 2, 4, 8, 11]
    assert region.is_due(3, 0.6)
    assert region.is_due(3, math.nan)


def test_the_sample_is_of_the_phases_own_steps(caplog: pytest.LogCaptureFixture) -> None:
    records = [make_record(f"t{i}", 0, 1, i % 2, source="replay" if i < 30 else "current") for i in range(60)]
    config = make_config().actor
    region = make_region(records, list(range(60)), config)  # type: ignore[arg-type]
    assert region
    first, rest = cast("list[list[int]]", region.parts)
    assert (len(first), sorted(first + rest)) == (16, list(range(30, 60)))
    assert region.is_success == [i % 2 == 1 for i in first + rest]
    assert make_region(records[:30], list(range(30)), config) is None  # type: ignore[arg-type]
    assert "not checked" in caplog.text
    assert make_region(records, list(range(60)), make_config(**FAR).actor) is None  # type: ignore[arg-type]


@pytest.mark.parametrize("objective", ["webrl_scaled", "webrl", "grpo"])
def test_a_rate_of_a_billion_leaves_the_actor_as_it_was(actor: Path, tmp_path: Path, objective: str) -> None:
    config = make_config(lr=1e9, objective=objective, length_norm=8.0)
    records = [dataclasses.replace(r, group="g") for r in make_scored(actor, config)]
    counts = train_actor(records, actor, tmp_path / "new", config, seed=0, metrics_path=tmp_path / "m.jsonl")
    assert are_equal(actor, tmp_path / "new")
    assert counts["actor_kept_steps"] == 0
    assert counts["actor_rate_factor"] == 1 / 64
    assert len(json.loads((tmp_path / "new_attempts.json").read_text())["stopped"]) == 3
    assert not list(tmp_path.glob(".new*"))


def test_a_rate_that_is_too_high_is_tried_at_a_quarter_and_the_result_is_inside(actor: Path, tmp_path: Path) -> None:
    config = make_config(lr=0.01, max_kl=0.3)
    records = make_scored(actor, config)
    counts = train_actor(records, actor, tmp_path / "new", config, seed=0, metrics_path=tmp_path / "m.jsonl")
    assert counts["actor_rate_factor"] < 1
    assert not are_equal(actor, tmp_path / "new")
    own = [r for r in records if r.source == "current"]
    after = score_actions(own, tmp_path / "new", config)
    ratios = [sum(b.ref_logprobs or ()) - sum(a.ref_logprobs or ()) for a, b in zip(own, after, strict=True)]
    assert sum(math.exp(r) - 1 - r for r in ratios) / len(ratios) < 0.45  # of all 18 steps; 16 of them were checked


def test_a_killed_retry_goes_on_at_the_rate_that_it_had(actor: Path, tmp_path: Path) -> None:
    config = make_config(lr=1e9)
    (tmp_path / "new_attempts.json").write_text('{"rate": 1e9, "stopped": ["step 1", "step 1"]}')
    options: dict[str, Any] = {"seed": 0, "metrics_path": tmp_path / "m.jsonl"}
    counts = train_actor(make_scored(actor, config), actor, tmp_path / "new", config, **options)
    assert counts["actor_rate_factor"] == 1 / 64
    other = make_config(lr=1e-4)  # attempts at another rate say nothing of this one
    counts = train_actor(make_scored(actor, other), actor, tmp_path / "new2", other, **options)
    assert counts["actor_rate_factor"] == 1


def test_an_update_that_resumes_keeps_the_weights_that_it_resumed_from(actor: Path, tmp_path: Path) -> None:
    config = make_config(lr=1e-4, save_every=2)
    records = make_scored(actor, config)
    broken = [dataclasses.replace(r, value=float("nan")) if r.trajectory_id == "t3" else r for r in records]
    options: dict[str, Any] = {"seed": 0, "metrics_path": tmp_path / "m.jsonl"}
    with pytest.MonkeyPatch.context() as patch:
        saved = []

        def kill(self: Checkpoints, engine: Any, step: int) -> None:
            saved.append(step)
            original(self, engine, step)
            if step == 4:
                raise KeyboardInterrupt

        original = Checkpoints.save
        patch.setattr(Checkpoints, "save", kill)
        with pytest.raises(KeyboardInterrupt):
            train_actor(records, actor, tmp_path / "new", config, **options)
    assert saved == [2, 4]
    counts = train_actor(broken, actor, tmp_path / "new", config, **options)
    assert counts["actor_kept_steps"] >= 4


def test_a_record_that_is_not_finite_ends_the_update_and_the_last_good_actor_stays(actor: Path, tmp_path: Path) -> None:
    config = make_config(lr=1e-4)
    records = make_scored(actor, config)
    broken = [dataclasses.replace(records[0], value=float("nan")), *records[1:]]
    counts = train_actor(broken, actor, tmp_path / "new", config, seed=0, metrics_path=tmp_path / "m.jsonl")
    stopped = re.match(r"step (\d+): the loss is nan", counts["actor_stopped"])
    assert stopped
    assert [line["step"] for line in metric_lines(tmp_path / "m.jsonl")] == [*range(1, int(stopped[1]))]
    assert all(torch.isfinite(w).all() for w in weights_of(tmp_path / "new").values())
    assert (tmp_path / "new_nonfinite_rank0.json").exists()


def test_a_loss_that_is_not_finite_before_the_first_step_is_not_tried_at_a_lower_rate(actor, tmp_path):
    config = make_config(lr=1e-4)
    broken = [dataclasses.replace(r, value=float("nan")) for r in make_scored(actor, config)]
    counts = train_actor(broken, actor, tmp_path / "new", config, seed=0, metrics_path=tmp_path / "m.jsonl")
    assert counts["actor_stopped"] == "step 1: the loss is nan (new_nonfinite_rank0.json)"
    assert (counts["actor_rate_factor"], counts["actor_kept_steps"]) == (1, 0)
    assert are_equal(actor, tmp_path / "new")


def test_an_update_with_demonstrations_adds_their_mean_loss_times_the_weight(actor: Path, tmp_path: Path) -> None:
    shown = [Example(r.prompt_ids, r.action_ids) for r in make_records(2)]
    losses = {}
    for weight in (0.0, 1.0, 3.0):
        config = make_config(imitation=weight, epochs=0.4, **FAR)
        path = tmp_path / f"m{weight}.jsonl"
        options: dict[str, Any] = {"seed": 0, "metrics_path": path, "demonstrations": shown}
        train_actor(make_scored(actor, config), actor, tmp_path / f"new{weight}", config, **options)
        losses[weight] = metric_lines(path)[0]
    added = losses[1.0]["actor/loss"] - losses[0.0]["actor/loss"]
    assert added == pytest.approx(losses[1.0]["actor/imitation_loss"], rel=1e-4)
    assert losses[3.0]["actor/loss"] - losses[0.0]["actor/loss"] == pytest.approx(3 * added, rel=1e-4)
    for key in ("kl", "advantage", "perplexity", "active_fraction"):
        assert losses[1.0][f"actor/{key}"] == pytest.approx(losses[0.0][f"actor/{key}"], abs=1e-5)
    assert len(losses[1.0]["actor/advantage_values"]) == len(losses[0.0]["actor/advantage_values"])


def test_imitation_only_learns_the_demonstrations_in_as_many_steps_as_the_others(actor: Path, tmp_path: Path) -> None:
    config = make_config(objective="imitation", **FAR)
    shown = [Example(r.prompt_ids, r.action_ids) for r in make_records(2)]
    options = {"seed": 0, "metrics_path": tmp_path / "m.jsonl"}
    counts = train_actor(make_scored(actor, config), actor, tmp_path / "new", config, **options, demonstrations=shown)  # type: ignore[arg-type]
    lines = metric_lines(tmp_path / "m.jsonl")
    assert counts["actor_steps"] == len(lines) == 9  # 18 samples in batches of 8, three times
    assert counts["actor_active"] == 0
    assert lines[-1]["actor/imitation_loss"] < 0.8 * lines[0]["actor/imitation_loss"]
    with pytest.raises(DataError, match="demonstrations only"):
        train_actor(make_scored(actor, config), actor, tmp_path / "none", config, **options)  # type: ignore[arg-type]


def test_batches_of_grpo_are_made_of_steps_that_train_and_few_of_them_are_a_warning(actor, tmp_path, caplog):
    config = make_config(objective="grpo", length_norm=8.0)
    mixed = [make_record(f"m{t}", 0, 1, t % 2, group="mixed") for t in range(4)]
    alike = [make_record(f"a{t}", 0, 1, 1, group=f"alike{t % 20}") for t in range(40)]
    records = score_actions([*alike, *mixed], actor, config)
    counts = train_actor(records, actor, tmp_path / "new", config, seed=0, metrics_path=tmp_path / "m.jsonl")
    assert (counts["actor_samples"], counts["actor_active"], counts["actor_steps"]) == (4, 4, 3)
    assert "4 of 44 steps train" in caplog.text


def test_the_sign_test_counts_the_pages_that_differ() -> None:
    assert sign_test(0, 0) == 1
    assert sign_test(5, 0) == 1 / 32
    assert sign_test(1, 1) == 0.75
    assert sign_test(8, 2) == pytest.approx(56 / 1024)
