"""Which passes over loaders count where no step is told, and what they are where steps are."""

import itertools
from collections.abc import Iterator
from dataclasses import dataclass, field

import pytest
from hypothesis import given
from hypothesis import strategies as st

from gridchase import Publisher
from publishers.training.iterations.loader_pass import LOOK, MAX_UNSTEPPED, TAKEOVER
from tests.publishers.training.fake_connection import FakeConnection, epochs, publisher_on

N = 100
MS_NS = 1_000_000


class Loader:
    """A loader."""

    def __init__(self, n_batches: int = N) -> None:
        self.n_batches = n_batches

    def __iter__(self) -> Iterator[int]:
        return iter(range(self.n_batches))


@dataclass
class Loop:
    """A training without steps that can be seen, on a clock of its own [ns], and its publisher."""

    connection: FakeConnection = field(default_factory=FakeConnection)
    now_ns: int = 0

    def __post_init__(self) -> None:
        self.publisher = publisher_on(self.connection, clock_ns=lambda: self.now_ns)

    def loader(self, n_batches: int = N) -> Loader:
        return self.publisher.iterations(Loader(n_batches))

    def work(self, duration_ns: int = 1_000) -> None:
        self.now_ns += duration_ns

    def times_ns(self) -> list[int]:
        """Return how long each iteration took, as published."""
        self.publisher.close()
        return [
            end - begin
            for message in self.connection.messages()
            for begin, end in itertools.pairwise([message.begin_ns, *message.ends_ns()])
        ]


def test_of_two_loaders_that_are_zipped_the_first_counts() -> None:
    loop = Loop()
    for _ in range(3):
        for _ in zip(loop.loader(), loop.loader(), strict=True):
            loop.work()
    assert loop.times_ns() == [1_000] * 3 * N
    assert epochs(loop.connection) == {0: N, 1: N, 2: N}


def test_of_two_nested_loops_the_inner_one_counts() -> None:
    loop = Loop()
    outer, inner = loop.loader(20), loop.loader()
    for _ in outer:
        for _ in inner:
            loop.work()
    assert loop.times_ns() == [1_000] * 20 * N


@pytest.mark.parametrize("n_validation", [1, 2, 10, 200])
def test_a_validation_within_the_training_is_a_pause(n_validation: int) -> None:
    loop = Loop()
    training, validation = loop.loader(), loop.loader(n_validation)
    for _ in range(2):
        for k, _ in enumerate(training):
            loop.work()
            if k % 25 == 24:
                for _ in validation:
                    loop.work(50)
    times_ns = loop.times_ns()
    assert len(times_ns) == 2 * N
    if n_validation > 1:  # one batch may have been looked at for anything
        assert set(times_ns) == {1_000}
    assert epochs(loop.connection) == {0: N, 1: N}


def test_a_validation_within_the_first_iteration_does_not_silence_the_training() -> None:
    loop = Loop()
    training, validation = loop.loader(1_000), loop.loader(20)
    for k, _ in enumerate(training):
        loop.work()
        if k == 0:
            for _ in validation:
                loop.work()
    assert 1_000 - 2 * LOOK <= len(loop.times_ns()) <= 1_000 + 20


