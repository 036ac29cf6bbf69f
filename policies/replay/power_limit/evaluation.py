"""Evaluates power limit policies on one signal: all get the same runs, with starts spread over it."""

from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from functools import partial
from typing import Final, Literal, get_args

import numpy as np

from policies.planning import SlowdownObjective
from policies.replay.power_limit import chase
from policies.replay.power_limit.baselines import best_static_limit_w, replay_at_limit, replay_static_mix, replay_zeus
from policies.replay.power_limit.optimum import offline_optimum
from policies.replay.power_limit.planner import (
    CachedForecaster,
    ForecastSource,
    perfect_forecast,
    persistence_forecast,
    planner_policy,
)
from policies.replay.power_limit.scenario import RunSpec, Scenario, run_starts_s
from policies.replay.power_limit.simulation import RunResult, replay_run
from policies.vocabulary.units import DAY_S, Values

PolicyName = Literal[
    "max", "best-static", "static-mix", "static-mix-live", "zeus", "chase", "chase-svr", "chase-perfect",
    "chase-best-eta", "gridchase", "gridchase-open", "gridchase-forecast", "gridchase-perfect", "gridchase-live",
    "gridchase-live-open", "offline",
]  # fmt: skip
POLICIES: Final[tuple[PolicyName, ...]] = get_args(PolicyName)
LIVE: Final[tuple[PolicyName, ...]] = ("static-mix-live", "gridchase-live", "gridchase-live-open")
"""Policies that run under the controller itself, with all its own costs; the others know the curve for nothing."""
ZEUS_ETA: Final = 0.5
HISTORY_S: Final = 14 * DAY_S
"""The history before the first run, if the signal has that much."""
OVERRUN_RATIO: Final = 1.02
"""How far the signal reaches beyond the time budget, for policies that overrun it a little."""
UNBOUNDED: Final[frozenset[PolicyName]] = frozenset({"zeus", "chase", "chase-svr", "chase-perfect", "chase-best-eta"})
"""Policies that may be as slow as the energy-minimal limit, whatever the budget. (The search for the best eta includes
runs that overrun it.)"""
LEAST_OFFER_RATIO: Final = 1e-4
"""Where the grid offers less than this share of the cost, no share of it is told."""
RATIOS: Final = ("carbon_saved_ratio", "energy_saved_ratio", "slowdown_ratio", "slowdown_worst_ratio")
N_DIGITS: Final = 9
"""Decimals of reported ratios: Unix times are exact to 2e-7 s, which is 7e-10 of the shortest runs."""


