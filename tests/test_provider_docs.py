"""The page on providers has each provider with every key, and its examples are valid configurations."""

import re
import tomllib
from pathlib import Path
from typing import Any, get_type_hints

import msgspec
import pytest

from controller.config import load_config
from controller.errors import ConfigError
from policies.providers.base import ProviderSettings
from policies.providers.catalogue import CATALOGUE
from policies.providers.sources import csv_file as trace

PAGE = (Path(__file__).parents[1] / "docs" / "providers.md").read_text(encoding="utf-8")
SIGNALS = (Path(__file__).parents[1] / "docs" / "signals.md").read_text(encoding="utf-8")
SECTIONS: dict[str, str] = dict(re.findall(r"(?ms)^### `([a-z-]+)`(.*?)(?=^### |\Z)", PAGE))
ENTRIES = [(kind, name) for kind, entries in CATALOGUE.items() for name in entries]
COMMON = {*ProviderSettings.__struct_fields__, "url", "token_env", "password_env"}


def examples(name: str) -> list[dict[str, Any]]:
    """Return the tables that a section shows."""
    fences = re.findall(r"(?s)```toml\n(.*?)```", SECTIONS[name])
    return [table for fence in fences for table in tomllib.loads(fence)["signal"]["provider"]]


def test_the_page_has_a_section_and_a_row_for_each_provider_in_one_order() -> None:
    rows = re.findall(r"(?m)^\| \[`([a-z-]+)`\]", PAGE)
    assert rows == list(SECTIONS)
    assert set(SECTIONS) == {name for _, name in ENTRIES}


def test_the_documented_number_of_providers_is_right() -> None:
    assert len(SECTIONS) == 13
    assert "Thirteen providers" in SIGNALS


@pytest.mark.parametrize(("kind", "name"), ENTRIES)
def test_a_section_mentions_every_key(kind: str, name: str) -> None:
    keys = set(get_type_hints(CATALOGUE[kind][name].settings)) - COMMON
    assert {key for key in keys if not re.search(rf"\b{key}\b", SECTIONS[name])} == set()


@pytest.mark.parametrize(("kind", "name"), ENTRIES)
def test_the_example_is_valid_for_carbon_or_for_prices(kind: str, name: str) -> None:
    keys = set(CATALOGUE[kind][name].settings.__struct_fields__) | {"name"}
    shown = [{key: value for key, value in table.items() if key in keys} for table in examples(name)]
    assert shown
    if name == "energy-charts" and kind == "price":  # the comment says what a zone of prices looks like
        shown = [{**table, "zone": "DE-LU"} for table in shown]
    if name == "mqtt" and kind == "price":
        shown = [{**table, "kind": "price", "unit": "EUR/kWh"} for table in shown]
    for table in shown:
        text = ", ".join(f"{key} = {msgspec.json.encode(value).decode()}" for key, value in table.items())
        try:
            load_config(None, [f"signal.kind={kind}", f"signal.provider=[{{{text}}}]"])
        except ConfigError as error:
            pytest.fail(f"{text}: {error}")


@pytest.mark.parametrize("name", SECTIONS)
def test_an_example_is_valid_as_it_stands(name: str) -> None:
    kind = "carbon" if name in CATALOGUE["carbon"] else "price"
    for fence in re.findall(r"(?s)```toml\n(.*?)```", SECTIONS[name]):
        for table in tomllib.loads(fence)["signal"]["provider"]:
            text = ", ".join(f"{key} = {msgspec.json.encode(value).decode()}" for key, value in table.items())
            load_config(None, [f"signal.kind={kind}", f"signal.provider=[{{{text}}}]"])


def test_the_documented_file_units_are_the_known_ones() -> None:
    currencies = set(re.findall(r"`([a-z]{3})`", SECTIONS["csv"])) - {"csv"}
    assert currencies == set(trace._CURRENCIES)
    carbon = {column for column, (unit, _) in trace._FACTORS.items() if unit == trace.CARBON_UNIT}
    assert set(re.findall(r"`([a-z]+co2_per_[a-z]+)`", SECTIONS["csv"])) == carbon