def test_a_pass_that_was_left_open_gives_way_to_the_next_over_its_loader() -> None:
    loop = Loop()
    loader = loop.loader()
    left_open = []
    for _ in range(3):
        iterator = iter(loader)
        left_open.append(iterator)
        for _ in range(N // 2):
            next(iterator)
            loop.work()
    assert 3 * (N // 2 - 1) <= len(loop.times_ns()) <= 3 * N // 2


def test_a_pass_that_was_left_open_does_not_silence_another_loader() -> None:
    loop = Loop()
    left_open = iter(loop.loader())
    for _ in range(10):
        next(left_open)
        loop.work()
    for _ in loop.loader(1_000):
        loop.work()
    assert len(loop.times_ns()) >= 1_000 - TAKEOVER - LOOK


ACTIONS = st.sampled_from(["pause", "begin", "epoch", "iteration", "look", "leave open", "step", "step", "step"])
PLANS = st.recursive(st.integers(0, 30), lambda inner: st.lists(inner | ACTIONS), max_leaves=12)


@given(PLANS, st.booleans())
def test_whatever_a_training_does_it_gets_its_batches_and_time_is_counted_once(plan: object, awaits: bool) -> None:
    connection = FakeConnection()
    publisher = publisher_on(connection)
    if awaits:
        publisher.recorder.await_steps()
    loader = publisher.iterations(Loader(3))
    _left_open.clear()
    _follow(plan, publisher, loader)
    publisher.close()
    messages = connection.messages()
    for before, after in itertools.pairwise(messages):
        assert after.first == before.first + len(before.ends_ns())
        assert after.begin_ns >= before.ends_ns()[-1]


_left_open: list[Iterator[int]] = []


def _follow(plan: object, publisher: Publisher, loader: Loader) -> None:
    if isinstance(plan, int):
        assert list(publisher.iterations(Loader(plan))) == list(range(plan))
    elif isinstance(plan, list):
        for expected, (batch, part) in enumerate(zip(loader, plan, strict=False)):
            assert batch == expected
            _follow(part, publisher, loader)
    elif plan == "look":
        assert next(iter(loader)) == 0
    elif plan == "leave open":
        _left_open.append(iter(loader))
        assert [next(_left_open[-1]), next(_left_open[-1])] == [0, 1]
    elif plan == "step":
        recorder = publisher.recorder
        if recorder.is_stepping:
            recorder.mark(recorder.clock_ns())
        else:
            recorder.add_step("optimizer")
    else:
        getattr(publisher, str(plan))()


def test_where_steps_are_awaited_and_none_comes_all_that_was_asked_for_counts(
    caplog: pytest.LogCaptureFixture,
) -> None:
    loop = Loop()
    loop.publisher.recorder.await_steps()
    for _ in loop.loader(3 * MAX_UNSTEPPED):
        loop.work(MS_NS)
    assert loop.times_ns() == [MS_NS] * 3 * MAX_UNSTEPPED
    assert ["no step of a PyTorch optimizer was seen" in record.message for record in caplog.records] == [True]


def test_a_second_pass_without_a_step_shows_that_none_comes() -> None:
    loop = Loop()
    loop.publisher.recorder.await_steps()
    loader = loop.loader(10)
    for _ in range(4):
        for _ in loader:
            loop.work(MS_NS)
    assert loop.times_ns() == [MS_NS] * 40
    assert epochs(loop.connection) == {0: 10, 1: 10, 2: 10, 3: 10}


def test_a_long_pass_without_a_step_shows_it_after_a_minute() -> None:
    loop = Loop()
    loop.publisher.recorder.await_steps()
    for _ in loop.loader(80):
        loop.work(1_000_000_000)
    assert loop.times_ns() == [1_000_000_000] * 80


def test_batches_that_are_skipped_to_resume_are_no_iterations() -> None:
    loop, n_skipped = Loop(), 5 * MAX_UNSTEPPED
    recorder = loop.publisher.recorder
    recorder.await_steps()
    for k, _ in enumerate(loop.loader(n_skipped + N)):
        if k >= n_skipped:
            loop.work(MS_NS)
            recorder.add_step("optimizer")
    assert k == n_skipped + N - 1
    assert loop.times_ns() == [MS_NS] * N
    assert {message.counted_by for message in loop.connection.messages()} == {"optimizer"}


def test_skipped_batches_before_a_training_whose_steps_are_not_seen_do_not_count() -> None:
    loop, n_skipped = Loop(), 5 * MAX_UNSTEPPED
    loop.publisher.recorder.await_steps()
    for k, _ in enumerate(loop.loader(n_skipped + 3 * MAX_UNSTEPPED)):
        loop.work(MS_NS if k >= n_skipped else 1_000)
    assert loop.times_ns() == [MS_NS] * 3 * MAX_UNSTEPPED


@pytest.mark.parametrize("are_steps_seen", [True, False])
def test_whole_passes_that_are_skipped_to_resume_are_no_iterations(are_steps_seen: bool) -> None:
    loop = Loop()
    recorder = loop.publisher.recorder
    recorder.await_steps()
    loader = loop.loader(3 * MAX_UNSTEPPED)
    for epoch in range(6):
        for _ in loader:
            if epoch < 4:
                loop.work()
                continue
            loop.work(MS_NS)
            if are_steps_seen:
                recorder.add_step("optimizer")
    assert loop.times_ns() == [MS_NS] * 2 * 3 * MAX_UNSTEPPED
    assert {message.counted_by for message in loop.connection.messages()} == {
        "optimizer" if are_steps_seen else "loader"
    }


@pytest.mark.parametrize("held_ns", [60_000, 4 * MS_NS])
@pytest.mark.parametrize("preempted", [[(0, 0)], [(0, 5)], [(0, 5), (1, 7), (3, N - 1)]])
def test_a_thread_that_is_preempted_while_it_skips_trains_not(preempted: list[tuple[int, int]], held_ns: int) -> None:
    loop = Loop()
    loop.publisher.recorder.await_steps()
    loader = loop.loader()
    for epoch in range(5):
        for k, _ in enumerate(loader):
            if epoch == 4:
                loop.work(MS_NS)
                loop.publisher.recorder.add_step("optimizer")
            else:
                loop.work(held_ns if (epoch, k) in preempted else 5_000)
    assert loop.times_ns() == [MS_NS] * N


def test_one_preempted_hold_before_the_training_does_not_count() -> None:
    loop, n_skipped = Loop(), 5 * MAX_UNSTEPPED
    loop.publisher.recorder.await_steps()
    for k, _ in enumerate(loop.loader(n_skipped + 3 * MAX_UNSTEPPED)):
        loop.work(MS_NS if k >= n_skipped or k == N else 1_000)
    assert loop.times_ns() == [MS_NS] * 3 * MAX_UNSTEPPED


@pytest.mark.parametrize("period", [3, 10, 50])
def test_a_training_that_waits_for_its_device_now_and_then_counts(period: int) -> None:
    loop = Loop()
    loop.publisher.recorder.await_steps()
    loader = loop.loader(4 * MAX_UNSTEPPED)
    for _ in range(2):
        for k, _ in enumerate(loader, start=1):
            loop.work(20_000 if k % period else period * MS_NS)
    assert len(loop.times_ns()) > 2 * 4 * MAX_UNSTEPPED - period


def test_a_training_that_waits_at_the_end_of_each_pass_counts() -> None:
    loop = Loop()
    loop.publisher.recorder.await_steps()
    loader = loop.loader()
    for _ in range(6):
        for k, _ in enumerate(loader, start=1):
            loop.work(20_000 if k < N else 20 * MS_NS)
    assert len(loop.times_ns()) > 4 * N


@pytest.mark.parametrize("work_ns", [60_000, MS_NS])
@pytest.mark.parametrize("n_batches", [1, 2, 10, N])
def test_short_steps_count_from_the_first_one_on(n_batches: int, work_ns: int) -> None:
    loop = Loop()
    loop.publisher.recorder.await_steps()
    loader = loop.loader(n_batches)
    for _ in range(6):
        for _ in loader:
            loop.work(work_ns)
    assert loop.times_ns() == [work_ns] * 6 * n_batches


def test_many_passes_of_brief_holds_say_that_they_do_not_count(caplog: pytest.LogCaptureFixture) -> None:
    loop = Loop()
    loop.publisher.recorder.await_steps()
    loader = loop.loader(LOOK)
    for _ in range(20):
        for _ in loader:
            loop.work()
    assert loop.times_ns() == []
    assert sum("whole passes over a loader do not count" in message for message in caplog.messages) == 1


def test_batches_that_are_held_briefly_for_a_minute_count() -> None:
    loop = Loop()

    class SlowLoader(Loader):
        def __iter__(self) -> Iterator[int]:
            for k in range(self.n_batches):
                loop.work(250 * MS_NS)
                yield k

    loop.publisher.recorder.await_steps()
    assert sum(1 for _ in loop.publisher.iterations(SlowLoader(4 * MAX_UNSTEPPED))) == 4 * MAX_UNSTEPPED
    assert len(loop.times_ns()) == 4 * MAX_UNSTEPPED


def test_the_times_of_batches_that_may_be_skipped_are_bounded(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("publishers.training.iterations.loader_pass.MAX_SKIPPED", N)
    loop = Loop()
    recorder = loop.publisher.recorder
    recorder.await_steps()
    for k, _ in enumerate(loop.loader(10 * N)):
        if k >= 9 * N:
            loop.work(MS_NS)
            recorder.add_step("optimizer")
        elif k > N:
            assert len(loop.publisher.recorder.passes[0].times) == N  # type: ignore[attr-defined]  # a pass over a loader
    assert loop.times_ns() == [MS_NS] * N


def test_validations_before_the_training_do_not_count() -> None:
    loop = Loop()
    recorder = loop.publisher.recorder
    recorder.await_steps()
    for validation in (loop.loader(20), loop.loader(30)):
        for _ in validation:
            loop.work()
    for _ in loop.loader(N):
        loop.work()
        recorder.add_step("optimizer")
    assert loop.times_ns() == [1_000] * N
    assert {message.counted_by for message in loop.connection.messages()} == {"optimizer"}


def test_memory_stays_bounded_while_steps_are_awaited() -> None:
    loop = Loop()
    recorder = loop.publisher.recorder
    recorder.await_steps()
    for _ in range(5_000):
        for _ in loop.loader(2):  # each a loader of its own, so that none is gone through twice
            pass
    assert len(recorder.passes) <= 2
    assert len(loop.publisher.passes._stepless) <= 8
