"""The least Σ c·P for a mean rate over an outlook: work is bought where it is cheapest, and now is one of the places.

At a time when the signal is c, one more iteration along a segment of the hull costs c·dP/dr. The optimum buys from the
cheapest on until the mean rate is what is needed (a linear programme with one constraint: greedy is exact); the last
price paid is μ, the price of work. It is the other face of a price of time λ: at the limit that minimises (c·P + λ)/r,
λ = μ·r - c·P (Chase's eq. 6 has such a λ, fixed by η; here it follows from what is needed). Nothing below the
energy-minimal limit is ever bought, since the hull begins there. More than is needed is bought where it is cheaper than
the same work would be at the end of the run, which comes sooner by it.

μ is the price of a little more or less. What a limit that stays too fast for a whole period does too much may be more
than there is to be bought for later, and then has no buyer at μ: so it is priced by what is really left out (`resale`).
"""

from dataclasses import dataclass
from functools import cached_property
from typing import Final

import numpy as np
from numpy.typing import NDArray

from policies.planning.signal_outlook import SignalOutlook
from policies.vocabulary.power_curve import Hull

FAR_S: Final = 3 * 86_400.0
"""An end that is farther away comes at an hour that nobody knows."""
SAME_PRICE: Final = 1e-9
"""Prices closer than this, as a share, are one: of a signal that does not vary, no hour is cheaper."""

Values = NDArray[np.float64]


@dataclass(frozen=True, slots=True, kw_only=True, eq=False)
class Dispatch:
    """What to do now, and what that follows from.

    Attributes:
        rate_per_s: the mean rate of the present period [1/s].
        work_price: μ, the price of an iteration, in the unit of the signal times joules.
        mean_power_cost: the mean of c·P over the outlook, in the unit of the signal times watts.
        mean_rate_per_s: the mean rate over the outlook [1/s].
        price_at_end: what an iteration costs at the end of the run, in the unit of the signal times joules.
        bought_per_s: what is bought of each segment at each value, shape (n_values, n_segments) [1/s].
    """

    rate_per_s: float
    work_price: float
    mean_power_cost: float
    mean_rate_per_s: float
    price_at_end: float
    bought_per_s: Values


