"""How much work an iteration was: told with it, or found for each batch; what is no amount is not known."""

import itertools
import math
from array import array
from collections.abc import Callable, Iterator
from fractions import Fraction
from pathlib import Path
from types import SimpleNamespace

import pytest
from hypothesis import given
from hypothesis import strategies as st

from gridchase import Publisher
from publishers.messages.codec import encode
from publishers.messages.training import Iterations, pack_ends
from publishers.training.iterations.chunk import MAX_IN_SEGMENT, Segment
from publishers.training.iterations.data_loader import record_pass
from publishers.training.iterations.loader_pass import LoaderPasses
from publishers.training.iterations.open_pass import Source
from publishers.training.iterations.recorder import CHUNK, Recorder
from publishers.training.iterations.work import MAX_WAITING, plain_work, to_work
from publishers.training.publish_iterations import publish_iterations, publisher_of
from tests.publishers.training.fake_connection import FakeConnection, publisher_on, wait_until

DEPLOY = Path(__file__).parents[4] / "deploy/mosquitto"


def recorded(recorder: Recorder) -> list[Segment]:
    """Return what the worker makes of what was recorded since the last call."""
    segments = recorder.drain(10_000)
    for segment in segments:
        recorder.work.complete(segment)
    return segments


def amounts_of(connection: FakeConnection) -> list[float]:
    """Return the published work of each iteration."""
    found: list[float] = []
    for message in connection.messages():
        found += message.amounts_of_work() or [math.nan] * len(message.ends_ns())
    return found


def test_work_travels_with_the_iterations_that_it_is_of() -> None:
    connection = FakeConnection()
    publisher = publisher_on(connection, work_unit="tokens", total_work=6_000)
    publisher.begin()
    for n_tokens in (512, 1_024, 256.5):
        publisher.iteration(work=n_tokens)
    publisher.iteration()
    publisher.pause()
    publisher.begin()
    publisher.iteration(work=2_048)
    publisher.close()
    assert amounts_of(connection) == pytest.approx([512, 1_024, 256.5, math.nan, 2_048], nan_ok=True)
    last = connection.statuses()[-1]
    assert (last.work_unit, last.total_work) == ("tokens", 6_000)


def test_without_work_the_messages_are_as_before() -> None:
    connection = FakeConnection()
    publisher = publisher_on(connection)
    publisher.begin()
    for _ in range(3):
        publisher.iteration()
    publisher.close()
    assert {message.work for message in connection.messages()} == {b""}
    assert (connection.statuses()[-1].work_unit, connection.statuses()[-1].total_work) == (None, None)


@given(st.lists(st.none() | st.integers(1, 10_000), min_size=2, max_size=60), st.integers(1, 9))
def test_each_iteration_has_its_own_work_wherever_it_is_read(works: list[int | None], read_every: int) -> None:
    publisher = Publisher(job="test", broker="mqtt://127.0.0.1:1")
    publisher.recorder = recorder = Recorder(itertools.count().__next__)
    publisher.begin()
    found: list[float] = []
    for k, work in enumerate(works):
        publisher.iteration(work=work)
        if k % read_every == 0:
            found += [amount for one in recorded(recorder) for amount in one.work or [math.nan] * len(one.ends_ns)]
    found += [amount for one in recorded(recorder) for amount in one.work or [math.nan] * len(one.ends_ns)]
    publisher.close()
    assert found == pytest.approx([math.nan if work is None else work for work in works], nan_ok=True)


def test_work_keeps_its_place_beyond_a_chunk() -> None:
    recorder = Recorder(itertools.count().__next__)
    recorder.begin()
    n = 3 * CHUNK
    for k in range(1, n + 1):
        recorder.tell_step("caller", k) if k < 3 else recorder.mark_told(k)
    assert [amount for one in recorded(recorder) for amount in one.work] == list(range(1, n + 1))


