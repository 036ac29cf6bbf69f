"""The ledger of a run in shares of time: how long its work so far would have taken at the top limit.

    base = active · Σ active(l)·ratio(l) / Σ active(l)    with ratio(l) = rate at l / rate at the top, from paired looks

There is no absolute rate in it: a job that becomes slower or faster as a whole, by its data or its code, changes
nothing. The error of the base comes from the errors of the ratios, and shrinks with each look.

>>> known = {"rate_error_ratio": 0.0, "energy_ratio": 1.0, "energy_error_ratio": 0.0}
>>> ratios = [LimitRatios(power_limit_w=w, rate_ratio=ratio, **known) for w, ratio in [(300.0, 1.0), (200.0, 0.9)]]
>>> base_time([10.0, 90.0], ratios, np.diag([0.0, 1e-4]), active_s=100.0).base_s
91.0
"""

import math
from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np

from policies.vocabulary.limit_ratios import LimitRatios
from policies.vocabulary.units import Values


@dataclass(frozen=True, slots=True, kw_only=True)
class BaseTime:
    """How long the work so far would have taken at the top limit.

    Attributes:
        base_s: that time [s].
        error_ratio: its standard deviation, as a share of it.
    """

    base_s: float
    error_ratio: float


def base_time(
    times_s: Sequence[float], ratios: Sequence[LimitRatios], rate_covariance: Values, *, active_s: float
) -> BaseTime:
    """Return the time that the work of a run would have taken at the top limit.

    A limit does not make a run faster than the top one: what noise says beyond that is cut off.

    Args:
        times_s: for how long each limit was in force while the run was active, shape (n,) [s].
        ratios: what each of them is relative to the top, in the same order.
        rate_covariance: the covariance of the rate ratios, shape (n, n).
        active_s: the active time of the run [s]. It may be a little more than is known limit by limit (a change of
            limit, a reading that is missing): that counts like the rest.
    """
    known_s = sum(times_s)
    if not known_s > 0:
        return BaseTime(base_s=active_s, error_ratio=0.0)
    shares = np.array(times_s) / known_s
    mean_ratio = float(shares @ np.minimum([each.rate_ratio for each in ratios], 1.0))
    variance = max(float(shares @ rate_covariance @ shares), 0.0)
    return BaseTime(base_s=active_s * mean_ratio, error_ratio=math.sqrt(variance) / mean_ratio)
