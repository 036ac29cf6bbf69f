"""One run on a test bench: what it requests of its GPUs, when it releases them, and what it publishes."""

import asyncio
from collections.abc import Callable
from dataclasses import replace
from functools import partial
from pathlib import Path

import numpy as np
import pytest

from controller.accounting import run_books, run_saving
from controller.accounting.ranks import LOST_GRACE_S
from controller.control.limit_control import LimitControl
from controller.control.profile_store import read_all
from controller.gpu.meter.energy_meter import GpuEnergyMeter
from controller.ports import Hold, Sample, Target
from controller.runs.run import CLOSE_S
from controller.runtime.clock import NS_PER_S, Now
from policies.savings.interval import estimate_saving
from publishers.messages.codec import decode
from publishers.messages.reports import ProfileReport, RunEnergy
from tests.controller.control.control_bench import FULL, begin, choose, limit_control
from tests.controller.messages import iterations, rank_status
from tests.controller.runs.router_bench import SETTLE_S, TICK_S, TOPICS, RouterBench, limit_state
from tests.fakes import KEY, MIDNIGHT_S


async def train(bench: RouterBench, duration_s: int, *, seq: int = 0) -> None:
    """Publish two iterations a second, once a second, from now on."""
    for second in range(duration_s):
        await asyncio.sleep(1)
        end_s = bench.clock.monotonic_ns() / 1e9
        n = seq + second
        bench.say("iterations", iterations(end_s - 1, [end_s - 0.5, end_s], seq=n, first=2 * n))
        if second % 10 == 0:
            bench.say("status", rank_status())


def states(bench: RouterBench) -> list[str]:
    """Return the states that were published, each once in a row."""
    payloads = bench.bus.payloads(TOPICS.run(KEY, "profile"))
    return list(dict.fromkeys(decode(payload, ProfileReport).state for payload in payloads))


def energies(bench: RouterBench) -> list[RunEnergy]:
    """Return what was published of the run's energy."""
    return [decode(payload, RunEnergy) for payload in bench.bus.payloads(TOPICS.run(KEY, "energy"))]


async def test_a_run_requests_no_limit_before_its_gpu_has_answered(tmp_path: Path) -> None:
    bench = RouterBench(tmp_path)
    async with bench.working():
        bench.say("status", rank_status())
        await train(bench, 30)
    assert bench.limiters[0].targets == []


async def test_a_run_requests_no_limit_before_it_iterates(tmp_path: Path) -> None:
    bench = RouterBench(tmp_path)
    bench.limiters[0].state = limit_state()
    async with bench.working():
        bench.say("status", rank_status())
        await asyncio.sleep(30)
    assert (bench.limiters[0].targets, states(bench)) == ([], ["waiting"])


