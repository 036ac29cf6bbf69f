"""Iterations count by their work, where it is known: rates do not scatter with it, and keep their scale."""

import logging
import math
from collections.abc import Sequence
from itertools import accumulate

import msgspec
import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from controller.accounting.iteration_log import MEAN_ITERATIONS, IterationLog
from controller.accounting.meter_intervals import meter_intervals
from controller.accounting.ranks import RankCheckpoint, Ranks
from controller.ports import Sample
from policies.vocabulary.units import Values
from tests.controller.messages import iterations, ns, rank_status

LATE_NS = ns(1e6)
TOKENS = 1_000.0
"""Of a mean iteration, which takes a second."""
N = 640


def lengths(n: int = N, *, scatter_ratio: float = 0.18, seed: int = 1) -> Values:
    """Return the tokens of iterations, of which the first 64 have the mean of all."""
    factors = np.random.default_rng(seed).normal(1.0, scatter_ratio, n).clip(0.3)
    factors[:MEAN_ITERATIONS] /= factors[:MEAN_ITERATIONS].mean()
    if n > MEAN_ITERATIONS:
        factors[MEAN_ITERATIONS:] /= factors[MEAN_ITERATIONS:].mean()
    return TOKENS * factors


class Rank:
    """A rank whose iterations take a millisecond a token, or other times, in messages of eight."""

    def __init__(self, log: IterationLog) -> None:
        self.log = log
        self.now_s = 10.0
        self.n = 0
        self._seq = 0

    def train(
        self, work: Sequence[float] | Values, *, times_s: Sequence[float] | Values | None = None, tells: bool = True
    ) -> None:
        for start in range(0, len(work), 8):
            some = work[start : start + 8]
            some_s = [each / TOKENS for each in some] if times_s is None else times_s[start : start + 8]
            ends_s = list(accumulate(some_s, initial=self.now_s))[1:]
            begins_s = [self.now_s, *ends_s[:-1]]
            told = list(some) if tells else None
            message = iterations(self.now_s, ends_s, seq=self._seq, first=self.n, requests_s=begins_s, work=told)
            assert self.log.append(message, now_ns=LATE_NS)
            self.now_s, self.n, self._seq = ends_s[-1], self.n + len(some), self._seq + 1


def trained(work: Sequence[float] | Values, *, tells: bool = True) -> IterationLog:
    rank = Rank(IterationLog())
    rank.train(work, tells=tells)
    return rank.log


def test_rates_do_not_scatter_with_work() -> None:
    by_work, by_iteration = (trained(lengths(), tells=tells) for tells in (True, False))
    begins_s = range(90, 600, 10)
    rates = np.array(
        [
            [log.activity(ns(begin_s), ns(begin_s + 10)).n_mean / 10 for begin_s in begins_s]
            for log in (by_work, by_iteration)
        ]
    )
    assert rates[0] == pytest.approx(1.0, rel=1e-6)
    assert rates[1].std() > 0.04, "a second each, ten in a window: 18 % over the square root of ten"
    assert by_work.iteration_times_s(ns(100), ns(500), at_most=400) == pytest.approx([1.0] * 400, abs=1e-6)


def test_a_run_keeps_its_scale_where_work_begins_to_count() -> None:
    log = trained(lengths(MEAN_ITERATIONS))
    assert log.n_mean == log.n_iterations == MEAN_ITERATIONS
    assert log.work_per_iteration == pytest.approx(TOKENS)
    whole = trained(lengths())
    assert whole.n_mean == pytest.approx(whole.n_iterations, rel=1e-9), "all have the mean of the first"
    assert whole.work_per_iteration == pytest.approx(TOKENS), "fixed once"


@pytest.mark.parametrize("bad", [math.nan, 0.0, -5.0, math.inf, -math.inf, 1e300, 1e-300])
def test_an_iteration_of_unknown_work_counts_as_one(bad: float) -> None:
    work = [TOKENS] * N
    work[300] = work[301] = bad
    rank = Rank(IterationLog())
    rank.train(work, times_s=[1.0] * N)
    assert rank.log.n_mean == pytest.approx(N)
    assert rank.log.work_per_iteration == TOKENS


