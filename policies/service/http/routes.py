"""The operations of the HTTP API: one table, from which the routes and the OpenAPI document are made."""

import asyncio
import logging
from collections.abc import AsyncIterator, Awaitable, Callable, Mapping, Sequence
from dataclasses import dataclass, field
from http import HTTPStatus
from typing import Annotated, Any, Final, Literal

import msgspec
from aiohttp import web
from msgspec import UNSET, Meta, UnsetType

from policies.service.errors import PolicyError, RequestError, UnknownJobError
from policies.service.metrics import Metrics
from policies.service.records import (
    ENDED,
    Candidates,
    ImportCounts,
    IterationTime,
    Job,
    JobExport,
    JobKey,
    JobSettings,
    JobSummary,
    Posterior,
    Record,
    Result,
    Timing,
    Trial,
    TrialUpdate,
)
from policies.service.trials.jobs import JobRepository
from policies.service.trials.repository import TrialRepository
from publishers.messages.codec import BatchSize, Count
from publishers.messages.topics import RunKey
from publishers.shared.http.openapi import JOB, RUN, USER
from publishers.shared.http.requests import BODY_TIMEOUT_S, JSON, PathName, UserName
from publishers.shared.http.server import Stream, json_response

TIMEOUT_S: Final = 15.0
BULK_TIMEOUT_S: Final = 300.0
"""For all of an export, or of an import: 64 MiB over a slow line."""
MAX_BODY_BYTES: Final = 1 << 20
MAX_IMPORT_BYTES: Final = 64 << 20
PROBE_TIMEOUT_S: Final = 2.0
"""For a check whether the database answers."""

_JOB: Final = "/v1/jobs/{user}/{job}"
_TRIAL: Final = f"{_JOB}/trials/{{run}}"
_LOGGER = logging.getLogger(__name__)


class RunRegistration(Record, frozen=True, kw_only=True):
    """A run that wants a batch size; its job is registered where it is new. The default must be a candidate."""

    run: PathName
    batch_sizes: Candidates
    default_batch_size: BatchSize


class NoQuery(Record, frozen=True, kw_only=True):
    """No parameters."""


class TrialsQuery(Record, frozen=True, kw_only=True):
    """Which trials: the newest `limit` of those with a smaller number than `before`."""

    limit: Annotated[int, Meta(ge=1, le=1_000)] = 100
    before: Count | UnsetType = UNSET


class ExportQuery(Record, frozen=True, kw_only=True):
    """Of which user; of which of that user's jobs; without: of all."""

    user: UserName | UnsetType = UNSET
    job: PathName | UnsetType = UNSET


class ImportQuery(Record, frozen=True, kw_only=True):
    """Whose those jobs are that have no user, as those from the time before jobs had users."""

    user: UserName | UnsetType = UNSET


class Liveness(Record, frozen=True, kw_only=True):
    """The process lives."""

    status: Literal["ok"] = "ok"


class Readiness(Record, frozen=True, kw_only=True):
    """Whether the service can do its work; `troubles` says what keeps it from that, a sentence each."""

    ready: bool
    troubles: tuple[str, ...] = ()


@dataclass(frozen=True, slots=True, kw_only=True)
class ApiRequest:
    """A validated request.

    Attributes:
        job, run: of its path, with "" for what it does not have.
        query, body: records of the operation's types.
        now_s: when it was read, Unix time [s].
        writer: who sent it; "" where nothing is written.
    """

    job: JobKey
    run: RunKey
    query: Any
    body: Any
    now_s: float
    writer: str


@dataclass(frozen=True, slots=True, kw_only=True)
class Services:
    """What the operations use.

    Attributes:
        trials, jobs: the database.
        metrics: the counters.
        trouble: what keeps the service from its work, other than the database, in a sentence; None while nothing does.
        document: the OpenAPI document.
    """

    trials: TrialRepository
    jobs: JobRepository
    metrics: Metrics
    trouble: Callable[[], str | None]
    document: bytes


