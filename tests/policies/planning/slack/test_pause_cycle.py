"""A pause for a part of a period: long enough, one at a time, beginning with what is in force."""

import math

import pytest
from hypothesis import given
from hypothesis import strategies as st

from policies.planning.slack.pause_cycle import PauseCycle, PauseRules, pause_cycle_for
from policies.vocabulary.power_curve import lower_hull, whole_hull
from tests.policies.days import A40

HULL = whole_hull(A40, idle_power_w=25.0)
RUN_PER_S = HULL.points[1].iterations_per_s
HOUR_S = 3_600.0


def cycle(
    share: float, *, paused_for_s: float | None = None, period_s: float = HOUR_S, rules: PauseRules | None = None
) -> PauseCycle:
    """Return the cycle for a share of the rate after the pause."""
    found = pause_cycle_for(
        HULL, share * RUN_PER_S, rules or PauseRules(), period_s=period_s, paused_for_s=paused_for_s
    )
    assert found is not None
    return found


@given(
    st.floats(0.0, 0.999),
    st.none() | st.floats(0.0, 4_000.0),
    st.floats(60.0, 7_200.0),
    st.floats(0.0, 1.0),
    st.just(math.inf) | st.floats(60.0, 7_200.0),
)
def test_a_pause_is_long_enough_and_not_too_long(
    share: float, paused_for_s: float | None, period_s: float, minimum: float, max_pause_s: float
) -> None:
    rules = PauseRules(max_pause_s=max_pause_s)
    found = pause_cycle_for(
        HULL,
        share * RUN_PER_S,
        rules,
        period_s=period_s,
        paused_for_s=paused_for_s,
        minimum_per_s=minimum * RUN_PER_S,
    )
    assert found is not None
    before_s = paused_for_s or 0.0
    assert 0 <= found.pause_s <= period_s
    assert found.rate_per_s >= minimum * RUN_PER_S - 1e-9
    assert found.pause_s == 0 or before_s + found.pause_s <= max_pause_s + 1e-6
    if found.pause_s > 0 and paused_for_s is None:
        assert found.pause_s >= min(rules.min_pause_s, period_s)
    if paused_for_s is not None and found.pause_s + before_s < min(rules.min_pause_s, before_s + period_s) - 1e-6:
        bound_s = min(period_s * (1 - minimum), max(max_pause_s - before_s, 0.0))
        assert found.pause_s == pytest.approx(bound_s, abs=1e-6)


def test_a_period_begins_with_what_is_in_force() -> None:
    running, paused = cycle(0.25), cycle(0.25, paused_for_s=600.0)
    assert (running.begins_paused, paused.begins_paused) == (False, True)
    assert running.changes_after_s == pytest.approx(900.0)
    assert paused.changes_after_s == pytest.approx(2_700.0)
    assert running.rate_per_s == pytest.approx(0.25 * RUN_PER_S) == paused.rate_per_s


def test_a_short_pause_is_five_minutes_or_none() -> None:
    assert cycle(0.95).pause_s == 300.0
    assert cycle(0.97).pause_s == 0.0
    assert cycle(0.97).changes_after_s is None
    assert cycle(0.999, paused_for_s=100.0).pause_s == 200.0


def test_a_rate_of_zero_is_a_pause_of_the_whole_period() -> None:
    assert (cycle(0.0).pause_s, cycle(0.0).changes_after_s) == (HOUR_S, None)
    assert cycle(0.0, period_s=120.0).pause_s == 120.0
    assert cycle(0.6, period_s=120.0).pause_s == 0.0


def test_the_training_says_how_long_it_may_wait() -> None:
    assert cycle(0.0, rules=PauseRules(max_pause_s=900.0)).pause_s == 900.0
    assert cycle(0.0, rules=PauseRules(max_pause_s=900.0), paused_for_s=700.0).pause_s == 200.0
    assert cycle(0.0, rules=PauseRules(max_pause_s=200.0)).pause_s == 0.0


def test_without_a_pause_in_the_hull_there_is_none() -> None:
    rules = PauseRules()
    assert pause_cycle_for(lower_hull(A40), 0.0, rules, period_s=HOUR_S, paused_for_s=None) is None
    assert pause_cycle_for(HULL, RUN_PER_S, rules, period_s=HOUR_S, paused_for_s=None) is None
