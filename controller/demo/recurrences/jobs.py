"""The jobs that can recur in the demo: those of the Zeus paper in the included traces."""

from dataclasses import dataclass
from typing import Final

from controller.demo.recurrences.trace_files import INCLUDED, included_workloads
from policies.replay.batch_size.workload import FixedChoice, Workload, fixed_choice, optimum
from policies.replay.traces import JOBS

ETA: Final = 0.5
"""The weight of energy in the cost; the rest is that of time."""
GPU_MODEL: Final = "NVIDIA V100"
"""The GPU of the included traces."""


@dataclass(frozen=True, slots=True, kw_only=True)
class RecurringJob:
    """A job that recurs.

    Attributes:
        name: its name, also on the bus.
        title: network, target, GPU and batch sizes as text.
        workload: the measurements.
    """

    name: str
    title: str
    workload: Workload

    @property
    def best(self) -> FixedChoice:
        """Return the batch size and power limit of least mean cost, which only an oracle knows."""
        return optimum(self.workload, eta=ETA)

    @property
    def default(self) -> FixedChoice:
        """Return the cost of the user's batch size at its best power limit."""
        return fixed_choice(self.workload, self.workload.default, self.limit_w(self.workload.default), eta=ETA)

    def limit_w(self, batch_size: int) -> float:
        """Return the best power limit of a batch size, which a controller finds by profiling [W]."""
        return self.workload.best_limit_w(batch_size, ETA)


def list_jobs() -> list[str]:
    """Return the names of the jobs."""
    return [job.name for job in _load()]


def load_job(name: str) -> RecurringJob:
    """Return a job.

    Raises:
        KeyError: there is no such job.
    """
    return {job.name: job for job in _load()}[name]


def sources() -> list[str]:
    """Return source and licence of the traces, from their files."""
    return [_first_note(file) for file in ("train.csv", "v100.csv")]


def _first_note(file: str) -> str:
    return (INCLUDED / file).read_text(encoding="utf-8").splitlines()[0].removeprefix("#").strip()


def _load() -> list[RecurringJob]:
    targets = {job.name: job.target for job in JOBS}
    return [_job(workload, targets) for workload in included_workloads()]


def _job(workload: Workload, targets: dict[str, float]) -> RecurringJob:
    job = workload.name.split("@", maxsplit=1)[0]
    return RecurringJob(
        name=job.split("/", maxsplit=1)[0].split("-", maxsplit=1)[0],
        title=f"{job} until its metric is {targets[job]:g}, {GPU_MODEL}; batch sizes {_sizes(workload)}",
        workload=workload,
    )


def _sizes(workload: Workload) -> str:
    return f"{workload.candidates[0]} to {workload.candidates[-1]}, default {workload.default}"
