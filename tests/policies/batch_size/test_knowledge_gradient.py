"""The default policy: scores, choices, bounds, reviews, and its details."""

import math
from dataclasses import replace

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from policies.batch_size.choose import choose_batch_size, late_cost_bound
from policies.batch_size.gaussian_process import Gaussian
from policies.batch_size.knowledge_gradient import score
from policies.batch_size.study import Choice, LearningSettings, Observation, Study
from tests.policies.batch_size.studies import COSTS, SETTINGS, SIZES, failed, reached, stopped, study

NOISE_VARIANCE = 0.15**2


def choose(of: Study, settings: LearningSettings = SETTINGS) -> Choice:
    return choose_batch_size(of, settings, rng=np.random.default_rng(0))


def belief(*means: float, sd: float | tuple[float, ...] = 0.1) -> Gaussian:
    """Return independent beliefs of six candidates."""
    return Gaussian(mean=np.array(means), covariance=np.diag(np.broadcast_to(np.array(sd) ** 2, len(means))))


def learned(n_rounds: int = 3, *, best: int = 64) -> list[Observation]:
    """Return several runs of every size, with a clear best."""
    epochs = {size: 10.0 * (1 + abs(math.log2(size / best))) for size in SIZES}
    return [reached(size, epochs[size]) for _ in range(n_rounds) for size in SIZES]


def test_the_first_run_takes_the_default() -> None:
    first = choose(study())
    assert (first.batch_size, first.reason, first.cost_bound) == (32, "default_first", None)


def test_the_nearest_size_replaces_a_failed_default() -> None:
    choice = choose(study(failed(32)))
    assert choice.batch_size == 16
    assert "32" in choice.detail


def concurrent_choices(n: int, *observations: Observation) -> list[int]:
    in_flight: tuple[int, ...] = ()
    for _ in range(n):
        in_flight = (*in_flight, choose(study(*observations, in_flight=in_flight)).batch_size)
    return [*in_flight]


def test_concurrent_first_runs_stay_near_the_default() -> None:
    """Nothing bounds what they cost."""
    chosen = concurrent_choices(8)
    assert chosen[0] == 32
    assert set(chosen) == {16, 32, 64}


@pytest.mark.parametrize("unable", [(), (failed(64),)])
def test_most_concurrent_first_runs_take_the_default(unable: tuple[Observation, ...]) -> None:
    """A size near it may never reach the target, and a second run there would teach the same."""
    chosen = concurrent_choices(8, *unable)
    assert set(chosen) == ({16, 32} if unable else {16, 32, 64})
    assert chosen.count(32) >= 5
    assert all(chosen.count(size) == 1 for size in {*chosen} - {32})


def test_a_size_of_unknown_end_is_tried_once_at_a_time() -> None:
    """Others run at the best; what a second run teaches could be had a wave later."""
    runs = [reached(32, 10) for _ in range(8)]
    chosen = concurrent_choices(8, *runs)
    others = {*chosen} - {32}
    assert others
    assert all(chosen.count(size) == 1 for size in others)


def test_a_size_that_never_reached_costs_more_in_expectation() -> None:
    proven, unproven = (
        score(belief(0.0, 0.1, 0.2, 0.3, 0.4, 0.5), NOISE_VARIANCE, study(*seen), SETTINGS).now[SIZES.index(64)]
        for seen in ((reached(32, 10), reached(64, 10)), (reached(32, 10),))
    )
    assert unproven == pytest.approx(0.9 * proven + 0.1 * (1 + SETTINGS.beta))


def test_a_run_without_a_bound_gets_one_once_another_has_reached_the_target() -> None:
    assert late_cost_bound(study(in_flight=(32,)), SETTINGS) is None
    assert late_cost_bound(study(stopped(32, 10)), SETTINGS) is None
    runs = learned(3)
    assert late_cost_bound(study(*runs), SETTINGS) == choose(study(*runs)).cost_bound
    assert late_cost_bound(study(*runs), LearningSettings(policy="zeus")) is None


def test_a_concurrent_first_run_takes_a_lone_default() -> None:
    far = Study(candidates=(8, 32, 128), default=32, in_flight=(32,))
    assert choose(far).batch_size == 32


