"""Numbers computed by hand from the paper's and the released code's equations, gradient signs, finite differences."""

import dataclasses
import math

import pytest
import torch
from training_builders import make_record

from webrl.config import ActorConfig
from webrl.errors import TrainingError
from webrl.training.objectives import OBJECTIVES, LossInput, monte_carlo_return, step_advantage
from webrl.types import StepRecord


def make_input(logprobs: list[float], ref: list[float], advantage: list[float], sample: list[int]) -> LossInput:
    return LossInput(
        logprobs=torch.tensor(logprobs, dtype=torch.float64, requires_grad=True),
        ref_logprobs=torch.tensor(ref, dtype=torch.float64),
        old_logprobs=torch.tensor(ref, dtype=torch.float64),
        sample=torch.tensor(sample),
        advantage=torch.tensor(advantage, dtype=torch.float64),
    )


def gradient(name: str, batch: LossInput, config: ActorConfig | None = None) -> torch.Tensor:
    OBJECTIVES[name].loss(batch, config or ActorConfig()).loss.sum().backward()
    assert batch.logprobs.grad is not None
    return batch.logprobs.grad


@pytest.mark.parametrize(
    ("index", "outcome", "values", "lam", "expected"),
    [
        (0, 1, (0.4, 0.7), 0.5, 0.45),  # 0.5 * (0.7 - 0.4) + 0.5 * (1 - 0.4) = 0.15 + 0.3
        (2, 1, (0.4, 0.0), 0.5, 0.6),  # of the last step: outcome minus value
        (2, 0, (0.4, 0.0), 0.5, -0.4),
        (0, 0, (0.2, 0.8), 0.25, 0.0),  # 0.25 * 0.6 + 0.75 * (0 - 0.2): a failed step whose value rises is mixed too
        (0, 1, (0.3, None), 0.5, 0.7),  # without a next value: Monte Carlo
    ],
)
def test_webrl_advantage_mixes_one_step_and_monte_carlo(index, outcome, values, lam, expected):
    record = make_record("t", index, 3, outcome, value=values[0], next_value=values[1])
    assert OBJECTIVES["webrl"].advantages([record], ActorConfig(gae_lambda=lam)) == [pytest.approx(expected)]


def test_webrl_loss_is_the_squared_error_of_the_summed_log_ratio() -> None:
    batch = make_input([-1.0, -0.5, -2.0], [-1.2, -0.9, -1.5], [0.45, -0.4], [0, 0, 1])
    losses = OBJECTIVES["webrl"].loss(batch, ActorConfig(beta=2.0)).loss
    # sums: 0.2 + 0.4 = 0.6 and -0.5; (2*0.6 - 0.45)^2 = 0.5625; (2*-0.5 + 0.4)^2 = 0.36
    assert losses.tolist() == [pytest.approx(0.5625), pytest.approx(0.36)]
    batch = make_input([-1.0, -1.0], [-1.0, -1.0], [0.5, -0.5], [0, 1])
    # 2 (0 - 0.5): descent raises the log pi of good actions, and lowers that of bad ones
    assert gradient("webrl", batch).tolist() == [pytest.approx(-1.0), pytest.approx(1.0)]


def test_webrl_needs_outcome_and_value() -> None:
    with pytest.raises(TrainingError, match="has no outcome"):
        OBJECTIVES["webrl"].advantages([make_record("t", 0, 1, None, value=0.1)], ActorConfig())
    with pytest.raises(TrainingError, match="has no value"):
        OBJECTIVES["webrl"].advantages([make_record("t", 0, 1, 1)], ActorConfig())


def test_released_monte_carlo_return_of_five_steps_is_4_1_to_1() -> None:
    returns = [monte_carlo_return(make_record("t", i, 5, 1)) for i in range(5)]
    assert returns == [pytest.approx(x) for x in (4.0951, 3.439, 2.71, 1.9, 1.0)]
    assert monte_carlo_return(make_record("t", 0, 5, 0)) == 0.0


