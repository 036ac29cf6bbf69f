"""The records of the policy service: jobs, the trials of their runs, and what runs report.

A job is one user's: two users' `resnet50` are two jobs.

A trial is one run of a job under the service: first the promise of a batch size and, once it has ended, an observation.
Only trials are stored; posteriors are computed from them.
"""

from typing import Annotated, Literal, NamedTuple, Self

from msgspec import Meta, Struct

from policies.batch_size.study import Belief, Choice
from publishers.messages.codec import (
    Amount,
    BatchSize,
    Count,
    IterationTimeS,
    Name,
    Number,
    PowerW,
    Sentence,
    Text,
    TimeS,
)
from publishers.messages.reports import TrialState
from publishers.messages.topics import RunKey

ENDED: frozenset[str] = frozenset({"reached", "stopped", "failed"})
IN_FLIGHT: frozenset[str] = frozenset({"open", "running"})

Ratio = Annotated[float, Meta(gt=0, le=1)]
Eta = Annotated[float, Meta(ge=0, le=1)]
Beta = Annotated[float, Meta(gt=1, le=1_000)]
LeaseS = Annotated[float, Meta(gt=0, le=604_800)]
RecurrenceNumber = Annotated[int, Meta(ge=0, le=1 << 31)]
Candidates = Annotated[tuple[BatchSize, ...], Meta(min_length=1, max_length=256)]
User = Annotated[str, Meta(max_length=128)]
"""Whose a job is: the broker's user, without one the login name. "" is nobody: a job of the time before jobs had users,
from which no run learns until it is imported for a user."""


class JobKey(NamedTuple):
    """Which job."""

    user: str
    job: str

    @classmethod
    def of(cls, run: RunKey) -> Self:
        """Return which job a run is a recurrence of."""
        return cls(run.user, run.job)

    def __str__(self) -> str:
        """Return how people name it."""
        return "/".join(self)


class Record(Struct, frozen=True, kw_only=True, omit_defaults=False, forbid_unknown_fields=True):
    """A record that travels as JSON over HTTP, and to files."""


class JobSettings(Record, frozen=True, kw_only=True):
    """A job's own settings; None: as in the configuration of the service."""

    policy: Literal["gridchase", "zeus"] | None = None
    eta: Eta | None = None
    beta: Beta | None = None
    forgetting_ratio: Ratio | None = None


class Job(Record, frozen=True, kw_only=True):
    """A recurring training of one user. `batch_sizes` are ascending and distinct; the default is one of them."""

    user: User = ""
    name: Name
    batch_sizes: Candidates
    default_batch_size: BatchSize
    created_at_s: TimeS
    settings: JobSettings = JobSettings()

    @property
    def key(self) -> JobKey:
        """Return which job it is."""
        return JobKey(self.user, self.name)


class Result(Record, frozen=True, kw_only=True):
    """What a run reports, all at once over HTTP, or piece by piece over the bus; None: not reported.

    Attributes:
        outcome: how it ended; None: it goes on.
        epochs: how many epochs were counted; energy and duration are those of these epochs.
        reached_epochs: after how many of all its epochs the target was reached; later ones do not count.
        energy_j, duration_s: used for its `epochs`.
        max_power_w: the sum of its GPUs' prior power limits, which turns time into energy.
        carbon_g, money, currency: for information.
        failure: why the batch size cannot run.
    """

    outcome: Literal["reached", "stopped", "failed"] | None = None
    epochs: Count | None = None
    reached_epochs: Count | None = None
    energy_j: Amount | None = None
    duration_s: Amount | None = None
    max_power_w: PowerW | None = None
    gpu_model: Text | None = None
    n_gpus: Count | None = None
    carbon_g: Amount | None = None
    money: Number | None = None
    currency: Text | None = None
    failure: Sentence | None = None


class IterationTime(Record, frozen=True, kw_only=True):
    """How long an iteration takes at a batch size."""

    batch_size: BatchSize
    iteration_time_s: IterationTimeS


