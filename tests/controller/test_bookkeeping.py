"""The books of a run: how long energy waits for the iterations that go with it."""

import asyncio

from controller.bookkeeping import Bookkeeping
from controller.meter import Meter
from controller.run_log import RankLog
from publishers.wire import Iterations
from tests.controller.messages import iterations, ns
from tests.fakes import FakeGpu, FakeLimiter, FixedSignal

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
