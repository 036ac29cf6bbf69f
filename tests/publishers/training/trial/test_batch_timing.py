"""Timing batch sizes before a training: how often, for how long, and what becomes of it where it fails."""

import logging
from collections import Counter
from collections.abc import Callable

import pytest

from publishers.messages.training import TrialTimes
from publishers.training.trial.batch_timing import (
    ENOUGH_S,
    MAX_CALLS,
    MIN_CALLS,
    N_WARM_UPS,
    BatchTimings,
    largest_that_fits,
    time_batch_sizes,
    time_untimed,
)
from publishers.training.trial.policy_client import BatchSizeTrial
from tests.publishers.training.fake_connection import SIZES, FakeConnection, OutOfMemoryError, answering, publisher_on


class Gpu:
    """Trains iterations that take `time_s(size, call)`, on its own clock; what is larger than its memory fails."""

    def __init__(self, time_s: Callable[[int, int], float], *, memory: float = float("inf")) -> None:
        self.now_s = 100.0
        self.calls: Counter[int] = Counter()
        self.order: list[int] = []
        self.error: BaseException = OutOfMemoryError("CUDA out of memory")
        self._time_s = time_s
        self._memory = memory

    def train(self, size: int) -> None:
        if size > self._memory:
            self.order.append(size)
            raise self.error
        self.now_s += self._time_s(size, self.calls[size])
        self.calls[size] += 1
        self.order.append(size)

    def clock_s(self) -> float:
        return self.now_s

    def timed(self, *sizes: int, budget_s: float = 1e6) -> BatchTimings:
        return time_batch_sizes(self.train, sizes, budget_s=budget_s, clock_s=self.clock_s)


def test_sizes_are_timed_in_ascending_order_and_the_median_counts() -> None:
    gpu = Gpu(lambda size, call: 50.0 if call in {0, 1, 2, 9} else size / 1000)
    timings = gpu.timed(16, 8)
    assert timings.iteration_times_s == {8: pytest.approx(0.008), 16: pytest.approx(0.016)}
    assert (timings.too_large, timings.fault) == (None, None)
    assert gpu.order == sorted(gpu.order)


@pytest.mark.parametrize(
    ("time_s", "n"),
    [(0.001, MAX_CALLS), (ENOUGH_S / 10, 10), (1.0, MIN_CALLS), (20.0, MIN_CALLS)],
)
def test_fast_sizes_are_called_often_and_slow_ones_a_few_times(time_s: float, n: int) -> None:
    gpu = Gpu(lambda *_: time_s)
    assert gpu.timed(8).iteration_times_s == {8: pytest.approx(time_s)}
    assert gpu.calls[8] == pytest.approx(N_WARM_UPS + n, abs=1 if n not in {MIN_CALLS, MAX_CALLS} else 0)


def test_what_was_timed_before_the_time_is_over_counts() -> None:
    gpu = Gpu(lambda *_: 1.0)
    timings = gpu.timed(8, 16, 32, budget_s=14.0)
    assert timings.iteration_times_s == {8: 1.0, 16: 1.0}
    assert gpu.now_s == 114.0
    assert Gpu(lambda *_: 1.0).timed(8, budget_s=N_WARM_UPS + MIN_CALLS - 0.5).iteration_times_s == {8: 1.0}
    assert Gpu(lambda *_: 1.0).timed(8, budget_s=N_WARM_UPS + MIN_CALLS - 1.5).iteration_times_s == {}
    cut_short = Gpu(lambda *_: 0.125)
    assert cut_short.timed(8, budget_s=1.0).iteration_times_s == {8: 0.125}
    assert cut_short.calls[8] == 8
    slow = Gpu(lambda *_: 1e6)
    assert slow.timed(8, 16, budget_s=1.0).iteration_times_s == {}
    assert slow.order == [8]


