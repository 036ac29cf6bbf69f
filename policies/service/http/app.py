"""The HTTP API of the policy service: jobs, trials, results, posteriors; docs/policy-http.md tells how to use it.

Each request passes the guard and the gate, is taken apart, handled under a timeout, and answered in JSON; what goes
wrong is answered as a problem, and nothing of our inside is shown. A desk that was asked is never interrupted because
its client has gone.
"""

import asyncio
import logging
from collections.abc import AsyncIterator, Awaitable, Callable
from contextlib import AbstractAsyncContextManager, asynccontextmanager, nullcontext
from functools import partial
from http import HTTPStatus
from pathlib import Path
from typing import Any, Final

import msgspec
from aiohttp import web
from aiohttp.http_exceptions import HttpProcessingError

from policies.service.config import HttpConfig
from policies.service.errors import PolicyError, StoreUnavailableError
from policies.service.http.auth import WriteTokens
from policies.service.http.calls import JSON, ApiRequest, body_in, name_in, query_in
from policies.service.http.gate import ConcurrencyLimit
from policies.service.http.guard import RequestGuard, is_loopback
from policies.service.http.openapi import document
from policies.service.http.problems import RETRY_AFTER_S, ProblemError, refusal_of, refusal_of_http, response_of
from policies.service.http.routes import OPERATIONS, Operation
from policies.service.http.service import Reply, Service, TrialDesk
from policies.service.metrics import Metrics

SHUTDOWN_TIMEOUT_S: Final = 5.0
"""For what is being answered when the service ends."""
BACKLOG: Final = 1_024
_HEADERS: Final = {"Cache-Control": "no-store", "X-Content-Type-Options": "nosniff", "Server": "gridchase"}
_NAMES: Final[dict[tuple[str, str], str]] = {
    (operation.method, operation.path): operation.name for operation in OPERATIONS
}
_LOGGER = logging.getLogger(__name__)
_PROTOCOL_LOGGER = logging.getLogger(f"{__name__}.protocol")


def _is_ours(record: logging.LogRecord) -> bool:
    """Return whether a message of the HTTP server is no client's fault: any scan of ports would fill the log."""
    return record.exc_info is None or not isinstance(record.exc_info[1], HttpProcessingError)


_PROTOCOL_LOGGER.addFilter(_is_ours)


class _Api:
    """The handlers of one server."""

    def __init__(self, service: Service, *, guard: RequestGuard, clock_s: Callable[[], float]) -> None:
        self._service = service
        self._guard = guard
        self._clock_s = clock_s
        self._gate = ConcurrencyLimit(n_at_once=16, n_waiting=1_024)
        self._bulk_gate = ConcurrencyLimit(n_at_once=2, n_waiting=8)

    def app(self) -> web.Application:
        """Return the application, with a route for each operation."""
        app = web.Application(middlewares=[self._answered])
        app.on_response_prepare.append(_set_headers)
        for operation in OPERATIONS:
            handle = partial(self._handle, operation)
            if operation.method == "GET":
                app.router.add_get(operation.path, handle, allow_head=True)
            else:
                app.router.add_route(operation.method, operation.path, handle)
        return app

    @web.middleware
    async def _answered(
        self, request: web.Request, handler: Callable[[web.Request], Awaitable[web.StreamResponse]]
    ) -> web.StreamResponse:
        """Answer what goes wrong as a problem, and count every answer."""
        try:
            response = await handler(request)
        except Exception as error:  # noqa: BLE001 — whatever it is, the client gets an answer and the log a traceback
            response = response_of(self._refusal(request, error))
        self._service.metrics.requested(_name_of(request), response.status)
        return response

    def _refusal(self, request: web.Request, error: Exception) -> ProblemError:
        match error:
            case ProblemError():
                return error
            case PolicyError():
                if isinstance(error, StoreUnavailableError):
                    self._service.metrics.store_failed()
                return refusal_of(error)
            case web.HTTPException():
                return refusal_of_http(error)
            case TimeoutError():
                return _late("this took too long: ask again")
            case _:
                _LOGGER.error("%s %s failed", request.method, request.path, exc_info=error)
                detail = "an error of the service; its log tells more"
                return ProblemError(HTTPStatus.INTERNAL_SERVER_ERROR, "failed", detail)

    async def _handle(self, operation: Operation[Any, Any], request: web.Request) -> web.StreamResponse:
        self._guard.check_host(request)
        writer = await self._guard.writer(request) if operation.is_write else ""
        async with asyncio.timeout(operation.timeout_s) as deadline, self._place_for(operation):
            answer = await self._work(operation, request, writer)
            if not isinstance(answer, AsyncIterator):
                return _response(operation, answer)
            deadline.reschedule(None)  # an answer that has begun has a deadline of its own
            return await _stream(request, answer, timeout_s=operation.timeout_s)

    def _place_for(self, operation: Operation[Any, Any]) -> AbstractAsyncContextManager[None]:
        if operation.is_about_the_service:
            return nullcontext()
        return (self._bulk_gate if operation.is_bulk else self._gate).passed()

    async def _work(self, operation: Operation[Any, Any], request: web.Request, writer: str) -> object:
        job, run = (name_in(request.match_info, key) for key in ("job", "run"))
        query = query_in(request, operation.query)
        body = operation.body and await body_in(request, operation.body, max_bytes=operation.max_bytes)
        call = ApiRequest(job=job, run=run, query=query, body=body, now_s=self._clock_s(), writer=writer)
        return await operation.handle(self._service, call)


