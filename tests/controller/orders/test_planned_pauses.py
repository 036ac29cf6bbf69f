"""The pauses that the plan of a run wants: asked for, ended with it, and never against what people have said."""

import asyncio
import math
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager

import pytest

from controller.accounting.ranks import End, Ranks
from controller.orders.pauses import AGAIN_S, BEGIN_TIMEOUT_S, FAILED_S, RunPauses
from controller.runtime.clock import NS_PER_S
from publishers.messages.codec import decode
from publishers.messages.reports import Command
from tests.controller.messages import BOOT_ID, rank_status
from tests.controller.runs.router_bench import NODE, TOPICS
from tests.fakes import KEY, FakeBus, LoopClock

MAX_PAUSE_S = 3_600.0
WHY = "until about 14:00 UTC: the grid is cleaner later"


class PlannedRun:
    """A run whose plan the test makes, and the pauses of its node.

    Attributes:
        barred_s: until when it plans no pause, from each time on at which it was told so [s].
    """

    ended: End | None = None
    pause_fault: tuple[str, str] | None = None

    def __init__(self) -> None:
        self.planned_pause = ""
        self.barred_s: list[float] = []
        self.ranks = Ranks(name="toy", lease_s=60.0)
        self._clock, self._bus, self._is_wanted = LoopClock(), FakeBus(), asyncio.Event()
        self.pauses = RunPauses(
            {KEY: self},
            node=NODE,
            boot_id=BOOT_ID,
            bus=self._bus,
            topics=TOPICS,
            clock=self._clock,
            is_wanted=self._is_wanted,
        )
        self.say()

    def bar_pauses(self, until_s: float) -> None:
        self.barred_s.append(until_s - self._clock.now_s())
        self.planned_pause = ""

    def want(self, why: str) -> None:
        self.planned_pause = why
        self._is_wanted.set()

    def say(self, *, since_s: float | None = None, paused_s: float | None = None) -> None:
        """Let the training say since when it waits."""
        since_ns = None if since_s is None else round(since_s * NS_PER_S)
        status = rank_status(pausable=True, max_pause_s=MAX_PAUSE_S, paused_since_ns=since_ns, paused_s=paused_s)
        self.ranks.on_status(0, status, now_s=self.time_s)

    @property
    def time_s(self) -> float:
        return self._clock.monotonic_ns() / NS_PER_S

    @property
    def commands(self) -> list[Command]:
        return [decode(payload, Command) for payload in self._bus.payloads(TOPICS.run(KEY, "command"))]

    @asynccontextmanager
    async def waiting(self) -> AsyncIterator[float]:
        """Let it be paused by its plan; yield since when it waits [s]."""
        async with asyncio.TaskGroup() as tasks:
            pausing = tasks.create_task(self.pauses.run())
            self.want(WHY)
            await asyncio.sleep(2)
            since_s = self.time_s
            self.say(since_s=since_s)
            await asyncio.sleep(10)
            yield since_s
            pausing.cancel()


async def test_a_plan_pauses_its_run_and_lets_it_go_on() -> None:
    run = PlannedRun()
    async with run.waiting():
        state = run.pauses.state_of(KEY)
        assert (state.state, state.by, state.why) == ("paused", "its plan", WHY)
        assert {(each.command, each.reason, each.for_s) for each in run.commands} == {("pause", WHY, MAX_PAUSE_S)}
        run.want("")
        await asyncio.sleep(2)
        assert (run.commands[-1].command, run.commands[-1].reason) == ("resume", "the plan has it go on")
    assert run.barred_s == []


async def test_who_lets_it_go_on_has_the_last_word() -> None:
    run = PlannedRun()
    async with run.waiting():
        run.pauses.resume(KEY, why="I need it today", by="ada")
        assert run.commands[-1].reason == "ada ends it: I need it today"
    assert run.barred_s == [math.inf]


async def test_who_pauses_it_takes_it_over() -> None:
    run = PlannedRun()
    async with run.waiting() as since_s:
        run.pauses.pause(KEY, why="a new cable", by="bob", for_s=1_800.0)
        run.want("")
        await asyncio.sleep(60)
        assert run.pauses.state_of(KEY).state == "paused"
        await asyncio.sleep(since_s + 1_801 - run.time_s)
        assert run.commands[-1].reason == "1800 s are over"
    assert run.barred_s == []


@pytest.mark.parametrize(("says", "again_s"), [(True, AGAIN_S), (False, FAILED_S)])
async def test_after_a_pause_that_was_taken_over_the_plan_does_not_ask_at_once(says: bool, again_s: float) -> None:
    """The plan wants it to wait on; the pause is over in time, or the training has gone on by itself."""
    run = PlannedRun()
    async with run.waiting() as since_s:
        run.pauses.pause(KEY, why="a minute at most", by="bob", for_s=60.0)
        await asyncio.sleep(since_s + (60.5 if says else 30.0) - run.time_s)
        run.say(paused_s=60.0)
        await asyncio.sleep(2)
        assert run.commands[-1].command == "resume"
    assert run.barred_s == pytest.approx([again_s])


async def test_who_ends_a_pause_that_was_taken_over_has_the_last_word_too() -> None:
    run = PlannedRun()
    async with run.waiting():
        run.pauses.pause(KEY, why="a new cable", by="bob", for_s=1_800.0)
        run.pauses.resume(KEY, why="it works", by="bob")
    assert run.barred_s == [math.inf]


async def test_a_training_that_ends_the_longest_pause_itself_has_not_failed() -> None:
    run = PlannedRun()
    async with run.waiting() as since_s:
        await asyncio.sleep(since_s + MAX_PAUSE_S - run.time_s)
        run.say(paused_s=MAX_PAUSE_S)
        await asyncio.sleep(2)
    assert run.barred_s == pytest.approx([AGAIN_S], abs=1)


async def test_after_the_longest_pause_it_iterates_for_a_while() -> None:
    run = PlannedRun()
    async with run.waiting():
        await asyncio.sleep(MAX_PAUSE_S)
        assert run.commands[-1].command == "resume"
    assert run.barred_s == pytest.approx([AGAIN_S])


async def test_a_training_that_goes_on_by_itself_is_left_alone_for_an_hour() -> None:
    run = PlannedRun()
    async with run.waiting():
        run.say(paused_s=10.0)
        await asyncio.sleep(2)
        assert [each.command for each in run.commands][-1] == "resume"
    assert run.barred_s == pytest.approx([FAILED_S])


async def test_one_that_does_not_wait_is_left_alone_for_an_hour() -> None:
    run = PlannedRun()
    async with asyncio.TaskGroup() as tasks:
        pausing = tasks.create_task(run.pauses.run())
        run.want(WHY)
        await asyncio.sleep(BEGIN_TIMEOUT_S + 2)
        assert run.pauses.state_of(KEY).state == "running"
        pausing.cancel()
    assert run.barred_s == pytest.approx([FAILED_S])


async def test_one_that_cannot_be_paused_is_not_asked() -> None:
    run = PlannedRun()
    run.pause_fault = ("claim_unproven", "this run holds no GPU of this node")
    async with asyncio.TaskGroup() as tasks:
        pausing = tasks.create_task(run.pauses.run())
        run.want(WHY)
        await asyncio.sleep(60)
        pausing.cancel()
    assert run.commands == []
