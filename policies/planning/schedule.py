"""The least Σ c·P for a mean rate over an outlook: work is bought where it is cheapest, and now is one of the places.

At a time when the signal is c, one more iteration along a segment of the hull costs c·dP/dr. The optimum buys from the
cheapest on until the mean rate is what is needed (a linear programme with one constraint: greedy is exact); the last
price paid is μ, the price of work. It is the other face of a price of time λ: at the limit that minimises (c·P + λ)/r,
λ = μ·r - c·P (Chase's eq. 6 has such a λ, fixed by η; here it follows from what is needed). Nothing below the
energy-minimal limit is ever bought, since the hull begins there. More than is needed is bought where it is cheaper than
the same work would be at the end of the run, which comes sooner by it.
"""

from dataclasses import dataclass
from typing import Final

import numpy as np
from numpy.typing import NDArray

from policies.curve import Hull
from policies.planning.outlook import Outlook

FAR_S: Final = 3 * 86_400.0
"""An end that is farther away comes at an hour that nobody knows."""
SAME_PRICE: Final = 1e-9
"""Prices closer than this, as a share, are one: of a signal that does not vary, no hour is cheaper."""

Values = NDArray[np.float64]


@dataclass(frozen=True, slots=True, kw_only=True)
class Purchase:
    """What to do now, and what that follows from.

    Attributes:
        rate_per_s: the mean rate of the present period [1/s].
        work_price: μ, the price of an iteration, in the unit of the signal times joules.
        mean_power_cost: the mean of c·P over the outlook, in the unit of the signal times watts.
        mean_rate_per_s: the mean rate over the outlook [1/s].
    """

    rate_per_s: float
    work_price: float
    mean_power_cost: float
    mean_rate_per_s: float


def buy(hull: Hull, outlook: Outlook, *, needed_per_s: float) -> Purchase:
    """Return the rate for now that belongs to the cheapest way to a mean rate of `needed_per_s`, or more [1/s].

    What is needed is cut to what the hull has.
    """
    rates_per_s, powers_w = hull.iterations_per_s, hull.power_w
    slowest_per_s, weights = float(rates_per_s[0]), outlook.durations_s / outlook.durations_s.sum()
    price_at_end = _value_at_end(outlook) * float(powers_w[0]) / slowest_per_s
    if len(rates_per_s) == 1:
        return Purchase(
            rate_per_s=slowest_per_s,
            work_price=price_at_end,
            mean_power_cost=outlook.mean * float(powers_w[0]),
            mean_rate_per_s=slowest_per_s,
        )
    prices = _prices(hull, outlook.values)
    amounts = np.outer(weights, np.diff(rates_per_s))
    shares, price = _shares(prices, amounts, needed_per_s - slowest_per_s, at_least=price_at_end)
    bought = amounts * shares
    return Purchase(
        rate_per_s=slowest_per_s + float(bought[0].sum() / weights[0]),
        work_price=price,
        mean_power_cost=outlook.mean * float(powers_w[0]) + float((bought * prices).sum()),
        mean_rate_per_s=slowest_per_s + float(bought.sum()),
    )


def _prices(hull: Hull, values: Values) -> Values:
    """Return what an iteration costs in each segment at each value, shape (n_values, n_segments).

    Where the value is below 0 the last watts would be the cheapest, and cannot be had without those before: there the
    whole way from the slowest to the fastest has one price.
    """
    slopes_j = hull.marginal_energies_j
    chord_j = (hull.fastest.power_w - hull.thriftiest.power_w) / (
        hull.fastest.iterations_per_s - hull.thriftiest.iterations_per_s
    )
    return np.where(values[:, None] < 0, values[:, None] * chord_j, np.outer(values, slopes_j))


def _value_at_end(outlook: Outlook) -> float:
    """Return what the signal will be when the run ends: sometime in days to come it is as usual.

    Before that the hour of the end matters, which moves with what is decided: then nothing but being paid is a reason
    to end sooner.
    """
    if float(outlook.durations_s.sum()) > FAR_S:
        return outlook.mean
    return min(0.0, float(outlook.values.min()))


def _shares(prices: Values, amounts: Values, needed_per_s: float, *, at_least: float) -> tuple[Values, float]:
    """Return the share of each amount that is bought, shape of `prices`, and the price of the last one.

    Everything below `at_least` is bought in any case; what costs the same as the last one is bought in equal shares.
    """
    order = np.argsort(prices, axis=None)
    total = np.cumsum(amounts.ravel()[order])
    last = int(np.searchsorted(total, needed_per_s * (1 - SAME_PRICE)))
    price = float(prices.ravel()[order[min(last, len(order) - 1)]]) if needed_per_s > 0 else -np.inf
    if price < at_least:
        return (prices < at_least).astype(np.float64), at_least
    margin = SAME_PRICE * abs(price)
    cheaper, same = prices < price - margin, np.abs(prices - price) <= margin
    missing = needed_per_s - float(amounts[cheaper].sum())
    share = min(max(missing / float(amounts[same].sum()), 0.0), 1.0)
    return cheaper + share * same, price
