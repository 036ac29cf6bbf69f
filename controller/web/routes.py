"""What a site's process serves: its pages, /healthz, /metrics and /v1/report. Whoever reaches it may read."""

from collections.abc import Awaitable, Callable, Iterator, Mapping
from datetime import datetime, tzinfo
from http import HTTPStatus
from typing import Final, Literal

from aiohttp import web
from msgspec import Struct
from prometheus_client import CollectorRegistry, generate_latest
from prometheus_client.core import CounterMetricFamily, GaugeMetricFamily, Metric
from prometheus_client.registry import Collector

from controller.history.energy_history.query import AskedName, Report, ReportQuery, make_report, period_of
from controller.history.energy_history.report import csv_text
from controller.runtime.clock import Clock
from controller.web.live.event_stream import MAX_STREAMS, EventStream
from controller.web.live.site_state import SiteState
from controller.web.pages.gpus import render_gpus
from controller.web.pages.jobs.job_page import posterior_csv
from controller.web.pages.overview import Overview, live_overview, render_overview
from controller.web.serving import page_response, static_routes, zone_of
from controller.web.store import SiteStore
from policies.database.errors import DatabaseVersionError
from publishers.messages.topics import JobName
from publishers.shared.http.connections import affordable
from publishers.shared.http.problems import ProblemError, unavailable
from publishers.shared.http.requests import read_query
from publishers.shared.http.server import ConcurrencyLimit, Route, json_response

MAX_CONNECTIONS: Final = 4_096
"""Of which one address may have half, and event streams a quarter."""
RENDERED_S: Final = 1.0
"""The overview of so long ago is shown again [s]: however many look at it, it costs little."""
MAX_RENDERED: Final = 16
"""Time zones in which it is kept."""
REPORT_TIMEOUT_S: Final = 10.0
N_WAITING: Final = 16
"""Reports are made one after the other, in tenths of a second; so many may wait, and more are refused."""


class Gauges(Collector):
    """Numbers of the process, read at each scrape; `dropped` is why messages were, and how many."""

    def __init__(
        self, *, connected: Callable[[], bool], heard: Callable[[], int], dropped: Mapping[str, Callable[[], int]]
    ) -> None:
        self._connected = connected
        self._heard = heard
        self._dropped = dropped

    def collect(self) -> Iterator[Metric]:
        """Yield every metric."""
        what = "Whether the broker is connected."
        yield GaugeMetricFamily("gridchase_web_bus_connected", what, float(self._connected()))
        yield CounterMetricFamily("gridchase_web_messages", "Messages that were taken.", float(self._heard()))
        dropped = CounterMetricFamily("gridchase_web_dropped_messages", "Messages that were not.", labels=["why"])
        for why, count in self._dropped.items():
            dropped.add_metric([why], float(count()))
        yield dropped


class ReportRequest(ReportQuery, frozen=True, kw_only=True, forbid_unknown_fields=True, omit_defaults=True):
    """What is asked for, and in which format: JSON, or the lines alone as CSV."""

    format: Literal["json", "csv"] = "json"


def site_routes(store: SiteStore, *, clock: Clock, troubles: Callable[[], list[str]], gauges: Collector) -> list[Route]:
    """Return the routes of programs.

    Args:
        store: the history.
        clock: the time.
        troubles: returns what keeps the process from its work, a sentence each.
        gauges: the metrics.
    """
    registry = CollectorRegistry()
    registry.register(gauges)

    async def health(_request: web.Request, _client: str) -> web.Response:
        found = troubles()
        answer = {"status": "degraded" if found else "ok", "troubles": found}
        return json_response(answer, status=HTTPStatus.SERVICE_UNAVAILABLE if found else HTTPStatus.OK)

    async def metrics(_request: web.Request, _client: str) -> web.Response:
        return web.Response(body=generate_latest(registry), content_type="text/plain", charset="utf-8")

    async def report(request: web.Request, _client: str) -> web.Response:
        query, now_s, zone = read_query(request, ReportRequest), clock.now_s(), zone_of(request)
        faults: list[str] = []
        period = period_of(query, now_s, faults, zone)
        if faults:
            raise ProblemError(HTTPStatus.BAD_REQUEST, "invalid_request", "; ".join(faults), faults=tuple(faults))
        response = await store.read(
            lambda connection: _answer(make_report(connection, query, period, now_s, zone), query, zone),
            timeout_s=REPORT_TIMEOUT_S,
        )
        response.headers["Vary"] = "Cookie"  # a page leads here, and its numbers are of its zone's days
        return response

    limit = ConcurrencyLimit(n_at_once=1, n_waiting=N_WAITING)
    return [
        Route(name="health", path="/healthz", handle=health),
        Route(name="metrics", path="/metrics", handle=metrics),
        Route(name="report", path="/v1/report", handle=report, limit=limit),
    ]


