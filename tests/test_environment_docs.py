"""The page of environment variables names each that the code reads, and no other; so do the settings of doctor."""

import re
from pathlib import Path

import pytest

from gridchase.cli.run import VARIABLES as OPTIONS
from publishers.mqtt.broker_address import DEFAULT_URL
from publishers.training.run import launchers
from publishers.training.settings import VARIABLES

ROOT = Path(__file__).parents[1]
PAGE = (ROOT / "docs" / "environment.md").read_text(encoding="utf-8")
NAMED = set(re.findall(r"[A-Z][A-Z0-9]*_[A-Z0-9_]*[A-Z0-9]", PAGE))
OURS = re.compile(r"GRIDCHASE_[A-Z0-9_]*[A-Z0-9]")
SOURCES = [path for top in ("gridchase", "publishers", "policies", "controller") for path in (ROOT / top).rglob("*.py")]


def test_each_of_our_variables_is_named_and_each_that_is_named_is_read() -> None:
    read = {name for path in SOURCES for name in OURS.findall(path.read_text(encoding="utf-8"))}
    assert {name for name in NAMED if name.startswith("GRIDCHASE_")} == read


def test_each_of_our_variables_has_a_row() -> None:
    rows = re.findall(r"^\| `(GRIDCHASE_\w+)` \|", PAGE, re.MULTILINE)
    assert sorted(rows) == sorted({name for name in NAMED if name.startswith("GRIDCHASE_")})
    assert rows[: len(OPTIONS)] == list(OPTIONS.values()), "`gridchase run` has an option for each of the first"


def test_each_variable_of_a_launcher_is_named() -> None:
    source = Path(str(launchers.__file__)).read_text(encoding="utf-8")
    read = {name for name in re.findall(r'"([A-Z][A-Z_]+)"', source) if "_" in name or name == "RANK"}
    assert read
    assert {name for name in read if f"`{name}`" not in PAGE} == set()


@pytest.mark.parametrize("setting", sorted(VARIABLES))
def test_each_source_that_doctor_tells_is_named(setting: str) -> None:
    assert [name for name in VARIABLES[setting] if f"`{name}`" not in PAGE] == []


def test_the_default_broker_is_the_default() -> None:
    assert f"`{DEFAULT_URL}`" in PAGE
