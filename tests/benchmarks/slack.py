"""What slack is worth: `python -m tests.benchmarks.slack --data DIR [--starts N] [--write]`.

DIR holds `carbon`, CSV files of signals (timestamp,<unit>), and `zeus`, traces of power in the format of Zeus's
(`summary_power_<GPU>.csv`). Runs of 24 h of work are planned anew each hour, with a perfect forecast and with our own,
and compared with the best single limit and with the optimum in hindsight.
"""

import argparse
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, replace
from itertools import product
from pathlib import Path
from typing import Final, NamedTuple

import numpy as np

from controller.cli.replay.plan_inputs import CurveSelection, read_curve, read_signals
from policies.forecasting import ForecasterState, advance
from policies.forecasting.past_errors import rms_errors
from policies.planning import SwitchingRules
from policies.planning.duty_cycle import duty_cycle_for
from policies.planning.signal_outlook import SignalOutlook
from policies.planning.slack.pause_cycle import PauseRules, pause_cycle_for
from policies.planning.slack.plan import RESTART_S, SlackRules, plan_with_slack
from policies.planning.slack.schedule import SlackCurve, plan_slack
from policies.replay.power_limit.baselines import best_static_limit_w
from policies.replay.power_limit.scenario import Scenario, run_starts_s
from policies.vocabulary.profile import PowerProfile
from policies.vocabulary.signal import Signal
from policies.vocabulary.units import DAY_S, HOUR_S, Values
from tests.benchmarks.pages import add_data, add_write, has_data, measured_on, show
from tests.policies.days import A40, hourly

try:
    from scipy.optimize import linprog
except ImportError:
    linprog = None

TABLE: Final = Path(__file__).with_suffix(".md")
WORKLOAD: Final = "imagenet/resnet50"
BATCH_SIZE: Final = 256
BUDGETS: Final = (1.05, 1.25, 1.5)
WORK_S: Final = DAY_S
N_STARTS: Final = 20
HISTORY_S: Final = 60 * DAY_S
REACH_H: Final = 38
"""How far the truth of a run, and its forecasts, are kept: 36 h, and some for a run that is late."""
IDLE_W: Final = 25.0
HOST_W: Final = 300.0
N_TYPED_DAYS: Final = 4
"""As far as a run that begins in the second day reaches."""
RULES: Final = SwitchingRules(period_s=HOUR_S, min_dwell_s=60.0, min_gain_ratio=0.0)
SMALL_RATIO: Final = 1e-9
UNIT: Final = 1e9
"""Costs are given to the solver in such units."""
MIN_SHARE_SHOWN: Final = 0.05
"""Of a smaller gain, in points, no share is shown."""
PROTOCOL: Final = f"""\
ResNet-50 on ImageNet, batch size 256, the limits of the trace (25 W apart), 24 h of work at the highest limit, no host
power unless told, {IDLE_W:g} W while a run is paused; the budget of time is 5, 25 and 50 % more. A plan is made each
hour and played as it is: limits share an hour, a pause lasts 5 min or more, and each costs a restart of {RESTART_S:g} s
at the highest power without an iteration. Saved: per cent of the cost at the highest limit, the mean over runs that
start all over the signal. static: the single limit of least energy within the budget. exact: the optimum in hindsight,
hour by hour, without restarts. share: (ours - static) / (exact - static). pauses: of a run. late: of the latest run."""
OWN: Final = f"""\
Our own forecasts, made anew each hour from what had ended by then, as far ahead as the run may last. Below the
energy-minimal limit, or paused, a run goes only where an outlook agrees in which every later hour is dearer by one root
mean square error of its lead. gain: ours - static, in points; worst: that of the worst single run; perfect: ours with a
perfect forecast. No share of gains below {MIN_SHARE_SHOWN:g} points."""


class Foresight(NamedTuple):
    """What a plan is made from: the hours ahead, for how long they are known [s], and the errors by lead."""

    values: Values
    known_s: float
    errors: Values | None


@dataclass(frozen=True, slots=True, kw_only=True, eq=False)
class Day:
    """A run's part of a signal: the true values from its start on, and what was forecast each hour."""

    truth: Values
    forecasts: Sequence[Foresight]

    @property
    def perfect(self) -> Sequence[Foresight]:
        """Return what a perfect forecast would be."""
        return [Foresight(self.truth[hour:], np.inf, None) for hour in range(len(self.truth))]


