"""The HTTP server of the controller and the policy service: routes, guards, limits and problem details for errors.

Each request passes the host and origin guard, the authentication of its route and a concurrency limit, and is
handled under a deadline. Errors are answered as problems (RFC 9457); internals are never shown. The work of a request
continues after its client has disconnected.
"""

import asyncio
import logging
import socket
from asyncio.trsock import TransportSocket
from collections.abc import AsyncGenerator, AsyncIterator, Awaitable, Callable, Collection, Iterator, Sequence
from contextlib import AbstractAsyncContextManager, aclosing, asynccontextmanager, contextmanager, nullcontext
from dataclasses import dataclass
from http import HTTPStatus
from ipaddress import ip_address
from ssl import SSLContext
from typing import Final, cast
from urllib.parse import urlsplit

import msgspec
from aiohttp import web
from aiohttp.http_exceptions import HttpProcessingError

from publishers.shared.http.connections import BACKLOG, Connections, affordable
from publishers.shared.http.problems import PROBLEM, ProblemError, unavailable
from publishers.shared.http.requests import JSON

TIMEOUT_S: Final = 15.0
SHUTDOWN_TIMEOUT_S: Final = 5.0
"""For requests that are being answered when the server ends."""
MAX_CONNECTIONS: Final = 256
STALL_TIMEOUT_S: Final = 10.0
"""For one piece of a stream to be taken by the client."""
UNSENT_BYTES: Final = 16_384
"""Of an endless stream, in the kernel."""
LINGERING_S: Final = 2.0
"""For the rest of a body that nobody wants, so that the client can read why."""
_HEADERS: Final = {"X-Content-Type-Options": "nosniff", "Server": "gridchase"}
_READS: Final = frozenset({"GET", "HEAD", "OPTIONS"})

_LOGGER = logging.getLogger(__name__)
_PROTOCOL_LOGGER = logging.getLogger(f"{__name__}.protocol")
# A malformed request is the client's fault; any port scan would fill the log.
_PROTOCOL_LOGGER.addFilter(
    lambda record: record.exc_info is None or not isinstance(record.exc_info[1], HttpProcessingError)
)


class ConcurrencyLimit:
    """Lets `n_at_once` requests run and `n_waiting` wait, in their order; more are refused."""

    def __init__(self, *, n_at_once: int, n_waiting: int) -> None:
        self._slots = asyncio.Semaphore(n_at_once)
        self._n_most = n_at_once + n_waiting
        self._n_here = 0

    @asynccontextmanager
    async def slot(self) -> AsyncIterator[None]:
        """Hold a slot while the body runs.

        Raises:
            ProblemError: there is no slot, nor room to wait for one.
        """
        if self._n_here >= self._n_most:
            raise unavailable("busy", f"{self._n_here} requests are being answered: ask again", retry_after_s=1)
        self._n_here += 1
        try:
            async with self._slots:
                yield
        finally:
            self._n_here -= 1


def _slot(limit: ConcurrencyLimit | None) -> AbstractAsyncContextManager[None]:
    return nullcontext() if limit is None else limit.slot()


@dataclass(frozen=True, slots=True)
class Stream:
    """An answer that is sent piece by piece.

    Attributes:
        pieces: are closed when nobody takes them any more.
        content_type: of all of them together.
        is_endless: it has no deadline, only each of its pieces; the end of the server ends it at once. Pieces are not
            piled up in the kernel either: whoever is slow is waited for, so that the next one is of then.
        stall_timeout_s: for one piece to be taken by the client [s]; None: the server's own.
    """

    pieces: AsyncIterator[bytes]
    content_type: str = JSON
    is_endless: bool = False
    stall_timeout_s: float | None = None


@dataclass(frozen=True, slots=True, kw_only=True)
class Route:
    """What is done for one method of one path.

    Attributes:
        name: for metrics.
        handle: returns the answer to a request and its client.
        authenticate: returns the client, before a slot is taken, or raises ProblemError; None: anybody, named "".
        timeout_s: the deadline of an answer, and again of sending it where it is a stream [s].
        limit: how many such requests run at once; None: any number.
    """

    name: str
    method: str = "GET"
    path: str
    handle: Callable[[web.Request, str], Awaitable[web.Response | Stream]]
    authenticate: Callable[[web.Request], Awaitable[str]] | None = None
    timeout_s: float = TIMEOUT_S
    limit: ConcurrencyLimit | None = None


