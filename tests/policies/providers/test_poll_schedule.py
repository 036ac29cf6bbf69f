"""Courtesy: once a step, less often after failures, never sooner than the source allows, and never not at all."""

import math

import pytest
from hypothesis import given
from hypothesis import strategies as st

from policies.providers.base import SignalError, SignalLimitedError, SignalRefusedError, SignalUnavailableError
from policies.providers.poll_schedule import (
    FIRST_PAUSE_S,
    JITTER_STEPS,
    LATE_PAUSE_S,
    LATE_STEPS,
    LONGEST_PAUSE_S,
    LONGEST_WAIT_S,
    REFUSED_PAUSE_S,
    Courtesy,
    after_answer,
    after_failure,
)

NOW_S = 1_792_929_000.0
nows_s = st.floats(0.0, 4e9)
steps_s = st.one_of(st.sampled_from([300.0, 900.0, 1_800.0, 3_600.0, 86_400.0, math.inf]), st.floats(60.0, 1e6))
jitters = st.floats(0.0, 1.0)
failures = st.builds(
    lambda kind, retry_after_s: kind("it failed", retry_after_s=retry_after_s),
    st.sampled_from([SignalUnavailableError, SignalLimitedError, SignalRefusedError]),
    st.one_of(st.none(), st.floats(0.0, math.inf)),
)


def failed(n_times: int, error: SignalError | None = None, jitter_ratio: float = 0.0) -> Courtesy:
    courtesy = Courtesy()
    for _ in range(n_times):
        courtesy = after_failure(
            courtesy, error or SignalUnavailableError("down"), now_s=NOW_S, jitter_ratio=jitter_ratio
        )
    return courtesy


def test_who_was_never_asked_is_asked_at_once() -> None:
    assert Courtesy().is_due(0.0)


@given(nows_s, steps_s, jitters)
def test_after_an_answer_it_is_asked_when_the_next_step_has_begun(
    now_s: float, step_s: float, jitter_ratio: float
) -> None:
    courtesy = after_answer(now_s=now_s, step_s=step_s, jitter_ratio=jitter_ratio)
    assert not courtesy.is_due(now_s)
    if step_s < LONGEST_WAIT_S / (1 + JITTER_STEPS):
        begins_s = (now_s // step_s + 1) * step_s
        assert begins_s <= courtesy.next_s <= begins_s + JITTER_STEPS * step_s * (1 + 1e-9) + 1e-6
        assert courtesy.is_due(courtesy.next_s)


@given(nows_s, steps_s, jitters)
def test_a_source_that_is_late_is_asked_again_within_its_step_but_not_at_once(
    now_s: float, step_s: float, jitter_ratio: float
) -> None:
    on_time = after_answer(now_s=now_s, step_s=step_s, jitter_ratio=jitter_ratio)
    late = after_answer(now_s=now_s, step_s=step_s, jitter_ratio=jitter_ratio, is_current=False)
    assert now_s < late.next_s <= on_time.next_s
    assert not late.is_due(now_s)


def test_a_late_source_is_asked_again_after_a_part_of_its_step_and_ten_minutes_at_most() -> None:
    begins_s = NOW_S // 86_400.0 * 86_400.0
    pauses_s = [
        after_answer(now_s=begins_s, step_s=step_s, jitter_ratio=0.0, is_current=False).next_s - begins_s
        for step_s in (300.0, 3_600.0, 86_400.0)
    ]
    assert pauses_s == [LATE_STEPS * 300.0, min(LATE_STEPS * 3_600.0, LATE_PAUSE_S), LATE_PAUSE_S]
    assert pauses_s[0] < 300.0


@given(nows_s, st.floats(60.0, LONGEST_WAIT_S / 2))
def test_a_cluster_does_not_ask_in_one_second(now_s: float, step_s: float) -> None:
    asked_s = [after_answer(now_s=now_s, step_s=step_s, jitter_ratio=i / 10).next_s for i in range(11)]
    assert asked_s[-1] - asked_s[0] == pytest.approx(JITTER_STEPS * step_s, rel=1e-3)
    assert asked_s == sorted(set(asked_s))


def test_an_answer_closes_the_circuit() -> None:
    assert after_answer(now_s=NOW_S, step_s=3_600.0, jitter_ratio=0.0).n_failures == 0


def test_each_failure_doubles_the_pause_up_to_a_quarter_of_an_hour() -> None:
    pauses_s = [failed(n).next_s - NOW_S for n in range(1, 9)]
    assert pauses_s == [30.0, 60.0, 120.0, 240.0, 480.0, 900.0, 900.0, 900.0]


def test_one_trial_is_made_when_the_pause_is_over_and_its_failure_is_one_more() -> None:
    courtesy = failed(4)
    assert not courtesy.is_due(courtesy.next_s - 1.0)
    assert courtesy.is_due(courtesy.next_s)
    again = after_failure(courtesy, SignalUnavailableError("down"), now_s=courtesy.next_s, jitter_ratio=0.0)
    assert again.next_s - courtesy.next_s == 2 * (courtesy.next_s - NOW_S)


def test_a_refusal_is_left_for_an_hour_from_the_first() -> None:
    assert failed(1, SignalRefusedError("wrong token")).next_s - NOW_S == REFUSED_PAUSE_S


@given(nows_s, failures, jitters, st.integers(0, 5_000))
def test_after_a_failure_nobody_asks_at_once_and_somebody_does_within_a_day(
    now_s: float, error: SignalError, jitter_ratio: float, n_failures: int
) -> None:
    courtesy = after_failure(Courtesy(n_failures=n_failures), error, now_s=now_s, jitter_ratio=jitter_ratio)
    assert courtesy.n_failures == n_failures + 1
    assert not courtesy.is_due(now_s)
    assert not courtesy.is_due(now_s + FIRST_PAUSE_S - 1.0)
    assert courtesy.is_due(now_s + LONGEST_WAIT_S + 1.0)
    asked_s = min(error.retry_after_s or 0.0, LONGEST_WAIT_S)
    assert courtesy.next_s >= now_s + asked_s
    longest_s = 1.5 * max(LONGEST_PAUSE_S, REFUSED_PAUSE_S)
    assert courtesy.next_s <= now_s + max(asked_s, longest_s) + 1e-6


def test_jitter_makes_a_pause_longer_by_up_to_a_half() -> None:
    assert failed(1, jitter_ratio=1.0).next_s - NOW_S == 1.5 * FIRST_PAUSE_S


@given(nows_s, steps_s, jitters)
def test_a_clock_that_is_stepped_back_does_not_silence_a_source(
    now_s: float, step_s: float, jitter_ratio: float
) -> None:
    courtesy = after_answer(now_s=now_s, step_s=step_s, jitter_ratio=jitter_ratio)
    assert courtesy.is_due(now_s - 2 * LONGEST_WAIT_S)
    assert courtesy.is_due(now_s - 10.0)
