"""Tests of what a run has saved: by its books and its looks, against what it truly has; and when it is computed."""

import asyncio
import threading
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager
from dataclasses import dataclass, field

import numpy as np
import pytest

from controller.accounting import run_saving
from controller.accounting.meter_intervals import MeterInterval
from controller.accounting.run_books import GpusNow
from controller.accounting.run_saving import CHECK_S, RunSaving
from controller.control.curve_learning import Planned, observation_of
from controller.control.limit_control import LimitControl
from policies.profiling.paired_looks import Looks
from policies.savings.books import Purpose
from policies.savings.interval import KnownSaving, UnknownSaving
from policies.thermal.board import ThermalState
from policies.vocabulary.profile import PowerProfile
from tests.controller.accounting.test_run_books import TOP_W, Course, uses
from tests.controller.control.control_bench import begin, decide, interval, limit_control, plan_inputs, rate_per_s
from tests.controller.messages import ns
from tests.fakes import MIDNIGHT_S, FixedSignal, LoopClock


@dataclass
class Trainer:
    """A run that trains second by second, with noise, and looks at the top limit.

    Attributes:
        control: its control.
        power_w, rate: what it needs and how fast it is at each limit.
        rng: of the noise.
        course: what it did.
        used_j, top_j: what it needs without noise, and what the same work needs at the top.
    """

    control: LimitControl
    power_w: Callable[[float], float]
    rate: Callable[[float], float]
    rng: np.random.Generator
    course: Course = field(default_factory=Course)
    used_j: float = 0.0
    top_j: float = 0.0

    def work(self, limit_w: float, purpose: Purpose) -> MeterInterval:
        """Iterate for a second; return what was seen."""
        course = self.course
        if course.in_force is None or course.in_force[0] != limit_w:
            course.set_limit(limit_w, purpose)
        course.books.purpose = purpose
        noise = 1 + 0.005 * self.rng.standard_normal(2)
        seen = interval(float(noise[0]) * self.power_w(limit_w), float(noise[1]) * self.rate(limit_w))
        times = seen.iteration_times_s
        warm_c = float(round(30 + 0.1 * seen.energy_j))  # it warms at once
        course.work(1.0, seen.energy_j, n_iterations=seen.n_iterations, iteration_times_s=times, temperature_c=warm_c)
        self.used_j += self.power_w(limit_w)
        self.top_j += self.rate(limit_w) * self.power_w(TOP_W) / self.rate(TOP_W)
        return course.added[-1]

    def error(self) -> float:
        """Return by how many half widths of its interval the estimate is off."""
        assert isinstance(self.control.state, Planned)
        self.course.books.curve = self.control.state.refinement.profile
        found = self.course.books.saving(self.control.ledger.looks)
        assert isinstance(found, KnownSaving)
        true_ratio = 1 - self.used_j / self.top_j
        return (found.saving.saved_ratio - true_ratio) / found.saved_ci90_ratio


def test_the_interval_holds_what_was_truly_saved() -> None:
    errors = []
    for seed in range(4):
        control = begin(limit_control())
        run = Trainer(control, lambda limit_w: 0.9 * limit_w, rate_per_s, np.random.default_rng(seed))
        for second in range(3_600):
            decision = decide(control, plan_inputs(at_s=second))
            assert decision.target is not None
            assert decision.purpose is not None
            limit_w = decision.target.power_limit_w
            seen = run.work(limit_w, decision.purpose)
            control.ledger.add(seen, run.course.in_force)
            control.observe(seen, enforced_power_limit_w=limit_w, warmth_w=run.course.books.thermal.warmth_w)
        assert 1 - run.used_j / run.top_j > 0.03
        assert {purpose for _, purpose in uses(run.course)} == set(Purpose) - {Purpose.PINNED}
        errors.append(run.error())
    assert sum(abs(error) <= 1 for error in errors) >= 3, errors
    assert max(map(abs, errors)) < 2, errors


