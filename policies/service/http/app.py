"""The HTTP API of the policy service: jobs, trials, results, posteriors; docs/policy-http.md says how to use it."""

import asyncio
from collections.abc import AsyncIterator, Awaitable, Callable
from contextlib import asynccontextmanager
from http import HTTPStatus
from pathlib import Path
from typing import Final

import msgspec
from aiohttp import web

from policies.service.config import HttpConfig
from policies.service.errors import PolicyError, RequestError, StoreUnavailableError
from policies.service.http.openapi import document
from policies.service.http.routes import OPERATIONS, ApiRequest, Operation, Services
from policies.service.metrics import Metrics
from policies.service.records import JobKey
from policies.service.trials.jobs import JobRepository
from policies.service.trials.repository import TrialRepository
from publishers.messages.topics import RunKey
from publishers.shared.http.problems import ProblemError, unavailable
from publishers.shared.http.requests import path_name, path_user, read_json, read_query
from publishers.shared.http.server import ConcurrencyLimit, HttpServer, Route, Stream
from publishers.shared.http.write_access import WriteAccess

MAX_CONNECTIONS: Final = 1_024
"""Runs of a whole cluster may ask at once."""


class _Api:
    """The operations as routes of one server."""

    def __init__(
        self, services: Services, *, http: HttpConfig, access: WriteAccess, clock_s: Callable[[], float]
    ) -> None:
        self._services = services
        self._clock_s = clock_s
        limit, bulk_limit = ConcurrencyLimit(n_at_once=16, n_waiting=256), ConcurrencyLimit(n_at_once=2, n_waiting=8)
        self.server = HttpServer(
            [
                Route(
                    name=operation.name,
                    method=operation.method,
                    path=operation.path,
                    handle=self._handler(operation),
                    authenticate=access.authenticate if operation.is_write else None,
                    timeout_s=operation.timeout_s,
                    limit=None if operation.is_about_the_service else bulk_limit if operation.is_bulk else limit,
                )
                for operation in OPERATIONS
            ],
            host=http.host,
            port=http.port,
            title="the HTTP API",
            to_problem=self._problem,
            count=services.metrics.count_request,
            max_connections=MAX_CONNECTIONS,
        )

    def _handler(self, operation: Operation) -> Callable[[web.Request, str], Awaitable[web.Response | Stream]]:
        async def handle(request: web.Request, writer: str) -> web.Response | Stream:
            run = RunKey(path_user(request), path_name(request, "job"), path_name(request, "run"))
            query = read_query(request, operation.query)
            body = operation.body and await read_json(
                request, operation.body, max_bytes=operation.max_bytes, timeout_s=operation.body_timeout_s
            )
            answer = await operation.handle(
                self._services,
                ApiRequest(job=JobKey.of(run), run=run, query=query, body=body, now_s=self._clock_s(), writer=writer),
            )
            return answer if isinstance(answer, web.Response | Stream) else _response(operation, answer)

        return handle

    def _problem(self, error: Exception) -> ProblemError | None:
        if isinstance(error, StoreUnavailableError):
            self._services.metrics.count_store_failure()
        if not isinstance(error, PolicyError):
            return None
        if error.status is HTTPStatus.SERVICE_UNAVAILABLE:
            return unavailable(error.reason, str(error))
        faults = tuple(error.faults) if isinstance(error, RequestError) else ()
        return ProblemError(error.status, error.reason, str(error), faults=faults)


def _response(operation: Operation, answer: object) -> web.Response:
    if answer is None:
        return web.Response(status=HTTPStatus.NO_CONTENT.value)
    raw = answer if isinstance(answer, bytes) else msgspec.json.encode(answer)
    return web.Response(body=raw, headers={"Content-Type": operation.content_type})


@asynccontextmanager
async def served(
    trials: TrialRepository,
    jobs: JobRepository,
    *,
    http: HttpConfig,
    own_token: Path,
    clock_s: Callable[[], float],
    trouble: Callable[[], str | None] = lambda: None,
    metrics: Metrics | None = None,
) -> AsyncIterator[str]:
    """Serve the API while the body runs; yield its URL, such as `http://127.0.0.1:9322`.

    "" where `http.port` is -1, or where the address is taken, since requests on the bus are answered all the same.

    Args:
        trials: the database, for runs.
        jobs: the database, for people.
        http: where to serve, and the operator's file of tokens.
        own_token: the file of the service's own token, which is made where it is missing.
        clock_s: the time of day, Unix [s].
        trouble: what keeps the service from its work, other than the database, in a sentence; None: nothing.
        metrics: the counters, where others count with them, too.
    """
    if http.port < 0:
        yield ""
        return
    configured = Path(http.token_file) if http.token_file else None
    access = await asyncio.to_thread(WriteAccess, own_token, configured)
    services = Services(trials=trials, jobs=jobs, metrics=metrics or Metrics(), trouble=trouble, document=document())
    async with _Api(services, http=http, access=access, clock_s=clock_s).server.serving() as url:
        yield url
