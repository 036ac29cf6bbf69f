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


def test_two_runs_with_far_more_epochs_are_a_change() -> None:
    assert change([*USUAL, 30, 28]) == len(USUAL)


def test_a_stopped_run_and_two_long_ones_are_a_change() -> None:
    assert change([*USUAL, 20, 26, 25], stopped=[len(USUAL)]) == len(USUAL)


def test_a_run_stopped_early_is_not_part_of_the_baseline() -> None:
    assert change([1e-6, *USUAL, 30, 28], stopped=[0]) == 1 + len(USUAL)
    assert change([*USUAL, 30, 1e-6, 28], stopped=[len(USUAL) + 1]) == len(USUAL)


def test_one_long_run_is_no_change() -> None:
    assert change([*USUAL, 1e6, 10, 11, 1e6, 9]) == 0


def test_slightly_longer_runs_are_no_change() -> None:
    assert change([10, 10, 10, 10] + [13] * 30) == 0


def test_four_runs_are_no_baseline_yet() -> None:
    assert change([10, 10, 10, 10, 30, 30, 30, 30]) == 0


def test_shorter_runs_are_no_change() -> None:
    assert change([*USUAL] + [2] * 10) == 0


def test_differences_between_batch_sizes_are_no_change() -> None:
    assert change([10, 40] * 20, index=[0, 1] * 20) == 0


def test_a_change_begins_with_the_first_long_run() -> None:
    assert change([*USUAL, 30, 12, 12, 30], index=[0] * len(USUAL) + [0, 1, 1, 0]) == len(USUAL)


def test_the_last_of_several_changes_counts() -> None:
    assert change([*USUAL] + [30] * 10 + [100] * 3) == len(USUAL) + 10


@pytest.mark.parametrize("sd_log", [0.15, 0.3, 0.6])
def test_noise_is_no_change(sd_log: float) -> None:
    found = [change(noisy(200, seed=seed, sd_log=sd_log)) for seed in range(50)]
    assert sum(at > 0 for at in found) <= 3


@pytest.mark.parametrize("sd_log", [0.05, 0.15, 0.3])
def test_a_job_that_takes_three_times_as_long_is_detected_soon(sd_log: float) -> None:
    for seed in range(20):
        epochs = np.array(noisy(40, seed=seed, sd_log=sd_log))
        epochs[30:] *= 3
        assert change(epochs[:37].tolist()) >= 27


def test_all_runs_before_a_change_weigh_less_than_one_after_it() -> None:
    index = np.array([0] * 50 + [1] * 2 + [0] * 3)
    weights = observation_weights(index, np.zeros(55), None, n_before=50)
    assert weights[:50].sum() == pytest.approx(1 / (1 / 50 + (0.7 / 0.15) ** 2))
    assert (weights[50:] == 1).all()


CHANGED = (*[reached(64, 10)] * 24, reached(32, 14), reached(16, 18), stopped(64, 20), reached(64, 41), reached(64, 40))


def test_a_changed_job_starts_again_with_its_default() -> None:
    choice = choose(study(*CHANGED, default=32), SETTINGS)
    assert (choice.batch_size, choice.reason) == (32, "job_changed")
    assert "the job has changed" in choice.detail


@pytest.mark.parametrize("then", [reached(32, 14), stopped(32, 20)])
def test_a_changed_job_takes_its_default_once(then: Observation) -> None:
    assert choose(study(*CHANGED, then, default=32), SETTINGS).reason != "job_changed"


def test_a_changed_job_waits_while_its_default_is_in_flight() -> None:
    assert choose(study(*CHANGED, default=32, in_flight=(32,)), SETTINGS).reason != "job_changed"


def test_a_given_forgetting_factor_disables_change_detection() -> None:
    assert choose(study(*CHANGED, default=32), LearningSettings(forgetting_ratio=1.0)).reason != "job_changed"


def test_the_posterior_follows_a_change_at_once() -> None:
    posterior = infer(study(*CHANGED, default=32), SETTINGS)
    assert posterior is not None
    assert math.exp(float(posterior.log_epochs.mean[SIZES.index(64)])) > 25
    assert posterior.unseen_since.tolist() == [size != 64 for size in SIZES]


def weights(epochs: list[float], index: list[int] | None = None, ratio: float | None = None) -> list[float]:
    """Return the weights of runs at one batch size, or at those of `index`."""
    at = np.zeros(len(epochs), dtype=np.intp) if index is None else np.array(index, dtype=np.intp)
    return [float(weight) for weight in observation_weights(at, np.log(np.array(epochs)), ratio)]


def test_a_given_factor_discounts_older_runs() -> None:
    assert weights([10, 10, 10], ratio=0.5) == [0.25, 0.5, 1.0]


def test_no_runs_have_no_weights() -> None:
    assert weights([]) == []


@pytest.mark.parametrize("seed", range(5))
def test_a_stationary_job_is_not_forgotten(seed: int) -> None:
    epochs = 10 * np.exp(0.15 * np.random.default_rng(seed).standard_normal(80))
    assert weights(epochs.tolist()) == [1.0] * 80


def test_a_drifting_job_is_forgotten() -> None:
    assert weights([10.0] * 30 + [25.0] * 6)[0] < 0.2


def test_one_outlier_causes_no_forgetting() -> None:
    assert weights([10.0] * 15 + [25.0] + [10.0] * 15) == [1.0] * 31


def test_different_batch_sizes_are_no_drift() -> None:
    assert weights([10.0, 40.0] * 20, index=[0, 1] * 20) == [1.0] * 40


def test_drift_at_one_batch_size_forgets_at_all() -> None:
    changed = weights([10.0] * 20 + [40.0] * 2 + [25.0] * 8, index=[0] * 20 + [1] * 2 + [0] * 8)
    assert changed == sorted(changed)
    assert changed[20] < 1


@given(st.lists(st.floats(1e-3, 1e6), min_size=1, max_size=60))
def test_weights_are_at_most_one_and_the_newest_is_one(epochs: list[float]) -> None:
    found = weights(epochs)
    assert found[-1] == 1.0
    assert found == sorted(found)
    assert all(0 < weight <= 1 for weight in found)


def test_only_the_newest_runs_choose_the_factor() -> None:
    drifted = [10.0] * 30 + [25.0] * 30
    assert weights(drifted + [25.0] * MAX_RUNS)[-2] == 1.0
    assert weights(drifted)[-2] == min(FACTORS)
