"""What a run with slack does now: pauses that pay, and only as far as the forecast can be relied on."""

from dataclasses import replace

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from policies.planning.signal_outlook import SignalOutlook
from policies.planning.slack.plan import SlackPlan, SlackRules, known_ahead_s, pessimistic_outlook, plan_with_slack
from policies.vocabulary.profile import PowerProfile
from policies.vocabulary.units import DAY_S, HOUR_S
from tests.policies.days import A40, hourly
from tests.policies.vocabulary.test_profile import profiles

TOP_PER_S = A40.fastest.iterations_per_s
LEAST_PER_S = A40.energy_minimal.iterations_per_s
KNOWN = SlackRules(idle_power_w=25.0, known_s=DAY_S)
WORK = 8 * HOUR_S * TOP_PER_S


def then(now: float, later: float, *, hours: int = 12) -> SignalOutlook:
    """Return a signal of some hours at a value, and as many at another."""
    return SignalOutlook(np.full(2 * hours, HOUR_S), np.repeat([now, later], hours))


def planned(outlook: SignalOutlook, rules: SlackRules, *, is_paused: bool = False) -> SlackPlan:
    return plan_with_slack(A40, outlook, WORK, rules, is_paused=is_paused)


def test_a_known_price_needs_no_guard() -> None:
    plan = planned(then(300.0, 200.0), KNOWN)
    assert (plan.rate_per_s, plan.use) == (0.0, "paused")
    assert plan.hull.begins_with_pause


@pytest.mark.parametrize(("error", "use"), [(20.0, "paused"), (150.0, "uncertain")])
def test_a_forecast_is_relied_on_as_far_as_its_errors_allow(error: float, use: str) -> None:
    plan = planned(then(300.0, 200.0), replace(KNOWN, known_s=HOUR_S, rms_errors=np.full(24, error)))
    assert plan.use == use
    assert plan.rate_per_s == (LEAST_PER_S if use == "uncertain" else 0.0)


def test_without_known_errors_no_forecast_is_relied_on() -> None:
    plan = planned(then(300.0, 200.0), replace(KNOWN, known_s=HOUR_S))
    assert (plan.rate_per_s, plan.use) == (LEAST_PER_S, "uncertain")
    assert not plan.hull.begins_with_pause


def test_known_hours_are_relied_on_without_known_errors() -> None:
    """Prices are known for the next day, and the work fits into their cheap hours; for the day after they are not."""
    outlook = SignalOutlook(np.full(48, HOUR_S), np.repeat([300.0, 200.0, 250.0], [12, 12, 24]))
    assert planned(outlook, replace(KNOWN, known_s=DAY_S)).use == "paused"
    assert planned(outlook, replace(KNOWN, known_s=12 * HOUR_S)).use == "uncertain"


def test_a_run_that_may_not_pause_is_slow() -> None:
    outlook = SignalOutlook(np.full(12, HOUR_S), np.array([600.0] * 2 + [100.0] * 10))
    plan = planned(outlook, replace(KNOWN, idle_power_w=None))
    assert A40.points[0].iterations_per_s <= plan.rate_per_s < LEAST_PER_S
    assert plan.use == "slow"


def test_restarts_count() -> None:
    """Each dear hour would be a pause of its own: too little is saved to restart as often."""
    values = np.tile([140.0, 100.0], 12)
    outlook = SignalOutlook(np.full(24, HOUR_S), values)
    free, dear = (planned(outlook, replace(KNOWN, restart_s=restart_s)) for restart_s in (0.0, 600.0))
    assert (free.rate_per_s < LEAST_PER_S, free.use) == (True, "paused")
    assert dear.use == "none"
    assert dear.rate_per_s == pytest.approx(LEAST_PER_S)


def test_a_run_that_is_late_takes_the_highest_limit() -> None:
    plan = plan_with_slack(A40, then(300.0, 200.0, hours=2), WORK, KNOWN)
    assert (plan.rate_per_s, plan.use) == (TOP_PER_S, "late")


@given(
    profiles(),
    st.lists(st.floats(-200.0, 900.0), min_size=1, max_size=12),
    st.floats(0.05, 1.0),
    st.none() | st.floats(5.0, 100.0),
    st.floats(0.0, 200.0),
    st.booleans(),
)
def test_the_guard_never_slows_a_run(
    profile: PowerProfile,
    values: list[float],
    share: float,
    idle_power_w: float | None,
    error: float,
    is_paused: bool,
) -> None:
    outlook = SignalOutlook(np.full(len(values), HOUR_S), np.array(values))
    work = share * len(values) * HOUR_S * float(profile.iterations_per_s.max())
    certain = SlackRules(idle_power_w=idle_power_w, known_s=HOUR_S * len(values))
    guarded = replace(certain, known_s=0.0, rms_errors=np.full(24, error))
    free, safe = (plan_with_slack(profile, outlook, work, rules, is_paused=is_paused) for rules in (certain, guarded))
    assert safe.rate_per_s >= free.rate_per_s
    assert safe.rate_per_s <= float(profile.iterations_per_s.max()) * (1 + 1e-9)
    if safe.rate_per_s > free.rate_per_s:
        assert safe.use == "uncertain"
        assert safe.rate_per_s == profile.energy_minimal.iterations_per_s


def test_later_hours_are_dearer_by_the_error_of_their_lead() -> None:
    outlook = SignalOutlook(np.array([HOUR_S / 2, HOUR_S, HOUR_S, 30 * HOUR_S]), np.array([5.0, 5.0, -5.0, 5.0]))
    errors = np.arange(1.0, 25.0)
    assert pessimistic_outlook(outlook, errors, known_s=0.0).values == pytest.approx([5.0, 6.5, -2.5, 23.0])
    dearer = pessimistic_outlook(outlook, errors, known_s=1.5 * HOUR_S, n_errors=2.0)
    assert dearer.values == pytest.approx([5.0, 5.0, 0.0, 41.0])


def test_a_signal_is_known_ahead_up_to_a_gap_or_an_estimate() -> None:
    prices = hourly(np.array([5.0, 6.0, 7.0, np.nan, 9.0]))
    assert known_ahead_s(prices, 1.5 * HOUR_S) == 1.5 * HOUR_S
    assert known_ahead_s(prices, 3.5 * HOUR_S) == 0.0
    assert known_ahead_s(prices, 4.5 * HOUR_S) == 0.5 * HOUR_S
    assert known_ahead_s(prices, 9.0 * HOUR_S) == known_ahead_s(None, 0.0) == 0.0
    estimated = replace(prices, estimated=np.array([False, False, True, False, False]))
    assert known_ahead_s(estimated, 0.5 * HOUR_S) == 1.5 * HOUR_S
    assert known_ahead_s(estimated, 2.5 * HOUR_S) == 0.0
