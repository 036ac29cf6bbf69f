"""How long a run says it is, and how its epochs are numbered."""

import itertools
from collections.abc import Callable, Iterable

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from gridchase import Publisher, publish_iterations
from publishers.training.iterations.data_loader import length_of
from publishers.training.iterations.progress import RunProgress
from publishers.training.iterations.published_loader import PublishedSized
from publishers.training.publish_iterations import publisher_of
from tests.publishers.training.fake_connection import (
    FakeConnection,
    OutOfMemoryError,
    aimed,
    answering,
    epochs,
    passes,
    publisher_on,
    told,
    totals,
    unused_broker,
    wait_until,
)


def test_a_given_total_is_published_from_the_first_status_on() -> None:
    connection = FakeConnection()
    publisher_on(connection, total_iterations=np.int64(450_000)).close()
    assert set(totals(connection)) == {450_000}


def test_an_unknown_total_is_not_published() -> None:
    connection = FakeConnection()
    with publisher_on(connection) as publisher:
        passes(publisher.iterations(range(10)))
    assert set(totals(connection)) == {None}


def test_epochs_and_the_loaders_length_give_the_total_at_once() -> None:
    connection = FakeConnection()
    with publisher_on(connection) as publisher:
        wait_until(connection.statuses)
        loader = publisher.iterations(range(10))
        for _ in publisher.epochs(90):
            batches = iter(loader)
            next(batches)
            next(batches)
            wait_until(lambda: 900 in totals(connection))  # not only with the next heartbeat
            break


def test_the_published_total_is_exact() -> None:
    connection = FakeConnection()
    with publisher_on(connection) as publisher:
        for _ in publisher.epochs(3):
            passes(publisher.iterations(range(10)))  # wrapped anew each time
    assert connection.n_iterations() == totals(connection)[-1] == 30


def test_a_published_validation_counts_once_it_was_seen() -> None:
    publisher = publisher_on(FakeConnection())
    seen = []
    for _ in publisher.epochs(4):
        passes(publisher.iterations(range(10)))
        seen.append(told(publisher))
        passes(publisher.iterations(range(2)))
        seen.append(told(publisher))
    assert seen == [40, *[48] * 7]
    publisher.close()


def train_without_loader(publisher: Publisher, _epoch: int) -> None:
    publisher.begin()
    for _ in range(10):
        publisher.iteration()


@pytest.mark.parametrize(
    ("n_epochs", "train", "seen"),
    [
        pytest.param(
            10,
            lambda publisher, _: passes(publisher.iterations(range(100)), left_after=20),
            [1000, 20 + 900, *[200] * 8],
            id="every epoch is left early",
        ),
        pytest.param(
            5,
            lambda publisher, epoch: passes(publisher.iterations(range(100)), left_after=None if epoch else 30),
            [500, *[430] * 4],
            id="resumed within an epoch",
        ),
        pytest.param(
            90,
            lambda publisher, epoch: None if epoch < 30 else passes(publisher.iterations(range(10))),
            [None] * 30 + [600] * 60,
            id="resumed between epochs",
        ),
        pytest.param(
            4, lambda publisher, _: passes(publisher.iterations(iter(range(10)))), [None, *[40] * 3], id="an iterator"
        ),
        pytest.param(
            4,
            lambda publisher, _: passes(publisher.iterations(batch for batch in range(10))),
            [None, *[40] * 3],
            id="a generator",
        ),
        pytest.param(3, train_without_loader, [None, 30, 30], id="no loader"),
    ],
)
def test_the_total_that_is_known_in_each_epoch(
    n_epochs: int, train: Callable[[Publisher, int], None], seen: list[int | None]
) -> None:
    with publisher_on(FakeConnection()) as publisher:
        found = []
        for epoch in publisher.epochs(n_epochs):
            train(publisher, epoch)
            found.append(told(publisher))
    assert found == seen
    assert seen[-1] == publisher.recorder.n_ended, "in the last epoch the total is exact"


@pytest.mark.parametrize("n_epochs", [None, float("inf"), "many"])
def test_endless_epochs_give_no_total(n_epochs: float | None) -> None:
    publisher = publisher_on(FakeConnection())
    for _ in itertools.islice(publisher.epochs(n_epochs), 3):
        passes(publisher.iterations(range(10)))
        assert told(publisher) is None
    publisher.close()


def test_iterations_before_the_epochs_are_added() -> None:
    publisher = publisher_on(FakeConnection())
    passes(publisher.iterations(range(7)))
    for _ in publisher.epochs(2):
        passes(publisher.iterations(range(10)))
        assert told(publisher) == 27
    for _ in publisher.epochs(3):
        passes(publisher.iterations(range(5)))
        assert told(publisher) == 42
    publisher.close()


