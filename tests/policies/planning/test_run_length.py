"""A guessed length: where a run is taken to end, what is planned for it, and how little it may overdraw."""

import math
from dataclasses import replace

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from policies.planning import Progress, SlowdownObjective
from policies.planning.required_rate import GUESSED_DEBT, rate_for_slowdown
from policies.planning.run_length import (
    CERTAIN_SPREAD_RATIO,
    EARLY,
    MOST_RUNS,
    GuessedLength,
    guess_by_time_limit,
    guess_length,
)
from policies.replay.power_limit.planner import perfect_forecast, planner_policy
from policies.replay.power_limit.scenario import RunSpec
from policies.replay.power_limit.simulation import replay_run
from policies.vocabulary.units import DAY_S, HOUR_S
from tests.policies.days import A40, grid, known_by
from tests.policies.planning.decisions import NOW_S, TOP_PER_S, decided, means
from tests.policies.replay.power_limit.scenarios import REAL, START_S

LENGTHS = st.lists(st.floats(1.0, 1e9), min_size=3, max_size=30)
HISTORY = known_by(grid("solar"), NOW_S)


def guess(total_iterations: float, spread_ratio: float = 0.03) -> GuessedLength:
    """Return a guess from five runs."""
    return GuessedLength(total_iterations=total_iterations, spread_ratio=spread_ratio, n_runs=5)


def so_far(
    hours: float = 5.0, *, left_h: float, credit_s: float = 0.0, guessed_ratio: float | None = None, told: bool = False
) -> Progress:
    """Return a run with so much work left at the highest limit, and so much time in hand at 3 %."""
    active_s = hours * HOUR_S
    n_iterations = (active_s + credit_s) / 1.03 * TOP_PER_S
    total_iterations = n_iterations + left_h * HOUR_S * TOP_PER_S
    return Progress(
        n_iterations=n_iterations,
        active_s=active_s,
        started_at_s=NOW_S - active_s,
        total_iterations=total_iterations if told else None,
        guessed=None if guessed_ratio is None else guess(total_iterations, guessed_ratio),
    )


@given(LENGTHS, st.floats(0.0, 1e9))
def test_a_run_is_taken_to_end_later_than_now_or_nothing_is_known(lengths: list[float], n_iterations: float) -> None:
    found = guess_length(lengths, n_iterations)
    assert found is None or found.total_iterations >= n_iterations * (1 - 1e-9)


@pytest.mark.parametrize("n_runs", [0, 1, 2])
def test_from_few_runs_nothing_is_guessed(n_runs: int) -> None:
    assert guess_length([100.0] * n_runs, 10.0) is None


def test_runs_of_one_length_are_as_good_as_told() -> None:
    found = guess_length([100.0, 100.0, 100.0], 10.0)
    assert found is not None
    assert found.total_iterations == pytest.approx(100.0)
    assert found.n_runs == 3
    assert found.is_certain
    assert guess_length([100.0, 100.0, 100.0], 101.0) is None


@pytest.mark.parametrize("n_former", [3, 5, 20])
@pytest.mark.parametrize("sd_ratio", [0.01, 0.02])
def test_one_run_in_twenty_ends_before_its_first_guess(n_former: int, sd_ratio: float) -> None:
    rng = np.random.default_rng(n_former)
    lengths = np.exp(sd_ratio * rng.standard_normal((2_000, n_former + 1)))
    firsts = [guess_length(former.tolist(), 0.0) for former in lengths[:, :-1]]
    ends = np.array([first.total_iterations for first in firsts if first is not None])
    assert (lengths[:, -1] < ends).mean() == pytest.approx(EARLY, abs=0.015)


def test_at_each_guessed_end_one_in_twenty_of_those_left_ends_before_the_next() -> None:
    former = np.exp(0.15 * np.random.default_rng(1).standard_normal(20)).tolist()
    found = [guess_length(former, 0.0)]
    while found[-1] is not None and len(found) < 4:
        found.append(guess_length(former, found[-1].total_iterations * (1 + 1e-9)))
    ends, spreads = zip(*((each.total_iterations, each.spread_ratio) for each in found if each), strict=True)
    z = (np.log(ends) - np.log(former).mean()) / spreads[0]
    passed = [0.5 * math.erfc(each / math.sqrt(2)) for each in z]
    assert passed == pytest.approx([0.95**n for n in range(1, 5)])


def test_few_runs_that_differ_are_trusted_less_than_many() -> None:
    few, many = (guess_length([96.0, 100.0, 104.0] * n, 0.0) for n in (1, 6))
    assert few is not None
    assert many is not None
    assert few.spread_ratio > 2 * many.spread_ratio
    assert few.total_iterations < many.total_iterations
    assert (few.is_certain, many.is_certain) == (False, True)


def test_a_job_that_has_changed_is_known_anew_with_time() -> None:
    found = guess_length([10.0] * 60 + [100.0] * MOST_RUNS, 0.0)
    assert found is not None
    assert found.total_iterations == pytest.approx(100.0)


