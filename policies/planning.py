"""Which power limit a job should have now: the plan, by one of two objectives.

`EtaObjective` is Zeus's cost and, with a signal, Chase's eq. 6 to the letter. `SlowdownObjective` keeps a run within a
budget of time at the least Σ c·P: it gives time a price λ, such that the limits that minimise (c·P + λ)/r are, over the
reference days, just as fast as the budget asks, and applies that price to the signal now. A ledger of the time saved
and lost so far keeps the promise for a run that may end at any moment: slower than the budget is only what the ledger
can pay. What the world lacks (a signal, a fresh one, a day of history) is a reason in the decision, not an error.
"""

from dataclasses import dataclass
from typing import Final, assert_never

import numpy as np
from numpy.typing import NDArray

from policies.cost import chase_cost, time_price, time_priced_cost, zeus_cost
from policies.profile import PowerProfile, ProfilePoint
from policies.signal import Signal

DAY_S: Final = 86_400.0
MAX_REFERENCE_DAYS: Final = 14
"""Older days say little about the next one."""
SPAN_TOLERANCE_S: Final = 3_600.0
"""Providers that give the last 24 h give 24 values, the first of which began up to an hour later."""
MIN_KNOWN_RATIO: Final = 0.8
"""A reference with more than a fifth of its time missing is none."""
REPAY_S: Final = 12 * 3_600.0
"""Lost time is paid back over half a day: on measured curves one limit above the budget's does that; near full speed
an hour of it costs seven times as much carbon."""
SPEND_S: Final = 12 * 3_600.0
"""Saved time is spent over half a day, because nobody knows how long the run will last."""
RESERVE_RATIO: Final = 0.05
"""The share of the allowed slowdown that is kept back for the errors of the measured rates."""


@dataclass(frozen=True, slots=True, kw_only=True)
class SlowdownObjective:
    """Take at most `max_slowdown` times as long as at the prior limit (1.03 is 3 % slower), at the least Σ c·P."""

    max_slowdown: float


@dataclass(frozen=True, slots=True, kw_only=True)
class EtaObjective:
    """Weigh carbon (or energy) by `eta` and time by 1 - eta, as Zeus and Chase do."""

    eta: float


Objective = SlowdownObjective | EtaObjective


@dataclass(frozen=True, slots=True, kw_only=True)
class Rules:
    """How often the plan is made [s], how long a limit stands at least [s], and what share a change must save."""

    period_s: float
    min_dwell_s: float
    min_gain_ratio: float


@dataclass(frozen=True, slots=True, kw_only=True)
class Progress:
    """The run so far, its profiling included: iterations, the time in which they ran [s], and its start [Unix s]."""

    n_iterations: float
    active_s: float
    started_at_s: float


@dataclass(frozen=True, slots=True, kw_only=True)
class Present:
    """The limit that we ask for now [W], and since when [Unix s]."""

    power_limit_w: float
    since_s: float


@dataclass(frozen=True, slots=True, kw_only=True)
class Decision:
    """A limit and why.

    Attributes:
        power_limit_w: the limit to ask for, one of the profile's [W].
        reason: a stable code.
        detail: a sentence with the numbers that were used.
        power_w: what the profile expects at it [W].
        iterations_per_s: the rate that it expects [1/s].
        signal_value: the signal now, or None where there is none.
    """

    power_limit_w: float
    reason: str
    detail: str
    power_w: float
    iterations_per_s: float
    signal_value: float | None


@dataclass(frozen=True, slots=True, kw_only=True)
class _Wish:
    """What a plan would choose: the least cost among the limits that it allows."""

    allowed: PowerProfile
    costs: NDArray[np.float64]
    reason: str
    detail: str


@dataclass(frozen=True, slots=True, kw_only=True)
class _Budget:
    """The ledger of the slowdown objective: time allowed for the iterations so far, less time taken [s]."""

    max_slowdown: float
    reference_per_s: float
    credit_s: float

    @property
    def rate_per_s(self) -> float:
        """Return the rate that keeps the ledger as it is [1/s]."""
        return self.reference_per_s / self.max_slowdown

    @property
    def needed_per_s(self) -> float:
        """Return the mean rate that settles the ledger within its time, at most the highest [1/s]."""
        ratio = 1 - self.credit_s / (REPAY_S if self.credit_s < 0 else SPEND_S)
        return min(self.rate_per_s * ratio, self.reference_per_s)

    def pays(self, point: ProfilePoint, period_s: float) -> bool:
        """Return whether the ledger stands a period at this rate: rates of the budget and above always."""
        change_s = (point.iterations_per_s / self.rate_per_s - 1) * period_s
        return change_s >= 0 or self.credit_s + change_s >= 0