class HttpServer:
    """Serves routes on one address.

    Args:
        routes: what is served.
        host: the address.
        port: its port; 0 takes a free one, -1 serves nothing.
        title: what is served, for the log.
        to_problem: returns the problem of an error of the application, None where it has none.
        count: called with the name of the route (`none` where there is none) and the status of each answer.
        max_connections: how many there may be at once, where there are enough file descriptors.
        section: of the configuration that has host and port, for the log.
        names: by which requests may ask a loopback address, beside its own: those of a proxy before it.
        tls: how connections are encrypted; None: they are not.

    Attributes:
        is_local: whether it listens on loopback addresses alone; False until that is known.
    """

    def __init__(
        self,
        routes: Sequence[Route],
        *,
        host: str,
        port: int,
        title: str,
        to_problem: Callable[[Exception], ProblemError | None] = lambda _: None,
        count: Callable[[str, int], None] = lambda _name, _status: None,
        max_connections: int = MAX_CONNECTIONS,
        section: str = "http",
        names: Collection[str] = (),
        tls: SSLContext | None = None,
    ) -> None:
        self.is_local = False
        self._section = section
        self._routes = {(route.method, route.path): route for route in routes}
        self._host = host
        self._names = {"localhost", host.lower(), *(name.lower() for name in names)}
        self._tls = tls
        self._port = port
        self._title = title
        self._to_problem = to_problem
        self._count = count
        self._turn = asyncio.Lock()
        self._endless: set[asyncio.Task[object]] = set()
        self._connections = Connections(n_most=affordable(max_connections), title=title, tls=tls)

    @asynccontextmanager
    async def serving(self) -> AsyncIterator[str]:
        """Serve while the body runs; yield the URL, such as `http://127.0.0.1:9322`.

        "" where nothing is served: port -1, or an address that is taken, which is logged and accepted.
        """
        if self._port < 0:
            yield ""
            return
        app = web.Application(middlewares=[self._middleware])
        app.on_response_prepare.append(_set_headers)
        for route in self._routes.values():
            app.router.add_route(route.method, route.path, self._handler(route))
            if route.method == "GET":
                app.router.add_route("HEAD", route.path, self._handler(route))
        # Compressed bodies are refused by their header; aiohttp would unpack them first, without a bound.
        runner = web.AppRunner(
            app,
            access_log=None,
            logger=_PROTOCOL_LOGGER,
            shutdown_timeout=SHUTDOWN_TIMEOUT_S,
            auto_decompress=False,
            lingering_time=LINGERING_S,
        )
        await runner.setup()
        server = await self._listen(runner)
        try:
            yield "" if server is None else self._url([listening.getsockname() for listening in server.sockets])
        finally:
            if server is not None:
                server.close()
            for streaming in self._endless:
                streaming.cancel()
            await runner.cleanup()
            self._connections.close()

    async def _listen(self, runner: web.AppRunner) -> asyncio.Server | None:
        handlers = cast("web.Server", runner.server)
        loop = asyncio.get_running_loop()
        try:
            return await loop.create_server(
                lambda: self._connections.accept(handlers),
                self._host,
                self._port,
                backlog=BACKLOG,
            )
        except OSError as error:
            keys = f"{self._section}.host, {self._section}.port"
            _LOGGER.error("%s: not served: %s: %s", self._title, keys, error.strerror or error)
            return None

    def _url(self, addresses: Sequence[tuple[str, int]]) -> str:
        self.is_local = all(is_loopback(address[0]) for address in addresses)
        host, port = addresses[0][:2]
        scheme = "http" if self._tls is None else "https"
        url = f"{scheme}://[{host}]:{port}" if ":" in host else f"{scheme}://{host}:{port}"
        _LOGGER.info("%s: served at %s", self._title, url)
        return url

    def _handler(self, route: Route) -> Callable[[web.Request], Awaitable[web.StreamResponse]]:
        async def handle(request: web.Request) -> web.StreamResponse:
            client = "" if route.authenticate is None else await route.authenticate(request)
            async with asyncio.timeout(route.timeout_s) as deadline, _slot(route.limit):
                answer = await route.handle(request, client)
                if not isinstance(answer, Stream):
                    return answer
                deadline.reschedule(None)  # once begun, a stream has a deadline of its own
                if not answer.is_endless:
                    return await _send_stream(request, answer, timeout_s=route.timeout_s)
                _limit_unsent(request)
                with self._ended_at_once():
                    return await _send_stream(request, answer, timeout_s=None)

        return handle

    @web.middleware
    async def _middleware(
        self, request: web.Request, handler: Callable[[web.Request], Awaitable[web.StreamResponse]]
    ) -> web.StreamResponse:
        """Guard against other sites, answer errors as problems, and count every answer."""
        with self._connections.busy(request.protocol):
            try:
                await self._wait_for_turn()
                self._check_host(request)
                if request.method not in _READS:
                    _check_origin(request)
                response = await handler(request)
            except Exception as error:  # noqa: BLE001 — whatever it is, the client gets an answer and the log a traceback
                response = _response_of(self._problem(request, error))
            route = self._route_of(request)
            self._count("none" if route is None else route.name, response.status)
            if not response.prepared:
                await _send(request, response, timeout_s=TIMEOUT_S if route is None else route.timeout_s)
            return response

    @contextmanager
    def _ended_at_once(self) -> Iterator[None]:
        """Let the end of the server cancel the present request."""
        task = cast("asyncio.Task[object]", asyncio.current_task())
        self._endless.add(task)
        try:
            yield
        finally:
            self._endless.discard(task)

    async def _wait_for_turn(self) -> None:
        """Let one request begin in each turn of the event loop, so that however many come, nothing else waits long."""
        async with self._turn:
            await asyncio.sleep(0)

    def _problem(self, request: web.Request, error: Exception) -> ProblemError:
        problem = error if isinstance(error, ProblemError) else self._to_problem(error)
        if problem is not None:
            return problem
        if isinstance(error, web.HTTPException):
            return _router_problem(error)
        if isinstance(error, TimeoutError):
            return unavailable("timeout", "this took too long: ask again")
        _LOGGER.error("%s %s failed", request.method, request.path, exc_info=error)
        return ProblemError(HTTPStatus.INTERNAL_SERVER_ERROR, "failed", "internal error; see the log")

    def _route_of(self, request: web.Request) -> Route | None:
        resource = request.match_info.route.resource
        method = "GET" if request.method == "HEAD" else request.method
        return self._routes.get((method, "" if resource is None else resource.canonical))

    def _check_host(self, request: web.Request) -> None:
        """Reject requests to a foreign name on a loopback server (DNS rebinding); addresses need no name."""
        host = request.headers.get("Host")
        if self.is_local and host is not None and not self._is_own_name(name_in(host)):
            detail = f"Host: {host[:80]!r} is not a name of this server: use 127.0.0.1, or localhost"
            raise ProblemError(HTTPStatus.FORBIDDEN, "foreign_host", detail)

    def _is_own_name(self, name: str) -> bool:
        return name in self._names or _is_address(name)


