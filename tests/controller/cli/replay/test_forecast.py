"""`gridchase replay forecast`: rows for scripts, tables for the terminal, and all faults of all files."""

from pathlib import Path

import numpy as np
import pytest

from controller.errors import ConfigError
from tests.controller.cli.replay.command_line import json_rows, replay, write_series

HORIZONS = ["1h", "3h", "6h", "12h", "24h"]


def test_json_has_a_row_for_each_file(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    one, other = write_series(tmp_path / "de-2024.csv", days=8), write_series(tmp_path / "gb.csv", days=8, step_h=0.5)
    first, second = json_rows(capsys, "forecast", "--signal", one, other)
    assert [first["series"], second["series"]] == ["de-2024", "gb"]
    assert [first["step_s"], second["step_s"]] == [3_600, 1_800]
    assert first["n_origins"] > 24 * 4
    for errors in (first["mape_ratio"], first["mae"]):
        assert list(errors) == ["gridchase", "persistence", "seasonal", "chase_linear"]
        assert all(list(row) == [*HORIZONS, "mean_1_24h"] for row in errors.values())
    assert list(first["coverage_90_ratio"]) == list(first["interval_width"]) == [*HORIZONS, "mean_1_24h"]
    assert {len(hours) for hours in first["hourly_coverage_90_ratio"].values()} == {24}
    assert first["fit_s"] > 0
    assert first["mape_ratio"]["gridchase"]["1h"] < first["mape_ratio"]["persistence"]["1h"]


def test_without_a_file_the_included_signal_is_used(capsys: pytest.CaptureFixture[str]) -> None:
    (found,) = json_rows(capsys, "forecast")
    assert (found["series"], found["step_s"], found["n_origins"]) == ("GB", 1_800, 1_073)


def test_prices_have_no_ratios(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    (found,) = json_rows(
        capsys, "forecast", "--signal", write_series(tmp_path / "price.csv", days=8, unit="eur_per_mwh", offset=-300)
    )
    assert set(found["mape_ratio"]["gridchase"].values()) == {None}
    assert found["mae"]["gridchase"]["1h"] == pytest.approx(0.02, rel=0.9)


def test_the_terminal_shows_a_table(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert (
        replay(
            "forecast",
            "--signal",
            write_series(tmp_path / "de.csv", days=8),
            "--signal",
            write_series(tmp_path / "fr.csv", days=8),
        )
        == 0
    )
    shown = capsys.readouterr().out
    assert "de: mean absolute relative error" in shown
    assert "fr: mean absolute relative error" in shown
    assert "chase_linear" in shown
    assert "steps of 60 min" in shown
    assert "least by" in shown


def test_all_faults_of_all_files_are_reported(tmp_path: Path) -> None:
    wrong = tmp_path / "wrong.csv"
    wrong.write_text("timestamp,gco2_per_kwh\n2024-01-01T00:00Z,a\nnow,1\n", encoding="utf-8")
    short, daily = (
        write_series(tmp_path / "short.csv", days=2),
        write_series(tmp_path / "daily.csv", days=300, step_h=24),
    )
    with pytest.raises(ConfigError) as caught:
        replay("forecast", "--signal", wrong, tmp_path / "none.csv", short, daily, "--json")
    told = str(caught.value)
    for fault in (
        "wrong.csv:2",
        "wrong.csv:3",
        "none.csv",
        "short.csv: spans 2.0 days",
        "daily.csv: the step is 86400 s",
    ):
        assert fault in told


def test_a_file_without_values_is_a_fault(tmp_path: Path) -> None:
    path = write_series(tmp_path / "zeros.csv", days=8)
    lines = path.read_text(encoding="utf-8").splitlines()
    path.write_text("\n".join([lines[0], *(f"{line.split(',')[0]},0" for line in lines[1:])]), encoding="utf-8")
    with pytest.raises(ConfigError, match="no value to compare"):
        replay("forecast", "--signal", path)


def test_the_result_is_deterministic(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    path = write_series(tmp_path / "de.csv", days=8)
    results = []
    for _ in range(2):
        (row,) = json_rows(capsys, "forecast", "--signal", path)
        results.append({key: value for key, value in row.items() if key not in {"fit_s", "forecast_s"}})
    assert results[0] == results[1]
    assert np.isfinite(results[0]["mae"]["gridchase"]["1h"])