def test_released_advantage_of_failures_depends_on_the_rise_of_the_value() -> None:
    rising = make_record("t", 0, 2, 0, value=0.25, next_value=0.5)
    flat = make_record("u", 0, 2, 0, value=0.25, next_value=0.25)
    success = make_record("v", 0, 2, 1, value=0.9, next_value=0.0)
    advantages = OBJECTIVES["webrl_released"].advantages([rising, flat, success], ActorConfig())
    assert advantages == [1.0, -0.6, 1.0]
    assert [OBJECTIVES["webrl_released"].trains(a) for a in advantages] == [True, False, True]


def test_released_loss_by_hand() -> None:
    # step 0: n=2, l-lref = 0.4 -> rho=0.2; p_ref = exp(-1.0) < 0.8 -> b=1; beta=min(1, 5)=1
    #         smoothL1(0.2, 1) = 0.5*0.64 = 0.32
    # step 1: n=1, rho=0.01; p_ref=exp(-0.1)=0.905 -> b=5; beta=5; smoothL1(0.05, 1)/5 = 0.5*0.9025/5
    # step 2: negative advantage: masked
    batch = make_input([-0.8, -0.8, -0.09, -3.0], [-1.0, -1.0, -0.1, -1.0], [1.0, 1.0, -0.6], [0, 0, 1, 2])
    output = OBJECTIVES["webrl_released"].loss(batch, ActorConfig())
    assert output.loss.tolist() == [pytest.approx(0.32), pytest.approx(0.09025), 0.0]
    assert output.metrics["mask_fraction"].tolist() == [1.0, 1.0, 0.0]
    # rho = 4, b = 1: beta = min(1, 1/4) = 0.25, so beta*rho = A and the loss is zero
    output = OBJECTIVES["webrl_released"].loss(make_input([-1.0], [-5.0], [1.0], [0]), ActorConfig())
    assert output.metrics["beta"].tolist() == [pytest.approx(0.25)]
    assert output.loss.tolist() == [pytest.approx(0.0)]


def test_released_gradient_is_zero_for_negative_and_raises_positive_advantages() -> None:
    batch = make_input([-1.0, -1.0, -1.0], [-1.0, -1.0, -1.0], [1.0, -0.6], [0, 0, 1])
    # rho = 0: beta = b = 1; d smoothL1(rho, 1)/d rho = -1, times 1/n = -0.5 per token
    assert gradient("webrl_released", batch).tolist() == [pytest.approx(-0.5), pytest.approx(-0.5), 0.0]


def test_sft_loss_is_the_mean_negative_log_likelihood_of_successes_and_demonstrations() -> None:
    records = [make_record("t", 0, 1, outcome) for outcome in (1, 0, None)]
    assert OBJECTIVES["sft"].advantages(records, ActorConfig()) == [1.0, 0.0, 1.0]
    batch = make_input([-1.0, -2.0, -0.5], [0.0, 0.0, 0.0], [1.0, 0.0], [0, 0, 1])
    output = OBJECTIVES["sft"].loss(batch, ActorConfig())
    assert output.loss.tolist() == [pytest.approx(1.5), 0.0]
    assert output.metrics["perplexity"][0] == pytest.approx(math.exp(1.5))


@pytest.mark.parametrize("name", ["webrl", "sft", "webrl_released", "filtered_bc", "awr", "digirl", "grpo"])
def test_gradients_agree_with_finite_differences(name: str) -> None:
    batch = make_input([-0.7, -1.3, -0.2, -2.0], [-1.0, -1.35, -0.3, -1.0], [0.8, -0.6], [0, 0, 1, 1])
    if name == "webrl_released":  # beta, which has no gradient, is constant here
        batch = make_input([-0.9, -0.95, -0.2], [-1.0, -1.0, -0.3], [1.0, 1.0], [0, 0, 1])
    config = ActorConfig(length_norm=4)
    analytic = gradient(name, batch, config)
    for i in range(batch.logprobs.shape[0]):
        moved = []
        for sign in (1, -1):
            values = batch.logprobs.detach().clone()
            values[i] += sign * 1e-6
            probe = LossInput(values, batch.ref_logprobs, batch.old_logprobs, batch.sample, batch.advantage)
            moved.append(OBJECTIVES[name].loss(probe, config).loss.sum())
        assert float((moved[0] - moved[1]) / 2e-6) == pytest.approx(float(analytic[i]), abs=1e-5)