@dataclass(frozen=True, slots=True, kw_only=True)
class Operation:
    """One thing that can be done.

    Attributes:
        name: its `operationId`, and its label among the metrics.
        handle: returns the answer: a record, bytes, a whole response or a stream.
        answer: the type of the answer; None: nothing.
        query, body: the types of what it takes; `body` None: nothing.
        problems: the statuses with which it can be refused, beside those that every operation has.
        examples: examples of bodies, by name.
        other_answers: records that come with other statuses than 200.
        is_bulk: whether it may take long, and much.
    """

    name: str
    method: Literal["GET", "POST", "PUT", "DELETE"] = "GET"
    path: str
    summary: str
    handle: Callable[[Services, ApiRequest], Awaitable[object]]
    answer: Any
    query: type[Record] = NoQuery
    body: Any = None
    content_type: str = JSON
    problems: tuple[int, ...] = ()
    examples: Mapping[str, object] = field(default_factory=dict)
    other_answers: Mapping[int, Any] = field(default_factory=dict)
    is_bulk: bool = False

    @property
    def is_write(self) -> bool:
        """Return whether it changes something, and so needs a token."""
        return self.method != "GET"

    @property
    def is_about_the_service(self) -> bool:
        """Return whether it asks for the state of the service itself, which is answered however busy it is."""
        return not self.path.startswith("/v1/")

    @property
    def max_bytes(self) -> int:
        """Return how long its body may be."""
        return MAX_IMPORT_BYTES if self.is_bulk else MAX_BODY_BYTES

    @property
    def timeout_s(self) -> float:
        """Return how long it may take."""
        return BULK_TIMEOUT_S if self.is_bulk else TIMEOUT_S

    @property
    def body_timeout_s(self) -> float:
        """Return how long its body may take to arrive."""
        return BULK_TIMEOUT_S if self.is_bulk else BODY_TIMEOUT_S


async def _configure_job(services: Services, request: ApiRequest) -> Job:
    job = await services.jobs.configure(request.job, request.body)
    settings = msgspec.json.encode(job.settings).decode()
    _LOGGER.info("job %s: settings %s by %s", request.job, settings, request.writer)
    return job


async def _forget_job(services: Services, request: ApiRequest) -> None:
    await services.jobs.forget(request.job)
    _LOGGER.info("job %s: deleted with its trials by %s", request.job, request.writer)


async def _list_trials(services: Services, request: ApiRequest) -> list[Trial]:
    before = None if request.query.before is UNSET else request.query.before
    return await services.jobs.trials(request.job, limit=request.query.limit, before=before)


async def _request_batch_size(services: Services, request: ApiRequest) -> Trial:
    now, registration = asyncio.get_running_loop().time, request.body
    begun_s = now()
    trial = await services.trials.get_or_create(
        RunKey(*request.job, registration.run),
        batch_sizes=registration.batch_sizes,
        default_batch_size=registration.default_batch_size,
        now_s=request.now_s,
    )
    services.metrics.count_answer(trial.reason, over="http", answer_s=now() - begun_s)
    return trial


async def _report_result(services: Services, request: ApiRequest) -> TrialUpdate:
    update = await services.trials.report(request.run, request.body, now_s=request.now_s)
    services.metrics.count_result(over="http")
    if update.trial.state in ENDED and request.body.outcome is not None:
        services.metrics.count_ended(update.trial.state)
    return update


async def _report_timing(services: Services, request: ApiRequest) -> Trial:
    trial = await services.trials.report_timing(request.run, request.body, now_s=request.now_s)
    services.metrics.count_result(over="http")
    return trial


async def _export(services: Services, request: ApiRequest) -> list[JobExport] | Stream:
    """Return one job, or stream all jobs, so that no more than one is held in memory."""
    user, job = request.query.user, request.query.job
    if job is not UNSET:
        if user is UNSET:
            raise RequestError([f"job = {job}: say whose, user=…"])
        return await services.jobs.export(JobKey(user, job))
    keys = [summary.key for summary in await services.jobs.jobs()]
    return Stream(_exported(services, [key for key in keys if user in {UNSET, key.user}]))