def is_loopback(address: str) -> bool:
    """Return whether only this machine can reach an address."""
    address = address.partition("%")[0]
    return _is_address(address) and ip_address(address).is_loopback


def is_this_machine(host: str) -> bool:
    """Return whether a name or an address in a URL, as it is typed, is of the loopback."""
    return host.lower() == "localhost" or is_loopback(host)


def json_response(value: object, *, status: HTTPStatus = HTTPStatus.OK) -> web.Response:
    """Return a value as an answer in JSON."""
    return web.Response(status=status.value, body=msgspec.json.encode(value), headers={"Content-Type": JSON})


def _check_origin(request: web.Request) -> None:
    """Reject cross-site writes of browsers (CSRF): a browser on this host passes the loopback check."""
    origin, site = request.headers.get("Origin"), request.headers.get("Sec-Fetch-Site", "none")
    is_foreign = origin is not None and _authority(origin) != request.headers.get("Host", "").lower()
    if is_foreign or site not in {"none", "same-origin"}:
        detail = f"a page of {(origin or 'another site')[:80]} may not write here"
        raise ProblemError(HTTPStatus.FORBIDDEN, "foreign_origin", detail)


def _authority(origin: str) -> str:
    try:
        return urlsplit(origin).netloc.lower()
    except ValueError:
        return ""