class MeritOrder:
    """The work that there is to buy over an outlook, the cheapest first: what any need costs is then a look-up."""

    def __init__(self, hull: Hull, outlook: SignalOutlook) -> None:
        self.hull = hull
        self.outlook = outlook
        self._weights = outlook.durations_s / outlook.durations_s.sum()
        self._prices = _prices(hull, outlook.values)
        self._amounts = np.outer(self._weights, np.diff(hull.iterations_per_s))
        self._order = np.argsort(self._prices, axis=None)
        self._sorted = self._prices.ravel()[self._order]
        self._amounts_until = np.cumsum(self._amounts.ravel()[self._order])

    def buy(self, needed_per_s: float, *, left_iterations: float | None = None) -> Dispatch:
        """Return the rate for now that belongs to the cheapest way to a mean rate of `needed_per_s`, or more [1/s].

        What is needed is cut to what the hull has. `left_iterations`: how long the run is, where that is known.
        """
        price_at_end = self._price_at_end(left_iterations)
        slowest_per_s, slowest_cost = self._slowest
        if not len(self._sorted):
            return Dispatch(
                rate_per_s=slowest_per_s,
                work_price=price_at_end,
                mean_power_cost=slowest_cost,
                mean_rate_per_s=slowest_per_s,
                price_at_end=price_at_end,
                bought_per_s=self._amounts,
            )
        shares, price = self._shares(needed_per_s - slowest_per_s, at_least=price_at_end)
        bought = self._amounts * shares
        return Dispatch(
            rate_per_s=slowest_per_s + float(bought[0].sum() / self._weights[0]),
            work_price=price,
            mean_power_cost=slowest_cost + float((bought * self._prices).sum()),
            mean_rate_per_s=slowest_per_s + float(bought.sum()),
            price_at_end=price_at_end,
            bought_per_s=bought,
        )

    def resale(self, purchase: Dispatch, surplus_per_s: float) -> float:
        """Return what is saved later where the present period is faster than was bought, by `surplus_per_s` [1/s].

        Of what is bought for later, the dearest need not be; where that is less than the surplus, the run ends sooner
        by the rest. In the unit of the signal times watts, as a mean over the present period.
        """
        surplus = surplus_per_s * float(self._weights[0])
        dear = (self._prices[1:] > purchase.price_at_end) & (purchase.bought_per_s[1:] > 0)
        prices, amounts = self._prices[1:][dear], purchase.bought_per_s[1:][dear]
        order = np.argsort(-prices)
        sold_until = np.append(0.0, np.cumsum(amounts[order]))
        saved_until = np.append(0.0, np.cumsum((prices * amounts)[order]))
        rest = max(surplus - float(sold_until[-1]), 0.0)
        saved = float(np.interp(surplus, sold_until, saved_until)) + rest * purchase.price_at_end
        return saved / float(self._weights[0])

    def mean_work_price(self, needed_per_s: float) -> float:
        """Return what an iteration costs on the cheapest way to a mean rate, or more, of a run of unknown length.

        In the unit of the signal times joules.
        """
        slowest_per_s, slowest_cost = self._slowest
        bought_per_s, costs = self._totals
        n_cheap = int(np.searchsorted(self._sorted, self._price_at_end(None)))
        extra_per_s = min(max(needed_per_s - slowest_per_s, float(bought_per_s[n_cheap])), float(bought_per_s[-1]))
        return (slowest_cost + float(np.interp(extra_per_s, bought_per_s, costs))) / (slowest_per_s + extra_per_s)

    @cached_property
    def _totals(self) -> tuple[Values, Values]:
        """Return what is bought after each amount, the cheapest first [1/s], and what it costs; from nothing on."""
        costs = np.cumsum(self._amounts.ravel()[self._order] * self._sorted)
        return np.append(0.0, self._amounts_until), np.append(0.0, costs)

    @property
    def _slowest(self) -> tuple[float, float]:
        """Return the rate that comes first [1/s], and what its power costs on average."""
        slowest = self.hull.thriftiest
        return slowest.iterations_per_s, self.outlook.mean * slowest.power_w

    def _price_at_end(self, left_iterations: float | None) -> float:
        """Return what an iteration costs at the end of the run, which comes sooner by what is bought before."""
        slowest = self.hull.thriftiest
        return _value_at_end(self.outlook, self.hull, left_iterations) * slowest.power_w / slowest.iterations_per_s

    def _shares(self, needed_per_s: float, *, at_least: float) -> tuple[Values, float]:
        """Return the share bought of each amount, shape (n_values, n_segments), and the price of the last one.

        Everything below `at_least` is bought in any case; of what costs the same as the last one, equal shares are.
        """
        last = int(np.searchsorted(self._amounts_until, needed_per_s * (1 - SAME_PRICE)))
        price = float(self._sorted[min(last, len(self._sorted) - 1)]) if needed_per_s > 0 else -np.inf
        if price < at_least:
            return (self._prices < at_least).astype(np.float64), at_least
        margin = SAME_PRICE * abs(price)
        cheaper, same = self._prices < price - margin, np.abs(self._prices - price) <= margin
        missing = needed_per_s - float(self._amounts[cheaper].sum())
        share = min(max(missing / float(self._amounts[same].sum()), 0.0), 1.0)
        return cheaper + share * same, price


def _prices(hull: Hull, values: Values) -> Values:
    """Return what an iteration costs in each segment at each value, shape (n_values, n_segments).

    Where the value is below 0 the last watts would be the cheapest, and cannot be had without those before: there the
    whole way from the slowest to the fastest has one price.
    """
    slopes_j = hull.marginal_energies_j
    if len(slopes_j) == 0:
        return np.empty((len(values), 0))
    chord_j = (hull.fastest.power_w - hull.thriftiest.power_w) / (
        hull.fastest.iterations_per_s - hull.thriftiest.iterations_per_s
    )
    return np.where(values[:, None] < 0, values[:, None] * chord_j, np.outer(values, slopes_j))


def _value_at_end(outlook: SignalOutlook, hull: Hull, left_iterations: float | None) -> float:
    """Return what the signal will be when the run ends: sometime in days to come it is as usual.

    Before that the hour of the end matters, which moves with what is decided. Where a forecast reaches as far, it is
    the least value that the end may have; else nothing but being paid is a reason to end sooner.
    """
    horizon_s = float(outlook.durations_s.sum())
    if horizon_s > FAR_S:
        return outlook.mean
    left = np.inf if left_iterations is None else left_iterations
    latest_s = left / hull.thriftiest.iterations_per_s
    if latest_s > min(outlook.foreseen_s, horizon_s) * (1 + SAME_PRICE):
        return min(0.0, float(outlook.values.min()))
    soonest_s = left / hull.fastest.iterations_per_s
    # Both ends are looked up among the same edges, and the outlook's own end is none: whatever the rounding, at least
    # one value lies between.
    edges_s = np.cumsum(outlook.durations_s)[:-1]
    first, last = np.searchsorted(edges_s, soonest_s), np.searchsorted(edges_s, latest_s, side="right")
    return float(outlook.values[first : last + 1].min())
