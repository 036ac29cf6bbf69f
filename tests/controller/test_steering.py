"""Steering: waiting, profiling, planned, in this order; what is known already is not measured again."""

import pytest

from controller.config import EnergyConfig, PlanConfig, ProfilerConfig
from controller.ports import Provenance, Target
from controller.run_account import Slice
from controller.steering import Steering
from policies.planning import Progress
from policies.profile import PowerProfile, ProfilePoint
from policies.signal import Signal
from tests.controller.messages import ns
from tests.fakes import MIDNIGHT_S, flat_signal

FULL = PowerProfile(
    (
        ProfilePoint(power_limit_w=200.0, power_w=190.0, iterations_per_s=0.98),
        ProfilePoint(power_limit_w=300.0, power_w=280.0, iterations_per_s=1.0),
    )
)


def steering(*, plan: PlanConfig | None = None, energy: EnergyConfig | None = None) -> Steering:
    """Return the steering of a run that measures at 300 and 200 W, 10 s each after 2 s."""
    profiler = ProfilerConfig(step_w=100.0, settle_s=2.0, window_s=10.0)
    return Steering(job="resnet50", profiler=profiler, plan=plan or PlanConfig(), energy=energy or EnergyConfig())


def begin(run: Steering, known: PowerProfile | None = None) -> Steering:
    """Let it begin between 200 and 300 W."""
    run.begin(floor_power_limit_w=200.0, ceiling_power_limit_w=300.0, known=known)
    return run


def choose(
    run: Steering, *, at_s: float = 0.0, history: Signal | None = None, provenance: Provenance | None = None
) -> Target | None:
    """Return the limit that the run should have at a time."""
    progress = Progress(n_iterations=0.0, active_s=0.0, started_at_s=MIDNIGHT_S)
    return run.choose(
        now_s=MIDNIGHT_S + at_s,
        history=history,
        forecast=None,
        progress=progress,
        provenance=provenance or Provenance(source="test"),
    )


def piece(power_w: float, rate_per_s: float, *, duration_s: float = 2.0) -> Slice:
    """Return an active slice."""
    return Slice(
        begin_ns=0,
        end_ns=ns(duration_s),
        active=True,
        n_iterations=rate_per_s * duration_s,
        energy_j=power_w * duration_s,
    )


def sweep(run: Steering) -> list[float]:
    """Measure until the plan is made; return the limits that were asked for."""
    asked_w: list[float] = []
    while run.name == "profiling":
        target = choose(run)
        assert target is not None
        asked_w.append(target.power_limit_w)
        run.observe(piece(0.9 * target.power_limit_w, target.power_limit_w / 300), enforced_power_limit_w=asked_w[-1])
    return list(dict.fromkeys(asked_w))


def test_a_run_that_has_not_begun_waits_and_asks_for_nothing() -> None:
    run = steering()
    assert (run.name, run.profile, choose(run)) == ("waiting", None, None)
    assert not run.observe(piece(1, 1), enforced_power_limit_w=300.0)


def test_the_sweep_goes_from_the_prior_limit_down_and_ends_in_the_plan() -> None:
    run = begin(steering())
    first = choose(run)
    assert first is not None
    assert (first.power_limit_w, first.reason, first.detail) == (300.0, "profiling", "measures limit 1 of 2")
    assert sweep(run) == [300.0, 200.0]
    assert run.name == "planned"
    assert run.profile is not None
    assert [point.power_limit_w for point in run.profile.points] == [200.0, 300.0]


def test_a_curve_that_has_grown_is_reported_once_a_point() -> None:
    run = begin(steering())
    grown = [run.observe(piece(270.0, 1.0), enforced_power_limit_w=300.0) for _ in range(17)]
    assert grown.count(True) == 1
    assert run.profile is not None
    assert len(run.profile.points) == 1


def test_a_stored_profile_spares_the_sweep() -> None:
    run = begin(steering(), FULL)
    assert (run.name, run.profile) == ("planned", FULL)


def test_half_a_stored_profile_shortens_the_sweep() -> None:
    run = begin(steering(), PowerProfile(FULL.points[1:]))
    assert sweep(run) == [200.0]


def test_the_plan_is_made_once_a_period() -> None:
    run = begin(steering(plan=PlanConfig(period_s=300.0)), FULL)
    targets = [choose(run, at_s=at_s, history=flat_signal(100.0 + at_s)) for at_s in (0, 299, 300)]
    assert targets[0] is not None
    assert targets[0].signal == "100 g/kWh (test)"
    assert targets[1] is targets[0]
    assert targets[2] is not None
    assert targets[2].signal == "400 g/kWh (test)"


def test_a_doubt_about_the_signal_is_the_reason_of_what_is_decided_on_it() -> None:
    run = begin(steering(), FULL)
    doubt = Provenance(source="a, held for 1.2 h", doubt="signal_held", sentence="a fails; its last value is held")
    target = choose(run, history=flat_signal(100.0), provenance=doubt)
    assert target is not None
    assert (target.reason, target.signal) == ("signal_held", "100 g/kWh (a, held for 1.2 h)")
    assert target.detail.startswith("a fails; its last value is held: ")


def test_a_plan_without_a_signal_tells_none() -> None:
    target = choose(begin(steering(), FULL))
    assert target is not None
    assert (target.reason, target.signal, target.power_limit_w) == ("slowdown_static", None, 200.0)


@pytest.mark.parametrize(("eta", "limit_w"), [(1.0, 200.0), (0.0, 300.0)])
def test_the_objective_is_the_configured_one(eta: float, limit_w: float) -> None:
    target = choose(begin(steering(plan=PlanConfig(objective="eta", eta=eta)), FULL))
    assert target is not None
    assert (target.reason, target.power_limit_w) == ("eta_static", limit_w)


def test_a_costly_host_makes_slowing_down_not_worth_it() -> None:
    slow = PowerProfile(
        (
            ProfilePoint(power_limit_w=200.0, power_w=190.0, iterations_per_s=0.8),
            ProfilePoint(power_limit_w=300.0, power_w=280.0, iterations_per_s=1.0),
        )
    )
    plan = PlanConfig(objective="eta", eta=1.0)
    alone, within = (
        choose(begin(steering(plan=plan, energy=EnergyConfig(host_power_w=host_w)), slow)) for host_w in (0.0, 500.0)
    )
    assert alone is not None
    assert within is not None
    assert (alone.power_limit_w, within.power_limit_w) == (200.0, 300.0)


def test_a_change_of_gpus_begins_anew() -> None:
    run = begin(steering(), FULL)
    run.reset()
    assert (run.name, run.profile, choose(run)) == ("waiting", None, None)


def test_a_gpu_without_room_below_its_prior_limit_is_measured_at_that_one() -> None:
    run = steering()
    run.begin(floor_power_limit_w=300.0, ceiling_power_limit_w=300.0, known=None)
    assert sweep(run) == [300.0]
    assert run.name == "planned"


def test_a_run_of_which_no_limit_can_be_measured_keeps_its_highest_one() -> None:
    run = begin(steering())
    for flicker in range(100):
        run.observe(piece(150.0, 1.0), enforced_power_limit_w=150.0 + 20 * (flicker % 2))
    target = choose(run)
    assert target is not None
    assert (target.power_limit_w, target.reason, run.profile) == (300.0, "not_profiled", None)