def name_in(host: str) -> str:
    """Return a Host header without its port, and without the brackets of an IPv6 address."""
    try:
        return (urlsplit(f"//{host}").hostname or "").rstrip(".").lower()
    except ValueError:
        return ""


def _is_address(name: str) -> bool:
    try:
        ip_address(name)
    except ValueError:
        return False
    return True


def _router_problem(error: web.HTTPException) -> ProblemError:
    status = HTTPStatus(error.status)
    match error:
        case web.HTTPMethodNotAllowed():
            allowed = ", ".join(sorted(error.allowed_methods))
            detail = f"{error.method} is not possible here: use {allowed}"
            return ProblemError(status, "method_not_allowed", detail, headers={"Allow": allowed})
        case web.HTTPNotFound():
            return ProblemError(status, "not_found", "there is nothing at this path")
        case _:
            return ProblemError(status, "invalid_request", status.description or status.phrase)


def _response_of(error: ProblemError) -> web.Response:
    return web.Response(
        status=error.problem.status,
        body=msgspec.json.encode(error.problem),
        content_type=PROBLEM,
        headers=error.headers,
    )


async def _send(request: web.Request, response: web.StreamResponse, *, timeout_s: float) -> None:
    """Send an answer; a client that does not take it in time is cut off."""
    try:
        async with asyncio.timeout(timeout_s):
            await response.prepare(request)
            await response.write_eof()
    except ConnectionError:
        pass  # the client has gone
    except TimeoutError:
        _abort(request)


async def _send_stream(request: web.Request, stream: Stream, *, timeout_s: float | None) -> web.StreamResponse:
    """Send a stream. Once begun it cannot become a problem any more: the connection is cut instead."""
    response = web.StreamResponse(headers={"Content-Type": stream.content_type})
    if request.method == "HEAD":
        return response
    stall_timeout_s = STALL_TIMEOUT_S if stream.stall_timeout_s is None else stream.stall_timeout_s
    try:
        async with asyncio.timeout(timeout_s), _closing(stream.pieces):
            await response.prepare(request)
            async for piece in stream.pieces:
                async with asyncio.timeout(stall_timeout_s):
                    await response.write(piece)
            await response.write_eof()
    except ConnectionError:
        pass  # the client has gone
    except Exception as error:  # noqa: BLE001 — whatever it is, half an answer must not look like a whole one
        if not (stream.is_endless and isinstance(error, TimeoutError)):  # of those any viewer may be too slow
            _LOGGER.warning("%s aborted: %s", request.path, str(error) or "it took too long")
        _abort(request)
    return response


def _limit_unsent(request: web.Request) -> None:
    """Let the kernel keep little that is not sent yet; by itself it takes some megabytes, half a minute of events."""
    connected = request.get_extra_info("socket")
    if isinstance(connected, TransportSocket):
        connected.setsockopt(socket.IPPROTO_TCP, socket.TCP_NOTSENT_LOWAT, UNSENT_BYTES)


def _closing(pieces: AsyncIterator[bytes]) -> AbstractAsyncContextManager[object]:
    return aclosing(pieces) if isinstance(pieces, AsyncGenerator) else nullcontext()


def _abort(request: web.Request) -> None:
    if request.transport is not None:
        request.transport.abort()


async def _set_headers(_: web.Request, response: web.StreamResponse) -> None:
    response.headers.update(_HEADERS)
    response.headers.setdefault("Cache-Control", "no-store")