def test_the_only_candidate_is_chosen() -> None:
    alone = Study(candidates=(32,), default=32, observations=(reached(32, 10),), epoch_costs={32: 5.0})
    choice = choose(alone)
    assert (choice.batch_size, choice.reason) == (32, "only_candidate")
    assert choice.cost_bound == pytest.approx(100, rel=0.01)


def test_the_known_best_is_chosen() -> None:
    choice = choose(study(*learned(5)))
    assert (choice.batch_size, choice.reason) == (64, "best_so_far")
    assert choice.cost_bound == pytest.approx(2 * 10 * COSTS[64], rel=0.1)


@given(st.permutations(SIZES))
def test_failed_and_larger_sizes_are_never_chosen(order: list[int]) -> None:
    runs = [failed(128), *(reached(size, 10) for size in order if size < 128)]
    for n in range(1, len(runs) + 1):
        assert choose(study(*runs[:n])).batch_size < 128


def test_a_larger_size_that_ran_stays_open() -> None:
    runs = [*[reached(256, 5)] * 3, failed(128)]
    assert choose(study(*runs)).batch_size != 128
    assert 256 in study(*runs).open_candidates


def test_the_default_is_tried_again_if_all_failed() -> None:
    choice = choose(study(failed(8)))
    assert (choice.batch_size, choice.reason) == (32, "none_can_run")


def test_a_later_success_at_or_above_a_size_reopens_it() -> None:
    assert study(failed(128)).pruned == {128, 256}
    assert study(failed(128), reached(128, 10)).pruned == set()
    assert study(failed(64), stopped(128, 10)).pruned == set()
    assert study(reached(128, 10), failed(128)).pruned == {128, 256}


def test_an_unbounded_run_stays_near_former_sizes() -> None:
    """Without a measured cost nothing stops it; with one, a larger step is worth its while."""
    unmeasured = choose(study(reached(32, 10), costs={}))
    assert unmeasured.cost_bound is None
    assert unmeasured.batch_size in {16, 32, 64}


def test_the_bound_doubles_with_each_stop_of_the_same_recurrence() -> None:
    """A job that has become ten times as expensive is stopped three times, not for ever."""
    runs = learned(3)
    once, twice = (
        choose_batch_size(replace(study(*runs), n_stopped=n_stopped), SETTINGS, rng=np.random.default_rng(0)).cost_bound
        for n_stopped in (0, 2)
    )
    assert twice == pytest.approx(4 * (once or 0), rel=0.02)


@pytest.mark.parametrize("dearer", [4.0, 10.0, 40.0])
def test_a_more_expensive_job_is_stopped_a_few_times_only(dearer: float) -> None:
    runs, n_stopped, stops = learned(8), 0, 0
    for _ in range(60):
        choice = choose(replace(study(*runs), n_stopped=n_stopped))
        needed = dearer * 10.0 * (1 + abs(math.log2(choice.batch_size / 64)))
        most = (choice.cost_bound or math.inf) // COSTS[choice.batch_size]
        runs.append(reached(choice.batch_size, needed) if needed <= most else stopped(choice.batch_size, most))
        n_stopped = 0 if needed <= most else n_stopped + 1
        stops += needed > most
    assert stops <= 5 * math.log2(dearer)


def test_a_stopped_size_is_not_retried_at_once() -> None:
    choice = choose(study(reached(32, 10), stopped(128, 22)))
    assert choice.batch_size != 128


def test_runs_in_flight_reduce_the_value_of_a_size() -> None:
    runs = (reached(32, 10), reached(16, 11))
    alone = choose(study(*runs)).batch_size
    assert choose(study(*runs, in_flight=(alone,) * 3)).batch_size != alone


def test_the_bound_is_beta_times_the_best_cost() -> None:
    runs = learned(3)
    bounds = [choose(study(*runs), LearningSettings(beta=beta)).cost_bound for beta in (2.0, 3.0)]
    assert None not in bounds
    assert bounds[1] == pytest.approx(1.5 * (bounds[0] or 0))


def test_there_is_no_bound_without_measured_costs() -> None:
    assert choose(study(reached(32, 10), costs={})).cost_bound is None


