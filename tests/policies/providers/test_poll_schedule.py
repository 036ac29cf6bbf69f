"""Poll schedules: once a step, less often after failures, never sooner than allowed, never later than a day."""

import asyncio
import math

import pytest
from hypothesis import given
from hypothesis import strategies as st

from policies.providers.base import SignalError, SignalLimitedError, SignalRefusedError, SignalUnavailableError
from policies.providers.poll_schedule import (
    FIRST_BACKOFF_S,
    JITTER_STEPS,
    LATE_RETRY_STEPS,
    MAX_BACKOFF_S,
    MAX_LATE_RETRY_S,
    MAX_WAIT_S,
    REFUSED_BACKOFF_S,
    PollSchedule,
    RateLimit,
)
from policies.vocabulary.signal import Signal
from tests.fakes import FixedProvider, flat_signal

NOW_S = 1_792_929_000.0
nows_s = st.floats(0.0, 4e9)
steps_s = st.one_of(st.sampled_from([300.0, 900.0, 1_800.0, 3_600.0, 86_400.0, math.inf]), st.floats(60.0, 1e6))
jitters = st.floats(0.0, 1.0)
failures = st.builds(
    lambda kind, retry_after_s: kind("it failed", retry_after_s=retry_after_s),
    st.sampled_from([SignalUnavailableError, SignalLimitedError, SignalRefusedError]),
    st.one_of(st.none(), st.floats(0.0, math.inf)),
)


def schedule(
    *, step_s: float = 3_600.0, jitter_ratio: float = 0.0, rate_limit: RateLimit | None = None
) -> PollSchedule:
    provider = FixedProvider(None)
    provider.step_s = step_s
    return PollSchedule(provider, jitter_ratio=jitter_ratio, rate_limit=rate_limit)


def answered(now_s: float, step_s: float, jitter_ratio: float, *, is_current: bool = True) -> PollSchedule:
    polls = schedule(step_s=step_s, jitter_ratio=jitter_ratio)
    polls.record_answer(now_s=now_s, is_current=is_current)
    return polls


def failed(n_times: int, error: SignalError | None = None, jitter_ratio: float = 0.0) -> PollSchedule:
    polls = schedule(jitter_ratio=jitter_ratio)
    for _ in range(n_times):
        polls.record_failure(error or SignalUnavailableError("down"), now_s=NOW_S)
    return polls


def test_the_first_poll_is_due_at_once() -> None:
    assert schedule().is_due(0.0)


