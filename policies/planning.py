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

from policies.cost import chase_cost, time_ledger, time_price, time_priced_cost, zeus_cost
from policies.profile import PowerProfile, ProfilePoint
from policies.signal import Signal

DAY_S: Final = 86_400.0
MAX_REFERENCE_DAYS: Final = 14
"""Older days say little about the next one."""
SPAN_TOLERANCE_S: Final = 3_600.0
"""Providers that give the last 24 h give 24 values, the first of which began up to an hour later."""
MIN_KNOWN_RATIO: Final = 0.8
"""A reference with more than a fifth of its time missing is none."""
MAX_RESERVE: Final = 0.003
"""The slowdown kept back where the rate at the prior limit is not known any better than that."""
MIN_RESERVE: Final = 0.001
RESERVE_SHARE: Final = 0.1
"""At most this share of the slowdown that is allowed is kept back."""


@dataclass(frozen=True, slots=True, kw_only=True)
class SlowdownObjective:
    """Take at most `max_slowdown` times as long as at the prior limit (1.03 is 3 % slower), at the least Σ c·P."""

    max_slowdown: float

    def __post_init__(self) -> None:
        """Check that the slowdown is one."""
        if not self.max_slowdown >= 1:
            raise ValueError(f"max_slowdown = {self.max_slowdown:g}: must be at least 1 (1 means: never slower)")


@dataclass(frozen=True, slots=True, kw_only=True)
class EtaObjective:
    """Weigh carbon (or energy) by `eta` and time by 1 - eta, as Zeus and Chase do."""

    eta: float

    def __post_init__(self) -> None:
        """Check that eta is a share."""
        if not 0 <= self.eta <= 1:
            raise ValueError(f"eta = {self.eta:g}: must be from 0 (only time counts) to 1 (only energy counts)")


@dataclass(frozen=True, slots=True, kw_only=True)
class DeadlineObjective:
    """Be done by a moment [Unix s], at the least Σ c·P; what is left to do is in `Progress`."""

    deadline_s: float


@dataclass(frozen=True, slots=True, kw_only=True)
class BudgetObjective:
    """Be done as soon as a budget of grams, money or (without a signal) kWh allows; what is spent is in `Progress`."""

    budget: float

    def __post_init__(self) -> None:
        """Check that the budget is one."""
        if not self.budget > 0:
            raise ValueError(f"budget = {self.budget:g}: must be above 0")


Objective = SlowdownObjective | EtaObjective | DeadlineObjective | BudgetObjective


@dataclass(frozen=True, slots=True, kw_only=True)
class Rules:
    """How often the plan is made [s], how long a limit stands at least [s], and what share a change must save."""

    period_s: float
    min_dwell_s: float
    min_gain_ratio: float


@dataclass(frozen=True, slots=True, kw_only=True)
class Progress:
    """The run so far, its profiling included.

    Attributes:
        n_iterations: how many iterations have passed.
        active_s: the time in which they ran [s].
        started_at_s: when the run started [Unix s].
        total_iterations: how many it will have in all, where it said so.
        spent: what its energy has cost so far, in grams or money, or in kWh where there is no signal; None: unknown.
    """

    n_iterations: float
    active_s: float
    started_at_s: float
    total_iterations: float | None = None
    spent: float | None = None


@dataclass(frozen=True, slots=True, kw_only=True)
class Present:
    """The limit that we ask for now [W], and since when [Unix s]."""

    power_limit_w: float
    since_s: float