async def _exported(services: Services, keys: Sequence[JobKey]) -> AsyncIterator[bytes]:
    separator = b"["
    for key in keys:
        try:
            found = await services.jobs.export(key)
        except UnknownJobError:
            continue  # forgotten meanwhile
        for export in found:
            yield separator + msgspec.json.encode(export)
            separator = b",\n"
    yield b"[]" if separator == b"[" else b"]"


async def _import(services: Services, request: ApiRequest) -> ImportCounts:
    user = "" if request.query.user is UNSET else request.query.user
    counts = await services.jobs.import_(request.body, user=user, now_s=request.now_s)
    _LOGGER.info("%d jobs with %d trials imported by %s", counts.n_jobs, counts.n_trials, request.writer)
    return counts


async def _live(_: Services, __: ApiRequest) -> Liveness:
    return Liveness()


async def _ready(services: Services, _: ApiRequest) -> web.Response:
    troubles = tuple(trouble for trouble in (await _database_trouble(services), services.trouble()) if trouble)
    status = HTTPStatus.SERVICE_UNAVAILABLE if troubles else HTTPStatus.OK
    return json_response(Readiness(ready=not troubles, troubles=troubles), status=status)


async def _database_trouble(services: Services) -> str | None:
    try:
        async with asyncio.timeout(PROBE_TIMEOUT_S):
            await services.trials.check()
    except PolicyError as error:
        return str(error)
    except TimeoutError:
        return f"the database does not answer in {PROBE_TIMEOUT_S:g} s"
    return None


async def _metrics(services: Services, _: ApiRequest) -> bytes:
    return services.metrics.text()


async def _document(services: Services, _: ApiRequest) -> bytes:
    return services.document


_REGISTRATION: Final = RunRegistration(run=RUN, batch_sizes=(32, 64, 128, 256, 512, 1024), default_batch_size=256)
_PROGRESS: Final = Result(epochs=3, energy_j=2.1e6, duration_s=3_600.0, max_power_w=600.0)
_REACHED: Final = Result(
    outcome="reached",
    epochs=12,
    reached_epochs=12,
    energy_j=8.4e6,
    duration_s=14_400.0,
    max_power_w=600.0,
    gpu_model="NVIDIA A40",
    n_gpus=2,
)
_TIMING: Final = Timing(
    times=(
        IterationTime(batch_size=32, iteration_time_s=0.021),
        IterationTime(batch_size=64, iteration_time_s=0.031),
        IterationTime(batch_size=128, iteration_time_s=0.055),
    ),
    too_large=256,
    batch_size=128,
)
_EXPORT: Final = JobExport(
    job=Job(
        user=USER, name=JOB, batch_sizes=_REGISTRATION.batch_sizes, default_batch_size=256, created_at_s=1_795_000_000.0
    ),
    trials=(
        Trial(
            user=USER,
            job=JOB,
            run=RUN,
            recurrence=0,
            batch_size=256,
            state="reached",
            reason="default_first",
            detail="nothing is known yet",
            requested_at_s=1_795_000_000.0,
            heard_at_s=1_795_014_400.0,
            ended_at_s=1_795_014_400.0,
            lease_s=600.0,
            result=_REACHED,
        ),
    ),
)

