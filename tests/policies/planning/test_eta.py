"""The objective `eta`: Zeus's cost and Chase's eq. 6, against plain loops over both formulas."""

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from policies.planning import CurrentLimit, EtaObjective, Progress, SwitchingRules
from policies.vocabulary.profile import PowerProfile
from policies.vocabulary.units import DAY_S, HOUR_S
from tests.policies.days import A40, SHAPES, grid, hourly, known_by
from tests.policies.planning.decisions import NOW_S, decided
from tests.policies.vocabulary.test_profile import profiles

RUN = Progress(n_iterations=1_000.0, active_s=1_000.0, started_at_s=15 * DAY_S)


def zeus_limit_w(profile: PowerProfile, eta: float) -> float:
    """Choose by a loop over Zeus's cost of an iteration."""
    top = profile.points[-1]
    costs = {p.power_limit_w: (eta * p.power_w + (1 - eta) * top.power_w) / p.iterations_per_s for p in profile.points}
    return min(costs, key=costs.__getitem__)


def chase_limit_w(profile: PowerProfile, eta: float, now: float, highest: float) -> float:
    """Choose by a loop over Chase's eq. 6."""
    top = profile.points[-1]
    costs = {
        p.power_limit_w: (eta * p.power_w * now + (1 - eta) * top.power_w * highest) / p.iterations_per_s
        for p in profile.points
    }
    return min(costs, key=costs.__getitem__)


@given(profiles(), st.floats(0.0, 1.0))
def test_without_a_signal_it_is_zeus(profile: PowerProfile, eta: float) -> None:
    decision = decided(EtaObjective(eta=eta), so_far=RUN, profile=profile)
    assert decision.power_limit_w == zeus_limit_w(profile, eta)
    assert decision.reason == "eta_static"


@given(profiles(), st.floats(0.0, 1.0), st.lists(st.floats(1.0, 900.0), min_size=30, max_size=30))
def test_with_a_signal_it_is_chase_eq_6(profile: PowerProfile, eta: float, values: list[float]) -> None:
    """The run starts at hour 24, so that c_max is over the first 24 values; the forecast gives c."""
    series = hourly(np.array(values))
    history = series.between(0.0, 26 * HOUR_S)
    decision = decided(
        EtaObjective(eta=eta),
        profile=profile,
        history=history,
        forecast=series.between(26 * HOUR_S, 30 * HOUR_S),
        now_s=27.5 * HOUR_S,
        so_far=Progress(n_iterations=1.0, active_s=1.0, started_at_s=24 * HOUR_S),
    )
    assert decision.power_limit_w == chase_limit_w(profile, eta, values[27], max(values[:24]))
    assert (decision.reason, decision.signal_value) == ("eta_signal", values[27])


@pytest.mark.parametrize("shape", SHAPES)
@pytest.mark.parametrize("eta", [0.1, 0.3, 0.5, 0.7, 0.75, 0.9])
def test_each_hour_is_chosen_by_eq_6(shape: str, eta: float) -> None:
    series = grid(shape)
    highest = float(series.values[14 * 24 : 15 * 24].max())
    for hour in range(15 * 24, 16 * 24):
        now_s = (hour + 0.5) * HOUR_S
        decision = decided(EtaObjective(eta=eta), so_far=RUN, history=known_by(series, now_s), now_s=now_s)
        assert decision.power_limit_w == chase_limit_w(A40, eta, float(series.values[hour]), highest)


def test_chase_changes_its_limit_with_the_hour() -> None:
    series = grid("solar")
    limits_w = {
        decided(
            EtaObjective(eta=0.7), so_far=RUN, history=known_by(series, hour * HOUR_S), now_s=hour * HOUR_S
        ).power_limit_w
        for hour in range(15 * 24, 16 * 24)
    }
    assert limits_w == {200.0, 225.0}


def test_a_constant_signal_is_zeus() -> None:
    for eta in np.linspace(0, 1, 21):
        assert decided(
            EtaObjective(eta=eta), so_far=RUN, history=hourly(np.full(16 * 24, 400.0))
        ).power_limit_w == zeus_limit_w(A40, eta)


