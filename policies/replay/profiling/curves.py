"""The true curves of a power trace: power and iteration time of each of its jobs, every 5 W.

A trace gives seconds per epoch; an iteration takes that divided by the batches of an epoch. Between the measured limits
power and time are linear in the limit, which is not how any policy interpolates; smooth curves are, as ours does.
Measured points where more power makes a job slower, or a higher limit makes it draw less, are noise of the trace, and
are pooled (isotonic regression); as measured, such a job has a best limit by luck.
"""

import math
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass
from functools import partial
from typing import Final, Literal

import numpy as np

from policies.replay.traces import JOBS, PowerTrace
from policies.vocabulary.cost import zeus_cost
from policies.vocabulary.power_curve import fit_curve, smoothed
from policies.vocabulary.profile import PowerProfile
from policies.vocabulary.units import Values

CurveShape = Literal["linear", "smooth", "as_measured"]
"""Pooled and linear between the measured limits; pooled and smooth; or not pooled and linear."""
GRID_W: Final = 5.0
POWER_BOUND_RATIO: Final = 1.05
"""A job that the lowest limit slows by less is not power-bound: there is nothing to choose."""
ASSUMED_ITERATION_TIME_S: Final = 0.2
"""At the highest limit, for datasets with an unknown number of samples per epoch."""
NEGATIVES: Final = 4
MOVIELENS_USERS: Final = 6_040
SAMPLES_PER_EPOCH: Final[Mapping[str, int]] = {job.dataset: job.n_samples for job in JOBS} | {
    # One rating of each user is held out; each other one comes with four negative samples (He et al., Neural
    # Collaborative Filtering, WWW 2017, section 4.1).
    "movielens-1m": (1_000_209 - MOVIELENS_USERS) * (1 + NEGATIVES)
}


@dataclass(frozen=True, slots=True, kw_only=True)
class TrueCurve:
    """The true curve of a job on a GPU, which only the simulation knows.

    Attributes:
        name: dataset/network/optimizer/batch size@GPU.
        profile: power and rate every 5 W.
        is_assumed: whether the iteration time is assumed; the shape of the curve is always measured.
    """

    name: str
    profile: PowerProfile
    is_assumed: bool

    @property
    def iteration_time_s(self) -> float:
        """Return the time of an iteration at the highest limit [s]."""
        return 1 / self.profile.fastest.iterations_per_s

    @property
    def max_power_limit_w(self) -> float:
        """Return the highest limit [W]."""
        return self.profile.fastest.power_limit_w

    @property
    def is_power_bound(self) -> bool:
        """Return whether the lowest limit slows the job by more than a twentieth."""
        rates_per_s = self.profile.iterations_per_s
        return bool(rates_per_s[-1] / rates_per_s[0] > POWER_BOUND_RATIO)

    def costs_j(self, eta: float) -> Values:
        """Return Zeus's cost of an iteration at each limit, with time priced at the highest limit, shape (n,) [J]."""
        return np.asarray(
            zeus_cost(self.profile.power_w, self.profile.iterations_per_s, eta=eta, max_power_w=self.max_power_limit_w),
            dtype=np.float64,
        )

    def cost_ratio(self, power_limit_w: float, eta: float) -> float:
        """Return the cost of an iteration at a limit, relative to the best limit."""
        power_w, rate_per_s = self.profile.at(power_limit_w)
        cost_j = zeus_cost(power_w, rate_per_s, eta=eta, max_power_w=self.max_power_limit_w)
        return cost_j / float(self.costs_j(eta).min())


def true_curves(trace: PowerTrace, *, shape: CurveShape = "linear") -> Iterator[TrueCurve]:
    """Yield a curve for each dataset, network, optimizer and batch size measured at two limits or more.

    Args:
        trace: the measurements.
        shape: whether points that contradict one another are pooled, and what is between the measured limits.
    """
    for identity, size in trace.curves():
        times_s = {
            limit_w: time_s for (other, limit_w), time_s in trace.time_per_epoch_s[identity].items() if other == size
        }
        if len(times_s) < 2:  # noqa: PLR2004 — one limit is no curve
            continue
        n_samples = SAMPLES_PER_EPOCH.get(identity[0])
        n_batches = times_s[max(times_s)] / ASSUMED_ITERATION_TIME_S if n_samples is None else n_samples / size
        measured = trace.profile(identity, size, n_batches)
        yield TrueCurve(
            name=f"{'/'.join(identity)}/{size}@{trace.name}",
            profile=_SHAPED[shape](measured),
            is_assumed=n_samples is None,
        )


def linear_curve(measured: PowerProfile) -> PowerProfile:
    """Return the measured points, with points every 5 W between them, linear in power and in the time of an iteration.

    >>> measured = PowerProfile.from_rows([(100.0, 90.0, 1.0), (110.0, 94.0, 2.0)])
    >>> [point.power_w for point in linear_curve(measured).points]
    [90.0, 92.0, 94.0]
    """
    measured_w = measured.power_limits_w
    first, last = math.ceil(measured_w[0] / GRID_W), math.floor(measured_w[-1] / GRID_W)
    limits_w = np.union1d(measured_w, GRID_W * np.arange(first, last + 1))
    powers_w = np.interp(limits_w, measured_w, measured.power_w)
    times_s = np.interp(limits_w, measured_w, 1 / measured.iterations_per_s)
    return PowerProfile.from_rows(zip(limits_w.tolist(), powers_w.tolist(), (1 / times_s).tolist(), strict=True))


_SHAPED: Final[Mapping[CurveShape, Callable[[PowerProfile], PowerProfile]]] = {
    "linear": lambda measured: linear_curve(smoothed(measured)),
    "smooth": partial(fit_curve, step_w=GRID_W),
    "as_measured": linear_curve,
}
