"""A measured workload: how many epochs a job needs at each batch size, and the energy and time of an epoch."""

from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from statistics import NormalDist
from typing import Final

import numpy as np

from policies.replay.traces import JOBS, Metric, PowerTrace, TraceError, TrainTrace, ZeusJob, identity_of

NOISE_QUANTILES: Final = 400
"""The number of equally likely values over which run-to-run noise is averaged."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Consumption:
    """Energy [J] and time [s]: of an epoch, a run or a recurrence."""

    energy_j: float
    duration_s: float

    def cost(self, eta: float, max_power_w: float) -> float:
        """Return Zeus's cost, η·E + (1-η)·P_max·T (arXiv:2208.06102, eq. 2) [J]."""
        return eta * self.energy_j + (1 - eta) * max_power_w * self.duration_s

    def times(self, n_epochs: float) -> "Consumption":
        """Return the consumption of `n_epochs` such epochs."""
        return Consumption(energy_j=self.energy_j * n_epochs, duration_s=self.duration_s * n_epochs)

    def plus(self, other: "Consumption") -> "Consumption":
        """Return the sum."""
        return Consumption(energy_j=self.energy_j + other.energy_j, duration_s=self.duration_s + other.duration_s)


def total_consumption(parts: Iterable[Consumption]) -> Consumption:
    """Return the sum of several."""
    energy_j = duration_s = 0.0
    for part in parts:
        energy_j, duration_s = energy_j + part.energy_j, duration_s + part.duration_s
    return Consumption(energy_j=energy_j, duration_s=duration_s)


@dataclass(frozen=True, slots=True, kw_only=True)
class Workload:
    """A job as measured on one model of GPU.

    Attributes:
        name: the job, and where it was measured.
        candidates: the measured batch sizes, ascending.
        default: the batch size of its user.
        n_samples: the samples of an epoch, at least.
        max_epochs: a run that has not reached its target by then is given up.
        recorded_epochs: the epochs to the target of each recorded run, by batch size; None: not reached.
        time_per_epoch_s: the time of an epoch, by (batch size, power limit [W]) [s].
        average_power_w: its average power, by the same key [W].
    """

    name: str
    candidates: tuple[int, ...]
    default: int
    n_samples: int
    max_epochs: int
    recorded_epochs: Mapping[int, tuple[float | None, ...]]
    time_per_epoch_s: Mapping[tuple[int, float], float]
    average_power_w: Mapping[tuple[int, float], float]

    @property
    def power_limits_w(self) -> tuple[float, ...]:
        """Return all measured power limits, ascending [W]."""
        return tuple(sorted({limit_w for _, limit_w in self.time_per_epoch_s}))

    @property
    def max_power_w(self) -> float:
        """Return the highest power limit [W]."""
        return self.power_limits_w[-1]

    def limits_of(self, batch_size: int) -> tuple[float, ...]:
        """Return the power limits measured at a batch size, descending, as they are profiled [W]."""
        return tuple(sorted((limit_w for size, limit_w in self.time_per_epoch_s if size == batch_size), reverse=True))

    def epoch(self, batch_size: int, power_limit_w: float) -> Consumption:
        """Return the consumption of an epoch."""
        duration_s = self.time_per_epoch_s[batch_size, power_limit_w]
        return Consumption(energy_j=duration_s * self.average_power_w[batch_size, power_limit_w], duration_s=duration_s)

    def best_limit_w(self, batch_size: int, eta: float) -> float:
        """Return the power limit of the cheapest epoch; the highest of equals [W]."""
        max_power_w = self.max_power_w
        return min(
            self.limits_of(batch_size), key=lambda limit_w: self.epoch(batch_size, limit_w).cost(eta, max_power_w)
        )

    def profiling_epoch(self, batch_size: int) -> Consumption:
        """Return the consumption of an epoch that tries every power limit for an equal share of its iterations."""
        limits_w = self.limits_of(batch_size)
        return total_consumption(self.epoch(batch_size, limit_w) for limit_w in limits_w).times(1 / len(limits_w))

    def n_expected_epochs(self, batch_size: int, noise_ratio: float = 0.0) -> float:
        """Return the mean epochs to reach the target, including runs that are given up; may be infinite.

        Args:
            batch_size: the batch size.
            noise_ratio: the standard deviation of the logarithm of run-to-run noise, beyond that of the records.
        """
        levels = (np.arange(NOISE_QUANTILES) + 0.5) / NOISE_QUANTILES if noise_ratio else np.array([0.5])
        factors = np.exp(noise_ratio * np.array([NormalDist().inv_cdf(level) for level in levels]))
        recorded_epochs = np.array([np.inf if path is None else path for path in self.recorded_epochs[batch_size]])
        epochs = np.outer(recorded_epochs, factors)
        reached = epochs <= self.max_epochs
        return float(np.minimum(epochs, self.max_epochs).mean() / reached.mean()) if reached.any() else float("inf")

    def always_reaches(self, batch_size: int) -> bool:
        """Return whether every recorded run at a batch size reached the target in time."""
        return all(path is not None and path <= self.max_epochs for path in self.recorded_epochs[batch_size])


