"""`gridchase report --export`: tables of the history, row by row, as CSV, JSON lines and Parquet."""

import csv
import importlib
import io
import json
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

import msgspec
import pytest

from controller.cli.history.export import TABLES
from controller.cli.main import main
from controller.config import HistoryConfig
from controller.history.energy_history.history_file import HistoryFile
from tests.controller.history.energy_history.records import (
    TOPICS,
    gpu_message,
    limit_message,
    measured,
    run_message,
    run_record,
)
from tests.fakes import MIDNIGHT_S

QUARTER_S = 900.0
END_S = MIDNIGHT_S + 3 * QUARTER_S


@pytest.fixture
def database(tmp_path: Path) -> str:
    """Return the path of a history: a run on two nodes through three quarter-hours, another one, and a GPU."""
    path = tmp_path / "history.sqlite"
    history = HistoryFile(path, topics=TOPICS, config=HistoryConfig(), session_s=MIDNIGHT_S)
    for number in range(1, 4):
        at_s, energy_j = MIDNIGHT_S + number * QUARTER_S, number * 3.6e6
        record = run_record(time_s=at_s, duration_s=number * QUARTER_S, energy_j=energy_j, carbon_g=energy_j / 9e3)
        known = msgspec.structs.replace(measured(record, saved_ratio=0.1), final=number == 3)
        messages = [run_message(known), run_message(known, node="node-a"), gpu_message(at_s, energy_j)]
        history.write([*messages, limit_message(at_s)], now_s=at_s)
    unproven = run_record(time_s=END_S, run="r2", duration_s=60.0, energy_j=1.0, evidence="too_early", saved_ratio=0.5)
    history.write([run_message(unproven, user="=böb")], now_s=END_S)
    history.close()
    return str(path)


def exported(database: str, path: Path, *arguments: str) -> list[dict[str, Any]]:
    """Return the rows that a command writes."""
    assert main(["report", "--database", database, "--export", str(path), *arguments]) == 0
    if path.suffix == ".csv":
        return list(csv.DictReader(io.StringIO(path.read_text())))
    if path.suffix == ".jsonl":
        return [json.loads(line) for line in path.read_text().splitlines()]
    parquet: Any = importlib.import_module("pyarrow.parquet")
    rows: list[dict[str, Any]] = parquet.read_table(path).to_pylist()
    return rows


def test_quarter_hours_of_runs_add_up_to_what_they_used_each_once(database: str, tmp_path: Path) -> None:
    rows = exported(database, tmp_path / "quarters.jsonl")
    of_run = [row for row in rows if row["run"] == "r1"]
    assert [row["starts_s"] for row in of_run] == [MIDNIGHT_S + number * QUARTER_S for number in range(1, 4)]
    assert sum(row["energy_j"] for row in of_run) == pytest.approx(3 * 3.6e6)
    assert {row["node"] for row in of_run} == {""}


@pytest.mark.parametrize("table", TABLES)
def test_the_three_forms_say_the_same(table: str, database: str, tmp_path: Path) -> None:
    lines, text, columns = (
        exported(database, tmp_path / f"{table}.{form}", "--table", table) for form in ("jsonl", "csv", "parquet")
    )
    assert len(lines) == len(text) == len(columns)
    assert bool(lines) == (table != "grid_quarters")
    for line, row, typed in zip(lines, text, columns, strict=True):
        if "record" in typed:
            typed["record"] = json.loads(typed["record"])
        assert line == typed
        assert row.keys() == line.keys()
        assert float(row["energy_j"]) == line["energy_j"] if line.get("energy_j") is not None else True


def test_nothing_is_told_of_a_saving_without_evidence_and_no_cell_is_a_formula(database: str, tmp_path: Path) -> None:
    first, second = exported(database, tmp_path / "runs.jsonl", "--table", "runs")
    assert (first["record"]["saved_ratio"], first["record"]["saved_ci90_ratio"]) == (0.1, 0.02)
    assert "saved_ratio" not in second["record"]
    assert second["user"] == "=böb"
    assert exported(database, tmp_path / "runs.csv", "--table", "runs")[1]["user"] == "'=böb"


def test_a_period_and_a_run_choose_rows(database: str, tmp_path: Path) -> None:
    since = ["--since", datetime.fromtimestamp(MIDNIGHT_S + 2400, UTC).isoformat()]
    assert len(exported(database, tmp_path / "a.csv", "--run", "r1", *since)) == 1
    assert exported(database, tmp_path / "b.csv", "--run", "r3") == []
    assert exported(database, tmp_path / "c.parquet", "--run", "r3") == []


@pytest.mark.parametrize(
    ("arguments", "fault"),
    [
        (["--export", "history.xls"], "--export history.xls: must end in .csv, .jsonl, .parquet"),
        (["--export", "a.csv", "--table", "decisions", "--run", "r1"], "--table decisions: is not of runs"),
        (["--export", "/nowhere/at/all.csv"], "No such file or directory"),
    ],
    ids=["suffix", "filter", "folder"],
)
def test_what_cannot_be_exported_is_said(
    arguments: list[str], fault: str, database: str, capsys: pytest.CaptureFixture[str]
) -> None:
    assert main(["report", "--database", database, *arguments]) == 2
    assert fault in capsys.readouterr().err


def test_a_site_is_exported_where_its_file_is(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    asked = ["report", "--url", "http://127.0.0.1:1", "--export", str(tmp_path / "a.csv")]
    assert main(asked) == 2
    assert "--export: reads a file" in capsys.readouterr().err


def test_parquet_without_pyarrow_says_what_to_install(
    database: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setattr("controller.cli.history.export.find_spec", lambda _: None)
    assert main(["report", "--database", database, "--export", str(tmp_path / "a.parquet")]) == 2
    assert "needs pyarrow: pip install pyarrow; or choose .csv or .jsonl" in capsys.readouterr().err
