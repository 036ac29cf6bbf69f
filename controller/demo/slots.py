"""The day in slots of half an hour: what a terminal can show of it."""

from collections.abc import Sequence
from statistics import fmean
from typing import Final

from publishers.reports import GpuEnergy

N_SLOTS: Final = 48
SLOT_S: Final = 1_800.0
_BARS: Final = "▁▂▃▄▅▆▇█"


class Slots:
    """The mean power limit and carbon intensity in each half hour of a day that begins at `starts_s` [s]."""

    def __init__(self, starts_s: float) -> None:
        self._starts_s = starts_s
        self._limits_w: list[list[float]] = [[] for _ in range(N_SLOTS)]
        self._intensities_g_per_kwh: list[list[float]] = [[] for _ in range(N_SLOTS)]

    def add(self, energy: GpuEnergy) -> None:
        """Take a reading; one of another day is not shown."""
        slot = int((energy.time_s - self._starts_s) // SLOT_S)
        if not 0 <= slot < N_SLOTS:
            return
        if energy.power_limit_w is not None:
            self._limits_w[slot].append(energy.power_limit_w)
        if energy.carbon_intensity_g_per_kwh is not None:
            self._intensities_g_per_kwh[slot].append(energy.carbon_intensity_g_per_kwh)

    def limits(self, low_w: float, high_w: float) -> str:
        """Return the power limits of the day as a row of bars, from `low_w` to `high_w` [W]."""
        means_w = [fmean(slot) if slot else None for slot in self._limits_w]
        return sparkline([None if mean_w is None else (mean_w - low_w) / (high_w - low_w) for mean_w in means_w])

    def intensities(self) -> str:
        """Return the carbon intensities of the day as a row of bars, from the lowest to the highest so far."""
        means = [fmean(slot) if slot else None for slot in self._intensities_g_per_kwh]
        known = [mean for mean in means if mean is not None]
        low = min(known, default=0.0)
        span = max(known, default=0.0) - low or 1.0
        return sparkline([None if mean is None else (mean - low) / span for mean in means])


def sparkline(height_ratios: Sequence[float | None]) -> str:
    """Return a row of bars, one a height from 0 to 1; nothing where there is none."""
    top = len(_BARS) - 1
    return "".join(" " if ratio is None else _BARS[round(min(max(ratio, 0.0), 1.0) * top)] for ratio in height_ratios)
