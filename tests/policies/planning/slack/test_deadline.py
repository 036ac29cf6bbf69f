"""A run with a deadline: its slack is used where hours differ, and the deadline is kept."""

import tracemalloc
from dataclasses import dataclass, replace
from itertools import pairwise

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from policies.planning import (
    CurrentLimit,
    DeadlineObjective,
    Decision,
    Progress,
    SlackOptions,
    SwitchingRules,
    choose_power_limit,
)
from policies.vocabulary.power_curve import fit_curve
from policies.vocabulary.profile import PowerProfile
from policies.vocabulary.signal import ESTIMATED, Signal
from policies.vocabulary.units import DAY_S, HOUR_S
from tests.policies.days import A40, hourly, integral

TOP_PER_S = A40.fastest.iterations_per_s
LEAST_PER_S = A40.energy_minimal.iterations_per_s
RULES = SwitchingRules(period_s=600.0, min_dwell_s=60.0, min_gain_ratio=0.001)
STARTED_S = 2 * DAY_S
MAY_PAUSE = SlackOptions(idle_power_w=40.0, max_pause_s=12 * HOUR_S)
SQUARE = np.tile(np.repeat([100.0, 600.0], 12), 8)
"""Clean from midnight to noon."""
AT_NOON_S = STARTED_S + 12 * HOUR_S


@dataclass(slots=True, kw_only=True)
class Lived:
    """What a run did."""

    now_s: float = STARTED_S
    done: float = 0.0
    active_s: float = 0.0
    paused_s: float = 0.0
    cost: float = 0.0
    pauses: list[tuple[float, float]]
    limits_w: set[float]


def decided(
    signal: Signal,
    now_s: float,
    *,
    hours: float,
    work_h: float,
    slack: SlackOptions | None,
    lived: Lived | None = None,
    current: CurrentLimit | None = None,
    settled_s: float = 2 * DAY_S,
    profile: PowerProfile = A40,
) -> Decision:
    """Return the decision at a time for a run with a deadline so many hours after its start."""
    lived = lived or Lived(now_s=now_s, active_s=now_s - STARTED_S, pauses=[], limits_w=set())
    return choose_power_limit(
        profile=profile,
        objective=DeadlineObjective(deadline_s=STARTED_S + hours * HOUR_S),
        rules=RULES,
        history=signal.between(-np.inf, now_s + 900.0),
        forecast=signal.between(now_s + 900.0, now_s + settled_s),
        now_s=now_s,
        progress=Progress(
            n_iterations=lived.done,
            active_s=lived.active_s,
            started_at_s=STARTED_S,
            total_iterations=work_h * HOUR_S * TOP_PER_S,
            asked_pause_s=lived.paused_s,
        ),
        current=current,
        slack=slack,
    )


def lived_through(signal: Signal, *, hours: float, work_h: float, slack: SlackOptions | None) -> Lived:
    """Return a run that does what each decision says, to its end; it is paused while the decision says so."""
    lived, current, work = Lived(pauses=[], limits_w=set()), None, work_h * HOUR_S * TOP_PER_S
    while lived.done < work * (1 - 1e-9):
        now_s, paused_for_s = lived.now_s, None
        if lived.pauses and lived.pauses[-1][1] == now_s:
            paused_for_s = now_s - lived.pauses[-1][0]
        options = replace(slack, paused_for_s=paused_for_s) if slack else None
        decision = decided(signal, now_s, hours=hours, work_h=work_h, slack=options, lived=lived, current=current)
        for kind, until_s in _parts(decision, now_s + RULES.period_s):
            if isinstance(kind, str):
                _wait(lived, signal, until_s, idle_power_w=(slack and slack.idle_power_w) or 0.0)
                continue
            if current is None or current.power_limit_w != kind:
                current = CurrentLimit(power_limit_w=kind, since_s=lived.now_s)
            power_w, rate_per_s = A40.at(kind)
            ends_s = lived.now_s + min(until_s - lived.now_s, (work - lived.done) / rate_per_s)
            lived.limits_w.add(kind)
            lived.cost += power_w * integral(signal, lived.now_s, ends_s)
            lived.done += rate_per_s * (ends_s - lived.now_s)
            lived.active_s += ends_s - lived.now_s
            lived.now_s = ends_s
    return lived


