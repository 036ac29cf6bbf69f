"""The measured curves: read whole, linear in between."""

import pytest

from controller.adapters.curve import A40_RESNET50, list_curves, load_curve
from controller.errors import BackendError


@pytest.mark.parametrize("name", list_curves())
def test_every_curve_can_be_read_and_is_plausible(name: str) -> None:
    curve = load_curve(name)
    assert list(curve.power_limits_w) == sorted(set(curve.power_limits_w))
    assert 0 < curve.idle_power_w < min(curve.powers_w)
    assert max(curve.powers_w) <= curve.max_power_limit_w
    assert all(speed_per_s > 0 for speed_per_s in curve.speeds_per_s)


def test_a_measured_limit_gives_what_was_measured() -> None:
    curve = load_curve(A40_RESNET50)
    assert curve.model == "NVIDIA A40"
    assert curve.power_w(225.0) == 196.41
    assert curve.iterations_per_s(225.0) == pytest.approx(5004.56 / 3909.47, rel=1e-12)
    assert curve.power_w(100.0) == 120.74
    assert curve.power_w(300.0) == 235.21


def test_between_two_measured_limits_the_curve_is_linear() -> None:
    curve = load_curve(A40_RESNET50)
    assert curve.power_w(212.5) == pytest.approx((curve.power_w(200.0) + curve.power_w(225.0)) / 2)
    middle_per_s = (curve.iterations_per_s(200.0) + curve.iterations_per_s(225.0)) / 2
    assert curve.iterations_per_s(212.5) == pytest.approx(middle_per_s)


def test_a_curve_that_is_not_there_names_those_that_are() -> None:
    with pytest.raises(BackendError, match=A40_RESNET50):
        load_curve("a100")
