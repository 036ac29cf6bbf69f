"""The jobs that the demo can let recur: measured ones of the Zeus paper, from the traces that come along."""

from dataclasses import dataclass
from typing import Final

from controller.demo.recurrences.trace_files import INCLUDED, included_workloads
from policies.replay.batch_size.workload import FixedChoice, Workload, fixed_choice, optimum
from policies.replay.traces import JOBS

ETA: Final = 0.5
"""The weight of energy in the cost; the rest is that of time."""
GPU_MODEL: Final = "NVIDIA V100"
"""Where the traces that come along were measured."""


@dataclass(frozen=True, slots=True, kw_only=True)
class RecurringJob:
    """A job that recurs.

    Attributes:
        name: how the demo calls it; also its name on the bus.
        title: what it trains until when, and on which GPU, for people.
        workload: what was measured.
    """

    name: str
    title: str
    workload: Workload

    @property
    def best(self) -> FixedChoice:
        """Return the batch size and power limit that cost least on average, which only an oracle knows."""
        return optimum(self.workload, eta=ETA)

    @property
    def default(self) -> FixedChoice:
        """Return what the user's own batch size costs on average, at the power limit that is best for it."""
        return fixed_choice(self.workload, self.workload.default, self.limit_w(self.workload.default), eta=ETA)

    def limit_w(self, batch_size: int) -> float:
        """Return the power limit at which a controller that knows the curve would train [W]."""
        return self.workload.best_limit_w(batch_size, ETA)


def list_jobs() -> list[str]:
    """Return the names there are."""
    return [job.name for job in _load()]


def load_job(name: str) -> RecurringJob:
    """Return a job.

    Raises:
        KeyError: there is none of this name.
    """
    return {job.name: job for job in _load()}[name]


def sources() -> list[str]:
    """Return where the traces come from and under which terms, as their files say."""
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