def test_where_all_limits_are_alike_nothing_was_saved() -> None:
    flat = PowerProfile.from_rows([(200.0, 250.0, 4.0), (240.0, 250.0, 4.0), (TOP_W, 250.0, 4.0)])
    errors = []
    for seed in range(8):
        control = begin(limit_control(), flat)
        assert isinstance(control.state, Planned)
        state, run = control.state, Trainer(control, lambda _: 250.0, lambda _: 4.0, np.random.default_rng(seed))
        for second in range(2_000):  # ten looks of 40 s
            limit_w, purpose = (TOP_W, Purpose.LOOK) if second % 200 >= 160 else (200.0, Purpose.PLAN)
            seen = observation_of(run.work(limit_w, purpose), enforced_power_limit_w=limit_w)
            control.ledger.observe(seen, state.refinement, state.settings, settle_s=2.0)
        errors.append(run.error())
    assert sum(abs(error) <= 1 for error in errors) >= 6, errors
    assert max(map(abs, errors)) < 2, errors


FORGOTTEN = UnknownSaving(code="too_early", n_looks=0)


def saving_of(*, hours: float = 1.0) -> RunSaving:
    """Return what a run has saved that was at the top limit for some hours."""
    saving = RunSaving(signal=FixedSignal(kind="energy"), name="resnet50/run-1")
    enter(saving, 0.0, hours * 3_600.0)
    return saving


def enter(saving: RunSaving, begin_s: float, end_s: float, *, limit_w: float = TOP_W) -> None:
    """Enter an interval at a limit."""
    each = MeterInterval(begin_ns=ns(begin_s), end_ns=ns(end_s), active=True, n_iterations=4.0, energy_j=100.0)
    now = GpusNow(in_force=(limit_w, ns(begin_s)), highest_w=TOP_W, are_at_prior=limit_w == TOP_W)
    saving.add(each, now, begins_s=MIDNIGHT_S + begin_s)


def is_unchanged(saving: RunSaving) -> bool:
    """Return whether it is told that the run has saved nothing."""
    return isinstance(saving.latest, KnownSaving) and saving.latest.is_unchanged


async def test_once_a_run_is_limited_it_is_not_told_any_more_that_nothing_changed() -> None:
    saving = saving_of(hours=10.0)
    async with asyncio.TaskGroup() as tasks:
        keeping = tasks.create_task(saving.keep_known(LoopClock(), Looks))
        await asyncio.sleep(10 * 3_600.0)
        assert is_unchanged(saving)
        enter(saving, 36_000.0, 36_005.0, limit_w=200.0)
        assert saving.latest == FORGOTTEN, "at once"
        saving.latest = UnknownSaving(code="former", n_looks=0)
        await asyncio.sleep(2 * CHECK_S)
        assert saving.latest == FORGOTTEN, "it is computed soon, and not with the next half hour"
        keeping.cancel()


async def test_what_was_known_before_another_curve_is_forgotten_at_once() -> None:
    saving = saving_of()
    await saving.update(Looks(), now_s=MIDNIGHT_S)
    assert is_unchanged(saving)
    thermal = saving.books.thermal
    saving.close(Looks())
    assert (saving.latest, saving.books.thermal) == (FORGOTTEN, thermal)
    saving.close(Looks(), has_other_gpus=True)
    assert saving.books.thermal == ThermalState() != thermal, "other boards warm otherwise"


async def test_what_cannot_be_computed_is_not_known_and_ends_nothing(caplog: pytest.LogCaptureFixture) -> None:
    caplog.set_level("INFO")
    saving = saving_of()

    def fail(looks: Looks) -> KnownSaving:
        raise FloatingPointError(f"a bug: {looks}")

    real, saving.books.saving = saving.books.saving, fail  # type: ignore[method-assign]  # no input makes it fail
    for _ in range(3):
        await saving.update(Looks(), now_s=MIDNIGHT_S)
    assert saving.latest == UnknownSaving(code="not_computed", n_looks=0)
    saving.log()
    (record,) = caplog.records
    assert "resnet50/run-1: what was saved cannot be computed: FloatingPointError" in record.message
    saving.books.saving = real  # type: ignore[method-assign]
    await saving.update(Looks(), now_s=MIDNIGHT_S)
    assert is_unchanged(saving)