def _name_of(request: web.Request) -> str:
    """Return the operation that a request means; `none` where there is none."""
    resource = request.match_info.route.resource
    method = "GET" if request.method == "HEAD" else request.method
    return "none" if resource is None else _NAMES.get((method, resource.canonical), "none")


def _response(operation: Operation[Any, Any], answer: object) -> web.Response:
    status = HTTPStatus.OK.value
    if isinstance(answer, Reply):
        status, answer = answer.status, answer.body
    if answer is None:
        return web.Response(status=HTTPStatus.NO_CONTENT)
    raw = answer if isinstance(answer, bytes) else msgspec.json.encode(answer)
    return web.Response(status=status, body=raw, headers={"Content-Type": operation.content_type})


async def _stream(request: web.Request, pieces: AsyncIterator[bytes], *, timeout_s: float) -> web.StreamResponse:
    """Send an answer piece by piece. Once it has begun it cannot become a problem: the connection breaks off."""
    response = web.StreamResponse(headers={"Content-Type": JSON})
    if request.method == "HEAD":
        return response
    try:
        async with asyncio.timeout(timeout_s):
            await response.prepare(request)
            async for piece in pieces:
                await response.write(piece)
    except ConnectionError:
        pass  # the client has gone
    except Exception as error:  # noqa: BLE001 — whatever it is, half an answer must not look like a whole one
        _LOGGER.warning("%s breaks off: %s", request.path, str(error) or "it took too long")
        if request.transport is not None:
            request.transport.abort()
    return response


def _late(detail: str) -> ProblemError:
    return ProblemError(HTTPStatus.SERVICE_UNAVAILABLE, "timeout", detail, headers={"Retry-After": f"{RETRY_AFTER_S}"})


async def _set_headers(_: web.Request, response: web.StreamResponse) -> None:
    response.headers.update(_HEADERS)


@asynccontextmanager
async def served(
    desk: TrialDesk,
    *,
    http: HttpConfig,
    clock_s: Callable[[], float],
    is_ready: Callable[[], str | None] = lambda: None,
    metrics: Metrics | None = None,
) -> AsyncIterator[str]:
    """Serve the API while the body runs; yield its address, such as `http://127.0.0.1:9322`.

    "" where `http.port` is -1, or where the address is taken: that is told, and borne, as requests on the bus are
    answered all the same. On leaving, what is being answered has 5 s.

    Args:
        desk: the trials.
        http: where to serve, and the file of tokens.
        clock_s: the time [s].
        is_ready: what, beside the database, keeps the service from its work, in a sentence; None: nothing.
        metrics: the counters, where others count with them, too.
    """
    if http.port < 0:
        yield ""
        return
    service = Service(desk=desk, metrics=metrics or Metrics(), is_ready=is_ready, document=document())
    tokens = await asyncio.to_thread(WriteTokens, Path(http.token_file)) if http.token_file else None
    guard = RequestGuard(tokens, host=http.host)
    app = _Api(service, guard=guard, clock_s=clock_s).app()
    # What is compressed is refused by its header: unpacking is the router's first step otherwise, and has no bound.
    runner = web.AppRunner(
        app, access_log=None, logger=_PROTOCOL_LOGGER, shutdown_timeout=SHUTDOWN_TIMEOUT_S, auto_decompress=False
    )
    await runner.setup()
    try:
        url = await _listening(runner, http)
        guard.is_local = bool(url) and all(is_loopback(address[0]) for address in runner.addresses)
        if url:
            _tell(url, has_tokens=tokens is not None, is_local=guard.is_local)
        yield url
    finally:
        await runner.cleanup()


async def _listening(runner: web.AppRunner, http: HttpConfig) -> str:
    try:
        await web.TCPSite(runner, http.host, http.port, backlog=BACKLOG).start()
    except OSError as error:
        _LOGGER.error("http.host, http.port: %s; the HTTP API is not served", error.strerror or error)
        return ""
    host, port = runner.addresses[0][:2]
    return f"http://[{host}]:{port}" if ":" in host else f"http://{host}:{port}"


def _tell(url: str, *, has_tokens: bool, is_local: bool) -> None:
    _LOGGER.info("the HTTP API is at %s", url)
    if not has_tokens and not is_local:
        _LOGGER.warning("the HTTP API takes no writes: set token_file in [http], or serve on host 127.0.0.1")
