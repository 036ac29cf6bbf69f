"""The pauses that people ask for reach the training, are renewed and ended; what is no run of ours is refused."""

import asyncio
import logging
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from pathlib import Path
from typing import Any

import pytest

from controller.errors import PauseRefusedError
from controller.orders.pauses import BEGIN_TIMEOUT_S, LEASE_S, RunPauses
from controller.ports.orders import PauseState
from controller.runtime.clock import NS_PER_S
from publishers.messages.codec import decode
from publishers.messages.reports import Command
from publishers.messages.topics import RunKey
from tests.controller.messages import BOOT_ID, rank_status
from tests.controller.runs.router_bench import NODE, SETTLE_S, TOPICS, RouterBench
from tests.fakes import KEY

PAUSABLE = {"pausable": True, "max_pause_s": 300.0}


class PauseBench(RouterBench):
    """A router, and the pauses of its runs."""

    def __init__(self, state_dir: Path) -> None:
        super().__init__(state_dir)
        self.pauses = RunPauses(
            self.router.runs, node=NODE, boot_id=BOOT_ID, bus=self.bus, topics=TOPICS, clock=self.clock
        )

    @asynccontextmanager
    async def training(self, **status: Any) -> AsyncIterator[None]:  # noqa: ANN401 — the record checks them
        """Let a run train that says this in its status."""
        async with self.working(), asyncio.TaskGroup() as tasks:
            pausing = tasks.create_task(self.pauses.run())
            await self.say_and_settle("status", rank_status(**PAUSABLE | status))
            yield
            pausing.cancel()

    def say_status(self, **changes: Any) -> None:  # noqa: ANN401 — the record checks them
        self.say("status", rank_status(**PAUSABLE | changes))

    def ask(self, for_s: float | None = 120.0, why: str = "the grid is short of power") -> PauseState:
        return self.pauses.pause(KEY, why=why, by="ada", for_s=for_s)

    def commands(self) -> list[Command]:
        return [decode(payload, Command) for payload in self.bus.payloads(TOPICS.run(KEY, "command"))]

    def words(self) -> list[str]:
        return [command.command for command in self.commands()]

    def left_s(self, command: Command) -> float:
        assert command.until_ns is not None
        return (command.until_ns - self.clock.monotonic_ns()) / NS_PER_S


async def test_a_run_is_paused_when_the_training_says_so(tmp_path: Path) -> None:
    bench = PauseBench(tmp_path)
    async with bench.training():
        assert bench.pauses.state_of(KEY).state == "running"
        assert bench.ask().state == "asked"
        (command,) = bench.commands()
        assert (command.command, command.reason, command.node) == ("pause", "the grid is short of power", NODE)
        assert (command.boot_id, RunKey(command.user or "", command.job or "", command.run or "")) == (BOOT_ID, KEY)
        assert (bench.left_s(command), command.for_s) == (LEASE_S, 120.0)
        bench.say_status(paused_since_ns=bench.clock.monotonic_ns())
        await asyncio.sleep(20)
        state = bench.pauses.state_of(KEY)
        assert (state.state, state.paused_for_s, state.ends_in_s, state.by) == ("paused", 20.0, 100.0, "ada")


async def test_it_is_asked_again_so_that_it_lasts_and_under_one_id(tmp_path: Path) -> None:
    bench = PauseBench(tmp_path)
    async with bench.training():
        bench.ask()
        bench.say_status(paused_since_ns=bench.clock.monotonic_ns())
        for _ in range(5):
            await asyncio.sleep(10)
            assert bench.left_s(bench.commands()[-1]) >= LEASE_S - 11
    assert len({command.pause_id for command in bench.commands()}) == 1


async def test_it_ends_after_the_time_that_was_asked_for(tmp_path: Path) -> None:
    bench = PauseBench(tmp_path)
    async with bench.training():
        await asyncio.sleep(5)
        bench.ask(for_s=40.0)
        await asyncio.sleep(30)  # an iteration takes so long
        bench.say_status(paused_since_ns=bench.clock.monotonic_ns())
        await asyncio.sleep(38)
        assert set(bench.words()) == {"pause"}
        assert bench.left_s(bench.commands()[-1]) <= 2.0, "no message holds longer than the pause"
        await asyncio.sleep(4)
        assert bench.words()[-1] == "resume"
        bench.say_status(paused_s=40.0)
        state = bench.pauses.state_of(KEY)
        assert (state.state, state.paused_s, state.ended_because) == ("running", 40.0, "40 s are over")


async def test_a_resume_goes_out_at_once(tmp_path: Path) -> None:
    bench = PauseBench(tmp_path)
    async with bench.training():
        bench.ask()
        bench.say_status(paused_since_ns=bench.clock.monotonic_ns())
        await asyncio.sleep(2)
        state = bench.pauses.resume(KEY, why="enough", by="bob")
        assert bench.commands()[-1].command == "resume"
        assert bench.commands()[-1].pause_id == bench.commands()[0].pause_id
        assert state.state == "paused", "until the training says that it goes on"
        bench.say_status()
        assert bench.pauses.state_of(KEY).ended_because == "bob ends it: enough"


async def test_to_resume_a_run_that_is_not_paused_says_nothing_to_it(tmp_path: Path) -> None:
    bench = PauseBench(tmp_path)
    async with bench.training():
        assert bench.pauses.resume(KEY, why="", by="bob").state == "running"
    assert bench.commands() == []