@pytest.mark.parametrize("way", ["caller", "loader"])
def test_a_batch_is_work_of_the_iteration_that_has_received_it(way: str) -> None:
    recorder = Recorder(itertools.count(1).__next__)
    passes, lengths = LoaderPasses(recorder), [5, 7, 11, 13, 17, 19]
    if way == "caller":
        recorder.count_by("caller")
    batches = record_pass(iter(lengths), passes, Source.of(object()), lambda: None, float)
    for k, _ in enumerate(batches):
        if way == "caller" and k % 2:
            recorder.tell_step("caller")  # two batches a step
    expected = [12, 24, 36] if way == "caller" else lengths
    assert [amount for one in recorded(recorder) for amount in one.work] == expected


def test_the_batches_of_a_validation_are_no_work() -> None:
    recorder = Recorder(itertools.count(1).__next__)
    recorder.count_by("callback")
    passes = LoaderPasses(recorder)
    loader, validation = object(), object()
    batches = record_pass(iter([5, 7, 11, 13]), passes, Source.of(loader), lambda: None, float)
    for k, _ in enumerate(batches):
        recorder.tell_step("callback")
        if k == 1:
            recorder.pause_with_batch()
            for _ in record_pass(iter([100, 100, 100]), passes, Source.of(validation), lambda: None, float):
                pass
    assert [amount for one in recorded(recorder) for amount in one.work] == [5, 7, 11, 13]


def test_the_batches_of_a_validation_are_no_work_where_only_the_loader_is_seen() -> None:
    recorder = Recorder(itertools.count(1).__next__)
    passes, loader, validation = LoaderPasses(recorder), object(), object()
    for k, _ in enumerate(record_pass(iter([5, 7, 11, 13]), passes, Source.of(loader), lambda: None, float)):
        if k == 2:
            for _ in record_pass(iter([100, 100, 100]), passes, Source.of(validation), lambda: None, float):
                pass
    found = [amount for one in recorded(recorder) for amount in one.work]
    assert max(found) <= 13
    assert found[:2] == [5, 7]
    assert found[-1] == 13


def test_a_loader_that_is_wrapped_in_each_epoch_is_of_one_class() -> None:
    class Loader:
        def __iter__(self) -> Iterator[list[int]]:
            return iter([[1] * n for n in (3, 5, 8)])

    publisher = Publisher(job="test", broker="mqtt://127.0.0.1:1")
    loader = publisher.iterations(Loader(), work=len)
    before = type(loader)
    list(loader)
    assert type(publisher.iterations(loader, work=lambda batch: 2 * len(batch))) is before
    list(loader)
    assert [amount for one in recorded(publisher.recorder) for amount in one.work] == [3, 5, 8, 6, 10, 16]
    publisher.close()


def test_work_that_was_told_counts_more_than_that_of_the_batches() -> None:
    recorder = Recorder(itertools.count(1).__next__)
    recorder.count_by("caller")
    batches = record_pass(iter([5, 7, 11]), LoaderPasses(recorder), Source.of(object()), lambda: None, float)
    for k, _ in enumerate(batches):
        recorder.tell_step("caller", 1_000 if k == 1 else None)
    assert [amount for one in recorded(recorder) for amount in one.work] == [5, 1_000, 11]


def raising(_: object) -> float:
    raise KeyError("input_ids")


@pytest.mark.parametrize(
    "work",
    [raising, lambda _: None, lambda _: "many", lambda _: -1, len],
    ids=["raises", "none", "text", "negative", "builtin"],
)
def test_a_callable_that_fails_costs_the_training_nothing(work: Callable[[object], float]) -> None:
    connection = FakeConnection()
    publisher = publisher_on(connection)
    batches = list(range(10))
    assert list(publisher.iterations(batches, work=work)) == batches
    publisher.close()
    assert connection.n_iterations() == 10
    assert {message.work for message in connection.messages()} == {b""}


class Weird:
    """Whatever it is asked, it raises."""

    def __getattr__(self, name: str) -> object:
        raise RuntimeError(name)

    def __float__(self) -> float:
        raise RuntimeError("no")


@pytest.mark.parametrize(
    "value",
    [0, -1, math.nan, math.inf, 1e300, 10**400, "512", b"1", None, True, [1], 1j, Weird(), SimpleNamespace()],
    ids=lambda value: type(value).__name__,
)
def test_what_is_no_amount_of_work_is_not_known(value: object) -> None:
    assert math.isnan(to_work(plain_work(value)))


