"""Checkpoints: the account of a run resumes after a restart of the controller where it can."""

import asyncio
import math
from collections.abc import AsyncIterator, Callable
from contextlib import asynccontextmanager
from pathlib import Path
from typing import Any

import msgspec
import pytest

from controller.accounting import checkpoint, run_saving
from controller.accounting.checkpoint import MAX_AGE_S, RunCheckpoints
from controller.accounting.energy_account import AccountSnapshot, EnergyTotals
from controller.accounting.iteration_log import IterationTotals
from controller.accounting.ranks import RankCheckpoint, RunIdentity
from controller.accounting.run_ledger import LedgerSnapshot, TimeAtLimit, TimeBudgetStart
from controller.control.run_leader import MAX_BAR_S
from controller.runs.run import TrainingRun
from controller.runtime.clock import NS_PER_S
from policies.profiling.paired_looks import EMPTY_POOL, Pair
from publishers.messages.codec import decode
from publishers.messages.reports import RunEnergy
from publishers.messages.training import RankStatus
from tests.controller.messages import BOOT_ID, iterations, rank_status
from tests.controller.runs.router_bench import TOPICS, RouterBench, limit_state
from tests.fakes import KEY, FakeGpu, LoopClock

RUN = RunIdentity(**KEY._asdict(), node="node-a")
ACCOUNT = AccountSnapshot(totals=EnergyTotals(energy_j=5.0, duration_s=2.0), until_ns=0, counters_j={"GPU-fake-0": 7.0})
TOTALS = IterationTotals(
    n_iterations=4.0,
    active_s=2.0,
    running_s=2.0,
    n_epochs=1,
    first_epoch=0,
    first_iteration=None,
    seq=1,
    next_iteration=4,
    end_ns=0,
)
BUDGET_START = TimeBudgetStart(n_iterations=3.0, active_s=1.0)
LEDGER = LedgerSnapshot(
    times=[TimeAtLimit(power_limit_w=200.0, active_s=50.0, energy_j=9e3)],
    pairs=[
        Pair(
            lower_w=200.0,
            upper_w=300.0,
            rate=EMPTY_POOL.plus(-0.1, error_ratio=0.002),
            energy=EMPTY_POOL.plus(-0.2, error_ratio=0.002),
        )
    ],
    active_s=50.0,
    looked_s=40.0,
)
BOOKS = msgspec.Raw(b'{"books":{"slot_s":1800.0,"slots":[]},"gap":null}')
RANKS = {0: RankCheckpoint(pid=4_711, started_at_s=1_700_006_400.25, totals=TOTALS)}


class Running:
    """A training process of two iterations a second, and the controllers that come and go beside it."""

    def __init__(self, state_dir: Path) -> None:
        self.status = rank_status()
        self.gpu = FakeGpu()
        self._state_dir = state_dir
        self._n_seconds = 0
        self._bench: RouterBench | None = None

    @asynccontextmanager
    async def controller(self) -> AsyncIterator[RouterBench]:
        """Run a controller for a while."""
        self._bench = RouterBench(self._state_dir, gpus=[self.gpu])
        async with self._bench.working():
            yield self._bench
        self._bench = None

    async def train(self, duration_s: int, *, status: RankStatus | None = None) -> None:
        """Train; what is published reaches a controller where there is one."""
        for _ in range(duration_s):
            await asyncio.sleep(1)
            n, end_s = self._n_seconds, asyncio.get_running_loop().time()
            self._n_seconds += 1
            if self._bench is not None:
                self._bench.say("status", status or self.status)
                self._bench.say("iterations", iterations(end_s - 1, [end_s - 0.5, end_s], seq=n, first=2 * n))


def last_energy(bench: RouterBench) -> RunEnergy:
    """Return the newest account of the run."""
    return decode(bench.bus.payloads(TOPICS.run(KEY, "energy"))[-1], RunEnergy)


