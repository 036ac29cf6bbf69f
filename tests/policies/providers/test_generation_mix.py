"""The carbon intensity of a mix: storage does not count, and an hour that lacks an important fuel has none."""

import pytest
from hypothesis import given
from hypothesis import strategies as st

from policies.providers.generation_mix import (
    LIFECYCLE_G_PER_KWH,
    REACH_S,
    STORAGE,
    Mix,
    intensities_g_per_kwh,
    mix_intensity_g_per_kwh,
)

HOUR_S = 3_600.0
FULL: Mix = {"COL": 60.0, "WND": 37.0, "SUN": 3.0}


def hours(*mixes: Mix) -> dict[float, Mix]:
    return {i * HOUR_S: mix for i, mix in enumerate(mixes)}


def known(mixes: dict[float, Mix]) -> list[bool]:
    return [value is not None for value in intensities_g_per_kwh(mixes).values()]


def test_the_intensity_is_the_mean_of_the_factors_weighted_by_generation() -> None:
    assert mix_intensity_g_per_kwh({"COL": 1.0, "NUC": 3.0}) == pytest.approx((820 + 3 * 12) / 4)


def test_storage_negative_and_missing_generation_do_not_count() -> None:
    mix = {"NG": 10.0, "SUN": -0.5, "WAT": None} | dict.fromkeys(STORAGE, 50.0)
    assert mix_intensity_g_per_kwh(mix) == 490.0


def test_solar_with_a_battery_is_solar() -> None:
    assert mix_intensity_g_per_kwh({"SNB": 10.0}) == LIFECYCLE_G_PER_KWH["SUN"]


def test_an_unlisted_fuel_counts_as_unknown() -> None:
    assert mix_intensity_g_per_kwh({"XYZ": 10.0}) == LIFECYCLE_G_PER_KWH["UNK"]


@pytest.mark.parametrize("mix", [{}, {"COL": None}, {"COL": 0.0}, {"COL": -1.0}, {"BAT": 5.0}])
def test_without_generation_there_is_no_intensity(mix: Mix) -> None:
    assert mix_intensity_g_per_kwh(mix) is None


@pytest.mark.parametrize("partial", [{"WND": 37.0, "SUN": 3.0}, {"COL": None, "WND": 37.0, "SUN": 3.0}])
def test_an_hour_that_lacks_an_important_fuel_is_missing(partial: Mix) -> None:
    assert known(hours(FULL, partial, FULL)) == [True, False, True]
    assert known(hours(partial, FULL)) == [False, True]
    assert known(hours(FULL, partial)) == [True, False]


def test_an_outage_of_many_hours_is_missing_to_its_middle() -> None:
    assert known(hours(FULL, *[{"WND": 37.0}] * 20, FULL)) == [True, *[False] * 20, True]


def test_an_hour_that_lacks_a_minor_fuel_is_known() -> None:
    assert known(hours(FULL, {"COL": 60.0, "WND": 37.0}, FULL)) == [True, True, True]


def test_a_night_without_solar_data_is_known() -> None:
    evening: Mix = {"COL": 60.0, "SUN": 40.0}
    dusk: Mix = {"COL": 90.0, "SUN": 1.0}
    night: Mix = {"COL": 95.0}
    assert all(known(hours(evening, dusk, night, night, night, dusk, evening)))


def test_a_fuel_that_is_no_longer_reported_stops_mattering() -> None:
    mixes: dict[float, Mix] = {0.0: FULL, REACH_S: {"WND": 1.0}, REACH_S + HOUR_S: {"WND": 1.0}}
    assert known(mixes) == [True, False, True]


@given(
    st.dictionaries(
        st.sampled_from([*LIFECYCLE_G_PER_KWH, *STORAGE, "NEW"]), st.none() | st.floats(-1e9, 1e9), max_size=8
    )
)
def test_an_intensity_lies_between_that_of_wind_and_that_of_coal(mix: dict[str, float | None]) -> None:
    value = mix_intensity_g_per_kwh(mix)
    assert value is None or 11.0 - 1e-9 <= value <= 820.0 + 1e-9
