"""Processes below one `gridchase run` that compute on one GPU are one run, whose rate is the sum of theirs."""

import asyncio
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from pathlib import Path
from typing import Any

import pytest

from controller.accounting.ranks import LOST_GRACE_S
from controller.errors import OrderRefusedError
from controller.orders.pins import RunPins
from controller.ports.orders import Pin
from controller.runs.gpu_claims import Standing
from controller.runs.router import Router
from publishers.messages.codec import decode
from publishers.messages.reports import RunEnergy
from publishers.messages.topics import RunKey
from publishers.shared.process_identity import run_mark
from tests.controller.messages import BOOT_ID, iterations, rank_status
from tests.controller.runs.router_bench import SETTLE_S, TICK_S, TOPICS, RouterBench, limit_state
from tests.fakes import USER, fake_process

JOB = "resnet50"


class Workers:
    """Processes on the GPUs of a bench, each with a run of its own at first."""

    def __init__(self, state_dir: Path, n: int, *, boards: tuple[int, ...] = (), n_gpus: int = 1) -> None:
        self.bench = RouterBench(state_dir, *(f"GPU-{index}" for index in range(n_gpus)))
        self.n = n
        self._begun: dict[int, float] = {}
        self._sent: dict[int, tuple[int, float]] = {}
        on = boards or (0,) * n
        for index, gpu in enumerate(self.bench.gpus):
            gpu.pids = frozenset(self.pid(k) for k in range(n) if on[k] == index)
        for k in range(n):
            mark = run_mark(self.key(k))
            self.bench.processes.known[self.pid(k)] = (fake_process(self.pid(k), marks=frozenset({mark})),)

    @staticmethod
    def pid(k: int) -> int:
        return 100 + k

    @staticmethod
    def key(k: int) -> RunKey:
        return RunKey(USER, JOB, f"w{k}")

    @property
    def router(self) -> Router:
        return self.bench.router

    def status(self, k: int, *, rank: int = 0, **changes: Any) -> None:  # noqa: ANN401 — the record checks them
        fields = {"run": f"w{k}", "pid": self.pid(k), "launch": "launch-1", "gpus": [], "started_at_s": 1.0 + k}
        self.bench.say("status", rank_status(**{**fields, **changes}), run=f"w{k}", rank=rank)

    async def begin(self, k: int, **changes: Any) -> None:  # noqa: ANN401 — the record checks them
        self.status(k, **changes)
        await asyncio.sleep(SETTLE_S)

    async def work(self, rates: dict[int, int], *, seconds: int) -> None:
        """Let workers iterate so many times a second each."""
        for _ in range(seconds):
            await asyncio.sleep(1.0)
            end_s = self.bench.clock.monotonic_ns() / 1e9
            for k, rate in rates.items():
                n, begin_s = self._sent.get(k, (0, end_s - 1.0))
                step_s = (end_s - begin_s) / rate
                ends_s = [begin_s + step_s * (i + 1) for i in range(rate - 1)] + [end_s]
                message = iterations(begin_s, ends_s, seq=n, first=n, run=f"w{k}")
                self.bench.say("iterations", message, run=f"w{k}")
                self._sent[k] = n + rate, end_s

    @asynccontextmanager
    async def at_work(self, *, seconds: int) -> AsyncIterator[None]:
        """Let all of them begin, one after the other, and make ten iterations a second each for a while."""
        async with self.bench.working():
            for k in range(self.n):
                await self.begin(k)
            await self.work(dict.fromkeys(range(self.n), 10), seconds=seconds)
            yield

    def numbers(self, run: str = "w0") -> list[int]:
        """Return the ranks of a run that are on its GPU."""
        return sorted(self.bench.training_run(run=run).ranks.members)

    def final(self, k: int) -> RunEnergy | None:
        """Return the last record of a run."""
        sent = [decode(payload, RunEnergy) for payload in self.bench.bus.payloads(TOPICS.run(self.key(k), "energy"))]
        return next((each for each in sent if each.final), None)