def choose_power_limit(
    *,
    profile: PowerProfile,
    objective: Objective,
    rules: Rules,
    history: Signal | None,
    forecast: Signal | None,
    now_s: float,
    progress: Progress,
    present: Present | None,
) -> Decision:
    """Return the power limit that a job should have now, one of the profile's, with its reason.

    Args:
        profile: what the job draws and how fast it is at each limit; the highest is the reference.
        objective: what is asked for.
        rules: the period of planning, and the hysteresis.
        history: the signal up to now, or None.
        forecast: the signal from now on, or None.
        now_s: Unix time [s].
        progress: the run so far.
        present: the limit that is asked for now; None in the first plan of a run.
    """
    value = _value_at(history, forecast, now_s)
    match objective:
        case EtaObjective(eta=eta):
            wish = _wish_by_eta(profile, eta, value, history, now_s=now_s, started_at_s=progress.started_at_s)
        case SlowdownObjective(max_slowdown=max_slowdown):
            budget = _budget(profile, max_slowdown, progress)
            reference = None if value is None else _reference(history, forecast, now_s)
            if value is None or reference is None:
                wish = _wish_without_signal(profile, budget)
            else:
                wish = _wish_by_time_price(profile, budget, rules, value, reference)
        case _:
            assert_never(objective)
    return _decided(wish, value, rules, present, now_s=now_s, is_stale=value is None and bool(history))


def _value_at(history: Signal | None, forecast: Signal | None, now_s: float) -> float | None:
    value = forecast.value_at(now_s) if forecast is not None else None
    return history.value_at(now_s) if value is None and history is not None else value


def _wish_by_eta(
    profile: PowerProfile, eta: float, value: float | None, history: Signal | None, *, now_s: float, started_at_s: float
) -> _Wish:
    """Return Chase's choice, or Zeus's where there is no signal; every measured limit is a candidate."""
    max_power_w = profile.fastest.power_w
    if value is None:
        costs = zeus_cost(profile.power_w, profile.iterations_per_s, eta=eta, max_power_w=max_power_w)
        detail = f"energy and time weighed by eta {eta:g}"
        return _Wish(allowed=profile, costs=costs, reason="eta_static", detail=detail)
    max_value = history.maximum(started_at_s - DAY_S, started_at_s) if history is not None else None
    whence = "in the 24 h before the run"
    if max_value is None:
        known = history.maximum(-np.inf, now_s) if history is not None else None
        max_value = value if known is None else max(known, value)
        whence = "known up to now, since the 24 h before the run are not"
    # A price can fall to nothing or below, where eq. 6 would reward waste; then waste is no candidate.
    allowed = profile if value > 0 else profile.usable()
    costs = chase_cost(
        allowed.power_w,
        allowed.iterations_per_s,
        eta=eta,
        max_power_w=max_power_w,
        value=value,
        max_value=max(max_value, 0.0),
    )
    detail = f"signal {value:.4g} now, at most {max_value:.4g} {whence}, weighed against time by eta {eta:g}"
    return _Wish(allowed=allowed, costs=costs, reason="eta_signal", detail=detail)


def _budget(profile: PowerProfile, max_slowdown: float, progress: Progress) -> _Budget:
    """Return the ledger; noise may show a lower limit to be the fastest, and the reference is the faster of both."""
    slowdown = 1 + (max_slowdown - 1) * (1 - RESERVE_RATIO)
    reference_per_s = float(profile.iterations_per_s.max())
    credit_s = slowdown * progress.n_iterations / reference_per_s - progress.active_s
    return _Budget(max_slowdown=slowdown, reference_per_s=reference_per_s, credit_s=credit_s)


def _reference(
    history: Signal | None, forecast: Signal | None, now_s: float
) -> tuple[NDArray[np.float64], NDArray[np.float64]] | None:
    """Return (durations [s], values) of the days to plan for: those of a real forecast, else whole days of history.

    None where less than a day is known, or where the signal does not vary.
    """
    for signal, start_s, end_s in _reference_spans(history, forecast, now_s):
        durations_s, values = signal.steps(start_s, end_s)
        if durations_s.sum() >= MIN_KNOWN_RATIO * (end_s - start_s):
            return None if np.ptp(values) <= 1e-9 * np.abs(values).max() else (durations_s, values)
    return None


