"""Slack below the energy-minimal limit: exact, never dearer with more time, never above the highest limit."""

from collections.abc import Callable
from functools import partial
from itertools import pairwise, product

import numpy as np
import pytest
from hypothesis import example, given
from hypothesis import strategies as st

from policies.planning.signal_outlook import SignalOutlook
from policies.planning.slack.schedule import SlackCurve, SlackSchedule, outlook_until, plan_slack, soonest_within
from policies.vocabulary.profile import PowerProfile, ProfilePoint
from policies.vocabulary.units import HOUR_S, Values
from tests.policies.days import A40
from tests.policies.vocabulary.test_profile import profiles

TOP_PER_S = A40.fastest.iterations_per_s
IDLE_W = 25.0
SQUARE = SignalOutlook(np.full(48, HOUR_S), np.tile(np.repeat([100.0, 600.0], 12), 2))
"""Twelve hours at 100, and twelve at 600."""
signal_values = st.floats(-400.0, 900.0) | st.sampled_from([0.0, 100.0, 600.0])
LEAP = 1e-6
LEAPING = PowerProfile(
    (
        ProfilePoint(power_limit_w=100.0, power_w=1.0, iterations_per_s=15.0),
        ProfilePoint(power_limit_w=125.0, power_w=1.0, iterations_per_s=499.99999999999994),
    )
)
"""A hundredth of what it does in three minutes just fills the first of them at the lower limit."""
LEAPS = [(60.0, -1.0), (60.0, 0.0), (60.0, 0.0)]
steps = st.lists(st.tuples(st.floats(60.0, 7_200.0), signal_values), min_size=1, max_size=8)
idle_powers_w = st.none() | st.floats(5.0, 120.0)


def outlook(pairs: list[tuple[float, float]]) -> SignalOutlook:
    return SignalOutlook(np.array([s for s, _ in pairs]), np.array([value for _, value in pairs]))


def scale(profile: PowerProfile, ahead: SignalOutlook) -> float:
    """Return what costs are compared with."""
    return float(profile.power_w.max() * ahead.durations_s @ np.abs(ahead.values)) + 1.0


def work_of(schedule: SlackSchedule, ahead: SignalOutlook) -> float:
    """Return the iterations of a schedule; the run ends within its last hour."""
    until_s = np.minimum(np.cumsum(ahead.durations_s), schedule.ends_s)
    return float(np.diff(until_s, prepend=0.0) @ schedule.rates_per_s)


def is_least(cost: float, least: Callable[[float], float], work: float, tolerance: float) -> bool:
    """Return whether a cost is the least one of some work.

    Where the work just fills an hour of a negative value, the least cost leaps, and rounding decides: either side of
    the leap is right there.
    """
    if cost == pytest.approx(least(work), abs=tolerance):
        return True
    less, more = least(work * (1 - LEAP)), least(work * (1 + LEAP))
    leaps = 1_000 * tolerance < abs(more - less) < np.inf
    return leaps and any(cost == pytest.approx(side, abs=10 * tolerance) for side in (less, more))


def solved(curve: SlackCurve, ahead: SignalOutlook, work: float) -> float:
    """Return the least cost by a solver: shares of each hour at each point, for each hour that may be the last."""
    linprog = pytest.importorskip("scipy.optimize", reason="needs SciPy").linprog
    running = curve.running.iterations_per_s, curve.running.power_w
    ending = np.append(0.0, curve.efficient.iterations_per_s), np.append(0.0, curve.efficient.power_w)
    least = np.inf
    for last in range(len(ahead.values)):
        costs, rates, columns = list[Values](), list[Values](), list[int]()
        for step in range(last + 1):
            rates_per_s, powers_w = ending if step == last else running
            seconds = ahead.durations_s[step]
            costs.append(seconds * ahead.values[step] * powers_w)
            rates.append(seconds * rates_per_s)
            columns += [step] * len(rates_per_s)
        shares = (np.arange(last + 1)[:, None] == np.array(columns)).astype(float)
        unit = max(float(np.abs(np.concatenate(costs)).max()), 1.0)
        found = linprog(
            np.concatenate(costs) / unit,
            A_eq=np.vstack([np.concatenate(rates) / work, shares]),
            b_eq=np.append(1.0, np.ones(last + 1)),
        )
        if found.success:
            least = min(least, unit * float(found.fun))
    return least


