"""The GPUs of a run: one limit for all of them, and what was in force."""

from dataclasses import replace

import pytest

from controller.control.gpu_group import GpuGroup
from controller.ports import Hold, Target
from tests.controller.runs.router_bench import limit_state
from tests.fakes import FakeGpu, FakeLimiter


def target(power_limit_w: float) -> Target:
    return Target(power_limit_w=power_limit_w, reason="profiling", detail="a test", job="resnet50")


def held(*requested_w: float) -> tuple[GpuGroup, list[FakeLimiter]]:
    """Return a run's GPUs, each with this limit on it since the moment 100 ns."""
    gpus, limiters = GpuGroup(), [FakeLimiter(FakeGpu(f"GPU-{n}")) for n in range(len(requested_w))]
    for limiter, power_limit_w in zip(limiters, requested_w, strict=True):
        state = replace(limit_state(), hold=Hold.HELD, since_ns=100)
        limiter.state = replace(state, requested_power_limit_w=power_limit_w, enforced_power_limit_w=power_limit_w)
        gpus.add(limiter, None)  # type: ignore[arg-type]  # no meter is read here
    return gpus, limiters


def test_every_gpu_gets_one_request_for_the_same_limit() -> None:
    gpus, limiters = held(250.0, 250.0)
    gpus.request(target(200.0))
    gpus.request(target(200.0))
    assert [[t.power_limit_w for t in limiter.targets] for limiter in limiters] == [[200.0], [200.0]]


def test_a_limit_is_in_force_where_every_gpu_has_had_it_all_the_time() -> None:
    gpus, limiters = held(200.0, 200.0)
    assert gpus.enforced_w(100) is None  # nothing was asked
    gpus.request(target(200.0))
    assert gpus.enforced_w(100) == 200.0
    assert gpus.enforced_w(99) is None  # not yet at the beginning
    limiters[1].state = replace(limiters[1].state, requested_power_limit_w=225.0)  # type: ignore[type-var]
    assert gpus.enforced_w(100) is None


@pytest.mark.parametrize("hold", [Hold.FREE, Hold.YIELDED, Hold.OBSERVING, Hold.SUSPECT])
def test_a_limit_that_is_not_held_is_not_in_force(hold: Hold) -> None:
    gpus, limiters = held(200.0)
    gpus.request(target(200.0))
    limiters[0].state = replace(limiters[0].state, hold=hold)  # type: ignore[type-var]
    assert gpus.enforced_w(100) is None


def test_a_target_outside_the_bounds_is_in_force_at_the_bound() -> None:
    gpus, _ = held(limit_state().floor_power_limit_w)
    gpus.request(target(1.0))
    assert gpus.enforced_w(100) == limit_state().floor_power_limit_w


def test_the_lowest_enforced_limit_of_several_gpus_counts() -> None:
    gpus, limiters = held(200.0, 200.0)
    gpus.request(target(200.0))
    limiters[0].state = replace(limiters[0].state, enforced_power_limit_w=180.0)  # type: ignore[type-var]
    assert gpus.enforced_w(100) == 180.0


def test_a_late_write_is_released_where_another_gpu_is_not_ours() -> None:
    gpus, limiters = held(200.0, 200.0)
    gpus.request(target(200.0))
    limiters[0].state = replace(limiters[0].state, hold=Hold.OBSERVING)  # type: ignore[type-var]
    limiters[1].state = replace(limiters[1].state, hold=Hold.FREE)  # type: ignore[type-var]
    gpus.release("other_gpu_not_ours", "its write is in mid-air", only=Hold.HELD)
    limiters[1].state = replace(limiters[1].state, hold=Hold.HELD)  # type: ignore[type-var]
    gpus.release("other_gpu_not_ours", "it has landed", only=Hold.HELD)
    assert [limiter.releases for limiter in limiters] == [[], ["other_gpu_not_ours"]]


def test_the_end_releases_every_gpu_whatever_its_limit_looks_like() -> None:
    gpus, limiters = held(200.0, 200.0)
    limiters[1].state = replace(limiters[1].state, hold=Hold.FREE)  # type: ignore[type-var]
    gpus.release_all("run_finished", "a test")
    assert [limiter.releases for limiter in limiters] == [["run_finished"], ["run_finished"]]


def test_the_prior_limits_add_up_once_every_gpu_has_answered() -> None:
    gpus, _ = held(200.0, 250.0)
    assert gpus.prior_power_limit_w == 2 * limit_state().prior_power_limit_w


def test_the_prior_limits_are_unknown_while_a_gpu_has_not_answered() -> None:
    gpus, limiters = held(200.0, 250.0)
    limiters[1].state = None
    assert gpus.prior_power_limit_w is None
    assert GpuGroup().prior_power_limit_w is None


def test_for_the_books_gpus_that_are_to_have_less_are_told_apart() -> None:
    gpus, limiters = held(200.0, 180.0)
    gpus.request(target(200.0), {"GPU-1": 0.1})
    now = gpus.now()
    assert (now.in_force, now.are_reduced) == ((200.0, 100), True), "the least of those that have the run's limit"
    limiters[1].state = replace(limiters[0].state, since_ns=200)  # type: ignore[type-var]
    gpus.request(target(200.0))
    assert (gpus.now().in_force, gpus.now().are_reduced) == ((200.0, 200), False)


@pytest.mark.parametrize(
    ("second_w", "prior_w", "are_at_prior"), [(280.0, 280.0, True), (200.0, 200.0, True), (200.0, 280.0, False)]
)
def test_for_the_books_each_gpu_is_held_against_its_own_prior_limit(
    second_w: float, prior_w: float, are_at_prior: bool
) -> None:
    gpus, limiters = held(280.0, second_w)
    limiters[1].state = replace(limiters[1].state, prior_power_limit_w=prior_w)  # type: ignore[type-var]
    assert gpus.now().are_at_prior == are_at_prior


def test_for_the_books_nothing_is_known_before_every_gpu_has_answered() -> None:
    gpus, limiters = held(200.0, 200.0)
    limiters[1].state = None
    assert (gpus.now().in_force, gpus.now().highest_w) == (None, 0.0)
    assert GpuGroup().now().in_force is None
