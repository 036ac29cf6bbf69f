"""Sharing slack at the limits of a plan: each limit has its own findings, and only what was in force counts."""

from dataclasses import replace

import pytest

from controller.accounting.meter_intervals import MeterInterval
from controller.control.gpu_group import GpuGroup
from controller.control.straggler_slack import MAX_GAP_S, MAX_LIMITS, StragglerSlack
from controller.ports import Hold, Target
from tests.controller.messages import ns
from tests.controller.runs.router_bench import limit_state
from tests.fakes import FakeGpu, FakeLimiter

BLOCK_S = 5.0


class ObedientLimiter(FakeLimiter):
    """A power limiter that acts at once."""

    def request(self, target: Target) -> None:
        super().request(target)
        assert self.state is not None
        limit_w = max(target.power_limit_w, self.state.floor_power_limit_w)
        self.state = replace(
            self.state, hold=Hold.HELD, requested_power_limit_w=limit_w, enforced_power_limit_w=limit_w
        )


class Bench:
    """Two GPUs from 100 to 280 W, of which the second keeps the first waiting, at a rate that depends on the plan."""

    def __init__(self) -> None:
        self.limiters = [ObedientLimiter(FakeGpu(f"GPU-{n}")) for n in range(2)]
        self.gpus = GpuGroup()
        for limiter in self.limiters:
            limiter.state = limit_state()
            self.gpus.add(limiter, None)  # type: ignore[arg-type]  # no meter is read here
        self.sharing = StragglerSlack(self.gpus, settle_s=0.0)
        self.now_s = 0.0

    def train(self, plan_w: float, duration_s: float, *, is_steady: bool = True) -> list[float]:
        """Train at a limit of the plan; return the GPUs' limits in the end [W]."""
        target = Target(power_limit_w=plan_w, reason="eta_static", detail="a test", job="resnet50")
        for _ in range(int(duration_s / BLOCK_S)):
            self.gpus.request(target, self.sharing.reductions(target, is_steady=is_steady))
            begin_s, self.now_s = self.now_s, self.now_s + BLOCK_S
            self.sharing.observe(
                MeterInterval(
                    begin_ns=ns(begin_s), end_ns=ns(self.now_s), active=True, n_iterations=0.1 * plan_w, energy_j=1e3
                )
            )
        return [limiter.targets[-1].power_limit_w for limiter in self.limiters]


def test_a_gpu_that_waits_gets_less_with_a_reason_of_its_own() -> None:
    bench = Bench()
    assert bench.train(200.0, 200) == [pytest.approx(190.0), 200.0]
    target = bench.limiters[0].targets[-1]
    assert target.reason == "slack_shared"
    assert target.detail == "5% below the run's 200 W: it waits for another GPU; a test"


def test_while_a_limit_is_being_measured_every_gpu_has_it() -> None:
    bench = Bench()
    bench.train(200.0, 600)
    assert bench.train(200.0, 5, is_steady=False) == [200.0, 200.0]
    assert bench.train(200.0, 5)[0] < 200.0, "it goes on where it was"


def test_each_limit_of_a_duty_cycle_has_a_state_of_its_own_over_many_visits() -> None:
    bench = Bench()
    for _ in range(10):
        bench.train(240.0, 60)
        bench.train(200.0, 60)
    assert bench.train(240.0, 5) == [pytest.approx(240.0 * 0.8), 240.0]
    assert bench.train(200.0, 5) == [pytest.approx(200.0 * 0.8), 200.0]


def test_a_measurement_is_not_resumed_after_long() -> None:
    bench = Bench()
    bench.train(200.0, 150)
    bench.train(240.0, MAX_GAP_S + 200)
    assert bench.train(200.0, 5) == [200.0, 200.0], "the trial has ended"


def test_what_was_not_in_force_does_not_count() -> None:
    bench = Bench()
    bench.train(200.0, 5)
    state = bench.limiters[1].state
    assert state is not None
    bench.limiters[1].state = replace(state, requested_power_limit_w=150.0)
    assert bench.train(200.0, 600) == [200.0, 200.0]


def test_late_intervals_do_not_count_for_limits_not_yet_requested() -> None:
    bench = Bench()
    bench.train(200.0, 5)
    for second in range(3_600):
        bench.sharing.observe(
            MeterInterval(begin_ns=ns(5 + second), end_ns=ns(6 + second), active=True, n_iterations=20.0, energy_j=1e3)
        )
    assert bench.train(200.0, 5) == [pytest.approx(190.0), 200.0], "the first trial only begins"


def test_no_gpu_gets_less_than_the_floor() -> None:
    bench = Bench()
    bench.train(110.0, 3_600)
    assert min(target.power_limit_w for target in bench.limiters[0].targets) == pytest.approx(104.5)


def test_only_the_latest_limits_are_remembered() -> None:
    bench = Bench()
    for plan_w in range(110, 280, 10):
        bench.train(float(plan_w), 10)
    assert len(bench.sharing._known) == MAX_LIMITS
    assert len(bench.sharing._left_ns) <= MAX_LIMITS


def test_a_run_with_lowered_gpus_is_not_measured_for_its_curve() -> None:
    bench = Bench()
    bench.train(200.0, 5)
    assert bench.gpus.enforced_w(ns(1.0)) == 200.0
    bench.train(200.0, 300)
    assert bench.gpus.is_in_force(ns(1.0))
    assert bench.gpus.enforced_w(ns(1.0)) is None
