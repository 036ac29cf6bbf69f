"""The planner beside a mix of two limits that is blind to the signal, run by run: the part of `planning` that says so.

A run of known length is planned every hour; one of unknown length every ten minutes, and looked at after a day, at its
end, and at ends drawn by chance. Forecasts are issued hourly, from the past alone.
"""

from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from typing import Final

import numpy as np

from policies.planning import SlowdownObjective
from policies.replay.power_limit.optimum import offline_optimum
from policies.replay.power_limit.planner import CachedForecaster, planner_policy
from policies.replay.power_limit.scenario import RunSpec, Scenario
from policies.replay.power_limit.simulation import PolicyInput, RunResult, replay_run
from policies.vocabulary.power_curve import lower_hull
from policies.vocabulary.signal import Signal
from policies.vocabulary.units import HOUR_S, JOULES_PER_KWH, Values

OPEN_PERIOD_S: Final = 600.0
N_ENDS: Final = 30
MEDIAN_END_H: Final = 24.0
LEAST_GAIN: Final = -0.1
"""Runs that gain less are counted [points]."""


@dataclass(frozen=True, slots=True, kw_only=True)
class MixTask:
    """A run and its budgets."""

    trace: str
    hours: int
    signal: str
    scenario: Scenario
    spec: RunSpec
    max_slowdowns: tuple[float, ...]


@dataclass(frozen=True, slots=True, kw_only=True)
class BesideMix:
    """What a run gains over the mix, in points of what the highest limit costs.

    Attributes:
        gain: with its length told.
        possible: the optimum in hindsight.
        over: by how much it missed its budget, in points of slowdown.
        open_gains: without, after a day, and at its end; the same where it is a day long.
        random_gains: at ends drawn by chance.
        open_over: by how much it was above its budget at most, at whatever end, in points of slowdown.
    """

    gain: float
    possible: float
    over: float
    open_gains: tuple[float, float]
    random_gains: tuple[float, ...]
    open_over: float