def _wait(lived: Lived, signal: Signal, until_s: float, *, idle_power_w: float) -> None:
    if lived.pauses and lived.pauses[-1][1] == lived.now_s:
        lived.pauses[-1] = lived.pauses[-1][0], until_s
    else:
        lived.pauses.append((lived.now_s, until_s))
    lived.cost += idle_power_w * integral(signal, lived.now_s, until_s)
    lived.paused_s += until_s - lived.now_s
    lived.now_s = until_s


def _parts(decision: Decision, until_s: float) -> list[tuple[float | str, float]]:
    """Return the limits of a period, or that it waits, each with the time until which that holds."""
    pause, limit_w = decision.pause, decision.power_limit_w
    if pause is not None:
        parts: list[tuple[float | str, float]] = [(limit_w, pause.from_s), ("wait", pause.until_s), (limit_w, until_s)]
        return [
            part for part, (begins_s, ends_s) in zip(parts, _spans(decision, until_s), strict=True) if ends_s > begins_s
        ]
    if decision.scheduled is None:
        return [(limit_w, until_s)]
    return [(limit_w, decision.scheduled.from_s), (decision.scheduled.power_limit_w, until_s)]


def _spans(decision: Decision, until_s: float) -> list[tuple[float, float]]:
    assert decision.pause is not None
    begins_s = until_s - RULES.period_s
    return list(pairwise((begins_s, decision.pause.from_s, decision.pause.until_s, until_s)))


def test_a_run_waits_for_clean_hours_saves_by_it_and_is_done_in_time() -> None:
    signal = hourly(SQUARE)
    static, slow, paused = (
        lived_through(signal, hours=36.0, work_h=20.0, slack=slack)
        for slack in (None, replace(MAY_PAUSE, idle_power_w=None), MAY_PAUSE)
    )
    assert static.cost > slow.cost > 1.5 * paused.cost
    assert max(run.now_s for run in (static, slow, paused)) <= STARTED_S + 36 * HOUR_S
    ((begins_s, ends_s),) = paused.pauses
    assert begins_s == pytest.approx(AT_NOON_S, abs=HOUR_S)
    assert ends_s - begins_s > 6 * HOUR_S
    assert static.pauses == slow.pauses == []
    assert min(slow.limits_w) < A40.energy_minimal.power_limit_w <= min(static.limits_w)


def test_no_pause_is_longer_than_the_training_lets_it() -> None:
    slack = replace(MAY_PAUSE, max_pause_s=2 * HOUR_S)
    lived = lived_through(hourly(SQUARE), hours=36.0, work_h=20.0, slack=slack)
    assert len(lived.pauses) > 2
    assert max(ends_s - begins_s for begins_s, ends_s in lived.pauses) <= 2 * HOUR_S
    assert min(later - earlier for (_, earlier), (later, _) in pairwise(lived.pauses)) >= RULES.period_s


def test_a_training_that_lets_only_short_pauses_be_is_not_paused() -> None:
    slack = replace(MAY_PAUSE, max_pause_s=300.0)
    assert lived_through(hourly(SQUARE), hours=36.0, work_h=20.0, slack=slack).pauses == []


def test_it_says_until_when_and_why() -> None:
    decision = decided(hourly(SQUARE), AT_NOON_S, hours=48.0, work_h=8.0, slack=MAY_PAUSE)
    assert decision.reason == "paused_in_bad_hours"
    assert decision.pause is not None
    assert (decision.pause.from_s, decision.pause.ends_s) == (AT_NOON_S, AT_NOON_S + 12 * HOUR_S)
    assert decision.detail.startswith("600 g/kWh now, 100 to 600 later, ")
    assert decision.detail.endswith("8 h 00 min of work at full speed are left, and 36 h 00 min until the deadline")
    slow = decided(hourly(SQUARE), AT_NOON_S, hours=48.0, work_h=18.0, slack=replace(MAY_PAUSE, idle_power_w=None))
    assert (slow.reason, slow.pause) == ("slow_in_bad_hours", None)
    assert slow.power_limit_w < A40.energy_minimal.power_limit_w


