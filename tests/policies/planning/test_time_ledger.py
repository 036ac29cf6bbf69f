"""Tests of the ledger in shares of time: only ratios count, and what is known of them."""

from dataclasses import replace

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from policies.planning.time_ledger import base_time
from policies.vocabulary.limit_ratios import LimitRatios

TOP = LimitRatios(power_limit_w=300.0, rate_ratio=1.0, rate_error_ratio=0.0, energy_ratio=1.0, energy_error_ratio=0.0)
LOW = replace(TOP, power_limit_w=200.0, rate_ratio=0.9, rate_error_ratio=0.01)
COVARIANCE = np.diag([0.0, 1e-4])
TIMES = st.floats(1.0, 1e6)


def test_the_base_of_time_at_the_top_alone_is_that_time() -> None:
    found = base_time([100.0], [TOP], np.zeros((1, 1)), active_s=123.0)
    assert (found.base_s, found.error_ratio) == (123.0, 0.0)


def test_before_anything_is_known_the_base_is_the_time() -> None:
    assert base_time([], [], np.zeros((0, 0)), active_s=5.0).base_s == 5.0


@given(TIMES, TIMES)
def test_the_base_is_the_sum_of_times_by_their_ratios(top_s: float, low_s: float) -> None:
    found = base_time([top_s, low_s], [TOP, LOW], COVARIANCE, active_s=top_s + low_s)
    assert found.base_s == pytest.approx(top_s + 0.9 * low_s)
    assert found.error_ratio * found.base_s == pytest.approx(0.01 * low_s)


@given(TIMES, TIMES, st.floats(1.0, 1.1))
def test_time_that_is_known_at_no_limit_counts_like_the_rest(top_s: float, low_s: float, more: float) -> None:
    known = base_time([top_s, low_s], [TOP, LOW], COVARIANCE, active_s=top_s + low_s)
    whole = base_time([top_s, low_s], [TOP, LOW], COVARIANCE, active_s=more * (top_s + low_s))
    assert whole.base_s == pytest.approx(more * known.base_s)
    assert whole.error_ratio == pytest.approx(known.error_ratio)


def test_no_limit_is_faster_than_the_top() -> None:
    lucky = replace(LOW, rate_ratio=1.01)
    assert base_time([50.0, 50.0], [TOP, lucky], COVARIANCE, active_s=100.0).base_s == 100.0


def test_errors_that_two_limits_share_add_up() -> None:
    ratios = [LOW, replace(LOW, power_limit_w=210.0)]
    apart = base_time([50.0, 50.0], ratios, np.diag([1e-4, 1e-4]), active_s=100.0)
    shared = base_time([50.0, 50.0], ratios, np.full((2, 2), 1e-4), active_s=100.0)
    assert shared.error_ratio == pytest.approx(2**0.5 * apart.error_ratio)
