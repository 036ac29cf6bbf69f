"""What looks at the top limit have not seen of how a board warms there, and ratios of limits that are right with it.

A board that is held at a lower limit is cooler than it would be at the top. In the seconds of a look it warms by a part
of the difference only, so that the top seems to need less than it does in the long run. What was not seen is

    a * slow * ((P_top - P) - (F_top - F)), as a logarithm of the energy per iteration

with the powers P and the filtered powers F of the look, and a and `slow` of `policies.thermal.board`. Where a run
mixes limits the temperature of each is another one, but in the mean over its time it is the same, since all is linear.

What a and `slow` are not known to is an error that all limits have in common.
"""

import math
from collections.abc import Iterable, Sequence
from dataclasses import dataclass, replace
from typing import Final

import numpy as np

from policies.profiling.curve_model import PRIOR_PAIRS
from policies.profiling.paired_looks import Pair
from policies.thermal.board import TIME_CONSTANTS_S, ThermalState
from policies.vocabulary.limit_ratios import LimitRatios
from policies.vocabulary.units import Values

USUAL_S: Final = 60.0
"""The time constant that holds until more is known; boards differ from it by a factor of two (standard deviation)."""
PER_K_RATIO: Final = 0.003
PER_K_ERROR_RATIO: Final = 0.001
"""A board needs so much more energy for each kelvin, as an H100 80GB HBM3 on 26 November 2026, give or take a third."""
WARMER_K: Final = 27.0
WARMER_ERROR_K: Final = 20.0
"""At its top power a board is so much warmer than without any: on that board 0.047 K for each of 570 W."""
MOST_DEVIATIONS: Final = 3.0
"""A board is not farther from that."""
MODEL_ERROR_RATIO: Final = 0.1
"""The correction is not known better: boards have more than one time constant."""
MOST_FEEDBACK_RATIO: Final = 0.5
"""What warms draws more, and warms more: no board does so by more than that."""

INDEPENDENT_S: Final = 300.0
"""Of the errors of a temperature, those so far apart are independent, …"""
SENSOR_K: Final = 0.5
"""… and at least so large."""
ROUNDING_K: Final = 0.4
"""A range of temperatures is not known better: both of its ends are whole degrees."""
STILL_K2: Final = 0.05
"""A sensor whose readings have a smaller variance stands still: nothing shows that it works."""
LOOSER: Final = 2.0
"""Where a sensor tells, it is to decide: what other boards do counts with an error so many times as large."""
START_K: Final = 30.0
"""A board may have been so much colder or warmer at its first reading (standard deviation)."""

_UPPER: Final = np.triu_indices(5)


@dataclass(frozen=True, slots=True, kw_only=True)
class Known:
    """A coefficient, and its standard error."""

    value: float
    error: float


def power_per_kelvin(state: ThermalState) -> Known:
    """Return by how much the logarithm of the energy per iteration rises with the temperature [1/K].

    Slopes that no board could have are the job's own: it may need more, or less, after each of its pauses.
    """
    slopes = state.slopes
    variance = (PRIOR_PAIRS + slopes.square) / (PRIOR_PAIRS + max(slopes.n - 1, 0))
    seen, prior = slopes.precision / variance, 1 / PER_K_ERROR_RATIO**2
    if abs(slopes.mean_log - PER_K_RATIO) > MOST_DEVIATIONS * (PER_K_ERROR_RATIO + math.sqrt(1 / seen if seen else 0)):
        seen = 0.0
    mean = (seen * slopes.mean_log + prior * PER_K_RATIO) / (seen + prior)
    return Known(value=mean, error=1 / math.sqrt(seen + prior))


def kelvin_per_watt(state: ThermalState, *, top_power_w: float) -> tuple[Known, float]:
    """Return how much warmer a board becomes slowly for each watt [K/W], and its time constant [s].

    Args:
        state: what was seen.
        top_power_w: the power at the top limit, to which the prior is relative [W].
    """
    prior = np.array([WARMER_K / top_power_w, WARMER_ERROR_K / top_power_w])
    fits = [
        (fit[0] + math.log2(tau_s / USUAL_S) ** 2 / 2, *fit[1:], tau_s)
        for sums_s, tau_s in zip(state.sums_s, TIME_CONSTANTS_S, strict=True)
        if (fit := _fit(sums_s, prior))
    ]
    if not fits or state.range_c is None:
        return Known(value=float(prior[0]), error=float(prior[1])), USUAL_S
    _, value, error, tau_s = min(fits)
    least_c, most_c = state.range_c
    return Known(value=value, error=math.hypot(error, value * ROUNDING_K / max(most_c - least_c, ROUNDING_K))), tau_s


