"""Counters for Prometheus: answers and their latency, results, ended trials, failures of the database."""

from collections.abc import Callable, Iterator, Mapping
from typing import Final, Literal

from prometheus_client import CollectorRegistry, Counter, Histogram, generate_latest
from prometheus_client.core import CounterMetricFamily
from prometheus_client.registry import Collector

from publishers.messages.reports import TrialState

Way = Literal["bus", "http"]
_ANSWER_BUCKETS_S: Final = (0.001, 0.002, 0.005, 0.01, 0.02, 0.05, 0.1, 0.2, 0.5, 1.0, 2.0, 5.0, 10.0)


class Metrics:
    """The counters of one process, in a registry of their own."""

    def __init__(self) -> None:
        self._registry = CollectorRegistry()
        self._answers = self._counter("answers", "Requests for a batch size that were answered.", "over", "reason")
        self._results = self._counter("results", "Reports of runs that were stored, progress included.", "over")
        self._ends = self._counter("trials_ended", "Trials by how they ended; a repeated end counts again.", "state")
        self._failures = self._counter("store_failures", "Times that the database did not answer.")
        self._requests = self._counter("http_requests", "Requests over HTTP.", "operation", "status")
        self._answer_s = Histogram(
            "gridchase_policy_answer_seconds",
            "From a request for a batch size to its answer.",
            ["over"],
            buckets=_ANSWER_BUCKETS_S,
            registry=self._registry,
        )

    def count_answer(self, reason: str, *, over: Way, answer_s: float) -> None:
        """Count a request for a batch size that was answered after `answer_s`."""
        self._answers.labels(over, reason).inc()
        self._answer_s.labels(over).observe(answer_s)

    def count_result(self, *, over: Way) -> None:
        """Count a report that was stored."""
        self._results.labels(over).inc()

    def count_ended(self, state: TrialState) -> None:
        """Count a trial that has ended, or was lost."""
        self._ends.labels(state).inc()

    def count_store_failure(self) -> None:
        """Count a time that the database did not answer."""
        self._failures.inc()

    def count_request(self, operation: str, status: int) -> None:
        """Count a request over HTTP."""
        self._requests.labels(operation, f"{status}").inc()

    def watch(self, name: str, what: str, counts: Mapping[str, Callable[[], int]]) -> None:
        """Expose counts that others keep, read at each scrape, each under its name as the label `what`."""
        self._registry.register(_Watch(f"gridchase_policy_{name}", what, counts))

    def text(self) -> bytes:
        """Return the metrics in the text format of Prometheus."""
        return generate_latest(self._registry)

    def _counter(self, name: str, what: str, *labels: str) -> Counter:
        return Counter(f"gridchase_policy_{name}", what, labels, registry=self._registry)


class _Watch(Collector):
    """Counts that others keep."""

    def __init__(self, name: str, what: str, counts: Mapping[str, Callable[[], int]]) -> None:
        self._name = name
        self._what = what
        self._counts = counts

    def collect(self) -> Iterator[CounterMetricFamily]:
        """Yield them as they are now."""
        family = CounterMetricFamily(self._name, self._what, labels=["what"])
        for name, count in self._counts.items():
            family.add_metric([name], count())
        yield family
