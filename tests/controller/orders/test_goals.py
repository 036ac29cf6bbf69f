"""The goals that people set for runs: set, replaced, ended and kept over a restart; what cannot be is refused."""

import asyncio
import logging
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from controller.control.curve_learning import Planned
from controller.control.gpu_group import GpuGroup
from controller.errors import OrderRefusedError
from controller.orders.goals import RunGoals
from controller.orders.standing import READ_BACK_S, content_of
from controller.ports import Blocked, Hold
from controller.ports.orders import MAX_AHEAD_S, Goal, GoalPreview, GoalState
from publishers.messages.codec import decode
from publishers.messages.reports import RunSchedule
from publishers.messages.topics import RunKey
from tests.controller.control.control_bench import FULL, begin
from tests.controller.messages import rank_status
from tests.controller.orders.test_pins import PinBench
from tests.controller.runs.router_bench import TOPICS, limit_state
from tests.fakes import KEY, MIDNIGHT_S, LoopClock

WHY = "a demo at two"
GOAL = Goal(max_slowdown_ratio=1.2, set_at_s=MIDNIGHT_S, until_s=MIDNIGHT_S + 3_600, why=WHY, by="ada")


class GoalBench(PinBench):
    """A router, and the pins and goals of its runs."""

    def __init__(self, state_dir: Path, *uuids: str, knows_curve: bool = True) -> None:
        super().__init__(state_dir, *uuids)
        self.knows_curve = knows_curve
        self.goals = RunGoals(state_dir, clock=self.clock)
        self.goals.runs = self.router.runs
        self.router._goals = self.goals

    @asynccontextmanager
    async def training(self, **status: Any) -> AsyncIterator[None]:  # noqa: ANN401 — the record checks them
        """Let a run train whose curve is known."""
        with self.goals:
            async with super().training(**status), asyncio.TaskGroup() as tasks:
                aiming = tasks.create_task(self.goals.run())
                if self.knows_curve:
                    begin(self.training_run()._leader.limits, FULL)
                    await self.train(1)
                    self.write()
                yield
                aiming.cancel()

    def aim(self, **changes: Any) -> GoalState:  # noqa: ANN401 — hostile ones, too
        terms: dict[str, Any] = {"max_slowdown_ratio": 1.2, "why": WHY, "by": "ada"}
        return self.goals.aim(KEY, **terms | changes)

    def goal(self) -> GoalState:
        return self.goals.state_of(KEY)


async def test_a_goal_is_done_when_the_plan_follows_it_and_every_gpu_was_read_back(tmp_path: Path) -> None:
    bench = GoalBench(tmp_path, "GPU-0", "GPU-1")
    async with bench.training(gpus=["GPU-0", "GPU-1"]):
        assert bench.goal() == GoalState(state="none")
        before_w = bench.limiters[0].targets[-1].power_limit_w
        asked = bench.aim()
        assert (asked.state, asked.max_slowdown_ratio, asked.by) == ("asked", 1.2, "ada")
        await bench.train(1)
        after_w = bench.limiters[0].targets[-1].power_limit_w
        assert after_w < before_w
        assert bench.goal().state == "asked", "it is requested, and not read back"
        bench.write()
        assert (bench.goal().state, bench.goal().enforced_power_limit_w) == ("done", after_w)
        bench.limiters[1].state = replace(limit_state(Hold.SUSPECT), reason="gpu_suspect", detail="no answer")
        assert (bench.goal().state, bench.goal().detail) == ("failed", "no answer")


async def test_a_goal_waits_for_the_curve_and_for_the_end_of_a_pin(tmp_path: Path) -> None:
    bench = GoalBench(tmp_path, knows_curve=False)
    async with bench.training():
        bench.aim()
        await bench.train(1)
        assert (bench.goal().state, "not measured yet" in bench.goal().detail) == ("waiting", True)
        bench.pin(180.0, for_s=20.0)
        await bench.train(1)
        assert bench.goal().detail.startswith("pinned to 180 W by ada until")
        await bench.train(round(READ_BACK_S) + 30)
        assert bench.goal().state == "waiting", "what waits has not failed"


async def test_a_budget_ends_at_its_time_and_a_reset_says_who_has_done_so(tmp_path: Path) -> None:
    bench = GoalBench(tmp_path)
    async with bench.training():
        bench.aim(until_s=bench.clock.now_s() + 20.0)
        await bench.train(10)
        assert bench.training_run().goal is not None
        await bench.train(15)
        assert bench.goal() == GoalState(state="none", ended_because="its time is over")
        assert bench.training_run().goal is None
        bench.aim(max_slowdown_ratio=None, deadline_s=bench.clock.now_s() + 3_600.0)
        state = bench.goals.reset(KEY, why="the demo is off", by="bob")
        assert state == GoalState(state="none", ended_because="bob ends it: the demo is off")


