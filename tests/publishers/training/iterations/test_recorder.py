"""The buffer between loop and sender: in whatever order it is written and read, every iteration is accounted for."""

import itertools
from collections.abc import Callable
from dataclasses import dataclass, field

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from publishers.training.iterations.chunk import MAX_IN_SEGMENT, Segment
from publishers.training.iterations.recorder import CHUNK, MAX_BUFFERED, Recorder

OPERATIONS = st.lists(
    st.one_of(
        st.tuples(st.just("mark"), st.integers(1, 3 * CHUNK)),
        st.tuples(st.sampled_from(["pause", "begin", "epoch"]), st.just(1)),
        st.tuples(st.just("take"), st.integers(1, 3)),
    ),
    max_size=40,
)


@dataclass
class Model:
    """What should arrive: (number, epoch, begin, end) of each iteration."""

    expected: list[tuple[int, int, int, int]] = field(default_factory=list)
    epoch: int = 0
    begin_ns: int | None = None

    def mark(self, now_ns: int) -> None:
        if self.begin_ns is not None:
            self.expected.append((len(self.expected), self.epoch, self.begin_ns, now_ns))
        self.begin_ns = now_ns

    def next_epoch(self) -> None:
        self.begin_ns = None
        self.epoch += any(epoch == self.epoch for _, epoch, _, _ in self.expected)


def flat(segments: list[Segment]) -> list[tuple[int, int, int, int]]:
    return [
        (segment.first + k, segment.epoch, begin_ns, end_ns)
        for segment in segments
        for k, (begin_ns, end_ns) in enumerate(itertools.pairwise([segment.begin_ns, *segment.ends_ns]))
    ]


def mark(recorder: Recorder, now_ns: int) -> None:
    """Do what `Publisher.iteration` does."""
    recorder.chunk.marks.append(now_ns)
    if len(recorder.chunk.marks) > CHUNK:
        recorder.rotate(recorder.chunk)


def do(operation: str, recorder: Recorder, model: Model, now_ns: int) -> None:
    """Do the same to the recorder and to the model."""
    match operation:
        case "mark":
            mark(recorder, now_ns)
            model.mark(now_ns)
        case "pause":
            recorder.pause()
            model.begin_ns = None
        case "begin":
            recorder.begin()
            model.begin_ns = now_ns
        case "epoch":
            recorder.next_epoch()
            model.next_epoch()


@given(OPERATIONS)
def test_what_is_recorded_is_drained(operations: list[tuple[str, int]]) -> None:
    time_ns = 0
    recorder, model, taken = Recorder(lambda: time_ns), Model(), list[Segment]()
    for operation, n_times in operations:
        if operation == "take":
            taken += recorder.drain(n_times)
            continue
        for _ in range(n_times):
            time_ns += 1
            do(operation, recorder, model, time_ns)
    while segments := recorder.drain(1_000):
        taken += segments
    assert flat(taken) == model.expected
    assert all(0 < len(segment.ends_ns) <= MAX_IN_SEGMENT for segment in taken)


@settings(max_examples=15)
@given(st.integers(MAX_BUFFERED, 3 * MAX_BUFFERED), st.integers(0, 5_000))
def test_the_newest_are_kept_and_a_gap_shows_the_dropped_ones(n_marks: int, taken_before: int) -> None:
    recorder = Recorder(lambda: 0)
    for k in range(taken_before):
        mark(recorder, k)
    before = flat(recorder.drain(1_000))
    for k in range(taken_before, n_marks):
        mark(recorder, k)
    after = flat(recorder.drain(1_000))
    assert all(end_ns == number + 1 and begin_ns == number for number, _, begin_ns, end_ns in before + after)
    assert after[-1][0] == n_marks - 2
    assert len(after) <= MAX_BUFFERED + 2 * CHUNK
    assert len(after) >= min(MAX_BUFFERED - CHUNK, n_marks - taken_before - 1)


def test_memory_stays_bounded_when_every_iteration_is_followed_by_an_epoch() -> None:
    recorder = Recorder(itertools.count().__next__)
    for _ in range(10_000):
        recorder.begin()
        recorder.chunk.marks.append(recorder.clock_ns())
        recorder.next_epoch()
    kept = flat(recorder.drain(100_000))
    assert 1_000 <= len(kept) <= 1_024
    assert kept[-1][0] == 9_999
    assert kept[-1][1] == 9_999


@pytest.mark.parametrize(
    ("call", "n_kept"),
    [
        (Recorder.begin, 2),
        (Recorder.pause, 2),
        (Recorder.next_epoch, 2),
        (Recorder.pause_with_batch, 2),
        (Recorder.interrupt, 2),
    ],
    ids=lambda value: getattr(value, "__name__", ""),
)
def test_memory_stays_bounded_when_calls_repeat_without_an_iteration(
    call: Callable[[Recorder], None], n_kept: int
) -> None:
    recorder = Recorder(itertools.count().__next__)
    for _ in range(3):
        mark(recorder, recorder.clock_ns())
    for _ in range(100_000):
        call(recorder)
    assert sum(len(chunk.marks) for chunk in recorder._chunks) <= 4 * CHUNK
    assert len(recorder._chunks) <= 4
    assert len(flat(recorder.drain(1_000))) == n_kept


def test_memory_stays_bounded_when_every_mark_is_followed_by_a_pause() -> None:
    recorder = Recorder(itertools.count().__next__)
    for _ in range(3):
        mark(recorder, recorder.clock_ns())
    for _ in range(200_000):
        mark(recorder, recorder.clock_ns())
        recorder.pause()
    assert sum(len(chunk.marks) for chunk in recorder._chunks) <= 4 * CHUNK
    assert len(flat(recorder.drain(1_000))) == 3


def test_another_way_of_counting_begins_another_segment() -> None:
    recorder = Recorder(itertools.count().__next__)
    for _ in range(3):
        mark(recorder, recorder.clock_ns())
    recorder.count_by("callback")
    for _ in range(4):
        mark(recorder, recorder.clock_ns())
    recorder.count_by("callback")
    mark(recorder, recorder.clock_ns())
    segments = recorder.drain(1_000)
    assert [(segment.first, segment.counted_by, len(segment.ends_ns)) for segment in segments] == [
        (0, "loader", 2),
        (2, "callback", 5),
    ]
    assert segments[1].begin_ns == segments[0].ends_ns[-1]
