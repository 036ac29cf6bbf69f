"""Signals from files and constants: all faults at once, gaps kept open, no future values."""

import math
from contextlib import suppress
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from policies.providers.base import MAX_FAULTS_SHOWN, Provider, SignalError, SignalFileError
from policies.providers.sources.constant import ConstantProvider
from policies.providers.sources.csv_file import CsvProvider, read_trace

DAY = """\
# Grid operator of nowhere, CC0
timestamp,gco2_per_kwh
1970-01-01T00:00Z,100
1970-01-01T01:00Z,200.5
1970-01-01T02:00:00+00:00,300
"""


def file(folder: Path, text: str) -> Path:
    path = folder / "day.csv"
    path.write_text(text, encoding="utf-8")
    return path


def faults(folder: Path, text: str) -> list[str]:
    path = file(folder, text)
    with pytest.raises(SignalFileError) as caught:
        read_trace(path)
    assert str(caught.value).startswith(str(path))
    return [fault.removeprefix(f"{path}:") for fault in caught.value.faults]


def test_a_trace_is_read_with_comments_before_its_header(tmp_path: Path) -> None:
    trace = read_trace(file(tmp_path, DAY))
    assert trace.starts_s.tolist() == [0.0, 3600.0, 7200.0]
    assert trace.values.tolist() == [100.0, 200.5, 300.0]
    assert (trace.unit, trace.step_s, trace.ends_s) == ("g/kWh", 3600.0, 10800.0)


@pytest.mark.parametrize(
    ("column", "unit", "value"),
    [
        ("gco2_per_kwh", "g/kWh", 100.0),
        ("kgco2_per_mwh", "g/kWh", 100.0),
        ("lbco2_per_mwh", "g/kWh", 45.359237),
        ("eur_per_mwh", "EUR/kWh", 0.1),
        ("gbp_per_kwh", "GBP/kWh", 100.0),
        ("usd_per_mwh", "USD/kWh", 0.1),
        ("dkk_per_mwh", "DKK/kWh", 0.1),
    ],
)
def test_the_name_of_the_column_is_the_unit(tmp_path: Path, column: str, unit: str, value: float) -> None:
    trace = read_trace(file(tmp_path, DAY.replace("gco2_per_kwh", column)))
    assert trace.unit == unit
    assert trace.values[0] == pytest.approx(value)


def test_a_gap_stays_open_and_the_last_value_holds_for_one_step(tmp_path: Path) -> None:
    trace = read_trace(file(tmp_path, DAY + "1970-01-01T05:00Z,400\n"))
    assert trace.starts_s.tolist() == [0.0, 3600.0, 7200.0, 10800.0, 18000.0]
    assert math.isnan(trace.values[3])
    assert (trace.n_gaps, trace.ends_s) == (1, 21600.0)


def test_a_carbon_intensity_of_zero_or_less_is_missing(tmp_path: Path) -> None:
    trace = read_trace(file(tmp_path, DAY + "1970-01-01T03:00Z,0\n1970-01-01T04:00Z,-3\n1970-01-01T05:00Z,\n"))
    assert trace.n_missing == 3
    assert trace.values[:3].tolist() == [100.0, 200.5, 300.0]


def test_a_price_may_be_zero_or_negative(tmp_path: Path) -> None:
    trace = read_trace(file(tmp_path, "timestamp,eur_per_mwh\n1970-01-01T00:00Z,-50\n1970-01-01T01:00Z,0\n"))
    assert trace.values.tolist() == [-0.05, 0.0]


def test_a_time_with_an_offset_is_converted_also_where_summer_time_ends(tmp_path: Path) -> None:
    local = ["T01:00+02:00,1", "T02:00:00+02:00,2", "T02:00+01:00,3", "T03:00+01:00,4"]
    trace = read_trace(file(tmp_path, "timestamp,gco2_per_kwh\n" + "\n".join(f"1996-10-27{row}" for row in local)))
    assert trace.starts_s.tolist() == [846_370_800.0 + 3_600 * hour for hour in range(4)]
    assert (trace.values.tolist(), trace.losses) == ([1.0, 2.0, 3.0, 4.0], "")


@pytest.mark.parametrize(
    ("row", "fault"), [("1970-01-01T04:00+02:00,1", "twice"), ("1970-01-01T03:30+02:00,1", "backwards")]
)
def test_times_with_offsets_ascend_in_utc(tmp_path: Path, row: str, fault: str) -> None:
    (listed,) = faults(tmp_path, DAY + row)
    assert fault in listed


def test_every_fault_is_listed_at_once_with_its_line(tmp_path: Path) -> None:
    rows = ["half past nine,1", "1970-01-01T03:00Z,nan", "1970-01-01T03:00,1"]
    rows += ["1970-01-01T02:00Z,1", "1970-01-01T01:00Z,1", "1970-01-01T04:00Z,much", "1970-01-01T05:00Z,1,2"]
    listed = faults(tmp_path, DAY + "\n".join(rows))
    wanted = ["not a time", "must be finite", "no offset from UTC", "twice", "backwards", "much", "3 cells"]
    assert len(listed) == len(wanted)
    for line, (fault, words) in enumerate(zip(listed, wanted, strict=True), start=6):
        assert fault.startswith(f"{line}: ")
        assert words in fault


