"""The routes of the pages of runs, jobs, grid, log and history; a fault is a page that says what is wrong."""

from collections.abc import Awaitable, Callable
from contextlib import suppress
from http import HTTPStatus
from typing import Annotated, Final, TypeVar

from aiohttp import web
from msgspec import Meta, Struct, field
from sqlalchemy import Connection

from controller.history.energy_history.query import AskedName
from controller.history.energy_history.reading import decisions, ended_runs, past_run, run_quarters
from controller.runtime.clock import Clock
from controller.runtime.markup import element, escaped
from controller.web.live.site_state import SiteState
from controller.web.pages.grid import render_grid
from controller.web.pages.history import HistoryQuery, read_month, render_history
from controller.web.pages.jobs.job_page import render_job
from controller.web.pages.jobs.jobs_page import render_jobs
from controller.web.pages.layout import render_page
from controller.web.pages.log import N_DECISIONS, Asked, render_log
from controller.web.pages.runs.run_page import render_run, run_view
from controller.web.pages.runs.runs_page import N_ENDED, SINCE_S, render_runs
from controller.web.serving import page_response, zone_of
from controller.web.store import SiteStore
from policies.database.errors import DatabaseVersionError
from publishers.messages.topics import JobName, RunKey
from publishers.shared.http.problems import ProblemError, invalid_request
from publishers.shared.http.requests import path_name, path_user, read_query
from publishers.shared.http.server import ConcurrencyLimit, Route

READ_TIMEOUT_S: Final = 5.0
"""A page waits no longer for the history [s]; those behind it have the rest of the time of an answer."""
COURSE_S: Final = 1.0
"""The page of a run waits no longer for what the run did before [s]."""
N_WAITING: Final = 16
"""Pages are made one after the other; so many may wait, and more are refused."""
_LATEST_S: Final = 2.0**53
Result = TypeVar("Result")