def enumerated(curve: SlackCurve, ahead: SignalOutlook, work: float) -> float:
    """Return the least cost of all schedules in which at most one hour mixes two points: one of them is the best."""
    least = np.inf
    for last in range(len(ahead.values)):
        hulls = [
            list(zip(hull.iterations_per_s.tolist(), hull.power_w.tolist(), strict=True))
            for hull in [curve.running] * last + [curve.efficient]
        ]
        hulls[last] = [(0.0, 0.0), *hulls[last]]
        pairs = [[*((point, point) for point in hull), *product(hull, hull)] for hull in hulls]
        for mixed in range(last + 1):
            choices = [pairs[n] if n == mixed else [(point, point) for point in hulls[n]] for n in range(last + 1)]
            least = min([least, *(_cost(ahead, choice, mixed, work) for choice in product(*choices))])
    return least


def _cost(
    ahead: SignalOutlook, choice: tuple[tuple[tuple[float, float], tuple[float, float]], ...], mixed: int, work: float
) -> float:
    """Return the cost of points by hour; the mixed hour does what the others leave; infinite if it cannot."""
    weights = ahead.durations_s[: len(choice)] * ahead.values[: len(choice)]
    rest = work - sum(ahead.durations_s[n] * point[0] for n, (point, _) in enumerate(choice) if n != mixed)
    cost = sum(weights[n] * point[1] for n, (point, _) in enumerate(choice) if n != mixed)
    (low_per_s, low_w), (high_per_s, high_w) = choice[mixed]
    rate_per_s, spread_per_s = rest / ahead.durations_s[mixed], high_per_s - low_per_s
    if spread_per_s <= 0:
        is_same = abs(rate_per_s - low_per_s) <= 1e-9 * (low_per_s + 1e-3)
        return float(cost + weights[mixed] * low_w) if is_same else np.inf
    share = (rate_per_s - low_per_s) / spread_per_s
    if not -1e-9 <= share <= 1 + 1e-9:
        return np.inf
    return float(cost + weights[mixed] * (low_w + share * (high_w - low_w)))


@given(profiles(), steps, st.floats(0.01, 1.0), idle_powers_w)
@example(LEAPING, LEAPS, 0.01, None)
def test_the_cost_is_that_of_a_linear_programme(
    profile: PowerProfile, pairs: list[tuple[float, float]], share: float, idle_power_w: float | None
) -> None:
    ahead, curve = outlook(pairs), SlackCurve.of(profile, idle_power_w=idle_power_w)
    work = share * float(ahead.durations_s.sum()) * curve.running.fastest.iterations_per_s
    cost = plan_slack(curve, ahead, work).cost
    assert is_least(cost, partial(solved, curve, ahead), work, 1e-6 * scale(profile, ahead))


@given(
    profiles(),
    st.lists(st.tuples(st.floats(60.0, 7_200.0), signal_values), min_size=1, max_size=3),
    st.floats(0.01, 1.0),
    idle_powers_w,
)
@example(LEAPING, LEAPS, 0.01, None)
def test_no_schedule_of_three_hours_is_cheaper(
    profile: PowerProfile, pairs: list[tuple[float, float]], share: float, idle_power_w: float | None
) -> None:
    ahead, curve = outlook(pairs), SlackCurve.of(PowerProfile(profile.points[-3:]), idle_power_w=idle_power_w)
    work = share * float(ahead.durations_s.sum()) * curve.running.fastest.iterations_per_s
    cost = plan_slack(curve, ahead, work).cost
    assert is_least(cost, partial(enumerated, curve, ahead), work, 1e-7 * scale(profile, ahead))