async def test_the_account_of_a_run_resumes_after_a_restart(tmp_path: Path) -> None:
    running = Running(tmp_path)
    async with running.controller() as first:
        await running.train(60)
    assert last_energy(first).energy_j == pytest.approx(60 * 300, rel=0.02)
    await running.train(30)
    async with running.controller() as second:
        await running.train(60)
        second.say("status", rank_status(state="finished"))
        await asyncio.sleep(10)
    final = last_energy(second)
    assert final.final
    assert (final.iterations, final.epochs, final.epochs_missed) == (300, 1, 0)
    assert final.duration_s == pytest.approx(150, abs=1)
    assert final.energy_j == pytest.approx(150 * 300, rel=0.01)


@pytest.mark.parametrize(("has_counter", "energy_j"), [(True, 60 * 300 + 110 * 100), (False, 160 * 300 + 10 * 100)])
async def test_downtime_energy_comes_from_the_counter_or_from_the_former_average_power(
    tmp_path: Path, has_counter: bool, energy_j: float
) -> None:
    running = Running(tmp_path)
    running.gpu.has_counter = has_counter
    async with running.controller():
        await running.train(60)
    running.gpu.draw_w = lambda _: 100.0
    await running.train(100)
    async with running.controller() as bench:
        await running.train(10)
    assert last_energy(bench).energy_j == pytest.approx(energy_j, rel=0.02)


def times_s(run: TrainingRun) -> tuple[float, float]:
    """Return for how long a run iterated, and paused, by its books [s]."""
    slots = run._saving.books.books.slots
    return sum(slot.active_s for slot in slots), sum(slot.pause_s for slot in slots)


async def test_downtime_is_a_pause(tmp_path: Path) -> None:
    running = Running(tmp_path)
    async with running.controller() as first:
        first.limiters[0].state = limit_state()
        await running.train(60)
        active_s, _ = times_s(first.training_run())
    await running.train(100)
    async with running.controller() as second:
        second.limiters[0].state = limit_state()
        await running.train(10)
        assert times_s(second.training_run()) == pytest.approx((active_s + 10, 100), abs=2)


@pytest.mark.parametrize(
    ("bar_s", "most_s"),
    [(1_800.0, 1_800.0), (1e9, MAX_BAR_S + 20.0), (math.inf, math.inf)],
    ids=["after one that failed", "by a clock that was set back", "after a person's word"],
)
async def test_a_plan_that_may_not_pause_does_not_after_a_restart_either(
    tmp_path: Path, bar_s: float, most_s: float
) -> None:
    running = Running(tmp_path)
    async with running.controller() as bench:
        await running.train(10)
        until_s = bench.clock.now_s() + bar_s
        bench.training_run().bar_pauses(until_s)
    async with running.controller() as bench:
        await running.train(1)
        resumed_s = bench.training_run()._leader.no_pause_until_s
        assert resumed_s == pytest.approx(until_s - bar_s + most_s, abs=20) if most_s < bar_s else resumed_s == until_s


async def test_a_resumed_run_that_ends_at_once_gets_a_final_account(tmp_path: Path) -> None:
    running = Running(tmp_path)
    async with running.controller():
        await running.train(60)
    async with running.controller() as bench:
        bench.say("status", rank_status())
        await asyncio.sleep(5)
        bench.say("status", rank_status(state="finished"))
        await asyncio.sleep(5)
    final = last_energy(bench)
    assert (final.final, final.iterations) == (True, 120)
    assert final.energy_j == pytest.approx(66 * 300, rel=0.02)


async def test_a_resumed_run_requests_no_limit_before_it_iterates(tmp_path: Path) -> None:
    running = Running(tmp_path)
    async with running.controller():
        await running.train(60)
    async with running.controller() as bench:
        bench.limiters[0].state = limit_state()
        bench.say("status", rank_status())
        await asyncio.sleep(5)
        assert bench.limiters[0].targets == []
        await running.train(5)
        assert len(bench.limiters[0].targets) == 1


