"""A real training that is judged steady is as fast as its own clock says: to 2 %, with accumulation and validations."""

from pathlib import Path

import pytest

from tests.frameworks.rates import PACES, TOLERANCE_RATIO, Pace, measure

HARDEST = [pace for pace in PACES if pace.accumulation == 4]


@pytest.mark.parametrize(
    "pace", HARDEST, ids=lambda pace: f"{pace.framework}-{pace.accumulation}-{pace.has_validation}"
)
def test_a_training_that_is_judged_steady_is_as_fast_as_it_says(pace: Pace, tmp_path: Path) -> None:
    measured = measure(pace, tmp_path, n_steps=600)
    assert measured.found_s == pytest.approx(measured.true_s, rel=0.5), "bursts and pauses are no iterations"
    if measured.fault is None:
        assert measured.found_s == pytest.approx(measured.true_s, rel=TOLERANCE_RATIO)
