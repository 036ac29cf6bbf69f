"""Tests of the ratios between a power limit and the top limit: what is impossible is refused."""

from typing import Any

import pytest

from policies.vocabulary.limit_ratios import LimitRatios

GOOD: dict[str, Any] = {
    "power_limit_w": 200.0,
    "rate_ratio": 0.95,
    "rate_error_ratio": 0.002,
    "energy_ratio": 1.2,
    "energy_error_ratio": 0.0,
}


def test_possible_ratios_are_kept() -> None:
    """They are what was given, and without a number of looks they come from the curve."""
    ratios = LimitRatios(**GOOD)
    assert (ratios.rate_ratio, ratios.energy_ratio, ratios.n_looks) == (0.95, 1.2, 0)


@pytest.mark.parametrize(
    ("name", "value"),
    [
        ("power_limit_w", 0.0),
        ("rate_ratio", -1.0),
        ("rate_ratio", float("nan")),
        ("energy_ratio", float("inf")),
        ("rate_error_ratio", -0.1),
        ("energy_error_ratio", float("nan")),
        ("n_looks", -1),
    ],
)
def test_impossible_ratios_are_refused(name: str, value: float) -> None:
    """A zero, a negative or a missing number never reaches a ledger."""
    with pytest.raises(ValueError, match="must be finite"):
        LimitRatios(**GOOD | {name: value})