@dataclass(frozen=True, slots=True, kw_only=True)
class Case:
    """A curve, and what its run draws while it is paused [W]; None: it may not pause."""

    name: str
    profile: PowerProfile
    idle_power_w: float | None


@dataclass(frozen=True, slots=True, kw_only=True)
class Played:
    """A run as it was played: its cost [unit·J], its pauses, and by how much it was late [s]."""

    cost: float
    n_pauses: int
    late_s: float


@dataclass(slots=True, kw_only=True)
class _Run:
    """A run that is being played."""

    case: Case
    truth: Values
    left_iterations: float
    now_s: float = 0.0
    cost: float = 0.0
    n_pauses: int = 0
    paused_since_s: float | None = None

    def iterate(self, power_w: float, iterations_per_s: float, until_s: float) -> None:
        """Iterate at a point until a time, or the end of the work; a pause ends with a restart."""
        if self.paused_since_s is not None:
            self.paused_since_s = None
            self._draw(self.case.profile.fastest.power_w, RESTART_S)
        duration_s = min(max(until_s - self.now_s, 0.0), self.left_iterations / iterations_per_s)
        self._draw(power_w, duration_s)
        self.left_iterations -= duration_s * iterations_per_s

    def wait(self, until_s: float) -> None:
        """Be paused until a time."""
        if self.paused_since_s is None:
            self.paused_since_s, self.n_pauses = self.now_s, self.n_pauses + 1
        self._draw(self.case.idle_power_w or 0.0, max(until_s - self.now_s, 0.0))

    def _draw(self, power_w: float, duration_s: float) -> None:
        while duration_s > 0:
            hour = int(self.now_s / HOUR_S + SMALL_RATIO)
            part_s = min(duration_s, (hour + 1) * HOUR_S - self.now_s)
            self.cost += self.truth[hour] * power_w * part_s
            self.now_s += part_s
            duration_s -= part_s if part_s > SMALL_RATIO else duration_s


def hours_until(horizon_s: float, values: Values, begin_s: float) -> SignalOutlook:
    """Return the outlook from a time on, up to a horizon after it [s], of values by whole hours."""
    first_s = HOUR_S - begin_s % HOUR_S
    edges_s = np.append(np.arange(first_s, horizon_s * (1 - SMALL_RATIO), HOUR_S), horizon_s)
    durations_s = np.diff(np.minimum(edges_s, horizon_s), prepend=0.0)
    return SignalOutlook(durations_s, values[: len(durations_s)])


def play(case: Case, day: Day, budget: float, foresight: Sequence[Foresight]) -> Played:
    """Play a run, planned anew each hour."""
    work = WORK_S * case.profile.fastest.iterations_per_s
    run = _Run(case=case, truth=day.truth, left_iterations=work)
    while run.left_iterations > SMALL_RATIO * work:
        known = foresight[int(run.now_s / HOUR_S + SMALL_RATIO)]
        outlook = hours_until(max(budget * WORK_S - run.now_s, 1.0), known.values, run.now_s)
        _play_hour(run, outlook, known)
    return Played(cost=run.cost, n_pauses=run.n_pauses, late_s=max(run.now_s - budget * WORK_S, 0.0))