async def test_workers_on_one_gpu_are_one_run_with_the_sum_of_their_rates(tmp_path: Path) -> None:
    workers = Workers(tmp_path, 2)
    async with workers.bench.working():
        for k in range(2):
            await workers.begin(k)
        await workers.work({0: 10, 1: 20}, seconds=20)
        (run,) = workers.router.runs.values()
        assert run.identity.run == "w0"
        assert not run.rejections
        assert not run.unproven
        assert workers.router.arbiter.claims.owned == {workers.key(0): {"GPU-0"}}
        assert run.ranks.slowest.n_iterations == pytest.approx(600)
        (log,) = run.ranks.logs
        end_ns = log.end_ns or 0
        activity = log.activity(end_ns - round(0.5e9), end_ns)
        assert activity.n_iterations == pytest.approx(15.0)
        assert activity.is_continuous


async def test_the_joined_process_is_told_and_its_own_run_leaves_no_record(tmp_path: Path) -> None:
    workers = Workers(tmp_path, 2)
    async with workers.at_work(seconds=12):
        for k, rank in ((0, 0), (1, 1)):
            (notice,) = [each for each in workers.bench.notices(run=f"w{k}") if each.code == "joined"]
            assert (notice.joined, notice.rank) == ("w0", rank)
        assert not [each for each in workers.bench.notices(run="w1") if each.code not in {"joined", "heard"}]
        workers.status(0, state="finished")
        await workers.work({1: 10}, seconds=6)
        assert workers.final(0) is None
        workers.status(1, state="finished")
        await asyncio.sleep(5 * TICK_S)
        last = [workers.bench.notices(run=f"w{k}")[-1].code for k in range(2)]
        assert last == ["others_run", "joined"]
    final = workers.final(0)
    assert final is not None
    assert (final.iterations, final.last_rank, final.state) == (12 * 20 + 60, 1, "finished")
    assert workers.final(1) is None


async def test_one_that_goes_on_alone_keeps_the_gpu(tmp_path: Path) -> None:
    workers = Workers(tmp_path, 2)
    async with workers.at_work(seconds=5):
        workers.status(0, state="finished")
        workers.bench.gpus[0].pids = frozenset({workers.pid(1)})
        for _ in range(6):
            workers.status(1)
            await workers.work({1: 10}, seconds=10)
        assert workers.router.arbiter.claims.owned == {workers.key(0): {"GPU-0"}}
        fault = workers.bench.training_run(run="w0").pause_fault
        assert fault is not None
        assert fault[0] == "not_pausable", "the run has not ended with its rank 0"


async def test_one_that_dies_ends_nothing_for_the_others(tmp_path: Path) -> None:
    workers = Workers(tmp_path, 3)
    async with workers.at_work(seconds=5):
        workers.status(1, state="lost")
        await workers.work({0: 10, 2: 10}, seconds=30)
        run = workers.bench.training_run(run="w0")
        assert run.ended is None
        assert run.ranks.n_running == 2
        assert run.ranks.slowest.n_iterations == pytest.approx(150 + 600)


@pytest.mark.parametrize(
    ("killed", "last_rank"),
    [((0,), 1), ((1,), 0), ((0, 1), 1)],
    ids=["the first", "the joined one", "both"],
)
async def test_a_kill_right_after_they_joined_leaves_one_exact_record(
    tmp_path: Path, killed: tuple[int, ...], last_rank: int
) -> None:
    workers, seconds = Workers(tmp_path, 2), 5
    async with workers.at_work(seconds=1):
        for k in killed:
            workers.status(k, state="lost")
        alive = {k: 10 for k in range(2) if k not in killed}
        await workers.work(alive, seconds=seconds)
        for k in alive:
            workers.status(k, state="finished")
        await asyncio.sleep(LOST_GRACE_S + 10 * TICK_S)
        assert not workers.router.runs
    final = workers.final(0)
    assert final is not None
    assert (final.iterations, final.state) == (2 * 10 + len(alive) * seconds * 10, "lost")
    assert final.last_rank == last_rank
    assert workers.final(1) is None


