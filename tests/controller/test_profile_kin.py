"""The nearest known curve: nearer in kind before nearer in batch size, and between two batch sizes where it can be."""

from dataclasses import replace
from itertools import permutations

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from controller.profile_files import ProfileKey
from controller.profile_kin import Kin, nearest_kin
from policies.profile import PowerProfile, ProfilePoint

KEY = ProfileKey(
    job="bert", gpu_model="A40", n_gpus=2, world_size=2, batch_size=64, gpu_uuids=("GPU-1", "GPU-2"), driver="535"
)
LIMITS_W = (150.0, 200.0, 250.0, 300.0)


def curve(*, rate: float = 10.0, power: float = 1.0, limits_w: tuple[float, ...] = LIMITS_W) -> PowerProfile:
    """Return a curve that goes with its factors."""
    return PowerProfile(
        tuple(
            ProfilePoint(
                power_limit_w=limit_w,
                power_w=power * limit_w,
                iterations_per_s=rate * (limit_w / 300.0) ** 0.5,
                power_ci_w=0.01 * power * limit_w,
                iterations_per_s_ci=0.01 * rate,
                n=40,
            )
            for limit_w in limits_w
        )
    )


def kin_of(*known: tuple[ProfileKey, PowerProfile], key: ProfileKey = KEY) -> Kin:
    found = nearest_kin(key, dict(known))
    assert found is not None
    return found


def test_nothing_is_nearest_to_nothing() -> None:
    assert nearest_kin(KEY, {}) is None


def test_what_is_likelier_to_be_the_same_comes_first_in_whatever_order_it_is_known() -> None:
    ranked = [
        replace(KEY, driver="550"),
        replace(KEY, gpu_uuids=("GPU-3",)),
        replace(KEY, gpu_uuids=("GPU-3",), driver="550"),
        replace(KEY, world_size=4),
        replace(KEY, n_gpus=4),
        replace(KEY, batch_size=128),
    ]
    for known in permutations(ranked, 2):
        nearer = min(known, key=ranked.index)
        curves = {key: curve(rate=1.0 + ranked.index(key)) for key in known}
        found = nearest_kin(KEY, curves)
        assert found is not None
        expected = nearest_kin(KEY, {nearer: curves[nearer]})
        assert found == expected


def test_of_two_as_near_the_one_saved_later_counts() -> None:
    old, new = replace(KEY, driver="530"), replace(KEY, driver="550")
    assert kin_of((old, curve(rate=1.0)), (new, curve(rate=2.0))).profile == curve(rate=2.0)
    assert kin_of((new, curve(rate=2.0)), (old, curve(rate=1.0))).profile == curve(rate=1.0)


def test_power_goes_with_the_number_of_gpus_and_its_interval_too() -> None:
    found = kin_of((replace(KEY, n_gpus=4), curve(power=4.0)))
    assert found.profile == curve(power=2.0)


def test_from_one_other_batch_size_the_samples_per_second_stay() -> None:
    for size in (32, 128):
        found = kin_of((replace(KEY, batch_size=size), curve(rate=10.0)))
        assert found.origin == f"measured at batch size {size}"
        assert found.profile.iterations_per_s == pytest.approx(10.0 * size / 64 * (np.array(LIMITS_W) / 300.0) ** 0.5)
        assert found.profile.power_w == pytest.approx(LIMITS_W)
        assert found.profile.fastest.iterations_per_s_ci == pytest.approx(0.1 * size / 64)


def test_beyond_all_batch_sizes_the_nearest_one_counts_alone() -> None:
    known = [(replace(KEY, batch_size=size), curve(rate=8.0)) for size in (8, 16, 32)]
    assert kin_of(*known).origin == "measured at batch size 32"
    assert kin_of(*known, key=replace(KEY, batch_size=4)).origin == "measured at batch size 8"


@given(
    st.integers(1, 6),
    st.integers(1, 6),
    st.floats(0.1, 10.0),
    st.floats(-0.9, 0.2),
    st.floats(1.0, 4.0),
    st.floats(0, 0.3),
)
def test_between_two_batch_sizes_a_power_law_is_met_exactly(
    down: int, up: int, rate: float, exponent: float, power: float, power_exponent: float
) -> None:
    def law(size: int) -> tuple[ProfileKey, PowerProfile]:
        profile = curve(rate=rate * (size / 64) ** exponent, power=power * (size / 64) ** power_exponent)
        return replace(KEY, batch_size=size), profile

    found = kin_of(law(64 * 2**up), law(64 // 2**down), law(64 * 2 ** (up + 1)))
    expected = law(64)[1]
    assert found.origin == f"between batch sizes {64 // 2**down} and {64 * 2**up}"
    assert found.profile.power_limits_w == pytest.approx(expected.power_limits_w)
    assert found.profile.power_w == pytest.approx(expected.power_w)
    assert found.profile.iterations_per_s == pytest.approx(expected.iterations_per_s)


def test_between_two_batch_sizes_only_limits_count_that_both_of_them_reach() -> None:
    low = replace(KEY, batch_size=32), curve(limits_w=(100.0, 200.0, 300.0))
    high = replace(KEY, batch_size=128), curve(limits_w=(150.0, 200.2, 250.0))
    assert kin_of(low, high).profile.power_limits_w.tolist() == [150.0, 200.0, 250.0]


def test_where_two_batch_sizes_have_hardly_a_limit_in_common_the_nearer_one_counts() -> None:
    low = replace(KEY, batch_size=32), curve(limits_w=(100.0, 150.0, 200.0))
    high = replace(KEY, batch_size=512), curve(limits_w=(200.0, 250.0, 300.0))
    assert kin_of(low, high).origin == "measured at batch size 32"
    assert kin_of(low, high, key=replace(KEY, batch_size=256)).origin == "measured at batch size 512"