def _answer(report: Report, query: ReportRequest, zone: tzinfo) -> web.Response:
    if query.format == "json":
        return json_response(report)
    when = query.month or f"since-{datetime.fromtimestamp(report.since_s, zone):%Y-%m-%d}"
    return web.Response(
        text=csv_text(report.rows),
        content_type="text/csv",
        charset="utf-8",
        headers={"Content-Disposition": f'attachment; filename="gridchase-{when}-by-{query.by}.csv"'},
    )


class GpusQuery(Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """Whose GPUs are asked for; None: those of all nodes."""

    node: AskedName | None = None


class PosteriorRequest(Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """Which job, and in which format: JSON, or what is believed of each batch size as CSV."""

    user: AskedName
    job: AskedName
    format: Literal["json", "csv"] = "json"


def live_stream(state: SiteState, *, clock: Clock, viewers_clock: Clock) -> EventStream:
    """Return the stream of what pages show, for a quarter of the connections that there may be."""
    max_streams = min(MAX_STREAMS, affordable(MAX_CONNECTIONS) // 4)
    return EventStream(
        lambda: live_overview(state, clock.now_s()),
        lambda: state.version,
        time_s=clock.now_s,
        clock=viewers_clock,
        max_streams=max_streams,
    )


def live_routes(stream: EventStream, *, state: SiteState, clock: Clock) -> list[Route]:
    """Return the routes of what pages show: as it changes, and once."""

    async def now(_request: web.Request, _client: str) -> web.Response:
        return json_response(live_overview(state, clock.now_s()))

    async def posterior(request: web.Request, _client: str) -> web.Response:
        query = read_query(request, PosteriorRequest)
        found = state.jobs.get(JobName(query.user, query.job))
        if found is None:
            detail = f"No job {query.user}/{query.job} is known whose batch sizes are learnt."
            raise ProblemError(HTTPStatus.NOT_FOUND, "unknown_job", detail)
        if query.format == "json":
            return json_response(found)
        headers = {"Content-Disposition": f'attachment; filename="gridchase-{query.job}-batch-sizes.csv"'}
        text = posterior_csv(found.beliefs)
        return web.Response(text=text, content_type="text/csv", charset="utf-8", headers=headers)

    limit = ConcurrencyLimit(n_at_once=1, n_waiting=N_WAITING)
    return [
        Route(name="events", path="/v1/events", handle=stream.handle),
        Route(name="state", path="/v1/state", handle=now, limit=limit),
        Route(name="posterior", path="/v1/posterior", handle=posterior, limit=limit),
    ]


def overview_routes(
    overview: Callable[[tzinfo], Awaitable[Overview]], *, state: SiteState, clock: Clock, takes_orders: bool = False
) -> list[Route]:
    """Return the routes of the first page, of the GPUs, and of the files that pages load.

    Args:
        overview: returns what the first page is about, in a time zone.
        state: what is known of the site.
        clock: the time.
        takes_orders: whether people can give orders about GPUs here.
    """
    rendered: dict[tzinfo, tuple[float, str]] = {}

    async def first(request: web.Request, _client: str) -> web.Response:
        zone, now_s = zone_of(request), clock.now_s()
        rendered_s, page = rendered.get(zone, (-RENDERED_S, ""))
        if not 0 <= now_s - rendered_s < RENDERED_S:
            page = render_overview(await overview(zone), now_s=now_s, zone=zone)
            if len(rendered) >= MAX_RENDERED:
                rendered.clear()
            rendered[zone] = now_s, page
        return page_response(request, page)

    async def gpus(request: web.Request, _client: str) -> web.Response:
        query = read_query(request, GpusQuery)
        now_s, zone = clock.now_s(), zone_of(request)
        page = render_gpus(state, node=query.node, now_s=now_s, zone=zone, takes_orders=takes_orders)
        return page_response(request, page)

    limit = ConcurrencyLimit(n_at_once=1, n_waiting=N_WAITING)
    return [
        Route(name="overview", path="/", handle=first),
        Route(name="gpus", path="/gpus", handle=gpus, limit=limit),
        *static_routes(),
    ]


def to_problem(error: Exception) -> ProblemError | None:
    """Return the problem of a history that cannot be read."""
    if isinstance(error, OSError | DatabaseVersionError) and not isinstance(error, TimeoutError):
        return unavailable("no_history", getattr(error, "strerror", None) or str(error))
    return None
