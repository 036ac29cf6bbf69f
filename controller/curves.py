"""The curves that a plan is made on: the measured one as a run lives it, as it probably is, as it may be. Pure."""

import hashlib
from dataclasses import replace

import numpy as np

from policies.profile import PowerProfile
from policies.profiling import believed, perturbed
from policies.profiling.estimate import NORMAL_95, WINDOW_CV_RATIO


def as_lived(measured: PowerProfile) -> PowerProfile:
    """Return a measured curve with the stalls in it: rates by which a run gets on over hours, not from stall to stall.

    A rate is measured robustly, since one stall among fifteen iterations would else pass for a slower limit. But a run
    has its stalls, at every limit; where they are one in a hundred, a budget of 3 % would be missed by a third of it.
    How much they take is known from all iterations together: their whole time over what their robust rates say.

    >>> from policies.profile import ProfilePoint
    >>> points = (ProfilePoint(power_limit_w=300.0, power_w=250.0, iterations_per_s=2.0, n=100, active_s=51.0),)
    >>> round(as_lived(PowerProfile(points)).fastest.iterations_per_s, 4)
    1.9608
    """
    robust_s = sum(point.n / point.iterations_per_s for point in measured.points)
    whole_s = sum(point.active_s for point in measured.points if point.n)
    if not (robust_s > 0 and whole_s > 0):
        return measured
    return _scaled(measured, robust_s / whole_s)


def as_it_probably_is(measured: PowerProfile) -> PowerProfile:
    """Return the most probable curve after what was measured, with its stalls."""
    return believed(as_lived(measured))


def as_it_may_be(measured: PowerProfile, *, job: str, run: str, n_block: int) -> PowerProfile:
    """Return a curve moved by what is not known of it, always in the same way for a block of a run.

    The rate at the highest limit stays: the promise of a plan is made in terms of it.
    """
    lived = as_lived(measured)
    seed = hashlib.blake2b(f"{job}/{run}/{n_block}".encode(), digest_size=16).digest()
    moved = perturbed(lived, np.random.Generator(np.random.Philox(key=int.from_bytes(seed, "little"))))
    return _scaled(moved, believed(lived).fastest.iterations_per_s / moved.fastest.iterations_per_s)


def n_measurements_in(measured: PowerProfile) -> int:
    """Return how many measurements a curve holds, by how well its rates are known."""
    n_windows = sum(
        (NORMAL_95 * WINDOW_CV_RATIO * point.iterations_per_s / point.iterations_per_s_ci) ** 2
        for point in measured.points
        if point.iterations_per_s_ci
    )
    return round(n_windows)


def _scaled(curve: PowerProfile, rate_ratio: float) -> PowerProfile:
    """Return a curve with all rates multiplied."""
    return PowerProfile(
        tuple(
            replace(
                point,
                iterations_per_s=point.iterations_per_s * rate_ratio,
                iterations_per_s_ci=(
                    None if point.iterations_per_s_ci is None else point.iterations_per_s_ci * rate_ratio
                ),
            )
            for point in curve.points
        )
    )
