"""What an iteration costs at a power limit, by each of the objectives; what a second may cost, and the ledger of them.

Every cost is per iteration, at a fixed batch size: only its argmin over the limits matters, and that is the same as
for a whole run.
"""

from dataclasses import dataclass
from typing import Final, TypeVar

import numpy as np
from numpy.typing import NDArray

from policies.profile import PowerProfile, ProfilePoint

REPAY_S: Final = 86_400.0
"""Lost time is paid back over a day. It is paid sooner where a limit just above the budget's rate does that, because
nothing slower is affordable before; paying it back near full speed costs several times what it is worth later."""
SPEND_S: Final = 2 * 3_600.0
"""Saved time is spent over hours: nobody knows how long the run will last, and what is left at its end is lost."""
BISECTIONS: Final = 48
"""Enough to tell any two values of a signal apart."""

Quantity = TypeVar("Quantity", float, NDArray[np.float64])


@dataclass(frozen=True, slots=True, kw_only=True)
class TimeLedger:
    """The time that a budget allows for the iterations so far, less the time they took.

    Attributes:
        even_per_s: the rate that leaves the ledger as it is [1/s].
        reference_per_s: the highest rate there is [1/s].
        credit_s: what is left, or owed where below 0 [s].
    """

    even_per_s: float
    reference_per_s: float
    credit_s: float

    @property
    def needed_per_s(self) -> float:
        """Return the mean rate that settles the ledger in its time, at most the highest [1/s]."""
        ratio = 1 - self.credit_s / (REPAY_S if self.credit_s < 0 else SPEND_S)
        return min(self.even_per_s * ratio, self.reference_per_s)

    def pays(self, point: ProfilePoint, period_s: float) -> bool:
        """Return whether a period at this point leaves the ledger above 0, or at least no lower than it is."""
        change_s = (point.iterations_per_s / self.even_per_s - 1) * period_s
        return change_s >= 0 or self.credit_s + change_s >= 0


def time_ledger(max_slowdown: float, reference_per_s: float, n_iterations: float, active_s: float) -> TimeLedger:
    """Return the ledger of a run that may take `max_slowdown` times as long as at `reference_per_s` [1/s].

    Nobody is faster than the reference, so no run can have saved more than its time allowed; one that seems to has a
    wrong reference, and must not spend what it does not have.
    """
    credit_s = max_slowdown * n_iterations / reference_per_s - active_s
    return TimeLedger(
        even_per_s=reference_per_s / max_slowdown,
        reference_per_s=reference_per_s,
        credit_s=min(credit_s, (max_slowdown - 1) * active_s),
    )


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
    """Return the least λ >= 0, to nine digits, at which argmin (c·P + λ)/r is as fast on average as needed.

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
    return high * (1 + 1e-9)  # clear of the tie, so that rounding does not choose the slower one