def test_filtered_bc_keeps_the_best_trajectories() -> None:
    # discounted scores: a 0.9^2 = 0.81, b 0.9^0 = 1, c and d 0; the 50th percentile is 0.405, the 90th 0.943
    records = [make_record("a", i, 3, 1) for i in range(3)]
    records += [make_record("b", 0, 1, 1), make_record("c", 0, 1, 0), make_record("d", 0, 1, 0)]
    advantages = OBJECTIVES["filtered_bc"].advantages
    assert advantages(records, ActorConfig(percentile=50)) == [1, 1, 1, 1, 0, 0]
    assert advantages(records, ActorConfig(percentile=90)) == [0, 0, 0, 1, 0, 0]
    assert advantages(records[4:], ActorConfig(percentile=0)) == [0, 0]  # a failure is never imitated


def test_awr_weights_by_the_exponential_advantage_up_to_20() -> None:
    records = [make_record("a", 0, 1, 1, value=0.5), make_record("b", 0, 1, 0, value=0.25)]
    advantages = OBJECTIVES["awr"].advantages
    assert advantages(records, ActorConfig(beta=0.5)) == [pytest.approx(math.e), pytest.approx(math.exp(-0.5))]
    assert advantages(records, ActorConfig(beta=1e-3))[0] == pytest.approx(20.0)
    batch = make_input([-1.0, -2.0, -0.5], [0.0] * 3, [2.0, 0.5], [0, 0, 1])
    assert OBJECTIVES["awr"].loss(batch, ActorConfig()).loss.tolist() == [pytest.approx(6.0), pytest.approx(0.25)]
    assert gradient("awr", batch).tolist() == [-2.0, -2.0, -0.5]


def test_digirl_filters_by_instruction_then_by_a_doubly_robust_step_advantage() -> None:
    # 0.5^2 * 1 + 0.75 * (0.6 - 0.2)
    assert step_advantage(make_record("a", 0, 3, 1, value=0.2, next_value=0.6), 0.5) == pytest.approx(0.55)
    assert step_advantage(make_record("a", 2, 3, 1, value=0.2, next_value=0.0), 0.5) == 1.0
    hard = [make_record("hard", i, 2, 1, value=0.1, next_value=0.05 if i == 0 else 0.0) for i in range(2)]
    easy = [make_record("easy", 0, 2, 1, value=0.95, next_value=0.95)]
    failed = [make_record("failed", 0, 2, 0, value=0.1, next_value=0.9)]
    # A_instr: 0.9, 0.05, -0.1; the 50th percentile is 0.05
    # A_step of hard: 0.5 * 1 + 0.5 * -0.05 = 0.475 < 1/2 and 1 > 1/2; easy: 0.5; failed is out by instruction
    config = ActorConfig(percentile=50)
    assert OBJECTIVES["digirl"].advantages([*hard, *easy, *failed], config) == [0.0, 1.0, 1.0, 0.0]
    batch = make_input([-1.0, -2.0, -0.5], [0.0] * 3, [1.0, 0.0], [0, 0, 1])
    assert OBJECTIVES["digirl"].loss(batch, config).loss.tolist() == [3.0, 0.0]
    assert gradient("digirl", batch).tolist() == [-1.0, -1.0, 0.0]


