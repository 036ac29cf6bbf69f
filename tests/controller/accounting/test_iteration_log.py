"""The log of a rank: counts between any two moments, refuses nonsense, and does not grow for ever."""

from itertools import accumulate, cycle, pairwise

import msgspec
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from controller.accounting.iteration_log import LATEST_FUTURE_NS, MAX_SPANS, IterationLog
from publishers.messages.training import Iterations
from tests.controller.messages import iterations, ns

LATE_NS = ns(1e6)


def log_of(*messages: tuple[float, list[float]]) -> IterationLog:
    """Return a log of messages, each (begin, ends) in seconds, numbered in order."""
    log, first = IterationLog(), 0
    for seq, (begin_s, ends_s) in enumerate(messages):
        assert log.append(iterations(begin_s, ends_s, seq=seq, first=first), now_ns=LATE_NS)
        first += len(ends_s)
    return log


def test_an_empty_log_knows_nothing() -> None:
    log = IterationLog()
    assert (log.begin_ns, log.end_ns, log.n_iterations, log.activity(0, LATE_NS).n_iterations) == (None, None, 0, 0)
    assert not log.activity(0, 1).is_continuous


def test_iterations_are_counted_with_the_fractions_at_both_ends() -> None:
    log = log_of((10, [12, 14, 16]))
    assert log.activity(ns(10), ns(16)).n_iterations == 3
    assert log.activity(ns(11), ns(15)).n_iterations == 2
    assert log.activity(ns(12.5), ns(13.5)).n_iterations == 0.5
    assert log.activity(ns(0), ns(100)).n_iterations == 3


def test_the_times_of_iterations_that_ended_in_an_interval() -> None:
    log = log_of((10, [12, 15, 16]), (60, [61, 64]))
    assert log.iteration_times_s(ns(12), ns(64), at_most=9) == pytest.approx((3, 1, 1, 3))
    assert log.iteration_times_s(ns(11.9), ns(15.9), at_most=9) == pytest.approx((2, 3)), "whole ones, whenever begun"
    assert log.iteration_times_s(ns(20), ns(50), at_most=9) == ()


def test_of_very_many_iterations_the_times_are_spread_evenly() -> None:
    log = log_of((0.998, [1 + 0.001 * i for i in range(1_000)]))
    times_s = log.iteration_times_s(ns(0), ns(2), at_most=64)
    assert 32 <= len(times_s) <= 64
    assert times_s[:2] == pytest.approx((0.002, 0.001))


def test_messages_without_a_pause_between_them_count_as_one() -> None:
    log = log_of((10, [12, 14]), (14.5, [16, 18]))
    assert log.activity(ns(10), ns(18)).n_iterations == 4
    assert log.activity(ns(10), ns(18)).is_continuous
    assert log.active_s == pytest.approx(8.0), "half a second between two epochs belongs to the rhythm"
    assert log.running_s == pytest.approx(7.5), "but not to the iterations"
    assert log.activity(ns(12), ns(14.25)).gaps_s == pytest.approx(0.25)
    assert log.activity(ns(9), ns(18)).gaps_s == pytest.approx(1.5)


def test_a_pause_is_not_active_and_counts_no_iterations() -> None:
    log = log_of((10, [12, 14]), (60, [62]))
    assert not log.activity(ns(13), ns(61)).is_continuous
    assert not log.activity(ns(20), ns(30)).is_continuous
    assert log.activity(ns(14), ns(60)).n_iterations == 0
    assert log.active_s == pytest.approx(6.0)


def test_a_moment_of_a_long_pause_is_a_pause_and_all_of_a_short_one_is_not() -> None:
    log = log_of((10, [12, 14]), (60, [62, 64]), (64.5, [66]))
    assert not log.activity(ns(13), ns(14.1)).is_continuous
    assert not log.activity(ns(59.9), ns(62)).is_continuous
    assert log.activity(ns(60), ns(64.2)).is_continuous
    assert log.activity(ns(64.2), ns(66)).is_continuous
    assert log.activity(ns(64.1), ns(64.3)).is_continuous


def test_what_lies_outside_is_not_covered() -> None:
    log = log_of((10, [12, 14]))
    assert log.activity(ns(11), ns(14)).is_continuous
    assert not log.activity(ns(11), ns(14.1)).is_continuous
    assert not log.activity(ns(9.9), ns(12)).is_continuous


def test_lost_messages_count_as_iterations() -> None:
    log = IterationLog()
    log.append(iterations(0, [1, 2], seq=0, first=0), now_ns=LATE_NS)
    assert log.append(iterations(7, [8], seq=3, first=7), now_ns=LATE_NS)
    assert (log.n_iterations, log.n_lost, log.active_s) == (8, 5, 8.0)