async def test_another_process_of_the_run_goes_on_without_the_time_between(tmp_path: Path) -> None:
    running = Running(tmp_path)
    async with running.controller():
        await running.train(60)
    await asyncio.sleep(1_000)
    async with running.controller() as bench:
        await running.train(10, status=rank_status(pid=4_712))
    assert last_energy(bench).duration_s == pytest.approx(70, abs=3)
    assert last_energy(bench).iterations == pytest.approx(140, abs=3)
    assert last_energy(bench).incomplete == []


def without_books(content: bytes) -> bytes:
    """Return a checkpoint as a version before the books has written it."""
    saved = msgspec.json.decode(content)
    del saved["books"]
    return msgspec.json.encode(saved)


def with_damaged_books(content: bytes) -> bytes:
    """Return a checkpoint whose books are damaged."""
    return content.replace(b'"slot_s":3600.0', b'"slot_s":0.0')


@pytest.mark.parametrize(
    ("changed", "said"),
    [
        (bytes, ["saved nothing"]),
        (without_books, ["what was saved is not known (incomplete)"]),
        (with_damaged_books, ["its account is damaged", "what was saved is not known (incomplete)"]),
    ],
)
async def test_books_go_on_after_a_restart_or_nothing_is_said(
    tmp_path: Path, changed: Callable[[bytes], bytes], said: list[str], caplog: pytest.LogCaptureFixture
) -> None:
    """What is wrong with the books costs them alone: the account goes on."""
    caplog.set_level("DEBUG", run_saving.__name__)
    running = Running(tmp_path)
    async with running.controller():
        await running.train(60)
    (file,) = (tmp_path / "runs").glob("*.json")
    file.write_bytes(changed(file.read_bytes()))
    async with running.controller() as bench:
        await running.train(30)
        run = bench.training_run()
        bench.say("status", rank_status(state="finished"))
        await asyncio.sleep(10)
    assert last_energy(bench).duration_s == pytest.approx(90, abs=1)
    totals, slots = run._account.totals, run._saving.books.books.slots
    if changed is bytes:
        assert sum(slot.energy_j for slot in slots) == pytest.approx(totals.energy_j, rel=1e-9)
        assert slots[-1].ends_s - slots[0].begins_s == pytest.approx(totals.duration_s, abs=1e-5)
    told = [each.message for each in caplog.records if each.name == run_saving.__name__ or "books" in each.message]
    assert [text in message for text, message in zip(said, told, strict=True)] == [True] * len(said)


async def test_of_a_run_whose_checkpoint_is_unreadable_nothing_is_said(tmp_path: Path) -> None:
    running = Running(tmp_path)
    async with running.controller():
        await running.train(20)
    (file,) = (tmp_path / "runs").glob("*.json")
    file.write_bytes(b'{"version": 2}')
    async with running.controller() as bench:
        await running.train(20)
        assert bench.training_run()._saving.books.gap == "incomplete"


async def test_a_finished_run_leaves_no_checkpoint(tmp_path: Path) -> None:
    running = Running(tmp_path)
    async with running.controller() as bench:
        await running.train(20)
        bench.say("status", rank_status(state="finished"))
        await asyncio.sleep(10)
    assert list((tmp_path / "runs").iterdir()) == []


async def test_a_run_that_is_silent_before_and_after_a_restart_still_resumes(tmp_path: Path) -> None:
    """Suspended under the first controller, it stays so for as long as the second one waits for it."""
    running = Running(tmp_path)
    async with running.controller():
        await running.train(60)
    async with running.controller() as bench:
        bench.say("status", running.status)
        await asyncio.sleep(100)
        assert bench.router.runs == {}
        await running.train(10)
    assert last_energy(bench).energy_j == pytest.approx(170 * 300, rel=0.02)
    assert last_energy(bench).iterations == 140


