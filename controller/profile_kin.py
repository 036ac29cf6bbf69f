"""Which known curve is nearest to the one that is wanted: it says where to look, and is checked before it is believed.

In this order: the same batch size on other GPUs of the model, or under another driver; then other batch sizes. Between
two of them the curve is interpolated over the logarithm of the batch size; beyond them the nearest one's shape is the
better guess. On Zeus's curves of the A40 and the V100, each predicted from the others of its job and moved to what is
measured at the highest limit, the worst error of rate and power above the energy-minimal limit is 5 % (median) between
two neighbours, 7 % from the nearer of them alone; beyond the last one it is 4 to 7 % from the nearest and 7 to 10 %
extrapolated from two.
"""

import math
from collections.abc import Iterable, Mapping
from dataclasses import replace
from typing import Final, NamedTuple

import numpy as np

from controller.profile_files import ProfileKey
from policies.profile import SAME_LIMIT_W, PowerProfile, ProfilePoint

LEAST_POINTS: Final = 3
"""A curve of fewer points has no shape."""


class Kin(NamedTuple):
    """A guess at a curve, and whose it is, in words."""

    profile: PowerProfile
    origin: str


def nearest_kin(key: ProfileKey, known: Mapping[ProfileKey, PowerProfile]) -> Kin | None:
    """Return the best guess at the curve of `key`, or None; of two that are as near, the later in `known`."""
    kin = {
        other: profile
        for other, profile in known.items()
        if (other.job, other.gpu_model) == (key.job, key.gpu_model) and len(profile.points) >= LEAST_POINTS
    }
    if same := _nearest((other for other in kin if other.batch_size == key.batch_size), key):
        return Kin(_moved(kin[same], same, key), f"measured {_differently(same, key)}")
    if key.batch_size is None:
        return None
    sizes = sorted({other.batch_size for other in kin if other.batch_size is not None})
    below = [size for size in sizes if size < key.batch_size][-1:]
    above = [size for size in sizes if size > key.batch_size][:1]
    ends = [end for size in (*below, *above) if (end := _nearest((o for o in kin if o.batch_size == size), key))]
    if below and above:
        return _between(*((end, _moved(kin[end], end, key)) for end in ends), key=key)
    return Kin(_moved(kin[ends[0]], ends[0], key), f"measured at batch size {ends[0].batch_size}") if ends else None


def _nearest(others: Iterable[ProfileKey], key: ProfileKey) -> ProfileKey | None:
    """Return whose curve is likeliest to be the same."""
    latest_first = reversed(list(others))
    return max(
        latest_first,
        default=None,
        key=lambda other: (
            other.n_gpus == key.n_gpus,
            other.world_size == key.world_size,
            other.gpu_uuids == key.gpu_uuids,
            other.driver == key.driver,
        ),
    )


def _differently(other: ProfileKey, key: ProfileKey) -> str:
    """Return what is different about another curve."""
    differences = {
        f"on {other.n_gpus} GPUs of the node": other.n_gpus != key.n_gpus,
        f"with {other.world_size} ranks": other.world_size != key.world_size,
        "on other GPUs": other.n_gpus == key.n_gpus and other.gpu_uuids != key.gpu_uuids,
        "under another driver": other.driver != key.driver,
    }
    return ", ".join(text for text, is_so in differences.items() if is_so)


def _moved(profile: PowerProfile, other: ProfileKey, key: ProfileKey) -> PowerProfile:
    """Return another's curve as ours might be: power goes with the GPUs, the samples per second stay."""
    gpus_ratio = key.n_gpus / other.n_gpus if other.n_gpus else 1.0
    rate_ratio = other.batch_size / key.batch_size if other.batch_size and key.batch_size else 1.0
    return PowerProfile(
        tuple(
            replace(
                point,
                power_w=point.power_w * gpus_ratio,
                iterations_per_s=point.iterations_per_s * rate_ratio,
                power_ci_w=_scaled_ci(point.power_ci_w, gpus_ratio),
                iterations_per_s_ci=_scaled_ci(point.iterations_per_s_ci, rate_ratio),
            )
            for point in profile.points
        )
    )


def _between(
    low: tuple[ProfileKey, PowerProfile], high: tuple[ProfileKey, PowerProfile], *, key: ProfileKey
) -> Kin | None:
    """Return the curve between those of two batch sizes, at the limits that both of them reach."""
    sizes = [math.log(size) for size in (low[0].batch_size, key.batch_size, high[0].batch_size) if size]
    weight = (sizes[1] - sizes[0]) / (sizes[2] - sizes[0])
    curves = [low[1], high[1]]
    least_w, most_w = (
        pick(float(curve.power_limits_w[end]) for curve in curves) for pick, end in ((max, 0), (min, -1))
    )
    limits_w: list[float] = []
    for limit_w in sorted(point.power_limit_w for curve in curves for point in curve.points):
        if least_w <= limit_w <= most_w and (not limits_w or limit_w > limits_w[-1] + SAME_LIMIT_W):
            limits_w.append(limit_w)
    points = []
    for limit_w in limits_w:
        ends = np.log([curve.at(limit_w) for curve in curves])  # shape (2 curves, power and rate)
        power_w, iterations_per_s = np.exp((1 - weight) * ends[0] + weight * ends[1])
        points.append(
            ProfilePoint(power_limit_w=limit_w, power_w=float(power_w), iterations_per_s=float(iterations_per_s))
        )
    if len(points) < LEAST_POINTS:
        nearer = low if weight <= 1 / 2 else high
        return Kin(nearer[1], f"measured at batch size {nearer[0].batch_size}")
    return Kin(PowerProfile(tuple(points)), f"between batch sizes {low[0].batch_size} and {high[0].batch_size}")


def _scaled_ci(half_width_ci: float | None, factor_ratio: float) -> float | None:
    return None if half_width_ci is None else half_width_ci * factor_ratio