@pytest.mark.parametrize("error", [OutOfMemoryError("CUDA"), MemoryError()])
def test_after_out_of_memory_nothing_larger_is_tried(error: BaseException) -> None:
    gpu = Gpu(lambda *_: 1.0, memory=16)
    gpu.error = error
    assert gpu.timed(*SIZES) == BatchTimings(iteration_times_s={8: 1.0, 16: 1.0}, too_large=32)
    assert max(gpu.order) == 32


def test_another_exception_ends_the_timing() -> None:
    gpu = Gpu(lambda *_: 1.0, memory=8)
    gpu.error = ValueError("shapes do not match")
    timings = gpu.timed(*SIZES)
    assert timings == BatchTimings(iteration_times_s={8: 1.0}, fault="ValueError: shapes do not match")
    assert max(gpu.order) == 16


@pytest.mark.parametrize("error", [KeyboardInterrupt(), SystemExit()])
def test_an_exception_that_ends_the_process_passes_through(error: BaseException) -> None:
    gpu = Gpu(lambda *_: 1.0, memory=8)
    gpu.error = error
    with pytest.raises(type(error)):
        gpu.timed(*SIZES)


def test_a_clock_that_stands_still_gives_valid_times() -> None:
    assert 0 < Gpu(lambda *_: 0.0).timed(8).iteration_times_s[8] < 1e-6


@pytest.mark.parametrize(
    ("chosen", "untimed", "too_large", "used"),
    [
        (32, (8, 16, 32, 64), 64, 32),
        (32, (8, 16, 32, 64), 32, 16),
        (64, (8, 16, 32, 64), 16, 8),
        (32, (8, 16, 32, 64), None, 32),
        (64, (32,), 32, 64),  # it has run before
        (32, (8, 16, 32, 64), 8, 32),  # there is nothing smaller
    ],
)
def test_a_batch_size_that_does_not_fit_is_replaced_by_the_largest_that_does(
    chosen: int, untimed: tuple[int, ...], too_large: int | None, used: int
) -> None:
    trial = BatchSizeTrial(batch_size=chosen, reason="explored", detail="", cost_bound=5.0, untimed=untimed)
    fitting = largest_that_fits(trial, BatchTimings(too_large=too_large), SIZES)
    assert (fitting.batch_size, fitting.cost_bound, fitting.reason == "too_large") == (used, 5.0, used != chosen)


def untimed(**changes: object) -> FakeConnection:
    """Return a connection to a policy service that answers 32 and does not know the speed of the candidates."""
    return answering(**{"batch_size": 32, "untimed": [8, 16, 32, 48], **changes})


def test_untimed_batch_sizes_are_timed_and_published() -> None:
    connection, gpu = untimed(), Gpu(lambda *_: 0.0)
    with publisher_on(connection) as publisher:
        assert publisher.batch_size(SIZES, default=32, probe=gpu.train) == 32
        assert publisher.trial is not None
        assert publisher.trial.untimed == (8, 16, 32)
    (times,) = connection.times()
    assert (times.run, times.batch_sizes, times.too_large, times.batch_size) == ("r1", [8, 16, 32], None, None)
    assert all(0 < time_s < 1 for time_s in times.iteration_times_s)
    assert [qos for topic, _, qos, retain in connection.sent if topic.endswith("/trial/times") and not retain] == [1]
    assert connection.n_iterations() == 0


def test_a_run_whose_batch_size_does_not_fit_uses_another(
    caplog: pytest.LogCaptureFixture,
) -> None:
    connection, gpu = untimed(), Gpu(lambda *_: 0.0, memory=16)
    with publisher_on(connection, heartbeat_s=1_000.0) as publisher:
        assert publisher.batch_size(SIZES, default=32, probe=gpu.train) == 16
        assert publisher.trial is not None
        assert (publisher.trial.batch_size, publisher.trial.reason) == (16, "too_large")
    (times,) = connection.times()
    assert (times.batch_sizes, times.too_large, times.batch_size) == ([8, 16], 32, 16)
    assert {status.batch_size for status in connection.statuses()} == {None, 16}
    assert connection.trial_failures() == []
    assert [record.message for record in caplog.records if record.levelno == logging.WARNING] == [
        "the batch size is 16 instead of 32: 32 does not fit the memory: 16 is the largest candidate that does"
    ]


