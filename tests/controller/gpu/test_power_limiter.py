"""The power limiter: journaled before it is written, within bounds, restored, reported.

The actuator at its daily work: on record before it is written, within bounds, and given back.

The news of a limit: all of it is published, what an operator needs is logged.

The mailbox: bounded, and honest about what it dropped.
"""

import asyncio
import logging
from pathlib import Path

import pytest

from controller.config import GpuConfig
from controller.gpu.journal import Journal, JournalEntry, restore_prior_limit
from controller.gpu.power_limiter import QUIET_S, DropOldest, LimitReporter
from controller.ports import Hold, LimitRange, LimitState, Target
from publishers.messages.reports import LimitChange
from tests.controller.gpu.limiter_bench import PRIOR_W, Bench, target
from tests.fakes import MIDNIGHT_S, FakeGpu, LoopClock


class WitnessGpu(FakeGpu):
    """A GPU that looks into the journal on disk at the moment in which it is written."""

    def __init__(self, state_dir: Path) -> None:
        super().__init__()
        self.requested_power_limit_w = PRIOR_W
        self.state_dir = state_dir
        self.seen: list[JournalEntry | None] = []

    async def set_power_limit(self, power_limit_w: float) -> None:
        self.seen.append(Journal.read(self.state_dir).entries.get(self.uuid))
        await super().set_power_limit(power_limit_w)


async def test_the_prior_limit_is_on_disk_before_the_first_write(tmp_path: Path) -> None:
    gpu = WitnessGpu(tmp_path)
    bench = Bench(tmp_path, gpu=gpu)
    async with bench.working():
        await bench.ask(200.0)
        await bench.ask(150.0)
    first, second = gpu.seen
    assert first is not None
    assert (first.prior_power_limit_w, first.written_power_limits_w) == (PRIOR_W, (PRIOR_W, 200.0))
    assert second is not None
    assert (second.prior_power_limit_w, second.written_power_limits_w) == (PRIOR_W, (200.0, 150.0))


async def test_a_kill_between_journal_and_write_is_mended_at_the_next_start(tmp_path: Path) -> None:
    bench = Bench(tmp_path)
    async with bench.working():
        await bench.ask(250.0)
        bench.gpu.hold = asyncio.Event()
        await bench.ask(200.0)
        assert bench.gpu.requested_power_limit_w == 250.0, "the write is in mid-air"
    bench.gpu.hold = None
    result = await restore_prior_limit(bench.gpu, Journal.open(tmp_path))
    assert result is not None
    assert result.code == "restored"
    assert bench.gpu.requested_power_limit_w == PRIOR_W
    assert not bench.on_record()


class DeafGpu(FakeGpu):
    """A GPU that accepts a write and then answers no read until `heard` is set."""

    def __init__(self) -> None:
        super().__init__()
        self.requested_power_limit_w = PRIOR_W
        self.heard = asyncio.Event()
        self.heard.set()

    async def set_power_limit(self, power_limit_w: float) -> None:
        await super().set_power_limit(power_limit_w)
        await self.heard.wait()


async def test_a_kill_between_write_and_read_back_is_mended_at_the_next_start(tmp_path: Path) -> None:
    gpu = DeafGpu()
    bench = Bench(tmp_path, gpu=gpu)
    async with bench.working():
        gpu.heard.clear()
        await bench.ask(200.0)
        assert bench.state.requested_power_limit_w == PRIOR_W, "the write was not read back"
    gpu.heard.set()
    assert gpu.requested_power_limit_w == 200.0
    result = await restore_prior_limit(gpu, Journal.open(tmp_path))
    assert result is not None
    assert result.code == "restored"
    assert gpu.requested_power_limit_w == PRIOR_W


async def test_a_released_gpu_gets_its_prior_limit_not_its_default(tmp_path: Path) -> None:
    bench = Bench(tmp_path)
    async with bench.working():
        await bench.ask(200.0)
        assert (bench.hold, bench.on_record()) == (Hold.HELD, True)
        await bench.release()
    assert bench.written_w == [200.0, PRIOR_W]
    assert (bench.hold, bench.on_record()) == (Hold.FREE, False)


async def test_each_change_is_published_with_its_reason(tmp_path: Path) -> None:
    bench = Bench(tmp_path)
    bench.gpu.out_of_band_power_limit_w = 190.0
    async with bench.working():
        await bench.ask(200.0)
        await bench.release()
    held, released = bench.changes
    assert (held.reason, held.detail, held.job, held.signal) == ("planned", "a test wants it", "resnet50", "410 g/kWh")
    assert (held.requested_power_limit_w, held.enforced_power_limit_w) == (200.0, 190.0)
    assert held.time_s == MIDNIGHT_S + 1
    assert (released.reason, released.requested_power_limit_w) == ("run_finished", PRIOR_W)
    assert released.previous_power_limit_w == 200.0