class HourlyForecasts:
    """Forecasts of one run, issued every hour and used until the next."""

    def __init__(self, start_s: float) -> None:
        self._start_s, self._source = start_s, CachedForecaster()
        self._issued: dict[int, Signal | None] = {}

    def __call__(self, inputs: PolicyInput) -> Signal | None:
        hour = round((inputs.now_s - self._start_s) // HOUR_S)
        if hour not in self._issued:
            self._issued[hour] = self._source(inputs)
        return self._issued[hour]


def beside_mix(task: MixTask) -> dict[float, BesideMix]:
    """Replay a run, its length told and not told, at each budget."""
    forecasts = HourlyForecasts(task.spec.start_s)
    return {budget: _at_budget(task.scenario, task.spec, budget, forecasts) for budget in task.max_slowdowns}


def _at_budget(scenario: Scenario, spec: RunSpec, budget: float, forecasts: HourlyForecasts) -> BesideMix:
    objective, base_s = SlowdownObjective(max_slowdown=budget), spec.base_duration_s
    told = replay_run(scenario, planner_policy(objective, forecasts), spec)
    often = RunSpec(start_s=spec.start_s, base_duration_s=base_s, period_s=OPEN_PERIOD_S)
    untold = replay_run(scenario, planner_policy(objective, forecasts, knows_length=False), often)
    top_cost = cost(scenario, spec.start_s, base_s, scenario.profile.fastest.power_w)
    of_mix = mix_cost(scenario, spec.start_s, base_s, budget)
    best = offline_optimum(scenario, spec, budget)
    ends_s = HOUR_S * MEDIAN_END_H * np.exp(np.random.default_rng(7).normal(0.0, 1.0, N_ENDS))
    gains, over = _along(scenario, untold, spec, budget, np.append([24 * HOUR_S, base_s], ends_s[ends_s < base_s]))
    return BesideMix(
        gain=100 * (of_mix - told.spent * JOULES_PER_KWH) / top_cost,
        possible=100 * (of_mix - best.spent * JOULES_PER_KWH) / top_cost,
        over=100 * (told.duration_s / base_s - budget),
        open_gains=(float(gains[0]), float(gains[1])),
        random_gains=tuple(gains[2:].tolist()),
        open_over=over,
    )


def _along(scenario: Scenario, run: RunResult, spec: RunSpec, budget: float, ends_s: Values) -> tuple[Values, float]:
    """Return the gains of a run that ends when so much work is done, by its time at the highest limit, shape (n,) [s].

    And by how much its slowdown is above the budget at most, at any end after the first period.
    """
    index = [scenario.index_of(limit_w) for limit_w in run.limits_w.tolist()]
    ratios = scenario.iterations_per_s[index] / scenario.iterations_per_s[-1]
    done_s = np.append(0.0, np.cumsum(ratios * np.diff(run.edges_s)))
    costs = np.append(0.0, np.cumsum(scenario.power_w[index] * np.diff(scenario.integral_until(run.edges_s))))
    gains = []
    for end_s in np.minimum(ends_s, done_s[-1]).tolist():
        last = min(int(np.searchsorted(done_s, end_s, side="right")) - 1, len(index) - 1)
        lasts_s = (end_s - done_s[last]) / ratios[last]
        ours = costs[last] + cost(scenario, float(run.edges_s[last]), lasts_s, float(scenario.power_w[index[last]]))
        mix = mix_cost(scenario, spec.start_s, end_s, budget)
        gains.append(100 * (mix - ours) / cost(scenario, spec.start_s, end_s, scenario.profile.fastest.power_w))
    slowdowns = (run.edges_s[1:] - run.edges_s[0]) / done_s[1:]
    return np.array(gains), 100 * float(slowdowns.max() - budget)


def cost(scenario: Scenario, start_s: float, duration_s: float, power_w: float) -> float:
    """Return the integral of signal times power [unit·J]."""
    before, after = scenario.integral_until(np.array([start_s, start_s + duration_s]))
    return power_w * float(after - before)


def mix_cost(scenario: Scenario, start_s: float, base_s: float, budget: float) -> float:
    """Return what a mix of two limits costs that just uses up the budget, evenly at every time [unit·J]."""
    hull = lower_hull(scenario.profile)
    rates_per_s = hull.iterations_per_s
    rate_per_s = max(float(rates_per_s[-1]) / budget, float(rates_per_s[0]))
    power_w = float(np.interp(rate_per_s, rates_per_s, hull.power_w))
    return cost(scenario, start_s, base_s * float(rates_per_s[-1]) / rate_per_s, power_w)


def mix_table(tasks: Sequence[MixTask], found: Sequence[dict[float, BesideMix]]) -> Iterator[str]:
    """Yield the table, a line for each trace, length and budget."""
    heads = [
        *("told: gain", "possible", "share", "worst", f"below {LEAST_GAIN:g}", "over"),
        *("not told: gain", "least zone", "worst", "24 h", "least zone", "worst"),
        *("random ends", "least zone", "worst", "over"),
    ]
    yield f"| runs | {' | '.join(heads)} |\n|---|{'---:|' * len(heads)}"
    for trace, hours in dict.fromkeys((task.trace, task.hours) for task in tasks):
        for budget in tasks[0].max_slowdowns:
            runs = [
                (task.signal, each[budget])
                for task, each in zip(tasks, found, strict=True)
                if (task.trace, task.hours) == (trace, hours)
            ]
            cells = " | ".join(_cells(runs))
            yield f"| {trace}, {hours} h, {100 * (budget - 1):.3g} % | {cells} |"


def _cells(runs: Sequence[tuple[str, BesideMix]]) -> Iterator[str]:
    gains, possible = (np.array([getattr(run, name) for _, run in runs]) for name in ("gain", "possible"))
    total = float(possible.sum())
    yield f"{gains.mean():+.3f}"
    yield f"{possible.mean():.3f}"
    yield f"{gains.sum() / total:.2f}" if total > 1e-6 else "none"
    yield f"{gains.min():+.2f}"
    yield f"{100 * (gains < LEAST_GAIN).mean():.1f} %"
    yield f"{max(run.over for _, run in runs):+.3f}"
    for pairs in (
        [(signal, run.open_gains[1]) for signal, run in runs],
        [(signal, run.open_gains[0]) for signal, run in runs],
        [(signal, gain) for signal, run in runs for gain in run.random_gains],
    ):
        each = np.array([gain for _, gain in pairs])
        zones = [np.mean([gain for name, gain in pairs if name == signal]) for signal in dict(pairs)]
        yield f"{each.mean():+.3f}"
        yield f"{min(zones):+.3f}"
        yield f"{each.min():+.2f}"
    yield f"{max(run.open_over for _, run in runs):+.3f}"
