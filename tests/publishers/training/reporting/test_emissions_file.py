"""Rows in the form of CodeCarbon's file: what is known is there in its units, what is not is empty."""

import csv
import os
from datetime import datetime
from pathlib import Path
from typing import Any

import pytest

from publishers.training.reporting.emissions_file import COLUMNS, EmissionsFile
from publishers.training.settings import resolve
from tests.publishers.training.fake_connection import FakeConnection
from tests.publishers.training.reporting.test_run_report import MeasuredConnection, final, trained
from tests.publishers.training.reporting.test_run_summary import record

AT = datetime(2026, 11, 22, 23, 59, 1)  # noqa: DTZ001 — local time, as CodeCarbon's


def append(path: Path, **changes: Any) -> None:  # noqa: ANN401 — the record checks them
    """Append the row of a run."""
    EmissionsFile(path, "resnet50").append(record(**changes), at=AT)


def rows(path: Path) -> list[dict[str, str]]:
    """Return the rows of a file."""
    with path.open(newline="") as file:
        return list(csv.DictReader(file))


def test_a_new_file_has_the_columns_and_a_row_in_codecarbons_units(tmp_path: Path) -> None:
    path = tmp_path / "emissions.csv"
    append(path, energy_j=7.2e6, duration_s=3_600.0, carbon_g=500.0)
    (row,) = rows(path)
    assert tuple(row) == COLUMNS
    known = {name: value for name, value in row.items() if value}
    assert known.pop("os")
    assert known.pop("python_version").startswith("3.")
    assert known.pop("codecarbon_version").startswith("gridchase ")
    assert float(known.pop("emissions_rate")) == pytest.approx(0.5 / 3_600)
    assert known == {
        "timestamp": "2026-11-22T23:59:01",
        "project_name": "resnet50",
        "run_id": "3f2a",
        "duration": "3600.0",
        "emissions": "0.5",
        "gpu_power": "2000.0",
        "gpu_energy": "2.0",
        "energy_consumed": "2.0",
        "gpu_count": "1",
        "gpu_model": "1 x NVIDIA A40",
        "tracking_mode": "process",
    }


def test_rows_are_appended_and_emissions_without_a_signal_are_empty(tmp_path: Path) -> None:
    path = tmp_path / "emissions.csv"
    append(path)
    append(path, run="r2", carbon_g=None, duration_s=0.0)
    assert [(row["run_id"], row["emissions"], row["emissions_rate"] == "") for row in rows(path)] == [
        ("3f2a", "0.612", False),
        ("r2", "", True),
    ]
    assert path.read_text().count("timestamp") == 1


def test_a_file_of_another_version_keeps_its_own_columns(tmp_path: Path) -> None:
    path = tmp_path / "emissions.csv"
    path.write_text("run_id,project_name,timestamp,energy_consumed,emissions,duration,future\nr0,x,t,1,2,3,4")
    append(path, energy_j=3.6e6)
    assert path.read_text().splitlines() == [
        "run_id,project_name,timestamp,energy_consumed,emissions,duration,future",
        "r0,x,t,1,2,3,4",
        "3f2a,resnet50,2026-11-22T23:59:01,1.0,0.612,29520.0,",
    ]


@pytest.mark.parametrize("content", [b"a,b\n1,2\n", b"\xff\xfe\x00", b"\n", b"x" * 100_000])
def test_a_file_of_somebody_else_is_left_alone(
    tmp_path: Path, caplog: pytest.LogCaptureFixture, content: bytes
) -> None:
    path = tmp_path / "results.csv"
    path.write_bytes(content)
    append(path)
    append(path)
    assert path.read_bytes() == content
    assert len(caplog.messages) == 1
    assert caplog.messages[0].startswith("emissions are not written")


def test_an_empty_file_is_a_new_one(tmp_path: Path) -> None:
    path = tmp_path / "emissions.csv"
    path.touch()
    append(path)
    assert len(rows(path)) == 1


def test_where_it_cannot_be_written_one_line_says_so(tmp_path: Path, caplog: pytest.LogCaptureFixture) -> None:
    append(tmp_path / "nowhere" / "emissions.csv")
    (message,) = caplog.messages
    assert message.startswith(f"emissions are not written to {tmp_path}/nowhere/emissions.csv: ")


@pytest.mark.parametrize(
    ("argument", "variable", "expected"),
    [
        (None, None, None),
        (None, "", None),
        (None, "a.csv", "a.csv"),
        ("b.csv", "a.csv", "b.csv"),
        (Path("b.csv"), None, "b.csv"),
        ("folder", None, "folder/emissions.csv"),
    ],
)
def test_the_path_is_the_arguments_else_the_variables(
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
    argument: str | Path | None,
    variable: str | None,
    expected: str | None,
) -> None:  # fmt: skip
    (tmp_path / "folder").mkdir()
    monkeypatch.chdir(tmp_path)
    environ = {} if variable is None else {"GRIDCHASE_EMISSIONS_FILE": variable}
    path = resolve(environ, job="toy", emissions_file=argument).emissions_path
    assert path == (None if expected is None else tmp_path / expected)


def test_what_is_no_path_is_told_and_publishing_goes_on(caplog: pytest.LogCaptureFixture) -> None:
    given: Any = 3.5
    assert resolve({}, job="toy", emissions_file=given).emissions_path is None
    assert caplog.messages[0].startswith("emissions_file = 3.5 is not used: ")


def test_the_end_of_a_measured_run_appends_one_row(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    publisher = trained(MeasuredConnection(final(energy_j=3.6e6)), emissions_file="emissions.csv")
    os.chdir("/")  # as some frameworks do
    publisher.close()
    publisher.close()
    (row,) = rows(tmp_path / "emissions.csv")
    assert (row["project_name"], row["run_id"], row["energy_consumed"]) == ("toy", "r1", "1.0")


@pytest.mark.parametrize("changes", [{"rank": 1, "world_size": 2}, {}])
def test_other_ranks_and_what_was_not_measured_have_no_row(tmp_path: Path, changes: dict[str, int]) -> None:
    connection = MeasuredConnection(final()) if changes else FakeConnection()
    trained(connection, emissions_file=tmp_path, **changes).close()
    assert list(tmp_path.iterdir()) == []