async def test_what_the_job_really_gets_is_the_enforced_limit(tmp_path: Path) -> None:
    bench = Bench(tmp_path)
    bench.gpu.out_of_band_power_limit_w = 190.0
    async with bench.working():
        await bench.ask(200.0)
        assert (bench.hold, bench.state.enforced_power_limit_w) == (Hold.HELD, 190.0)


async def test_the_same_order_twice_is_written_and_told_once(tmp_path: Path) -> None:
    bench = Bench(tmp_path)
    async with bench.working():
        await bench.ask(200.0)
        await bench.ask(200.2)
    assert bench.written_w == [200.0]
    assert bench.reasons == ["planned"]


async def test_an_order_for_the_limit_that_holds_already_writes_nothing(tmp_path: Path) -> None:
    bench = Bench(tmp_path)
    async with bench.working():
        await bench.ask(PRIOR_W)
        assert (bench.hold, bench.on_record()) == (Hold.HELD, False)
        await bench.release()
    assert bench.written_w == []


async def test_only_the_latest_of_several_orders_is_carried_out(tmp_path: Path) -> None:
    bench = Bench(tmp_path)
    async with bench.working():
        for limit_w in (250.0, 225.0, 175.0):
            bench.actuator.request(target(limit_w))
        await bench.ask(200.0)
    assert bench.written_w == [200.0]


async def test_the_prior_limit_is_read_anew_at_each_hold(tmp_path: Path) -> None:
    bench = Bench(tmp_path)
    async with bench.working():
        await bench.ask(200.0)
        await bench.release()
        bench.gpu.set_externally(260.0)
        await bench.ask(200.0)
        await bench.release()
    assert bench.written_w == [200.0, PRIOR_W, 200.0, 260.0]


@pytest.mark.parametrize(
    ("config", "asked_w", "given_w"),
    [
        (GpuConfig(), 290.0, PRIOR_W),
        (GpuConfig(), 50.0, 100.0),
        (GpuConfig(allow_above_prior=True), 290.0, 290.0),
        (GpuConfig(allow_above_prior=True), 999.0, 300.0),
        (GpuConfig(allow_above_prior=True, max_power_limit_w=285.0), 999.0, 285.0),
        (GpuConfig(max_power_limit_w=240.0), 290.0, 240.0),
        (GpuConfig(min_power_limit_w=180.0), 50.0, 180.0),
        (GpuConfig(min_power_limit_w=290.0), 50.0, PRIOR_W),
        (GpuConfig(min_power_limit_w=50.0, max_power_limit_w=900.0), 10.0, 100.0),
    ],
)
async def test_a_limit_stays_within_the_bounds_of_hardware_operator_and_prior_limit(
    tmp_path: Path, config: GpuConfig, asked_w: float, given_w: float
) -> None:
    bench = Bench(tmp_path, config=config)
    async with bench.working():
        await bench.ask(200.0)
        await bench.ask(asked_w)
        assert bench.gpu.requested_power_limit_w == given_w
        assert bench.state.floor_power_limit_w <= given_w <= bench.state.ceiling_power_limit_w
        await bench.release()
    assert bench.gpu.requested_power_limit_w == PRIOR_W


async def test_what_a_killed_controller_left_is_still_held_with_its_true_prior_limit(tmp_path: Path) -> None:
    first = Bench(tmp_path)
    async with first.working():
        await first.ask(200.0)
    second = Bench(tmp_path, gpu=first.gpu)
    async with second.working():
        await second.ask(150.0)
        await second.release()
    assert second.gpu.requested_power_limit_w == PRIOR_W


async def test_the_range_of_a_reloaded_driver_holds_from_the_next_hold_on(tmp_path: Path) -> None:
    bench = Bench(tmp_path)
    async with bench.working():
        await bench.ask(200.0)
        await bench.release()
        bench.gpu.range = LimitRange(min_power_limit_w=150.0, max_power_limit_w=250.0, default_power_limit_w=250.0)
        bench.gpu.set_externally(250.0)
        await bench.ask(120.0)
        assert bench.written_w[-1] == 150.0
        await bench.release()
    assert bench.gpu.requested_power_limit_w == 250.0