class LogQuery(Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """Which decisions are asked for; None is any; `before_s` is Unix seconds."""

    node: AskedName | None = None
    job: AskedName | None = None
    before_s: Annotated[float, Meta(ge=0, le=_LATEST_S)] | None = field(default=None, name="before")


class ListQuery(Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """Which page of a list is asked for, from 1 on."""

    page: Annotated[int, Meta(ge=1, le=1_000)] = 1


class _Pages:
    """Answers with pages."""

    def __init__(self, state: SiteState, store: SiteStore, clock: Clock, *, takes_orders: bool) -> None:
        self._state = state
        self._store = store
        self._clock = clock
        self._takes_orders = takes_orders

    async def _read(self, work: Callable[[Connection], Result]) -> Result:
        return await self._store.read(work, timeout_s=READ_TIMEOUT_S)

    async def run(self, request: web.Request) -> str:
        """Return the page of a run; of one that is heard, the history has its course alone, and may be away."""
        try:
            key = RunKey(path_user(request), path_name(request, "job"), path_name(request, "run"))
        except ProblemError as error:
            raise ProblemError(HTTPStatus.NOT_FOUND, "unknown_run", error.problem.detail) from error
        now_s = self._clock.now_s()
        known = self._state.runs.get(key)
        past, quarters = None, None
        if known is None or known.energy is None or known.energy.final:
            past = await self._read(lambda connection: past_run(connection, key))
        with suppress(OSError, DatabaseVersionError):
            quarters = await self._store.read(lambda connection: run_quarters(connection, key), timeout_s=COURSE_S)
        view = run_view(self._state, key, past, now_s, quarters=quarters, takes_orders=self._takes_orders)
        if view is None:
            detail = f"No run {key} is known. The history keeps runs as long as its configuration says."
            raise ProblemError(HTTPStatus.NOT_FOUND, "unknown_run", detail)
        return render_run(view, self._state, now_s=now_s, zone=zone_of(request))

    async def runs(self, request: web.Request) -> str:
        """Return a page of all runs."""
        query, now_s = read_query(request, ListQuery), self._clock.now_s()
        ended = await self._read(lambda connection: ended_runs(connection, since_s=now_s - SINCE_S, n_most=N_ENDED))
        return render_runs(self._state, ended, now_s=now_s, zone=zone_of(request), page=query.page)

    async def jobs(self, request: web.Request) -> str:
        """Return a page of all jobs."""
        query = read_query(request, ListQuery)
        return render_jobs(self._state, now_s=self._clock.now_s(), zone=zone_of(request), page=query.page)

    async def job(self, request: web.Request) -> str:
        """Return the page of a job."""
        try:
            job = JobName(path_user(request), path_name(request, "job"))
        except ProblemError as error:
            raise ProblemError(HTTPStatus.NOT_FOUND, "unknown_job", error.problem.detail) from error
        posterior = self._state.jobs.get(job)
        if posterior is None:
            detail = f"No job {job.user}/{job.job} is known whose batch sizes are learnt."
            raise ProblemError(HTTPStatus.NOT_FOUND, "unknown_job", detail)
        return render_job(job, posterior, now_s=self._clock.now_s(), zone=zone_of(request))

    async def grid(self, request: web.Request) -> str:
        """Return the page of the grid."""
        return render_grid(self._state, now_s=self._clock.now_s(), zone=zone_of(request))

    async def log(self, request: web.Request) -> str:
        """Return a page of the log."""
        query = read_query(request, LogQuery)
        before_s = _LATEST_S if query.before_s is None else query.before_s
        changes = await self._read(
            lambda connection: decisions(
                connection, before_s=before_s, node=query.node, job=query.job, n_most=N_DECISIONS
            )
        )
        asked = Asked(query.node, query.job, query.before_s)
        return render_log(changes, asked, now_s=self._clock.now_s(), zone=zone_of(request))

    async def history(self, request: web.Request) -> str:
        """Return the page of a month."""
        query, now_s, faults = read_query(request, HistoryQuery), self._clock.now_s(), list[str]()
        zone = zone_of(request)
        found = await self._read(lambda connection: read_month(connection, query, now_s, zone, faults))
        if found is None:
            raise invalid_request("; ".join(faults).replace("--month ", "month = "))
        return render_history(found, now_s=now_s, zone=zone)

    def answering(
        self, current: str, make: Callable[[web.Request], Awaitable[str]]
    ) -> Callable[[web.Request, str], Awaitable[web.Response]]:
        """Return what answers with a page, or with one that says what is wrong."""

        async def answer(request: web.Request, _client: str) -> web.Response:
            try:
                return page_response(request, await make(request))
            except ProblemError as error:
                return self._fault(request, current, HTTPStatus(error.problem.status), error.problem.detail)
            except TimeoutError:
                detail = f"The history did not answer within {READ_TIMEOUT_S:g} s."
            except (OSError, DatabaseVersionError) as error:
                detail = f"The history cannot be read: {getattr(error, 'strerror', None) or error}"
            return self._fault(request, current, HTTPStatus.SERVICE_UNAVAILABLE, detail)

        return answer

    def _fault(self, request: web.Request, current: str, status: HTTPStatus, detail: str) -> web.Response:
        card = element("section", element("p", escaped(detail)), class_="card")
        now_s, zone = self._clock.now_s(), zone_of(request)
        page = render_page(status.phrase.capitalize(), current=current, parts=[card], now_s=now_s, zone=zone)
        return page_response(request, page, status=status)


def page_routes(state: SiteState, store: SiteStore, *, clock: Clock, takes_orders: bool = False) -> list[Route]:
    """Return the routes.

    Args:
        state: what is known of the site.
        store: the history; one that is slow or away costs these pages an answer 503, and others nothing.
        clock: the time.
        takes_orders: whether people can order here what runs do.
    """
    pages, limit = (
        _Pages(state, store, clock, takes_orders=takes_orders),
        ConcurrencyLimit(n_at_once=1, n_waiting=N_WAITING),
    )
    made = {
        "/run/{user}/{job}/{run}": ("run", "/runs", pages.run),
        "/runs": ("runs", "/runs", pages.runs),
        "/log": ("log", "/log", pages.log),
        "/history": ("history", "/history", pages.history),
    }
    return [
        Route(name="grid", path="/grid", handle=pages.answering("/grid", pages.grid)),
        Route(name="jobs", path="/jobs", handle=pages.answering("/jobs", pages.jobs)),
        Route(name="job", path="/job/{user}/{job}", handle=pages.answering("/jobs", pages.job)),
        *(
            Route(name=name, path=path, handle=pages.answering(current, make), limit=limit)
            for path, (name, current, make) in made.items()
        ),
    ]