def _play_hour(run: _Run, outlook: SignalOutlook, known: Foresight) -> None:
    """Plan, and play what is planned to the end of the hour, or of the time that is left."""
    begin_s, period_s = run.now_s, float(outlook.durations_s[0])
    rules = SlackRules(idle_power_w=run.case.idle_power_w, known_s=known.known_s, rms_errors=known.errors)
    plan = plan_with_slack(
        run.case.profile, outlook, run.left_iterations, rules, is_paused=run.paused_since_s is not None
    )
    paused_for_s = None if run.paused_since_s is None else begin_s - run.paused_since_s
    cycle = pause_cycle_for(plan.hull, plan.rate_per_s, PauseRules(), period_s=period_s, paused_for_s=paused_for_s)
    if cycle is None:
        mix = duty_cycle_for(plan.hull, plan.rate_per_s, replace(RULES, period_s=period_s), None)
        first_s = period_s if mix.second is None else mix.first_s
        run.iterate(mix.first.power_w, mix.first.iterations_per_s, begin_s + first_s)
        if mix.second is not None:
            run.iterate(mix.second.power_w, mix.second.iterations_per_s, begin_s + period_s)
        return
    point, runs_s = cycle.running, period_s - cycle.pause_s
    if cycle.begins_paused and cycle.pause_s > 0:
        run.wait(begin_s + cycle.pause_s)
    if runs_s > 0:
        run.iterate(
            point.power_w, point.iterations_per_s, begin_s + period_s if cycle.begins_paused else begin_s + runs_s
        )
    if not cycle.begins_paused and cycle.pause_s > 0 and run.left_iterations > 0:
        run.wait(begin_s + period_s)


def cost_at_top(case: Case, day: Day) -> float:
    """Return what the work costs at the highest limit."""
    return _cost_at(case.profile, case.profile.fastest.power_limit_w, day)


def cost_static(case: Case, day: Day, budget: float) -> float:
    """Return what it costs at the best single limit."""
    return _cost_at(case.profile, best_static_limit_w(case.profile, budget), day)


def _cost_at(profile: PowerProfile, power_limit_w: float, day: Day) -> float:
    point = profile.points[int(np.argmin(np.abs(profile.power_limits_w - power_limit_w)))]
    took_s = WORK_S * profile.fastest.iterations_per_s / point.iterations_per_s
    durations_s = np.clip(took_s - HOUR_S * np.arange(len(day.truth)), 0.0, HOUR_S)
    return point.power_w * float(durations_s @ day.truth)


def cost_exact(case: Case, day: Day, budget: float) -> float:
    """Return the optimum in hindsight, from the planner itself: the tests have it equal a solver's."""
    curve = SlackCurve.of(case.profile, idle_power_w=case.idle_power_w)
    outlook = hours_until(budget * WORK_S, day.truth, 0.0)
    return plan_slack(curve, outlook, WORK_S * case.profile.fastest.iterations_per_s).cost


def cost_solved(case: Case, day: Day, budget: float) -> float:
    """Return the same by a solver of linear programmes: shares of each hour at each limit, for every last hour."""
    outlook, work = hours_until(budget * WORK_S, day.truth, 0.0), WORK_S * case.profile.fastest.iterations_per_s
    rates_per_s, powers_w = (np.append(0.0, each) for each in (case.profile.iterations_per_s, case.profile.power_w))
    n, least = len(rates_per_s), np.inf
    for last in range(int(WORK_S / HOUR_S) - 1, len(outlook.values)):
        weights = outlook.durations_s[: last + 1] * outlook.values[: last + 1]
        costs, most = np.outer(weights, powers_w), np.ones((last + 1, n))
        costs[:last, 0] = weights[:last] * (case.idle_power_w or 0.0)  # before the last hour it waits, or may not
        most[:last, 0] = case.idle_power_w is not None
        found = linprog(
            costs.ravel() / UNIT,
            A_eq=np.vstack(
                [
                    np.outer(outlook.durations_s[: last + 1], rates_per_s).ravel() / work,
                    np.kron(np.eye(last + 1), np.ones(n)),
                ]
            ),
            b_eq=np.ones(last + 2),
            bounds=np.column_stack([np.zeros(most.size), most.ravel()]),
        )
        if found.success:
            least = min(least, UNIT * float(found.fun))
    return least


