"""What a plan would have saved that was only observed: by an earlier curve, with its interval, or not at all."""

import math

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from controller.control.observe_mode import MAX_CI90_RATIO, estimate
from policies.vocabulary.profile import PowerProfile

TOP_W = 280.0


def power_w(limit_w: float) -> float:
    """Return what a job draws at a limit [W]."""
    return 0.9 * limit_w


def rate_per_s(limit_w: float) -> float:
    """Return how fast it is there [1/s]."""
    return 0.5 * math.pow(limit_w / TOP_W, 0.3)


def saved_ratio(limit_w: float) -> float:
    """Return what a limit saves of the energy of an iteration."""
    return 1 - power_w(limit_w) / rate_per_s(limit_w) / (power_w(TOP_W) / rate_per_s(TOP_W))


def curve(seed: int = 0, *, error_ratio: float = 0.01) -> PowerProfile:
    """Return the curve of a former run, off by some per cent, as jobs wander."""
    noise = 1 + error_ratio * np.random.default_rng(seed).standard_normal((6, 2))
    limits_w = (100.0, 145.0, 180.0, 205.0, 225.0, TOP_W)
    return PowerProfile.from_rows(
        [(w, power_w(w) * float(a), rate_per_s(w) * float(b)) for w, (a, b) in zip(limits_w, noise, strict=True)]
    )


def test_the_interval_holds_what_would_have_been_saved() -> None:
    true_ratio = 0.25 * saved_ratio(205.0) + 0.75 * saved_ratio(180.0)
    found = [estimate(curve(seed), {205.0: 100.0, 180.0: 300.0}) for seed in range(50)]
    errors = [(each.ratio - true_ratio) / each.ci90_ratio for each in found if each is not None]
    assert len(errors) == 50
    assert 43 <= sum(abs(error) <= 1 for error in errors) <= 50, errors
    assert abs(np.mean(errors)) < 0.3


def test_at_the_highest_limit_it_would_have_saved_nothing() -> None:
    assert estimate(curve(), {TOP_W: 10.0}) == pytest.approx((0.0, 0.0), abs=1e-9)


def test_what_a_curve_does_not_tell_is_not_told() -> None:
    assert estimate(PowerProfile.from_rows([(TOP_W, 250.0, 4.0)]), {100.0: 1.0}) is None, "far from what was measured"
    assert estimate(curve(), {}) is None
    assert estimate(curve(), {180.0: -1.0}) is None, "a price below 0"


@given(
    st.dictionaries(
        st.floats(80.0, 300.0), st.floats(-1e12, 1e12) | st.sampled_from([0.0, 5e-324, 1e-9]), min_size=1, max_size=5
    )
)
def test_whatever_the_signal_a_number_has_a_narrow_interval(work: dict[float, float]) -> None:
    found = estimate(curve(), work)
    if found is not None:
        assert math.isfinite(found.ratio)
        assert 0 <= found.ci90_ratio <= MAX_CI90_RATIO
        assert -1 <= found.ratio < 1