def test_what_former_runs_used_of_their_time_limits_tells_a_length() -> None:
    found = guess_by_time_limit([0.5, 0.5, 0.5], 0.1, 1_000.0)
    assert found is not None
    assert found.total_iterations == pytest.approx(5_000.0)
    assert guess_by_time_limit([0.5, 0.5, 0.5], 0.1, 0.0) is None
    assert guess_by_time_limit([0.5, 0.5], 0.1, 1_000.0) is None


def test_a_length_guessed_as_well_as_told_is_planned_as_told() -> None:
    told, guessed = (
        decided(1.03, history=HISTORY, so_far=so_far(left_h=20.0, told=is_told, guessed_ratio=ratio))
        for is_told, ratio in ((True, None), (False, CERTAIN_SPREAD_RATIO))
    )
    assert (guessed.power_limit_w, guessed.scheduled) == (told.power_limit_w, told.scheduled)
    assert "guessed from 5 former runs, whose lengths differ by 5.0%" in guessed.detail
    assert "guessed" not in told.detail


def test_a_told_length_wins() -> None:
    run = so_far(left_h=20.0, told=True)
    with_guess = replace(run, guessed=guess(2 * run.n_iterations))
    assert decided(1.03, history=HISTORY, so_far=with_guess) == decided(1.03, history=HISTORY, so_far=run)


def test_beyond_the_guess_the_run_is_one_of_unknown_length() -> None:
    run = so_far(left_h=20.0)
    beyond = replace(run, guessed=guess(run.n_iterations))
    assert decided(1.03, history=HISTORY, so_far=beyond) == decided(1.03, history=HISTORY, so_far=run)


def test_a_debt_is_settled_by_the_guessed_end() -> None:
    run = so_far(hours=20.0, left_h=1.0, credit_s=-120.0, guessed_ratio=0.1)
    settling = decided(1.03, history=HISTORY, so_far=run)
    unknown = decided(1.03, history=HISTORY, so_far=replace(run, guessed=None))
    # Two minutes within an hour, but for the 0.05 % of 20 h that the corridor allows.
    assert means(settling)[1] >= TOP_PER_S / 1.0305 * (1 + 84 / 3_600) * 0.999
    assert means(unknown)[1] < means(settling)[1] * 0.999
    assert settling.reason == "slowdown_signal"


@pytest.mark.parametrize(("sd_ratio", "is_known"), [(0.08, True), (0.11, False), (1.0, False)])
def test_three_runs_that_differ_much_tell_no_length(sd_ratio: float, is_known: bool) -> None:
    lengths = np.exp(sd_ratio * np.array([-1.0, 0.0, 1.0])).tolist()
    assert (guess_length(lengths, 0.0) is not None) == is_known


@pytest.mark.parametrize("spread_ratio", [0.05, 0.12])
def test_whenever_a_run_ends_after_its_first_guess_it_is_hardly_over(spread_ratio: float) -> None:
    work = 30 * HOUR_S * float(REAL.iterations_per_s[-1])
    former = (work * np.exp(spread_ratio * np.array([-1.2, -0.6, 0.0, 0.0, 0.6, 1.2]))).tolist()
    first = guess_length(former, 0.0)
    assert first is not None
    policy = planner_policy(
        SlowdownObjective(max_slowdown=1.05), perfect_forecast, knows_length=False, former_iterations=former
    )
    run = replay_run(REAL, policy, RunSpec(start_s=START_S, base_duration_s=1.5 * DAY_S, period_s=600.0))
    index = [REAL.index_of(limit_w) for limit_w in run.limits_w.tolist()]
    done_s = np.cumsum(REAL.iterations_per_s[index] / REAL.iterations_per_s[-1] * np.diff(run.edges_s))
    over = (run.edges_s[1:] - run.edges_s[0]) / done_s - 1.05
    is_after = done_s >= first.total_iterations / float(REAL.iterations_per_s[-1])
    assert over[is_after].max() <= 0.0006


@pytest.mark.parametrize("max_slowdown", [1.03, 1.05, 1.2])
def test_whenever_a_run_ends_its_slowdown_is_a_point_above_the_bound_at_most(max_slowdown: float) -> None:
    """The job has changed: it is far from its guessed end, and always as slow as it may be."""
    objective, active_s, base_s, period_s = SlowdownObjective(max_slowdown=max_slowdown), 0.0, 0.0, 300.0
    for _ in range(300):
        progress = Progress(
            n_iterations=base_s * TOP_PER_S,
            active_s=active_s,
            base_s=base_s,
            started_at_s=NOW_S - active_s,
            guessed=guess(1e9, CERTAIN_SPREAD_RATIO),
        )
        required = rate_for_slowdown(A40, objective, progress, period_s=period_s)
        active_s, base_s = active_s + period_s, base_s + period_s * required.wanted_per_s[0] / TOP_PER_S
        assert active_s <= (max_slowdown + GUESSED_DEBT) * base_s * (1 + 1e-9)
