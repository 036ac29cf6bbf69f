"""What the HTTP API works with: the desk, the counters, whether the service is ready."""

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Literal, Protocol

from policies.service.metrics import Metrics
from policies.service.records import (
    ImportCounts,
    Job,
    JobExport,
    JobSettings,
    JobSummary,
    Posterior,
    Record,
    Result,
    Timing,
    Trial,
    TrialUpdate,
)


class TrialDesk(Protocol):
    """What the API needs of `policies.service.trials.repository.Desk`."""

    async def ask(
        self, job: str, run: str, *, batch_sizes: Sequence[int], default_batch_size: int, now_s: float
    ) -> Trial:
        """Return the trial of a run, a new one where it has none."""

    async def check(self) -> None:
        """Look whether the database can be read, and written where it could not be."""

    async def tell(self, job: str, run: str, result: Result, *, now_s: float) -> TrialUpdate:
        """Take in what is known of a run."""

    async def time(self, job: str, run: str, timing: Timing, *, now_s: float) -> Trial:
        """Take in what a run has timed."""

    async def jobs(self) -> list[JobSummary]:
        """Return all jobs."""

    async def job(self, name: str) -> Job:
        """Return a job."""

    async def trials(self, name: str, *, limit: int = 100, before: int | None = None) -> list[Trial]:
        """Return a job's newest trials, of those before a number."""

    async def trial(self, name: str, run: str) -> Trial:
        """Return the trial of a run."""

    async def posterior(self, name: str) -> Posterior:
        """Return what is believed of a job's batch sizes."""

    async def configure(self, name: str, settings: JobSettings) -> Job:
        """Replace a job's settings."""

    async def export(self, name: str | None = None) -> list[JobExport]:
        """Return a job, or all, with their trials."""

    async def import_(self, exports: Sequence[JobExport], *, now_s: float) -> ImportCounts:
        """Take in jobs with their trials."""

    async def forget(self, name: str) -> None:
        """Drop a job with its trials."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Service:
    """What the handlers are given.

    Attributes:
        is_ready: what keeps the service from its work, in a sentence; None while nothing does.
        document: the OpenAPI document.
    """

    desk: TrialDesk
    metrics: Metrics
    is_ready: Callable[[], str | None]
    document: bytes


class Liveness(Record, frozen=True, kw_only=True):
    """The process lives."""

    status: Literal["ok"] = "ok"


class Readiness(Record, frozen=True, kw_only=True):
    """Whether the service can do its work; `troubles` says what keeps it from that, a sentence each."""

    ready: bool
    troubles: tuple[str, ...] = ()


@dataclass(frozen=True, slots=True, kw_only=True)
class Reply:
    """An answer with another status than 200."""

    body: object
    status: int