@pytest.mark.parametrize("iterates", [False, True], ids=["at once", "a second later"])
async def test_one_that_is_killed_as_it_joins_holds_up_nobody(tmp_path: Path, iterates: bool) -> None:
    workers = Workers(tmp_path, 2)
    async with workers.bench.working():
        await workers.begin(0)
        await workers.work({0: 10}, seconds=2)
        workers.status(1)
        if iterates:
            await workers.work({0: 10, 1: 10}, seconds=1)
        workers.status(1, state="lost")
        await workers.work({0: 10}, seconds=5)
        assert workers.router.arbiter.claims.owned == {workers.key(0): {"GPU-0"}}
        workers.status(0, state="finished")
        await asyncio.sleep(LOST_GRACE_S + 10 * TICK_S)
        assert not workers.router.runs
    final = workers.final(0)
    assert final is not None
    assert final.iterations == (90 if iterates else 70)
    other = workers.final(1)
    assert other is None or (other.iterations, other.energy_j) == (0, 0.0)


async def test_a_late_worker_joins_and_what_was_measured_before_is_void(tmp_path: Path) -> None:
    workers = Workers(tmp_path, 2)
    async with workers.bench.working():
        await workers.begin(0)
        await workers.work({0: 10}, seconds=30)
        run = workers.bench.training_run(run="w0")
        before = run._leader.limits.state
        workers.status(0)
        await workers.begin(1)
        await workers.work({0: 10, 1: 10}, seconds=2)
        assert workers.numbers() == [0, 1]
        assert run._leader.limits.state is not before
        assert run.ranks.status.world_size == 2


async def test_sixteen_workers_are_one_run(tmp_path: Path) -> None:
    workers = Workers(tmp_path, 16)
    async with workers.bench.working():
        for k in range(16):
            workers.status(k)
        await workers.work(dict.fromkeys(range(16), 5), seconds=10)
        (key,) = workers.router.runs
        assert workers.numbers(key.run) == list(range(16))
        assert workers.router.runs[key].ranks.slowest.n_iterations == pytest.approx(800)


async def test_workers_on_gpus_of_their_own_are_runs_of_their_own(tmp_path: Path) -> None:
    workers = Workers(tmp_path, 2, boards=(0, 1), n_gpus=2)
    async with workers.at_work(seconds=5):
        owned = workers.router.arbiter.claims.owned
        assert owned == {workers.key(0): {"GPU-0"}, workers.key(1): {"GPU-1"}}


async def test_one_after_the_other_they_are_runs_of_their_own(tmp_path: Path) -> None:
    workers = Workers(tmp_path, 2)
    async with workers.bench.working():
        await workers.begin(0)
        await workers.work({0: 10}, seconds=6)
        workers.status(0, state="finished")
        await workers.begin(1)
        await workers.work({1: 10}, seconds=6)
        workers.status(1, state="finished")
        await asyncio.sleep(5 * TICK_S)
    for k in range(2):
        final = workers.final(k)
        assert final is not None
        assert (final.iterations, final.last_rank) == (60, None)


@pytest.mark.parametrize(
    "changes",
    [{"launch": "launch-2"}, {"launch": None}, {"world_size": 2}],
    ids=["another gridchase run", "none", "a rank of a launcher's"],
)
async def test_processes_of_another_launch_are_refused_the_gpu(tmp_path: Path, changes: dict[str, object]) -> None:
    workers = Workers(tmp_path, 2)
    async with workers.bench.working():
        await workers.begin(0)
        await workers.begin(1, **changes)
        assert workers.bench.training_run(run="w1").rejections == {0: "gpu_taken"}
        assert workers.numbers() == [0]