async def test_the_later_goal_counts_and_both_are_logged(tmp_path: Path, caplog: pytest.LogCaptureFixture) -> None:
    caplog.set_level(logging.INFO)
    bench = GoalBench(tmp_path)
    async with bench.training():
        bench.aim()
        later = bench.aim(max_slowdown_ratio=None, deadline_s=MIDNIGHT_S + 86_400.0, by="bob", why="tomorrow")
        assert (later.deadline_s, later.max_slowdown_ratio, later.by) == (MIDNIGHT_S + 86_400.0, None, "bob")
    assert (
        "a deadline at 2023-11-16 00:00 UTC by bob: tomorrow; it replaces: a time budget of 20 % by ada" in caplog.text
    )


async def test_the_schedule_says_at_once_who_has_set_a_goal_also_where_it_is_the_same(tmp_path: Path) -> None:
    bench = GoalBench(tmp_path)
    async with bench.training():
        limits = bench.training_run()._leader.limits
        assert isinstance(limits.state, Planned)
        limits.state = replace(limits.state, settings=replace(limits.state.settings, n_blocks=0))  # nothing to try out
        await bench.train(2)
        for by in ("ada", "bob"):
            bench.aim(by=by)
            await bench.train(2)
            told = decode(bench.bus.payloads(TOPICS.run(KEY, "schedule"))[-1], RunSchedule)
            assert (told.goal_by, told.max_slowdown_ratio) == (by, 1.2)


async def test_a_goal_goes_on_after_a_restart_and_ends_with_its_run(tmp_path: Path) -> None:
    before = GoalBench(tmp_path)
    async with before.training():
        before.aim()
    after = GoalBench(tmp_path)
    async with after.training():
        assert (after.goal().by, after.goal().max_slowdown_ratio) == ("ada", 1.2)
        assert after.training_run().goal is not None
        after.say("status", rank_status(state="finished"))
        await asyncio.sleep(0)
        assert after.goals.goal_of(KEY) is None
    assert not (tmp_path / "goals.json").exists()


async def test_a_later_run_of_the_same_name_does_not_inherit_a_goal_by_a_restart(tmp_path: Path) -> None:
    before = GoalBench(tmp_path)
    async with before.training():
        before.aim()
    after = GoalBench(tmp_path)
    async with after.training(pid=4_711, started_at_s=before.clock.now_s() + 60.0):
        assert after.goal() == GoalState(state="none", ended_because="a later run has its name")


@pytest.mark.parametrize(
    "content",
    [
        b"[]",
        content_of("pins", {KEY: GOAL}),
        content_of("goals", {KEY: GOAL})[:-20],
        content_of("goals", {KEY: GOAL}).replace(b"1.2", b"9.0"),
        content_of("goals", {KEY: replace(GOAL, max_slowdown_ratio=0.5)}),
        content_of("goals", {KEY: replace(GOAL, until_s=1e15)}),
    ],
)
async def test_a_damaged_file_is_told_and_changes_no_goal(
    tmp_path: Path, content: bytes, caplog: pytest.LogCaptureFixture
) -> None:
    (tmp_path / "goals.json").write_bytes(content)
    bench = GoalBench(tmp_path)
    with bench.goals:
        assert bench.goals.goal_of(KEY) is None
    assert "ignoring unreadable goals; none is in force" in caplog.text


@pytest.mark.parametrize(
    ("changes", "reason"),
    [
        ({"max_slowdown_ratio": 0.99}, "bad_goal"),
        ({"max_slowdown_ratio": float("nan")}, "bad_goal"),
        ({"max_slowdown_ratio": float("inf")}, "bad_goal"),
        ({"max_slowdown_ratio": 11.0}, "bad_goal"),
        ({"max_slowdown_ratio": None}, "bad_goal"),
        ({"deadline_s": MIDNIGHT_S + 7_200.0}, "bad_goal"),
        ({"max_slowdown_ratio": None, "deadline_s": MIDNIGHT_S + 7_200.0, "until_s": MIDNIGHT_S + 60.0}, "bad_goal"),
        ({"max_slowdown_ratio": None, "deadline_s": MIDNIGHT_S - 1.0}, "bad_time"),
        ({"max_slowdown_ratio": None, "deadline_s": float("nan")}, "bad_time"),
        ({"max_slowdown_ratio": None, "deadline_s": MIDNIGHT_S + 2 * MAX_AHEAD_S}, "bad_time"),
        ({"until_s": MIDNIGHT_S - 1.0}, "bad_time"),
        ({"until_s": float("inf")}, "bad_time"),
        ({"why": " "}, "bad_why"),
        ({"why": "two\nlines"}, "bad_why"),
    ],
)
async def test_what_is_no_goal_is_refused(tmp_path: Path, changes: dict[str, Any], reason: str) -> None:
    bench = GoalBench(tmp_path)
    async with bench.training():
        with pytest.raises(OrderRefusedError) as refusal:
            bench.aim(**changes)
        assert refusal.value.reason == reason
        assert bench.goal().state == "none"


