"""Which optimizer's steps count, whatever a training does with several; PyTorch itself is in `tests/frameworks`."""

import gc
import itertools
import threading
from collections.abc import Iterator

import pytest
from hypothesis import given
from hypothesis import strategies as st

from publishers.training.iterations.chunk import Segment
from publishers.training.iterations.recorder import CHUNK, Recorder
from publishers.training.iterations.steps import optimizer_hook
from publishers.training.iterations.steps.optimizer_hook import LOST_AFTER, StepCounter

SEQUENCES = st.lists(st.tuples(st.integers(0, 3), st.integers(1, 8)), max_size=30)
"""Which of four optimizers makes how many steps in a row: in all fewer than `LOST_AFTER`."""


class Optimizer:
    """What makes steps."""


@pytest.fixture(autouse=True)
def _no_counters() -> Iterator[None]:
    yield
    optimizer_hook._set_counters()


def counting(recorder: Recorder) -> StepCounter:
    """Return what counts for a recorder, as where PyTorch is imported."""
    recorder.await_steps()
    counter = StepCounter(recorder)
    optimizer_hook._set_counters(*optimizer_hook._counters, counter)
    return counter


def step(optimizer: Optimizer, n: int = 1) -> None:
    """Do what PyTorch does after each step."""
    for _ in range(n):
        optimizer_hook._on_step(optimizer, (), {})


def drained(recorder: Recorder) -> list[Segment]:
    """Return all that was recorded."""
    return list(itertools.chain.from_iterable(iter(lambda: recorder.drain(1_000), [])))


def n_recorded(recorder: Recorder) -> int:
    return sum(len(segment.ends_ns) for segment in drained(recorder))


@given(SEQUENCES)
def test_as_many_iterations_as_the_optimizer_with_most_steps_has_made(sequence: list[tuple[int, int]]) -> None:
    recorder = Recorder(itertools.count().__next__)
    optimizer_hook._set_counters()
    counting(recorder)
    optimizers = [Optimizer() for _ in range(4)]
    counts = [0] * 4
    for k, n in sequence:
        step(optimizers[k], n)
        counts[k] += n
    assert recorder.n_ended == n_recorded(recorder) == max(counts)


def test_the_first_iteration_begins_when_steps_are_awaited() -> None:
    recorder = Recorder(itertools.count(100).__next__)
    counting(recorder)
    step(Optimizer(), 3)
    (segment,) = drained(recorder)
    assert (segment.begin_ns, segment.ends_ns[-1], segment.counted_by) == (100, recorder.clock_ns() - 1, "optimizer")
    assert segment.requests_ns == []


def test_more_steps_than_a_chunk_has_marks_are_all_there() -> None:
    recorder = Recorder(itertools.count().__next__)
    counting(recorder)
    step(Optimizer(), 5 * CHUNK + 7)
    segments = drained(recorder)
    assert sum(len(segment.ends_ns) for segment in segments) == 5 * CHUNK + 7
    assert all(after.begin_ns == before.ends_ns[-1] for before, after in itertools.pairwise(segments))


def test_an_optimizer_that_is_gone_is_replaced_at_once() -> None:
    recorder = Recorder(itertools.count().__next__)
    counting(recorder)
    for _ in range(3):
        step(Optimizer(), 20)
        gc.collect()
    assert n_recorded(recorder) == 60


def test_an_optimizer_is_not_kept_alive() -> None:
    recorder = Recorder(itertools.count().__next__)
    counter = counting(recorder)
    optimizer = Optimizer()
    step(optimizer, 200)
    del optimizer
    gc.collect()
    assert counter._leader() is None


def test_the_next_fold_counts_from_its_first_step_though_the_last_optimizer_is_kept() -> None:
    recorder = Recorder(itertools.count().__next__)
    counting(recorder)
    kept = [Optimizer() for _ in range(3)]
    for optimizer in kept:
        for _ in range(2):
            step(optimizer, 20)
            recorder.next_epoch()
    assert n_recorded(recorder) == 6 * 20