@given(
    profiles(),
    st.lists(st.tuples(st.floats(60.0, 7_200.0), signal_values), min_size=1, max_size=30),
    st.floats(0.01, 1.0),
    st.lists(st.floats(0.0, 1.0), min_size=2, max_size=6),
    idle_powers_w,
    st.booleans(),
)
def test_the_cost_never_rises_with_the_budget(
    profile: PowerProfile,
    pairs: list[tuple[float, float]],
    share: float,
    budgets: list[float],
    idle_power_w: float | None,
    is_ordered: bool,
) -> None:
    ahead, curve = outlook(pairs), SlackCurve.of(profile, idle_power_w=idle_power_w)
    whole_s = float(ahead.durations_s.sum())
    soonest_s = share * whole_s
    work = soonest_s * curve.running.fastest.iterations_per_s
    ordered_s = None if is_ordered else float(ahead.durations_s[: len(pairs) // 2].sum())
    horizons_s = [soonest_s + budget * (whole_s - soonest_s) for budget in sorted(budgets)]
    shortened = [outlook_until(ahead, horizon_s, ordered_s=ordered_s) for horizon_s in horizons_s]
    costs = [plan_slack(curve, until, work, ordered_s=ordered_s).cost for until in shortened]
    assert all(later <= earlier + 1e-9 * scale(profile, ahead) for earlier, later in pairwise(costs))


@given(profiles(), steps, st.floats(0.01, 1.2), idle_powers_w, st.booleans())
def test_the_work_is_done_and_never_above_the_top(
    profile: PowerProfile, pairs: list[tuple[float, float]], share: float, idle_power_w: float | None, is_paused: bool
) -> None:
    ahead, curve = outlook(pairs), SlackCurve.of(profile, idle_power_w=idle_power_w)
    top_per_s, whole_s = curve.running.fastest.iterations_per_s, float(ahead.durations_s.sum())
    work = share * whole_s * top_per_s
    schedule = plan_slack(curve, ahead, work, is_paused=is_paused)
    assert (schedule.rates_per_s >= 0).all()
    assert (schedule.rates_per_s <= top_per_s * (1 + 1e-9)).all()
    assert schedule.is_feasible == (share <= 1)
    if schedule.is_feasible:
        assert schedule.ends_s <= whole_s * (1 + 1e-9)
        assert work_of(schedule, ahead) == pytest.approx(work, rel=1e-6)
    else:
        assert schedule.rate_per_s == top_per_s


@given(profiles(), st.floats(1.0, 900.0), st.floats(1.0, 3.0), idle_powers_w)
def test_a_constant_signal_has_no_use_for_slack(
    profile: PowerProfile, value: float, slack: float, idle_power_w: float | None
) -> None:
    """It takes the best constant rate: the energy-minimal one, or the slowest that is in time."""
    curve = SlackCurve.of(profile, idle_power_w=idle_power_w)
    work = 10 * HOUR_S * curve.running.fastest.iterations_per_s
    ahead = outlook([(HOUR_S / 2, value)] * 20)
    schedule = plan_slack(curve, outlook_until(ahead, 10 * HOUR_S * slack), work)
    horizon_s = min(10 * HOUR_S * slack, float(ahead.durations_s.sum()))
    needed_per_s = max(curve.energy_minimal.iterations_per_s, work / horizon_s)
    assert not schedule.uses_slack
    assert schedule.rate_per_s == pytest.approx(needed_per_s, rel=0.06)


def of_square(hours: float, idle_power_w: float | None, *, is_paused: bool = False, first: int = 0) -> SlackSchedule:
    ahead = SignalOutlook(SQUARE.durations_s[first:], SQUARE.values[first:])
    curve = SlackCurve.of(A40, idle_power_w=idle_power_w)
    return plan_slack(curve, outlook_until(ahead, hours * HOUR_S), 10 * HOUR_S * TOP_PER_S, is_paused=is_paused)


def test_a_run_that_may_pause_waits_for_cheap_hours() -> None:
    """Ten hours of work with twelve dear hours to come, and then twelve cheap ones."""
    schedule = of_square(24.0, IDLE_W, first=12)
    assert schedule.rates_per_s[:12].tolist() == [0.0] * 12
    assert (schedule.rates_per_s[12:22] >= A40.energy_minimal.iterations_per_s).all()
    assert schedule.uses_slack


def test_a_run_that_may_not_goes_below_the_energy_minimal_limit() -> None:
    schedule = of_square(15.0, None, first=12)
    slowest, least = A40.points[0].iterations_per_s, A40.energy_minimal.iterations_per_s
    assert slowest <= schedule.rates_per_s[:12].max() < least
    assert (schedule.rates_per_s[12:] > least).all()
    assert schedule.uses_slack


def test_pauses_among_like_hours_begin_with_what_is_in_force() -> None:
    """Half of the dear hours are enough: as one pause, and the run goes on first if it is running."""
    running, paused = (of_square(18.0, IDLE_W, is_paused=is_paused, first=12) for is_paused in (False, True))
    assert (running.rate_per_s > 0) & (paused.rate_per_s == 0)
    for schedule in (running, paused):
        is_waiting = schedule.rates_per_s[:12] < 0.01 * TOP_PER_S
        assert np.abs(np.diff(is_waiting.astype(int))).sum() == 1
    assert running.cost == pytest.approx(paused.cost)


def test_after_the_end_nothing_is_drawn() -> None:
    """Two cheap hours, one hour of work: standing still to the end of the outlook would cost more than to be done."""
    ahead = outlook([(HOUR_S, 100.0), (HOUR_S, 99.0)])
    schedule = plan_slack(SlackCurve.of(A40, idle_power_w=IDLE_W), ahead, HOUR_S * TOP_PER_S)
    energy_j = HOUR_S * TOP_PER_S * A40.energy_minimal.iteration_energy_j
    assert schedule.ends_s == pytest.approx(HOUR_S * TOP_PER_S / A40.energy_minimal.iterations_per_s, rel=0.01)
    assert schedule.cost == pytest.approx(100.0 * energy_j, rel=0.01)


def test_at_a_negative_price_it_is_the_highest_limit() -> None:
    ahead = outlook([(HOUR_S, 300.0), (HOUR_S, -50.0), (HOUR_S, -200.0), (HOUR_S, 300.0)])
    schedule = plan_slack(SlackCurve.of(A40, idle_power_w=IDLE_W), ahead, 2 * HOUR_S * TOP_PER_S)
    assert schedule.rates_per_s == pytest.approx([0.0, TOP_PER_S, TOP_PER_S, 0.0])
    assert schedule.cost < 0


@pytest.mark.parametrize(("host_power_w", "waits"), [(0.0, True), (300.0, False)])
def test_host_power_makes_waiting_dear(host_power_w: float, waits: bool) -> None:
    """The machine draws on while its GPU waits: three times the price is worth it alone, six times with 300 W."""
    curve = SlackCurve.of(A40.with_overhead(host_power_w, 1.0), idle_power_w=IDLE_W + host_power_w)
    for factor, expected in ((3.0, waits), (6.0, True)):
        ahead = outlook([(12 * HOUR_S, 100.0 * factor), (12 * HOUR_S, 100.0)])
        assert (plan_slack(curve, ahead, 10 * HOUR_S * TOP_PER_S).rate_per_s == 0) == expected


@given(st.floats(0.0, 1.0), idle_powers_w)
def test_a_budget_is_spent_on_an_early_end(share: float, idle_power_w: float | None) -> None:
    curve, work = SlackCurve.of(A40, idle_power_w=idle_power_w), 18 * HOUR_S * TOP_PER_S
    least = plan_slack(curve, SQUARE, work).cost
    most = plan_slack(curve, outlook_until(SQUARE, 18 * HOUR_S * (1 + 1e-9)), work).cost
    budget = least + share * (most - least)
    took_s, schedule = soonest_within(curve, SQUARE, work, budget)
    assert schedule.cost <= budget * (1 + 1e-9)
    sooner = plan_slack(curve, outlook_until(SQUARE, took_s - 60.0), work)
    assert not sooner.is_feasible or sooner.cost >= budget * (1 - 1e-9)


def test_a_budget_that_is_too_small_takes_all_the_time() -> None:
    curve, work = SlackCurve.of(A40, idle_power_w=IDLE_W), 18 * HOUR_S * TOP_PER_S
    took_s, schedule = soonest_within(curve, SQUARE, work, 1.0)
    assert took_s == 48 * HOUR_S
    assert schedule.cost == plan_slack(curve, SQUARE, work).cost


def test_values_at_unknown_hours_are_no_order_to_end_in() -> None:
    """Cheap values pooled first are not to be had by an end before the dear ones."""
    pooled = outlook([(HOUR_S, 300.0), (12 * HOUR_S, 100.0), (12 * HOUR_S, 600.0)])
    curve, work = SlackCurve.of(A40), 10 * HOUR_S * TOP_PER_S
    unknown = plan_slack(curve, pooled, work, ordered_s=HOUR_S)
    known = plan_slack(curve, pooled, work)
    assert known.ends_s <= 13 * HOUR_S
    assert unknown.cost > 1.2 * known.cost
    assert unknown.rates_per_s[2] > 0