def test_a_given_total_wins_over_the_epochs() -> None:
    connection = FakeConnection()
    with publisher_on(connection, total_iterations=25) as publisher:
        for _ in publisher.epochs(2):
            passes(publisher.iterations(range(10)))
    assert totals(connection)[-1] == 25


def test_a_total_that_the_run_has_exceeded_is_withdrawn() -> None:
    connection = FakeConnection()
    with publisher_on(connection, total_iterations=9) as publisher:
        wait_until(connection.statuses)
        passes(publisher.iterations(range(10)))
    assert totals(connection) == [9, None]


def test_corrections_wait_for_the_heartbeat() -> None:
    connection = FakeConnection()
    with publisher_on(connection) as publisher:
        for epoch in publisher.epochs(50):
            passes(publisher.iterations(range(2 + epoch)))
            if epoch == 0:
                wait_until(lambda: 100 in totals(connection))
    assert [status.state for status in connection.statuses()].count("running") <= 2


@pytest.mark.parametrize("total", [0, -1, 1.5, float("nan"), "many", 1 << 60, object(), np.zeros(2)])
def test_an_invalid_total_costs_one_warning(total: object, caplog: pytest.LogCaptureFixture) -> None:
    connection = FakeConnection()
    for _ in range(2):
        publisher_on(connection, total_iterations=total).close()
    assert set(totals(connection)) == {None}
    assert [record.levelname for record in caplog.records if "total_iterations" in record.message] == ["WARNING"]


def test_a_total_beyond_the_bounds_is_not_published() -> None:
    publisher = publisher_on(FakeConnection())
    for _ in publisher.epochs(1 << 52):
        passes(publisher.iterations(range(10)))
        assert told(publisher) is None
        break
    publisher.close()


counts = st.integers(0, 50)


@given(
    st.lists(
        st.one_of(
            st.tuples(st.just("epoch"), st.none() | counts),
            st.tuples(st.just("pass"), st.none() | counts, st.none() | counts),
            st.tuples(st.just("train"), counts),
            st.tuples(st.just("end")),
        )
    )
)
def test_any_loop_gives_no_total_or_a_valid_one(calls: list[tuple[str, int]]) -> None:
    n_ended = 0
    length = RunProgress(None, lambda: n_ended)
    for what, *numbers in calls:
        match what:
            case "epoch":
                length.begin_epoch(numbers[0])
            case "pass":
                length.begin_pass(numbers[0], numbers[1])
            case "train":
                n_ended += numbers[0]
            case _:
                length.end_epochs()
        total = length.total_iterations
        assert total is None or 1 <= total <= 1 << 53


@given(st.integers(0, 20), st.lists(st.integers(1, 50), min_size=1), st.integers(1, 50))
def test_two_equal_epochs_give_the_total(begun: int, before: list[int], each: int) -> None:
    n_ended, n_left = begun, 5
    length = RunProgress(None, lambda: n_ended)
    for n in [*before, each, each]:
        length.begin_epoch(n_left)
        n_ended += n
    length.begin_epoch(n_left)
    assert length.total_iterations == n_ended + each * (1 + n_left)


def wrapped(batches: object, *, run: str, epochs: object = None, **more: object) -> Iterable[int]:
    """Wrap a loader where no broker is."""
    return publish_iterations(batches, job="long", run=run, broker=unused_broker(), epochs=epochs, **more)  # type: ignore[arg-type]


@pytest.mark.parametrize("is_wrapped_anew", [True, False])
def test_the_number_of_passes_gives_the_total(is_wrapped_anew: bool) -> None:
    run = f"passes-{is_wrapped_anew}"
    loader = wrapped(range(10), run=run, epochs=4)
    seen = []
    for _ in range(4):
        passes(loader)
        seen.append(told(publisher_of(loader)))
        passes(wrapped(range(2), run=run))  # a validation is part of the epoch
        loader = wrapped(range(10), run=run, epochs=4.0) if is_wrapped_anew else loader
    publisher_of(loader).close()
    assert seen == [40, 48, 48, 48]


def test_two_loaders_with_a_number_of_passes_give_no_total(caplog: pytest.LogCaptureFixture) -> None:
    loader, other = (wrapped(range(n), run="two", epochs=4) for n in (10, 3))
    passes(loader)
    for _ in range(3):
        passes(other)
        assert told(publisher_of(loader)) is None
        passes(loader)
        assert told(publisher_of(loader)) is None
    publisher_of(loader).close()
    assert [record.message.partition(":")[0] for record in caplog.records if "length" in record.message] == [
        "the run's length is not published"
    ]


def test_more_passes_than_given_have_no_total() -> None:
    loader = wrapped(range(10), run="more", epochs=2)
    for total in (20, 20, None, None):
        passes(loader)
        assert told(publisher_of(loader)) == total
    publisher_of(loader).close()


