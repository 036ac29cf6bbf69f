"""The power limits that people pin: set, replaced, ended and kept over a restart; what cannot be is refused."""

import asyncio
import logging
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from controller.errors import OrderRefusedError
from controller.orders.pins import RunPins
from controller.orders.standing import ABSENT_S, READ_BACK_S, content_of
from controller.ports import Hold
from controller.ports.orders import MAX_PIN_S, Pin, PinOwner, PinPreview, PinState, sentence_of_pin
from publishers.messages.topics import RunKey
from tests.controller.messages import iterations, rank_status
from tests.controller.runs.router_bench import RouterBench, limit_state
from tests.fakes import KEY, MIDNIGHT_S

WHY = "the room is hot"
PIN = Pin(power_limit_w=205.0, set_at_s=MIDNIGHT_S, until_s=MIDNIGHT_S + 3_600, why=WHY, by="ada")
ORDER: dict[str, Any] = {"power_limit_w": 205.0, "until_s": MIDNIGHT_S + 8 * ABSENT_S}


class PinBench(RouterBench):
    """A router, and the pins of its runs."""

    def __init__(self, state_dir: Path, *uuids: str) -> None:
        super().__init__(state_dir, *uuids)
        self.pins = RunPins(state_dir, clock=self.clock)
        self.pins.runs, self.pins.gpus = self.router.runs, self.workers
        self.router._pins = self.pins
        for limiter in self.limiters:
            limiter.state = limit_state()

    @asynccontextmanager
    async def training(self, **status: Any) -> AsyncIterator[None]:  # noqa: ANN401 — the record checks them
        """Let a run train."""
        async with self.working(), asyncio.TaskGroup() as tasks:
            with self.pins:
                pinning = tasks.create_task(self.pins.run())
                await self.say_and_settle("status", rank_status(**status))
                await self.train(3)
                yield
                pinning.cancel()

    async def train(self, n_s: int) -> None:
        """Do two iterations a second."""
        for _ in range(n_s):
            await asyncio.sleep(1)
            end_s = self.clock.monotonic_ns() / 1e9
            number = int(end_s)  # it goes on counting under the next controller
            self.say("iterations", iterations(end_s - 1, [end_s - 0.501, end_s - 0.001], seq=number, first=2 * number))

    def pin(
        self,
        power_limit_w: float = 205.0,
        *,
        for_s: float = 3_600.0,
        why: str = WHY,
        by: str = "ada",
        by_owner: bool = False,
    ) -> PinState:
        until_s = self.clock.now_s() + for_s
        return self.pins.pin(KEY, power_limit_w=power_limit_w, until_s=until_s, why=why, by=by, by_owner=by_owner)

    def write(self) -> None:
        """Let each GPU have what was asked of it last."""
        for limiter in self.limiters:
            limit_w = limiter.targets[-1].power_limit_w
            since_ns = self.clock.monotonic_ns()
            limiter.state = limit_state(Hold.HELD, limit_w=limit_w, since_ns=since_ns)

    def state(self) -> PinState:
        return self.pins.state_of(KEY)


async def test_a_pin_is_asked_for_until_every_gpu_has_been_read_back(tmp_path: Path) -> None:
    bench = PinBench(tmp_path, "GPU-0", "GPU-1")
    async with bench.training(gpus=["GPU-0", "GPU-1"]):
        assert bench.state() == PinState(state="none")
        asked = bench.pin()
        assert (asked.state, asked.power_limit_w, asked.n_gpus, asked.by) == ("asked", 205.0, 2, "ada")
        await bench.train(1)
        assert [limiter.targets[-1].power_limit_w for limiter in bench.limiters] == [205.0, 205.0]
        assert bench.limiters[0].targets[-1].reason == "pinned"
        assert bench.state().state == "asked", "it is requested, and not read back"
        first = bench.limiters[0]
        first.state = limit_state(Hold.HELD, limit_w=205.0, since_ns=bench.clock.monotonic_ns())
        assert bench.state().state == "asked", "one of two"
        bench.write()
        done = bench.state()
        assert (done.state, done.applied_power_limit_w, done.enforced_power_limit_w) == ("done", 205.0, 205.0)
        assert done.until_s == pytest.approx(bench.clock.now_s() + 3_599, abs=1)


