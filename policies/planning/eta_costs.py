"""The costs of the objective `eta` at each limit: Zeus's and, with a signal, Chase's eq. 6."""

from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from policies.planning.objectives import EtaObjective
from policies.vocabulary.cost import chase_cost, zeus_cost
from policies.vocabulary.profile import PowerProfile
from policies.vocabulary.signal import Signal
from policies.vocabulary.units import DAY_S


@dataclass(frozen=True, slots=True, kw_only=True)
class EtaCosts:
    """The candidate limits, the cost of an iteration at each, shape (n_points,), and the reason and its detail."""

    candidates: PowerProfile
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
    """Return the cost of an iteration at each limit: by Chase, or by Zeus without a signal.

    Args:
        profile: power and rate of the job at each limit; the highest is the reference.
        objective: the weights.
        value: the signal now, or None.
        history: the signal up to now, or None.
        now_s: Unix time [s].
        started_at_s: when the run started [Unix s].
    """
    eta, max_power_w = objective.eta, objective.max_power_w or profile.fastest.power_w
    if value is None:
        costs = zeus_cost(profile.power_w, profile.iterations_per_s, eta=eta, max_power_w=max_power_w)
        detail = f"energy weighted {eta:g} against time"
        return EtaCosts(candidates=profile, costs=costs, reason="eta_static", detail=detail)
    max_value = history.maximum(started_at_s - DAY_S, started_at_s) if history is not None else None
    source = "in the 24 h before the run"
    if max_value is None:
        known = history.maximum(-np.inf, now_s) if history is not None else None
        max_value = value if known is None else max(known, value)
        source = "known so far (the 24 h before the run are missing)"
    # A price can fall to nothing or below, where eq. 6 would reward waste; then wasteful limits are no candidates.
    candidates = profile if min(value, max_value) > 0 else profile.usable()
    costs = chase_cost(
        candidates.power_w,
        candidates.iterations_per_s,
        eta=eta,
        max_power_w=max_power_w,
        value=value,
        max_value=max(max_value, 0.0),
    )
    detail = f"signal weighted {eta:g} against time; its maximum {source} is {max_value:.4g}"
    return EtaCosts(candidates=candidates, costs=costs, reason="eta_signal", detail=detail)
