"""Health and metrics of the controller over HTTP: /healthz (liveness), /readyz (readiness), /metrics (Prometheus)."""

from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass, field
from http import HTTPStatus
from typing import Final, Literal

import msgspec
from aiohttp import web
from prometheus_client import CollectorRegistry, generate_latest
from prometheus_client.core import CounterMetricFamily, GaugeMetricFamily, Metric
from prometheus_client.registry import Collector

from controller.ports import Hold, LimitState, Sample
from publishers.shared.http.server import Route, json_response

NO_GPU: Final = "there is no GPU on this node: nothing is measured"
NOT_CONNECTED: Final = "the broker has not answered yet"
_NOTES: Final = {
    Hold.YIELDED: "is yielded: another writer has set its limit, which is left alone until the run ends",
    Hold.OBSERVING: "is only observed: its limit is not written; its newest limit message gives the reason",
}


@dataclass(frozen=True, slots=True, kw_only=True)
class GpuSnapshot:
    """A GPU at one moment.

    Attributes:
        limit: its limit; None before it has answered.
        sample: the newest reading, with the energy used since the start; None where it cannot be read now.
        fault: why it cannot be read now, a sentence; "" where it can.
        absence: why its energy cannot be known, a sentence; "" where it has meters.
        doubts: which of its readings are not believed now, and why, a sentence each.
    """

    limit: LimitState | None = None
    sample: Sample | None = None
    fault: str = ""
    absence: str = ""
    doubts: tuple[str, ...] = ()


@dataclass(frozen=True, slots=True, kw_only=True)
class Snapshot:
    """The controller at one moment.

    Attributes:
        connected: whether the broker is connected.
        bus_error: why it is not, or what it refused, in a sentence; None while all is well.
        left_out: why GPUs of the node are left out, a sentence each.
        signal: how far the signal can be trusted: `fresh`, `held`, `forecast`, `stale` or `absent`.
        signal_age_s: how long ago its last known value ceased to hold [s]; None if there is none.
        signal_detail: what is wrong with the signal, a sentence; "" where nothing is.
        providers: by name, whether each provider of the chain answered its last poll.
        n_bad_messages: how many messages were dropped.
        surplus_messages: how many of them were too many, by sender.
        flooding: who sends too many now.
        n_runs: how many training runs there are.
        gpus: by UUID, what is known of each GPU.
        history_fault: why the history is not written now, a sentence; "" while it is.
    """

    connected: bool
    bus_error: str | None = None
    left_out: tuple[str, ...] = ()
    signal: str
    signal_age_s: float | None = None
    signal_detail: str = ""
    providers: Mapping[str, bool] = field(default_factory=dict)
    n_bad_messages: int
    surplus_messages: Mapping[str, int] = field(default_factory=dict)
    flooding: tuple[str, ...] = ()
    n_runs: int
    gpus: Mapping[str, GpuSnapshot]
    history_fault: str = ""

    def troubles(self) -> list[str]:
        """Return what keeps the controller from its work, a sentence each; empty when it is ready."""
        troubles = [] if self.connected and self.bus_error is None else [self.bus_error or NOT_CONNECTED]
        troubles += self.left_out
        if not self.gpus:
            troubles.append(NO_GPU)
        for uuid, gpu in self.gpus.items():
            if gpu.limit is None:
                troubles.append(f"{uuid} has not answered yet")
            elif gpu.limit.hold is Hold.SUSPECT:
                troubles.append(f"{uuid} does not answer")
            elif gpu.fault:
                troubles.append(gpu.fault)
            elif gpu.sample is None and not gpu.absence:
                troubles.append(f"{uuid}: {'; '.join(gpu.doubts) or 'it has not been read yet'}")
        return troubles

    def notes(self) -> list[str]:
        """Return what is left alone, what is not known of grid and boards, and who floods the bus."""
        doubts = [f"signal: {self.signal_detail}"] if self.signal_detail else []
        doubts += [self.history_fault] if self.history_fault else []
        doubts += [gpu.absence for gpu in self.gpus.values() if gpu.absence]
        doubts += [f"{uuid}: meter rejected: {doubt}" for uuid, gpu in self.gpus.items() for doubt in gpu.doubts]
        doubts += [
            f"{sender} sends more messages than are read: {self.surplus_messages.get(sender, 0)} dropped so far"
            for sender in self.flooding
        ]
        holds = {uuid: gpu.limit.hold for uuid, gpu in self.gpus.items() if gpu.limit is not None}
        return doubts + [f"{uuid} {_NOTES[hold]}" for uuid, hold in holds.items() if hold in _NOTES]


class Liveness(msgspec.Struct, frozen=True, kw_only=True):
    """The process lives."""

    status: Literal["ok"] = "ok"