@pytest.mark.parametrize(
    ("text", "fault"),
    [
        ("", "is empty"),
        ("# nothing\n\n", "is empty"),
        ("timestamp,gco2_per_kwh\n", "at least 2"),
        ("timestamp,gco2_per_kwh\n1970-01-01T00:00Z,1\n", "at least 2"),
        ("time,gco2_per_kwh\n1970-01-01T00:00Z,1\n1970-01-01T01:00Z,1\n", "must be timestamp,<unit>"),
        ("timestamp,furlongs\n1970-01-01T00:00Z,1\n1970-01-01T01:00Z,1\n", "'furlongs' is not known"),
    ],
)
def test_an_invalid_file_says_why(tmp_path: Path, text: str, fault: str) -> None:
    listed = faults(tmp_path, text)
    assert len(listed) == 1
    assert fault in listed[0]


def test_an_unreadable_file_says_why(tmp_path: Path) -> None:
    with pytest.raises(SignalFileError, match="No such file"):
        read_trace(tmp_path / "missing.csv")
    (tmp_path / "binary.csv").write_bytes(b"\xff\xfe\x00")
    with pytest.raises(SignalFileError, match="not UTF-8"):
        read_trace(tmp_path / "binary.csv")


@pytest.mark.parametrize("line", [2, 3, 4])
def test_an_oversized_cell_is_a_fault_with_its_line(tmp_path: Path, line: int) -> None:
    rows = DAY.splitlines()
    rows[line - 1] += "0" * 131_073
    assert f"{line}: field larger than field limit (131072)" in faults(tmp_path, "\n".join(rows))


@pytest.mark.parametrize(
    ("rows", "losses"),
    [
        ("", ""),
        ("1970-01-01T05:00Z,400\n", "1 gap"),
        ("1970-01-01T03:00Z,0\n1970-01-01T04:00Z,\n", "2 missing values"),
        ("1970-01-01T05:00Z,\n1970-01-01T06:00Z,7\n1970-01-01T09:00Z,7\n", "2 gaps, 1 missing value"),
    ],
)
def test_the_losses_of_a_trace_are_described(tmp_path: Path, rows: str, losses: str) -> None:
    assert read_trace(file(tmp_path, DAY + rows)).losses == losses


def test_a_thousand_faults_are_kept_and_the_first_are_shown(tmp_path: Path) -> None:
    path = file(tmp_path, "timestamp,gco2_per_kwh\n" + "never,1\n" * 1_000)
    with pytest.raises(SignalError) as caught:
        read_trace(path)
    assert isinstance(caught.value, SignalFileError)
    assert len(caught.value.faults) == 1_000
    assert len(str(caught.value).splitlines()) == MAX_FAULTS_SHOWN + 1
    assert "and 950 more faults" in str(caught.value)


@given(st.text(max_size=200))
def test_any_text_parses_or_lists_its_faults(tmp_path_factory: pytest.TempPathFactory, text: str) -> None:
    path = file(tmp_path_factory.mktemp("trace"), "timestamp,gco2_per_kwh\n" + text)
    with suppress(SignalFileError):
        assert len(read_trace(path).values) > 1


def test_a_trace_and_its_kind_must_agree(tmp_path: Path) -> None:
    with pytest.raises(SignalFileError, match="cannot be a signal of kind 'price'"):
        CsvProvider(file(tmp_path, DAY), zone="X", kind="price")


async def test_a_replay_never_returns_future_values(tmp_path: Path) -> None:
    provider = CsvProvider(file(tmp_path, DAY), zone="X", kind="average")
    history = await provider.fetch_history(since_s=0.0, now_s=5000.0)
    assert history is not None
    assert history.values.tolist() == [100.0, 200.5]
    assert (history.value_at(5000.0), history.ends_s, history.issued_at_s) == (200.5, 7200.0, 5000.0)
    assert (history.zone, history.kind, history.source) == ("X", "average", "day.csv")


async def test_a_replay_has_no_forecast(tmp_path: Path) -> None:
    provider = CsvProvider(file(tmp_path, DAY), zone="X", kind="average")
    assert await provider.fetch_forecast(now_s=0.0, until_s=7200.0) is None


async def test_history_begins_with_the_value_that_holds_at_its_start(tmp_path: Path) -> None:
    provider = CsvProvider(file(tmp_path, DAY), zone="X", kind="average")
    history = await provider.fetch_history(since_s=4000.0, now_s=8000.0)
    assert history is not None
    assert history.starts_s.tolist() == [3600.0, 7200.0]


async def test_before_a_trace_nothing_is_known_and_after_it_the_history_ages(tmp_path: Path) -> None:
    provider = CsvProvider(file(tmp_path, DAY), zone="X", kind="average")
    assert await provider.fetch_history(since_s=-9e5, now_s=-1.0) is None
    after = await provider.fetch_history(since_s=0.0, now_s=10_860.0)
    assert after is not None
    assert (after.value_at(10_860.0), after.age_s(10_860.0)) == (None, 60.0)
    assert await provider.fetch_history(since_s=10_800.0, now_s=20_000.0) is None


async def test_a_constant_is_known_before_and_after() -> None:
    provider: Provider = ConstantProvider(0.2, kind="price", unit="EUR/kWh", zone="DE")
    history = await provider.fetch_history(since_s=100.0, now_s=200.0)
    forecast = await provider.fetch_forecast(now_s=200.0, until_s=300.0)
    assert history is not None
    assert forecast is not None
    assert (history.value_at(99.0), history.value_at(100.0), history.value_at(1e9)) == (None, 0.2, 0.2)
    assert (forecast.value_at(199.0), forecast.value_at(299.0), forecast.ends_s) == (None, 0.2, 300.0)


@pytest.mark.parametrize("value", [math.nan, math.inf])
def test_a_constant_must_be_finite(value: float) -> None:
    with pytest.raises(ValueError, match="must be finite"):
        ConstantProvider(value, kind="energy", unit="1")
