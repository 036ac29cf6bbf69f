"""The plan by `eta`: Zeus's cost and, with a signal, Chase's eq. 6, to the letter; the least of all measured limits."""

from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from policies.planning.objectives import EtaObjective
from policies.planning.signal_outlook import DAY_S
from policies.vocabulary.cost import chase_cost, zeus_cost
from policies.vocabulary.profile import PowerProfile
from policies.vocabulary.signal import Signal


@dataclass(frozen=True, slots=True, kw_only=True)
class EtaCosts:
    """The limits that are candidates, what an iteration costs at each, shape (n_points,), and why, for people."""

    allowed: PowerProfile
    costs: NDArray[np.float64]
    reason: str
    detail: str


def eta_costs(
    profile: PowerProfile,
    objective: EtaObjective,
    value: float | None,
    history: Signal | None,
    *,
    now_s: float,
    started_at_s: float,
) -> EtaCosts:
    """Return what an iteration costs at each limit: by Chase, or by Zeus where there is no signal.

    Args:
        profile: what the job draws and how fast it is at each limit; the highest is the reference.
        objective: the weights.
        value: the signal now, or None.
        history: the signal up to now, or None.
        now_s: Unix time [s].
        started_at_s: when the run started [Unix s].
    """
    eta, max_power_w = objective.eta, objective.max_power_w or profile.fastest.power_w
    if value is None:
        costs = zeus_cost(profile.power_w, profile.iterations_per_s, eta=eta, max_power_w=max_power_w)
        detail = f"energy and time weighed by eta {eta:g}"
        return EtaCosts(allowed=profile, costs=costs, reason="eta_static", detail=detail)
    max_value = history.maximum(started_at_s - DAY_S, started_at_s) if history is not None else None
    whence = "in the 24 h before the run"
    if max_value is None:
        known = history.maximum(-np.inf, now_s) if history is not None else None
        max_value = value if known is None else max(known, value)
        whence = "known up to now, since the 24 h before the run are not"
    # A price can fall to nothing or below, where eq. 6 would reward waste; then waste is no candidate.
    allowed = profile if min(value, max_value) > 0 else profile.usable()
    costs = chase_cost(
        allowed.power_w,
        allowed.iterations_per_s,
        eta=eta,
        max_power_w=max_power_w,
        value=value,
        max_value=max(max_value, 0.0),
    )
    detail = f"at most {max_value:.4g} {whence}; weighed against time by eta {eta:g}"
    return EtaCosts(allowed=allowed, costs=costs, reason="eta_signal", detail=detail)
