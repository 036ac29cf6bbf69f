"""What policies of power limits save on one signal: all of them play the same runs, which start all over the signal."""

from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, replace
from typing import Final, Literal, get_args

import numpy as np

from policies.planning import SlowdownObjective
from policies.replay.power_limit import chase
from policies.replay.power_limit.baselines import at_one_limit, best_static_w, static_mix, zeus
from policies.replay.power_limit.optimum import offline_optimum
from policies.replay.power_limit.planner import (
    CachedForecaster,
    ForecastSource,
    perfect_forecast,
    persistence_forecast,
    planner_policy,
)
from policies.replay.power_limit.scenario import RunSpec, Scenario, Values, run_starts_s
from policies.replay.power_limit.simulation import RunResult, replay_run

PolicyName = Literal[
    "max", "best-static", "static-mix", "zeus", "chase", "chase-svr", "chase-perfect", "chase-best-eta",
    "gridchase", "gridchase-open", "gridchase-forecast", "gridchase-perfect", "offline",
]  # fmt: skip
POLICIES: Final[tuple[PolicyName, ...]] = get_args(PolicyName)
ZEUS_ETA: Final = 0.5
HISTORY_S: Final = 14 * 86_400.0
"""What precedes the first run, where there is that much: the planner looks no further back."""
LENIENCE: Final = 1.02
"""A policy may miss its budget by a little, and then still has a signal."""
UNBOUNDED: Final[frozenset[PolicyName]] = frozenset({"zeus", "chase", "chase-svr", "chase-perfect", "chase-best-eta"})
"""May be as slow as the energy-minimal limit, whatever the budget; the best eta is looked for among runs that do not
keep it."""
N_DIGITS: Final = 9
"""Of a ratio that is told, after the point: Unix times hold 2e-7 s, which is 7e-10 of the shortest runs."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Comparison:
    """What is compared.

    Attributes:
        policies: which.
        max_slowdowns: the budgets of time, each at least 1.
        etas: the weights that Chase is played with.
        svr: Chase's own regression, where there is one; without it `chase-svr` is not played.
    """

    policies: tuple[PolicyName, ...] = POLICIES
    max_slowdowns: tuple[float, ...] = (1.05,)
    etas: tuple[float, ...] = (0.5,)
    svr: chase.Expectation | None = None


@dataclass(frozen=True, slots=True, kw_only=True)
class PolicyVariant:
    """Who plays: a policy, the budget that it is given, and its eta where it has one.

    What knows no budget has the budget None.
    """

    policy: PolicyName
    max_slowdown: float | None = None
    eta: float | None = None


@dataclass(frozen=True, slots=True, kw_only=True)
class SavingsRow:
    """What a policy saved on a signal, against the highest limit on the same runs.

    Attributes:
        policy: its name.
        max_slowdown: the budget of time; what knows none has the same row at each.
        signal: the name of the signal, or `mean` of several.
        eta: the weight, where it has one.
        carbon_saved_ratio: the share saved of the carbon (or money), the mean over the starts.
        energy_saved_ratio: the same of the energy.
        slowdown_ratio: the time taken over that at the highest limit, the mean over the starts.
        slowdown_worst_ratio: the worst of them.
        n_starts: how many runs.
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


@dataclass(frozen=True, slots=True, kw_only=True)
class RunTotals:
    """What a run took: grams or money, energy [J] and time [s]."""

    spent: float
    energy_j: float
    duration_s: float


TotalsByVariant = dict[PolicyVariant, RunTotals]


