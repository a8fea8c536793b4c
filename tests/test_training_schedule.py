"""Order of the samples and learning rate, by hand."""

from __future__ import annotations

from itertools import chain

import pytest

from webrl.config import OptimConfig
from webrl.training.trainer import learning_rate, sample_batches


def test_each_epoch_visits_every_sample_once_in_an_order_that_depends_on_the_seed_alone() -> None:
    config = OptimConfig(batch_size=2, epochs=2.0)
    batches = sample_batches(5, config, seed=3)
    assert sample_batches(5, config, seed=3) == batches != sample_batches(5, config, seed=4)
    assert [len(b) for b in batches] == [2, 2, 1, 2, 2, 1]
    assert sorted(chain(*batches[:3])) == sorted(chain(*batches[3:])) == [0, 1, 2, 3, 4]
    assert batches[:3] != batches[3:]


def test_fractions_of_an_epoch() -> None:
    assert [len(b) for b in sample_batches(10, OptimConfig(batch_size=4, epochs=1.3), seed=0)] == [4, 4, 2, 3]
    assert [len(b) for b in sample_batches(10, OptimConfig(batch_size=4, epochs=0.2), seed=0)] == [2]
    assert sample_batches(0, OptimConfig(), seed=0) == []


def test_a_number_of_steps_replaces_the_epochs() -> None:
    def lengths(steps: int) -> list[int]:
        config = OptimConfig(batch_size=4, epochs=9.0, steps=steps)
        batches = sample_batches(10, config, seed=0)
        assert batches == sample_batches(10, OptimConfig(batch_size=4, epochs=3.0), seed=0)[:steps]
        return [len(batch) for batch in batches]

    assert lengths(2) == [4, 4]
    assert lengths(7) == [4, 4, 2, 4, 4, 2, 4]
    assert sample_batches(0, OptimConfig(steps=3), seed=0) == []


@pytest.mark.parametrize(
    ("schedule", "expected"),
    [("constant", [0.5, 1.0, 1.0, 1.0]), ("linear", [0.5, 1.0, 1.0, 0.5]), ("cosine", [0.5, 1.0, 1.0, 0.5])],
)
def test_learning_rates_warm_up_and_decay(schedule: str, expected: list[float]) -> None:
    config = OptimConfig.model_validate({"lr": 1.0, "schedule": schedule, "warmup_ratio": 0.5})
    assert [learning_rate(step, 4, config) for step in range(4)] == pytest.approx(expected)