def test_without_a_pause_an_optimizer_that_was_left_is_replaced_after_many_steps() -> None:
    recorder = Recorder(itertools.count().__next__)
    counting(recorder)
    before, after = Optimizer(), Optimizer()
    step(before, 10_000)
    step(after, 1_000)
    assert n_recorded(recorder) == 10_000 + 1_000 - LOST_AFTER + 1


def test_after_a_pause_the_first_step_of_a_callers_loop_only_begins_an_iteration() -> None:
    recorder = Recorder(itertools.count().__next__)
    counting(recorder)
    optimizer = Optimizer()
    step(optimizer, 5)
    recorder.pause()
    step(optimizer, 5)
    recorder.begin()
    step(optimizer, 5)
    assert [len(segment.ends_ns) for segment in drained(recorder)] == [5, 4, 5]


def test_a_caller_that_counts_itself_is_believed() -> None:
    recorder = Recorder(itertools.count().__next__)
    counting(recorder)
    optimizer = Optimizer()
    step(optimizer, 5)
    for _ in range(4):
        step(optimizer, 7)
        recorder.add_step("caller")
    assert [(segment.counted_by, len(segment.ends_ns)) for segment in drained(recorder)] == [
        ("optimizer", 12),
        ("caller", 4),
    ]


def test_a_closed_recorder_records_no_steps() -> None:
    recorder = Recorder(itertools.count().__next__)
    counting(recorder)
    optimizer = Optimizer()
    step(optimizer, 300)
    recorder.close()
    step(optimizer, 300)
    assert n_recorded(recorder) == 300


def test_each_thread_counts_for_the_publisher_it_has_used() -> None:
    recorders = [Recorder(itertools.count().__next__) for _ in range(3)]

    def train(recorder: Recorder, n: int) -> None:
        counting(recorder)
        both_count.wait()
        step(Optimizer(), n)

    both_count = threading.Barrier(3)
    threads = [threading.Thread(target=train, args=(recorder, 100 * k)) for k, recorder in enumerate(recorders, 1)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert [n_recorded(recorder) for recorder in recorders] == [100, 200, 300]


@pytest.mark.parametrize(("at_once", "n_lines"), [(True, 1), (False, 0)])
def test_a_thread_whose_steps_do_not_count_beside_another_is_told(
    caplog: pytest.LogCaptureFixture, *, at_once: bool, n_lines: int
) -> None:
    recorder = Recorder(itertools.count().__next__)
    counting(recorder)
    meeting = threading.Barrier(2)

    def train() -> None:
        optimizer = Optimizer()
        for _ in range(50):
            if at_once:
                meeting.wait(60.0)
            step(optimizer, 1)

    threads = [threading.Thread(target=train) for _ in range(2)]
    for thread in threads:
        thread.start()
        if not at_once:
            thread.join()
    for thread in threads:
        thread.join()
    assert sum("while another thread trains" in record.message for record in caplog.records) == n_lines


def test_another_thread_than_the_publishers_counts_for_the_one_used_last() -> None:
    recorder = Recorder(itertools.count().__next__)
    counting(recorder)
    thread = threading.Thread(target=step, args=(Optimizer(), 50))  # as the backward pass on a GPU
    thread.start()
    thread.join()
    assert n_recorded(recorder) == 50


def test_nothing_that_fails_in_the_hook_reaches_the_training(caplog: pytest.LogCaptureFixture) -> None:
    def broken() -> int:
        raise OSError("no clock")

    recorder = Recorder(itertools.count().__next__)
    counting(recorder)
    recorder.clock_ns = broken
    step(Optimizer(), 3)
    assert [record.message for record in caplog.records] == [
        "steps of optimizers are not counted as they are: OSError: no clock"
    ]


def test_optimizers_without_number_take_bounded_memory() -> None:
    recorder = Recorder(itertools.count().__next__)
    counter = counting(recorder)
    kept = [Optimizer() for _ in range(optimizer_hook.MAX_OPTIMIZERS + 1_000)]
    for optimizer in kept:
        step(optimizer)
    for _ in range(10_000):
        step(Optimizer())
    assert len(counter._others) <= optimizer_hook.MAX_OPTIMIZERS
