"""The thread of a GPU: order, deadlines, and callers that go away."""

import asyncio
import logging
import threading
from collections.abc import Iterator
from functools import partial

import pytest

from controller.errors import GpuSuspectError
from controller.gpu.nvml.driver_thread import DriverThread

pytestmark = pytest.mark.live

SOON_S = 0.05
STARTED_S = 1.0
"""Time enough for a thread to start a call: one that it did not start in time is dropped, and does not hang."""
NEVER_S = 30.0


class Gate:
    """A call that hangs until it is opened."""

    def __init__(self) -> None:
        self.entered = threading.Event()
        self.opened = threading.Event()

    def __call__(self) -> None:
        self.entered.set()
        self.opened.wait(NEVER_S)


@pytest.fixture
def gate() -> Gate:
    return Gate()


@pytest.fixture
def thread(gate: Gate) -> Iterator[DriverThread]:
    before = set(threading.enumerate())
    thread = DriverThread("GPU-1")
    (started,) = (other for other in threading.enumerate() if other not in before and other.name.endswith("GPU-1"))
    yield thread
    gate.opened.set()
    thread.close()
    started.join(NEVER_S)  # what it has to log would else be logged in the next test


async def until(event: threading.Event) -> None:
    await asyncio.to_thread(event.wait, NEVER_S)


async def until_answering(thread: DriverThread) -> None:
    while thread.is_stuck:  # noqa: ASYNC110 — a thread has no event to wait for; the test's own deadline bounds it
        await asyncio.sleep(0.001)


async def test_a_call_returns_its_result_from_the_one_thread(thread: DriverThread) -> None:
    names = [await thread.call("name", lambda: threading.current_thread().name, timeout_s=NEVER_S) for _ in range(2)]
    assert names == ["gridchase GPU-1"] * 2


async def test_an_error_reaches_its_caller_and_ends_nothing(thread: DriverThread) -> None:
    with pytest.raises(ZeroDivisionError):
        await thread.call("divide", lambda: 1 // 0, timeout_s=NEVER_S)
    assert await thread.call("divide", lambda: 4 // 2, timeout_s=NEVER_S) == 2


async def test_calls_run_in_the_order_in_which_they_were_asked_for(thread: DriverThread) -> None:
    done: list[int] = []
    async with asyncio.TaskGroup() as tasks:
        for number in range(20):
            tasks.create_task(thread.call("count", partial(done.append, number), timeout_s=NEVER_S))
    assert done == list(range(20))


async def test_a_caller_that_is_cancelled_leaves_its_call_before_the_next(thread: DriverThread, gate: Gate) -> None:
    done: list[str] = []

    def write_slowly() -> None:
        gate()
        done.append("first")

    async with asyncio.TaskGroup() as tasks:
        first = tasks.create_task(thread.call("set", write_slowly, timeout_s=NEVER_S))
        await until(gate.entered)
        first.cancel()
        second = tasks.create_task(thread.call("set", lambda: done.append("second"), timeout_s=NEVER_S))
        await asyncio.sleep(0)
        assert not second.done()
        gate.opened.set()
    assert done == ["first", "second"]


async def test_a_call_whose_caller_is_cancelled_before_its_turn_is_dropped(thread: DriverThread, gate: Gate) -> None:
    done: list[str] = []
    async with asyncio.TaskGroup() as tasks:
        tasks.create_task(thread.call("hang", gate, timeout_s=NEVER_S))
        await until(gate.entered)
        waiting = tasks.create_task(thread.call("set", lambda: done.append("waiting"), timeout_s=NEVER_S))
        await asyncio.sleep(0)
        waiting.cancel()
        gate.opened.set()
    await thread.call("read", lambda: done.append("read"), timeout_s=NEVER_S)
    assert done == ["read"]


async def test_a_call_behind_an_abandoned_one_is_dropped_when_its_caller_goes(thread: DriverThread, gate: Gate) -> None:
    done: list[str] = []
    async with asyncio.TaskGroup() as tasks:
        abandoned = tasks.create_task(thread.call("hang", gate, timeout_s=NEVER_S))
        await until(gate.entered)
        abandoned.cancel()
        with pytest.raises(GpuSuspectError):
            await thread.call("set", lambda: done.append("late"), timeout_s=SOON_S)
        assert not thread.is_stuck  # the abandoned call still has its own time
        gate.opened.set()
    await thread.call("read", lambda: done.append("read"), timeout_s=NEVER_S)
    assert done == ["read"]


async def test_an_overdue_call_makes_every_waiting_one_fail_at_once(thread: DriverThread, gate: Gate) -> None:
    sent = threading.Event()
    messages: list[str] = []

    async def ask(work: Gate | threading.Event) -> None:
        with pytest.raises(GpuSuspectError) as caught:
            await thread.call("read", work if isinstance(work, Gate) else work.set, timeout_s=STARTED_S)
        messages.append(str(caught.value))

    async with asyncio.TaskGroup() as tasks:
        for work in (gate, sent, sent):
            tasks.create_task(ask(work))
    assert "no answer in 1 s" in messages[0]
    assert ["not sent" in message for message in messages] == [False, True, True]
    assert not sent.is_set()


async def test_a_gpu_that_answers_late_is_usable_again_and_it_is_logged(
    thread: DriverThread, gate: Gate, caplog: pytest.LogCaptureFixture
) -> None:
    with pytest.raises(GpuSuspectError):
        await thread.call("read_sample", gate, timeout_s=STARTED_S)
    assert thread.is_stuck
    with caplog.at_level(logging.WARNING):
        gate.opened.set()
        await until_answering(thread)
    assert await thread.call("read", lambda: "well", timeout_s=NEVER_S) == "well"
    assert "GPU-1: read_sample has returned after" in caplog.text


async def test_a_late_failure_is_logged(thread: DriverThread, gate: Gate, caplog: pytest.LogCaptureFixture) -> None:
    def fail_late() -> None:
        gate()
        raise OSError(5, "the board is gone")

    with pytest.raises(GpuSuspectError):
        await thread.call("set_power_limit", fail_late, timeout_s=STARTED_S)
    gate.opened.set()
    await until_answering(thread)
    assert "the board is gone" in caplog.text


async def test_a_closed_thread_takes_no_more_calls(thread: DriverThread) -> None:
    thread.close()
    with pytest.raises(GpuSuspectError, match="the driver is closed"):
        await thread.call("read", lambda: None, timeout_s=NEVER_S)