async def test_a_run_that_is_not_here_or_not_ours_is_refused(tmp_path: Path) -> None:
    bench = GoalBench(tmp_path)
    async with bench.training():
        await bench.say_and_settle("status", rank_status(run="run-2", pid=77), run="run-2")
        for run, reason in (("run-9", "unknown_run"), ("run-2", "claim_unproven")):
            with pytest.raises(OrderRefusedError) as refusal:
                bench.goals.aim(RunKey(KEY.user, KEY.job, run), max_slowdown_ratio=1.2, why=WHY, by="ada")
            assert refusal.value.reason == reason
        bench.limiters[0].state = replace(
            limit_state(Hold.OBSERVING), reason="no_permission", detail="it may not be set"
        )
        with pytest.raises(OrderRefusedError, match="it may not be set"):
            bench.goals.preview(KEY, max_slowdown_ratio=1.2)


async def test_a_preview_says_what_will_be_and_changes_nothing(tmp_path: Path) -> None:
    bench = GoalBench(tmp_path)
    async with bench.training():
        now_w = bench.limiters[0].targets[-1].power_limit_w
        seen = bench.goals.preview(KEY, max_slowdown_ratio=1.2)
        assert (seen.power_limit_w, bench.goal().state) == (now_w, "none")
        assert seen.sentence.startswith(f"with a time budget of 20 % from now on its limit goes from {now_w:g} to ")
        late = bench.goals.preview(KEY, deadline_s=bench.clock.now_s() + 3_600)
        assert "(length of the run unknown; no plan)" in late.sentence
        bench.pin(180.0)
        await bench.train(1)
        pinned = bench.goals.preview(KEY, max_slowdown_ratio=1.2).sentence
        assert "goes from" not in pinned
        assert ", after its pin" in pinned


async def test_an_exempt_run_has_its_prior_limit_until_its_time(tmp_path: Path) -> None:
    bench = GoalBench(tmp_path)
    async with bench.training():
        bench.aim()
        until_s = bench.clock.now_s() + 30.0
        bench.pins.pin(KEY, power_limit_w=None, until_s=until_s, why=WHY, by="ada")
        await bench.train(1)
        target = bench.limiters[0].targets[-1]
        assert (target.power_limit_w, target.reason) == (280.0, "pinned")
        assert target.detail.startswith("exempt, at its prior limit, by ada until 2023-11-15 00:0")
        bench.write()
        assert (bench.state().state, bench.state().power_limit_w, bench.state().applied_power_limit_w) == (
            "done",
            None,
            280.0,
        )
        await bench.train(35)
        assert (bench.state().state, bench.limiters[0].targets[-1].power_limit_w < 280.0) == ("none", True)


async def test_an_exempt_run_stays_so_after_a_restart(tmp_path: Path) -> None:
    before = GoalBench(tmp_path)
    async with before.training():
        before.pins.pin(KEY, power_limit_w=None, until_s=before.clock.now_s() + 3_600.0, why=WHY, by="ada")
    after = GoalBench(tmp_path, knows_curve=False)
    async with after.training():
        assert after.limiters[0].targets[0].detail.startswith("exempt, at its prior limit")


class UnprofiledRun:
    """A run that cannot be profiled."""

    ended, order_fault, has_planned, is_led_here, started_at_s = None, None, False, True, MIDNIGHT_S
    limit_reason = Blocked(reason="not_profiled", detail="the run is not profiled: it has too few iterations")

    def __init__(self) -> None:
        self.gpus = GpuGroup()
        self.goal: Goal | None = None

    def preview_goal(self, _: Goal) -> GoalPreview:
        return GoalPreview()


async def test_of_a_run_that_cannot_be_profiled_a_goal_is_not_said_to_be_done(tmp_path: Path) -> None:
    goals, run = RunGoals(tmp_path, clock=LoopClock()), UnprofiledRun()
    goals.runs = {KEY: run}
    goals.aim(KEY, max_slowdown_ratio=1.2, why=WHY, by="ada")
    run.goal = goals.goal_of(KEY)
    assert (goals.state_of(KEY).state, goals.state_of(KEY).detail) == ("failed", run.limit_reason.detail)
    assert "it has no curve yet" in goals.preview(KEY, max_slowdown_ratio=1.2).sentence