def test_a_shared_publisher_takes_a_total_at_any_time() -> None:
    passes(wrapped(range(10), run="late", epochs=2))
    loader = wrapped(range(10), run="late", epochs=2, total_iterations="35")
    passes(loader)
    assert told(publisher_of(loader)) == 35
    publisher_of(loader).close()


def test_an_invalid_number_of_passes_costs_only_a_warning(
    caplog: pytest.LogCaptureFixture,
) -> None:
    loader = wrapped(range(10), run="bad", epochs="many")
    assert list(loader) == list(range(10))
    assert told(publisher_of(loader)) is None
    publisher_of(loader).close()
    assert "epochs = many is not used: must be a whole number from 1 to" in caplog.text


class Loader:
    """A loader of PyTorch's kind: over an iterable dataset its sampler has no length, and asking for one costs."""

    def __init__(self, sampler: object) -> None:
        self.sampler = sampler
        self.n_asked = 0

    def __len__(self) -> int:
        self.n_asked += 1
        return 10


class Broken:
    """A loader whose every property fails."""

    def __len__(self) -> int:
        raise ZeroDivisionError

    @property
    def sampler(self) -> object:
        raise ValueError("not yet")


def test_the_length_of_a_loader_never_raises() -> None:
    guessing = Loader(sampler=object())
    loaders = [range(7), Loader(sampler=range(9)), Loader(sampler=None), guessing, iter([]), Broken()]
    assert [length_of(loader) for loader in loaders] == [7, 10, 10, None, None, None]
    assert guessing.n_asked == 0


def test_epochs_resume_at_the_given_number() -> None:
    connection = FakeConnection()
    publisher = publisher_on(connection)
    numbers = []
    for epoch in publisher.epochs(10, first=8):
        list(publisher.iterations(range(5)))
        publisher.metric(0.1)
        numbers.append(epoch)
    publisher.close()
    assert numbers == [8, 9]
    assert epochs(connection) == {8: 5, 9: 5}
    assert [metric.epoch for metric in connection.metrics()] == [8, 9]
    assert connection.messages()[0].first == 0


@pytest.mark.parametrize("first", [10, 11])
def test_a_run_that_has_trained_all_epochs_has_none_left(first: int) -> None:
    assert list(publisher_on(FakeConnection()).epochs(10, first=first)) == []


def test_loops_without_epochs_resume_at_first_epoch() -> None:
    connection = FakeConnection()
    with publisher_on(connection, first_epoch=8) as publisher:
        for _ in range(2):
            list(PublishedSized(range(5), publisher))
        for _ in range(3):
            publisher.iteration()
        publisher.epoch()
        for _ in range(3):
            publisher.iteration()
    assert epochs(connection) == {8: 5, 9: 7, 10: 2}


def test_an_earlier_first_epoch_changes_nothing() -> None:
    connection = FakeConnection()
    with publisher_on(connection) as publisher:
        for _ in publisher.epochs(3):
            list(publisher.iterations(range(5)))
        for _ in publisher.epochs(4, first=3):
            list(publisher.iterations(range(5)))
    assert epochs(connection) == {0: 5, 1: 5, 2: 5, 3: 5}


@pytest.mark.parametrize("first", [-1, 1.5, "eight", None])
def test_an_invalid_first_epoch_costs_a_warning(first: int, caplog: pytest.LogCaptureFixture) -> None:
    assert list(publisher_on(FakeConnection()).epochs(2, first=first)) == [0, 1]
    assert "must be a whole number from 0" in caplog.text


def test_epochs_of_another_process_do_not_prove_that_the_batch_size_fits() -> None:
    def train(publisher: Publisher) -> None:
        for _ in publisher.epochs(10, first=8):
            for _ in publisher.iterations(range(3)):
                raise OutOfMemoryError("CUDA out of memory")

    connection = answering()
    with pytest.raises(OutOfMemoryError), aimed(connection, 0.84) as publisher:
        train(publisher)
    assert len(connection.trial_failures()) == 1


def test_the_batches_of_an_iteration_give_the_total_within_the_first_epoch() -> None:
    progress = RunProgress(None, lambda: 0)
    progress.begin_pass(20, 3, is_in_steps=True)
    assert progress.total_iterations is None
    progress.set_batches_per_iteration(8)
    assert progress.total_iterations == 9  # 8 + 8 + 4 batches are three steps


def test_what_is_found_out_after_the_epochs_does_not_take_their_total_away() -> None:
    n_ended = 0
    progress = RunProgress(None, lambda: n_ended)
    for n_left in (1, 0):
        progress.begin_epoch(n_left)
        progress.begin_pass(20, None, is_in_steps=True)
        n_ended += 3
    progress.end_epochs()
    assert progress.total_iterations == 6
    progress.set_batches_per_iteration(8)
    assert progress.total_iterations == 6