def _fit(sums_s: Sequence[float], prior: Values) -> tuple[float, float, float] | None:
    """Return how unlikely a fit is, the slow coefficient [K/W] and its error; None: the sensor shows nothing.

    Args:
        sums_s: as in `ThermalState`, for one time constant.
        prior: of the slow coefficient, mean and standard deviation; that of the fast one is about 0 [K/W].
    """
    total_s, rows = sums_s[0], np.zeros((5, 5))
    if not total_s > 0:
        return None
    rows[_UPPER] = np.array(sums_s) / total_s
    moments = rows[1:, 1:] + np.triu(rows[1:, 1:], 1).T - np.outer(rows[0, 1:], rows[0, 1:])
    among, with_t, variance = moments[:3, :3], moments[:3, 3], float(moments[3, 3])
    if variance < STILL_K2:
        return None
    means = np.array([0.0, prior[0], 0.0])
    precisions = 1 / np.array([LOOSER * prior[1], LOOSER * prior[1], START_K]) ** 2
    believed, weighed = np.diag(precisions), precisions * means
    n = total_s / INDEPENDENT_S

    def solve(left_k2: float) -> tuple[float, Values, Values]:
        """Return the variance that is left, by one that is assumed; the coefficients; and their covariance."""
        weight = n / max(left_k2, SENSOR_K**2)
        covariance = np.asarray(np.linalg.inv(weight * among + believed), dtype=np.float64)
        found = covariance @ (weight * with_t + weighed)
        return float(variance - 2 * found @ with_t + found @ among @ found), found, covariance

    left_k2, found, covariance = solve(solve(SENSOR_K**2)[0])
    return n / 2 * math.log(max(left_k2, SENSOR_K**2)), float(found[1]), math.sqrt(covariance[1, 1])


def corrected(
    ratios: Sequence[LimitRatios], pairs: Iterable[Pair], state: ThermalState, *, top_power_w: float
) -> tuple[LimitRatios, ...]:
    """Return ratios as they are in the long run, when the board has warmed at the top.

    Args:
        ratios: as looks have shown them.
        pairs: what was seen in pairs: how much of the warming.
        state: what is known of the boards.
        top_power_w: what they draw at the top, as looks have shown it [W].
    """
    per_k = power_per_kelvin(state)
    per_w, tau_s = kelvin_per_watt(state, top_power_w=top_power_w)
    per_w_ratio = per_k.value * per_w.value
    error_ratio = math.hypot(
        per_k.value * per_w.error, per_k.error * per_w.value, per_k.error * per_w.error, MODEL_ERROR_RATIO * per_w_ratio
    )
    unseen = 1 - _seen_ratio(pairs, TIME_CONSTANTS_S.index(tau_s))
    feedback = 1 / (1 - min(per_w_ratio * top_power_w, MOST_FEEDBACK_RATIO))
    after = []
    for each in ratios:
        less_w = unseen * top_power_w * (1 - each.rate_ratio / each.energy_ratio)
        energy_ratio = each.energy_ratio * math.exp(per_w_ratio * feedback * less_w)
        after.append(
            replace(
                each,
                energy_ratio=energy_ratio,
                energy_error_ratio=each.energy_error_ratio * energy_ratio / each.energy_ratio,
                shared_error_ratio=energy_ratio * error_ratio * feedback**2 * less_w,
            )
        )
    return tuple(after)


def _seen_ratio(pairs: Iterable[Pair], number: int) -> float:
    """Return the part of the warming that looks have seen, by one of the time constants.

    It is less than 0 where the board still cooled from something else.
    """
    squares_w2, seen_w2 = 0.0, 0.0
    for pair in pairs:
        if len(pair.warmed_w2) == len(TIME_CONSTANTS_S):
            squares_w2 += pair.power_w2
            seen_w2 += pair.warmed_w2[number]
    return min(max(seen_w2 / squares_w2, -1.0), 1.0) if squares_w2 > 0 else 0.0
