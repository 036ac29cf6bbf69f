"""Replayed runs: what a policy is told, what it pays, and where a run ends."""

from collections.abc import Sequence

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from policies.replay.power_limit.scenario import run_starts_s
from policies.replay.power_limit.simulation import Policy, PolicyInput, Setpoint, replay_run, replay_schedule
from policies.vocabulary.units import DAY_S, HOUR_S
from tests.policies.days import A40
from tests.policies.replay.power_limit.scenarios import REAL, SIMPLE, real_spec, scenario, spec


def always(*limits_w: float) -> Policy:
    """Return a policy that gives each limit the same share of a period."""

    def held(inputs: PolicyInput) -> list[Setpoint]:
        share_s = inputs.period_s / len(limits_w)
        return [Setpoint(power_limit_w=w, until_s=inputs.now_s + share_s * (n + 1)) for n, w in enumerate(limits_w)]

    return held


def test_a_run_at_the_highest_limit_takes_its_time_and_its_power() -> None:
    run = replay_run(scenario([100.0, 300.0, 500.0]), always(300.0), spec(2.5))
    assert run.duration_s == pytest.approx(2.5 * HOUR_S)
    assert run.energy_j == pytest.approx(110 * 2.5 * HOUR_S)
    assert run.spent == pytest.approx(0.110 * (100 + 300 + 0.5 * 500))


def test_the_last_period_ends_with_the_work() -> None:
    run = replay_run(scenario([100.0] * 9), always(200.0), spec(3.0))
    assert run.duration_s == pytest.approx(3 * HOUR_S / 0.9)
    assert run.energy_j == pytest.approx(90 * run.duration_s)
    assert run.spent == pytest.approx(0.1 * run.energy_j / 3_600)


def test_two_limits_share_a_period_in_order() -> None:
    run = replay_run(scenario([100.0] * 5), always(300.0, 100.0), spec(1.5))
    assert run.limits_w.tolist() == [300, 100, 300, 100]
    assert np.diff(run.edges_s).tolist() == pytest.approx([1_800] * 4)
    assert run.duration_s == pytest.approx(2 * HOUR_S)  # 0.75 of the work an hour


def test_the_last_limit_holds_to_the_end_of_the_period() -> None:
    def brief(inputs: PolicyInput) -> list[Setpoint]:
        return [Setpoint(power_limit_w=200.0, until_s=inputs.now_s + 1)]

    asked: list[float] = []

    def recording_policy(inputs: PolicyInput) -> Sequence[Setpoint]:
        asked.append(inputs.now_s)
        return brief(inputs)

    replay_run(scenario([100.0] * 5), recording_policy, spec(2.0))
    assert asked == [0, HOUR_S, 2 * HOUR_S]


def test_a_policy_gets_the_past_signal_and_its_progress() -> None:
    moments: list[PolicyInput] = []

    def recording_policy(inputs: PolicyInput) -> Sequence[Setpoint]:
        moments.append(inputs)
        return [Setpoint(power_limit_w=200.0 if len(moments) % 2 else 300.0)]

    run = replay_run(scenario([100.0, 300.0, np.nan, 500.0, 100.0, 900.0]), recording_policy, spec(4.0, start_s=HOUR_S))
    assert [inputs.history.ends_s for inputs in moments] == [n * HOUR_S for n in range(1, 6)]
    assert [len(inputs.history) for inputs in moments] == [1, 2, 3, 4, 5]
    assert np.isnan(moments[2].history.values[2])
    assert [inputs.progress.n_iterations for inputs in moments] == pytest.approx(
        [HOUR_S * done for done in (0, 0.9, 1.9, 2.8, 3.8)]
    )
    assert [inputs.progress.active_s for inputs in moments] == [n * HOUR_S for n in range(5)]
    assert {inputs.progress.total_iterations for inputs in moments} == {4 * HOUR_S}
    spent = [inputs.progress.spent for inputs in moments]
    assert spent[:3] == pytest.approx([0, 27, 27 + 44])  # the gap lies half way between 300 and 500
    assert run.spent > (spent[-1] or 0)
    assert moments[0].present is None
    present = moments[2].present
    assert present is not None
    assert (present.power_limit_w, present.since_s) == (300, 2 * HOUR_S)


