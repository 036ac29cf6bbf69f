"""Whatever a training passes, in whatever order it calls, whatever its connection does: nothing is raised into it.

Unknown names of arguments are a TypeError, as those of any function; the training's own exceptions go through.
"""

import copy
import itertools
import pickle
from collections.abc import Callable, Iterator
from typing import Any

import numpy as np
import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from gridchase import Publisher, publish_iterations
from publishers.messages.codec import Outgoing
from publishers.mqtt.broker_address import BrokerAddress
from publishers.training.iterations.steps import optimizer_hook
from publishers.training.publisher import PUBLISHERS
from tests.publishers.training.fake_connection import Failing, FakeConnection, ticking, unused_broker

ODD: st.SearchStrategy[Any] = st.one_of(
    st.none(),
    st.booleans(),
    st.integers(),
    st.floats(),
    st.text(max_size=8),
    st.binary(max_size=4),
    st.lists(st.integers(), max_size=3),
    st.sampled_from([Failing(), object(), np.float32(2.5), np.array([1, 2]), np.int64(8), 1e400, -0.0, complex(1, 2)]),
    st.dictionaries(st.text(max_size=2), st.integers(), max_size=2),
)
OPTIONS = ("job", "run", "rank", "world_size", "gpus", "batch_size", "broker", "username", "password", "ca_file")
MORE = ("root", "flush_s", "heartbeat_s", "boot_id", "pausable", "max_pause_s", "early_stop", "emissions_file")
CALLS: dict[str, Callable[..., object]] = {
    "iteration": lambda publisher, *_: publisher.iteration(),
    "begin": lambda publisher, *_: publisher.begin(),
    "pause": lambda publisher, *_: publisher.pause(),
    "epoch": lambda publisher, *_: publisher.epoch(),
    "wait_for": lambda publisher, value, _: publisher.wait_for(value),
    "metric": lambda publisher, value, other: publisher.metric(value, reached=other),
    "fail": lambda publisher, value, other: publisher.fail(value, other),
    "set_batch_size": lambda publisher, value, _: publisher.set_batch_size(value),
    "batch_size": lambda publisher, value, other: publisher.batch_size(value, default=other, timeout_s=0.0),
    "epochs": lambda publisher, value, other: list(itertools.islice(publisher.epochs(value, first=other), 3)),
    "should_stop": lambda publisher, *_: (publisher.should_stop, publisher.stop_reason),
    "summary": lambda publisher, *_: str(publisher.summary()),
    "live": lambda publisher, *_: publisher.live(),
    "log_live": lambda publisher, value, other: publisher.log_live(value, step=other),
    "shared": lambda publisher, *_: (copy.copy(publisher), pickle.loads(pickle.dumps(publisher))),  # noqa: S301
    "close": lambda publisher, value, _: publisher.close(value),
    "measure": lambda publisher, *_: publisher.measure_without_iterations(),
    "step": lambda _, value, __: optimizer_hook._on_step(value, (), {}),
}
LOOPS = ("whole", "left", "nested", "raised", "copied")


class FaultyConnection(FakeConnection):
    """One on which a call fails now and then, which a connection never should."""

    def __init__(self, faults: Iterator[bool]) -> None:
        super().__init__()
        self._faults = faults

    def work(self, timeout_s: float = 0.0) -> None:
        super().work(timeout_s)
        if next(self._faults, False):
            raise OSError("the network is gone")

    def subscribe(self, topic: str, hear: Callable[[bytes], None]) -> None:
        self.subscriptions[topic] = hear
        if next(self._faults, False):
            raise RuntimeError("a bug")

    def close(self) -> None:
        super().close()
        if next(self._faults, False):
            raise OSError("the network is gone")


@pytest.fixture(autouse=True)
def hooks() -> Iterator[None]:
    """Let steps of optimizers be seen, as where PyTorch is there; forget them afterwards."""
    yield
    optimizer_hook._set_counters()


def go_through(publisher: Publisher, loop: str) -> None:
    """Go through a published loader, in one of the ways in which trainings do; all batches are there."""
    batches = publisher.iterations([1, 2, 3, 4])
    match loop:
        case "left":
            assert next(iter(batches)) == 1
        case "nested":
            assert [(a, b) for a in batches for b in publisher.iterations("xy")] == list(
                itertools.product([1, 2, 3, 4], "xy")
            )
        case "raised":
            with pytest.raises(ZeroDivisionError):
                [1 // (k - 3) for k in batches]
        case "copied":
            assert list(copy.copy(batches)) == list(copy.deepcopy(batches)) == [1, 2, 3, 4]
        case _:
            assert list(batches) == [1, 2, 3, 4]


@given(
    calls=st.lists(st.tuples(st.sampled_from([*CALLS, *LOOPS]), ODD, ODD), max_size=12),
    faults=st.lists(st.booleans(), max_size=12),
    is_up=st.booleans(),
    is_acknowledged=st.booleans(),
    counts_steps=st.booleans(),
)
@pytest.mark.usefixtures("short_close")
@settings(max_examples=80, suppress_health_check=[HealthCheck.function_scoped_fixture])
def test_calls_in_any_order_with_any_values_raise_nothing(
    calls: list[tuple[str, Any, Any]], faults: list[bool], *, is_up: bool, is_acknowledged: bool, counts_steps: bool
) -> None:
    connection = FaultyConnection(iter(faults))
    connection.up, connection.acknowledges = is_up, is_acknowledged
    publisher = Publisher(
        job="toy", run="r1", rank=0, world_size=1, flush_s=0.001, clock_ns=ticking(), connect=connection.connect
    )
    if counts_steps:
        publisher.recorder.await_steps()
        optimizer_hook._set_counters(optimizer_hook.StepCounter(publisher.recorder))
    for name, value, other in calls:
        if name in LOOPS:
            go_through(publisher, name)
        else:
            CALLS[name](publisher, value, other)
    publisher.close()


def outcome_of(make: Callable[[], Any]) -> Any:  # noqa: ANN401
    """Return the items of an iterable, or the kind of exception that it raises."""
    try:
        return [repr(item) for item in make()]
    except Exception as error:  # noqa: BLE001 — whatever it is
        return type(error)


@given(options=st.dictionaries(st.sampled_from([*OPTIONS, *MORE]), ODD, max_size=4), data=ODD)
@settings(max_examples=150)
def test_options_of_any_kind_leave_the_loader_as_it_is(options: dict[str, Any], data: Any) -> None:  # noqa: ANN401
    """What cannot be gone through says so as it does bare. The broker is not there."""
    arguments = {"job": "toy", "run": "r1", "broker": unused_broker(), **options}
    loader = [1, 2, 3]
    assert list(publish_iterations(loader, **arguments)) == loader
    assert outcome_of(lambda: publish_iterations(data, **arguments)) == outcome_of(lambda: data)
    for publisher in list(PUBLISHERS.by_key.values()):
        publisher.close()
    PUBLISHERS.by_key.clear()


@pytest.mark.parametrize("when", ["clock", "connect"])
def test_what_fails_at_the_start_turns_publishing_off(when: str) -> None:
    def fail(*_: object) -> Any:  # noqa: ANN401
        raise RuntimeError("a bug")

    def connect(broker: BrokerAddress, will: Outgoing) -> FakeConnection:
        return fail() if when == "connect" else FakeConnection().connect(broker, will)

    clock_ns = fail if when == "clock" else ticking()
    with Publisher(job="toy", run="r1", connect=connect, clock_ns=clock_ns) as publisher:
        assert list(publisher.iterations([1, 2, 3])) == [1, 2, 3]