def typed_days(signal: Signal, n_starts: int) -> Iterator[Day]:
    """Yield runs of a signal that repeats every other day, spread evenly over two days by whole hours."""
    for first in (np.arange(n_starts) * 48 // n_starts).tolist():
        yield Day(truth=signal.values[first : first + REACH_H], forecasts=[])


def days_of(signal: Signal, n_starts: int) -> Iterator[Day]:
    """Yield the runs of a signal, spread evenly over it, as `gridchase replay plan` starts them."""
    scenario = Scenario(profile=A40, signal=signal)
    starts_s = run_starts_s(
        scenario, n_starts=n_starts, history_s=HISTORY_S, longest_s=(REACH_H + 2) * HOUR_S, period_s=HOUR_S
    )
    for start_s in starts_s:
        first = int(np.searchsorted(scenario.edges_s, start_s))
        truth = scenario.values[first : first + REACH_H]
        yield Day(truth=truth, forecasts=list(_forecasts(scenario, start_s)))


def _forecasts(scenario: Scenario, start_s: float) -> Iterator[Foresight]:
    """Yield what is forecast each hour of a run."""
    state: ForecasterState | None = None
    for hour in range(REACH_H):
        now_s = start_s + hour * HOUR_S
        state, forecast = advance(
            state,
            history=scenario.known_at(now_s),
            provider_forecast=None,
            now_s=now_s,
            horizon_s=(REACH_H - hour) * HOUR_S,
        )
        if state is None or forecast is None:
            raise SystemExit(f"{scenario.signal.zone}: no forecast can be made at {now_s:.0f} s")
        errors = state.past_errors
        yield Foresight(forecast.signal.values, 0.0, None if errors is None else rms_errors(errors))


def by_the_hour(signal: Signal) -> Signal:
    """Return the hourly means of a signal."""
    starts_s = np.arange(np.ceil(signal.starts_s[0] / HOUR_S) * HOUR_S, signal.ends_s - HOUR_S + 1.0, HOUR_S)
    means = [signal.mean(start_s, start_s + HOUR_S) for start_s in starts_s.tolist()]
    values = np.array([np.nan if mean is None else mean for mean in means])
    return replace(
        signal,
        starts_s=starts_s,
        values=values,
        ends_s=float(starts_s[-1] + HOUR_S),
        estimated=np.zeros(len(values), dtype=np.bool_),
    )


def typed_signals() -> Iterator[tuple[str, Signal]]:
    """Yield a square wave, and a price that is negative at noon on every other day, both for some days."""
    yield "square 100/600, 12 h each", hourly(np.tile(np.repeat([100.0, 600.0], 12), N_TYPED_DAYS))
    hours = np.arange(N_TYPED_DAYS * 24)
    noon = np.exp(-(((hours % 24) - 12.5) ** 2) / 12.0)
    depth = np.where((hours // 24) % 2 == 0, 130.0, 70.0)
    yield "price, negative at noon", hourly(100.0 + 20.0 * np.cos(2 * np.pi * (hours % 24 - 19) / 24) - depth * noon)


def saved_percent(case: Case, days: Sequence[Day], costs: Sequence[float]) -> Values:
    """Return what each run saves against the highest limit, shape (n_days,) [%]."""
    return np.array([100 * (1 - cost / cost_at_top(case, day)) for cost, day in zip(costs, days, strict=True)])


def perfect_rows(cases: Sequence[Case], n_starts: int) -> Iterator[str]:
    """Yield the table of perfect forecasts on typed signals."""
    yield "| signal | curve | budget | static | exact | by a solver | ours | ours / exact | pauses | late [s] |"
    yield "|---|---|---:|---:|---:|---:|---:|---:|---:|---:|"
    for name, signal in typed_signals():
        days = list(typed_days(signal, n_starts))
        for case, budget in product(cases, BUDGETS):
            runs = [play(case, day, budget, day.perfect) for day in days]
            static, exact, solved, ours = (
                saved_percent(case, days, costs).mean()
                for costs in (
                    [cost_static(case, day, budget) for day in days],
                    [cost_exact(case, day, budget) for day in days],
                    [np.nan if linprog is None else cost_solved(case, day, budget) for day in days],
                    [run.cost for run in runs],
                )
            )
            yield (
                f"| {name} | {case.name} | {100 * (budget - 1):.0f} % | {static:.2f} | {exact:.2f} | {solved:.2f} | "
                f"{ours:.2f} | {100 * ours / exact:.1f} % | {np.mean([run.n_pauses for run in runs]):.1f} | "
                f"{max(run.late_s for run in runs):.0f} |"
            )


def own_rows(cases: Sequence[Case], signals: Sequence[Signal], n_starts: int) -> Iterator[str]:
    """Yield the table of our own forecasts on real signals."""
    yield "| signal | curve | budget | static | exact | ours | gain | worst | share | perfect | pauses | late [s] |"
    yield "|---|---|---:|---:|---:|---:|---:|---:|---:|---:|---:|---:|"
    for signal in signals:
        days = list(days_of(signal, n_starts))
        for case, budget in product(cases, BUDGETS):
            runs = [play(case, day, budget, day.forecasts) for day in days]
            static, exact, perfect, ours = (
                saved_percent(case, days, costs)
                for costs in (
                    [cost_static(case, day, budget) for day in days],
                    [cost_exact(case, day, budget) for day in days],
                    [play(case, day, budget, day.perfect).cost for day in days],
                    [run.cost for run in runs],
                )
            )
            gain, most = ours - static, float((exact - static).mean())
            share = f"{float(gain.mean()) / most:.2f}" if most >= MIN_SHARE_SHOWN else ""
            yield (
                f"| {signal.zone} | {case.name} | {100 * (budget - 1):.0f} % | {static.mean():.2f} | "
                f"{exact.mean():.2f} | {ours.mean():.2f} | {gain.mean():+.2f} | {gain.min():+.2f} | {share} | "
                f"{perfect.mean():.2f} | {np.mean([run.n_pauses for run in runs]):.1f} | "
                f"{max(run.late_s for run in runs):.0f} |"
            )


def cases_of(directory: Path) -> list[Case]:
    """Return the curves: each trace's with a pause, and the A40's without one."""
    wanted, faults = CurveSelection(workload=WORKLOAD, batch_size=BATCH_SIZE, optimizer=None), list[str]()
    cases = []
    for path in sorted(directory.glob("summary_power_*.csv")):
        curve = read_curve(path, wanted, faults)
        if curve is None:
            continue
        name = path.stem.removeprefix("summary_power_").upper()
        cases.append(Case(name=f"{name}, pausable", profile=curve.profile, idle_power_w=IDLE_W))
        if name == "A40":
            cases.append(Case(name=name, profile=curve.profile, idle_power_w=None))
    for fault in faults:
        print(f"left out: {fault}")
    return cases


def signals_of(directory: Path) -> tuple[list[Signal], list[str]]:
    """Return the signals by the hour, and the names of those that are too short."""
    faults: list[str] = []
    read = [by_the_hour(reading.signal) for reading in read_signals(sorted(directory.glob("*.csv")), faults)]
    if faults:
        raise SystemExit("\n".join(faults))
    is_long = [signal.ends_s - float(signal.starts_s[0]) >= HISTORY_S + 30 * DAY_S for signal in read]
    long = [signal for signal, is_enough in zip(read, is_long, strict=True) if is_enough]
    return long, [signal.zone for signal, is_enough in zip(read, is_long, strict=True) if not is_enough]


def page(directory: Path, n_starts: int) -> Iterator[str]:
    """Yield the lines of the page."""
    yield "# What slack is worth\n"
    yield f"{measured_on()}; `python -m tests.benchmarks.slack --data DIR --starts {n_starts} --write`.\n"
    yield PROTOCOL
    cases = cases_of(directory / "zeus")
    yield "\n## With a perfect forecast [%]\n"
    host = [
        replace(case, name=f"{case.name}, {HOST_W:g} W of host", profile=case.profile.with_overhead(HOST_W, 1.0))
        for case in cases
    ]
    host = [replace(case, idle_power_w=case.idle_power_w + HOST_W) for case in host if case.idle_power_w is not None]
    yield from perfect_rows([*cases, *host], n_starts)
    signals, short = signals_of(directory / "carbon")
    yield f"\n## With our own forecasts [%]\n\n{OWN}"
    if short:
        yield f"Too short for {HISTORY_S / DAY_S:.0f} days of history and runs after them: {', '.join(short)}."
    yield ""
    yield from own_rows(cases, signals, n_starts)


def main() -> None:
    """Measure and print; with `--write` into the page beside this file."""
    parser = argparse.ArgumentParser(description=__doc__)
    add_data(parser)
    parser.add_argument("--starts", type=int, default=N_STARTS, metavar="N", help="runs on each signal")
    add_write(parser, TABLE)
    options = parser.parse_args()
    if not has_data(options.data):
        return
    show(page(options.data, options.starts), TABLE, write=options.write)


if __name__ == "__main__":
    main()
