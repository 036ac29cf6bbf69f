"""`gridchase replay forecast`: figures of files, for people and for scripts, and every fault of every file."""

import argparse
import json
from datetime import UTC, datetime, timedelta
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from controller.cli.replay import main as replay
from controller.errors import ConfigError
from tests.policies.forecasting.grids import weather

HORIZONS = ["1h", "3h", "6h", "12h", "24h"]


def file(path: Path, *, days: float = 8, step_h: float = 1.0, unit: str = "gco2_per_kwh", offset: float = 0.0) -> Path:
    """Write a series as a file."""
    start = datetime(2024, 1, 1, tzinfo=UTC)
    values = weather(days, step_s=3_600 * step_h) + offset
    rows = [f"{start + timedelta(hours=index * step_h):%Y-%m-%dT%H:%MZ},{v:.3f}" for index, v in enumerate(values)]
    path.write_text("\n".join([f"timestamp,{unit}", *rows]), encoding="utf-8")
    return path


def replayed(*arguments: "str | Path") -> int:
    """Parse the arguments as the command line does, and do what they say."""
    parser = argparse.ArgumentParser()
    replay.add_arguments(parser)
    options = parser.parse_args(["forecast", *map(str, arguments)])
    code: int = options.do(options)
    return code


def report(capsys: pytest.CaptureFixture[str]) -> list[dict[str, Any]]:
    captured = capsys.readouterr()
    assert captured.err == ""
    found: list[dict[str, Any]] = json.loads(captured.out)
    return found


def test_a_script_gets_an_object_for_each_file(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    one, other = file(tmp_path / "de-2024.csv"), file(tmp_path / "gb.csv", step_h=0.5)
    assert replayed("--signal", one, other, "--json") == 0
    first, second = report(capsys)
    assert [first["series"], second["series"]] == ["de-2024", "gb"]
    assert [first["step_s"], second["step_s"]] == [3_600, 1_800]
    assert first["n_origins"] > 24 * 4
    for errors in (first["mape_ratio"], first["mae"]):
        assert list(errors) == ["gridchase", "persistence", "seasonal", "chase_linear"]
        assert all(list(row) == [*HORIZONS, "mean_1_24h"] for row in errors.values())
    assert list(first["coverage_90_ratio"]) == HORIZONS
    assert first["fit_s"] > 0
    assert first["mape_ratio"]["gridchase"]["1h"] < first["mape_ratio"]["persistence"]["1h"]


def test_prices_have_no_ratios(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    replayed("--signal", file(tmp_path / "price.csv", unit="eur_per_mwh", offset=-300), "--json")
    (found,) = report(capsys)
    assert set(found["mape_ratio"]["gridchase"].values()) == {None}
    assert found["mae"]["gridchase"]["1h"] == pytest.approx(0.02, rel=0.9)


def test_people_get_a_table(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert replayed("--signal", file(tmp_path / "de.csv"), "--signal", file(tmp_path / "fr.csv")) == 0
    shown = capsys.readouterr().out
    assert "de: mean absolute relative error" in shown
    assert "fr: mean absolute relative error" in shown
    assert "chase_linear" in shown
    assert "steps of 60 min" in shown


def test_every_fault_of_every_file_is_told(tmp_path: Path) -> None:
    wrong = tmp_path / "wrong.csv"
    wrong.write_text("timestamp,gco2_per_kwh\n2024-01-01T00:00Z,a\nnow,1\n", encoding="utf-8")
    short, daily = file(tmp_path / "short.csv", days=2), file(tmp_path / "daily.csv", days=300, step_h=24)
    with pytest.raises(ConfigError) as caught:
        replayed("--signal", wrong, tmp_path / "none.csv", short, daily, "--json")
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
    path = file(tmp_path / "zeros.csv")
    lines = path.read_text(encoding="utf-8").splitlines()
    path.write_text("\n".join([lines[0], *(f"{line.split(',')[0]},0" for line in lines[1:])]), encoding="utf-8")
    with pytest.raises(ConfigError, match="no value to compare"):
        replayed("--signal", path)


def test_the_figures_are_the_same_each_time(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    path = file(tmp_path / "de.csv")
    results = []
    for _ in range(2):
        replayed("--signal", path, "--json")
        results.append({key: value for key, value in report(capsys)[0].items() if key not in {"fit_s", "forecast_s"}})
    assert results[0] == results[1]
    assert np.isfinite(results[0]["mae"]["gridchase"]["1h"])
