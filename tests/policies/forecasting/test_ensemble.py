"""Weights of the models by their errors, and of the provider's forecast."""

import numpy as np
import pytest

from policies.forecasting.ensemble import (
    Skill,
    member_weights,
    provider_weights,
    unknown_skill,
    update_skill,
    weighted_mean,
)
from policies.forecasting.track_record import VerifiedForecasts
from policies.vocabulary.units import HOUR_S

NAN = float("nan")


def verified(members: list[float], *, provider: float = NAN, actual: float = 100.0) -> VerifiedForecasts:
    return VerifiedForecasts(
        lead=np.array([0]),
        members=np.array(members)[:, None],
        provider=np.array([provider]),
        issued=np.array([NAN]),
        interval=np.full((2, 1), NAN),
        actual=np.array([actual]),
        times_s=np.array([0.0]),
    )


def after(n: int, members: list[float], provider: float = NAN) -> Skill:
    skill = unknown_skill(len(members), 1)
    for _ in range(n):
        skill = update_skill(skill, verified(members, provider=provider))
    return skill


def test_equally_good_models_share_the_weight() -> None:
    assert member_weights(after(5, [110.0, 90.0]))[:, 0] == pytest.approx([0.5, 0.5])


def test_twice_the_error_has_a_64th_of_the_weight() -> None:
    weights = member_weights(after(5, [110.0, 80.0]))[:, 0]
    assert weights[1] / weights[0] == pytest.approx(1 / 64)


def test_a_model_without_a_forecast_has_no_weight() -> None:
    assert member_weights(after(5, [110.0, NAN]))[:, 0] == pytest.approx([1.0, 0.0])


def test_weights_are_equal_before_any_error() -> None:
    weights = member_weights(unknown_skill(3, 2))
    assert weighted_mean(weights, np.array([[1.0, NAN], [3.0, NAN], [NAN, NAN]])) == pytest.approx(
        [2.0, NAN], nan_ok=True
    )


def test_models_without_errors_share_the_weight() -> None:
    assert member_weights(after(3, [100.0, 100.0, 101.0]))[:, 0] == pytest.approx([0.5, 0.5, 0.0])


def test_old_errors_fade() -> None:
    skill = after(1_000, [110.0, 101.0])
    for _ in range(1_000):
        skill = update_skill(skill, verified([101.0, 110.0]))
    weights = member_weights(skill)[:, 0]
    assert weights[0] > 0.9


def test_an_unverified_provider_counts_beyond_three_hours() -> None:
    leads_s = np.array([1, 3, 4, 24]) * HOUR_S
    assert provider_weights(unknown_skill(2, 4), leads_s).tolist() == [0.0, 0.0, 1.0, 1.0]


@pytest.mark.parametrize(("provider", "least", "most"), [(101.0, 0.9, 1.0), (120.0, 0.0, 0.1), (110.0, 0.45, 0.55)])
@pytest.mark.parametrize("lead_s", [HOUR_S, 12 * HOUR_S])
def test_errors_outweigh_the_prior(provider: float, least: float, most: float, lead_s: float) -> None:
    skill = after(300, [110.0], provider=provider)
    assert least <= provider_weights(skill, np.array([lead_s]))[0] <= most


def test_a_provider_is_compared_at_common_times() -> None:
    skill = after(50, [100.0])
    skill = update_skill(skill, verified([150.0], provider=125.0))
    assert skill.paired_errors[:, 0] == pytest.approx([25.0, 50.0])
    assert skill.n_paired.tolist() == [1]


def test_a_missing_forecast_leaves_its_weight_to_the_others() -> None:
    assert weighted_mean(np.array([[0.2], [0.2], [0.6]]), np.array([[1.0], [3.0], [NAN]])) == pytest.approx([2.0])