def run_specs(world: Scenario, contest: Comparison, *, top_s: float, n_starts: int, period_s: float) -> list[RunSpec]:
    """Return the runs to replay; the signal reaches to the end of each, however slow.

    Where there is room, that is for policies that know no budget, too: so all policies play the same runs, whichever
    of them are compared. A signal that is too short for those need only be long enough for who plays.

    Raises:
        ValueError: the signal is too short for such a run.
    """

    def starts_s(slowdown_ratio: float) -> list[float]:
        longest_s = top_s * slowdown_ratio * LENIENCE + 2 * period_s
        return run_starts_s(world, n_starts=n_starts, history_s=HISTORY_S, longest_s=longest_s, period_s=period_s)

    budget = max(*contest.max_slowdowns, 1.0)
    slowest_ratio = max(float(world.iterations_per_s[-1]) / world.profile.energy_minimal.iterations_per_s, budget)
    try:
        chosen_s = starts_s(slowest_ratio)
    except ValueError:
        if not UNBOUNDED.isdisjoint(contest.policies):
            raise
        chosen_s = starts_s(budget)
    return [RunSpec(start_s=start_s, top_s=top_s, period_s=period_s) for start_s in chosen_s]


def replay_totals(world: Scenario, job: RunSpec, contest: Comparison) -> TotalsByVariant:
    """Return what one run takes under each policy and budget, and at the highest limit."""
    return {
        entry: RunTotals(spent=run.spent, energy_j=run.energy_j, duration_s=run.duration_s)
        for entry, run in replay_variants(world, job, contest)
    }


def replay_variants(world: Scenario, job: RunSpec, contest: Comparison) -> Iterator[tuple[PolicyVariant, RunResult]]:
    """Yield one run as each policy has it under each budget, and at the highest limit first."""
    yield PolicyVariant(policy="max"), at_one_limit(world, job, world.profile.fastest.power_limit_w)
    yield from _without_budget(world, job, contest)
    budgeted = _with_budget(world, job, contest.policies)
    for policy in contest.policies:
        if policy in budgeted:
            for max_slowdown in contest.max_slowdowns:
                yield PolicyVariant(policy=policy, max_slowdown=max_slowdown), budgeted[policy](max_slowdown)


def _without_budget(world: Scenario, job: RunSpec, contest: Comparison) -> Iterator[tuple[PolicyVariant, RunResult]]:
    """Yield the runs of what weighs energy or carbon by an eta."""
    if "zeus" in contest.policies:
        yield PolicyVariant(policy="zeus", eta=ZEUS_ETA), zeus(world, job, ZEUS_ETA)
    expectations: dict[PolicyName, chase.Expectation | None] = {
        "chase": chase.by_persistence,
        "chase-svr": contest.svr,
        "chase-perfect": chase.by_foresight,
    }
    for policy, expectation in expectations.items():
        if policy in contest.policies and expectation is not None:
            expected = expectation(world, job, chase.n_periods_of(world, job))
            for eta in contest.etas:
                yield PolicyVariant(policy=policy, eta=eta), chase.chase(world, job, eta, expected)


def _with_budget(
    world: Scenario, job: RunSpec, policies: Sequence[PolicyName]
) -> dict[PolicyName, Callable[[float], RunResult]]:
    """Return what plays a run within a budget of time, by name."""

    def ours(outlook: ForecastSource, *, is_announced: bool = True) -> Callable[[float], RunResult]:
        return lambda max_slowdown: replay_run(
            world, planner_policy(SlowdownObjective(max_slowdown=max_slowdown), outlook, is_announced=is_announced), job
        )

    expected = chase.by_persistence(world, job, chase.n_periods_of(world, job))
    hindsight = [chase.chase(world, job, eta, expected) for eta in chase.ETAS] if "chase-best-eta" in policies else []
    return {
        "best-static": lambda max_slowdown: at_one_limit(world, job, best_static_w(world.profile, max_slowdown)),
        "static-mix": lambda max_slowdown: static_mix(world, job, max_slowdown),
        "chase-best-eta": lambda max_slowdown: chase.best_in_hindsight(hindsight, job, max_slowdown),
        "gridchase": ours(persistence_forecast),
        "gridchase-open": ours(persistence_forecast, is_announced=False),
        "gridchase-forecast": ours(CachedForecaster(world)),
        "gridchase-perfect": ours(perfect_forecast),
        "offline": lambda max_slowdown: offline_optimum(world, job, max_slowdown),
    }