@dataclass(frozen=True, slots=True, kw_only=True)
class FixedChoice:
    """A fixed batch size and power limit, and the mean consumption and cost of a recurrence."""

    batch_size: int
    power_limit_w: float
    mean: Consumption
    cost: float


def fixed_choice(
    workload: Workload, batch_size: int, power_limit_w: float, *, eta: float, noise_ratio: float = 0.0
) -> FixedChoice:
    """Return the cost of always using one batch size and power limit."""
    mean = workload.epoch(batch_size, power_limit_w).times(workload.n_expected_epochs(batch_size, noise_ratio))
    return FixedChoice(
        batch_size=batch_size, power_limit_w=power_limit_w, mean=mean, cost=_cost(mean, eta, workload.max_power_w)
    )


def optimum(workload: Workload, *, eta: float, noise_ratio: float = 0.0) -> FixedChoice:
    """Return the batch size and power limit of least mean cost, which only an oracle knows."""
    each = (
        fixed_choice(workload, size, workload.best_limit_w(size, eta), eta=eta, noise_ratio=noise_ratio)
        for size in workload.candidates
    )
    return min(each, key=lambda one: one.cost)


def _cost(mean: Consumption, eta: float, max_power_w: float) -> float:
    return mean.cost(eta, max_power_w) if np.isfinite(mean.duration_s) else float("inf")


def workloads_of(train: TrainTrace, power: PowerTrace, jobs: Sequence[ZeusJob] = JOBS) -> list[Workload]:
    """Return the jobs that are in both traces, each with the batch sizes that are in both.

    Raises:
        TraceError: there is none, or one never reached its target.
    """
    common = [job for job in jobs if train.sizes_of(job) & power.sizes_of(job)]
    if not common:
        known = ", ".join(f"{job.name} with {job.optimizer}" for job in jobs)
        raise TraceError([f"{power.source} and {train.source} share no batch size of a job; known jobs: {known}"])
    faults = [fault for job in common for fault in _untrained(job, train, power)]
    if faults:
        raise TraceError(faults)
    return [_workload(job, train, power) for job in common]


def _untrained(job: ZeusJob, train: TrainTrace, power: PowerTrace) -> Iterator[str]:
    """Yield why a job has batch sizes without data, or never reaches its target."""
    runs = train.epochs[identity_of(job)]
    sizes = sorted(train.sizes_of(job) & power.sizes_of(job))
    recorded_epochs = {size: runs.get((Metric(job.target), size)) for size in sizes}
    missing = [size for size in sizes if recorded_epochs[size] is None]
    if missing:
        yield f"{train.source}: {job.name}: no row of target {job.target:g} at the batch sizes {missing}"
    epochs = [epoch for path in recorded_epochs.values() if path is not None for epoch in path.values()]
    if epochs and not any(epoch is not None and epoch <= job.max_epochs for epoch in epochs):
        yield (
            f"{train.source}: {job.name}: no run reached target {job.target:g} within {job.max_epochs} epochs at any "
            f"batch size that is in {power.source}, too: {sizes}"
        )


def _workload(job: ZeusJob, train: TrainTrace, power: PowerTrace) -> Workload:
    sizes = tuple(sorted(train.sizes_of(job) & power.sizes_of(job)))
    runs = train.epochs[identity_of(job)]
    times_s, powers_w = power.time_per_epoch_s[identity_of(job)], power.average_power_w[identity_of(job)]
    return Workload(
        name=f"{job.name}@{power.name}",
        candidates=sizes,
        default=max((size for size in sizes if size <= job.default), default=sizes[0]),
        n_samples=job.n_samples,
        max_epochs=job.max_epochs,
        recorded_epochs={size: tuple(runs[Metric(job.target), size].values()) for size in sizes},
        time_per_epoch_s={key: value for key, value in times_s.items() if key[0] in sizes},
        average_power_w={key: value for key, value in powers_w.items() if key[0] in sizes},
    )
