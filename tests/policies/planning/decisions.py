"""Decisions with few arguments, shared by the tests of the objectives."""

from typing import Final

import numpy as np

from policies.planning import (
    CurrentLimit,
    Decision,
    Objective,
    Progress,
    SlowdownObjective,
    SwitchingRules,
    choose_power_limit,
)
from policies.vocabulary.freshness import CurrentSignal as Known
from policies.vocabulary.freshness import assess_signal
from policies.vocabulary.profile import PowerProfile
from policies.vocabulary.signal import Signal
from policies.vocabulary.units import DAY_S, HOUR_S
from tests.policies.days import A40

FREE: Final = SwitchingRules(period_s=300.0, min_dwell_s=0.0, min_gain_ratio=0.0)
NOW_S: Final = 15.5 * DAY_S
TOP_PER_S: Final = A40.fastest.iterations_per_s


def decided(
    objective: Objective | float = 1.03,
    *,
    history: Signal | None = None,
    forecast: Signal | None = None,
    profile: PowerProfile = A40,
    rules: SwitchingRules = FREE,
    so_far: Progress | None = None,
    current: CurrentLimit | None = None,
    now_s: float = NOW_S,
) -> Decision:
    """Return the decision for a run that has just begun, unless `so_far` differs; a number is a maximum slowdown."""
    return choose_power_limit(
        profile=profile,
        objective=SlowdownObjective(max_slowdown=objective) if isinstance(objective, float) else objective,
        rules=rules,
        history=history,
        forecast=forecast,
        now_s=now_s,
        progress=so_far or Progress(n_iterations=0.0, active_s=0.0, started_at_s=now_s),
        current=current,
    )


def progress(credit_s: float = 0.0, *, max_slowdown: float = 1.03, hours: float = 5.0) -> Progress:
    """Return a run of unknown length with a time budget of so many seconds."""
    active_s = hours * HOUR_S
    return Progress(
        n_iterations=(active_s + credit_s) / max_slowdown * TOP_PER_S, active_s=active_s, started_at_s=NOW_S - active_s
    )


def means(decision: Decision, *, period_s: float = FREE.period_s, now_s: float = NOW_S) -> tuple[float, float]:
    """Return the mean (power [W], rate [1/s]) over the period of a decision."""
    if decision.scheduled is None:
        return decision.power_w, decision.iterations_per_s
    share = (decision.scheduled.from_s - now_s) / period_s
    return (
        share * decision.power_w + (1 - share) * decision.scheduled.power_w,
        share * decision.iterations_per_s + (1 - share) * decision.scheduled.iterations_per_s,
    )


def ahead(values: list[float], *, now_s: float = NOW_S, step_s: float = 3_600.0, source: str = "provider") -> Signal:
    """Return a forecast from now on."""
    return Signal(
        kind="average",
        zone="TEST",
        source=source,
        unit="g/kWh",
        starts_s=now_s + step_s * np.arange(len(values), dtype=np.float64),
        values=np.array(values),
        ends_s=now_s + step_s * len(values),
        issued_at_s=now_s,
    )


def judged(at_s: float, forecast: Signal, *, value: float = 100.0) -> Known:
    """Return what is known at a time after `NOW_S`: 300 in each hour before it, and a value in the hour after."""
    known = ahead([300.0] * (14 * 24) + [value], now_s=NOW_S - 14 * DAY_S, source="api")
    return assess_signal(known, forecast, now_s=NOW_S + at_s, max_age_s=2 * HOUR_S, lasting_s=900.0)
