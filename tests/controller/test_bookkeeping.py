"""The books of a run: how long energy waits for the iterations that go with it."""

import asyncio
from collections.abc import Sequence
from dataclasses import replace
from typing import Any

import numpy as np
import pytest

from controller.bookkeeping import Balance, Bookkeeping
from controller.meter import Meter
from controller.run_account import RunAccount, Slice
from controller.run_log import RankLog
from publishers.wire import Iterations
from tests.controller.messages import iterations, ns
from tests.fakes import MIDNIGHT_S, FakeGpu, FakeLimiter, FixedSignal

TICK_S = 0.1


async def test_an_iteration_of_twelve_minutes_is_no_pause() -> None:
    gpu, signal = FakeGpu(), FixedSignal(kind="energy")
    meter = Meter(
        gpu,
        clock=gpu.clock,
        sample_period_s=TICK_S,
        publish_period_s=5.0,
        signal=signal,
        limiter=FakeLimiter(gpu),
        publish=lambda *_: None,
    )
    books, log = Bookkeeping(clock=gpu.clock, signal=signal), RankLog()

    def hear(message: Iterations) -> list[bool]:
        assert log.append(message, now_ns=gpu.clock.monotonic_ns())
        assert log.begin_ns is not None
        assert log.end_ns is not None
        known_ns = log.begin_ns, log.end_ns
        return [piece.active for piece in books.cut(known_ns, logs=[log], meters={gpu.uuid: meter}, tick_s=TICK_S)]

    async with asyncio.TaskGroup() as tasks:
        reading = tasks.create_task(meter.run())
        await asyncio.sleep(2.05)
        assert all(hear(iterations(0, [1, 2])))
        await asyncio.sleep(720)
        known_ns = ns(0), ns(2)
        assert list(books.cut(known_ns, logs=[log], meters={gpu.uuid: meter}, tick_s=TICK_S)) == []
        pieces = hear(iterations(2, [722], seq=1, first=2))
        reading.cancel()
    assert (len(pieces) > 7_000, all(pieces)) == (True, True)
    assert books.account.energy_j > 0.99 * meter.energy_j


async def running(gpu: FakeGpu, *, duration_s: float) -> Meter:
    """Return the meter of a GPU that was read for a while."""
    meter = Meter(
        gpu,
        clock=gpu.clock,
        sample_period_s=1.0,
        publish_period_s=5.0,
        signal=FixedSignal(kind="energy"),
        limiter=FakeLimiter(gpu),
        publish=lambda *_: None,
    )
    async with asyncio.TaskGroup() as tasks:
        reading = tasks.create_task(meter.run())
        await asyncio.sleep(duration_s)
        reading.cancel()
    return meter


def before(
    cut_s: float,
    *,
    gpus: Sequence[str] = ("GPU-fake-0",),
    signal: tuple[str | None, str | None] = (None, None),
    **totals: Any,  # noqa: ANN401 — the record checks them
) -> Balance:
    """Return the books of a former controller, of GPUs without a counter that drew 300 W."""
    account = RunAccount(energy_j=300.0 * cut_s, duration_s=cut_s, **totals)
    return Balance(account=account, cut_ns=ns(cut_s), counters_j=dict.fromkeys(gpus), signal=signal)


async def test_each_part_of_the_time_without_a_controller_has_the_price_of_its_time() -> None:
    """Four hours, of which the first costs 100 and each other 500; known is the iteration that follows them."""
    gpu, signal = FakeGpu(), FixedSignal(100.0)
    assert signal.series is not None
    values = np.where(signal.series.starts_s < MIDNIGHT_S + 3_600, 100.0, 500.0)
    signal.series = replace(signal.series, values=values)
    await asyncio.sleep(4 * 3_600)
    meter = await running(gpu, duration_s=20.0)
    books, log = Bookkeeping(clock=gpu.clock, signal=signal), RankLog()
    books.go_on_from(before(10.0))
    assert log.append(iterations(4 * 3_600, [4 * 3_600 + 15]), now_ns=gpu.clock.monotonic_ns())
    known_ns = ns(4 * 3_600), ns(4 * 3_600 + 15)
    list(books.cut(known_ns, logs=[log], meters={gpu.uuid: meter}, tick_s=1.0))
    expected = 300.0 * (3_590 * 100.0 + (3 * 3_600 + 15) * 500.0)
    assert books.account.signal_energy == pytest.approx(expected + 300.0 * 10 * 100.0, rel=0.03)


