"""The emissions file beside the real CodeCarbon: the same columns, read by pandas, each appends to the other's."""

from dataclasses import fields
from datetime import datetime
from pathlib import Path

import pytest

from publishers.training.reporting.emissions_file import COLUMNS, EmissionsFile
from tests.publishers.training.reporting.test_run_summary import KWH, record

AT = datetime(2026, 11, 22, 23, 59, 1)  # noqa: DTZ001 — local time, as CodeCarbon's


def test_the_columns_are_codecarbons() -> None:
    emissions_data = pytest.importorskip("codecarbon.output_methods.emissions_data")
    assert [field.name for field in fields(emissions_data.EmissionsData)] == list(COLUMNS)


def test_codecarbon_appends_to_our_file_and_pandas_reads_both(tmp_path: Path) -> None:
    codecarbon = pytest.importorskip("codecarbon")
    pandas = pytest.importorskip("pandas")
    ours = EmissionsFile(tmp_path / "emissions.csv", "resnet50")
    ours.append(record(carbon_g=None), at=AT)
    tracker = codecarbon.OfflineEmissionsTracker(
        country_iso_code="GBR", output_dir=str(tmp_path), project_name="theirs", log_level="critical"
    )
    tracker.start()
    tracker.stop()
    ours.append(record(run="r2"), at=AT)
    assert [path.name for path in tmp_path.iterdir()] == ["emissions.csv"], "no backup of a file of another form"
    table = pandas.read_csv(tmp_path / "emissions.csv")
    assert list(table.columns) == list(COLUMNS)
    assert list(table.project_name) == ["resnet50", "theirs", "resnet50"]
    assert list(table.energy_consumed[[0, 2]]) == pytest.approx([1.84, 1.84])
    assert table.emissions.isna().tolist() == [True, False, False]
    assert record().energy_j == 1.84 * KWH
