"""Amounts as people read them: three significant digits, in a unit of their size.

>>> energy_text(4_896.0), energy_text(9e6), power_text(1_227.4), carbon_text(1_234.0), money_text(12.345, "EUR")
('1.36 Wh', '2.5 kWh', '1.23 kW', '1.23 kg CO2e', '12.3 EUR')
"""

import math
from collections.abc import Callable, Sequence


def energy_text(energy_j: float) -> str:
    """Return an energy in Wh, kWh, MWh or GWh."""
    return _scaled(energy_j / 3_600, ("Wh", "kWh", "MWh", "GWh"))


def power_text(power_w: float) -> str:
    """Return a power in W, kW or MW; below 1 kW to the watt."""
    return _scaled(round(power_w) if abs(power_w) < 999.5 else power_w, ("W", "kW", "MW"))  # noqa: PLR2004 — as below


def carbon_text(carbon_g: float) -> str:
    """Return a mass of carbon dioxide, or what warms as much, in g, kg or t."""
    return f"{_scaled(carbon_g, ('g', 'kg', 't'))} CO2e"


def money_text(cost: float, currency: str | None) -> str:
    """Return a cost in its currency, where that is known."""
    return f"{_digits(cost)} {currency or ''}".rstrip()


def interval_texts(amount: float, half: float, text_of: Callable[[float], str]) -> list[str]:
    """Return the lower end of an interval, its middle and its upper end as texts, what is near zero with few digits."""
    values = [amount - half, amount, amount + half]
    largest = max(map(abs, values))
    if 0 < largest < math.inf:  # an end below a hundredth of the largest is rounded to the third digit of that
        n_decimals = 2 - math.floor(math.log10(largest))
        values = [it if abs(it) >= largest / 100 else round(it, n_decimals) + 0.0 for it in values]  # 0, never -0
    return [text_of(value) for value in values]


def _scaled(value: float, units: Sequence[str]) -> str:
    """Return an amount in the largest of the units, each a thousand of the one before."""
    place = 0
    while abs(value) >= 999.5 and place < len(units) - 1:  # noqa: PLR2004 — what rounds to a thousand
        value, place = value / 1_000, place + 1
    return f"{_digits(value)} {units[place]}"


def _digits(value: float) -> str:
    """Return a number with three significant digits and no exponent: 1.84, 61.2, 0.0123, 1,840."""
    if value == 0 or abs(value) >= 99.95:  # noqa: PLR2004 — no decimals from a hundred on
        return f"{value:,.0f}"
    return format(float(f"{value:.3g}"), ".10f").rstrip("0").rstrip(".")
