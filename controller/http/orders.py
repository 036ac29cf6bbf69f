"""What the requests about one run have in common: their path, whose they are, and how they are refused."""

from collections.abc import Awaitable, Callable
from http import HTTPStatus
from typing import Annotated, Final, TypeVar

from aiohttp import web
from msgspec import Meta

from controller.errors import RequestRefusedError
from controller.ports.orders import MAX_WHY
from publishers.messages.topics import RunKey
from publishers.shared.http.problems import ProblemError
from publishers.shared.http.requests import BODY_TIMEOUT_S, path_name, path_user, read_json
from publishers.shared.http.server import is_loopback

PATH: Final = "/v1/jobs/{user}/{job}/runs/{run}"
MAX_BODY_BYTES: Final = 4_096
_WRONG: Final = HTTPStatus.UNPROCESSABLE_ENTITY
_STATUSES: Final = {
    "unknown_run": HTTPStatus.NOT_FOUND,
    "unknown_gpu": HTTPStatus.NOT_FOUND,
    **dict.fromkeys(("too_long", "bad_limit", "bad_time", "bad_goal", "bad_why"), _WRONG),
}

Authenticate = Callable[[web.Request], Awaitable[str]]
Body = TypeVar("Body")
Why = Annotated[str, Meta(min_length=1, max_length=MAX_WHY)]


def is_owner(request: web.Request, client: str) -> bool:
    """Return whether who asks has a token of the user whose run it is, and not one of the operator."""
    return client == request.match_info.get("user")


def for_readers(authenticate: Authenticate) -> Authenticate:
    """Return how those are authenticated who only read: on this machine they need no token."""

    async def authenticate_reader(request: web.Request) -> str:
        is_local = is_loopback(request.remote or "") and "Authorization" not in request.headers
        return "" if is_local else await authenticate(request)

    return authenticate_reader


def to_problem(error: Exception) -> ProblemError | None:
    """Return the problem of a request that a run refuses; None for any other error."""
    if not isinstance(error, RequestRefusedError):
        return None
    return ProblemError(_STATUSES.get(error.reason, HTTPStatus.CONFLICT), error.reason, str(error))


def key_of(request: web.Request) -> RunKey:
    """Return which run a request is about.

    Raises:
        ProblemError: a name is not valid.
    """
    return RunKey(path_user(request), path_name(request, "job"), path_name(request, "run"))


async def read_body(request: web.Request, kind: type[Body]) -> Body:
    """Return the body of a request.

    Raises:
        ProblemError: it cannot be read, or is not of its type.
    """
    return await read_json(request, kind, max_bytes=MAX_BODY_BYTES, timeout_s=BODY_TIMEOUT_S)
