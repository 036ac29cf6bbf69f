"""Instant readings of a GPU's power, scaled to what its energy counter shows in the long run.

Each is of one moment, so that a training whose draw goes up and down within an iteration scatters them by several
percent; a mean of them is good where a counter is not yet. Over some 100 s the counter is the truth: what the instants
are off by in the mean is learnt, and taken from them. Between two readings of the counter they tell how the energy was
spread.
"""

import math
from collections.abc import Sequence
from dataclasses import replace
from itertools import accumulate, pairwise
from statistics import median
from typing import Final, NamedTuple

from controller.ports import Sample
from controller.runtime.clock import NS_PER_S

LEARNT_S: Final = 10.0
"""The ratio is known after so long …"""
MEMORY_S: Final = 100.0
"""… and is that of so long a time, with weights that fall exponentially."""
MAX_GAP_S: Final = 0.5
"""Readings farther apart than this are not compared."""
SAME_POWER_RATIO: Final = 0.25
"""Power changes by less within iterations; by more where a load begins or ends."""
MAX_RATIO: Final = 1.5
"""Meters that differ by more are two meters of different things."""


class _Reading(NamedTuple):
    time_ns: int
    power_w: float
    energy_j: float


class InstantPower:
    """The instant readings of one GPU.

    Attributes:
        n: how many there were, without those that came twice.
    """

    def __init__(self) -> None:
        self.n = 0
        self._before: _Reading | None = None
        self._counted_j = self._summed_j = self._compared_s = 0.0

    def scaled_w(self, raw: Sample, energy_j: float | None) -> float | None:
        """Return an instant reading scaled by the counter [W]; None where there is none, or its scale is not known.

        Args:
            raw: the reading.
            energy_j: the total by the energy counter; None where no counter is believed [J].
        """
        power_w, before = raw.instant_power_w, self._before
        if power_w is None or energy_j is None or not 0 < power_w < math.inf:
            self._before = None
            return None
        self._before = _Reading(raw.time_ns, power_w, energy_j)
        if before is None or power_w != before.power_w:
            self.n += 1
        if before is not None:
            self._compare(before, self._before)
        if self._compared_s < LEARNT_S or self._summed_j <= 0:
            return None
        ratio = self._counted_j / self._summed_j
        return power_w * ratio if 1 / MAX_RATIO <= ratio <= MAX_RATIO else None

    def _compare(self, before: _Reading, now: _Reading) -> None:
        span_s = (now.time_ns - before.time_ns) / NS_PER_S
        if not 0 < span_s <= MAX_GAP_S:
            return
        kept = math.exp(-span_s / MEMORY_S)
        self._counted_j = kept * self._counted_j + now.energy_j - before.energy_j
        self._summed_j = kept * self._summed_j + (before.power_w + now.power_w) / 2 * span_s
        self._compared_s = kept * self._compared_s + span_s


def spread(before: Sample, between: Sequence[Sample], after: Sample) -> list[Sample]:
    """Return readings of the power alone with the energy until each: what the counter has shown, as the power went.

    The energy is exact at both ends. Power that is near to its median counts as that: draw goes up and down within an
    iteration, and each reading is of one moment. Of itself a reading tells no instant power any more: that is in its
    energy.

    Args:
        before: the sample at which the counter was read last, with its total.
        between: what was read since then, oldest first; each tells its instant power.
        after: the sample at which it was read next.
    """
    powers_w = [each.instant_power_w or 0.0 for each in between]
    middle_w = median(powers_w)
    powers_w = [middle_w if abs(each_w - middle_w) <= SAME_POWER_RATIO * middle_w else each_w for each_w in powers_w]
    powers_w = [powers_w[0], *powers_w, powers_w[-1]]
    steps = zip(pairwise(powers_w), pairwise((before, *between, after)), strict=True)
    sums = list(
        accumulate(
            (one_w + other_w) * (later.time_ns - earlier.time_ns) for (one_w, other_w), (earlier, later) in steps
        )
    )
    used_j = (after.energy_j or 0.0) - (before.energy_j or 0.0)
    late_j = None if before.uncounted_j is None or after.uncounted_j is None else after.uncounted_j - before.uncounted_j
    return [
        replace(
            each,
            energy_j=(before.energy_j or 0.0) + used_j * share,
            instant_power_w=None,
            unmeasured_s=before.unmeasured_s,
            uncounted_j=None if late_j is None else (before.uncounted_j or 0.0) + late_j * share,
            n_instants=before.n_instants,
        )
        for each, share in zip(between, (part / sums[-1] for part in sums), strict=False)
    ]
