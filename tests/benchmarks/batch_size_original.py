"""The simulation beside Zeus's own simulator: the same histories, entry by entry, from the same random numbers."""

import contextlib
import io
from dataclasses import dataclass
from typing import Final

import numpy as np
import pandas as pd
from zeus._legacy.job import Job
from zeus._legacy.policy.optimizer import JITPowerLimitOptimizer, PruningGTSBatchSizeOptimizer
from zeus._legacy.simulate import HistoryEntry, Simulator

from policies.batch_size import zeus
from policies.batch_size.study import LearningSettings
from policies.replay.batch_size.simulation import EpochSampler, Policy, SimulatedRun, simulate
from policies.replay.batch_size.workload import Workload
from tests.policies.batch_size.reference import Reference

SEED: Final = 123456
"""Zeus's default."""
BETA: Final = 2.0
TARGET: Final = 1.0


class MismatchError(AssertionError):
    """A history that is not the original's."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Entry:
    """A run, as both tell it."""

    batch_size: int
    power_limit_w: float
    reached: bool


def compare_with_original(workload: Workload, eta: float) -> int:
    """Return how many entries a history has; raise `MismatchError` where ours, by either policy, is another one."""
    n_recurrences = 2 * len(workload.candidates) * len(workload.power_limits_w)
    with contextlib.redirect_stdout(io.StringIO()):  # it prints what never ran
        theirs = _original(workload, eta, n_recurrences)
    rng = np.random.default_rng(SEED)
    settings = LearningSettings(policy="zeus", beta=BETA)
    reference = Reference(candidates=workload.candidates, default=workload.default, seed=SEED, beta=BETA)
    policies: dict[str, Policy] = {"Zeus": reference, "zeus": lambda study: zeus.choose(study, settings, rng=rng)}
    for name, policy in policies.items():
        history = simulate(workload, policy, sampler=_draws(workload), eta=eta, n_recurrences=n_recurrences)
        _compare(theirs, history.runs, f"{workload.name}, eta {eta:g}, {name}")
    return len(theirs)


def _original(workload: Workload, eta: float, n_recurrences: int) -> list[HistoryEntry]:
    """Return the history of Zeus's simulator."""
    job = Job("dataset", "network", "optimizer", TARGET, workload.max_epochs, workload.default)
    simulator = Simulator(
        _train(workload),
        _power(workload),
        PruningGTSBatchSizeOptimizer(seed=SEED, verbose=False),
        JITPowerLimitOptimizer(verbose=False),
        seed=SEED,
        verbose=False,
    )
    return list(simulator.simulate_one_job(job, n_recurrences, BETA, eta))


def _train(workload: Workload) -> "pd.DataFrame":
    rows = [
        {"batch_size": size, "run": run, "target_metric": TARGET, "target_epoch": np.nan if epochs is None else epochs}
        for size in workload.candidates
        for run, epochs in enumerate(workload.recorded_epochs[size])
    ]
    return _of_the_job(pd.DataFrame(rows))


def _power(workload: Workload) -> "pd.DataFrame":
    rows = [
        {
            "batch_size": size,
            "power_limit": limit_w,
            "time_per_epoch": time_s,
            "average_power": workload.average_power_w[size, limit_w],
        }
        for (size, limit_w), time_s in workload.time_per_epoch_s.items()
    ]
    return _of_the_job(pd.DataFrame(rows))


def _of_the_job(frame: "pd.DataFrame") -> "pd.DataFrame":
    return frame.assign(dataset="dataset", network="network", optimizer="optimizer")


def _draws(workload: Workload) -> EpochSampler:
    """Return the draws of Zeus's simulator: one generator for all batch sizes."""
    rng = np.random.default_rng(SEED)

    def draw(batch_size: int, _recurrence: int) -> float | None:
        recorded_epochs = workload.recorded_epochs[batch_size]
        return recorded_epochs[int(rng.choice(len(recorded_epochs), size=1, replace=False)[0])]

    return draw


def _compare(theirs: list[HistoryEntry], ours: tuple[SimulatedRun, ...], what: str) -> None:
    """Raise `MismatchError` at the first entry that differs."""
    if len(theirs) != len(ours):
        raise MismatchError(f"{what}: {len(theirs)} runs of Zeus's simulator, {len(ours)} of ours")
    for at, (entry, run) in enumerate(zip(theirs, ours, strict=True)):
        expected = Entry(batch_size=int(entry.bs), power_limit_w=float(entry.pl), reached=bool(entry.reached))
        found = Entry(batch_size=run.batch_size, power_limit_w=run.power_limit_w, reached=run.reached)
        spent = np.isclose([entry.energy, entry.time], [run.spent.energy_j, run.spent.duration_s], rtol=1e-9, atol=0.0)
        if expected != found or not spent.all():
            raise MismatchError(f"{what}: run {at} is {entry} in Zeus's simulator and {run} in ours")