def savings_rows(
    signal: str, jobs: Sequence[RunSpec], played: Sequence[TotalsByVariant], contest: Comparison
) -> list[SavingsRow]:
    """Return what each policy saved on a signal; `played` holds each of the runs."""
    rows = []
    for entry in played[0]:
        if entry.policy in contest.policies:
            budgets = contest.max_slowdowns if entry.max_slowdown is None else (entry.max_slowdown,)
            rows += [_row(signal, entry, max_slowdown, jobs, played) for max_slowdown in budgets]
    return sorted(rows, key=lambda row: (contest.max_slowdowns.index(row.max_slowdown), POLICIES.index(row.policy)))


def _row(
    signal: str, entry: PolicyVariant, max_slowdown: float, jobs: Sequence[RunSpec], played: Sequence[TotalsByVariant]
) -> SavingsRow:
    ours, most = (
        [replay_variants[entry] for replay_variants in played],
        [replay_variants[PolicyVariant(policy="max")] for replay_variants in played],
    )
    slowdowns = [run.duration_s / job.top_s for run, job in zip(ours, jobs, strict=True)]
    row = SavingsRow(
        policy=entry.policy,
        max_slowdown=max_slowdown,
        signal=signal,
        eta=entry.eta,
        carbon_saved_ratio=saved_ratio(*(np.array([run.spent for run in each]) for each in (ours, most))),
        energy_saved_ratio=saved_ratio(*(np.array([run.energy_j for run in each]) for each in (ours, most))),
        slowdown_ratio=float(np.mean(slowdowns)),
        slowdown_worst_ratio=max(slowdowns),
        n_starts=len(played),
    )
    return _rounded(row)


def saved_ratio(ours: Values, most: Values) -> float:
    """Return the share that is saved of what runs take at the highest limit, shape (n_runs,), the mean over them.

    Where one of those costs nothing or less, as prices can have it, its share says nothing: then it is what is saved
    in all, over the sum of what the runs cost whatever its sign.
    """
    if (most > 0).all():
        return float(np.mean(1 - ours / most))
    return float((most - ours).sum() / (np.abs(most).sum() or 1.0))


def mean_savings_rows(rows: Sequence[SavingsRow]) -> list[SavingsRow]:
    """Return the mean over signals of each policy, budget and eta; the worst slowdown is the worst of all."""
    groups: dict[tuple[str, float, float | None], list[SavingsRow]] = {}
    for row in rows:
        groups.setdefault((row.policy, row.max_slowdown, row.eta), []).append(row)
    means = [
        SavingsRow(
            policy=policy,
            max_slowdown=max_slowdown,
            signal="mean",
            eta=eta,
            carbon_saved_ratio=float(np.mean([row.carbon_saved_ratio for row in group])),
            energy_saved_ratio=float(np.mean([row.energy_saved_ratio for row in group])),
            slowdown_ratio=float(np.mean([row.slowdown_ratio for row in group])),
            slowdown_worst_ratio=max(row.slowdown_worst_ratio for row in group),
            n_starts=sum(row.n_starts for row in group),
        )
        for (policy, max_slowdown, eta), group in groups.items()
    ]
    return [_rounded(mean) for mean in means]


def _rounded(row: SavingsRow) -> SavingsRow:
    """Return a row without the rounding of its sums.

    By it a policy would stand below another that does the same, and above a budget that it keeps to the second; and
    what saves nothing would save -0.0, which adding 0.0 turns into 0.0.
    """

    def rounded_ratio(whole_ratio: float) -> float:
        return round(whole_ratio, N_DIGITS) + 0.0

    return replace(
        row,
        carbon_saved_ratio=rounded_ratio(row.carbon_saved_ratio),
        energy_saved_ratio=rounded_ratio(row.energy_saved_ratio),
        slowdown_ratio=rounded_ratio(row.slowdown_ratio),
        slowdown_worst_ratio=rounded_ratio(row.slowdown_worst_ratio),
    )