async def test_meters_are_read_closely_while_a_limit_is_measured_and_at_the_end(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    until_ns: list[int] = []
    monkeypatch.setattr(GpuEnergyMeter, "read_closely", lambda _, moment_ns: until_ns.append(moment_ns))
    bench = RouterBench(tmp_path)
    bench.limiters[0].state = limit_state()
    async with bench.working():
        bench.say("status", rank_status())
        await train(bench, 20)
        assert until_ns[-1] == pytest.approx(bench.clock.monotonic_ns() + CLOSE_S * NS_PER_S, abs=2 * NS_PER_S)
        bench.limiters[0].state = None
        await asyncio.sleep(2)
        until_ns.clear()
        bench.say("status", rank_status(state="finished"))
        await asyncio.sleep(1)
        assert len(until_ns) == 1, "the energy up to the end is read"


async def test_the_first_requested_limit_is_the_prior_one(tmp_path: Path) -> None:
    bench = RouterBench(tmp_path)
    bench.limiters[0].state = limit_state()
    async with bench.working():
        bench.say("status", rank_status())
        await train(bench, 30)
    (target,) = bench.limiters[0].targets
    assert (target.power_limit_w, target.reason, target.job) == (280.0, "profiling", "resnet50")


async def test_intervals_at_another_limit_than_the_requested_one_do_not_count(tmp_path: Path) -> None:
    bench = RouterBench(tmp_path)
    bench.limiters[0].state = limit_state(Hold.HELD, limit_w=200.0)
    async with bench.working():
        bench.say("status", rank_status())
        await train(bench, 60)
    assert len(bench.limiters[0].targets) == 1, "the sweep does not go on"


async def test_intervals_before_the_limit_is_in_force_do_not_count(tmp_path: Path) -> None:
    bench = RouterBench(tmp_path)
    async with bench.working():
        bench.say("status", rank_status())
        for second in range(60):
            in_force_ns = bench.clock.monotonic_ns() + NS_PER_S
            bench.limiters[0].state = limit_state(Hold.HELD, since_ns=in_force_ns)
            await train(bench, 1, seq=second)
    assert len(bench.limiters[0].targets) == 1


@pytest.mark.parametrize("hold", [Hold.YIELDED, Hold.OBSERVING, Hold.SUSPECT])
async def test_a_gpu_that_is_not_ours_is_observed_and_gets_no_request(tmp_path: Path, hold: Hold) -> None:
    bench = RouterBench(tmp_path)
    bench.limiters[0].state = limit_state(hold)
    async with bench.working():
        bench.say("status", rank_status())
        await train(bench, 30)
        assert energies(bench)[-1].energy_j > 0
    assert (bench.limiters[0].targets, states(bench)) == ([], ["waiting", "observing"])


async def test_a_gpu_that_recovers_gets_a_request_again(tmp_path: Path) -> None:
    bench = RouterBench(tmp_path)
    bench.limiters[0].state = limit_state(Hold.SUSPECT)
    async with bench.working():
        bench.say("status", rank_status())
        await train(bench, 20)
        bench.limiters[0].state = limit_state(Hold.FREE)
        await train(bench, 20, seq=20)
    assert len(bench.limiters[0].targets) == 1
    assert states(bench) == ["waiting", "observing", "profiling"]


async def test_gpus_of_unlike_range_are_profiled_where_both_can_follow(tmp_path: Path) -> None:
    bench = RouterBench(tmp_path, "GPU-fake-0", "GPU-fake-1")
    bench.limiters[0].state = limit_state()
    bench.limiters[1].state = replace(limit_state(), floor_power_limit_w=150.0, ceiling_power_limit_w=250.0)
    status = rank_status(gpus=["GPU-fake-0", "GPU-fake-1"])
    async with bench.working():
        bench.say("status", status)
        await asyncio.sleep(2)
        bench.say("iterations", iterations(0, [1, 2]))
        await asyncio.sleep(1)
    assert [limiter.targets[0].power_limit_w for limiter in bench.limiters] == [250.0, 250.0]


@pytest.mark.parametrize(("state", "reason"), [("finished", "run_finished"), ("lost", "run_lost")])
async def test_the_end_of_a_run_releases_its_gpu_at_once(tmp_path: Path, state: str, reason: str) -> None:
    bench = RouterBench(tmp_path)
    bench.limiters[0].state = limit_state()
    async with bench.working():
        bench.say("status", rank_status())
        await train(bench, 10)
        bench.say("status", rank_status(state=state))
        await asyncio.sleep(2 * TICK_S)
        assert set(bench.limiters[0].releases) == {reason}
        await asyncio.sleep(4 * TICK_S + (LOST_GRACE_S if state == "lost" else 0))
        assert [energy.final for energy in energies(bench)][-2:] == [False, True]
        assert energies(bench)[-1].state == state


async def test_the_energy_up_to_the_end_counts_however_slowly_it_is_read(tmp_path: Path) -> None:
    bench = RouterBench(tmp_path)
    read = bench.gpus[0].read_sample

    async def read_slowly() -> Sample:
        await asyncio.sleep(4.5 * TICK_S)
        return await read()

    bench.gpus[0].read_sample = read_slowly  # type: ignore[method-assign]  # it is busy
    async with bench.working():
        bench.say("status", rank_status())
        await train(bench, 20)
        bench.say("status", rank_status(state="finished"))
        await asyncio.sleep(20 * TICK_S)
    final = energies(bench)[-1]
    assert (final.final, final.iterations) == (True, 40)
    assert final.duration_s + (final.unmeasured_s or 0.0) == pytest.approx(20, abs=0.1)


async def test_a_stopping_controller_publishes_the_account_so_far(tmp_path: Path) -> None:
    bench = RouterBench(tmp_path)
    bench.limiters[0].state = limit_state()
    async with bench.working():
        bench.say("status", rank_status())
        await train(bench, 8)
        n_before = len(energies(bench))
        await asyncio.sleep(1)
    assert len(energies(bench)) == n_before + 1
    assert (energies(bench)[-1].state, energies(bench)[-1].final) == ("running", False)


async def test_a_measurement_waits_out_a_short_pause_at_its_limit(tmp_path: Path) -> None:
    bench = RouterBench(tmp_path)
    bench.limiters[0].state = limit_state()
    async with bench.working():
        bench.say("status", rank_status())
        await train(bench, 10)
        await asyncio.sleep(14)
        assert [target.reason for target in bench.limiters[0].targets] == ["profiling"]
        await asyncio.sleep(2)
        assert [target.reason for target in bench.limiters[0].targets] == ["profiling", "profiling_paused"]


async def test_silence_for_the_lease_releases_the_gpu(tmp_path: Path) -> None:
    bench = RouterBench(tmp_path)
    bench.limiters[0].state = limit_state()
    async with bench.working():
        bench.say("status", rank_status())
        await train(bench, 10)
        await asyncio.sleep(59)
        assert bench.limiters[0].releases == []
        await asyncio.sleep(5)
        assert bench.limiters[0].releases == ["lease_ended"]


@pytest.mark.parametrize(
    ("status", "after_s", "reason"), [({}, 60.0, "idle"), ({"total_iterations": 60}, 5.0, "run_at_its_end")]
)
async def test_a_run_that_lives_but_iterates_no_more_gives_its_gpu_back(
    tmp_path: Path, status: dict[str, int], after_s: float, reason: str
) -> None:
    bench = RouterBench(tmp_path)
    bench.limiters[0].state = limit_state()
    async with bench.working():
        bench.say("status", rank_status(**status))
        await train(bench, 30)

        async def live(duration_s: float) -> None:
            for _ in range(round(duration_s)):
                await asyncio.sleep(1)
                bench.say("status", rank_status(**status))

        await live(after_s - 2)
        assert bench.limiters[0].releases == []
        await live(4)
        assert bench.limiters[0].releases == [reason]
        await live(600)
        duration_s = energies(bench)[-1].duration_s
        n_requested = len(bench.limiters[0].targets)
        await train(bench, 5, seq=30)
        assert len(bench.limiters[0].targets) > n_requested, "it has a limit again"
        await asyncio.sleep(10)
    assert duration_s == pytest.approx(30, abs=2), "idleness is not the run's"
    assert energies(bench)[-1].duration_s == pytest.approx(30 + after_s + 600 + 5, abs=15), "a pause is"


async def test_iterations_alone_keep_the_lease(tmp_path: Path) -> None:
    bench = RouterBench(tmp_path)
    bench.limiters[0].state = limit_state()
    async with bench.working():
        bench.say("status", rank_status())
        for second in range(180):
            await asyncio.sleep(1)
            bench.say("iterations", iterations(second, [second + 1], seq=second, first=second))
        assert bench.limiters[0].releases == []


async def test_the_end_releases_a_gpu_without_a_request_too(tmp_path: Path) -> None:
    bench = RouterBench(tmp_path)
    async with bench.working():
        await bench.say_and_settle("status", rank_status())
        bench.say("status", rank_status(state="finished"))
        await asyncio.sleep(10)
    assert bench.limiters[0].releases == ["run_finished"]  # no effect on a limiter that holds nothing


async def test_energy_waits_for_its_iterations_for_a_bounded_time(tmp_path: Path) -> None:
    bench = RouterBench(tmp_path)
    async with bench.working():
        bench.say("status", rank_status())
        await train(bench, 20)
        known = energies(bench)[-1]
        for _ in range(250):  # a long pause: heartbeats, no iterations
            await asyncio.sleep(10)
            bench.say("status", rank_status(in_pause=True))
        assert known.duration_s <= 20
        waited = energies(bench)[-1]
    assert waited.duration_s > 200
    assert waited.iterations == 40
    assert waited.energy_j == pytest.approx(300 * waited.duration_s, rel=0.01)


async def test_the_curve_is_stored_without_the_stalls_that_it_is_published_with(tmp_path: Path) -> None:
    bench = RouterBench(tmp_path)
    limiter = bench.limiters[0]
    limiter.state = limit_state()
    async with bench.working():
        bench.say("status", rank_status())
        for second in range(60):  # 17 iterations a second, of which the first takes four times as long
            await asyncio.sleep(1)
            now_ns = bench.clock.monotonic_ns()
            limit_w = limiter.targets[-1].power_limit_w if limiter.targets else 0.0
            if limit_w and (limiter.state.hold, limiter.state.requested_power_limit_w) != (Hold.HELD, limit_w):
                limiter.state = limit_state(Hold.HELD, limit_w=limit_w, since_ns=now_ns)
            ends_s = [now_ns / NS_PER_S - 0.8 + 0.05 * n for n in range(17)]
            begins_s = [ends_s[0] - 0.2, *ends_s[:-1]]  # it waits for data: that is iteration
            requests_s = [begin_s + 0.001 for begin_s in begins_s]
            message = iterations(begins_s[0], ends_s, seq=second, first=17 * second, requests_s=requests_s)
            bench.say("iterations", message)
    assert bench.store.flush(10)
    (stored,) = read_all(tmp_path / "profiles").values()
    kept = stored.profile
    published = decode(bench.bus.payloads(TOPICS.run(KEY, "profile"))[-1], ProfileReport)
    assert kept.fastest.iterations_per_s == pytest.approx(20, rel=0.01)
    assert max(point.iterations_per_s for point in published.points) == pytest.approx(17, rel=0.05)


async def test_a_run_without_iterations_is_measured_and_never_limited(tmp_path: Path) -> None:
    bench = RouterBench(tmp_path)
    bench.limiters[0].state = limit_state()
    async with bench.working():
        bench.say("status", rank_status(has_iterations=False))
        await asyncio.sleep(40)
        assert energies(bench)[-1].energy_j > 0, "known while it runs"
        bench.say("status", rank_status(has_iterations=False, state="finished"))
        await asyncio.sleep(4 * TICK_S)
    last, power_w = energies(bench)[-1], (await bench.gpus[0].read_sample()).power_w
    assert power_w is not None
    assert (last.final, last.iterations, last.baseline_energy_j, last.incomplete) == (True, 0, last.energy_j, [])
    assert last.duration_s == pytest.approx(40, abs=SETTLE_S + 4 * TICK_S)
    assert last.energy_j == pytest.approx(power_w * last.duration_s, rel=0.01)
    assert bench.limiters[0].targets == []


async def test_what_runs_before_the_first_iteration_is_a_pause_where_it_is_measured(tmp_path: Path) -> None:
    bench = RouterBench(tmp_path)
    bench.limiters[0].state = limit_state()
    async with bench.working():
        bench.say("status", rank_status(has_iterations=False))
        await asyncio.sleep(30)
        await train(bench, 30)
        bench.say("status", rank_status(state="finished"))
        await asyncio.sleep(4 * TICK_S)
    last = energies(bench)[-1]
    assert last.iterations == 60
    assert last.duration_s == pytest.approx(60, abs=SETTLE_S + 4 * TICK_S)
    assert bench.n_bad == 0
    assert bench.limiters[0].targets[0].reason == "profiling"


async def test_what_a_lost_run_has_used_is_said_at_once(tmp_path: Path) -> None:
    bench = RouterBench(tmp_path)
    bench.limiters[0].state = limit_state()
    async with bench.working():
        bench.say("status", rank_status())
        await train(bench, 10)
        n_before = len(energies(bench))
        bench.say("status", rank_status(state="lost"))
        await asyncio.sleep(2 * TICK_S)
        (said,) = energies(bench)[n_before:]
        assert (said.state, said.final) == ("lost", False), "it may come back"
        bench.say("status", rank_status())
        await asyncio.sleep(2 * TICK_S)
        assert energies(bench)[-1].state == "running"


async def test_the_record_says_the_limit_and_why_it_is_so_and_at_the_end_what_it_was_last(tmp_path: Path) -> None:
    bench = RouterBench(tmp_path)
    bench.limiters[0].state = limit_state(limit_w=250.0)
    async with bench.working():
        bench.say("status", rank_status())
        await train(bench, 30)
        assert (energies(bench)[-1].reason, energies(bench)[-1].power_limit_w) == ("profiling", 250.0)
        bench.say("status", rank_status(state="finished"))
        await asyncio.sleep(4 * TICK_S)
    last = energies(bench)[-1]
    assert (last.final, last.reason, last.power_limit_w) == (True, "profiling", 250.0)


async def test_the_record_of_a_gpu_that_is_not_ours_says_why_it_is_not(tmp_path: Path) -> None:
    bench = RouterBench(tmp_path)
    bench.limiters[0].state = replace(limit_state(Hold.OBSERVING), reason="no_permission", detail="it takes root")
    async with bench.working():
        bench.say("status", rank_status())
        await train(bench, 30)
    assert (energies(bench)[-1].reason, energies(bench)[-1].detail) == ("no_permission", "it takes root")


async def test_the_record_of_a_run_whose_claim_is_refused_says_so(tmp_path: Path) -> None:
    bench = RouterBench(tmp_path)
    async with bench.working():
        await bench.say_and_settle("status", rank_status(gpus=["GPU-of-nobody"]))
        await asyncio.sleep(10)
    last = energies(bench)[-1]
    assert (last.n_gpus, last.reason) == (0, "claim_rejected")


def does_not_converge(*_: object, **__: object) -> None:
    """Fail as numpy does."""
    raise np.linalg.LinAlgError("Eigenvalues did not converge")


@pytest.mark.parametrize(
    ("estimate", "said"),
    [(estimate_saving, "saved nothing"), (does_not_converge, "what was saved cannot be computed")],
)
async def test_what_was_saved_is_told_once_and_holds_up_no_end(
    tmp_path: Path,
    estimate: Callable[..., object],
    said: str,
    caplog: pytest.LogCaptureFixture,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    caplog.set_level("DEBUG", run_saving.__name__)
    monkeypatch.setattr(run_books, "estimate_saving", estimate)
    bench = RouterBench(tmp_path)
    async with bench.working():
        bench.say("status", rank_status())
        await train(bench, 30)
        bench.say("status", rank_status(state="finished"))
        await asyncio.sleep(10)
        assert bench.router.runs == {}
    assert [said in record.message for record in caplog.records if record.name == run_saving.__name__] == [True]


async def test_a_run_that_did_nothing_here_says_nothing_of_savings(
    tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    caplog.set_level("INFO")
    bench = RouterBench(tmp_path)
    async with bench.working():
        bench.say("status", rank_status())
        await asyncio.sleep(10)
        bench.say("status", rank_status(state="finished"))
        await asyncio.sleep(10)
    assert "saved" not in caplog.text


async def test_a_plan_that_cannot_be_told_still_acts(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    bench = RouterBench(tmp_path)
    bench.limiters[0].state = limit_state(limit_w=240.0)
    async with bench.working():
        await bench.say_and_settle("status", rank_status())
        leader = bench.training_run()._leader
        leader.limits = begin(limit_control(), known=FULL)
        target = choose(leader.limits, at_s=0.0)
        publish = partial(leader.publish, target, is_barred=False)
        publish(now=Now(MIDNIGHT_S, 0))

        def fail(*_: object, **__: object) -> None:
            raise IndexError("no entry")

        monkeypatch.setattr(LimitControl, "schedule", fail)
        choose(leader.limits, at_s=400.0)
        publish(now=Now(MIDNIGHT_S + 400, 0))
        told = bench.bus.payloads(TOPICS.run(KEY, "schedule"))
    assert [bool(payload) for payload in told[-2:]] == [True, False], "what held before is not told any more"
    assert "what its plan expects is not published" in caplog.text


async def test_the_speed_is_that_of_the_limit_in_force_and_is_kept_while_that_stays(tmp_path: Path) -> None:
    bench = RouterBench(tmp_path)
    bench.limiters[0].state = limit_state(Hold.HELD, limit_w=280.0)
    async with bench.working():
        await bench.say_and_settle("status", rank_status())
        run = bench.training_run()
        target = Target(power_limit_w=240.0, reason="slowdown_static", detail="", job="resnet50", speed_ratio=0.97)
        run.gpus.request(target)
        speeds = []
        for limit_w, wanted in ((280.0, target), (240.0, None), (240.0, target), (200.0, None), (240.0, None)):
            bench.limiters[0].state = limit_state(Hold.HELD, limit_w=limit_w)
            run._record.note_limit(wanted, is_claim_rejected=False)
            run._record.publish("running")
            speeds.append(energies(bench)[-1].speed_ratio)
    assert speeds == [None, 0.97, 0.97, None, 0.97]