@pytest.mark.parametrize(("asked_w", "applied_w"), [(10.0, 100.0), (500.0, 280.0)])
async def test_it_is_clamped_to_what_the_gpus_may_have(tmp_path: Path, asked_w: float, applied_w: float) -> None:
    bench = PinBench(tmp_path)
    async with bench.training():
        bench.pin(asked_w)
        await bench.train(1)
        assert bench.limiters[0].targets[-1].power_limit_w == applied_w
        assert bench.state().applied_power_limit_w == applied_w


async def test_no_pin_is_above_the_prior_limit_whatever_the_operators_ceiling_is(tmp_path: Path) -> None:
    bench = PinBench(tmp_path)
    bench.limiters[0].state = replace(limit_state(), ceiling_power_limit_w=300.0)
    async with bench.training():
        bench.pin(295.0)
        await bench.train(1)
        assert bench.limiters[0].targets[-1].power_limit_w == 280.0


async def test_the_last_writer_wins_and_both_are_logged(tmp_path: Path, caplog: pytest.LogCaptureFixture) -> None:
    caplog.set_level(logging.INFO)
    bench = PinBench(tmp_path)
    async with bench.training():
        bench.pin()
        await bench.train(1)
        bench.write()
        assert bench.state().state == "done"
        later = bench.pin(240.0, by="bob", why="it is night")
        assert (later.state, later.by, later.power_limit_w) == ("asked", "bob", 240.0), "the former one is read back"
        await bench.train(1)
        assert bench.limiters[0].targets[-1].power_limit_w == 240.0
    assert "pinned to 240 W by bob" in caplog.text
    assert "it replaces: pinned to 205 W by ada" in caplog.text


async def test_it_ends_by_itself_and_the_plan_decides_again(tmp_path: Path) -> None:
    bench = PinBench(tmp_path)
    async with bench.training():
        bench.pin(for_s=20.0)
        await bench.train(10)
        assert bench.limiters[0].targets[-1].reason == "pinned"
        await bench.train(15)
        assert bench.state() == PinState(state="none", ended_because="its time is over")
        assert bench.limiters[0].targets[-1].reason != "pinned"


async def test_a_release_ends_it_and_says_who_has_done_so(tmp_path: Path) -> None:
    bench = PinBench(tmp_path)
    async with bench.training():
        bench.pin()
        await bench.train(1)
        state = bench.pins.release(KEY, why="the room is cool", by="bob")
        assert state == PinState(state="none", ended_because="bob ends it: the room is cool")
        await bench.train(1)
        assert bench.limiters[0].targets[-1].reason != "pinned"
        assert bench.pins.release(KEY, why="", by="bob").state == "none", "there is none: nothing happens"


async def test_it_ends_with_its_run_and_the_next_run_of_that_name_has_none(tmp_path: Path) -> None:
    bench = PinBench(tmp_path)
    async with bench.training():
        bench.pin()
        await bench.train(1)
        bench.say("status", rank_status(state="finished"))
        await asyncio.sleep(0)
        assert bench.pins.pin_of(KEY) is None
        with pytest.raises(OrderRefusedError, match="no such run trains"):
            bench.state()
        bench.say("status", rank_status(pid=4_711, started_at_s=MIDNIGHT_S + 100))
        await asyncio.sleep(10)
        assert bench.state() == PinState(state="none", ended_because="the run has ended")


async def test_it_goes_on_after_a_restart_until_its_time(tmp_path: Path) -> None:
    before = PinBench(tmp_path)
    async with before.training():
        before.pin(for_s=100.0)
    after = PinBench(tmp_path)
    async with after.training():
        assert after.limiters[0].targets[0].reason == "pinned", "from its first limit on"
        assert (after.state().by, after.state().why) == ("ada", WHY)
        await after.train(100)
        assert after.state().state == "none"
    assert not (tmp_path / "pins.json").exists()


