"""Held-out evaluation: success counts and Wilson intervals from the environment's own reward.

Training never sees these numbers; the outcome model never touches them, but for instructions of one's own
site that have no checks.
"""

from __future__ import annotations

import math
from collections import Counter, defaultdict
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass
from statistics import NormalDist
from typing import Any

from webrl.types import Record, Trajectory


@dataclass(frozen=True)
class Rate(Record):
    """A success rate with its count, denominator and interval.

    Example: `Rate(successes=96, episodes=240, rate=0.4, ci95=(0.34, 0.463))`
    """

    successes: int
    """Episodes with environment reward > 0."""
    episodes: int
    """Episodes attempted; crashed ones count as failures."""
    rate: float
    """successes / episodes (0 if there are none)."""
    ci95: tuple[float, ...]
    """Wilson interval (lower, upper)."""
    errors: int = 0
    """Episodes among them that ended in an error, not by the agent."""


def wilson_interval(successes: int, episodes: int) -> tuple[float, float]:
    """Wilson's 95 % score interval of a binomial proportion (Wilson 1927); (0, 1) without episodes."""
    if not 0 <= successes <= episodes:
        raise ValueError(f"{successes} successes of {episodes} episodes")
    if episodes == 0:
        return 0.0, 1.0
    z = NormalDist().inv_cdf(0.975)
    p = successes / episodes
    centre = p + z * z / (2 * episodes)
    margin = z * math.sqrt(p * (1 - p) / episodes + z * z / (4 * episodes**2))
    scale = 1 + z * z / episodes
    return max(0.0, (centre - margin) / scale), min(1.0, (centre + margin) / scale)


def success_so_far(successes: int, episodes: int) -> str:
    """Return `50/100 = 50 % [40, 60]`, with the Wilson interval: short enough for a progress line."""
    low, high = wilson_interval(successes, episodes)
    return f"{successes}/{episodes} = {100 * successes / episodes:.0f} % [{100 * low:.0f}, {100 * high:.0f}]"


def paired_difference(both: int, first: int, second: int, neither: int) -> tuple[float, float, float]:
    """Return the difference of two success rates on the same tasks, (first − second), with its interval.

    Newcombe 1998 (Statistics in Medicine 17:2635), method 10: the Wilson limits of both rates, joined with their
    correlation; exact enough where a cell is empty.

    Args:
        both: tasks that both solved; `first`, `second`: the one alone; `neither`: none.

    Raises:
        ValueError: no task.
    """
    num = both + first + second + neither
    if not num:
        raise ValueError("a paired difference needs at least one task")
    rates = (both + first) / num, (both + second) / num
    (low1, high1), (low2, high2) = (wilson_interval(n, num) for n in (both + first, both + second))
    margins = (both + first) * (second + neither) * (both + second) * (first + neither)
    product = both * neither - first * second
    corrected = max(product - num / 2, 0) if product > 0 else product
    phi = corrected / math.sqrt(margins) if margins else 0.0
    difference = rates[0] - rates[1]

    def reach(a: float, b: float) -> float:
        return math.sqrt(max(0.0, a * a - 2 * phi * a * b + b * b))

    low = difference - reach(rates[0] - low1, high2 - rates[1])
    return difference, low, difference + reach(high1 - rates[0], rates[1] - low2)


def pass_any(attempts: int, successes: int, k: int) -> float:
    """pass@k: chance that one of k attempts at a task succeeds, without bias from n ≥ k: 1 − C(n−c, k) / C(n, k).

    Chen et al. 2021, arXiv 2107.03374, equation 1.
    """
    return 1 - pass_all(attempts, attempts - successes, k)


def pass_all(attempts: int, successes: int, k: int) -> float:
    """pass^k: chance that k attempts at a task all succeed, C(c, k) / C(n, k) (τ-bench, arXiv 2406.12045)."""
    if not 0 <= successes <= attempts or not 1 <= k <= attempts:
        raise ValueError(f"{successes} successes of {attempts} attempts, k = {k}")
    return math.comb(successes, k) / math.comb(attempts, k)


def sign_test(worse: int, better: int) -> float:
    """One-sided p-value of `worse` or more of the pairs that differ, if either direction is as likely (McNemar)."""
    num = worse + better
    return float(sum(math.comb(num, k) for k in range(worse, num + 1)) / 2**num)


def success_rate(trajectories: Iterable[Trajectory]) -> Rate:
    """Return the rate over episodes; an episode that never finished counts as failed and is counted in `errors` too."""
    outcomes = [(is_success(trajectory), not trajectory.status.finished) for trajectory in trajectories]
    return rate_of(sum(won for won, _ in outcomes), len(outcomes), sum(crashed for _, crashed in outcomes))


