"""Non-stationary jobs: sudden changes are detected, slow drift is forgotten, noise is neither."""

import math
from collections.abc import Sequence

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from policies.batch_size.concept_drift import FACTORS, MAX_RUNS, first_run_after_change, observation_weights
from policies.batch_size.knowledge_gradient import choose
from policies.batch_size.posterior import infer
from policies.batch_size.study import LearningSettings, Observation
from tests.policies.batch_size.studies import SETTINGS, SIZES, reached, stopped, study


def change(epochs: Sequence[float], index: Sequence[int] | None = None, stopped: Sequence[int] = ()) -> int:
    """Return where runs at one batch size, or at those of `index`, have changed; `stopped`: before they got there."""
    at = np.array(index if index is not None else [0] * len(epochs))
    return first_run_after_change(at, np.log(np.array(epochs)), ~np.isin(np.arange(len(epochs)), stopped))


def noisy(n: int, *, seed: int, sd_log: float) -> list[float]:
    return [float(10 * math.exp(sd_log * z)) for z in np.random.default_rng(seed).standard_normal(n)]


USUAL = (10, 11, 9, 10) * 6


def test_two_runs_that_need_far_more_are_a_change() -> None:
    assert change([*USUAL, 30, 28]) == len(USUAL)


def test_a_run_that_was_stopped_and_two_that_got_there_are_one() -> None:
    assert change([*USUAL, 20, 26, 25], stopped=[len(USUAL)]) == len(USUAL)


def test_a_run_that_was_stopped_early_says_nothing_of_what_is_usual() -> None:
    assert change([1e-6, *USUAL, 30, 28], stopped=[0]) == 1 + len(USUAL)
    assert change([*USUAL, 30, 1e-6, 28], stopped=[len(USUAL) + 1]) == len(USUAL)


def test_one_run_is_none_however_long() -> None:
    assert change([*USUAL, 1e6, 10, 11, 1e6, 9]) == 0


def test_somewhat_more_is_none_however_often() -> None:
    assert change([10, 10, 10, 10] + [13] * 30) == 0


def test_nothing_is_usual_yet_after_four_runs() -> None:
    assert change([10, 10, 10, 10, 30, 30, 30, 30]) == 0


def test_far_fewer_are_none() -> None:
    assert change([*USUAL] + [2] * 10) == 0


def test_batch_sizes_that_differ_are_none() -> None:
    assert change([10, 40] * 20, index=[0, 1] * 20) == 0


def test_the_change_began_with_the_first_of_the_long_runs_whatever_ran_in_between() -> None:
    assert change([*USUAL, 30, 12, 12, 30], index=[0] * len(USUAL) + [0, 1, 1, 0]) == len(USUAL)


def test_the_last_of_several_changes_counts() -> None:
    assert change([*USUAL] + [30] * 10 + [100] * 3) == len(USUAL) + 10


@pytest.mark.parametrize("sd_log", [0.15, 0.3, 0.6])
def test_noise_is_none(sd_log: float) -> None:
    found = [change(noisy(200, seed=seed, sd_log=sd_log)) for seed in range(50)]
    assert sum(at > 0 for at in found) <= 3


@pytest.mark.parametrize("sd_log", [0.05, 0.15, 0.3])
def test_a_job_that_takes_three_times_as_long_is_noticed_within_a_few_runs(sd_log: float) -> None:
    for seed in range(20):
        epochs = np.array(noisy(40, seed=seed, sd_log=sd_log))
        epochs[30:] *= 3
        assert change(epochs[:37].tolist()) >= 27


def test_all_old_runs_of_a_size_together_weigh_less_than_one_new_one() -> None:
    index = np.array([0] * 50 + [1] * 2 + [0] * 3)
    weights = observation_weights(index, np.zeros(55), None, n_before=50)
    assert weights[:50].sum() == pytest.approx(1 / (1 / 50 + (0.7 / 0.15) ** 2))
    assert (weights[50:] == 1).all()


CHANGED = (*[reached(64, 10)] * 24, reached(32, 14), reached(16, 18), stopped(64, 20), reached(64, 41), reached(64, 40))


def test_a_job_that_has_changed_begins_anew_with_its_default() -> None:
    choice = choose(study(*CHANGED, default=32), SETTINGS)
    assert (choice.batch_size, choice.reason) == (32, "job_changed")
    assert "the job has changed" in choice.detail


@pytest.mark.parametrize("then", [reached(32, 14), stopped(32, 20)])
def test_it_does_so_once(then: Observation) -> None:
    assert choose(study(*CHANGED, then, default=32), SETTINGS).reason != "job_changed"


def test_it_does_not_while_the_default_runs_already() -> None:
    assert choose(study(*CHANGED, default=32, in_flight=(32,)), SETTINGS).reason != "job_changed"


def test_it_does_not_at_a_stated_rate_of_forgetting() -> None:
    assert choose(study(*CHANGED, default=32), LearningSettings(forgetting_ratio=1.0)).reason != "job_changed"


def test_the_new_level_is_believed_at_once() -> None:
    posterior = infer(study(*CHANGED, default=32), SETTINGS)
    assert posterior is not None
    assert math.exp(float(posterior.log_epochs.mean[SIZES.index(64)])) > 25
    assert posterior.unseen_since.tolist() == [size != 64 for size in SIZES]


def weights(epochs: list[float], index: list[int] | None = None, ratio: float | None = None) -> list[float]:
    """Return the weights of runs at one batch size, or at those of `index`."""
    at = np.zeros(len(epochs), dtype=np.intp) if index is None else np.array(index, dtype=np.intp)
    return [float(weight) for weight in observation_weights(at, np.log(np.array(epochs)), ratio)]


def test_at_a_stated_rate_each_further_run_makes_the_old_ones_lighter() -> None:
    assert weights([10, 10, 10], ratio=0.5) == [0.25, 0.5, 1.0]


def test_nothing_weighs_nothing() -> None:
    assert weights([]) == []


@pytest.mark.parametrize("seed", range(5))
def test_a_job_that_stays_the_same_is_not_forgotten(seed: int) -> None:
    epochs = 10 * np.exp(0.15 * np.random.default_rng(seed).standard_normal(80))
    assert weights(epochs.tolist()) == [1.0] * 80


def test_a_job_that_changed_is() -> None:
    assert weights([10.0] * 30 + [25.0] * 6)[0] < 0.2


def test_one_freak_run_makes_nobody_forget() -> None:
    assert weights([10.0] * 15 + [25.0] + [10.0] * 15) == [1.0] * 31


def test_different_batch_sizes_need_different_epochs_without_a_drift() -> None:
    assert weights([10.0, 40.0] * 20, index=[0, 1] * 20) == [1.0] * 40


def test_what_changed_at_one_batch_size_is_forgotten_at_all() -> None:
    changed = weights([10.0] * 20 + [40.0] * 2 + [25.0] * 8, index=[0] * 20 + [1] * 2 + [0] * 8)
    assert changed == sorted(changed)
    assert changed[20] < 1


@given(st.lists(st.floats(1e-3, 1e6), min_size=1, max_size=60))
def test_the_newest_run_weighs_one_and_the_others_no_more(epochs: list[float]) -> None:
    found = weights(epochs)
    assert found[-1] == 1.0
    assert found == sorted(found)
    assert all(0 < weight <= 1 for weight in found)


def test_a_long_history_is_judged_by_its_newest_part() -> None:
    drifted = [10.0] * 30 + [25.0] * 30
    assert weights(drifted + [25.0] * MAX_RUNS)[-2] == 1.0
    assert weights(drifted)[-2] == min(FACTORS)
