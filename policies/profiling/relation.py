"""Whether the rate of a job has anything to do with the power limit of the GPU that is said to be its own."""

import math
from typing import Final

from policies.vocabulary.profile import PowerProfile

LEAST_CUT_RATIO: Final = 0.1
"""A limit that was cut by less than this says nothing."""
LEAST_LOSS_RATIO: Final = 0.02
"""A rate that falls by less than this at every lower limit does not react to it."""


def ignores_limits(profile: PowerProfile) -> bool:
    """Return whether a measured curve is flat within its noise, although the limit was cut.

    A job that waits for its data has such a curve, too: the driver's list of processes must tell the two apart.
    """
    top = max(profile.points, key=lambda point: point.power_limit_w)
    cut = [point for point in profile.points if point.power_limit_w <= (1 - LEAST_CUT_RATIO) * top.power_limit_w]
    for point in cut:
        noise_per_s = math.hypot(point.iterations_per_s_ci or 0.0, top.iterations_per_s_ci or 0.0)
        if top.iterations_per_s - point.iterations_per_s > max(LEAST_LOSS_RATIO * top.iterations_per_s, noise_per_s):
            return False
    return bool(cut)