@pytest.mark.parametrize(("owner", "joiner"), [(0, 1), (1, 0)])
async def test_a_rank_other_than_0_is_no_process_of_its_own(tmp_path: Path, owner: int, joiner: int) -> None:
    workers = Workers(tmp_path, 2)
    async with workers.bench.working():
        workers.status(owner, rank=3 * owner)
        await asyncio.sleep(SETTLE_S)
        workers.status(joiner, rank=3 * joiner)
        await asyncio.sleep(SETTLE_S)
        assert [len(run.ranks.members) for run in workers.router.runs.values()] == [1, 1]


async def test_another_rank_of_the_run_of_a_joined_process_is_not_joined_with_it(tmp_path: Path) -> None:
    workers = Workers(tmp_path, 2)
    async with workers.bench.working():
        for k in range(2):
            await workers.begin(k)
        workers.status(1, rank=3, pid=7)
        await asyncio.sleep(SETTLE_S)
        assert not workers.bench.training_run(run="w0").ranks.rivals_s
        assert sorted(key.run for key in workers.router.runs) == ["w0", "w1"]


@pytest.mark.parametrize("proven", [0, 1])
async def test_the_name_of_a_launch_proves_nothing(tmp_path: Path, proven: int) -> None:
    """Of two processes one bears its mark; the other one, whose user has no account here, has only its word."""
    workers = Workers(tmp_path, 2)
    workers.bench.processes.uids[USER] = None
    workers.bench.processes.known[workers.pid(1 - proven)] = (fake_process(workers.pid(1 - proven)),)
    async with workers.bench.working():
        for k in range(2):
            await workers.begin(k, gpus=["GPU-0"])
        for k in range(2):
            workers.status(k, gpus=["GPU-0"])
        await asyncio.sleep(SETTLE_S)
        claims = workers.router.arbiter.claims
        assert claims.owned[workers.key(proven)] == {"GPU-0"}
        assert claims.standing(workers.key(proven)) is Standing.PROVEN
        assert workers.bench.training_run(run=f"w{1 - proven}").rejections == {0: "gpu_taken"}


async def test_a_controller_that_is_started_again_joins_them_anew(tmp_path: Path) -> None:
    workers = Workers(tmp_path, 2)
    async with workers.at_work(seconds=20):
        pass
    again = Workers(tmp_path, 2)
    again._sent = workers._sent
    async with again.bench.working():
        for k in (1, 0):
            again.status(k)
        await again.work({0: 10, 1: 10}, seconds=10)
        (run,) = again.router.runs.values()
        assert (run.identity.run, again.numbers()) == ("w0", [0, 1])
        assert run.ranks.slowest.n_iterations == pytest.approx(600, rel=0.05)


def restarted(workers: Workers, state_dir: Path, *alive: int) -> Workers:
    """Return the same workers below a controller that is started again; some have ended meanwhile."""
    again = Workers(state_dir, workers.n)
    again._sent = workers._sent
    again.bench.gpus[0].pids = frozenset(map(again.pid, alive))
    return again


async def test_a_joined_process_that_is_heard_first_after_a_restart_is_the_rank_it_was(tmp_path: Path) -> None:
    workers = Workers(tmp_path, 2)
    async with workers.at_work(seconds=40):
        energy_j = workers.bench.training_run(run="w0")._account.totals.energy_j
    again = restarted(workers, tmp_path, 0, 1)
    async with again.bench.working():
        for k in (1, 0):
            await again.begin(k)
        await again.work({0: 10, 1: 10}, seconds=10)
        (run,) = again.router.runs.values()
        assert (run.identity.run, again.numbers()) == ("w0", [0, 1])
        assert not run.rejections
        assert run._account.totals.energy_j > energy_j
        assert run.ranks.slowest.n_iterations == pytest.approx(1_000, rel=0.05)
        for k in range(2):
            assert [each.code for each in again.bench.notices(run=f"w{k}")] == ["joined"]