@dataclass(frozen=True, slots=True, kw_only=True)
class Later:
    """The limit of the rest of a period, where one alone would miss the rate.

    Attributes:
        from_s: when it begins [Unix s].
        power_limit_w: the limit to ask for then, one of the profile's [W].
        power_w: what the profile expects at it [W].
        iterations_per_s: the rate that it expects [1/s].
    """

    from_s: float
    power_limit_w: float
    power_w: float
    iterations_per_s: float


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
        later: the limit of the rest of the period; None where the first one stands for all of it.
    """

    power_limit_w: float
    reason: str
    detail: str
    power_w: float
    iterations_per_s: float
    signal_value: float | None
    later: Later | None = None


@dataclass(frozen=True, slots=True, kw_only=True)
class _Wish:
    """What a plan would choose: the least cost among the limits that it allows."""

    allowed: PowerProfile
    costs: NDArray[np.float64]
    reason: str
    detail: str


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
            reference = _reference(history, forecast, now_s)
            if value is None or reference is None:
                wish = _wish_without_signal(profile, max_slowdown, progress)
            else:
                wish = _wish_by_time_price(profile, max_slowdown, progress, rules, value, reference)
        case DeadlineObjective() | BudgetObjective():
            raise NotImplementedError(objective)
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
    detail = f"at most {max_value:.4g} {whence}; weighed against time by eta {eta:g}"
    return _Wish(allowed=allowed, costs=costs, reason="eta_signal", detail=detail)


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


def _wish_without_signal(profile: PowerProfile, max_slowdown: float, progress: Progress) -> _Wish:
    """Return the least energy among the limits that are fast enough; lost time asks for faster ones."""
    ledger = time_ledger(max_slowdown, profile.fastest.iterations_per_s, progress.n_iterations, progress.active_s)
    even_per_s = ledger.even_per_s
    needed_per_s = max(even_per_s, ledger.needed_per_s)
    allowed = PowerProfile(tuple(p for p in profile.points if p.iterations_per_s >= needed_per_s))
    calm = min(
        (p for p in profile.points if p.iterations_per_s >= even_per_s), key=lambda point: point.iteration_energy_j
    )
    return _Wish(
        allowed=allowed,
        costs=allowed.power_w / allowed.iterations_per_s,
        reason="slowdown_static" if calm in allowed.points else "behind_schedule",
        detail=(f"least energy at {needed_per_s:.4g} iterations/s or more; time in hand {ledger.credit_s:+.0f} s"),
    )


def _wish_by_time_price(
    profile: PowerProfile,
    max_slowdown: float,
    progress: Progress,
    rules: Rules,
    value: float,
    reference: tuple[NDArray[np.float64], NDArray[np.float64]],
) -> _Wish:
    """Return the least (c·P + λ)/r among the usable limits that the ledger can pay.

    Noise may show a lower limit to be faster than the highest; the faster rate then is the reference, to be safe.
    """
    reserve = min(_uncertainty_ratio(profile.fastest), RESERVE_SHARE * (max_slowdown - 1))
    highest_per_s = float(profile.iterations_per_s.max())
    ledger = time_ledger(max_slowdown - reserve, highest_per_s, progress.n_iterations, progress.active_s)
    usable = profile.usable()
    price = time_price(usable, *reference, needed_per_s=ledger.needed_per_s)
    costs = time_priced_cost(usable.power_w, usable.iterations_per_s, value=value, time_price=price)
    paid = [ledger.pays(point, rules.period_s) for point in usable.points]
    weight = f"time weighs like {price / value:.0f} W" if value > 0 else "power costs nothing now"
    return _Wish(
        allowed=PowerProfile(tuple(point for point, ok in zip(usable.points, paid, strict=True) if ok)),
        costs=costs[np.array(paid)],
        reason="slowdown_signal" if paid[int(np.argmin(costs))] else "behind_schedule",
        detail=(
            f"{weight}, for {ledger.needed_per_s:.4g} iterations/s on average; time in hand {ledger.credit_s:+.0f} s"
        ),
    )


def _uncertainty_ratio(point: ProfilePoint) -> float:
    """Return how well a rate is known, as a share of it, within reason."""
    if point.iterations_per_s_ci is None:
        return MAX_RESERVE
    return min(max(point.iterations_per_s_ci / point.iterations_per_s, MIN_RESERVE), MAX_RESERVE)


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
