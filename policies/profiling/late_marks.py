"""Late marks: steps that seem long because something waited for the device, made good by a later one that is as short.

A framework queues its work, so an optimizer's hook runs ahead of the device by a step or so. Where a loop waits for a
result now and then, as for a loss that it logs, its mark comes late, as may the next ones, until a step seems as short
as the first was long: of an H100's steps of 64 ms each fiftieth mark was 20 ms late. A window of time that is cut at
such a mark is off by a third of a step.

Marks between the two are moved back. What is no outlier stays, as does what is not made good: a stall, or a pause.
"""

from typing import Final, NamedTuple

import numpy as np
from numpy.typing import NDArray

from policies.vocabulary.units import Values

TimesNs = NDArray[np.int64]

LATE_RATIO: Final = 0.05
"""A mark is late where its step seems longer than usual by this share …"""
LATE_DEVIATIONS: Final = 4.0
"""… and by so many robust standard deviations …"""
MADE_GOOD_RATIO: Final = 0.25
"""… and a later step is as much shorter, to this share of the excess …"""
MOST_LATE: Final = 8
"""… after so many steps at most, none of which is an outlier."""
QUARTILE_PER_DEVIATION: Final = 0.3186
"""The lower quartile of the absolute deviations of normal noise, in standard deviations: half of the steps may be
outliers, long and short ones, in a loop that waits often."""
LEAST_N: Final = 8
"""With fewer steps it is not known what is usual."""


class UsualStep(NamedTuple):
    """How long steps take, and by how much an outlier is longer or shorter, both [ns]."""

    time_ns: float
    reach_ns: float


class SettledMarks(NamedTuple):
    """Marks without late ones, shape (n,) [ns], and until when none will move [ns]."""

    marks_ns: TimesNs
    settled_ns: int


def usual_step(times_s: Values) -> UsualStep | None:
    """Return what is usual among the last steps, shape (n,) [s]; None: it is not known, or there is no outlier."""
    if len(times_s) < LEAST_N or float(times_s.max()) <= (1 + LATE_RATIO) * float(times_s.min()):
        return None
    middle, quarter = len(times_s) // 2, len(times_s) // 4
    time_s = float(np.partition(times_s, middle)[middle])
    deviation_s = float(np.partition(np.abs(times_s - time_s), quarter)[quarter]) / QUARTILE_PER_DEVIATION
    return UsualStep(1e9 * time_s, 1e9 * max(LATE_RATIO * time_s, LATE_DEVIATIONS * deviation_s))


def settle_marks(marks_ns: TimesNs, usual: UsualStep | None, *, fixed_until_ns: int = 0) -> SettledMarks:
    """Return marks with the late ones among them moved; the first and the last stay.

    Args:
        marks_ns: the beginning of a step, and the end of each from there on, shape (n,) [ns].
        usual: what steps take; None: no mark is late.
        fixed_until_ns: what lies before is counted already: no step that began before is taken for a late one [ns].
    """
    end_ns = int(marks_ns[-1])
    if usual is None:
        return SettledMarks(marks_ns, end_ns)
    off_ns = np.diff(marks_ns) - usual.time_ns
    outliers = np.flatnonzero(np.abs(off_ns) > usual.reach_ns)
    if not len(outliers):
        return SettledMarks(marks_ns, end_ns)
    # In arrays: a hostile training sends thousands of outliers in a message.
    may_be_late = (off_ns[outliers] > 0) & (marks_ns[outliers] >= fixed_until_ns)
    last = int(outliers[-1])
    is_open = may_be_late[-1] and len(off_ns) - last <= MOST_LATE
    settled_ns = int(marks_ns[last]) if is_open else end_ns
    at, back = outliers[:-1][may_be_late[:-1]], outliers[1:][may_be_late[:-1]]
    made_good = (back - at <= MOST_LATE) & (np.abs(off_ns[at] + off_ns[back]) <= MADE_GOOD_RATIO * off_ns[at])
    if not made_good.any():
        return SettledMarks(marks_ns, settled_ns)
    at, back = at[made_good], back[made_good]
    by_ns, steps_ns = np.rint((off_ns[at] - off_ns[back]) / 2).astype(np.int64), np.zeros_like(marks_ns)
    steps_ns[at + 1] = by_ns
    steps_ns[back + 1] = -by_ns  # no two pairs share a mark: the first is long, the second short
    return SettledMarks(marks_ns - np.cumsum(steps_ns), settled_ns)