@pytest.mark.parametrize("value", [3, 3.0, Fraction(3)])
def test_numbers_of_any_kind_are_amounts(value: object) -> None:
    assert to_work(plain_work(value)) == 3


@pytest.mark.parametrize(
    "attributes", [{"device": "cuda:0"}, {"device": "meta"}, {"device": "cpu", "block_until_ready": None}], ids=str
)
def test_no_device_is_waited_for(attributes: dict[str, object]) -> None:
    class OnDevice:
        def __float__(self) -> float:
            raise AssertionError("it would have been waited for")

    value = OnDevice()
    vars(value).update(attributes)
    assert math.isnan(to_work(plain_work(value)))


@pytest.mark.parametrize("bad", [0, -1, math.nan, math.inf, "many", []], ids=str)
def test_bad_arguments_are_told_and_not_used(bad: object) -> None:
    connection = FakeConnection()
    publisher = publisher_on(connection, total_work=bad, work_unit="u" * 100)
    publisher.begin()
    publisher.iteration(work=bad)  # type: ignore[arg-type]  # what a user may pass
    publisher.close()
    assert connection.n_iterations() == 1
    assert (connection.statuses()[-1].total_work, connection.statuses()[-1].work_unit) == (None, None)


def test_memory_is_bounded_where_nobody_reads() -> None:
    recorder = Recorder(itertools.count().__next__)
    recorder.begin()
    for _ in range(MAX_WAITING + 10):
        recorder.tell_step("caller", 1)
        recorder.add_batch_work(1.0, 0)
    assert len(recorder.work.told) == len(recorder.work._received) == MAX_WAITING


@pytest.mark.parametrize("conf", ["site.conf", "one-machine.conf"])
def test_the_longest_message_is_one_that_the_shipped_brokers_take(conf: str) -> None:
    """A broker ends the connection at a longer one, and it would be sent again for ever."""
    times = pack_ends(array("q", range(2**62, 2**62 + MAX_IN_SEGMENT)))
    message = Iterations(
        run="r" * 64,
        seq=2**31,
        first=2**31,
        begin_ns=2**62,
        end_ns=times,
        epoch=2**31,
        dropped=2**31,
        request_ns=times,
        received_ns=times,
        work=times,
    )
    settings = dict(line.split(maxsplit=1) for line in (DEPLOY / conf).read_text().splitlines() if " " in line)
    assert len(encode(message)) + 1_024 < int(settings["max_packet_size"])


def test_a_published_loader_tells_the_work_of_its_batches() -> None:
    class Loader:
        def __iter__(self) -> Iterator[list[int]]:
            return iter([[1] * n for n in (3, 5, 8)])

    loader = Loader()
    published = publish_iterations(loader, job="test", broker="mqtt://127.0.0.1:1", work=len)
    assert published is loader
    publisher = publisher_of(published)
    assert [len(batch) for batch in published] == [3, 5, 8]
    assert [amount for one in recorded(publisher.recorder) for amount in one.work] == [3, 5, 8]
    publisher.close()


def test_work_of_a_step_that_is_waited_for() -> None:
    connection = FakeConnection()
    publisher = publisher_on(connection, clock_ns=itertools.count().__next__)
    for k in range(5):
        publisher.wait_for(k, work=10 * (k + 1))
    wait_until(lambda: connection.n_iterations() >= 4)
    publisher.close()
    assert amounts_of(connection) == [20, 30, 40, 50]


def test_batches_of_a_loop_that_runs_ahead_are_work_of_their_own_steps() -> None:
    recorder = Recorder(itertools.count(1).__next__)
    batches = record_pass(iter([5, 7, 11, 13]), LoaderPasses(recorder), Source.of(object()), lambda: None, float)
    recorder.count_by("waiter")
    for number, _ in enumerate(batches, start=1):
        recorder.add_awaited_step(number)
    for number in (1, 2, 3, 4):
        recorder.end_awaited_step(number)
    assert [amount for one in recorded(recorder) for amount in one.work] == [5, 7, 11, 13]