def test_new_epoch_costs_change_the_choice() -> None:
    """Such as another GPU, another η, or another price of energy."""
    runs = [reached(size, 10.0) for _ in range(4) for size in SIZES]
    dear_small = choose(study(*runs, costs={size: 1e5 / size for size in SIZES}))
    dear_large = choose(study(*runs, costs={size: 10.0 * size for size in SIZES}))
    assert (dear_small.batch_size, dear_large.batch_size) == (256, 8)


def test_a_longer_horizon_explores_more() -> None:
    runs = (reached(32, 10), reached(64, 10.5), reached(16, 11))
    short, long = (choose(study(*runs), LearningSettings(horizon=horizon)) for horizon in (1.0, 500.0))
    assert (short.reason, long.reason) == ("best_so_far", "knowledge_gradient")


def test_an_unlucky_size_is_reviewed_at_the_eighth_run() -> None:
    """Somewhat above the best, once: too much for the knowledge gradient, too little to be sure."""
    runs = (*[reached(32, 10)] * 3, *[reached(64, 9.0)] * 3, reached(128, 11.0))
    seven = Study(candidates=(32, 64, 128), default=32, observations=runs, epoch_costs=COSTS)
    assert (choose(seven).batch_size, choose(seven).reason) == (64, "best_so_far")
    eight = Study(candidates=(32, 64, 128), default=32, observations=(*runs, reached(32, 10)), epoch_costs=COSTS)
    assert (choose(eight).batch_size, choose(eight).reason) == (128, "review")


def test_a_clearly_worse_size_is_not_reviewed() -> None:
    runs = [reached(size, 10.0 if size == 64 else 40.0) for _ in range(4) for size in SIZES][:16]
    assert choose(study(*runs)).reason == "best_so_far"


def test_the_bounded_cost_agrees_with_a_simulation() -> None:
    """Monte Carlo: a log-normal cost, stopped at twice the best and followed by a restart."""
    sd, gaps = (0.1, 0.3, 0.5, 0.2, 0.7, 0.4), (0.0, 0.1, 0.5, 0.9, 0.3, 1.5)
    ran = study(*(reached(size, 10) for size in SIZES))
    now = score(belief(*gaps, sd=sd), NOISE_VARIANCE, ran, SETTINGS).now
    dice = np.random.default_rng(1).standard_normal((200_000, 1))
    costs = np.exp(np.array(gaps) + dice * np.sqrt(np.array(sd) ** 2 + NOISE_VARIANCE))
    np.testing.assert_allclose(now, np.where(costs <= 2, costs, 3.0).mean(axis=0), rtol=0.01)


def test_the_knowledge_gradient_agrees_with_a_simulation() -> None:
    """Monte Carlo: the posterior mean after one more run, and the best of it and its rival."""
    sd, gaps = (0.1, 0.3, 0.5, 0.2, 0.7, 0.4), (0.0, 0.1, 0.5, 0.9, 0.3, 0.2)
    scores = score(belief(*gaps, sd=sd), NOISE_VARIANCE, study(), SETTINGS)
    later = (scores.total * (1 + SETTINGS.horizon) - scores.now) / SETTINGS.horizon
    variance = np.array(sd) ** 2
    steps = variance / np.sqrt(variance + NOISE_VARIANCE)
    dice = np.random.default_rng(1).standard_normal((200_000, 1))
    rivals = np.array([min(gap for at, gap in enumerate(gaps) if at != own) for own in range(len(gaps))])
    expected = np.exp(np.minimum(np.array(gaps) + dice * steps, rivals).mean(axis=0))
    np.testing.assert_allclose(later, expected, rtol=0.01)


@given(st.lists(st.floats(-1e3, 1e3), min_size=6, max_size=6), st.floats(1e-3, 10))
def test_extreme_posteriors_have_finite_scores(means: list[float], sd: float) -> None:
    total = score(belief(*means, sd=sd), NOISE_VARIANCE, study(), SETTINGS).total
    assert not np.isnan(total).any()


def test_the_detail_has_numbers() -> None:
    choice = choose(study(reached(32, 10), reached(16, 11)))
    assert choice.reason == "knowledge_gradient"
    assert f"{choice.batch_size} is expected to cost" in choice.detail
    assert "90 %" in choice.detail


def test_the_choice_is_deterministic() -> None:
    runs = study(*learned(1))
    assert choose_batch_size(runs, SETTINGS, rng=np.random.default_rng(7)) == choose(runs)