async def test_a_run_with_a_record_is_no_part_of_one_that_is_heard_first_after_a_restart(tmp_path: Path) -> None:
    workers = Workers(tmp_path, 2)
    async with workers.bench.working():
        await workers.begin(0)
        await workers.work({0: 10}, seconds=40)
        energy_j = workers.bench.training_run(run="w0")._account.totals.energy_j
    again = restarted(workers, tmp_path, 0, 1)
    async with again.bench.working():
        for k in (1, 0):
            await again.begin(k)
        await again.work({0: 10, 1: 10}, seconds=10)
        assert again.bench.training_run(run="w0").rejections == {0: "gpu_taken"}
        again.status(1, state="finished")
        await again.work({0: 10}, seconds=10)
        again.status(0)
        await again.work({0: 10}, seconds=10)
        again.status(0, state="finished")
        await asyncio.sleep(5 * TICK_S)
    first, second = again.final(0), again.final(1)
    assert first is not None
    assert second is not None
    assert first.energy_j > energy_j
    assert (second.iterations, second.last_rank) == (100, None)


async def test_one_that_goes_on_alone_after_a_restart_closes_the_record_of_all(tmp_path: Path) -> None:
    workers = Workers(tmp_path, 2)
    async with workers.at_work(seconds=40):
        workers.status(0, state="finished")
        await workers.work({1: 10}, seconds=20)
        energy_j = workers.bench.training_run(run="w0")._account.totals.energy_j
    again = restarted(workers, tmp_path, 1)
    async with again.bench.working():
        again.status(0, state="finished")
        await again.begin(1)
        await again.work({1: 10}, seconds=30)
        assert again.router.arbiter.claims.owned == {again.key(0): {"GPU-0"}}
        fault = again.bench.training_run(run="w0").pause_fault
        assert fault is not None
        assert fault[0] == "not_pausable"
        again.status(1, state="finished")
        await asyncio.sleep(5 * TICK_S)
    final = again.final(0)
    assert final is not None
    assert final.energy_j > energy_j
    assert final.iterations == pytest.approx(40 * 20 + 20 * 10 + 30 * 10, rel=0.02)
    assert (final.last_rank, final.state, again.final(1)) == (1, "finished", None)


async def test_what_a_process_did_that_ended_before_a_restart_still_counts(tmp_path: Path) -> None:
    workers = Workers(tmp_path, 3)
    async with workers.at_work(seconds=40):
        workers.status(2, state="finished")
        await workers.work({0: 10, 1: 10}, seconds=5)
    again = restarted(workers, tmp_path, 0, 1)
    async with again.bench.working():
        for k in range(2):
            again.status(k)
        await again.work({0: 10, 1: 10}, seconds=10)
        assert again.bench.training_run(run="w0").ranks.slowest.n_iterations == pytest.approx(1_500, rel=0.02)


async def test_the_last_of_a_pool_goes_on_with_its_record_after_a_restart(tmp_path: Path) -> None:
    workers = Workers(tmp_path, 2)
    async with workers.at_work(seconds=20):
        workers.status(1, state="finished")
        await workers.work({0: 10}, seconds=10)
    again = restarted(workers, tmp_path, 0)
    async with again.bench.working():
        again.status(0)
        await again.work({0: 10}, seconds=10)
        assert again.bench.training_run(run="w0").ranks.slowest.n_iterations == pytest.approx(600, rel=0.02)


async def test_a_pool_whose_network_was_away_goes_on_whoever_is_back_first(tmp_path: Path) -> None:
    workers = Workers(tmp_path, 2)
    async with workers.at_work(seconds=20):
        for k in range(2):
            workers.status(k, state="lost")
        await asyncio.sleep(30.0)
        before = workers.final(0)
        assert before is not None
        for k in (1, 0):
            workers._sent[k] = workers._sent[k][0], workers.bench.clock.monotonic_ns() / 1e9
            await workers.begin(k)
        await workers.work({0: 10, 1: 10}, seconds=20)
        (run,) = workers.router.runs.values()
        assert (run.identity.run, workers.numbers()) == ("w0", [0, 1])
        assert run._account.totals.energy_j > before.energy_j
        assert run.ranks.slowest.n_iterations == pytest.approx(800, rel=0.05)