async def test_a_stopping_controller_gives_the_limit_back_and_says_so(tmp_path: Path) -> None:
    bench = Bench(tmp_path)
    async with bench.working():
        await bench.ask(200.0)
    await bench.actuator.stop()
    assert bench.written_w == [200.0, PRIOR_W]
    assert bench.reasons == ["planned", "controller_stopped"]
    assert not bench.on_record()


async def test_stopping_leaves_a_gpu_alone_that_nobody_held(tmp_path: Path) -> None:
    bench = Bench(tmp_path)
    async with bench.working():
        pass
    await bench.actuator.stop()
    assert (bench.written_w, bench.changes) == ([], [])


async def test_stopping_before_the_first_look_is_harmless(tmp_path: Path) -> None:
    bench = Bench(tmp_path)
    await bench.actuator.stop()
    assert (bench.written_w, bench.changes, bench.actuator.state) == ([], [], None)


TARGET = Target(power_limit_w=200.0, reason="refining", detail="tries out", job="resnet50", signal="100 g/kWh")


def state(power_limit_w: float) -> LimitState:
    """Return how a held limit stands."""
    return LimitState(
        hold=Hold.HELD,
        prior_power_limit_w=300.0,
        floor_power_limit_w=100.0,
        ceiling_power_limit_w=300.0,
        requested_power_limit_w=power_limit_w,
        enforced_power_limit_w=power_limit_w,
        since_ns=0,
    )


async def test_limits_for_one_reason_are_all_published_and_logged_once_in_a_while(
    caplog: pytest.LogCaptureFixture,
) -> None:
    caplog.set_level(logging.INFO)
    clock, published = LoopClock(), list[LimitChange]()
    news = LimitReporter("GPU-1", clock=clock, publish=lambda _, change: published.append(change))
    for number in range(20):
        news.tell("refining", "tries out", state=state(200.0 + number), target=TARGET)
        await clock.sleep_until(clock.now_s() + 2.0)
    assert len(published) == 20
    assert len(caplog.messages) == 1
    await clock.sleep_until(clock.now_s() + QUIET_S)
    news.tell("refining", "tries out", state=state(180.0), target=TARGET)
    assert len(caplog.messages) == 2, "still so, ten minutes later"


async def test_another_reason_is_logged_at_once(caplog: pytest.LogCaptureFixture) -> None:
    caplog.set_level(logging.INFO)
    news = LimitReporter("GPU-1", clock=LoopClock(), publish=lambda *_: None)
    for reason in ("refining", "slowdown_signal", "refining", "another_writer"):
        news.tell(reason, "because", state=state(200.0), target=TARGET)
    assert [message.split(": ")[2] for message in caplog.messages] == [
        "refining",
        "slowdown_signal",
        "refining",
        "another_writer",
    ]


async def test_the_same_twice_is_told_once() -> None:
    published = list[LimitChange]()
    news = LimitReporter("GPU-1", clock=LoopClock(), publish=lambda _, change: published.append(change))
    for _ in range(3):
        news.tell("refining", "tries out", state=state(200.0), target=TARGET)
    assert [(change.power_limit_w, change.previous_power_limit_w) for change in published] == [(200.0, None)]


async def test_items_come_out_in_the_order_in_which_they_went_in() -> None:
    box = DropOldest[int](3)
    for item in (1, 2, 3):
        box.put(item)
    assert [await box.get() for _ in range(3)] == [1, 2, 3]
    assert box.dropped == 0


def test_a_full_box_drops_its_oldest_and_counts_it() -> None:
    box = DropOldest[int](2)
    for item in range(5):
        box.put(item)
    assert (len(box), box.drain(), box.dropped) == (2, [3, 4], 3)
    assert len(box) == 0


async def test_a_box_of_one_holds_the_latest() -> None:
    box = DropOldest[str](1)
    box.put("old")
    box.put("new")
    assert await box.get() == "new"


async def test_who_waits_gets_the_item_that_comes_later() -> None:
    box = DropOldest[str](1)
    asyncio.get_running_loop().call_later(5.0, box.put, "late")
    assert await box.get() == "late"
    assert asyncio.get_running_loop().time() == 5.0


async def test_a_box_that_was_drained_makes_the_next_reader_wait() -> None:
    box = DropOldest[str](1)
    box.put("gone")
    box.drain()
    asyncio.get_running_loop().call_later(5.0, box.put, "late")
    async with asyncio.timeout(10):
        assert await box.get() == "late"


async def test_a_reader_that_gives_up_leaves_the_box_usable() -> None:
    box = DropOldest[str](1)
    try:
        async with asyncio.timeout(1):
            await box.get()
    except TimeoutError:
        box.put("after")
    assert await box.get() == "after"
