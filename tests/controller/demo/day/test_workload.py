"""The job of the demo: the same work for the run and the baseline, exact whatever the limits."""

from collections.abc import Iterator
from itertools import islice
from pathlib import Path

import pytest

from controller.demo.day.accounting import job_bounds_ns, run_baseline
from controller.demo.day.workload import PAUSE_S, Training, Workload, fill, run_through
from controller.demo.live_run.clock import ORIGIN_NS, SteppedClock
from controller.gpu.simulation.backend import SimulatedGpu
from controller.gpu.simulation.event_log import FOREVER_NS, LimitSet
from controller.gpu.simulation.measured_curve import load_curve
from controller.gpu.simulation.noise import Noise
from controller.gpu.simulation.timeline import GpuTimeline
from controller.runtime.clock import NS_PER_S

CURVE = load_curve()
BEGIN_NS = 1_000 * NS_PER_S


def on_time(end_ns: int) -> int:
    """Wake up just when it is time."""
    return end_ns


def baseline_s(epochs: int, *, seed: int = 1, power_limit_w: float = 300.0) -> float:
    workload = Workload(epochs=epochs, iterations_per_epoch=500)
    history = run_baseline(CURVE, workload, seed=seed, start_ns=0, begin_ns=BEGIN_NS, power_limit_w=power_limit_w)
    begin_ns, end_ns = job_bounds_ns(history)
    assert begin_ns == BEGIN_NS
    return (end_ns - begin_ns) / NS_PER_S


def test_the_baseline_takes_as_long_as_its_noisy_iterations_and_pauses() -> None:
    work = sum(islice(Noise(1).iterations(), 1_500))
    assert baseline_s(3) == pytest.approx(work / CURVE.iterations_per_s(300.0) + 2 * PAUSE_S, abs=1e-6)


def test_the_baseline_is_linear_in_the_work_but_for_noise() -> None:
    one_s, ten_s = baseline_s(1), baseline_s(10)
    assert ten_s - 9 * PAUSE_S == pytest.approx(10 * one_s, rel=0.005)


def test_a_lower_limit_stretches_every_iteration_by_the_same_factor() -> None:
    ratio = CURVE.iterations_per_s(300.0) / CURVE.iterations_per_s(175.0)
    assert baseline_s(1, power_limit_w=175.0) == pytest.approx(ratio * baseline_s(1), rel=1e-9)


def test_another_seed_is_another_run() -> None:
    assert baseline_s(1, seed=1) != baseline_s(1, seed=2)
    assert baseline_s(1, seed=1) == baseline_s(1, seed=1)


def test_iterations_end_as_a_fine_integration_says() -> None:
    limits = {100.0: 150.0, 200.3: 262.5, 231.9: 100.0, 260.0: 300.0}
    history = GpuTimeline(CURVE, Noise(1), start_ns=0)
    for seconds_s, limit_w in limits.items():
        history.record(LimitSet(round(seconds_s * NS_PER_S), limit_w))
    training = Training(history, Noise(1), begin_ns=0)
    training.begin()
    for _ in range(250):
        run_through(training.run_iteration(), on_time)
    step_s, time_s, done = 0.001, 0.0, 0.0
    goal = sum(islice(Noise(1).iterations(), 250))
    while done < goal:
        limit_w = next((limits[at_s] for at_s in sorted(limits, reverse=True) if time_s >= at_s), 300.0)
        done += CURVE.iterations_per_s(limit_w) * step_s
        time_s += step_s
    assert training.time_ns / NS_PER_S == pytest.approx(time_s, abs=0.005)


def test_a_process_that_oversleeps_ends_its_iterations_at_the_same_times() -> None:
    def ends_ns(oversleep_ns: int) -> list[int]:
        history = GpuTimeline(CURVE, Noise(1), start_ns=0)
        history.record(LimitSet(20 * NS_PER_S, 150.0))
        training = Training(history, Noise(1), begin_ns=0)
        training.begin()
        ends = []
        for _ in range(100):
            run_through(training.run_iteration(), lambda end_ns: end_ns + oversleep_ns)
            ends.append(training.time_ns)
        return ends

    assert ends_ns(0) == ends_ns(7 * NS_PER_S)


def test_a_limit_that_changes_while_it_waits_moves_the_end_of_the_iteration() -> None:
    history = GpuTimeline(CURVE, Noise(1), start_ns=0)
    waited: list[int] = []

    def wait(end_ns: int) -> int:
        if not waited:
            history.record(LimitSet(0, 100.0))
        waited.append(end_ns)
        return end_ns

    training = Training(history, Noise(1), begin_ns=0)
    training.begin()
    run_through(training.run_iteration(), wait)
    assert len(waited) == 2
    assert training.time_ns == waited[1] > 2 * waited[0]


async def test_what_the_meters_show_is_final_although_a_pause_is_told_late(tmp_path: Path) -> None:
    clock = SteppedClock(0.0)
    ours, its = (GpuTimeline(CURVE, Noise(1), start_ns=ORIGIN_NS, path=tmp_path / "gpu.events") for _ in range(2))
    gpu = SimulatedGpu(ours, clock=clock)
    woken_ns = [ORIGIN_NS]

    def oversleep(end_ns: int) -> int:
        woken_ns.append(end_ns + 6 * NS_PER_S)
        return woken_ns[-1]

    training = Training(its, Noise(1), begin_ns=ORIGIN_NS)
    training.begin()
    shown = []
    for iteration in range(100):
        run_through(training.run_iteration(), oversleep)
        await clock.step_to(woken_ns[-1])
        shown.append(await gpu.read_sample())
        if iteration % 25 == 24:
            training.pause(PAUSE_S)
    training.end()
    for sample in shown:
        assert sample.energy_j == its.counted_j(sample.time_ns)
    assert shown[-1].time_ns > training.time_ns - 30 * NS_PER_S
    ours.close()
    its.close()


def test_a_job_that_does_not_use_the_gpu_is_an_error() -> None:
    history = GpuTimeline(CURVE, Noise(1), start_ns=0)
    training = Training(history, Noise(1), begin_ns=0)
    with pytest.raises(RuntimeError, match="begin"):
        run_through(training.run_iteration(), on_time)


def test_the_job_fills_the_time_with_whole_epochs() -> None:
    workload = fill(CURVE, power_limit_w=300.0, duration_s=23 * 3_600.0)
    assert workload == Workload(epochs=21, iterations_per_epoch=5_004)
    assert workload.iterations == 105_084
    assert fill(CURVE, power_limit_w=300.0, duration_s=1.0).epochs == 1


def test_the_meters_go_on_however_the_training_ends() -> None:
    history = GpuTimeline(CURVE, Noise(1), start_ns=0)
    training = Training(history, Noise(1), begin_ns=0)

    def broken_off() -> Iterator[int]:
        yield from range(3)
        raise KeyboardInterrupt

    with pytest.raises(KeyboardInterrupt):
        run_through(training.run(Workload(epochs=1, iterations_per_epoch=10), broken_off()), on_time)
    assert history.settled_ns == FOREVER_NS
    assert training.time_ns > 0