class Readiness(msgspec.Struct, frozen=True, kw_only=True):
    """Whether the controller can do its work: what keeps it from that, and what is to be known, a sentence each."""

    ready: bool
    troubles: list[str]
    notes: list[str]


def health_routes(snapshot: Callable[[], Snapshot]) -> list[Route]:
    """Return the routes of health and metrics; each request takes a snapshot."""
    registry = CollectorRegistry()
    registry.register(_Metrics(snapshot))

    async def healthz(_request: web.Request, _client: str) -> web.Response:
        return json_response(Liveness())

    async def readyz(_request: web.Request, _client: str) -> web.Response:
        now = snapshot()
        troubles = now.troubles()
        answer = Readiness(ready=not troubles, troubles=troubles, notes=now.notes())
        return json_response(answer, status=HTTPStatus.SERVICE_UNAVAILABLE if troubles else HTTPStatus.OK)

    async def metrics(_request: web.Request, _client: str) -> web.Response:
        return web.Response(body=generate_latest(registry), content_type="text/plain", charset="utf-8")

    return [
        Route(name="live", path="/healthz", handle=healthz),
        Route(name="ready", path="/readyz", handle=readyz),
        Route(name="metrics", path="/metrics", handle=metrics),
    ]


class _Metrics(Collector):
    """The snapshot as Prometheus metrics, in base units."""

    def __init__(self, snapshot: Callable[[], Snapshot]) -> None:
        self._snapshot = snapshot

    def collect(self) -> Iterator[Metric]:
        """Yield every metric."""
        now = self._snapshot()
        yield GaugeMetricFamily("gridchase_bus_connected", "Whether the broker is connected.", float(now.connected))
        yield GaugeMetricFamily("gridchase_runs", "Training runs on this node.", float(now.n_runs))
        yield CounterMetricFamily("gridchase_bad_messages", "Messages that were dropped.", float(now.n_bad_messages))
        what = "Messages of a sender that were too many, and dropped unread."
        surplus = CounterMetricFamily("gridchase_surplus_messages", what, labels=["sender"])
        for sender, n_dropped in now.surplus_messages.items():
            surplus.add_metric([sender], float(n_dropped))
        yield surplus
        yield from _signal_metrics(now)
        yield from _gpu_metrics(now)


def _signal_metrics(now: Snapshot) -> Iterator[Metric]:
    fresh = GaugeMetricFamily("gridchase_signal_fresh", "Whether the grid signal is fresh.", labels=["state"])
    fresh.add_metric([now.signal], float(now.signal == "fresh"))
    yield fresh
    if now.signal_age_s is not None:
        what = "How long ago the last known value of the grid signal ceased to hold."
        yield GaugeMetricFamily("gridchase_signal_age_seconds", what, now.signal_age_s)
    answers = GaugeMetricFamily("gridchase_signal_provider_up", "Whether its last poll succeeded.", labels=["provider"])
    for name, is_up in now.providers.items():
        answers.add_metric([name], float(is_up))
    yield answers


def _gpu_metrics(now: Snapshot) -> Iterator[Metric]:
    energy = CounterMetricFamily("gridchase_gpu_energy_joules", "Energy since the controller started.", labels=["gpu"])
    what = "Time without an accepted reading; it counts at the power before."
    unmeasured = CounterMetricFamily("gridchase_gpu_unmeasured_seconds", what, labels=["gpu"])
    power = GaugeMetricFamily("gridchase_gpu_power_watts", "Power draw.", labels=["gpu"])
    limit = GaugeMetricFamily("gridchase_gpu_power_limit_watts", "Enforced power limit.", labels=["gpu"])
    prior = GaugeMetricFamily("gridchase_gpu_prior_power_limit_watts", "Limit to be restored.", labels=["gpu"])
    hold = GaugeMetricFamily("gridchase_gpu_hold", "Who holds the limit.", labels=["gpu", "state"])
    for uuid, gpu in now.gpus.items():
        if gpu.sample is not None and gpu.sample.energy_j is not None:
            energy.add_metric([uuid], gpu.sample.energy_j)
            unmeasured.add_metric([uuid], gpu.sample.unmeasured_s)
        if gpu.sample is not None and gpu.sample.power_w is not None:
            power.add_metric([uuid], gpu.sample.power_w)
        if gpu.limit is not None:
            if gpu.limit.hold is not Hold.SUSPECT:
                limit.add_metric([uuid], gpu.limit.enforced_power_limit_w)
            prior.add_metric([uuid], gpu.limit.prior_power_limit_w)
            hold.add_metric([uuid, gpu.limit.hold], 1.0)
    yield from (energy, unmeasured, power, limit, prior, hold)