def test_grpo_advantage_is_relative_to_the_groups_attempts() -> None:
    records = [make_record("a", 0, 1, 1, group="g"), *(make_record("b", i, 3, 0, group="g") for i in range(3))]
    records += [make_record("c", 0, 1, 1, group="g"), make_record("d", 0, 1, 1, group="alone")]
    advantages = OBJECTIVES["grpo"].advantages(records, ActorConfig())
    # attempts a, b, c end 1, 0, 1: mean 2/3, however many steps each has
    assert advantages == [pytest.approx(x) for x in (1 / 3, -2 / 3, -2 / 3, -2 / 3, 1 / 3, 0)]
    assert not OBJECTIVES["grpo"].trains(advantages[-1])


def test_grpo_advantage_scales_by_the_groups_or_the_phases_deviation() -> None:
    ends = {"a": ("g", 1), "b": ("g", 0), "c": ("g", 1), "d": ("h", 0), "e": ("h", 0), "f": ("i", 1)}
    records = [make_record(name, 0, 1, outcome, group=group) for name, (group, outcome) in ends.items()]

    def scaled(how: str) -> list[float]:
        return OBJECTIVES["grpo"].advantages(records, ActorConfig(scale_rewards=how))  # type: ignore[arg-type]

    # Group g: 1, 0, 1 about 2/3: deviation sqrt((1/9 + 4/9 + 1/9) / 2) = sqrt(1/3). All six: sqrt(6/4 / 5) = sqrt(0.3).
    plain = (1 / 3, -2 / 3, 1 / 3, 0, 0, 0)
    assert scaled("none") == [pytest.approx(x) for x in plain]
    assert scaled("group") == [pytest.approx(x / (math.sqrt(1 / 3) + 1e-4)) for x in plain]
    assert scaled("batch") == [pytest.approx(x / (math.sqrt(0.3) + 1e-4)) for x in plain]
    assert not any(OBJECTIVES["grpo"].trains(a) for a in scaled("group")[3:]), "no signal, exactly"


def test_grpo_compares_attempts_of_one_phase_and_needs_two_of_them() -> None:
    def advantages(*records: StepRecord) -> list[float]:
        return OBJECTIVES["grpo"].advantages(records, ActorConfig())

    won, lost = make_record("a", 0, 1, 1, group="g"), make_record("b", 0, 1, 0, group="g")
    later = [dataclasses.replace(r, phase=2, trajectory_id=f"later-{r.trajectory_id}") for r in (won, lost)]
    assert advantages(won, lost, later[0]) == [0.5, -0.5, 0.0], "other weights played the later one"
    with pytest.raises(TrainingError, match=r"none of 2 tasks has two judged attempts.*num_generations=4"):
        advantages(won, later[1])
    replayed = dataclasses.replace(lost, source="replay")
    with pytest.raises(TrainingError, match=r"step 'b:0' is replayed: .*set replay\.strategy=none"):
        advantages(won, replayed)


def test_grpo_loss_clips_token_ratios_and_divides_by_a_constant() -> None:
    config = ActorConfig(clip_low=0.2, clip_high=0.3, length_norm=10)
    up, down = math.log(1.5), math.log(0.5)
    batch = make_input([up, 0.0, down, up, down], [0.0] * 5, [1.0, -1.0], [0, 0, 0, 1, 1])
    output = OBJECTIVES["grpo"].loss(batch, config)
    # A > 0: min(1.5, 1.3) + 1 + min(0.5, 0.8) = 2.8; A < 0: min(-1.5, -1.3) + min(-0.5, -0.8) = -2.3
    assert output.loss.tolist() == [pytest.approx(-0.28), pytest.approx(0.23)]
    assert output.metrics["clip_fraction"].tolist() == [pytest.approx(1 / 3), pytest.approx(0.5)]
    grad = gradient("grpo", batch, config)
    assert grad.tolist() == [0.0, pytest.approx(-0.1), pytest.approx(-0.05), pytest.approx(0.15), 0.0]