async def test_a_pin_for_a_gpu_holds_each_run_that_has_it_and_all_of_its_gpus(tmp_path: Path) -> None:
    bench = PinBench(tmp_path, "GPU-0", "GPU-1")
    async with bench.training(gpus=["GPU-0", "GPU-1"]):
        until_s = bench.clock.now_s() + 3_600
        order: dict[str, Any] = {"power_limit_w": 205.0, "until_s": until_s}
        assert bench.pins.pin("GPU-1", **order, why=WHY, by="ada").state == "asked"
        await bench.train(1)
        assert [limiter.targets[-1].power_limit_w for limiter in bench.limiters] == [205.0, 205.0]
        bench.write()
        assert (bench.pins.state_of("GPU-1").state, bench.state().state) == ("done", "done")
        assert bench.state().gpu_uuid == "GPU-1"
        assert bench.pins.release(KEY, why="", by="bob").state == "done", "the run has no pin of its own"
        bench.pin(180.0)
        await bench.train(1)
        assert bench.limiters[0].targets[-1].power_limit_w == 180.0, "the later one"
        bench.say("status", rank_status(gpus=["GPU-0", "GPU-1"], state="finished"))
        await asyncio.sleep(5)
        idle = bench.pins.state_of("GPU-1")
        assert (idle.state, idle.n_gpus, idle.detail) == (
            "waiting",
            0,
            "no run has this GPU now: it has its prior limit",
        )
        bench.say("status", rank_status(gpus=["GPU-1"], run="run-2", pid=77), run="run-2")
        await asyncio.sleep(5)
        pin = bench.pins.pin_of(RunKey(KEY.user, KEY.job, "run-2"))
        assert pin is not None
        assert pin.power_limit_w == 205.0
        assert set(bench.pins.gpu_pins()) == {"GPU-1"}
        assert bench.pins.release("GPU-1", why="cool", by="bob").state == "none"
        with pytest.raises(OrderRefusedError, match="this node has no such GPU"):
            bench.pins.pin("GPU-9", **order, why=WHY, by="ada")


async def test_a_pin_for_a_gpu_outlasts_a_restart_and_waits_for_a_run(tmp_path: Path) -> None:
    (tmp_path / "pins.json").write_bytes(
        content_of("pins", {"GPU-fake-0": replace(PIN, until_s=MIDNIGHT_S + 10 * ABSENT_S)})
    )
    bench = PinBench(tmp_path)
    with bench.pins:
        async with asyncio.TaskGroup() as tasks:
            pinning = tasks.create_task(bench.pins.run())
            await asyncio.sleep(2 * ABSENT_S)
            assert bench.pins.state_of("GPU-fake-0").state == "waiting"
            assert "no run has this GPU" in bench.pins.preview("GPU-fake-0", **ORDER).sentence
            await asyncio.sleep(9 * ABSENT_S)
            assert bench.pins.state_of("GPU-fake-0") == PinState(state="none", ended_because="its time is over")
            pinning.cancel()


async def test_a_gpu_is_exempt_with_each_run_that_has_it_over_a_restart_until_its_time(tmp_path: Path) -> None:
    before = PinBench(tmp_path, "GPU-0", "GPU-1")
    async with before.training(gpus=["GPU-0", "GPU-1"]):
        before.pin()
        await before.train(1)
        until_s = before.clock.now_s() + 60.0
        before.pins.pin("GPU-1", power_limit_w=None, until_s=until_s, why="a demo", by="bob")
        await before.train(1)
        before.write()
        state = before.state()
        assert (state.state, state.power_limit_w, state.enforced_power_limit_w) == ("done", None, 280.0)
        assert before.limiters[0].targets[-1].detail.startswith("exempt, at its prior limit, by bob until ")
    after = PinBench(tmp_path, "GPU-0", "GPU-1")
    async with after.training(gpus=["GPU-0", "GPU-1"]):
        assert [limiter.targets[-1].power_limit_w for limiter in after.limiters] == [280.0, 280.0]
        assert set(after.pins.gpu_pins()) == {"GPU-1"}
        await after.train(60)
        assert after.pins.state_of("GPU-1") == PinState(state="none", ended_because="its time is over")
        assert after.limiters[0].targets[-1].power_limit_w == 205.0, "the pin of the run, which was set before"


