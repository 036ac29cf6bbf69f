"""The arbiter of claims on a router: what it asks of the driver, how often, and for how long it keeps the loop."""

import asyncio
import itertools
from pathlib import Path

import pytest

from controller.errors import GpuSuspectError
from controller.runs.claim_arbiter import CHECK_S, RANKS_A_TURN, SPACING_S, ClaimArbiter
from controller.runs.gpu_claims import Standing
from publishers.shared.process_identity import run_mark
from tests.controller.messages import rank_status
from tests.controller.runs.router_bench import RouterBench
from tests.fakes import KEY, FakeGpu, FakeProcessTable, fake_process


class CountedGpu(FakeGpu):
    """A GPU that counts how often its processes are read."""

    n_reads = 0

    async def read_processes(self) -> frozenset[int] | None:
        self.n_reads += 1
        self._fail("read_processes")
        return await super().read_processes()


async def test_the_processes_of_a_gpu_that_nobody_claims_are_not_read(tmp_path: Path) -> None:
    gpu = CountedGpu()
    async with RouterBench(tmp_path, gpus=[gpu]).working():
        await asyncio.sleep(10 * CHECK_S)
    assert gpu.n_reads == 0


async def test_they_are_read_at_once_and_then_every_15_s(tmp_path: Path) -> None:
    gpu = CountedGpu()
    bench = RouterBench(tmp_path, gpus=[gpu])
    async with bench.working():
        for heartbeat in range(9):
            bench.say("status", rank_status())
            await asyncio.sleep(0.01 if heartbeat == 0 else 10.0)
            if heartbeat == 0:
                assert gpu.n_reads == 1
    assert gpu.n_reads == 1 + 80 // CHECK_S


async def test_a_flood_of_refused_claims_asks_the_driver_no_more_than_ten_times_a_second(tmp_path: Path) -> None:
    gpu = CountedGpu()
    gpu.pids = frozenset()
    bench = RouterBench(tmp_path, gpus=[gpu])
    async with bench.working():
        for _ in range(500):
            bench.say("status", rank_status())
            await asyncio.sleep(0.005)
    assert gpu.n_reads <= 2.5 / SPACING_S + 1


async def test_a_gpu_that_does_not_list_its_processes_proves_nothing(tmp_path: Path) -> None:
    gpu = CountedGpu()
    gpu.pids = frozenset({1})
    bench = RouterBench(tmp_path, gpus=[gpu])
    async with bench.working():
        await bench.say_and_settle("status", rank_status(pid=1))
        claims = bench.router.arbiter.claims
        assert claims._owners[gpu.uuid] == (KEY, Standing.PROVEN)
        gpu.errors["read_processes"] = GpuSuspectError("hangs", gpu_uuid=gpu.uuid, operation="read_processes")
        bench.say("status", rank_status(pid=1))
        await asyncio.sleep(CHECK_S + 1)
        assert claims._owners[gpu.uuid] == (KEY, Standing.TRUSTED), "the bench trusts the bus"


class HangingAccounts(FakeProcessTable):
    """A process table whose accounts are in a directory that does not answer yet."""

    def __init__(self) -> None:
        super().__init__()
        self.answers = asyncio.Event()

    async def uid_of(self, user: str) -> int | None:
        await self.answers.wait()
        return await super().uid_of(user)


async def test_a_run_may_end_while_its_users_account_is_looked_up(tmp_path: Path) -> None:
    bench, accounts = RouterBench(tmp_path), HangingAccounts()
    bench.router.arbiter._processes = accounts
    async with bench.working():
        await bench.say_and_settle("status", rank_status())
        bench.say("status", rank_status(state="finished"))
        await asyncio.sleep(CHECK_S)
        assert bench.router.runs == {}
        accounts.answers.set()
        await bench.say_and_settle("status", rank_status(run="run-2"), run="run-2")
        assert list(bench.router.arbiter.claims.owned) == [KEY._replace(run="run-2")]


