"""The job of a simulated run: its iterations follow from noise and limits, however often it is asked."""

from itertools import accumulate, islice

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from controller.demo.live_run.clock import ORIGIN_NS
from controller.demo.live_run.job import SimulatedJob
from controller.gpu.simulation.event_log import LimitSet
from controller.gpu.simulation.measured_curve import load_curve
from controller.gpu.simulation.noise import Noise
from controller.gpu.simulation.timeline import GpuTimeline
from controller.runtime.clock import NS_PER_S

CURVE = load_curve()
TOP_PER_S = CURVE.iterations_per_s(CURVE.max_power_limit_w)


def job_on(timeline: GpuTimeline, *, tells_length: bool = True) -> SimulatedJob:
    return SimulatedJob(
        timeline, Noise(3), work_iterations=5_000.0, run="run", started_at_s=0.0, tells_length=tells_length
    )


def new_timeline() -> GpuTimeline:
    return GpuTimeline(CURVE, Noise(3), start_ns=ORIGIN_NS, loaded=True)


@settings(max_examples=25, deadline=None)
@given(st.lists(st.tuples(st.floats(0.05, 400.0), st.sampled_from([100.0, 175.0, 300.0])), min_size=1, max_size=30))
def test_iterations_follow_one_another_and_from_the_work_alone(steps: list[tuple[float, float]]) -> None:
    timeline = new_timeline()
    job, now_ns, next_first, end_ns = job_on(timeline), ORIGIN_NS, 0, ORIGIN_NS
    works = np.array(list(islice(accumulate(Noise(3).iterations()), 9_000)))
    for seq_before, (duration_s, limit_w) in enumerate(steps):
        timeline.record(LimitSet(now_ns, limit_w))
        now_ns += round(duration_s * NS_PER_S)
        message = job.next_message(now_ns)
        if message is None:
            continue
        ends_ns = np.frombuffer(message.end_ns, dtype="<i8")
        assert message.first == next_first
        assert message.seq <= seq_before
        assert message.begin_ns == end_ns
        assert (np.diff(ends_ns) > 0).all()
        assert end_ns < ends_ns[0] <= ends_ns[-1] <= now_ns
        done = [timeline.done_iterations(int(each)) for each in ends_ns]
        assert done == pytest.approx(works[next_first : next_first + len(ends_ns)], abs=1e-6)
        next_first, end_ns = next_first + len(ends_ns), int(ends_ns[-1])
    assert next_first == np.searchsorted(works, timeline.done_iterations(now_ns), side="right")


def test_it_ends_when_its_work_is_done() -> None:
    timeline = new_timeline()
    job = job_on(timeline)
    end_s = (job.finishes_ns(ORIGIN_NS) - ORIGIN_NS) / NS_PER_S
    assert end_s == pytest.approx(5_000 / TOP_PER_S)
    half_ns = ORIGIN_NS + round(end_s * NS_PER_S / 2)
    timeline.record(LimitSet(half_ns, CURVE.min_power_limit_w))
    later_s = (job.finishes_ns(half_ns) - half_ns) / NS_PER_S
    assert later_s == pytest.approx(2_500 / CURVE.iterations_per_s(CURVE.min_power_limit_w))


def test_it_tells_its_length_only_where_it_may() -> None:
    assert job_on(new_timeline()).status.total_iterations == 5_000
    assert job_on(new_timeline(), tells_length=False).status.total_iterations is None


def test_without_a_load_it_never_ends() -> None:
    with pytest.raises(ValueError, match="must be loaded"):
        job_on(GpuTimeline(CURVE, Noise(3), start_ns=ORIGIN_NS)).finishes_ns(ORIGIN_NS)