@given(nows_s, steps_s, jitters)
def test_after_an_answer_the_next_poll_is_due_when_the_next_step_has_begun(
    now_s: float, step_s: float, jitter_ratio: float
) -> None:
    polls = answered(now_s, step_s, jitter_ratio)
    assert not polls.is_due(now_s)
    if step_s < MAX_WAIT_S / (1 + JITTER_STEPS):
        begins_s = (now_s // step_s + 1) * step_s
        assert begins_s <= polls.next_s <= begins_s + JITTER_STEPS * step_s * (1 + 1e-9) + 1e-6
        assert polls.is_due(polls.next_s)


@given(nows_s, steps_s, jitters)
def test_a_late_source_is_polled_again_within_its_step_but_not_at_once(
    now_s: float, step_s: float, jitter_ratio: float
) -> None:
    late = answered(now_s, step_s, jitter_ratio, is_current=False)
    assert now_s < late.next_s <= answered(now_s, step_s, jitter_ratio).next_s
    assert not late.is_due(now_s)


def test_a_late_source_is_polled_again_after_ten_minutes_at_most() -> None:
    begins_s = NOW_S // 86_400.0 * 86_400.0
    retries_s = [
        answered(begins_s, step_s, 0.0, is_current=False).next_s - begins_s for step_s in (300.0, 3_600.0, 86_400.0)
    ]
    assert retries_s == [LATE_RETRY_STEPS * 300.0, min(LATE_RETRY_STEPS * 3_600.0, MAX_LATE_RETRY_S), MAX_LATE_RETRY_S]
    assert retries_s[0] < 300.0


@given(nows_s, st.floats(60.0, MAX_WAIT_S / 2))
def test_a_cluster_does_not_poll_in_one_second(now_s: float, step_s: float) -> None:
    polled_s = [answered(now_s, step_s, i / 10).next_s for i in range(11)]
    assert polled_s[-1] - polled_s[0] == pytest.approx(JITTER_STEPS * step_s, rel=1e-3)
    assert polled_s == sorted(set(polled_s))


def test_an_answer_ends_the_back_off() -> None:
    polls = failed(4)
    polls.record_answer(now_s=NOW_S)
    assert (polls.n_failures, polls.fault) == (0, "")


def test_each_failure_doubles_the_back_off_up_to_a_quarter_of_an_hour() -> None:
    backoffs_s = [failed(n).next_s - NOW_S for n in range(1, 9)]
    assert backoffs_s == [30.0, 60.0, 120.0, 240.0, 480.0, 900.0, 900.0, 900.0]


def test_one_trial_is_made_when_the_back_off_is_over_and_its_failure_counts() -> None:
    polls = failed(4)
    trial_s = polls.next_s
    assert not polls.is_due(trial_s - 1.0)
    assert polls.is_due(trial_s)
    polls.record_failure(SignalUnavailableError("down"), now_s=trial_s)
    assert polls.next_s - trial_s == 2 * (trial_s - NOW_S)


def test_a_refusal_is_repeated_after_an_hour_from_the_first() -> None:
    assert failed(1, SignalRefusedError("wrong token")).next_s - NOW_S == REFUSED_BACKOFF_S


@given(nows_s, failures, jitters, st.integers(0, 5_000))
def test_after_a_failure_the_next_poll_is_neither_at_once_nor_later_than_a_day(
    now_s: float, error: SignalError, jitter_ratio: float, n_failures: int
) -> None:
    polls = schedule(jitter_ratio=jitter_ratio)
    polls.n_failures = n_failures
    polls.record_failure(error, now_s=now_s)
    assert polls.n_failures == n_failures + 1
    assert not polls.is_due(now_s)
    assert not polls.is_due(now_s + FIRST_BACKOFF_S - 1.0)
    assert polls.is_due(now_s + MAX_WAIT_S + 1.0)
    retry_after_s = min(error.retry_after_s or 0.0, MAX_WAIT_S)
    assert polls.next_s >= now_s + retry_after_s
    assert polls.next_s <= now_s + max(retry_after_s, 1.5 * max(MAX_BACKOFF_S, REFUSED_BACKOFF_S)) + 1e-6


def test_jitter_lengthens_a_back_off_by_up_to_a_half() -> None:
    assert failed(1, jitter_ratio=1.0).next_s - NOW_S == 1.5 * FIRST_BACKOFF_S


@given(nows_s, steps_s, jitters)
def test_a_clock_that_is_stepped_back_does_not_silence_a_source(
    now_s: float, step_s: float, jitter_ratio: float
) -> None:
    polls = answered(now_s, step_s, jitter_ratio)
    assert polls.is_due(now_s - 2 * MAX_WAIT_S)
    assert polls.is_due(now_s - 10.0)


def test_retry_after_holds_for_every_schedule_of_the_source() -> None:
    rate_limit = RateLimit()
    history, forecast = schedule(rate_limit=rate_limit), schedule(rate_limit=rate_limit)
    forecast.record_failure(SignalLimitedError("429", retry_after_s=7_200.0), now_s=NOW_S)
    assert not history.is_due(NOW_S + 7_199.0)
    assert history.is_due(NOW_S + 7_201.0)


async def test_a_poll_returns_the_answer_or_says_why_there_is_none(caplog: pytest.LogCaptureFixture) -> None:
    async def fetch(answer: Signal | Exception) -> Signal | None:
        if isinstance(answer, Exception):
            raise answer
        return answer

    async def hang() -> Signal | None:
        await asyncio.Event().wait()
        return None

    polls, signal = schedule(), flat_signal(300.0)
    assert not polls.was_polled
    assert await polls.poll(fetch(SignalUnavailableError("HTTP 503")), now_s=NOW_S) is None
    assert (polls.fault, polls.was_polled) == ("HTTP 503", True)
    assert await polls.poll(hang(), now_s=NOW_S) is None
    assert polls.fault == "fixed: no answer in 45 s"
    assert await polls.poll(fetch(signal), now_s=NOW_S) is signal
    assert polls.fault == ""
    assert await polls.poll(fetch(RecursionError("too deep")), now_s=NOW_S) is None
    assert polls.fault == "fixed: unexpected error: RecursionError"
    assert len([record for record in caplog.records if record.exc_info]) == 1