class Timing(Record, frozen=True, kw_only=True):
    """What a run has timed before it trains.

    Attributes:
        times: how long an iteration takes at some of its job's batch sizes, each once.
        too_large: the least batch size that did not fit the memory; None: all that were tried did.
        batch_size: what the run uses instead of its own, which does not fit; None: its own.
    """

    times: Annotated[tuple[IterationTime, ...], Meta(max_length=256)]
    too_large: BatchSize | None = None
    batch_size: BatchSize | None = None


class Trial(Record, frozen=True, kw_only=True):
    """One run under the service.

    Attributes:
        recurrence: which recurrence of the job it belongs to, from 0; a retry has that of the run it replaces.
        reason, detail: why this batch size.
        cost_bound: the cost at which it is to be stopped; None: never.
        bound_eta: the weight of energy in that bound, which applies only while the job's is the same.
        bound_gpu_model, bound_n_gpus: the GPUs to which the bound applies; None: not known.
        requested_at_s, heard_at_s, ended_at_s: when it was requested, last reported, and ended.
        lease_s: after this time of silence it is lost.
        stop_ordered_at_s: when it was ordered to stop; None: it was not.
        last_epoch, last_metric: the newest validation.
        has_lost_count: whether its process started again and numbered its epochs from 0 again, so that
            `reached_epochs` is only a lower bound.
        result: what is known of its end, or of its progress.
        untimed: batch sizes whose speed was not known at its request; it may time them before it trains.
        timing: what it has timed; None: nothing.
        number: which trial of its job it is, from 0, in the order of requests; trials are listed in pages by it.
    """

    user: User = ""
    job: Name
    run: Name
    recurrence: RecurrenceNumber
    batch_size: BatchSize
    state: TrialState
    reason: Name
    detail: Sentence
    requested_at_s: TimeS
    heard_at_s: TimeS
    lease_s: LeaseS
    cost_bound: Amount | None = None
    bound_eta: Eta | None = None
    bound_gpu_model: Text | None = None
    bound_n_gpus: Count | None = None
    ended_at_s: TimeS | None = None
    stop_ordered_at_s: TimeS | None = None
    last_epoch: Count | None = None
    last_metric: Number | None = None
    has_lost_count: bool = False
    result: Result = Result()
    untimed: Annotated[tuple[BatchSize, ...], Meta(max_length=256)] = ()
    timing: Timing | None = None
    number: Count = 0

    @property
    def key(self) -> RunKey:
        """Return whose trial it is."""
        return RunKey(self.user, self.job, self.run)


class TrialUpdate(Record, frozen=True, kw_only=True):
    """A trial after a report. `stop`: why the run is to stop, in a sentence; None: it may go on."""

    trial: Trial
    stop: str | None = None


class Posterior(Record, frozen=True, kw_only=True):
    """The posterior of a job's batch sizes now, and which would be next."""

    user: User
    job: Name
    policy: Literal["gridchase", "zeus"]
    eta: float
    n_observations: Count
    beliefs: tuple[Belief, ...]
    next: Choice


class JobSummary(Record, frozen=True, kw_only=True):
    """A line of the list of jobs. `best_batch_size`: as in `best_reached`; None before the first run did."""

    user: User
    name: Name
    batch_sizes: Candidates
    default_batch_size: BatchSize
    n_trials: Count
    n_in_flight: Count
    n_ended: Count
    best_batch_size: BatchSize | None = None
    last_asked_at_s: TimeS | None = None

    @property
    def key(self) -> JobKey:
        """Return which job it is."""
        return JobKey(self.user, self.name)


class JobExport(Record, frozen=True, kw_only=True):
    """A job with all its trials, as `export` writes and `import` reads it.

    `version` is that of this format; in the first one jobs had no users.
    """

    job: Job
    trials: tuple[Trial, ...]
    version: Literal[1, 2] = 2


class ImportCounts(Record, frozen=True, kw_only=True):
    """What an import added; `n_known_…` were there before, and are not changed."""

    n_jobs: Count
    n_trials: Count
    n_known_jobs: Count
    n_known_trials: Count