def test_without_work_nothing_is_other_than_it_was() -> None:
    log = trained(lengths(), tells=False)
    assert (log.n_mean, log.work_per_iteration) == (log.n_iterations, None)
    totals = log.totals()
    assert totals is not None
    assert (totals.n_more, totals.work_per_iteration) == (0.0, None)


def test_a_log_goes_on_counting_after_a_restart() -> None:
    work = lengths()
    whole, rank = trained(work), Rank(IterationLog())
    rank.train(work[:320])
    totals = rank.log.totals()
    assert totals is not None
    decoded = msgspec.json.decode(msgspec.json.encode(totals), type=type(totals))
    rank.log = IterationLog(decoded, resumed_ns=ns(rank.now_s))
    rank.train(work[320:])
    assert rank.log.n_mean == pytest.approx(whole.n_mean)
    assert rank.log.work_per_iteration == whole.work_per_iteration


def test_a_checkpoint_of_a_run_without_work_is_still_read() -> None:
    known = RankCheckpoint(pid=1, started_at_s=2.0, totals=trained(lengths(80), tells=False).totals())  # type: ignore[arg-type]  # there are some
    content = msgspec.json.decode(msgspec.json.encode(known))
    del content["totals"]["n_more"], content["totals"]["work_per_iteration"]
    assert msgspec.convert(content, RankCheckpoint) == known


def test_long_sequences_are_no_pauses_and_a_validation_is_one() -> None:
    """Lengths scatter by a factor of ten, so that no time tells a pause from a long iteration; its work does."""
    work = TOKENS * np.random.default_rng(5).choice([0.3, 1.0, 3.0], N)
    times_s = work / TOKENS
    times_s[400] += 30.0
    by_work, by_iteration = Rank(IterationLog()), Rank(IterationLog())
    for rank, tells in ((by_work, True), (by_iteration, False)):
        first = 0
        for start in range(0, N, 8):
            some_s = times_s[start : start + 8]
            ends_s = list(accumulate(some_s, initial=rank.now_s))[1:]
            begins_s = [rank.now_s, *ends_s[:-1]]
            if start == 400:
                begins_s[0] += 30.0  # it asks for its batch after the validation
            told = work[start : start + 8].tolist() if tells else None
            message = iterations(rank.now_s, ends_s, seq=start, first=first, requests_s=begins_s, work=told)
            assert rank.log.append(message, now_ns=LATE_NS)
            rank.now_s, first = ends_s[-1], first + len(ends_s)
    running_s = float(times_s.sum()) - 30.0
    assert by_work.log.running_s == pytest.approx(running_s, abs=1.5)
    assert by_work.log.rhythm.standing == "known"
    assert by_work.log.rhythm.rhythm.not_profiled_reason is None
    assert by_iteration.log.running_s == pytest.approx(running_s + 30), "as if it had trained"
    assert by_iteration.log.rhythm.rhythm.not_profiled_reason == "not_steady"