def test_without_the_day_before_the_known_maximum_is_used() -> None:
    history = hourly(np.array([300.0, 600.0, 500.0])).between(0.0, 3 * HOUR_S)
    so_far = Progress(n_iterations=1.0, active_s=1.0, started_at_s=0.0)
    decision = decided(EtaObjective(eta=0.7), history=history, now_s=2.5 * HOUR_S, so_far=so_far)
    assert decision.power_limit_w == chase_limit_w(A40, 0.7, 500.0, 600.0)
    assert "known so far" in decision.detail


def test_a_stale_signal_falls_back_to_zeus() -> None:
    history = grid("wind", n_days=15).between(0.0, NOW_S - 3 * HOUR_S)
    decision = decided(EtaObjective(eta=0.7), so_far=RUN, history=history)
    assert decision.power_limit_w == zeus_limit_w(A40, 0.7)
    assert (decision.reason, decision.signal_value) == ("signal_stale", None)


def test_a_negative_price_never_rewards_waste() -> None:
    decision = decided(EtaObjective(eta=1.0), so_far=RUN, history=hourly(np.full(16 * 24, -50.0)))
    assert decision.power_limit_w == A40.fastest.power_limit_w


@pytest.mark.parametrize("eta", [-0.1, 1.1, float("nan")])
def test_an_eta_outside_0_to_1_is_rejected(eta: float) -> None:
    with pytest.raises(ValueError, match="must be from 0"):
        EtaObjective(eta=eta)


def test_a_limit_stays_for_its_dwell_time() -> None:
    rules = SwitchingRules(period_s=300.0, min_dwell_s=900.0, min_gain_ratio=0.0)
    early, late = (
        decided(
            EtaObjective(eta=0.5),
            so_far=RUN,
            rules=rules,
            current=CurrentLimit(power_limit_w=300.0, since_s=NOW_S - since_s),
        )
        for since_s in (899.0, 900.0)
    )
    assert (early.power_limit_w, early.reason) == (300.0, "kept_dwell")
    assert (late.power_limit_w, late.reason) == (zeus_limit_w(A40, 0.5), "eta_static")


def test_a_small_gain_changes_nothing() -> None:
    rules = SwitchingRules(period_s=300.0, min_dwell_s=0.0, min_gain_ratio=0.005)
    current = CurrentLimit(power_limit_w=200.0, since_s=0.0)
    kept = decided(EtaObjective(eta=0.56), so_far=RUN, rules=rules, current=current)
    assert zeus_limit_w(A40, 0.56) == 225.0
    assert (kept.power_limit_w, kept.reason) == (200.0, "kept_small_gain")
    assert decided(EtaObjective(eta=0.3), so_far=RUN, rules=rules, current=current).power_limit_w == 225.0


def test_an_unmeasured_limit_is_not_kept() -> None:
    rules = SwitchingRules(period_s=300.0, min_dwell_s=1e6, min_gain_ratio=0.5)
    decision = decided(
        EtaObjective(eta=0.5), so_far=RUN, rules=rules, current=CurrentLimit(power_limit_w=290.0, since_s=NOW_S)
    )
    assert decision.power_limit_w == zeus_limit_w(A40, 0.5)


@given(profiles(), st.floats(0.0, 1.0))
def test_with_the_papers_max_power_it_is_zeus_ml(profile: PowerProfile, eta: float) -> None:
    """Their selector takes the highest limit for MaxPower, not what is drawn there."""
    zeus = pytest.importorskip("zeus.optimizer.power_limit", reason="pip install zeus-ml")
    measurements = [
        zeus.PowerLimitMeasurement(
            power_limit=int(p.power_limit_w), energy=p.power_w / p.iterations_per_s, time=1 / p.iterations_per_s
        )
        for p in profile.points
    ]
    objective = EtaObjective(eta=eta, max_power_w=profile.fastest.power_limit_w)
    ours = decided(objective, profile=profile)
    theirs = profile.point_at(float(zeus.ZeusCost(eta_knob=eta).select(measurements)))
    assert theirs is not None
    costs = [
        (eta * p.power_w + (1 - eta) * profile.fastest.power_limit_w) / p.iterations_per_s
        for p in (theirs, profile.point_at(ours.power_limit_w) or theirs)
    ]
    assert costs[1] == pytest.approx(costs[0], rel=1e-12)


def test_a_max_power_of_zero_is_rejected() -> None:
    with pytest.raises(ValueError, match="must be above 0 W"):
        EtaObjective(eta=0.5, max_power_w=0.0)