def test_a_limit_is_in_force_since_its_first_request() -> None:
    since_s: list[float | None] = []

    def recording_policy(inputs: PolicyInput) -> Sequence[Setpoint]:
        since_s.append(None if inputs.present is None else inputs.present.since_s)
        return [Setpoint(power_limit_w=200.0)]

    replay_run(scenario([100.0] * 5), recording_policy, spec(2.5))
    assert since_s == [None, 0, 0]


@given(st.lists(st.sampled_from([100.0, 200.0, 300.0]), min_size=30, max_size=30), st.floats(0.2, 12.0))
def test_a_schedule_equals_the_same_decisions_by_period(limits_w: list[float], hours: float) -> None:
    truth = scenario(list(np.linspace(-50.0, 500.0, 40)))

    def recording_policy(inputs: PolicyInput) -> Sequence[Setpoint]:
        return [Setpoint(power_limit_w=limits_w[round(inputs.now_s / HOUR_S)])]

    asked = replay_run(truth, recording_policy, spec(hours))
    indices = np.array([truth.index_of(limit_w) for limit_w in limits_w])
    whole = replay_schedule(truth, HOUR_S * np.arange(31.0), indices, spec(hours))
    assert (whole.spent, whole.energy_j, whole.duration_s) == pytest.approx(
        (asked.spent, asked.energy_j, asked.duration_s)
    )
    rates_per_s = truth.iterations_per_s[indices[: len(whole.limits_w)]]
    assert float(rates_per_s @ np.diff(whole.edges_s)) == pytest.approx(hours * HOUR_S)


def test_unmeasured_limits_are_refused() -> None:
    with pytest.raises(ValueError, match="250 W: was not measured; measured limits: 100, 200, 300 W"):
        replay_run(scenario([100.0] * 3), always(250.0), spec(1.0))


def test_a_run_beyond_the_signal_is_refused() -> None:
    with pytest.raises(ValueError, match="the signal ends at 7200 s"):
        replay_run(scenario([100.0, 100.0]), always(100.0), spec(2.0))
    with pytest.raises(ValueError, match=r"50\.0% of the work"):
        replay_schedule(scenario([100.0]), np.array([0.0, HOUR_S]), np.array([2]), spec(2.0))


def test_scaling_signal_or_power_scales_the_cost() -> None:
    run = replay_run(REAL, always(225.0, 200.0), real_spec())
    assert run.spent == pytest.approx(
        float(REAL.signal.mean(run.edges_s[0], run.edges_s[-1]) or 0) * run.energy_j / 3.6e6, rel=0.02
    )
    assert run.energy_j == pytest.approx((196.41 + 177.58) / 2 * run.duration_s, rel=1e-2)


@pytest.mark.parametrize(("n_starts", "hours"), [(1, 24), (2, 24), (20, 48)])
def test_starts_are_even_on_whole_periods_with_history_and_signal(n_starts: int, hours: float) -> None:
    starts_s = run_starts_s(
        REAL, n_starts=n_starts, history_s=14 * DAY_S, longest_s=hours * HOUR_S * 1.1, period_s=1_800.0
    )
    assert len(starts_s) == n_starts
    assert starts_s[0] == 14 * DAY_S
    assert starts_s[-1] + hours * HOUR_S * 1.1 <= REAL.signal.ends_s
    assert all(start_s % 1_800 == 0 for start_s in starts_s)
    if n_starts > 2:
        assert np.diff(starts_s).max() - np.diff(starts_s).min() <= 1_800


def test_a_short_signal_leaves_less_history() -> None:
    starts_s = run_starts_s(REAL, n_starts=3, history_s=14 * DAY_S, longest_s=17 * DAY_S, period_s=HOUR_S)
    assert starts_s == [DAY_S] * 3
    with pytest.raises(ValueError, match=r"spans 18.0 days: must be at least 19.0"):
        run_starts_s(REAL, n_starts=3, history_s=0.0, longest_s=19 * DAY_S, period_s=HOUR_S)


def test_the_curve_is_taken_as_measured() -> None:
    assert SIMPLE.points[1].power_w == scenario([1.0]).power_w[1] == 90
    assert REAL.iterations_per_s.tolist() == A40.iterations_per_s.tolist()
