"""Amounts as people read them: three significant digits, in a unit of their size.

>>> work_text(1.234e6, "tokens", total_work=4e6), work_text(640.0, None)
('1.23 million of 4 million tokens', '640 units of work')
>>> energy_per_work_text(9e-3), energy_per_work_text(18.0)
('2.5 Wh per million', '5 Wh per 1,000')
>>> energy_text(4_896.0), energy_text(9e6), power_text(1_227.4), carbon_text(1_234.0), money_text(12.345, "EUR")
('1.36 Wh', '2.5 kWh', '1.23 kW', '1.23 kg CO2e', '12.3 EUR')
"""

import math
from collections.abc import Callable, Sequence
from typing import Final

UNNAMED: Final = "units of work"
"""What work is counted in where the training does not say it."""
MIN_READ_J: Final = 360.0
"""A tenth of a watt-hour: less is written with many zeros [J]."""
_COUNTS: Final = ("", "thousand", "million", "billion", "trillion")


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


def work_text(work: float, unit: str | None, *, total_work: float | None = None) -> str:
    """Return how much work was done, of how much in all, such as `1.23 million of 4 million tokens`."""
    amounts = (_scaled(each, _COUNTS).rstrip() for each in (work, total_work) if each)
    return f"{' of '.join(amounts) or '0'} {unit or UNNAMED}"


def energy_per_work_text(energy_per_work_j: float) -> str:
    """Return the energy of so many units of work that it is easily read, such as `2.5 Wh per million`."""
    sizes = {1e3: "1,000"} | {1_000.0**place: count for place, count in enumerate(_COUNTS) if place > 1}
    size = next((size for size in sizes if size * energy_per_work_j >= MIN_READ_J), max(sizes))
    return f"{energy_text(size * energy_per_work_j)} per {sizes[size]}"


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
