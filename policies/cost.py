"""What an iteration costs at a power limit, by each of the objectives, and what a second may cost.

Every cost is per iteration, at a fixed batch size: only its argmin over the limits matters, and that is the same as
for a whole run.
"""

from typing import Final, TypeVar

import numpy as np
from numpy.typing import NDArray

from policies.profile import PowerProfile

BISECTIONS: Final = 48
"""Enough to tell any two values of a signal apart."""

Quantity = TypeVar("Quantity", float, NDArray[np.float64])


def zeus_cost(power_w: Quantity, iterations_per_s: Quantity, *, eta: float, max_power_w: float) -> Quantity:
    """Return the energy-time cost of one iteration [J]: (η·P + (1-η)·P_max) / r (arXiv:2208.06102).

    Args:
        power_w: the power at the limit [W].
        iterations_per_s: the rate at the limit [1/s].
        eta: the weight of energy; 1 - eta is that of time.
        max_power_w: the power at the prior limit, which turns time into energy [W].
    """
    return (eta * power_w + (1 - eta) * max_power_w) / iterations_per_s


def chase_cost(
    power_w: Quantity, iterations_per_s: Quantity, *, eta: float, max_power_w: float, value: float, max_value: float
) -> Quantity:
    """Return the carbon-time cost of one iteration: (η·P·c + (1-η)·P_max·c_max) / r (arXiv:2303.02508, eq. 6).

    Args:
        power_w: the power at the limit [W].
        iterations_per_s: the rate at the limit [1/s].
        eta: the weight of carbon; 1 - eta is that of time.
        max_power_w: the power at the prior limit [W].
        value: c, the signal now.
        max_value: c_max, its maximum in the 24 h before the run started.
    """
    return (eta * power_w * value + (1 - eta) * max_power_w * max_value) / iterations_per_s


def time_priced_cost(power_w: Quantity, iterations_per_s: Quantity, *, value: float, time_price: float) -> Quantity:
    """Return the cost of one iteration where time has a price: (c·P + λ) / r.

    Args:
        power_w: the power at the limit [W].
        iterations_per_s: the rate at the limit [1/s].
        value: c, the signal now.
        time_price: λ, the price of a second, in the unit of the signal times watts.
    """
    return (value * power_w + time_price) / iterations_per_s


def time_price(
    profile: PowerProfile, durations_s: NDArray[np.float64], values: NDArray[np.float64], *, needed_per_s: float
) -> float:
    """Return the least λ >= 0 at which argmin (c·P + λ)/r has a mean rate of at least `needed_per_s` over a signal.

    Args:
        profile: the usable limits.
        durations_s: how long each value of the signal holds, shape (n,) [s].
        values: the values of the signal, shape (n,).
        needed_per_s: the mean rate, at most the highest of the profile [1/s].
    """
    power_w, rates_per_s = profile.power_w, profile.iterations_per_s
    energy_costs = np.outer(values, power_w / rates_per_s)
    weights = durations_s / durations_s.sum()

    def is_enough(price: float) -> bool:
        chosen = np.argmin(energy_costs + price / rates_per_s, axis=1)
        return float(weights @ rates_per_s[chosen]) >= needed_per_s * (1 - 1e-12)

    low, high = 0.0, float(np.abs(values).max() * power_w.max()) or 1.0
    if is_enough(low):
        return low
    for _ in range(BISECTIONS):
        if is_enough(high):
            break
        low, high = high, 2 * high
    for _ in range(BISECTIONS):
        middle = (low + high) / 2
        low, high = (low, middle) if is_enough(middle) else (middle, high)
    return high
