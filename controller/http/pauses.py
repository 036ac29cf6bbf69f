"""What people ask of runs over HTTP: to pause, to resume, and how that stands.

Each request needs a token, but for those of this machine that only read.

GET  /v1/runs
GET  /v1/jobs/{user}/{job}/runs/{run}/pause
POST /v1/jobs/{user}/{job}/runs/{run}/pause      {"why": "…", "for_s": 120}
POST /v1/jobs/{user}/{job}/runs/{run}/resume     {"why": "…"}
"""

from dataclasses import asdict, dataclass, replace
from http import HTTPStatus
from typing import Annotated

import msgspec
from aiohttp import web
from msgspec import Meta

from controller.http.orders import PATH, Authenticate, for_readers, key_of, read_body
from controller.ports.orders import Pauses, PauseState
from publishers.shared.http.server import ConcurrencyLimit, Route, json_response


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
        return json_response(pauses.state_of(key_of(request)))

    async def pause(request: web.Request, client: str) -> web.Response:
        key, body = key_of(request), await read_body(request, PauseRequest)
        state = pauses.pause(key, why=body.why, by=client, for_s=body.for_s)
        return json_response(state, status=HTTPStatus.ACCEPTED)

    async def resume(request: web.Request, client: str) -> web.Response:
        key, body = key_of(request), await read_body(request, ResumeRequest)
        return json_response(pauses.resume(key, why=body.why, by=client))

    authenticate_reader = for_readers(authenticate)
    routes = (
        Route(name="listRuns", path="/v1/runs", handle=list_runs, authenticate=authenticate_reader),
        Route(name="showPause", path=f"{PATH}/pause", handle=show, authenticate=authenticate_reader),
        Route(name="pause", method="POST", path=f"{PATH}/pause", handle=pause, authenticate=authenticate),
        Route(name="resume", method="POST", path=f"{PATH}/resume", handle=resume, authenticate=authenticate),
    )
    return [replace(route, limit=limit) for route in routes]