async def test_a_second_request_changes_the_present_pause(tmp_path: Path) -> None:
    bench = PauseBench(tmp_path)
    async with bench.training():
        bench.ask(for_s=60.0)
        bench.say_status(paused_since_ns=bench.clock.monotonic_ns())
        await asyncio.sleep(10)
        assert bench.ask(for_s=None).ends_in_s == 290.0
        assert bench.ask(for_s=5.0).ended_because == "5 s are over"
    assert len({command.pause_id for command in bench.commands()}) == 1
    assert bench.words()[-1] == "resume"


async def test_what_never_begins_is_withdrawn(tmp_path: Path) -> None:
    bench = PauseBench(tmp_path)
    async with bench.training():
        bench.ask()
        for _ in range(round(BEGIN_TIMEOUT_S / 20) + 1):
            await asyncio.sleep(20)
            bench.say_status()
        assert bench.words()[-1] == "resume"
        assert "the training has not paused within 600 s" in bench.pauses.state_of(KEY).ended_because


async def test_a_training_that_goes_on_by_itself_is_not_asked_again(tmp_path: Path) -> None:
    bench = PauseBench(tmp_path)
    async with bench.training():
        bench.ask()
        bench.say_status(paused_since_ns=bench.clock.monotonic_ns())
        await asyncio.sleep(5)
        bench.say_status(paused_s=5.0)
        await asyncio.sleep(30)
        assert bench.words().count("resume") == 1
        assert bench.words()[-1] == "resume"
        assert bench.pauses.state_of(KEY).state == "running"


async def test_the_end_of_a_former_pause_that_is_still_to_be_told_is_not_this_ones(tmp_path: Path) -> None:
    bench = PauseBench(tmp_path)
    async with bench.training():
        bench.ask()
        bench.say_status(paused_since_ns=bench.clock.monotonic_ns())
        await asyncio.sleep(5)
        bench.pauses.resume(KEY, why="", by="ada")
        bench.ask()
        bench.say_status(paused_s=5.0)
        await asyncio.sleep(5)
        assert bench.pauses.state_of(KEY).state == "asked"


async def test_the_controller_lets_every_training_go_on_when_it_stops(tmp_path: Path) -> None:
    bench = PauseBench(tmp_path)
    async with bench.training():
        bench.ask()
        bench.say_status(paused_since_ns=bench.clock.monotonic_ns())
        await asyncio.sleep(5)
    assert bench.commands()[-1].command == "resume"
    assert bench.commands()[-1].reason == "the controller is stopping"


async def test_a_run_that_ends_is_not_asked_any_more(tmp_path: Path) -> None:
    bench = PauseBench(tmp_path)
    async with bench.training():
        bench.ask()
        bench.say("status", rank_status(state="finished"))
        await asyncio.sleep(60)
        assert bench.words() == ["pause", "resume"]
        with pytest.raises(PauseRefusedError, match="no such run") as refused:
            bench.pauses.state_of(KEY)
        assert refused.value.reason == "unknown_run"


async def test_a_claim_that_is_lost_ends_the_pause(tmp_path: Path) -> None:
    bench = PauseBench(tmp_path)
    async with bench.training():
        bench.ask()
        bench.say_status(paused_since_ns=bench.clock.monotonic_ns())
        await asyncio.sleep(2)
        bench.training_run().rejections[0] = "shared"
        await asyncio.sleep(2)
        assert bench.words()[-1] == "resume"
        assert "another tenant computes" in bench.pauses.state_of(KEY).ended_because
        with pytest.raises(PauseRefusedError) as refused:
            bench.ask()
        assert refused.value.reason == "claim_unproven"


@pytest.mark.parametrize(
    ("status", "for_s", "reason"),
    [
        ({"pausable": False, "max_pause_s": None}, 10.0, "not_pausable"),
        ({}, 301.0, "too_long"),
        ({"gpus": ["GPU-of-nobody"]}, 10.0, "claim_unproven"),
    ],
)
async def test_what_cannot_be_is_refused_and_nothing_is_sent(
    tmp_path: Path, status: dict[str, Any], for_s: float, reason: str
) -> None:
    bench = PauseBench(tmp_path)
    async with bench.training(**status):
        with pytest.raises(PauseRefusedError) as refused:
            bench.ask(for_s)
        assert refused.value.reason == reason
        await asyncio.sleep(2)
    assert bench.commands() == []


async def test_a_run_whose_rank_0_is_elsewhere_is_paused_there(tmp_path: Path) -> None:
    bench = PauseBench(tmp_path)
    async with bench.working():
        bench.say("status", rank_status(world_size=2, **PAUSABLE), rank=1)
        await asyncio.sleep(SETTLE_S)
        with pytest.raises(PauseRefusedError, match="controller of that node") as refused:
            bench.ask()
    assert refused.value.reason == "not_leader"


async def test_who_asked_and_why_is_in_the_log(tmp_path: Path, caplog: pytest.LogCaptureFixture) -> None:
    bench = PauseBench(tmp_path)
    caplog.set_level(logging.INFO, "controller.orders.pauses")
    async with bench.training():
        bench.ask(why="\x1b[2Jtea")
        bench.say_status(paused_since_ns=bench.clock.monotonic_ns())
        await asyncio.sleep(2)
        bench.pauses.resume(KEY, why="done", by="bob")
    assert caplog.messages == [
        rf"{KEY}: ada asks for a pause of 120 s: \x1b[2Jtea",
        f"{KEY}: paused, for 120 s at most",
        f"{KEY}: the pause ends: bob ends it: done",
    ]