LONGEST_S = 30.0
"""After this a test that waits for a computation fails."""


@dataclass
class Slow:
    """A computation that lasts until the test ends it.

    Attributes:
        saving: whose it is.
        n_begun, n_done: how often it was begun, and ended.
        has_begun, gate: that it was ever begun; and that it may end.
    """

    saving: RunSaving
    n_begun: int = 0
    n_done: int = 0
    has_begun: threading.Event = field(default_factory=threading.Event)
    gate: threading.Event = field(default_factory=threading.Event)

    def compute(self, looks: Looks) -> KnownSaving | UnknownSaving:
        """Compute when the gate opens."""
        self.n_begun += 1
        self.has_begun.set()
        self.gate.wait(LONGEST_S)
        self.n_done += 1
        return type(self.saving.books).saving(self.saving.books, looks)


@contextmanager
def slow(monkeypatch: pytest.MonkeyPatch) -> Iterator[Slow]:
    """Give a run whose computation takes longer than any deadline but `LONGEST_S`."""
    monkeypatch.setattr(run_saving, "TIMEOUT_S", 0.01)
    computation = Slow(saving_of())
    computation.saving.books.saving = computation.compute  # type: ignore[method-assign]  # it is fast enough itself
    try:
        yield computation
    finally:
        computation.gate.set()


@pytest.mark.live
async def test_what_takes_too_long_is_not_known_and_is_computed_once_at_a_time(monkeypatch: pytest.MonkeyPatch) -> None:
    with slow(monkeypatch) as computation:
        saving = computation.saving
        while not computation.has_begun.is_set():  # one whose thread is late is given up before it begins
            await saving.update(Looks(), now_s=MIDNIGHT_S)
            assert saving.latest == UnknownSaving(code="not_computed", n_looks=0)
        monkeypatch.setattr(run_saving, "TIMEOUT_S", LONGEST_S)
        for _ in range(2):  # one that has begun is waited for once
            await saving.update(Looks(), now_s=MIDNIGHT_S)
            assert saving.latest == UnknownSaving(code="not_computed", n_looks=0)
        assert (computation.n_begun, computation.n_done) == (1, 0)
        computation.gate.set()
        async with asyncio.timeout(LONGEST_S):
            while not is_unchanged(saving):
                await saving.update(Looks(), now_s=MIDNIGHT_S)
        assert computation.n_begun == 2


@pytest.mark.live
def test_what_takes_too_long_delays_neither_a_cancellation_nor_the_end_of_the_loop(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    async def run() -> None:
        async with asyncio.TaskGroup() as tasks:
            keeping = tasks.create_task(computation.saving.keep_known(LoopClock(), Looks))
            await asyncio.to_thread(computation.has_begun.wait, LONGEST_S)
            keeping.cancel()

    with slow(monkeypatch) as computation:
        monkeypatch.setattr(run_saving, "TIMEOUT_S", LONGEST_S)
        asyncio.run(run())
        assert (computation.n_begun, computation.n_done) == (1, 0)


@pytest.mark.live
def test_what_takes_too_long_leaves_the_threads_of_others_alone(monkeypatch: pytest.MonkeyPatch) -> None:
    """A host is looked up in a thread of the loop's, which slow computations of several runs must not fill."""

    async def run() -> int:
        await computation.saving.update(Looks(), now_s=MIDNIGHT_S)
        return await asyncio.get_running_loop().run_in_executor(None, lambda: computation.n_done)

    with slow(monkeypatch) as computation, asyncio.Runner() as runner:
        runner.get_loop().set_default_executor(ThreadPoolExecutor(1))
        assert runner.run(run()) == 0
        computation.gate.set()
