"""Whether a rate reacts to the power limit: a flat curve does not, and a noisy or short one says nothing."""

import pytest

from policies.profiling.relation import ignores_limits
from policies.vocabulary.profile import PowerProfile, ProfilePoint


def curve(*rates_per_s: float, ci_per_s: float = 0.0, step_w: float = 50.0) -> PowerProfile:
    """Return a curve from 300 W down."""
    points = [
        ProfilePoint(
            power_limit_w=300.0 - step_w * number,
            power_w=280.0 - 0.9 * step_w * number,
            iterations_per_s=rate_per_s,
            iterations_per_s_ci=ci_per_s,
        )
        for number, rate_per_s in enumerate(rates_per_s)
    ]
    return PowerProfile(tuple(reversed(points)))


@pytest.mark.parametrize("rates_per_s", [(10, 10, 10), (10, 10.1, 9.9), (10, 9.95, 10.3)])
def test_a_rate_that_stays_the_same_has_nothing_to_do_with_the_gpu(rates_per_s: tuple[float, ...]) -> None:
    assert ignores_limits(curve(*rates_per_s))


@pytest.mark.parametrize("rates_per_s", [(10, 9.9, 9.5), (10, 10, 10, 6), (10, 9)])
def test_a_rate_that_falls_at_a_lower_limit_reacts(rates_per_s: tuple[float, ...]) -> None:
    assert not ignores_limits(curve(*rates_per_s))


def test_what_falls_within_the_noise_is_no_reaction() -> None:
    assert ignores_limits(curve(10, 9.5, 9.4, ci_per_s=1.0))
    assert not ignores_limits(curve(10, 9.5, 8.4, ci_per_s=1.0))


def test_limits_that_were_hardly_cut_say_nothing() -> None:
    assert not ignores_limits(curve(10))
    assert not ignores_limits(curve(10, 10, step_w=10.0))