async def test_one_that_is_back_before_its_pool_is_retired_is_a_rank_of_it(tmp_path: Path) -> None:
    workers = Workers(tmp_path, 2)
    async with workers.at_work(seconds=20):
        for k in range(2):
            workers.status(k, state="lost")
        await asyncio.sleep(LOST_GRACE_S + TICK_S)
        assert workers.bench.training_run(run="w0").ended
        workers.status(1)
        await workers.work({1: 10}, seconds=5)
        assert [key.run for key in workers.router.runs] == ["w0"]
        assert workers.numbers() == [1]


async def test_what_a_joined_process_is_told_comes_on_its_own_topic(tmp_path: Path) -> None:
    workers = Workers(tmp_path, 2)
    async with workers.bench.working():
        for k in range(2):
            await workers.begin(k)
        workers.router._on_surplus(TOPICS.rank(BOOT_ID, workers.key(1), 0, "iterations"))
        workers.status(1, gpus=["GPU-nowhere"])
        await asyncio.sleep(SETTLE_S)
        told = [(each.code, each.rank) for each in workers.bench.notices(run="w1")]
        assert told[-2:] == [("too_many_messages", 1), ("gpu_unknown", 1)]
        assert {each.code for each in workers.bench.notices(run="w0")} == {"heard", "joined"}


async def test_a_pool_cannot_be_paused(tmp_path: Path) -> None:
    workers = Workers(tmp_path, 2)
    async with workers.bench.working():
        await workers.begin(0, pausable=True)
        assert workers.bench.training_run(run="w0").pause_fault is None
        await workers.begin(1, pausable=True)
        fault = workers.bench.training_run(run="w0").pause_fault
        assert fault is not None
        assert fault[0] == "not_pausable"


async def test_a_pin_of_a_pool_holds_the_gpu_of_all_and_a_worker_alone_cannot_be_pinned(tmp_path: Path) -> None:
    workers = Workers(tmp_path, 2)
    pins = RunPins(tmp_path, clock=workers.bench.clock)
    pins.runs, pins.gpus, workers.router._pins = workers.router.runs, workers.bench.workers, pins
    workers.bench.limiters[0].state = limit_state()
    order: dict[str, Any] = {"power_limit_w": 205.0, "why": "the room is hot", "by": "ada"}
    with pins:
        async with workers.at_work(seconds=5):
            order["until_s"] = workers.bench.clock.now_s() + 3_600
            assert pins.pin(workers.key(0), **order).state == "asked"
            await workers.work({0: 10, 1: 10}, seconds=2)
            target = workers.bench.limiters[0].targets[-1]
            assert (target.power_limit_w, target.reason) == (205.0, "pinned")
            with pytest.raises(OrderRefusedError, match="no such run trains"):
                pins.pin(workers.key(1), **order)
            workers.status(0, state="finished")
            await workers.work({1: 10}, seconds=5)
            assert workers.bench.limiters[0].targets[-1].reason == "pinned", "one of them goes on"


async def test_the_pin_of_a_run_that_becomes_a_part_of_another_ends(tmp_path: Path) -> None:
    workers = Workers(tmp_path, 2)
    pins = RunPins(tmp_path, clock=workers.bench.clock)
    pins.runs, pins.gpus, workers.router._pins = workers.router.runs, workers.bench.workers, pins
    workers.bench.limiters[0].state = limit_state()
    pinned = Pin(power_limit_w=205.0, set_at_s=0.0, until_s=1e11, why="the room is hot", by="ada")
    pins._put(workers.key(1), pinned)
    async with workers.at_work(seconds=5):
        assert workers.bench.limiters[0].targets[-1].reason != "pinned"
        assert pins._in_force(workers.key(1)) is None
        assert pins._ended.get(workers.key(1)) == "the run has ended"
