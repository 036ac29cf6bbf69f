"""The curves that a plan is made on: with the stalls of a run, and moved by what is not known of them."""

from dataclasses import replace

import pytest

from controller.curves import as_it_may_be, as_it_probably_is, as_lived, n_measurements_in
from policies.profile import PowerProfile, ProfilePoint

WINDOW_CI_RATIO = 0.0196
"""What a single measurement leaves open."""


def point(limit_w: float, rate_per_s: float, *, ci_ratio: float | None = WINDOW_CI_RATIO) -> ProfilePoint:
    """Return a point of a hundred iterations, whose power is nine tenths of the limit."""
    ci_per_s = None if ci_ratio is None else ci_ratio * rate_per_s
    return ProfilePoint(
        power_limit_w=limit_w,
        power_w=0.9 * limit_w,
        iterations_per_s=rate_per_s,
        power_ci_w=None if ci_ratio is None else ci_ratio * 0.9 * limit_w,
        iterations_per_s_ci=ci_per_s,
        n=100,
        active_s=100 / rate_per_s,
    )


CURVE = PowerProfile((point(150.0, 0.8), point(200.0, 0.93), point(250.0, 0.98), point(300.0, 1.0)))


def test_a_run_without_stalls_lives_its_curve_as_it_was_measured() -> None:
    lived = as_lived(CURVE)
    assert lived.iterations_per_s == pytest.approx(CURVE.iterations_per_s)
    assert lived.power_w == pytest.approx(CURVE.power_w)


def test_stalls_slow_a_run_alike_at_every_limit_and_are_counted_once() -> None:
    stalled = PowerProfile(tuple(replace(p, active_s=1.02 * p.active_s) for p in CURVE.points))
    lived = as_lived(stalled)
    assert lived.iterations_per_s == pytest.approx(CURVE.iterations_per_s / 1.02)
    assert as_lived(lived).iterations_per_s == pytest.approx(lived.iterations_per_s)


def test_points_of_another_run_say_nothing_of_the_stalls() -> None:
    adopted = replace(point(100.0, 0.6), n=0, active_s=0.0)
    assert as_lived(PowerProfile((adopted,))).points == (adopted,)


def test_a_supposed_curve_is_another_in_each_block_and_the_same_in_the_same_block() -> None:
    first, again, second, other_run = (
        as_it_may_be(CURVE, job="resnet50", run=run, n_block=n_block)
        for run, n_block in (("r1", 1), ("r1", 1), ("r1", 2), ("r2", 1))
    )
    assert first == again
    assert first not in (second, other_run)


def test_what_is_supposed_leaves_the_reference_of_every_promise_alone() -> None:
    reference_per_s = as_it_probably_is(CURVE).fastest.iterations_per_s
    for n_block in range(20):
        supposed = as_it_may_be(CURVE, job="resnet50", run="r1", n_block=n_block)
        assert supposed.fastest.iterations_per_s == pytest.approx(reference_per_s)


def test_a_curve_tells_by_its_intervals_how_often_it_was_measured() -> None:
    assert n_measurements_in(CURVE) == 4
    refined = PowerProfile((point(200.0, 0.93, ci_ratio=WINDOW_CI_RATIO / 3), *CURVE.points[2:]))
    assert n_measurements_in(refined) == 9 + 2
    unknown = PowerProfile((point(300.0, 1.0, ci_ratio=None),))
    assert n_measurements_in(unknown) == 0
