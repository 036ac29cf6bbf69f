"""Quantiles of Student's t distribution, beside those of a table."""

import pytest

from policies.vocabulary.quantiles import NORMAL_QUANTILE_95, student_quantile


@pytest.mark.parametrize(
    ("n_degrees", "quantile", "off_ratio"),
    [
        (2, 2.920, 0.013),
        (3, 2.353, 0.003),
        (4, 2.132, 0.003),
        (7, 1.895, 0.003),
        (20, 1.725, 0.003),
        (200, 1.653, 0.003),
    ],
)
def test_the_quantile_is_that_of_the_table(n_degrees: int, quantile: float, off_ratio: float) -> None:
    assert student_quantile(n_degrees) == pytest.approx(quantile, rel=off_ratio)


def test_with_many_samples_it_is_that_of_the_normal_distribution() -> None:
    assert student_quantile(1e9) == pytest.approx(NORMAL_QUANTILE_95)