def test_even_work_leaves_late_marks_to_be_repaired() -> None:
    times_s = [1.0, 1.0, 1.2, 0.8] * (N // 4)
    settled = []
    for work in (TOKENS, None):
        rank = Rank(IterationLog())
        rank.train([work or 1.0] * N, times_s=times_s, tells=work is not None)
        settled.append(rank.log.iteration_times_s(ns(400), ns(500), at_most=400))
    assert settled[0] == pytest.approx(settled[1])


def ranks_of(*rank_work: Values | None, announce: Sequence[dict[str, object]] | None = None) -> Ranks:
    """Return ranks that have trained in step with each other, each iteration as long as the longest."""
    run = Ranks(name="gpt/run-1", lease_s=60.0)
    known = [work for work in rank_work if work is not None]
    times_s = np.max(known, axis=0) / TOKENS
    for number, work in enumerate(rank_work):
        fields = {} if announce is None else announce[number]
        run.on_status(number, rank_status(world_size=len(rank_work), pid=number + 1, **fields), now_s=0.0)
        rank = Rank(run.members[number].log)
        rank.train(known[0] if work is None else work, times_s=times_s, tells=work is not None)
    run.expire(50.0)
    return run


class Meter:
    """A meter of a GPU that draws 100 W."""

    latest = None

    def samples_since(self, since_ns: int, *, until_ns: int) -> list[Sample]:
        return [
            Sample(time_ns=ns(t), energy_j=100.0 * t, power_w=100.0)
            for t in range(0, 1_000, 10)
            if since_ns <= ns(t) <= until_ns
        ]


def test_the_work_of_ranks_is_added_up() -> None:
    first, second = lengths(seed=1), 3 * lengths(seed=2)
    run = ranks_of(first, second)
    assert run.work_per_iteration == pytest.approx(4 * TOKENS)
    assert run.n_done == pytest.approx(N)
    ends_s = 10.0 + np.cumsum(np.max([first, second], axis=0)) / TOKENS
    intervals = meter_intervals(
        logs=run.logs,
        meters=[Meter()],  # type: ignore[list-item]  # it has what is asked for
        since_ns=ns(400),
        until_ns=ns(1_000),
    )
    done = np.concatenate(([0.0], np.cumsum((first + second) / (4 * TOKENS))))
    marks_s = np.concatenate(([10.0], ends_s))
    for interval in intervals[:20]:
        expected = np.diff(np.interp([interval.begin_ns / 1e9, interval.end_ns / 1e9], marks_s, done))[0]
        assert interval.n_iterations == pytest.approx(expected)


def test_the_work_that_is_told_is_that_of_all_ranks_and_none_where_one_is_silent() -> None:
    first, second = lengths(seed=1), 3 * lengths(seed=2)
    announce = [{"work_unit": "tokens", "total_work": total} for total in (2e6, 6e6)]
    told = ranks_of(first, second, announce=announce).told_work()
    work = pytest.approx(first.sum() + second.sum())
    assert told == {"work": work, "total_work": 8e6, "work_unit": "tokens"}
    assert ranks_of(first, second).told_work() == {"work": work, "total_work": None, "work_unit": None}
    assert ranks_of(first, None).told_work() == {}


def test_where_one_rank_tells_no_work_iterations_count_which_is_told_once(caplog: pytest.LogCaptureFixture) -> None:
    caplog.set_level(logging.INFO)
    run = ranks_of(lengths(), None)
    run.expire(51.0)
    assert (run.work_per_iteration, run.n_done) == (None, N)
    assert caplog.text.count("rank 1 does not tell the work of its iterations") == 1


def test_a_rank_that_stops_to_tell_work_is_counted_by_iterations_from_then_on(caplog: pytest.LogCaptureFixture) -> None:
    caplog.set_level(logging.INFO)
    run = Ranks(name="gpt/run-1", lease_s=60.0)
    run.on_status(0, rank_status(work_unit="tokens"), now_s=0.0)
    rank = Rank(run.members[0].log)
    rank.train(lengths())
    run.expire(50.0)
    assert rank.log.work_per_iteration == pytest.approx(TOKENS)
    rank.train(lengths(2 * MEAN_ITERATIONS), tells=False)
    for now_s in (51.0, 52.0):
        run.expire(now_s)
    assert run.work_per_iteration is None
    assert caplog.text.count("counting by work: 1000 tokens in a mean iteration") == 1
    assert caplog.text.count("does not tell the work of its iterations") == 1
    before = rank.log.n_mean
    rank.train(lengths(80))
    assert (rank.log.n_mean - before, rank.log.work_per_iteration) == (80, None), "for good"


def padded_run(n_short: int = 0, **announced: object) -> Ranks:
    """Return a run whose steps take a second, however many tokens they have; some at the end have few."""
    run = Ranks(name="gpt/run-1", lease_s=60.0)
    run.on_status(0, rank_status(work_unit="tokens", **announced), now_s=0.0)
    work = lengths()
    work[N - n_short :] *= 0.05
    Rank(run.members[0].log).train(work, times_s=np.random.default_rng(1).normal(1.0, 0.002, N))
    run.expire(51.0)
    return run


def test_work_that_times_do_not_follow_does_not_count_which_is_told_once(caplog: pytest.LogCaptureFixture) -> None:
    """Sequences that are padded to one length take as long, however many of their tokens are told."""
    run = padded_run(n_short=3)
    run.expire(52.0)
    assert (run.work_per_iteration, run.n_done, run.awaits_work) == (None, N, False)
    assert np.std(run.slowest.iteration_times_s(0, LATE_NS, at_most=N)) < 0.003
    assert run.slowest.running_s == pytest.approx(N, rel=1e-3), "few tokens in as much time are no pause"
    assert caplog.text.count("rank 0 takes as long whatever the work is that it tells of its iterations") == 1


@pytest.mark.parametrize("n_ranks", [2, 8])
def test_the_work_of_several_ranks_counts_only_where_their_times_follow_it(n_ranks: int) -> None:
    works = [lengths(seed=seed) for seed in range(n_ranks)]
    assert ranks_of(*works).work_per_iteration is not None
    padded = Ranks(name="gpt/run-1", lease_s=60.0)
    for number, work in enumerate(works):
        padded.on_status(number, rank_status(world_size=n_ranks, pid=number + 1), now_s=0.0)
        Rank(padded.members[number].log).train(work, times_s=np.random.default_rng(1).normal(1.0, 0.002, N))
    padded.expire(50.0)
    assert (padded.work_per_iteration, padded.n_done) == (None, N)


def test_the_length_of_a_run_is_known_by_work_that_times_do_not_follow() -> None:
    assert padded_run(total_work=1_000 * TOKENS).n_in_all() == pytest.approx(1_000)
    assert padded_run(total_work=1_000 * TOKENS, total_iterations=900).n_in_all() == 900


def test_the_length_of_a_run_is_told_in_work() -> None:
    run = ranks_of(lengths(), 3 * lengths(), announce=[{"total_work": 1e6}, {"total_work": 3e6}])
    assert run.n_in_all() == pytest.approx(1_000)
    run = ranks_of(lengths(), 3 * lengths(), announce=[{"total_work": 1e6}, {}])
    assert run.n_in_all() == pytest.approx(1_000), "the other one is in step with it"
    run = ranks_of(lengths(), lengths(), announce=[{"total_iterations": 2 * N}, {}])
    assert run.n_in_all() == pytest.approx(2 * N), "as without work, one rank's is enough"
    assert ranks_of(lengths(), lengths()).n_in_all() is None


def test_what_is_left_of_announced_iterations_counts_as_those_seen() -> None:
    work = lengths()
    work[MEAN_ITERATIONS:] *= 2  # the sequences of the rest are twice as long
    run = ranks_of(work, announce=[{"total_iterations": 2 * N}])
    done = MEAN_ITERATIONS + 2 * (N - MEAN_ITERATIONS)
    assert run.n_done == pytest.approx(done)
    assert run.n_in_all() == pytest.approx(2 * done)


def test_work_that_was_done_before_the_controller_came_is_estimated() -> None:
    run = Ranks(name="gpt/run-1", lease_s=60.0)
    run.on_status(0, rank_status(total_work=2_000 * TOKENS), now_s=0.0)
    rank = Rank(run.members[0].log)
    rank.n = 1_000
    rank.train(lengths())
    assert run.n_in_all() == pytest.approx(N + 360), "of 2,000 mean iterations 1,640 are done"


AMOUNTS = st.floats() | st.floats(1, 1e6)


@given(st.lists(st.lists(AMOUNTS, min_size=1, max_size=100), min_size=1, max_size=6))
def test_no_work_does_harm(messages: list[list[float]]) -> None:
    log, now_s, first = IterationLog(), 10.0, 0
    for seq, work in enumerate(messages):
        ends_s = [now_s + k + 1 for k in range(len(work))]
        assert log.append(iterations(now_s, ends_s, seq=seq, first=first, work=work), now_ns=LATE_NS)
        now_s, first = ends_s[-1], first + len(work)
    assert math.isfinite(log.n_mean)
    assert log.n_mean > 0
    counts = [log.activity(ns(t), ns(t + 1)).n_mean for t in range(10, int(now_s))]
    assert all(math.isfinite(count) and count >= 0 for count in counts)
    assert all(0 < time_s < math.inf for time_s in log.iteration_times_s(ns(10), ns(now_s), at_most=64))