OPERATIONS: Final = (
    Operation(
        name="listJobs",
        path="/v1/jobs",
        summary="All jobs, by user and name.",
        handle=lambda services, _: services.jobs.jobs(),
        answer=list[JobSummary],
    ),
    Operation(
        name="showJob",
        path=_JOB,
        summary="A job.",
        handle=lambda services, request: services.jobs.job(request.job),
        answer=Job,
        problems=(404,),
    ),
    Operation(
        name="forgetJob",
        method="DELETE",
        path=_JOB,
        summary="Delete a job, with its trials and all that was learned from them.",
        handle=_forget_job,
        answer=None,
        problems=(404,),
    ),
    Operation(
        name="configureJob",
        method="PUT",
        path=f"{_JOB}/settings",
        summary="Replace a job's own settings; what is left out is as in the configuration of the service.",
        handle=_configure_job,
        answer=Job,
        body=JobSettings,
        examples={"energy alone": JobSettings(eta=1.0)},
        problems=(404,),
    ),
    Operation(
        name="showPosterior",
        path=f"{_JOB}/posterior",
        summary="The posterior of a job's batch sizes now, and which would be next.",
        handle=lambda services, request: services.jobs.posterior(request.job),
        answer=Posterior,
        problems=(404,),
    ),
    Operation(
        name="listTrials",
        path=f"{_JOB}/trials",
        summary="A job's trials, newest first; the number of the last one is the next page's `before`.",
        handle=_list_trials,
        answer=list[Trial],
        query=TrialsQuery,
        problems=(404,),
    ),
    Operation(
        name="requestBatchSize",
        method="POST",
        path=f"{_JOB}/trials",
        summary="Ask for the batch size of a run. A repeated request gets the same answer. A new job is registered.",
        handle=_request_batch_size,
        answer=Trial,
        body=RunRegistration,
        examples={"six candidates": _REGISTRATION},
        problems=(409, 422),
    ),
    Operation(
        name="showTrial",
        path=_TRIAL,
        summary="The trial of a run.",
        handle=lambda services, request: services.jobs.trial(request.run),
        answer=Trial,
        problems=(404,),
    ),
    Operation(
        name="reportResult",
        method="POST",
        path=f"{_TRIAL}/result",
        summary="Report how a run ended or, without an outcome, its progress. A repeated report counts once.",
        handle=_report_result,
        answer=TrialUpdate,
        body=Result,
        examples={
            "progress": _PROGRESS,
            "target reached": _REACHED,
            "out of memory": Result(outcome="failed", failure="CUDA out of memory"),
        },
        problems=(404, 409, 422),
    ),
    Operation(
        name="reportTiming",
        method="PUT",
        path=f"{_TRIAL}/timing",
        summary="Report what a run has timed before its training: the batch sizes in `untimed` of its trial, or some.",
        handle=_report_timing,
        answer=Trial,
        body=Timing,
        examples={"three fit": _TIMING},
        problems=(404, 422),
    ),
    Operation(
        name="exportJobs",
        path="/v1/export",
        summary="A job with all its trials, all jobs of a user, or all jobs, for `POST /v1/import`.",
        handle=_export,
        answer=list[JobExport],
        query=ExportQuery,
        problems=(404, 422),
        is_bulk=True,
    ),
    Operation(
        name="importJobs",
        method="POST",
        path="/v1/import",
        summary="Add what was exported. Existing jobs and trials are not changed, so the request can be repeated.",
        handle=_import,
        answer=ImportCounts,
        query=ImportQuery,
        body=list[JobExport],
        examples={"a job after one run": [_EXPORT]},
        problems=(409, 422),
        is_bulk=True,
    ),
    Operation(name="live", path="/healthz", summary="Whether the process lives.", handle=_live, answer=Liveness),
    Operation(
        name="ready",
        path="/readyz",
        summary="Whether the service can do its work: the database can be read and written, the broker answers.",
        handle=_ready,
        answer=Readiness,
        other_answers={503: Readiness},
    ),
    Operation(
        name="showMetrics",
        path="/metrics",
        summary="The counters of this process, for Prometheus.",
        handle=_metrics,
        answer=str,
        content_type="text/plain",
    ),
    Operation(
        name="showDocument", path="/openapi.json", summary="This document.", handle=_document, answer=dict[str, Any]
    ),
)
"""Each has a path and a method of its own."""
