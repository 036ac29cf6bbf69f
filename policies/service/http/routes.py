"""What can be done over HTTP: one table, from which the server and its OpenAPI document are made."""

from collections.abc import Awaitable, Callable, Mapping
from dataclasses import dataclass, field
from typing import Any, Final, Generic, Literal

from policies.service.http import handlers
from policies.service.http.calls import ApiRequest, Body, ExportQuery, NoQuery, Query, RunRegistration, TrialsQuery
from policies.service.http.examples import ASK, EXPORT, PROGRESS, REACHED, SETTINGS, TIMED, TOO_LARGE
from policies.service.http.service import Liveness, Readiness, Service
from policies.service.records import (
    ImportCounts,
    Job,
    JobExport,
    JobSettings,
    JobSummary,
    Posterior,
    Result,
    Timing,
    Trial,
    TrialUpdate,
)

MAX_BODY_BYTES: Final = 1 << 20
MAX_IMPORT_BYTES: Final = 64 << 20
TIMEOUT_S: Final = 15.0
BULK_TIMEOUT_S: Final = 300.0
"""For all of an export, or of an import: 64 MiB over a slow line."""

_JOB: Final = "/v1/jobs/{job}"
_TRIAL: Final = "/v1/jobs/{job}/trials/{run}"


@dataclass(frozen=True, slots=True, kw_only=True)
class Operation(Generic[Query, Body]):
    """One thing that can be done.

    Attributes:
        name: its `operationId`, and its label among the metrics.
        answer: the type of what it answers; None: nothing.
        query, body: the types of what it takes; `body` None: nothing.
        problems: the statuses with which it can be refused, beside those that may befall each.
        bodies: examples of bodies, by name.
        other_answers: records that come with other statuses than 200.
        is_bulk: whether it may take long, and much.
    """

    name: str
    method: Literal["GET", "POST", "PUT", "DELETE"] = "GET"
    path: str
    summary: str
    handle: Callable[[Service, ApiRequest[Query, Body]], Awaitable[object]]
    answer: Any
    query: type[Query]
    body: type[Body] | None = None
    content_type: str = "application/json"
    problems: tuple[int, ...] = ()
    bodies: Mapping[str, Body] = field(default_factory=dict)
    other_answers: Mapping[int, Any] = field(default_factory=dict)
    is_bulk: bool = False

    @property
    def is_write(self) -> bool:
        """Return whether it changes something, and so needs a token."""
        return self.method != "GET"

    @property
    def is_about_the_service(self) -> bool:
        """Return whether it asks for the state of the service itself, which must be told however busy it is."""
        return not self.path.startswith("/v1/")

    @property
    def max_bytes(self) -> int:
        """Return how long its body may be."""
        return MAX_IMPORT_BYTES if self.is_bulk else MAX_BODY_BYTES

    @property
    def timeout_s(self) -> float:
        """Return how long it may take."""
        return BULK_TIMEOUT_S if self.is_bulk else TIMEOUT_S


OPERATIONS: Final[tuple[Operation[Any, Any], ...]] = (
    Operation(
        name="listJobs",
        path="/v1/jobs",
        summary="All jobs, in the order of their names.",
        handle=handlers.list_jobs,
        answer=list[JobSummary],
        query=NoQuery,
    ),
    Operation(
        name="showJob",
        path=_JOB,
        summary="A job.",
        handle=handlers.show_job,
        answer=Job,
        query=NoQuery,
        problems=(404,),
    ),
    Operation(
        name="forgetJob",
        method="DELETE",
        path=_JOB,
        summary="Drop a job, with its trials and all that was learned from them.",
        handle=handlers.forget_job,
        answer=None,
        query=NoQuery,
        problems=(404,),
    ),
    Operation(
        name="configureJob",
        method="PUT",
        path=f"{_JOB}/settings",
        summary="Replace what a job has of its own; what is left out is as in the configuration of the service.",
        handle=handlers.configure_job,
        answer=Job,
        query=NoQuery,
        body=JobSettings,
        bodies={"energy alone": SETTINGS},
        problems=(404,),
    ),
    Operation(
        name="showPosterior",
        path=f"{_JOB}/posterior",
        summary="What is believed of a job's batch sizes now, and which would be next.",
        handle=handlers.show_posterior,
        answer=Posterior,
        query=NoQuery,
        problems=(404,),
    ),
    Operation(
        name="listTrials",
        path=f"{_JOB}/trials",
        summary="A job's trials, newest first; the number of the last one is the next page's `before`.",
        handle=handlers.list_trials,
        answer=list[Trial],
        query=TrialsQuery,
        problems=(404,),
    ),
    Operation(
        name="ask",
        method="POST",
        path=f"{_JOB}/trials",
        summary="Ask for the batch size of a run. Asked again, the answer is the same. A new job is registered.",
        handle=handlers.ask,
        answer=Trial,
        query=NoQuery,
        body=RunRegistration,
        bodies={"six candidates": ASK},
        problems=(409, 422),
    ),
    Operation(
        name="showTrial",
        path=_TRIAL,
        summary="The trial of a run.",
        handle=handlers.show_trial,
        answer=Trial,
        query=NoQuery,
        problems=(404,),
    ),
    Operation(
        name="tell",
        method="POST",
        path=f"{_TRIAL}/result",
        summary="Tell how a run ended or, without an outcome, how far it is. Told again, it counts once.",
        handle=handlers.tell,
        answer=TrialUpdate,
        query=NoQuery,
        body=Result,
        bodies={"progress": PROGRESS, "target reached": REACHED, "out of memory": TOO_LARGE},
        problems=(404, 409, 422),
    ),
    Operation(
        name="time",
        method="PUT",
        path=f"{_TRIAL}/timing",
        summary="Tell what a run has timed before its training: the batch sizes in `untimed` of its trial, or some.",
        handle=handlers.time,
        answer=Trial,
        query=NoQuery,
        body=Timing,
        bodies={"three fit": TIMED},
        problems=(404, 422),
    ),
    Operation(
        name="exportJobs",
        path="/v1/export",
        summary="A job with all its trials, or all jobs, for `POST /v1/import`.",
        handle=handlers.export,
        answer=list[JobExport],
        query=ExportQuery,
        problems=(404,),
        is_bulk=True,
    ),
    Operation(
        name="importJobs",
        method="POST",
        path="/v1/import",
        summary="Take in what was exported. What is there already stays as it is; so it can be sent again.",
        handle=handlers.import_,
        answer=ImportCounts,
        query=NoQuery,
        body=list[JobExport],
        bodies={"a job after one run": [EXPORT]},
        problems=(409, 422),
        is_bulk=True,
    ),
    Operation(
        name="live",
        path="/healthz",
        summary="Whether the process lives.",
        handle=handlers.live,
        answer=Liveness,
        query=NoQuery,
    ),
    Operation(
        name="ready",
        path="/readyz",
        summary="Whether the service can do its work: the database can be read and written, the broker answers.",
        handle=handlers.ready,
        answer=Readiness,
        query=NoQuery,
        other_answers={503: Readiness},
    ),
    Operation(
        name="showMetrics",
        path="/metrics",
        summary="The counters of this process, for Prometheus.",
        handle=handlers.show_metrics,
        answer=str,
        query=NoQuery,
        content_type="text/plain",
    ),
    Operation(
        name="showDocument",
        path="/openapi.json",
        summary="This document.",
        handle=handlers.show_document,
        answer=dict[str, Any],
        query=NoQuery,
    ),
)
"""Each with a path and a method of its own."""