async def test_however_many_claims_wait_the_loop_has_its_turn(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    bench, n_settled, counts = RouterBench(tmp_path), 0, [0]
    settle = ClaimArbiter._settle

    def counted(*arguments: object) -> None:
        nonlocal n_settled
        n_settled += 1
        settle(*arguments)  # type: ignore[arg-type]  # as they come

    async def watch() -> None:
        while True:
            await asyncio.sleep(0)
            counts.append(n_settled)

    monkeypatch.setattr(ClaimArbiter, "_settle", counted)
    bench.gpus[0].pids = frozenset(range(1, 33))
    async with bench.working():
        for number in range(32):
            for rank in range(16):
                status = rank_status(run=f"r{number}", pid=rank + 1, world_size=16)
                bench.say("status", status, run=f"r{number}", rank=rank)
        async with asyncio.TaskGroup() as tasks:
            watching = tasks.create_task(watch())
            for _ in range(200):
                await asyncio.sleep(0)
            watching.cancel()
    assert n_settled == 32 * 16
    assert max(later - earlier for earlier, later in itertools.pairwise(counts)) <= RANKS_A_TURN


class GatedGpu(FakeGpu):
    """A GPU whose processes can be read only once its gate is open."""

    def __init__(self, uuid: str, *, index: int = 0) -> None:
        super().__init__(uuid, index=index)
        self.gate = asyncio.Event()

    async def read_processes(self) -> frozenset[int] | None:
        await self.gate.wait()
        return await super().read_processes()


@pytest.mark.parametrize("n_turns", range(8))
async def test_a_gpu_that_is_read_amid_many_claims_is_judged_with_the_rest(tmp_path: Path, n_turns: int) -> None:
    gpus = [GatedGpu("GPU-fake-0"), GatedGpu("GPU-fake-1", index=1)]
    for gpu in gpus:
        gpu.pids = frozenset({7})
    bench = RouterBench(tmp_path, gpus=gpus)
    bench.processes.known[7] = (fake_process(7, marks=frozenset({run_mark(KEY)})),)
    async with bench.working():
        for rank in range(5 * RANKS_A_TURN):
            names = [gpus[rank % 2].uuid]
            bench.say("status", rank_status(pid=7, world_size=5 * RANKS_A_TURN, gpus=names), rank=rank)
        await asyncio.sleep(1)
        gpus[0].gate.set()
        for _ in range(n_turns):
            await asyncio.sleep(0)
        gpus[1].gate.set()
        await asyncio.sleep(30)
        assert bench.router.arbiter.claims.owned[KEY] == {gpu.uuid for gpu in gpus}


async def test_a_rank_that_waits_keeps_no_gpu_that_another_rank_has_left(tmp_path: Path) -> None:
    bench = RouterBench(tmp_path, "GPU-fake-0", "GPU-fake-1", "GPU-fake-2")
    first, left, never = bench.gpus
    bench.processes.known[7] = (fake_process(7, marks=frozenset({run_mark(KEY)})),)
    first.pids, left.pids, never.pids = frozenset({7}), frozenset({7}), frozenset()
    async with bench.working():
        bench.say("status", rank_status(pid=7, world_size=2, gpus=[]))
        await asyncio.sleep(1)
        assert bench.router.arbiter.claims.owned[KEY] == {first.uuid, left.uuid}
        left.pids = frozenset()
        for n_heartbeats in range(4):
            names = [never.uuid] * (1 + n_heartbeats % 2)
            bench.say("status", rank_status(pid=8, world_size=2, gpus=names), rank=1)
            await asyncio.sleep(10)
        assert bench.router.arbiter.claims.owned[KEY] == {first.uuid}


class BlinkingGpu(FakeGpu):
    """A GPU whose list of processes is empty at one read."""

    n_reads = 0

    async def read_processes(self) -> frozenset[int] | None:
        self.n_reads += 1
        return frozenset() if self.n_reads == 2 else await super().read_processes()


async def test_one_empty_list_takes_no_gpu_away(tmp_path: Path, caplog: pytest.LogCaptureFixture) -> None:
    caplog.set_level("INFO")
    gpus = [FakeGpu("GPU-fake-0"), BlinkingGpu("GPU-fake-1", index=1)]
    for gpu in gpus:
        gpu.pids = frozenset({7})
    bench = RouterBench(tmp_path, gpus=gpus)
    bench.processes.known[7] = (fake_process(7, marks=frozenset({run_mark(KEY)})),)
    async with bench.working():
        for _ in range(6):
            bench.say("status", rank_status(pid=7, gpus=[]))
            await asyncio.sleep(10)
        assert bench.router.arbiter.claims.owned[KEY] == {gpu.uuid for gpu in gpus}
    assert "is given back" not in caplog.text