def _reference_spans(
    history: Signal | None, forecast: Signal | None, now_s: float
) -> list[tuple[Signal, float, float]]:
    spans = []
    if forecast is not None and forecast.source != "persistence":
        spans.append((forecast, now_s, now_s + DAY_S))
    if history is not None and len(history):
        n_days = min(MAX_REFERENCE_DAYS, int((now_s - history.starts_s[0] + SPAN_TOLERANCE_S) // DAY_S))
        if n_days > 0:
            spans.append((history, now_s - n_days * DAY_S, now_s))
    return spans


def _wish_without_signal(profile: PowerProfile, budget: _Budget) -> _Wish:
    """Return the least energy among the limits that are fast enough; lost time asks for faster ones."""

    def energies(rate_per_s: float) -> tuple[PowerProfile, NDArray[np.float64]]:
        fast = PowerProfile(tuple(p for p in profile.points if p.iterations_per_s >= rate_per_s * (1 - 1e-9)))
        return fast, fast.power_w / fast.iterations_per_s

    rate_per_s = max(budget.rate_per_s, budget.needed_per_s)
    allowed, costs = energies(rate_per_s)
    calm, calm_costs = energies(budget.rate_per_s)
    behind = calm.points[int(np.argmin(calm_costs))] not in allowed.points
    detail = f"least energy at {rate_per_s:.4g} iterations/s or more; the budget stands at {budget.credit_s:+.0f} s"
    return _Wish(allowed=allowed, costs=costs, reason="behind_schedule" if behind else "slowdown_static", detail=detail)


def _wish_by_time_price(
    profile: PowerProfile,
    budget: _Budget,
    rules: Rules,
    value: float,
    reference: tuple[NDArray[np.float64], NDArray[np.float64]],
) -> _Wish:
    """Return the least (c·P + λ)/r among the usable limits that the ledger can pay."""
    usable = profile.usable()
    price = time_price(usable, *reference, needed_per_s=budget.needed_per_s)
    costs = time_priced_cost(usable.power_w, usable.iterations_per_s, value=value, time_price=price)
    paid = [budget.pays(point, rules.period_s) for point in usable.points]
    allowed = PowerProfile(tuple(point for point, ok in zip(usable.points, paid, strict=True) if ok))
    return _Wish(
        allowed=allowed,
        costs=costs[np.array(paid)],
        reason="slowdown_signal" if paid[int(np.argmin(costs))] else "behind_schedule",
        detail=(
            f"signal {value:.4g} now; a second is worth {price:.4g} W times its unit, so that the mean rate is "
            f"{budget.needed_per_s:.4g} iterations/s; the budget stands at {budget.credit_s:+.0f} s"
        ),
    )


def _decided(
    wish: _Wish, value: float | None, rules: Rules, present: Present | None, *, now_s: float, is_stale: bool
) -> Decision:
    """Return the decision: the wish, or the present limit where that is allowed and a change is not worth it yet."""
    chosen = wish.allowed.points[int(np.argmin(wish.costs))]
    reason, detail = wish.reason, wish.detail
    if is_stale:
        reason, detail = "signal_stale", f"the signal is stale, so the plan is the one without: {detail}"
    kept = None if present is None else wish.allowed.point_at(present.power_limit_w)
    if present is not None and kept is not None and kept is not chosen:
        cost = float(wish.costs[wish.allowed.points.index(kept)])
        gain_ratio = (cost - float(wish.costs.min())) / (abs(cost) or 1.0)
        wanted = f"wanted is {chosen.power_limit_w:g} W, which saves {gain_ratio:.2%}: {detail}"
        if now_s - present.since_s < rules.min_dwell_s:
            chosen, reason, detail = kept, "kept_dwell", f"stands for less than {rules.min_dwell_s:g} s; {wanted}"
        elif gain_ratio < rules.min_gain_ratio:
            chosen, reason, detail = kept, "kept_small_gain", f"less than {rules.min_gain_ratio:.2%} to gain; {wanted}"
    return Decision(
        power_limit_w=chosen.power_limit_w,
        reason=reason,
        detail=detail,
        power_w=chosen.power_w,
        iterations_per_s=chosen.iterations_per_s,
        signal_value=value,
    )