async def test_former_books_wait_a_minute_for_the_signal_that_is_to_price_them() -> None:
    gpu, signal = FakeGpu(), FixedSignal()
    await asyncio.sleep(100)
    meter = await running(gpu, duration_s=20.0)
    books, log = Bookkeeping(clock=gpu.clock, signal=signal), RankLog()
    books.go_on_from(before(10.0, has_signal=True, last_value=100.0))
    assert log.append(iterations(100, [115]), now_ns=gpu.clock.monotonic_ns())

    def pieces() -> list[Slice]:
        return list(books.cut((ns(100), ns(115)), logs=[log], meters={gpu.uuid: meter}, tick_s=1.0))

    assert pieces() == []
    await asyncio.sleep(59)
    assert pieces() == []
    await asyncio.sleep(2)
    assert [piece.active for piece in pieces()][:3] == [False, True, True]


@pytest.mark.parametrize("former", [("price", "EUR/kWh"), ("price", None), ("carbon", "lb/kWh")])
async def test_sums_of_another_signal_are_void_and_what_was_before_has_the_first_value_of_this_one(
    former: tuple[str, str | None],
) -> None:
    gpu, signal = FakeGpu(), FixedSignal(100.0)
    await asyncio.sleep(10)
    meter = await running(gpu, duration_s=20.0)
    books, log = Bookkeeping(clock=gpu.clock, signal=signal), RankLog()
    names = ("energy", "time", "iterations")
    sums: dict[str, Any] = {f"signal_{name}": 9e9 for name in names} | {"last_value": 9e9}
    sums |= {"pause_signal_energy": 9e9, "open_signal_energy": 9e9}
    books.go_on_from(before(10.0, signal=former, has_signal=True, **sums))
    assert log.append(iterations(10, [20, 25]), now_ns=gpu.clock.monotonic_ns())
    list(books.cut((ns(10), ns(25)), logs=[log], meters={gpu.uuid: meter}, tick_s=1.0))
    account = books.account
    assert account.signal_energy == pytest.approx(100.0 * account.energy_j)
    assert account.signal_time == pytest.approx(100.0 * account.duration_s)
    assert account.signal_iterations == pytest.approx(100.0 * account.n_iterations)
    assert account.pause_signal_energy == pytest.approx(100.0 * account.pause_energy_j)
    assert account.open_signal_energy == pytest.approx(100.0 * account.open_energy_j)
    balance = books.balance({gpu.uuid: meter})
    assert balance is not None
    assert balance.signal == ("carbon", "g/kWh")


@pytest.mark.parametrize("former", [(None, None), ("carbon", None), ("carbon", "g/kWh")])
async def test_sums_of_the_same_signal_are_kept_as_are_those_of_which_nobody_said_so(
    former: tuple[str | None, str | None],
) -> None:
    gpu, signal = FakeGpu(), FixedSignal(100.0)
    await asyncio.sleep(10)
    meter = await running(gpu, duration_s=20.0)
    books, log = Bookkeeping(clock=gpu.clock, signal=signal), RankLog()
    books.go_on_from(before(10.0, signal=former, has_signal=True, signal_energy=9e9))
    assert log.append(iterations(10, [20, 25]), now_ns=gpu.clock.monotonic_ns())
    list(books.cut((ns(10), ns(25)), logs=[log], meters={gpu.uuid: meter}, tick_s=1.0))
    assert books.account.signal_energy > 9e9


async def test_former_books_wait_three_heartbeats_for_the_gpus_that_they_are_of() -> None:
    gpu = FakeGpu()
    await asyncio.sleep(100)
    meter = await running(gpu, duration_s=20.0)
    books, log = Bookkeeping(clock=gpu.clock, signal=FixedSignal(kind="energy")), RankLog()
    books.go_on_from(before(10.0, gpus=["GPU-fake-0", "GPU-fake-1"]))
    assert log.append(iterations(100, [115]), now_ns=gpu.clock.monotonic_ns())

    def pieces(*uuids: str) -> list[Slice]:
        meters = dict.fromkeys(uuids, meter)
        return list(books.cut((ns(100), ns(115)), logs=[log], meters=meters, tick_s=1.0))

    await asyncio.sleep(29)
    assert pieces("GPU-fake-0") == []
    await asyncio.sleep(2)
    assert len(pieces("GPU-fake-0")) > 1, "one that never comes is not waited for any longer"
