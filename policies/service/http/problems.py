"""What goes wrong over HTTP, as RFC 9457 problems: one record, and which error becomes which."""

from collections.abc import Mapping
from http import HTTPStatus
from typing import Final

import msgspec
from aiohttp import web

from policies.service.errors import (
    JobMismatchError,
    PolicyError,
    RequestError,
    StoreUnavailableError,
    StoreVersionError,
    TrialConflictError,
    UnknownJobError,
    UnknownTrialError,
)
from policies.service.records import Record

CONTENT_TYPE: Final = "application/problem+json"
RETRY_AFTER_S: Final = 5
"""When to ask again while the database is away [s]."""
_STATUSES: Final[tuple[tuple[type[PolicyError], HTTPStatus], ...]] = (
    (RequestError, HTTPStatus.UNPROCESSABLE_ENTITY),
    (JobMismatchError, HTTPStatus.CONFLICT),
    (TrialConflictError, HTTPStatus.CONFLICT),
    (UnknownJobError, HTTPStatus.NOT_FOUND),
    (UnknownTrialError, HTTPStatus.NOT_FOUND),
    (StoreUnavailableError, HTTPStatus.SERVICE_UNAVAILABLE),
    (StoreVersionError, HTTPStatus.SERVICE_UNAVAILABLE),
)


class Problem(Record, frozen=True, kw_only=True):
    """Why a request was refused (RFC 9457).

    Attributes:
        title: what the status means.
        status: the status of the answer.
        detail: a sentence: value, bound, what to do.
        reason: a stable code, for programs.
        faults: each fault by itself, where there are several.
        type: says no more than the status does.
    """

    title: str
    status: int
    detail: str
    reason: str
    faults: tuple[str, ...] = ()
    type: str = "about:blank"


class ProblemError(Exception):
    """A request that is answered with a problem.

    Args:
        status: of the answer.
        reason: a stable code.
        detail: a sentence.
        faults: each fault by itself.
        headers: of the answer, beside the usual ones.
    """

    def __init__(
        self,
        status: HTTPStatus,
        reason: str,
        detail: str,
        *,
        faults: tuple[str, ...] = (),
        headers: Mapping[str, str] | None = None,
    ) -> None:
        super().__init__(detail)
        self.status = status
        self.reason = reason
        self.headers = dict(headers or {})
        self.problem = Problem(
            title=status.phrase, status=status.value, detail=detail, reason=reason, faults=faults or (detail,)
        )


def refusal_of(error: PolicyError) -> ProblemError:
    """Return how an error of the service is answered."""
    status = next((status for kind, status in _STATUSES if isinstance(error, kind)), HTTPStatus.INTERNAL_SERVER_ERROR)
    faults = tuple(error.faults) if isinstance(error, RequestError) else ()
    headers = {"Retry-After": f"{RETRY_AFTER_S}"} if status is HTTPStatus.SERVICE_UNAVAILABLE else None
    return ProblemError(status, error.reason, str(error), faults=faults, headers=headers)


def refusal_of_http(error: web.HTTPException) -> ProblemError:
    """Return how an error of the router is answered: a path or a method that there is not."""
    status = HTTPStatus(error.status)
    match error:
        case web.HTTPMethodNotAllowed():
            allowed = ", ".join(sorted(error.allowed_methods))
            detail = f"{error.method} is not possible here: use {allowed}"
            return ProblemError(status, "method_not_allowed", detail, headers={"Allow": allowed})
        case web.HTTPNotFound():
            return ProblemError(status, "not_found", "there is nothing at this path: /openapi.json lists what there is")
        case _:
            return ProblemError(status, "invalid_request", status.description or status.phrase)


def response_of(refusal: ProblemError) -> web.Response:
    """Return the answer to a request that is refused."""
    return web.Response(
        status=refusal.status,
        body=msgspec.json.encode(refusal.problem),
        content_type=CONTENT_TYPE,
        headers=refusal.headers,
    )