def test_a_run_observed_from_the_middle_has_lost_nothing() -> None:
    log = IterationLog()
    log.append(iterations(100, [101], seq=40, first=4_000), now_ns=LATE_NS)
    assert (log.n_iterations, log.n_lost) == (1, 0)


@pytest.mark.parametrize(
    "message",
    [
        iterations(3, [4], seq=1, first=3),
        iterations(3, [4], seq=0, first=3),
        iterations(3, [4], seq=2, first=2),
        iterations(2.5, [4], seq=2, first=3),
        iterations(0, [1], seq=2, first=3),
    ],
    ids=["repeats", "older", "iterations repeat", "begins before the last end", "lies in the past"],
)
def test_messages_that_repeat_or_go_backwards_are_rejected(message: Iterations) -> None:
    log = log_of((0, [1, 2]), (2, [3]))
    assert not log.append(message, now_ns=LATE_NS)
    assert (log.n_iterations, log.n_rejected, log.end_ns) == (3, 1, ns(3))
    assert log.append(iterations(3, [4], seq=2, first=3), now_ns=LATE_NS)


def test_an_iteration_from_the_future_is_rejected() -> None:
    log = IterationLog()
    assert not log.append(iterations(0, [100]), now_ns=ns(100) - LATEST_FUTURE_NS - 1)
    assert log.append(iterations(0, [100]), now_ns=ns(100) - LATEST_FUTURE_NS)


def test_epochs_are_counted_by_their_highest_number() -> None:
    log = IterationLog()
    for seq, epoch in enumerate((0, 0, 1, 2)):
        log.append(iterations(seq, [seq + 1], seq=seq, first=seq, epoch=epoch), now_ns=LATE_NS)
    assert log.epochs == 3


@pytest.mark.parametrize(("first", "epochs"), [(0, 3), (300, 3), (350, 3), (351, 2), (399, 2)])
def test_a_log_that_begins_late_counts_the_observed_epochs(first: int, epochs: int) -> None:
    """Epochs are of 100 iterations each; those observed are number 3, of which the beginning is missing, to 5."""
    log, number = IterationLog(), 0 if first else -3
    begins = [first, 100 * (number + 4), 100 * (number + 5)]
    observed = []
    for seq, (begin, epoch) in enumerate(zip(begins, (number + 3, number + 4, number + 5), strict=True)):
        log.append(iterations(begin, [begin + 1.0], seq=seq, first=begin, epoch=epoch), now_ns=LATE_NS)
        observed.append(log.epochs)
    assert observed == [1 if first == 0 else 0, epochs - 1, epochs]
    assert log.n_epochs == number + 6


def test_a_long_run_forgets_its_oldest_spans_but_not_its_totals() -> None:
    n = MAX_SPANS + 100
    log = log_of(*((float(i), [i + 0.5, i + 1.0]) for i in range(n)))
    assert log.n_iterations == 2 * n
    assert log.begin_ns == ns(100)
    assert log.activity(ns(n - 10), ns(n)).n_iterations == 20
    assert len(log._spans) == MAX_SPANS