def test_scaled_loss_divides_the_square_by_the_actions_curvature() -> None:
    # step 0: r = ln 2, 0.5 r - 0.6 = -0.2534; F = (1 - 0.5)^2 + (1 - 0.8)^2 = 0.29, so the scale is 1 / 0.4
    # step 1: r = 0, F = (1 - 0.25)^2 = 0.5625: 0.16 / 0.6725
    batch = make_input([math.log(0.5), math.log(0.8), math.log(0.25)], [math.log(0.25), math.log(0.8), math.log(0.25)],
                       [0.6, -0.4], [0, 0, 1])  # fmt: skip
    config = ActorConfig(beta=0.5, curvature_floor=0.11)
    output = OBJECTIVES["webrl_scaled"].loss(batch, config)
    error = 0.5 * math.log(2) - 0.6
    assert output.loss.tolist() == [pytest.approx(error**2 / 0.4), pytest.approx(0.16 / 0.6725)]
    assert output.metrics["curvature"].tolist() == [pytest.approx(0.29), pytest.approx(0.5625)]
    grad = gradient("webrl_scaled", batch, config)  # the scale is a constant: 2 β error / (F + ε) for each token
    assert grad.tolist() == [pytest.approx(error / 0.4), pytest.approx(error / 0.4), pytest.approx(0.4 / 0.6725)]


def test_scaled_loss_does_not_pull_back_what_is_past_its_target() -> None:
    # log-ratios 1, -1, -1, 1 for advantages 0.2, -0.2, 0.2, 0 and β = 1: the first two are past theirs, on its side
    batch = make_input([-1.0, -2.0, -2.0, -1.0], [-2.0, -1.0, -1.0, -2.0], [0.2, -0.2, 0.2, 0.0], [0, 1, 2, 3])
    output = OBJECTIVES["webrl_scaled"].loss(batch, ActorConfig(beta=1.0))
    assert output.metrics["mask_fraction"].tolist() == [0.0, 0.0, 1.0, 1.0]
    grad = gradient("webrl_scaled", batch, ActorConfig(beta=1.0))
    assert grad[:2].tolist() == [0.0, 0.0]
    assert grad[2] < 0 < grad[3]  # without advantage, back to the reference


def test_scaled_steps_move_likely_and_unlikely_actions_alike() -> None:
    """One step on the logits of two tokens, from p = 0.98 and p = 0.02, for the same advantage."""
    moved = {}
    for name in ("webrl", "webrl_scaled"):
        logits = torch.tensor([[3.9, 0.0], [-3.9, 0.0]], dtype=torch.float64, requires_grad=True)
        logprobs = logits.log_softmax(-1)[:, 0]
        reference = logprobs.detach()
        advantage = torch.full((2,), -0.5, dtype=torch.float64)
        batch = LossInput(logprobs, reference, reference, torch.arange(2), advantage)
        OBJECTIVES[name].loss(batch, ActorConfig(beta=1.0, curvature_floor=1e-4)).loss.sum().backward()
        assert logits.grad is not None
        after = (logits.detach() - 1e-4 * logits.grad).log_softmax(-1)[:, 0]
        moved[name] = (after - reference).tolist()
    assert moved["webrl"][1] / moved["webrl"][0] > 1000  # (0.98 / 0.02)²
    assert moved["webrl_scaled"][1] / moved["webrl_scaled"][0] == pytest.approx(1, rel=0.5)


def test_beta_is_the_objectives_own_unless_set() -> None:
    batch = make_input([-1.0], [-2.0], [0.5], [0])
    for name, beta, expected in (
        ("webrl", None, 0.25),  # β = 1, the paper's
        ("webrl", 0.7, 0.04),
        ("webrl_scaled", None, 0.04 / ((1 - math.exp(-1)) ** 2 + 0.3)),  # β = 0.3
    ):
        assert OBJECTIVES[name].loss(batch, ActorConfig(beta=beta)).loss.tolist() == [pytest.approx(expected)]
