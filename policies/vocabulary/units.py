"""Units: conversion factors, durations and the type of float arrays.

>>> energy_kwh(7_200_000.0)
2.0
>>> carbon_g(3_600_000.0, 441.0)
441.0
"""

from typing import Final, TypeAlias

import numpy as np
from numpy.typing import NDArray

Values: TypeAlias = NDArray[np.float64]
"""An array of floats; its unit is that of what it holds, NaN where a value is missing."""

HOUR_S: Final = 3_600.0
DAY_S: Final = 86_400.0

JOULES_PER_KWH: Final = 3_600_000.0
KWH_PER_MWH: Final = 1_000.0
KG_PER_POUND: Final = 0.45359237
"""The international avoirdupois pound, exact by definition."""
PENCE_PER_POUND: Final = 100.0
"""Of money: pounds sterling."""


def energy_kwh(energy_j: float) -> float:
    """Return an energy in [kWh], given in [J]."""
    return energy_j / JOULES_PER_KWH


def duration_text(duration_s: float) -> str:
    """Return a duration [s] for people.

    >>> [duration_text(duration_s) for duration_s in (59.4, 2_000.0, 83_580.0)]
    ['59 s', '33 min', '23 h 13 min']
    """
    minutes = round(duration_s / 60)
    if minutes >= 60:  # noqa: PLR2004 — of an hour
        return f"{minutes // 60} h {minutes % 60:02d} min"
    return f"{minutes} min" if duration_s >= 60 else f"{duration_s:.0f} s"  # noqa: PLR2004 — of a minute


def carbon_g(energy_j: float, intensity_g_per_kwh: float) -> float:
    """Return the carbon [gCO2eq] of an energy [J] at a carbon intensity [g/kWh].

    Where the first argument already is the sum of energy times intensity [J·g/kWh], give 1 as the second.
    """
    return energy_j * intensity_g_per_kwh / JOULES_PER_KWH


def cost(energy_j: float, price_per_kwh: float) -> float:
    """Return what an energy [J] costs at a price [money/kWh], in the same money."""
    return energy_j * price_per_kwh / JOULES_PER_KWH


def price_per_kwh(price_per_mwh: float) -> float:
    """Return a price in [money/kWh], given in [money/MWh]."""
    return price_per_mwh / KWH_PER_MWH


def price_pounds_per_kwh(price_pence_per_kwh: float) -> float:
    """Return a price in [GBP/kWh], given in [p/kWh]."""
    return price_pence_per_kwh / PENCE_PER_POUND


def intensity_g_per_kwh(intensity_lb_per_mwh: float) -> float:
    """Return a carbon intensity in [g/kWh], given in [lb/MWh]: 1 kg/MWh is 1 g/kWh."""
    return intensity_lb_per_mwh * KG_PER_POUND