async def test_what_an_exemption_of_a_gpu_without_a_run_does_is_said_without_a_limit(tmp_path: Path) -> None:
    bench = PinBench(tmp_path)
    said = bench.pins.preview("GPU-fake-0", **ORDER | {"power_limit_w": None}).sentence
    assert (
        said == "no run has this GPU now; each that has it until then is held at its prior limit, with all of its GPUs"
    )


@pytest.mark.parametrize("owner", [KEY, "GPU-fake-0"])
async def test_an_operators_pin_yields_to_no_users(tmp_path: Path, owner: PinOwner) -> None:
    bench = PinBench(tmp_path)
    async with bench.training():
        bench.pin(180.0, by="ada", by_owner=True)
        bench.pin(190.0, by="ada", by_owner=True)
        bench.pins.pin(owner, **ORDER, why="the room is hot", by="bob")
        for ask in (
            lambda: bench.pin(240.0, by="ada", by_owner=True),
            lambda: bench.pins.preview(KEY, **ORDER, by_owner=True),
        ):
            with pytest.raises(
                OrderRefusedError, match=r"by bob until .*: the room is hot: an operator's pin"
            ) as error:
                ask()
            assert error.value.reason == "pinned_by_operator"
        if owner == KEY:
            with pytest.raises(OrderRefusedError, match="an operator's pin"):
                bench.pins.release(KEY, why="", by="ada", by_owner=True)
        await bench.train(1)
        assert bench.limiters[0].targets[-1].power_limit_w == 205.0
        bench.pins.release(owner, why="it is cool", by="bob")
        await bench.train(1)
        is_back = bench.limiters[0].targets[-1].power_limit_w == 190.0
        assert is_back is (owner != KEY), "of one run there is one pin; that of its GPU leaves it"
        assert bench.pin(240.0, by="ada", by_owner=True).state == "asked"
        assert bench.pins.release(KEY, why="", by="ada", by_owner=True).state == "none"


async def test_an_operators_pin_of_a_gpu_counts_before_a_users_later_one(tmp_path: Path) -> None:
    of_user = replace(PIN, by_owner=True, by="ada", set_at_s=MIDNIGHT_S, power_limit_w=180.0)
    of_gpu = replace(PIN, by="bob", set_at_s=MIDNIGHT_S - 60.0, gpu_uuid="GPU-fake-0")
    (tmp_path / "pins.json").write_bytes(content_of("pins", {KEY: of_user, "GPU-fake-0": of_gpu}))
    bench = PinBench(tmp_path)
    with bench.pins:
        assert bench.pins.pin_of(KEY) == of_user, "it has no GPU yet"
    async with bench.training():
        assert bench.pins.pin_of(KEY) == of_gpu


async def test_pins_of_the_release_before_are_read(tmp_path: Path) -> None:
    terms = b'"power_limit_w":205.0,"set_at_s":1700006400.0,"until_s":1700010000.0,"why":"the room is hot","by":"ada"}'
    (tmp_path / "pins.json").write_bytes(
        b'{"version":1,"pins":[{"user":"alice","job":"resnet50","run":"run-1","gpu_uuid":"",' + terms + b","
        b'{"user":"","job":"","run":"","gpu_uuid":"GPU-fake-0",' + terms + b'],"checksum":"d47187b58fa0f275"}\n'
    )
    bench = PinBench(tmp_path)
    with bench.pins:
        assert bench.pins.pin_of(KEY) == PIN
        assert bench.pins.gpu_pins()["GPU-fake-0"].by == "ada"


async def test_no_gpu_is_pinned_where_limits_are_only_observed(tmp_path: Path) -> None:
    bench = PinBench(tmp_path)
    observing = RunPins(tmp_path, clock=bench.clock, observes=True)
    observing.gpus = bench.workers
    with pytest.raises(OrderRefusedError, match="never written"):
        observing.pin("GPU-fake-0", **ORDER, why=WHY, by="ada")