def test_nothing_waits_on_an_estimate_or_without_a_signal() -> None:
    signal = hourly(SQUARE)
    held = replace(signal, estimated=ESTIMATED)
    gone = signal.between(-np.inf, AT_NOON_S - HOUR_S)
    for known in (held, gone):
        decision = decided(known, AT_NOON_S, hours=48.0, work_h=8.0, slack=MAY_PAUSE)
        assert decision.pause is None
        assert decision.iterations_per_s >= LEAST_PER_S


def test_a_pause_outlasts_the_minutes_until_the_next_value_comes() -> None:
    held = replace(hourly(SQUARE), estimated=ESTIMATED)
    slack = replace(MAY_PAUSE, paused_for_s=HOUR_S, rms_errors=np.full(24, 50.0))
    assert decided(held, AT_NOON_S + HOUR_S, hours=48.0, work_h=8.0, slack=slack).pause is not None


def test_a_forecast_counts_as_far_as_its_errors_are_known() -> None:
    known = hourly(SQUARE)
    is_ahead = known.starts_s > AT_NOON_S
    forecast = replace(known, estimated=is_ahead)
    for errors, is_paused in ((None, False), (np.full(24, 50.0), True), (np.full(24, 2_000.0), False)):
        slack = replace(MAY_PAUSE, rms_errors=errors)
        decision = decided(forecast, AT_NOON_S, hours=48.0, work_h=8.0, slack=slack)
        assert (decision.pause is not None) == is_paused


def test_asked_pauses_take_nothing_from_the_time_that_is_left() -> None:
    """After 12 hours of waiting there is as much time for the rest as if it had not run at all."""
    waited = Lived(now_s=AT_NOON_S, active_s=0.0, paused_s=12 * HOUR_S, pauses=[], limits_w=set())
    flat = hourly(np.full(24 * 8, 300.0))
    decision = decided(flat, AT_NOON_S, hours=24.0, work_h=10.0, slack=MAY_PAUSE, lived=waited)
    assert decision.iterations_per_s < TOP_PER_S
    assert decision.reason == "deadline_static"


@pytest.mark.parametrize(("days", "work_h"), [(2, 14.0), (14, 30.0)])
def test_values_of_five_minutes_take_little_memory_and_so_little_time(days: int, work_h: float) -> None:
    """The controller plans between two messages: with each value, end and point of the curve it took seconds."""
    step_s = 300.0
    values = 300.0 + 200.0 * np.sin(np.arange(20 * DAY_S / step_s) / 40)
    starts_s = np.arange(len(values), dtype=np.float64) * step_s
    signal = replace(hourly(values), starts_s=starts_s, ends_s=step_s * len(values))
    slack = replace(MAY_PAUSE, rms_errors=np.full(96, 5.0))
    curve = fit_curve(A40, step_w=1.0)
    tracemalloc.start()
    decision = decided(
        signal, AT_NOON_S, hours=24.0 * days, work_h=work_h, slack=slack, settled_s=4 * DAY_S, profile=curve
    )
    used_bytes = tracemalloc.get_traced_memory()[1]
    tracemalloc.stop()
    assert decision.reason in {"paused_in_bad_hours", "slow_in_bad_hours", "deadline_signal"}
    assert used_bytes < 50e6


@settings(max_examples=40, deadline=None)
@given(
    st.lists(st.floats(-100.0, 900.0), min_size=48, max_size=48),
    st.floats(1.001, 3.0),
    st.floats(2.0, 12.0),
    st.none() | st.floats(5.0, 100.0),
    st.floats(1_000.0, 40_000.0),
)
def test_the_deadline_is_kept_whatever_the_signal(
    values: list[float], factor: float, work_h: float, idle_power_w: float | None, max_pause_s: float
) -> None:
    signal, hours = hourly(np.tile(values, 4)), factor * work_h
    slack = SlackOptions(idle_power_w=idle_power_w, max_pause_s=max_pause_s)
    lived = lived_through(signal, hours=hours, work_h=work_h, slack=slack)
    assert lived.now_s <= STARTED_S + hours * HOUR_S + 1e-6 * HOUR_S
