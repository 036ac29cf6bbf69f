"""When the training asked for the first batch of each iteration: read from logs that are still written."""

import itertools
from collections import deque
from dataclasses import dataclass, field

from hypothesis import given
from hypothesis import strategies as st

from publishers.training.iterations.chunk import Segment
from publishers.training.iterations.data_loader import record_pass
from publishers.training.iterations.loader_pass import LoaderPasses
from publishers.training.iterations.open_pass import Source, TimeLog
from publishers.training.iterations.recorder import MAX_LOGS, Recorder
from publishers.training.iterations.request_times import RequestTimes


@dataclass
class Training:
    """A training whose steps are told, its loaders, and what it really did; the clock ticks once a reading."""

    recorder: Recorder = field(default_factory=lambda: Recorder(itertools.count(1).__next__))
    found: list[int] = field(default_factory=list)

    def __post_init__(self) -> None:
        self.recorder.count_by("callback")
        self.passes = LoaderPasses(self.recorder)
        self.times = RequestTimes(self.recorder.logs)

    def batches(self, n: int) -> "itertools.chain[int]":
        """Return a pass over a loader of so many batches."""
        loader = {n}
        return itertools.chain(record_pass(iter(range(n)), self.passes, Source.of(loader), lambda: None))

    def step(self) -> None:
        self.recorder.add_step("callback")

    def segments(self) -> list[Segment]:
        """Return what the worker makes of what was recorded since the last call."""
        segments = self.recorder.drain(1_000)
        for segment in segments:
            self.times.complete(segment)
        return segments


@given(st.lists(st.integers(1, 5), min_size=1, max_size=60), st.integers(1, 7))
def test_the_first_request_of_each_iteration_is_found(batches_per_step: list[int], drained_every: int) -> None:
    training = Training()
    found: list[Segment] = []
    expected = []
    loader = training.batches(sum(batches_per_step))
    for k, n in enumerate(batches_per_step):
        expected.append(training.recorder.clock_ns() + 1)  # the clock's next reading, that of the request
        for _ in range(n):
            next(loader)
        training.step()
        if k % drained_every == 0:
            found += training.segments()
    found += training.segments()
    assert [time_ns for segment in found for time_ns in segment.requests_ns] == expected
    assert all(len(segment.requests_ns) == len(segment.ends_ns) for segment in found)


def test_steps_that_ask_for_nothing_are_iteration_as_a_whole() -> None:
    training = Training()
    for _ in training.batches(3):
        for _ in range(4):
            training.step()
    (segment,) = training.segments()
    assert segment.ends_ns == [2, 3, 4, 5, 7, 8, 9, 10, 12, 13, 14, 15]
    assert segment.requests_ns == [1, 2, 3, 4, 6, 7, 8, 9, 11, 12, 13, 14]


def test_without_a_loader_nothing_is_known() -> None:
    training = Training()
    for _ in range(5):
        training.step()
    assert [(len(one.ends_ns), one.requests_ns) for one in training.segments()] == [(4, [])]


def test_a_validation_that_goes_on_with_one_pass_is_no_request_of_the_training() -> None:
    training = Training()
    validation = training.batches(40)
    for k, _ in enumerate(training.batches(40)):
        training.step()
        if k % 8 == 7:
            for _ in range(4):
                next(validation)
    segments = training.segments()
    waits = [
        request - begin
        for segment in segments
        for begin, request in zip([segment.begin_ns, *segment.ends_ns], segment.requests_ns, strict=False)
    ]
    assert sum(len(segment.ends_ns) for segment in segments) == len(waits) == 40
    assert (
        sum(wait > 2 for wait in waits) == 3
    )  # the first of five was known as a pause, and nothing comes after the last


def test_a_step_takes_as_many_batches_as_are_asked_for_in_it() -> None:
    training = Training()
    for k, _ in enumerate(training.batches(80), 1):
        if k % 8 == 0:
            training.step()
    training.segments()
    assert training.times.batches_per_iteration == 8


def test_where_logs_were_dropped_requests_are_not_known() -> None:
    logs: deque[TimeLog] = deque(maxlen=MAX_LOGS)
    for number in (3, 4):  # two are missing
        log = TimeLog("pass", [10 * number, 10 * number + 5], is_receipt=False)
        log.number, log.is_sealed = number, True
        logs.append(log)
    times = RequestTimes(logs)
    before, after = (Segment(0, 0, begin, [begin + 9], "callback") for begin in (20, 30))
    times.complete(before)
    times.complete(after)
    assert (before.requests_ns, after.requests_ns) == ([], [30])
