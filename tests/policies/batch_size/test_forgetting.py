"""Forgetting: at a stated rate, or at the one that has predicted best."""

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from policies.batch_size.concept_drift import MOST, RATES, observation_weights


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
    assert weights(drifted + [25.0] * MOST)[-2] == 1.0
    assert weights(drifted)[-2] == min(RATES)
