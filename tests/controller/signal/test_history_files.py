"""Histories in SQLite: what is saved piece by piece is what is merged in memory, and survives."""

import sqlite3
import stat
from contextlib import closing
from dataclasses import replace
from pathlib import Path
from tempfile import TemporaryDirectory

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from controller.signal.history_store import SignalDatabase
from policies.vocabulary.signal import Signal

NAN = float("nan")
DAY = Signal(
    kind="average",
    zone="DE",
    source="example DE",
    unit="g/kWh",
    starts_s=np.array([0.0, 900.0, 1800.0]),
    values=np.array([300.0, NAN, 123.456789012345]),
    estimated=np.array([False, False, True]),
    ends_s=2700.0,
    issued_at_s=2000.5,
)


@st.composite
def fetches(draw: st.DrawFn) -> Signal:
    """A fetch of some hours, with gaps and estimates, issued at any time."""
    steps = draw(st.lists(st.integers(1, 4), min_size=1, max_size=6))
    starts_s = np.cumsum([draw(st.integers(0, 20)), *steps]).astype(np.float64)
    values = st.one_of(st.just(NAN), st.integers(1, 500).map(float))
    return replace(
        DAY,
        starts_s=starts_s[:-1],
        values=np.array([draw(values) for _ in steps]),
        estimated=np.array([draw(st.booleans()) for _ in steps]),
        ends_s=float(starts_s[-1]),
        issued_at_s=float(draw(st.integers(0, 5))),
        source=draw(st.sampled_from(["one", "two"])),
    )


def database(folder: Path, keep_s: float = 1e6) -> SignalDatabase:
    return SignalDatabase(folder / "signals.sqlite", keep_s=keep_s)


def same(one: Signal | None, other: Signal | None) -> bool:
    """Return whether two signals are the same to the last bit."""
    if one is None or other is None:
        return one is other
    fields = ("kind", "zone", "source", "unit", "ends_s", "issued_at_s")
    return all(getattr(one, name) == getattr(other, name) for name in fields) and all(
        np.array_equal(getattr(one, name), getattr(other, name), equal_nan=name == "values")
        for name in ("starts_s", "values", "estimated")
    )


def test_a_signal_survives_with_all_that_belongs_to_it(tmp_path: Path) -> None:
    database(tmp_path).save("a", DAY, now_s=2000.0)
    assert same(database(tmp_path).load("a", since_s=0.0), DAY)


@settings(max_examples=60, deadline=None)
@given(st.lists(fetches(), min_size=1, max_size=6))
def test_what_is_saved_in_any_order_is_what_is_merged_in_memory(told: list[Signal]) -> None:
    known = told[0]
    for signal in told[1:]:
        known = known.revised(signal) if signal.issued_at_s >= known.issued_at_s else signal.revised(known)
    with TemporaryDirectory() as folder:
        stored = database(Path(folder))
        for signal in told:
            stored.save("a", signal, now_s=30.0)
        assert same(stored.load("a", since_s=-1.0), known)


def test_what_is_asked_for_begins_with_the_value_that_holds_then(tmp_path: Path) -> None:
    stored = database(tmp_path)
    stored.save("a", DAY, now_s=2000.0)
    parts = [stored.load("a", since_s=since_s) for since_s in (-5.0, 899.0, 900.0, 2699.0, 2700.0)]
    assert [None if part is None else part.starts_s[0] for part in parts] == [0.0, 0.0, 900.0, 1800.0, None]


def test_series_do_not_mix_and_one_that_nobody_saved_is_none(tmp_path: Path) -> None:
    stored = database(tmp_path)
    stored.save("a", DAY, now_s=2000.0)
    stored.save("b", replace(DAY, kind="price", unit="EUR/kWh", values=np.array([0.1, -0.2, 0.0])), now_s=2000.0)
    prices = stored.load("b", since_s=0.0)
    assert prices is not None
    assert prices.values.tolist() == [0.1, -0.2, 0.0]
    assert same(stored.load("a", since_s=0.0), DAY)
    assert stored.load("c", since_s=0.0) is None


@pytest.mark.parametrize(
    "other", [replace(DAY, kind="marginal"), replace(DAY, unit="EUR/kWh"), replace(DAY, zone="FR")]
)
def test_a_series_of_another_kind_unit_or_zone_begins_anew(tmp_path: Path, other: Signal) -> None:
    stored = database(tmp_path)
    stored.save("a", DAY, now_s=2000.0)
    told = replace(other, starts_s=np.array([2700.0]), values=np.array([5.0]), estimated=np.array([True]), ends_s=3600)
    stored.save("a", told, now_s=3000.0)
    assert same(stored.load("a", since_s=0.0), told)


def test_what_ceased_to_hold_too_long_ago_is_dropped(tmp_path: Path) -> None:
    stored = database(tmp_path, keep_s=1000.0)
    stored.save("a", DAY, now_s=1899.0)
    kept = stored.load("a", since_s=-1e9)
    assert kept is not None
    assert kept.starts_s.tolist() == [0.0, 900.0, 1800.0]
    stored.save("a", replace(DAY, issued_at_s=3000.0), now_s=1900.0)
    kept = stored.load("a", since_s=-1e9)
    assert kept is not None
    assert kept.starts_s.tolist() == [900.0, 1800.0]
    with closing(sqlite3.connect(stored.path)) as connection:
        assert connection.execute("SELECT count(*) FROM step").fetchone() == (2,)


def test_asking_for_what_was_never_saved_makes_no_file(tmp_path: Path) -> None:
    assert database(tmp_path).load("a", since_s=0.0) is None
    assert list(tmp_path.iterdir()) == []


def test_the_file_is_its_owner_s_alone_and_its_directory_is_made(tmp_path: Path) -> None:
    stored = database(tmp_path / "deep" / "down")
    stored.save("a", DAY, now_s=2000.0)
    assert stat.S_IMODE(stored.path.stat().st_mode) == 0o600


def test_a_file_of_a_later_version_is_left_alone(tmp_path: Path) -> None:
    stored = database(tmp_path)
    stored.save("a", DAY, now_s=2000.0)
    with closing(sqlite3.connect(stored.path)) as connection:
        connection.execute("PRAGMA user_version = 7")
    before = stored.path.read_bytes()
    with pytest.raises(ValueError, match="version 7: this gridchase reads version 1"):
        stored.load("a", since_s=0.0)
    assert stored.path.read_bytes() == before


def test_only_the_rows_that_changed_are_written(tmp_path: Path) -> None:
    stored = database(tmp_path)
    stored.save("a", DAY, now_s=2000.0)
    with closing(sqlite3.connect(stored.path)) as connection:
        connection.execute("CREATE TABLE seen (starts_s)")
        connection.execute("CREATE TRIGGER t AFTER INSERT ON step BEGIN INSERT INTO seen VALUES (new.starts_s); END")
        stored.save("a", replace(DAY, values=np.array([300.0, NAN, 130.0])), now_s=2000.0)
        assert connection.execute("SELECT starts_s FROM seen").fetchall() == [(1800.0,)]