def test_long_messages_are_forgotten_by_their_size(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("controller.accounting.iteration_log.MAX_MARKS", 1_000)
    log = log_of(*((100.0 * i, [100 * i + k + 1.0 for k in range(99)]) for i in range(50)))
    assert sum(len(span.marks_ns) for span in log._spans) == log._n_marks <= 1_000
    assert log.n_iterations == 99 * 50


@given(
    lengths=st.lists(st.floats(0.01, 5.0), min_size=2, max_size=40),
    cuts=st.lists(st.floats(0, 1), min_size=1, max_size=8),
    size=st.integers(1, 7),
)
def test_the_parts_of_an_interval_sum_to_the_whole(lengths: list[float], cuts: list[float], size: int) -> None:
    ends_s = [1 + sum(lengths[: i + 1]) for i in range(len(lengths))]
    chunks = [(ends_s[i - 1] if i else 1.0, ends_s[i : i + size]) for i in range(0, len(ends_s), size)]
    log = log_of((0.5, [1.0]), *chunks)
    first_ns, last_ns = ns(1), ns(ends_s[-1])
    marks_ns = [first_ns, *sorted(first_ns + int(cut * (last_ns - first_ns)) for cut in cuts), last_ns]
    parts = [log.activity(a, b).n_iterations for a, b in pairwise(marks_ns)]
    assert all(part >= 0 for part in parts)
    assert sum(parts) == pytest.approx(len(lengths), abs=1e-6)


def test_a_boundary_in_a_short_gap_leaves_the_next_interval_active() -> None:
    log = IterationLog()
    log.append(iterations(0.0, [1.0, 2.0], seq=0, first=0), now_ns=LATE_NS)
    log.append(iterations(2.3, [3.0, 4.0], seq=1, first=2, epoch=1), now_ns=LATE_NS)
    cut_ns = ns(2.1)
    log.forget_before(cut_ns)
    assert log.activity(cut_ns, ns(3)).is_continuous
    log.forget_before(ns(2.5))
    assert log.begin_ns == ns(2.3)  # what is wholly counted is forgotten


def test_the_length_of_a_run_counts_from_the_first_observed_iteration() -> None:
    log = IterationLog()
    assert log.total_iterations(1_000) is None, "nobody knows yet where it is"
    log.append(iterations(0, [1, 2], first=600), now_ns=ns(3))
    assert log.total_iterations(1_000) == 400
    assert log.total_iterations(None) is None
    assert log.total_iterations(500) == 2, "it is over already"


@given(st.integers(1, 5), st.integers(1, 5), st.integers(0, 3))
def test_a_resumed_log_equals_an_uninterrupted_one(n_before: int, n_after: int, n_lost: int) -> None:
    def message(seq: int) -> Iterations:
        return iterations(2 * seq, [2 * seq + 1, 2 * seq + 2], seq=seq, first=2 * seq, epoch=seq // 2)

    whole, former = IterationLog(), IterationLog()
    for seq in range(n_before):
        assert whole.append(message(seq), now_ns=LATE_NS)
        assert former.append(message(seq), now_ns=LATE_NS)
    resumed = IterationLog(former.totals())
    assert resumed.totals() == whole.totals()
    for seq in range(n_before + n_lost, n_before + n_lost + n_after):
        assert whole.append(message(seq), now_ns=LATE_NS)
        assert resumed.append(message(seq), now_ns=LATE_NS)
    assert resumed.totals() == whole.totals()
    assert resumed.total_iterations(1_000) == whole.total_iterations(1_000) == 1_000


def test_a_resumed_log_counts_nothing_twice() -> None:
    former = log_of((0, [1, 2]), (2, [3, 4]))
    resumed = IterationLog(former.totals())
    assert not resumed.append(iterations(2, [3, 4], seq=1, first=2), now_ns=LATE_NS)
    assert (resumed.n_iterations, resumed.n_rejected) == (4, 1)
    assert IterationLog().totals() is None


def test_a_process_that_continues_at_a_later_epoch_has_no_earlier_one() -> None:
    log = IterationLog()
    for seq, (begin_s, epoch) in enumerate([(10, 8), (20, 9)]):
        message = iterations(begin_s, [begin_s + 2, begin_s + 4], seq=seq, first=2 * seq, epoch=epoch)
        assert log.append(message, now_ns=LATE_NS)
    assert (log.n_epochs, log.epochs) == (10, 2)


@pytest.mark.parametrize(("length_s", "is_pause"), [(20.0, False), (59.0, False), (200.0, True)])
def test_a_suspension_while_no_controller_listened_is_a_pause(length_s: float, is_pause: bool) -> None:
    """It counts, and took as long as others do; a lease is 60 s."""
    former = log_of((0, [1, 2]), (2, [3, 4]))
    log = IterationLog(former.totals(), resumed_ns=ns(5 + length_s), lease_s=60.0)
    end_s = 5 + length_s
    assert log.append(iterations(4, [5, end_s, end_s + 1], seq=2, first=4), now_ns=ns(end_s + 2))
    assert (log.n_iterations, log.total_iterations(10)) == (7, 10)
    assert log.running_s == pytest.approx(6 + (1 if is_pause else length_s))
    assert log.active_s == pytest.approx(log.running_s)
    assert log.activity(ns(6), ns(end_s - 1)).is_continuous is not is_pause
    assert log.activity(ns(end_s), ns(end_s + 1)).is_continuous


def test_an_iteration_of_usual_length_or_begun_since_is_no_suspension() -> None:
    slow = IterationLog(log_of((0, [300, 600])).totals(), resumed_ns=ns(700), lease_s=60.0)
    assert slow.append(iterations(600, [900], seq=2, first=4), now_ns=ns(900))
    assert slow.activity(ns(600), ns(900)).is_continuous
    late = IterationLog(log_of((0, [1, 2])).totals(), resumed_ns=ns(3), lease_s=60.0)
    assert late.append(iterations(3, [900], seq=2, first=2), now_ns=ns(900))
    assert late.activity(ns(3), ns(900)).is_continuous


def test_time_that_passes_without_iterations_is_a_pause() -> None:
    log = IterationLog()
    for at_s in (10.0, 10.1, 10.1, 10.2, 20.0, 19.0):
        log.pass_time(ns(at_s))
    assert (log.begin_ns, log.end_ns, log.n_iterations, log.is_live) == (ns(10), ns(20), 0, False)
    activity = log.activity(ns(10.05), ns(10.15))
    assert (activity.n_iterations, activity.is_continuous) == (0, False), "however often it was noted"
    log.forget_before(ns(15))
    assert (log.begin_ns, log.end_ns) == (ns(10.2), ns(20))


def test_the_first_iteration_takes_the_place_of_passed_time_that_it_began_in() -> None:
    log = IterationLog()
    for at_s in (10.0, 11.0, 12.0):
        log.pass_time(ns(at_s))
    assert log.append(iterations(11.5, [12.5, 13.5]), now_ns=LATE_NS)
    log.pass_time(ns(20))
    assert (log.begin_ns, log.end_ns, log.n_iterations) == (ns(11.5), ns(13.5), 2)
    assert log.activity(ns(12), ns(13)).is_continuous
    assert log.first_begin_ns == ns(11.5)


@pytest.mark.parametrize(
    ("ends_s", "is_warm_up"),
    [
        ([20.0, 20.5, 21.0], True),  # it compiled for 20 s
        ([20.0], True),  # so it may have done here: the next message will tell no more
        ([0.9], False),
        ([2.0, 4.0, 6.0], False),
        ([4.0, 5.0, 6.0], False),
    ],
)
def test_a_first_iteration_that_was_the_start_of_its_process_is_a_pause(ends_s: list[float], is_warm_up: bool) -> None:
    log = IterationLog()
    log.append(iterations(0.0, ends_s), now_ns=ns(100))
    assert log.n_iterations == len(ends_s)
    assert log.first_begin_ns == 0
    start = log.activity(0, ns(ends_s[0]))
    assert (start.is_continuous, start.n_iterations) == ((False, 0.0) if is_warm_up else (True, 1.0))
    after_s = [ends_s[-1] + 0.5 * k for k in (1, 2)]
    assert log.append(iterations(ends_s[-1], after_s, seq=1, first=len(ends_s)), now_ns=ns(100))
    assert (log.n_iterations, log.n_lost, log.n_rejected) == (len(ends_s) + 2, 0, 0)
    rest = log.activity(ns(ends_s[0]), ns(after_s[-1]))
    assert (rest.is_continuous, rest.n_iterations) == (True, len(ends_s) + 1)
    assert log.active_s == pytest.approx(after_s[-1] - is_warm_up * ends_s[0])


LATE_STEPS_S = [0.064, 0.064, 0.084, 0.044, 0.0645, 0.0635, 0.064, 0.128, 0.064, 0.0, 0.064, 0.064] * 8


def messages_of_steps(steps_s: list[float], sizes: list[int]) -> list[Iterations]:
    """Return messages of steps that follow each other, so many in each, the sizes again and again."""
    ends_s = list(accumulate(steps_s, initial=10.0))
    messages, first = list[Iterations](), 0
    for seq, size in enumerate(cycle(sizes)):
        last = min(first + size, len(steps_s))
        sent = iterations(ends_s[first], ends_s[first + 1 : last + 1], seq=seq, first=first)
        messages.append(msgspec.structs.replace(sent, counted_by="optimizer"))
        if last == len(steps_s):
            return messages
        first = last
    raise AssertionError


@given(sizes=st.lists(st.integers(1, 9), min_size=1, max_size=5))
@settings(max_examples=25)
def test_late_marks_are_moved_across_messages(sizes: list[int]) -> None:
    log = IterationLog()
    for message in messages_of_steps(LATE_STEPS_S, sizes):
        assert log.append(message, now_ns=LATE_NS)
    for at_s in (12.0, 13.0, 14.0, 15.0):
        for offset_s in (0.0, 0.01, 0.02, 0.03, 0.04, 0.05):
            begin_ns = ns(at_s + offset_s)
            assert log.activity(begin_ns, begin_ns + ns(0.64)).n_iterations == pytest.approx(10.0, abs=0.02)
    assert log.running_s == pytest.approx(sum(LATE_STEPS_S))


@given(
    steps_s=st.lists(st.sampled_from([0.064, 0.064, 0.064, 0.084, 0.044, 0.03, 0.098]), min_size=20, max_size=80),
    sizes=st.lists(st.integers(1, 9), min_size=1, max_size=5),
    is_patient=st.booleans(),
)
@settings(max_examples=50)
def test_each_iteration_is_counted_once_whenever_it_is_counted(
    steps_s: list[float], sizes: list[int], is_patient: bool
) -> None:
    log, counted, since_ns = IterationLog(), 0.0, ns(10.0)
    for message in messages_of_steps(steps_s, sizes):
        log.append(message, now_ns=LATE_NS)
        until_ns = (log.settled_ns if is_patient else log.end_ns) or since_ns
        if until_ns > since_ns:
            until_ns = (since_ns + 2 * until_ns) // 3
            counted += log.activity(since_ns, until_ns).n_iterations
            log.forget_before(until_ns)
            since_ns = until_ns
    counted += log.activity(since_ns, log.end_ns or 0).n_iterations
    assert counted == pytest.approx(len(steps_s), abs=1e-6)
