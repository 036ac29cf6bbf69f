"""Unit conversions: exact values, and one place for their factors."""

import re
from pathlib import Path

import pytest

import policies
from policies.vocabulary.units import (
    carbon_g,
    cost,
    energy_kwh,
    intensity_g_per_kwh,
    price_per_kwh,
    price_pounds_per_kwh,
)


def test_a_kilowatt_hour_is_3600_kilojoules() -> None:
    assert energy_kwh(3_600_000.0) == 1.0


def test_carbon_is_energy_times_intensity() -> None:
    assert carbon_g(1_800_000.0, 400.0) == 200.0


def test_a_price_may_be_negative() -> None:
    assert cost(3_600_000.0, -0.02) == -0.02


def test_pounds_per_megawatt_hour_become_grams_per_kilowatt_hour() -> None:
    assert intensity_g_per_kwh(1_000.0) == pytest.approx(453.59237, rel=1e-12)


def test_a_price_per_megawatt_hour_is_a_thousandth_per_kilowatt_hour() -> None:
    assert price_per_kwh(85.0) == 0.085


def test_a_price_in_pence_is_a_hundredth_in_pounds() -> None:
    assert price_pounds_per_kwh(24.5) == pytest.approx(0.245)


def test_the_kilowatt_hour_is_defined_in_one_file() -> None:
    package = Path(policies.__file__).parent
    number = re.compile(r"\b3_?600_?000\b|\b3\.6e6\b")
    files = {path.name for path in package.rglob("*.py") if number.search(path.read_text(encoding="utf-8"))}
    assert files == {"units.py"}