async def test_a_later_run_of_the_same_name_does_not_inherit_a_pin_by_a_restart(
    tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    caplog.set_level(logging.INFO)
    before = PinBench(tmp_path)
    async with before.training():
        before.pin()
    after = PinBench(tmp_path)
    async with after.training(pid=4_711, started_at_s=before.clock.now_s() + 60.0):
        assert after.state() == PinState(state="none", ended_because="a later run has its name")
        assert {target.reason for limiter in after.limiters for target in limiter.targets} == {"profiling"}
    assert "a later run has its name" in caplog.text


async def test_a_pin_whose_run_does_not_come_back_ends(tmp_path: Path) -> None:
    before = PinBench(tmp_path)
    async with before.training():
        before.pin(for_s=10 * ABSENT_S)
    after = PinBench(tmp_path)
    async with after.working(), asyncio.TaskGroup() as tasks:
        with after.pins:
            pinning = tasks.create_task(after.pins.run())
            await asyncio.sleep(ABSENT_S - 10)
            assert after.pins.pin_of(KEY) is not None
            await asyncio.sleep(20)
            assert after.pins.pin_of(KEY) is None
            pinning.cancel()


def file_of(**changes: Any) -> bytes:  # noqa: ANN401 — the record checks them
    fields: dict[str, Any] = {
        "power_limit_w": 205.0,
        "set_at_s": MIDNIGHT_S,
        "until_s": MIDNIGHT_S + 3_600,
        "why": WHY,
        "by": "ada",
    }
    return content_of("pins", {KEY: Pin(**fields | changes)})


@pytest.mark.parametrize(
    "content",
    [
        b"",
        b"\xff{}",
        b"[" * 100_000,
        file_of()[:-20],
        file_of().replace(b"205.0", b"280.0"),
        file_of().replace(b'"version":1', b'"version":2'),
        file_of(power_limit_w=-1.0),
        file_of(until_s=1e15),
    ],
)
async def test_a_damaged_file_is_told_and_pins_nothing(
    tmp_path: Path, content: bytes, caplog: pytest.LogCaptureFixture
) -> None:
    (tmp_path / "pins.json").write_bytes(content)
    bench = PinBench(tmp_path)
    with bench.pins:
        assert bench.pins.pin_of(KEY) is None
    assert "ignoring unreadable pins; none is in force" in caplog.text


async def test_a_file_that_is_whole_pins(tmp_path: Path) -> None:
    (tmp_path / "pins.json").write_bytes(file_of())
    bench = PinBench(tmp_path)
    with bench.pins:
        assert bench.pins.pin_of(KEY) is not None


async def test_of_two_pins_the_later_one_counts_when_the_clock_was_set_back_between_them(tmp_path: Path) -> None:
    bench, after = PinBench(tmp_path), PinBench(tmp_path)
    async with bench.training():
        bench.pin(240.0, by="bob")
        await bench.train(1)
        now_s = bench.clock.now_s
        bench.clock.now_s = lambda: now_s() - 600.0  # type: ignore[method-assign]
        bench.pins.pin("GPU-fake-0", **ORDER, why=WHY, by="ada")
        pin = bench.pins.pin_of(KEY)
        assert pin is not None
        assert pin.by == "ada"
    async with after.training():
        assert after.pins.pin_of(KEY) == pin, "after a restart, too"


async def test_a_clock_that_is_set_back_makes_no_pin_longer_and_one_set_ahead_ends_it(tmp_path: Path) -> None:
    bench = PinBench(tmp_path)
    async with bench.training():
        bench.pin(for_s=60.0)
        now_s = bench.clock.now_s
        bench.clock.now_s = lambda: now_s() - 86_400.0  # type: ignore[method-assign]
        await bench.train(30)
        assert bench.pins.pin_of(KEY) is not None
        await bench.train(40)
        assert bench.pins.pin_of(KEY) is None
        bench.pin(for_s=60.0)
        bench.clock.now_s = lambda: now_s() + 100.0  # type: ignore[method-assign]
        assert bench.pins.pin_of(KEY) is None


@pytest.mark.parametrize(
    ("changes", "reason"),
    [
        ({"for_s": 0.0}, "bad_time"),
        ({"for_s": -1.0}, "bad_time"),
        ({"for_s": MAX_PIN_S + 60.0}, "bad_time"),
        ({"for_s": float("nan")}, "bad_time"),
        ({"for_s": float("inf")}, "bad_time"),
        ({"power_limit_w": 0.0}, "bad_limit"),
        ({"power_limit_w": float("nan")}, "bad_limit"),
        ({"power_limit_w": 1e9}, "bad_limit"),
        ({"why": "  "}, "bad_why"),
        ({"why": 121 * "x"}, "bad_why"),
        ({"why": "two\nlines"}, "bad_why"),
    ],
)
async def test_what_is_wrong_in_itself_is_refused(tmp_path: Path, changes: dict[str, Any], reason: str) -> None:
    bench = PinBench(tmp_path)
    async with bench.training():
        with pytest.raises(OrderRefusedError) as refusal:
            bench.pin(**changes)
        assert refusal.value.reason == reason
        assert bench.state().state == "none"


async def test_a_run_that_is_not_here_or_holds_no_gpu_is_refused(tmp_path: Path) -> None:
    bench = PinBench(tmp_path)
    async with bench.training():
        await bench.say_and_settle("status", rank_status(run="run-2", pid=77), run="run-2")
        for run, reason in (("run-9", "unknown_run"), ("run-2", "claim_unproven")):
            key = RunKey(KEY.user, KEY.job, run)
            with pytest.raises(OrderRefusedError) as refusal:
                bench.pins.pin(key, power_limit_w=205.0, until_s=bench.clock.now_s() + 60, why=WHY, by="ada")
            assert refusal.value.reason == reason


@pytest.mark.parametrize("hold", [Hold.OBSERVING, Hold.SUSPECT, Hold.YIELDED])
async def test_a_gpu_that_is_not_ours_is_refused_with_its_reason(tmp_path: Path, hold: Hold) -> None:
    bench = PinBench(tmp_path)
    async with bench.training():
        bench.limiters[0].state = replace(limit_state(hold), reason="no_permission", detail="it may not be set")
        with pytest.raises(OrderRefusedError, match="it may not be set") as refusal:
            bench.pin()
        assert refusal.value.reason == "no_permission"


async def test_a_pin_fails_where_a_gpu_is_lost_or_nothing_is_read_back_in_time(tmp_path: Path) -> None:
    bench = PinBench(tmp_path)
    async with bench.training():
        bench.pin()
        await bench.train(round(READ_BACK_S) - 5)
        assert bench.state().state == "asked"
        await bench.train(10)
        assert bench.state().state == "failed"
        bench.write()
        assert bench.state().state == "done", "late is not never"
        bench.limiters[0].state = replace(limit_state(Hold.SUSPECT), reason="gpu_suspect", detail="no answer")
        state = bench.state()
        assert (state.state, state.detail, state.enforced_power_limit_w) == ("failed", "no answer", None)


async def test_a_preview_changes_nothing_and_says_what_is_known(tmp_path: Path) -> None:
    bench = PinBench(tmp_path)
    async with bench.training():
        seen = bench.pins.preview(KEY, power_limit_w=500.0, until_s=bench.clock.now_s() + 60)
        assert (seen.power_limit_w, seen.n_gpus, seen.speed_ratio) == (280.0, 1, None)
        assert seen.sentence.endswith("is not known yet")
        assert bench.state().state == "none"
        with pytest.raises(OrderRefusedError, match="has passed"):
            bench.pins.preview(KEY, power_limit_w=205.0, until_s=bench.clock.now_s() - 60)


def test_the_sentence_says_by_how_much_the_budget_is_missed() -> None:
    seen = PinPreview(power_limit_w=205.0, n_gpus=1, speed_ratio=0.947, power_w=181.4, max_slowdown_ratio=1.05)
    assert sentence_of_pin(seen).endswith("draws 181 W; what that does to its time budget is not known yet")
    over = replace(seen, slowdown_ratio=1.062, slowdown_ci90_ratio=0.002)
    assert sentence_of_pin(over).endswith(
        "it will have been slower by between 6.0 and 6.4 %, over its budget of 5.0 % by 1.2 points"
    )
    within = replace(seen, slowdown_ratio=1.04, slowdown_ci90_ratio=0.002)
    assert sentence_of_pin(within).endswith("slower by between 3.8 and 4.2 %; its budget is 5.0 %")
