"""The cost of an iteration at a power limit, by Zeus and by Chase.

Every cost is per iteration, at a fixed batch size: only its argmin over the limits matters, and that is the same as
for a whole run.
"""

from typing import TypeVar

import numpy as np
from numpy.typing import NDArray

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
