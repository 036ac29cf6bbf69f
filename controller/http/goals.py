"""What people want of the plans of runs over HTTP: a time budget or a deadline in place of the configured objective.

Each request needs a token, but for those of this machine that only read.

GET  /v1/jobs/{user}/{job}/runs/{run}/goal
POST /v1/jobs/{user}/{job}/runs/{run}/goal           {"max_slowdown_ratio": 1.08, "until_s": 1794000000, "why": "…"}
POST /v1/jobs/{user}/{job}/runs/{run}/goal           {"deadline_s": 1794000000, "why": "…"}
POST /v1/jobs/{user}/{job}/runs/{run}/goal/preview   either, without why
POST /v1/jobs/{user}/{job}/runs/{run}/goal/reset     {"why": "…"}
"""

from dataclasses import replace
from http import HTTPStatus

import msgspec
from aiohttp import web

from controller.http.orders import PATH, Authenticate, Why, for_readers, key_of, read_body
from controller.http.pins import ReleaseRequest
from controller.ports.orders import Goals, MaxSlowdownRatio
from publishers.messages.codec import TimeS
from publishers.shared.http.server import ConcurrencyLimit, Route, json_response


class GoalPreviewRequest(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """The body of a question what a goal would do: a time budget, until a time [Unix s], or a deadline [Unix s]."""

    max_slowdown_ratio: MaxSlowdownRatio | None = None
    deadline_s: TimeS | None = None
    until_s: TimeS | None = None

    @property
    def terms(self) -> dict[str, float | None]:
        """Return what is wanted."""
        return {name: getattr(self, name) for name in GoalPreviewRequest.__struct_fields__}


class GoalRequest(GoalPreviewRequest, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """The body of a request to set a goal, and why."""

    why: Why


def goal_routes(goals: Goals, authenticate: Authenticate) -> list[Route]:
    """Return the routes by which people set goals."""
    limit = ConcurrencyLimit(n_at_once=4, n_waiting=16)

    async def show(request: web.Request, _client: str) -> web.Response:
        return json_response(goals.state_of(key_of(request)))

    async def preview(request: web.Request, _client: str) -> web.Response:
        key, body = key_of(request), await read_body(request, GoalPreviewRequest)
        return json_response(goals.preview(key, **body.terms))

    async def aim(request: web.Request, client: str) -> web.Response:
        key, body = key_of(request), await read_body(request, GoalRequest)
        return json_response(goals.aim(key, **body.terms, why=body.why, by=client), status=HTTPStatus.ACCEPTED)

    async def reset(request: web.Request, client: str) -> web.Response:
        key, body = key_of(request), await read_body(request, ReleaseRequest)
        return json_response(goals.reset(key, why=body.why, by=client))

    path = f"{PATH}/goal"
    routes = (
        Route(name="showGoal", path=path, handle=show, authenticate=for_readers(authenticate)),
        Route(name="setGoal", method="POST", path=path, handle=aim, authenticate=authenticate),
        Route(name="previewGoal", method="POST", path=f"{path}/preview", handle=preview, authenticate=authenticate),
        Route(name="resetGoal", method="POST", path=f"{path}/reset", handle=reset, authenticate=authenticate),
    )
    return [replace(route, limit=limit) for route in routes]