def test_a_failing_probe_costs_only_a_warning(caplog: pytest.LogCaptureFixture) -> None:
    connection, gpu = untimed(), Gpu(lambda *_: 0.0, memory=8)
    gpu.error = ValueError("shapes do not match")
    with publisher_on(connection) as publisher:
        assert publisher.batch_size(SIZES, default=32, probe=gpu.train) == 32
    assert [times.batch_sizes for times in connection.times()] == [[8]]
    assert [record.message for record in caplog.records if record.levelno == logging.WARNING] == [
        "no more batch sizes are timed: the probe has failed: ValueError: shapes do not match"
    ]


@pytest.mark.parametrize("sizes", [[], [48]])
def test_without_untimed_candidates_nothing_is_timed(sizes: list[int]) -> None:
    connection, gpu = untimed(untimed=sizes), Gpu(lambda *_: 0.0)
    with publisher_on(connection) as publisher:
        assert publisher.batch_size(SIZES, default=32, probe=gpu.train) == 32
    assert (gpu.order, connection.times()) == ([], [])


def test_only_the_first_rank_times() -> None:
    connection, gpu = untimed(), Gpu(lambda *_: 0.0)
    with publisher_on(connection, rank=1, world_size=2) as publisher:
        assert publisher.batch_size(SIZES, default=32, probe=gpu.train) == 32
    assert (gpu.order, connection.times()) == ([], [])


@pytest.mark.parametrize(
    "arguments",
    [
        {"probe": 7},
        {"probe": print, "probe_timeout_s": 0},
        {"probe": print, "probe_timeout_s": float("nan")},
        {"probe": print, "probe_timeout_s": "long"},
        {"probe": print, "probe_timeout_s": 1e9},
    ],
    ids=str,
)
def test_invalid_probe_arguments_cost_only_a_warning(
    arguments: dict[str, object], caplog: pytest.LogCaptureFixture
) -> None:
    connection = untimed()
    with publisher_on(connection) as publisher:
        assert publisher.batch_size(SIZES, default=32, **arguments) == 32  # type: ignore[arg-type]  # what is wrong
    assert connection.times() == []
    (warning,) = [record.message for record in caplog.records if record.levelno == logging.WARNING]
    assert warning.startswith("no batch size is timed: probe must be a function")


def test_without_a_service_nothing_is_timed() -> None:
    gpu = Gpu(lambda *_: 0.0)
    with publisher_on(FakeConnection()) as publisher:
        assert publisher.batch_size(SIZES, default=32, timeout_s=0.01, probe=gpu.train) == 32
    assert gpu.order == []


def test_the_total_time_is_bounded() -> None:
    trial = BatchSizeTrial(batch_size=32, reason="explored", detail="", untimed=(8, 16, 32, 64))

    def timed(gpu: Gpu) -> TrialTimes | None:
        same, times = time_untimed(trial, SIZES, run="r1", probe=gpu.train, timeout_s=14.0, clock_s=gpu.clock_s)
        assert same is trial
        return times

    times = timed(Gpu(lambda *_: 1.0))
    assert times is not None
    assert times.batch_sizes == [8, 16]
    assert timed(Gpu(lambda *_: 1e6)) is None


def test_a_failing_clock_ends_the_timing_but_not_the_training() -> None:
    def broken() -> float:
        raise OSError("no clock")

    timings = time_batch_sizes(lambda _: None, [8, 16], budget_s=60.0, clock_s=broken)
    assert timings.iteration_times_s == {}
    assert "no clock" in (timings.fault or "")