async def test_a_killed_controller_has_saved_a_checkpoint_seconds_ago(tmp_path: Path) -> None:
    running = Running(tmp_path)
    async with running.controller() as bench:
        await running.train(60)
        assert bench.checkpoints._writer.flush(10)
        (saved,) = (tmp_path / "runs").glob("*.json")
        kept = msgspec.json.decode(saved.read_bytes(), type=checkpoint.RunCheckpoint)
    assert kept.account.totals.duration_s == pytest.approx(50, abs=11)


async def test_a_checkpoint_expires_after_a_day(tmp_path: Path) -> None:
    clock = LoopClock()
    with RunCheckpoints(tmp_path, boot_id=BOOT_ID, clock=clock) as checkpoints:
        checkpoints.save(RUN, ACCOUNT, RANKS)
        await asyncio.sleep(MAX_AGE_S - 1)
        assert checkpoints.load(RUN) is not None
        await asyncio.sleep(2)
        assert checkpoints.load(RUN) is None


async def kept(state_dir: Path, *places: RunIdentity) -> list[Path]:
    """Save checkpoints of runs; return their files."""
    with RunCheckpoints(state_dir, boot_id=BOOT_ID, clock=LoopClock()) as checkpoints:
        for place in places:
            checkpoints.save(place, ACCOUNT, RANKS, time_budget_start=BUDGET_START, ledger=LEDGER, books=BOOKS)
    return sorted((state_dir / "runs").glob("*.json"))


async def test_a_checkpoint_is_loaded_as_it_was_saved(tmp_path: Path) -> None:
    await kept(tmp_path, RUN)
    with RunCheckpoints(tmp_path, boot_id=BOOT_ID, clock=LoopClock()) as checkpoints:
        saved = checkpoints.load(RUN)
    assert saved is not None
    assert (saved.account, saved.ranks, saved.time_budget_start) == (ACCOUNT, RANKS, BUDGET_START)
    assert (saved.ledger, bytes(saved.books)) == (LEDGER, bytes(BOOKS))
    assert checkpoints.load(RunIdentity(user=KEY.user, job="resnet50", run="run-2", node="node-a")) is None


async def test_checkpoints_of_another_boot_too_old_or_from_the_future_are_removed(tmp_path: Path) -> None:
    late = AccountSnapshot(totals=EnergyTotals(), until_ns=3_600 * NS_PER_S, counters_j={})
    for name, boot_id, start_s, balance in (
        ("boot", "former boot", 0.0, ACCOUNT),
        ("old", BOOT_ID, -MAX_AGE_S - 1, ACCOUNT),
        ("late", BOOT_ID, 0.0, late),
    ):
        with RunCheckpoints(tmp_path / name, boot_id=boot_id, clock=LoopClock(1e9 + start_s)) as checkpoints:
            checkpoints.save(RUN, balance, RANKS)
        with RunCheckpoints(tmp_path / name, boot_id=BOOT_ID, clock=LoopClock(1e9)) as checkpoints:
            assert checkpoints.load(RUN) is None
        assert list((tmp_path / name / "runs").iterdir()) == []


async def test_a_checkpoint_without_optional_fields_is_loaded(tmp_path: Path) -> None:
    (path,) = await kept(tmp_path, RUN)
    saved = msgspec.json.decode(path.read_bytes())
    del saved["time_budget_start"], saved["ledger"], saved["books"], saved["account"]["signal"]
    del saved["no_pause_until_s"]
    path.write_bytes(msgspec.json.encode(saved))
    with RunCheckpoints(tmp_path, boot_id=BOOT_ID, clock=LoopClock()) as checkpoints:
        read = checkpoints.load(RUN)
    assert read is not None
    assert (read.account, read.time_budget_start, read.ledger) == (ACCOUNT, None, None)
    assert (bytes(read.books), read.no_pause_until_s) == (b"null", 0.0)


