"""Why a request is refused: problem details (RFC 9457)."""

from collections.abc import Mapping
from http import HTTPStatus
from typing import Final

import msgspec

PROBLEM: Final = "application/problem+json"
RETRY_AFTER_S: Final = 5
"""When to repeat a request that was too much, or too slow [s]."""


class Problem(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
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
        self.headers = dict(headers or {})
        self.problem = Problem(
            title=status.phrase, status=status.value, detail=detail, reason=reason, faults=faults or (detail,)
        )


def invalid_request(detail: str) -> ProblemError:
    """Return the problem of a request that cannot be read."""
    return ProblemError(HTTPStatus.BAD_REQUEST, "invalid_request", detail)


def unavailable(reason: str, detail: str, *, retry_after_s: int = RETRY_AFTER_S) -> ProblemError:
    """Return the problem of a request that cannot be answered now."""
    return ProblemError(HTTPStatus.SERVICE_UNAVAILABLE, reason, detail, headers={"Retry-After": f"{retry_after_s}"})
