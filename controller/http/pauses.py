"""What people ask of runs over HTTP: to pause, to resume, and how that stands.

Each request needs a token, but for those of this machine that only read.

GET  /v1/runs
GET  /v1/jobs/{user}/{job}/runs/{run}/pause
POST /v1/jobs/{user}/{job}/runs/{run}/pause      {"why": "…", "for_s": 120}
POST /v1/jobs/{user}/{job}/runs/{run}/resume     {"why": "…"}
"""

from collections.abc import Awaitable, Callable
from dataclasses import asdict, dataclass, replace
from http import HTTPStatus
from typing import Annotated, Final, TypeVar

import msgspec
from aiohttp import web
from msgspec import Meta

from controller.errors import PauseRefusedError
from controller.ports import Pauses, PauseState
from publishers.messages.topics import RunKey
from publishers.shared.http.problems import ProblemError
from publishers.shared.http.requests import BODY_TIMEOUT_S, path_name, path_user, read_json
from publishers.shared.http.server import ConcurrencyLimit, Route, is_loopback, json_response

PATH: Final = "/v1/jobs/{user}/{job}/runs/{run}"
MAX_BODY_BYTES: Final = 4_096
_STATUSES: Final = {"unknown_run": HTTPStatus.NOT_FOUND, "too_long": HTTPStatus.UNPROCESSABLE_ENTITY}

Authenticate = Callable[[web.Request], Awaitable[str]]
Body = TypeVar("Body")


class PauseRequest(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """The body of a request to pause: why, and for how long at most, from when it begins; else as long as it may."""

    why: Annotated[str, Meta(max_length=256)] = ""
    for_s: Annotated[float, Meta(gt=0, le=86_400)] | None = None


class ResumeRequest(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """The body of a request to resume."""

    why: Annotated[str, Meta(max_length=256)] = ""


@dataclass(frozen=True, slots=True, kw_only=True)
class ListedRun(PauseState):
    """A run that trains on this node, and what is known of its pauses."""

    user: str
    job: str
    run: str


def pause_routes(pauses: Pauses, authenticate: Authenticate) -> list[Route]:
    """Return the routes by which people ask for pauses."""
    limit = ConcurrencyLimit(n_at_once=4, n_waiting=16)

    async def list_runs(_request: web.Request, _client: str) -> web.Response:
        return json_response([ListedRun(**asdict(state), **key._asdict()) for key, state in pauses.runs().items()])

    async def show(request: web.Request, _client: str) -> web.Response:
        return json_response(pauses.state_of(_key_of(request)))

    async def pause(request: web.Request, client: str) -> web.Response:
        key, body = _key_of(request), await _read(request, PauseRequest)
        state = pauses.pause(key, why=body.why, by=client, for_s=body.for_s)
        return json_response(state, status=HTTPStatus.ACCEPTED)

    async def resume(request: web.Request, client: str) -> web.Response:
        key, body = _key_of(request), await _read(request, ResumeRequest)
        return json_response(pauses.resume(key, why=body.why, by=client))

    async def authenticate_reader(request: web.Request) -> str:
        is_local = is_loopback(request.remote or "") and "Authorization" not in request.headers
        return "" if is_local else await authenticate(request)

    routes = (
        Route(name="listRuns", path="/v1/runs", handle=list_runs, authenticate=authenticate_reader),
        Route(name="showPause", path=f"{PATH}/pause", handle=show, authenticate=authenticate_reader),
        Route(name="pause", method="POST", path=f"{PATH}/pause", handle=pause, authenticate=authenticate),
        Route(name="resume", method="POST", path=f"{PATH}/resume", handle=resume, authenticate=authenticate),
    )
    return [replace(route, limit=limit) for route in routes]


def to_problem(error: Exception) -> ProblemError | None:
    """Return the problem of a request for a pause that is refused; None for any other error."""
    if not isinstance(error, PauseRefusedError):
        return None
    return ProblemError(_STATUSES.get(error.reason, HTTPStatus.CONFLICT), error.reason, str(error))


def _key_of(request: web.Request) -> RunKey:
    return RunKey(path_user(request), path_name(request, "job"), path_name(request, "run"))


async def _read(request: web.Request, kind: type[Body]) -> Body:
    return await read_json(request, kind, max_bytes=MAX_BODY_BYTES, timeout_s=BODY_TIMEOUT_S)