@pytest.mark.parametrize("content", [b"", b"{", b'{"version": 2}', b'{"version": 9}', b"[" * 100_000, b"null"])
async def test_an_unreadable_checkpoint_is_ignored_and_logged(
    tmp_path: Path, content: bytes, caplog: pytest.LogCaptureFixture
) -> None:
    (path,) = await kept(tmp_path, RUN)
    path.write_bytes(content)
    with RunCheckpoints(tmp_path, boot_id=BOOT_ID, clock=LoopClock()) as checkpoints:
        assert checkpoints.load(RUN) is None
    assert f"{path}: ignoring" in caplog.text


def spoilt(saved: dict[str, Any], path: str, value: float | dict[str, float]) -> bytes:
    """Return the file of a saved with one thing in it changed; `/` leads into it."""
    *folders, name = path.split("/")
    place: Any = saved
    for folder in folders:
        place = place[int(folder)] if isinstance(place, list) else place[folder]
    place[name] = value
    return msgspec.json.encode(saved)


@pytest.mark.parametrize(
    ("path", "value"),
    [
        ("account/counters_j", {}),
        ("account/until_ns", -1),
        ("account/totals/energy_j", 1e30),
        ("account/totals/duration_s", -5.0),
        ("time_budget_start/active_s", -5.0),
        ("ranks/0/totals/n_more", -1e9),
        ("ranks/0/totals/work_per_iteration", 0.0),
        ("ranks/0/totals/work_per_iteration", 1e30),
        ("time_budget_start/n_iterations", 1e30),
        ("time_budget_start/former_base_s", 1e6),
        ("time_budget_start/former_error_s", -5.0),
        ("ledger/active_s", -5.0),
        ("ledger/times/0/energy_j", 1e30),
        ("ledger/pairs/0/lower_w", 400.0),
        ("ledger/pairs/0/n_again", 1_000),
        ("ledger/pairs/0/rate/precision", 0.0),
        ("ledger/pairs/0/energy/mean_log", 1e3),
        ("ranks/0/totals/end_ns", 1 << 62),
        ("ranks/0/totals/running_s", -5.0),
        ("ranks/0/totals/n_iterations", 1e30),
    ],
)
async def test_a_checkpoint_with_an_impossible_number_is_ignored(
    tmp_path: Path, path: str, value: float | dict[str, float], caplog: pytest.LogCaptureFixture
) -> None:
    (file,) = await kept(tmp_path, RUN)
    file.write_bytes(spoilt(msgspec.json.decode(file.read_bytes()), path, value))
    with RunCheckpoints(tmp_path, boot_id=BOOT_ID, clock=LoopClock()) as checkpoints:
        assert checkpoints.load(RUN) is None
    assert f"{file}: ignoring" in caplog.text


async def test_a_half_written_checkpoint_is_removed(tmp_path: Path) -> None:
    (file,) = await kept(tmp_path, RUN)
    file.with_suffix(".new").write_bytes(b"{")
    with RunCheckpoints(tmp_path, boot_id=BOOT_ID, clock=LoopClock()):
        pass
    assert list((tmp_path / "runs").iterdir()) == [file]


async def test_beyond_the_limit_the_oldest_checkpoints_are_deleted(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(checkpoint, "MAX_CHECKPOINTS", 5)
    monkeypatch.setattr(checkpoint, "MAX_AGE_S", 9e9)
    places = [RunIdentity(user=KEY.user, job="resnet50", run=f"run-{n}", node="node-a") for n in range(8)]
    for start_s, place in zip((5e9, 4e9, 3e9, 2e9, 1e9, 6e9, 7e9, 8e9), places, strict=True):
        with RunCheckpoints(
            tmp_path, boot_id=BOOT_ID, clock=LoopClock(start_s)
        ) as checkpoints:  # a start before each of them
            checkpoints.save(place, ACCOUNT, RANKS)
    with RunCheckpoints(tmp_path, boot_id=BOOT_ID, clock=LoopClock()) as checkpoints:
        assert [place.run[-1] for place in places if checkpoints.load(place) is not None] == ["0", "1", "5", "6", "7"]
