"""A training waits at the gate between two iterations, and only there; it goes on by itself when its bound is over."""

import threading
from collections.abc import Callable, Iterator

import pytest

from publishers.training.iterations.recorder import Recorder
from publishers.training.pausing.gate import Hold, IterationGate
from tests.publishers.training.fake_connection import wait_until


class Times:
    """A clock that moves by hand."""

    def __init__(self) -> None:
        self.now_ns = 0

    def __call__(self) -> int:
        return self.now_ns


def patient(step: int | None = None) -> Hold:
    return Hold(step, patience_s=60.0, max_s=60.0)


@pytest.fixture
def clock_ns() -> Times:
    return Times()


@pytest.fixture
def gate(clock_ns: Times) -> IterationGate:
    return IterationGate(Recorder(clock_ns))


def train(gate: IterationGate, n: int) -> None:
    for _ in range(n):
        gate.passed()


@pytest.fixture
def in_thread() -> Iterator[Callable[[Callable[[], object]], threading.Thread]]:
    threads: list[threading.Thread] = []

    def start(work: Callable[[], object]) -> threading.Thread:
        threads.append(threading.Thread(target=work, daemon=True))
        threads[-1].start()
        return threads[-1]

    yield start
    for thread in threads:
        thread.join(60.0)
        assert not thread.is_alive()


def test_without_a_hold_nothing_waits(gate: IterationGate) -> None:
    train(gate, 5)
    assert gate.n_passed == 5
    assert not gate.requested()
    assert (gate.paused_since_ns, gate.paused_s) == (None, 0.0)


def test_training_waits_after_the_step_of_the_hold_until_it_is_released(
    gate: IterationGate, clock_ns: Times, in_thread: Callable[[Callable[[], object]], threading.Thread]
) -> None:
    hold = gate.hold = patient(3)
    clock_ns.now_ns = 7_000_000_000
    in_thread(lambda: train(gate, 5))
    wait_until(lambda: hold.arrived_ns is not None)
    assert gate.n_passed == 3
    states = [gate.paused_since_ns]  # the other ranks have not come yet
    hold.is_confirmed = True
    states.append(gate.paused_since_ns)
    clock_ns.now_ns = 9_500_000_000
    hold.release()
    wait_until(lambda: gate.n_passed == 5)
    assert [*states, gate.paused_since_ns] == [None, 7_000_000_000, None]
    assert gate.paused_s == 2.5


def test_a_pause_belongs_to_no_iteration() -> None:
    clock_ns = Times()
    recorder = Recorder(clock_ns)
    gate = IterationGate(recorder)
    gate.hold = Hold(2, patience_s=0.0, max_s=0.0)

    def tell() -> None:
        clock_ns.now_ns += 1_000

    gate._on_change = tell
    recorder.begin()
    for _ in range(4):
        clock_ns.now_ns += 10
        recorder.chunk.marks.append(clock_ns())
        gate.passed()
    lengths_ns = [
        end_ns - begin_ns
        for segment in recorder.drain(8)
        for begin_ns, end_ns in zip([segment.begin_ns, *segment.ends_ns], segment.ends_ns, strict=False)
    ]
    assert lengths_ns == [10, 10, 1_010, 10]  # the second telling, that it goes on, is within the next iteration


def test_a_hold_without_a_step_is_after_the_present_iteration(gate: IterationGate) -> None:
    train(gate, 4)
    hold = gate.hold = Hold(None, patience_s=0.0, max_s=0.0)
    gate.passed()
    assert hold.arrived_ns is not None
    assert hold.left_ns is not None


def test_a_step_that_was_passed_before_is_missed(gate: IterationGate) -> None:
    train(gate, 4)
    hold = gate.hold = patient(4)
    train(gate, 2)
    assert hold.is_missed
    assert hold.arrived_ns is None


def test_nobody_waits_twice_in_one_hold(gate: IterationGate) -> None:
    hold = gate.hold = Hold(None, patience_s=0.0, max_s=0.0)
    train(gate, 1)
    first = hold.arrived_ns
    train(gate, 3)
    assert hold.arrived_ns == first


def test_where_the_training_must_not_wait_it_does_at_its_next_request(gate: IterationGate) -> None:
    hold = gate.hold = Hold(2, patience_s=0.0, max_s=0.0)
    gate.passed(may_wait=False)
    gate.requested()
    assert not hold.is_due
    gate.passed(may_wait=False)
    assert hold.arrived_ns is None
    gate.requested()
    assert hold.arrived_ns is not None


@pytest.mark.parametrize(("is_confirmed", "waited_s"), [(False, 5.0), (True, 300.0)])
def test_the_wait_has_a_bound_of_its_own(*, is_confirmed: bool, waited_s: float) -> None:
    """Whoever asked for it may have gone: nobody releases this hold."""
    now_s = [0.0]
    hold = Hold(None, patience_s=5.0, max_s=300.0)
    hold.is_confirmed = is_confirmed

    def clock_s() -> float:
        now_s[0] += 0.5
        return now_s[0]

    hold._released = SilentEvent()
    hold.wait(clock_s)
    assert now_s[0] == pytest.approx(waited_s, abs=2.0)


class SilentEvent(threading.Event):
    """An event for which nobody waits in real time."""

    def wait(self, timeout: float | None = None) -> bool:
        assert timeout is not None
        assert timeout <= 0.2
        return self.is_set()


def test_an_interrupt_goes_on_to_the_training_at_once(clock_ns: Times) -> None:
    gate = IterationGate(Recorder(clock_ns))
    hold = gate.hold = patient()

    class Interrupted(SilentEvent):
        def wait(self, timeout: float | None = None) -> bool:
            raise KeyboardInterrupt(timeout)

    hold._released = Interrupted()
    with pytest.raises(KeyboardInterrupt):
        gate.passed()
    assert hold.is_interrupted
    assert hold.left_ns is not None
    train(gate, 3)  # a training that catches it is not stopped again


def test_a_forked_child_does_not_wait(gate: IterationGate) -> None:
    hold = gate.hold = patient()
    gate._pid = -1
    gate.passed()
    assert hold.arrived_ns is None


def test_a_fault_while_it_tells_of_the_pause_harms_nothing(clock_ns: Times) -> None:
    def fail() -> None:
        raise RuntimeError("no thread left")

    gate = IterationGate(Recorder(clock_ns), on_change=fail)
    gate.hold = Hold(None, patience_s=0.0, max_s=0.0)
    gate.passed()
    assert gate.hold.left_ns is not None


def test_an_ended_gate_ends_the_loop_at_its_next_request(gate: IterationGate) -> None:
    gate.is_ended = True
    assert gate.requested()
