"""What people ask of the power limits of runs over HTTP: to pin one, to release it, and how that stands.

Each request needs a token, but for those of this machine that only read.

GET  /v1/jobs/{user}/{job}/runs/{run}/pin
POST /v1/jobs/{user}/{job}/runs/{run}/pin            {"power_limit_w": 205, "until_s": 1794000000, "why": "…"}
POST /v1/jobs/{user}/{job}/runs/{run}/pin/preview    {"power_limit_w": 205, "until_s": 1794000000}: of a pin
POST /v1/jobs/{user}/{job}/runs/{run}/pin/preview    {"until_s": 1794000000}: of an exemption
POST /v1/jobs/{user}/{job}/runs/{run}/exempt         {"until_s": 1794000000, "why": "…"}: a pin at the prior limit
POST /v1/jobs/{user}/{job}/runs/{run}/release        {"why": "…"}

The same for a GPU, whichever run has it, by operators alone; these bodies name it:

GET  /v1/gpus/pins
POST /v1/gpus/pin, /v1/gpus/pin/preview, /v1/gpus/exempt, /v1/gpus/release    {"gpu_uuid": "GPU-…", …}
"""

from dataclasses import replace
from http import HTTPStatus
from typing import Annotated

import msgspec
from aiohttp import web
from msgspec import Meta

from controller.http.orders import PATH, Authenticate, Why, for_readers, is_owner, key_of, read_body
from controller.ports.orders import MAX_WHY, PinnedW, Pins
from publishers.messages.codec import Name, TimeS
from publishers.shared.http.server import ConcurrencyLimit, Route, json_response


class PinPreviewRequest(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """The body of a question what a pin would do: at which limit [W; none: exempt], and until when [Unix s]."""

    power_limit_w: PinnedW | None = None
    until_s: TimeS


class ExemptRequest(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """The body of a request to leave a run at its prior limit: until when [Unix s], and why."""

    until_s: TimeS
    why: Why


class PinRequest(ExemptRequest, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """The body of a request to pin: at which limit [W], until when [Unix s, seven days ahead at most], and why."""

    power_limit_w: PinnedW


class ReleaseRequest(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """The body of a request to release."""

    why: Annotated[str, Meta(max_length=MAX_WHY)] = ""


class GpuPinPreviewRequest(PinPreviewRequest, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """The body of a question what a pin would do to the run that has a GPU."""

    gpu_uuid: Name


class GpuPinRequest(PinRequest, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """The body of a request to pin each run that has a GPU."""

    gpu_uuid: Name


class GpuExemptRequest(ExemptRequest, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """The body of a request to leave each run that has a GPU at its prior limit."""

    gpu_uuid: Name


class GpuReleaseRequest(ReleaseRequest, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """The body of a request to release a GPU."""

    gpu_uuid: Name


def pin_routes(pins: Pins, authenticate: Authenticate) -> list[Route]:
    """Return the routes by which people pin and release limits."""
    limit = ConcurrencyLimit(n_at_once=4, n_waiting=16)

    async def show(request: web.Request, _client: str) -> web.Response:
        return json_response(pins.state_of(key_of(request)))

    async def hold(request: web.Request, client: str, kind: type[ExemptRequest]) -> web.Response:
        key, body = key_of(request), await read_body(request, kind)
        by_owner = is_owner(request, client)
        state = pins.pin(
            key, power_limit_w=_limit_w(body), until_s=body.until_s, why=body.why, by=client, by_owner=by_owner
        )
        return json_response(state, status=HTTPStatus.ACCEPTED)

    async def preview(request: web.Request, client: str) -> web.Response:
        key, body = key_of(request), await read_body(request, PinPreviewRequest)
        by_owner = is_owner(request, client)
        return json_response(
            pins.preview(key, power_limit_w=body.power_limit_w, until_s=body.until_s, by_owner=by_owner)
        )

    async def pin(request: web.Request, client: str) -> web.Response:
        return await hold(request, client, PinRequest)

    async def exempt(request: web.Request, client: str) -> web.Response:
        return await hold(request, client, ExemptRequest)

    async def release(request: web.Request, client: str) -> web.Response:
        key, body = key_of(request), await read_body(request, ReleaseRequest)
        return json_response(pins.release(key, why=body.why, by=client, by_owner=is_owner(request, client)))

    routes = (
        Route(name="showPin", path=f"{PATH}/pin", handle=show, authenticate=for_readers(authenticate)),
        Route(name="pin", method="POST", path=f"{PATH}/pin", handle=pin, authenticate=authenticate),
        Route(name="previewPin", method="POST", path=f"{PATH}/pin/preview", handle=preview, authenticate=authenticate),
        Route(name="exempt", method="POST", path=f"{PATH}/exempt", handle=exempt, authenticate=authenticate),
        Route(name="release", method="POST", path=f"{PATH}/release", handle=release, authenticate=authenticate),
    )
    return [replace(route, limit=limit) for route in (*routes, *_gpu_routes(pins, authenticate))]


def _gpu_routes(pins: Pins, authenticate: Authenticate) -> list[Route]:
    """Return the routes about GPUs: their paths name no user, so that no token of a user opens them."""

    async def show(_request: web.Request, _client: str) -> web.Response:
        return json_response(list(pins.gpu_pins().values()))

    async def preview(request: web.Request, _client: str) -> web.Response:
        body = await read_body(request, GpuPinPreviewRequest)
        return json_response(pins.preview(body.gpu_uuid, power_limit_w=body.power_limit_w, until_s=body.until_s))

    async def hold(request: web.Request, client: str, kind: type[GpuPinRequest | GpuExemptRequest]) -> web.Response:
        body = await read_body(request, kind)
        state = pins.pin(body.gpu_uuid, power_limit_w=_limit_w(body), until_s=body.until_s, why=body.why, by=client)
        return json_response(state, status=HTTPStatus.ACCEPTED)

    async def pin(request: web.Request, client: str) -> web.Response:
        return await hold(request, client, GpuPinRequest)

    async def exempt(request: web.Request, client: str) -> web.Response:
        return await hold(request, client, GpuExemptRequest)

    async def release(request: web.Request, client: str) -> web.Response:
        body = await read_body(request, GpuReleaseRequest)
        return json_response(pins.release(body.gpu_uuid, why=body.why, by=client))

    path = "/v1/gpus"
    return [
        Route(name="listGpuPins", path=f"{path}/pins", handle=show, authenticate=for_readers(authenticate)),
        Route(name="pinGpu", method="POST", path=f"{path}/pin", handle=pin, authenticate=authenticate),
        Route(
            name="previewGpuPin", method="POST", path=f"{path}/pin/preview", handle=preview, authenticate=authenticate
        ),
        Route(name="exemptGpu", method="POST", path=f"{path}/exempt", handle=exempt, authenticate=authenticate),
        Route(name="releaseGpu", method="POST", path=f"{path}/release", handle=release, authenticate=authenticate),
    ]


def _limit_w(body: ExemptRequest) -> float | None:
    """Return at which limit a run is to be held [W]; None: at its prior limit."""
    return body.power_limit_w if isinstance(body, PinRequest) else None