def rate_of(successes: int, episodes: int, errors: int = 0) -> Rate:
    """Return the success rate, unrounded: it is rounded once, for display."""
    return Rate(successes, episodes, successes / max(episodes, 1), wilson_interval(successes, episodes), errors)


def is_success(trajectory: Trajectory) -> bool:
    """Return the environment's verdict; an episode without a reward is not a success."""
    return trajectory.status.finished and (trajectory.env_reward or 0) > 0


def is_decided(trajectory: Trajectory) -> bool:
    """Whether an episode has a verdict: one that crashed counts as failed, one that ended once its reward is known."""
    return not trajectory.status.finished or trajectory.env_reward is not None


def summarize_evaluation(trajectories: Sequence[Trajectory]) -> dict[str, Any]:
    """Return `summary.json`'s `eval` object: total, per task type, and held-out task types apart."""
    seen = [t for t in trajectories if t.task.split != "eval_heldout"]
    heldout = [t for t in trajectories if t.task.split == "eval_heldout"]
    summary = success_rate(seen).to_json() | {"by_task": rates_by(seen)}
    if heldout:
        summary["heldout_types"] = success_rate(heldout).to_json() | {"by_task": rates_by(heldout)}
    return summary


def add_over_start(counts: dict[str, Any], now: Sequence[Trajectory], start: Sequence[Trajectory]) -> None:
    """Add to an evaluation's counts its difference from the supervised start's, held-out types apart.

    `over_start`: `difference` (of success rates), `ci95`, `tasks`, which are those that have a verdict in both. It is
    left out where the two have not played the same tasks, each once, or none has one.
    """
    for part, heldout in ((counts, False), (counts.get("heldout_types"), True)):
        mine, theirs = ([t for t in side if (t.task.split == "eval_heldout") is heldout] for side in (now, start))
        if part is not None and (found := page_difference(mine, theirs)):
            part["over_start"] = found


def page_difference(now: Sequence[Trajectory], start: Sequence[Trajectory]) -> dict[str, Any] | None:
    """Return `difference` (`now` − `start`), `ci95` and the number of `tasks` with a verdict in both.

    None if the two have not played the same tasks, each once, or none has a verdict in both.
    """
    mine, theirs = ({(t.task.site, t.task.task_id): t for t in side} for side in (now, start))
    if mine.keys() != theirs.keys() or {len(now), len(start)} != {len(mine)}:
        return None
    decided = [name for name in mine if is_decided(mine[name]) and is_decided(theirs[name])]
    if not decided:
        return None
    pairs = Counter((is_success(mine[name]), is_success(theirs[name])) for name in decided)
    cells = pairs[True, True], pairs[True, False], pairs[False, True], pairs[False, False]
    difference, *interval = paired_difference(*cells)
    return {"difference": difference, "ci95": interval, "tasks": len(decided)}


def named_rates(evaluation: Mapping[str, Any]) -> dict[str, Mapping[str, Any]]:
    """The rates of an evaluation's counts by name: `held-out seeds`, `held-out types`; `held-out seeds, greedy` (or
    `, T = 0.5`) of a further temperature.
    """
    rates = {"held-out seeds": evaluation, "held-out types": evaluation.get("heldout_types") or {}}
    for temperature, counts in (evaluation.get("at_temperature") or {}).items():
        how = "greedy" if temperature == "0" else f"T = {temperature}"
        rates |= {f"{name}, {how}": rate for name, rate in named_rates(counts).items() if rate}
    return rates


def difference_text(found: Mapping[str, Any] | None) -> str:
    """Return what `page_difference` found as `-11.1 points [-16.1, -6.0], paired`; "" if it is not known."""
    if not found:
        return ""
    difference, low, high = (100 * value for value in (found["difference"], *found["ci95"]))
    return f"{difference:+.1f} points [{low:+.1f}, {high:+.1f}], paired"


def rates_by(
    trajectories: Iterable[Trajectory], key: Callable[[Trajectory], str] = lambda t: t.task.site
) -> dict[str, Any]:
    """Return `success_rate` of each group (default: each site, which is a task's type on MiniWoB), as JSON by name."""
    counts: dict[str, Counter[str]] = defaultdict(Counter)  # a recording's pages together would fill the memory
    for trajectory in trajectories:
        successes, errors = int(is_success(trajectory)), int(not trajectory.status.finished)
        counts[key(trajectory)].update(successes=successes, episodes=1, errors=errors)
    return {
        name: rate_of(of["successes"], of["episodes"], of["errors"]).to_json() for name, of in sorted(counts.items())
    }