LiveSimulator = Callable[[PolicyName, Scenario, RunSpec, float], RunResult]
"""Simulates a run under the controller itself: one of `LIVE`, on a scenario, with a time budget."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Comparison:
    """What is compared.

    Attributes:
        policies: their names.
        max_slowdowns: the time budgets, each at least 1.
        etas: the weights for Chase.
        svr: Chase's own forecast; without it `chase-svr` is left out.
        live: simulates runs under the controller; without it `LIVE` is left out.
    """

    policies: tuple[PolicyName, ...] = POLICIES
    max_slowdowns: tuple[float, ...] = (1.05,)
    etas: tuple[float, ...] = (0.5,)
    svr: chase.SignalExpectation | None = None
    live: LiveSimulator | None = None


@dataclass(frozen=True, slots=True, kw_only=True)
class PolicyVariant:
    """A policy with its time budget and its eta; None where it has none."""

    policy: PolicyName
    max_slowdown: float | None = None
    eta: float | None = None


@dataclass(frozen=True, slots=True, kw_only=True)
class SavingsRow:
    """What a policy saved on a signal, against the highest limit on the same runs.

    Attributes:
        policy: its name.
        max_slowdown: the time budget; a policy without one has the same row at each budget.
        signal: the name of the signal, or `mean` of several.
        eta: the weight, or None.
        carbon_saved_ratio: the share of carbon (or money) saved, mean over the starts.
        energy_saved_ratio: the share of energy saved, mean over the starts.
        slowdown_ratio: duration over that at the highest limit, mean over the starts.
        slowdown_worst_ratio: the largest of these.
        n_starts: the number of runs.
        optimum_share_ratio: the saved share over that of the optimum in hindsight; None where that is not compared.
        captured_ratio: the part of what the grid offers that was had: (saved - mix) / (optimum - mix), where the mix of
            two limits is blind to the grid; None where they are not compared, or the grid offers nothing.
    """

    policy: str
    max_slowdown: float
    signal: str
    eta: float | None
    carbon_saved_ratio: float
    energy_saved_ratio: float
    slowdown_ratio: float
    slowdown_worst_ratio: float
    n_starts: int
    optimum_share_ratio: float | None = None
    captured_ratio: float | None = None


@dataclass(frozen=True, slots=True, kw_only=True)
class RunTotals:
    """What a run used: grams or money, energy [J] and time [s]."""

    spent: float
    energy_j: float
    duration_s: float


TotalsByVariant = dict[PolicyVariant, RunTotals]


def run_specs(
    scenario: Scenario, comparison: Comparison, *, base_duration_s: float, n_starts: int, period_s: float
) -> list[RunSpec]:
    """Return the runs to replay; the signal covers each of them, however slow.

    Where the signal is long enough, it covers policies without a budget, too, so the runs are the same whichever
    policies are compared. A shorter signal must cover the compared policies only.

    Raises:
        ValueError: the signal is too short for such a run.
    """

    def starts_s(slowdown_ratio: float) -> list[float]:
        longest_s = base_duration_s * slowdown_ratio * OVERRUN_RATIO + 2 * period_s
        return run_starts_s(scenario, n_starts=n_starts, history_s=HISTORY_S, longest_s=longest_s, period_s=period_s)

    budget = max(*comparison.max_slowdowns, 1.0)
    slowest_ratio = max(float(scenario.iterations_per_s[-1]) / scenario.profile.energy_minimal.iterations_per_s, budget)
    try:
        chosen_s = starts_s(slowest_ratio)
    except ValueError:
        if not UNBOUNDED.isdisjoint(comparison.policies):
            raise
        chosen_s = starts_s(budget)
    return [RunSpec(start_s=start_s, base_duration_s=base_duration_s, period_s=period_s) for start_s in chosen_s]


def replay_totals(scenario: Scenario, spec: RunSpec, comparison: Comparison) -> TotalsByVariant:
    """Return what one run uses under each policy and budget, and at the highest limit."""
    return {
        variant: RunTotals(spent=run.spent, energy_j=run.energy_j, duration_s=run.duration_s)
        for variant, run in replay_variants(scenario, spec, comparison)
    }


def replay_variants(
    scenario: Scenario, spec: RunSpec, comparison: Comparison
) -> Iterator[tuple[PolicyVariant, RunResult]]:
    """Yield the result of one run at the highest limit, then under each policy and budget."""
    yield PolicyVariant(policy="max"), replay_at_limit(scenario, spec, scenario.profile.fastest.power_limit_w)
    yield from _without_budget(scenario, spec, comparison)
    budgeted = _with_budget(scenario, spec, comparison)
    for policy in comparison.policies:
        if policy in budgeted:
            for max_slowdown in comparison.max_slowdowns:
                yield PolicyVariant(policy=policy, max_slowdown=max_slowdown), budgeted[policy](max_slowdown)


def _without_budget(
    scenario: Scenario, spec: RunSpec, comparison: Comparison
) -> Iterator[tuple[PolicyVariant, RunResult]]:
    if "zeus" in comparison.policies:
        yield PolicyVariant(policy="zeus", eta=ZEUS_ETA), replay_zeus(scenario, spec, ZEUS_ETA)
    expectations: dict[PolicyName, chase.SignalExpectation | None] = {
        "chase": chase.expect_last_value,
        "chase-svr": comparison.svr,
        "chase-perfect": chase.expect_true_mean,
    }
    for policy, expectation in expectations.items():
        if policy in comparison.policies and expectation is not None:
            expected = expectation(scenario, spec, chase.max_periods(scenario, spec))
            for eta in comparison.etas:
                yield PolicyVariant(policy=policy, eta=eta), chase.replay_chase(scenario, spec, eta, expected)


def _with_budget(
    scenario: Scenario, spec: RunSpec, comparison: Comparison
) -> dict[PolicyName, Callable[[float], RunResult]]:
    def planner(forecast: ForecastSource, *, knows_length: bool = True) -> Callable[[float], RunResult]:
        return lambda max_slowdown: replay_run(
            scenario,
            planner_policy(SlowdownObjective(max_slowdown=max_slowdown), forecast, knows_length=knows_length),
            spec,
        )

    own = CachedForecaster()
    expected = chase.expect_last_value(scenario, spec, chase.max_periods(scenario, spec))
    hindsight = (
        [chase.replay_chase(scenario, spec, eta, expected) for eta in chase.ETAS]
        if "chase-best-eta" in comparison.policies
        else []
    )
    return {
        "best-static": lambda max_slowdown: replay_at_limit(
            scenario, spec, best_static_limit_w(scenario.profile, max_slowdown)
        ),
        "static-mix": lambda max_slowdown: replay_static_mix(scenario, spec, max_slowdown),
        "chase-best-eta": lambda max_slowdown: chase.best_in_hindsight(hindsight, spec, max_slowdown),
        "gridchase": planner(persistence_forecast),
        "gridchase-open": planner(own, knows_length=False),
        "gridchase-forecast": planner(own),
        "gridchase-perfect": planner(perfect_forecast),
        "offline": lambda max_slowdown: offline_optimum(scenario, spec, max_slowdown),
        **({name: partial(comparison.live, name, scenario, spec) for name in LIVE} if comparison.live else {}),
    }


def savings_rows(
    signal: str, specs: Sequence[RunSpec], totals: Sequence[TotalsByVariant], comparison: Comparison
) -> list[SavingsRow]:
    """Return what each policy saved on a signal; `totals` has one entry for each run."""
    rows = []
    for variant in totals[0]:
        if variant.policy in comparison.policies:
            budgets = comparison.max_slowdowns if variant.max_slowdown is None else (variant.max_slowdown,)
            rows += [_row(signal, variant, max_slowdown, specs, totals) for max_slowdown in budgets]
    rows.sort(key=lambda row: (comparison.max_slowdowns.index(row.max_slowdown), POLICIES.index(row.policy)))
    return _beside_mix_and_optimum(rows)


def _beside_mix_and_optimum(rows: Sequence[SavingsRow]) -> list[SavingsRow]:
    """Return the rows of one signal with their shares of the optimum, and of what the grid offers."""
    saved = {(row.policy, row.max_slowdown): row.carbon_saved_ratio for row in rows}
    return [_with_shares(row, saved) for row in rows]


def _with_shares(row: SavingsRow, saved: Mapping[tuple[str, float], float]) -> SavingsRow:
    best, mix = saved.get(("offline", row.max_slowdown)), saved.get(("static-mix", row.max_slowdown))
    if best is None or best < LEAST_OFFER_RATIO:
        return row
    row = replace(row, optimum_share_ratio=round(row.carbon_saved_ratio / best, N_DIGITS))
    if mix is None or best - mix < LEAST_OFFER_RATIO:
        return row
    return replace(row, captured_ratio=round((row.carbon_saved_ratio - mix) / (best - mix), N_DIGITS) + 0.0)


def _row(
    signal: str,
    variant: PolicyVariant,
    max_slowdown: float,
    specs: Sequence[RunSpec],
    totals: Sequence[TotalsByVariant],
) -> SavingsRow:
    ours, most = (
        [each[variant] for each in totals],
        [each[PolicyVariant(policy="max")] for each in totals],
    )
    slowdowns = [run.duration_s / spec.base_duration_s for run, spec in zip(ours, specs, strict=True)]
    row = SavingsRow(
        policy=variant.policy,
        max_slowdown=max_slowdown,
        signal=signal,
        eta=variant.eta,
        carbon_saved_ratio=saved_ratio(*(np.array([run.spent for run in each]) for each in (ours, most))),
        energy_saved_ratio=saved_ratio(*(np.array([run.energy_j for run in each]) for each in (ours, most))),
        slowdown_ratio=float(np.mean(slowdowns)),
        slowdown_worst_ratio=max(slowdowns),
        n_starts=len(totals),
    )
    return _rounded(row)


def saved_ratio(ours: Values, most: Values) -> float:
    """Return the share saved against the highest limit, mean over runs; both arguments have shape (n_runs,).

    Prices can make a run at the highest limit cost zero or less, so that its own share is meaningless. Then it is the
    total saved over the sum of the absolute costs.
    """
    if (most > 0).all():
        return float(np.mean(1 - ours / most))
    return float((most - ours).sum() / (np.abs(most).sum() or 1.0))


def mean_savings_rows(rows: Sequence[SavingsRow]) -> list[SavingsRow]:
    """Return the mean over signals of each policy, budget and eta; the worst slowdown is the largest of all."""
    groups: dict[tuple[str, float, float | None], list[SavingsRow]] = {}
    for row in rows:
        groups.setdefault((row.policy, row.max_slowdown, row.eta), []).append(row)
    means = []
    for (policy, max_slowdown, eta), group in groups.items():
        averaged = {name: float(np.mean([getattr(row, name) for row in group])) for name in RATIOS}
        averaged["slowdown_worst_ratio"] = max(row.slowdown_worst_ratio for row in group)
        n_starts = sum(row.n_starts for row in group)
        means.append(
            SavingsRow(policy=policy, max_slowdown=max_slowdown, signal="mean", eta=eta, n_starts=n_starts, **averaged)
        )
    return _beside_mix_and_optimum([_rounded(mean) for mean in means])


def _rounded(row: SavingsRow) -> SavingsRow:
    """Return a row without floating-point noise.

    Noise would rank equal policies differently and show a kept budget as overrun. Adding 0.0 turns -0.0 into 0.0.
    """
    return replace(row, **{name: round(getattr(row, name), N_DIGITS) + 0.0 for name in RATIOS})
