"""Signal histories on disk: complete, durable, private; whatever the disk does is logged once and never raised."""

import asyncio
import logging
import math
import os
import resource
import signal as signals
import stat
import subprocess
import sys
import threading
import time
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import replace
from pathlib import Path

import msgspec
import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from controller.signal import history_store
from controller.signal.history_store import HistoryStore, _decode, _encode
from policies.vocabulary.signal import Signal, constant_signal
from tests.live.conftest import wait_until

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
KEY = "neso average 0123456789abcdef"
live = pytest.mark.live
"""Threads of its own, and a real disk."""


def flat(value: float, *, n: int = 3) -> Signal:
    starts_s = np.arange(n, dtype=np.float64) * 900.0
    return replace(
        DAY, starts_s=starts_s, values=np.full(n, value), estimated=np.zeros(n, dtype=np.bool_), ends_s=n * 900.0
    )


def save(store: HistoryStore, series: Signal, *, key: str = KEY, now_s: float = 2000.0) -> None:
    """Save, and wait for the disk."""
    store.save(key, series, now_s=now_s)
    assert store._writer.flush(10.0)


def load(store: HistoryStore, key: str = KEY, *, since_s: float = 0.0) -> Signal | None:
    return asyncio.run(store.load(key, since_s=since_s))


def value(store: HistoryStore) -> float | None:
    known = load(store)
    return None if known is None else known.value_at(0.0)


def same(one: Signal | None, other: Signal | None) -> bool:
    """Return whether two signals are the same to the last bit."""
    if one is None or other is None:
        return one is other
    fields = ("kind", "zone", "source", "unit", "ends_s", "issued_at_s")
    return all(getattr(one, name) == getattr(other, name) for name in fields) and all(
        np.array_equal(getattr(one, name), getattr(other, name), equal_nan=name == "values")
        for name in ("starts_s", "values", "estimated")
    )


@contextmanager
def full_disk(n_bytes: int) -> Iterator[None]:
    """Let no file grow beyond a size, as on a full disk."""
    before = resource.getrlimit(resource.RLIMIT_FSIZE)
    resource.setrlimit(resource.RLIMIT_FSIZE, (n_bytes, before[1]))
    try:
        yield
    finally:
        resource.setrlimit(resource.RLIMIT_FSIZE, before)


@given(st.binary(max_size=200))
@settings(deadline=None)
def test_no_damaged_content_is_taken_for_a_signal(rubbish: bytes) -> None:
    content = _encode(DAY)
    assert same(_decode(content), DAY)
    for damaged in (rubbish, content[: len(rubbish)], content + rubbish[:1] if rubbish else b""):
        with pytest.raises((ValueError, msgspec.MsgspecError)):
            _decode(damaged)


@live
def test_a_signal_survives_a_restart_with_all_its_fields(tmp_path: Path) -> None:
    save(HistoryStore(tmp_path), DAY)
    assert same(load(HistoryStore(tmp_path)), DAY)


@live
def test_a_saved_series_revises_the_one_on_disk(tmp_path: Path) -> None:
    save(HistoryStore(tmp_path), DAY)
    newer = replace(DAY.between(1800.0, math.inf), values=np.array([130.0]))
    store = HistoryStore(tmp_path)
    save(store, newer)
    assert same(load(store), DAY.revised(newer))


@live
def test_loading_begins_with_the_value_that_holds_then(tmp_path: Path) -> None:
    store = HistoryStore(tmp_path)
    save(store, DAY)
    parts = [load(store, since_s=since_s) for since_s in (-5.0, 899.0, 900.0, 2699.0, 2700.0)]
    assert [None if part is None else part.starts_s[0] for part in parts] == [0.0, 0.0, 900.0, 1800.0, None]


@live
def test_sources_do_not_mix_and_an_unknown_one_has_no_history(tmp_path: Path) -> None:
    store = HistoryStore(tmp_path)
    prices = replace(DAY, kind="price", unit="EUR/kWh", values=np.array([0.1, -0.2, 0.0]))
    save(store, DAY)
    save(store, prices, key="entsoe price 0123456789abcdef")
    assert same(load(store, "entsoe price 0123456789abcdef"), prices)
    assert same(load(store), DAY)
    assert load(store, "another") is None


@live
@pytest.mark.parametrize(
    "other", [replace(DAY, kind="marginal"), replace(DAY, unit="EUR/kWh"), replace(DAY, zone="FR")]
)
def test_a_series_of_another_kind_unit_or_zone_starts_anew(tmp_path: Path, other: Signal) -> None:
    store = HistoryStore(tmp_path)
    save(store, DAY)
    series = replace(
        other, starts_s=np.array([2700.0]), values=np.array([5.0]), estimated=np.array([True]), ends_s=3600
    )
    save(store, series, now_s=3000.0)
    assert same(load(store), series)


@live
def test_values_that_ended_too_long_ago_are_dropped(tmp_path: Path) -> None:
    store = HistoryStore(tmp_path, keep_s=1000.0)
    for now_s, starts_s in ((1899.0, [0.0, 900.0, 1800.0]), (1900.0, [900.0, 1800.0])):
        save(store, DAY, now_s=now_s)
        kept = load(store, since_s=-1e9)
        assert kept is not None
        assert kept.starts_s.tolist() == starts_s


@live
def test_neither_loading_nor_a_constant_makes_a_file(tmp_path: Path) -> None:
    store = HistoryStore(tmp_path / "signals")
    assert load(store) is None
    save(store, constant_signal(5.0, kind="average", unit="g/kWh", now_s=0.0))
    save(store, replace(flat(1.0, n=0), ends_s=0.0))
    assert list(tmp_path.iterdir()) == []


@live
def test_only_the_owner_may_read_the_directory_whoever_made_it(tmp_path: Path) -> None:
    folder = tmp_path / "deep" / "signals"
    for _ in range(2):
        save(HistoryStore(folder), DAY)
        assert stat.S_IMODE(folder.stat().st_mode) == 0o700
        folder.chmod(0o755)


@live
def test_beside_a_running_controller_nothing_is_written(tmp_path: Path, caplog: pytest.LogCaptureFixture) -> None:
    save(HistoryStore(tmp_path), DAY)
    reader = HistoryStore(tmp_path, is_read_only=True)
    save(reader, flat(500.0))
    assert value(reader) == 300.0
    path = reader.path_of(KEY)
    path.write_bytes(b"damaged")
    assert value(reader) is None
    assert path.read_bytes() == b"damaged"
    assert "is damaged" in caplog.text


@live
def test_endlessly_nested_content_is_damage_too(tmp_path: Path) -> None:
    store = HistoryStore(tmp_path)
    store.path_of(KEY).write_bytes(b"\x82\xa1x" + b"\x91" * 100_000 + b"\xc0\xa7version\x01")
    assert value(store) is None
    assert len(list(tmp_path.glob("*.corrupt"))) == 1


@live
def test_a_file_of_a_later_version_is_left_alone(tmp_path: Path, caplog: pytest.LogCaptureFixture) -> None:
    store = HistoryStore(tmp_path)
    save(store, DAY)
    path = store.path_of(KEY)
    later = msgspec.msgpack.encode({"version": 7, "anything": 1})
    path.write_bytes(later)
    assert value(store) is None
    save(store, flat(500.0))
    assert path.read_bytes() == later
    assert caplog.text.count("version 7: this gridchase reads version 1") == 2, "when it is loaded, and when written"


@live
def test_a_full_disk_costs_the_latest_values_and_nothing_else(tmp_path: Path, caplog: pytest.LogCaptureFixture) -> None:
    store = HistoryStore(tmp_path)
    save(store, flat(300.0))
    with full_disk(store.path_of(KEY).stat().st_size):
        save(store, flat(400.0, n=5_000))
        save(store, flat(400.0, n=5_000))
    assert value(store) == 300.0
    save(store, flat(500.0, n=5_000), now_s=0.0)
    assert value(store) == 500.0
    assert len([record for record in caplog.records if record.levelno == logging.WARNING]) == 1


@live
def test_without_a_directory_there_is_a_fault_and_no_error(tmp_path: Path, caplog: pytest.LogCaptureFixture) -> None:
    (tmp_path / "file").touch()
    store = HistoryStore(tmp_path / "file" / "signals")
    save(store, DAY)
    assert value(store) is None
    assert "Not a directory" in caplog.text


@live
def test_a_history_that_could_not_be_loaded_is_not_overwritten(tmp_path: Path) -> None:
    store = HistoryStore(tmp_path)
    save(store, DAY)
    path = store.path_of(KEY)
    path.rename(tmp_path / "away")
    path.mkdir()
    assert value(store) is None
    path.rmdir()
    (tmp_path / "away").rename(path)
    save(store, replace(DAY.between(1800.0, math.inf), values=np.array([130.0])))
    assert value(store) == 300.0


@live
@pytest.mark.parametrize("damage", ["rubbish", "empty", "cut", "changed"])
def test_a_damaged_file_is_set_aside_and_the_history_starts_anew(
    tmp_path: Path, damage: str, caplog: pytest.LogCaptureFixture
) -> None:
    store = HistoryStore(tmp_path)
    path = store.path_of(KEY)
    for _ in range(2):
        save(store, flat(300.0, n=50), now_s=0.0)
        content = path.read_bytes()
        changed = bytes([*content[:200], content[200] ^ 1, *content[201:]])
        damaged = {"rubbish": b"no history" * 1000, "empty": b"", "cut": content[:-1], "changed": changed}[damage]
        path.write_bytes(damaged)
        assert value(store) is None
        assert [file.read_bytes() for file in tmp_path.iterdir()] == [damaged], "one copy is kept"
    save(store, DAY)
    assert value(store) == 300.0
    assert len([record for record in caplog.records if "starting a new" in record.message]) == 2


@live
def test_a_hanging_disk_delays_loading_for_a_bounded_time(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    back = threading.Event()
    store = HistoryStore(tmp_path)
    save(store, DAY)
    read = store._read
    monkeypatch.setattr(history_store, "LOAD_TIMEOUT_S", 0.05)
    monkeypatch.setattr(store, "_read", lambda path: back.wait(30.0) and read(path))
    assert value(store) is None
    assert "the disk does not answer" in caplog.text
    monkeypatch.setattr(history_store, "LOAD_TIMEOUT_S", 30.0)
    started_s = time.monotonic()
    assert value(store) is None
    assert time.monotonic() - started_s < 15.0, "a disk that still hangs is not waited for again"
    back.set()
    store._reader.shutdown()
    wait_until(lambda: store._loading is None)
    assert value(store) == 300.0


@live
def test_a_system_without_threads_costs_the_history_only(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    save(HistoryStore(tmp_path), DAY)

    def refuse(_: threading.Thread) -> None:
        raise RuntimeError("can't start new thread")

    with monkeypatch.context() as system:
        system.setattr(threading.Thread, "start", refuse)
        assert value(HistoryStore(tmp_path)) is None
    assert "no thread for" in caplog.text


@live
def test_closing_finishes_the_writes_under_way(tmp_path: Path) -> None:
    store = HistoryStore(tmp_path)
    store.save(KEY, flat(300.0, n=5_000), now_s=0.0)
    store.close()
    known = load(HistoryStore(tmp_path))
    assert known is not None
    assert len(known) == 5_000


WRITER = """
import sys
from pathlib import Path
from controller.signal.history_store import HistoryStore
from tests.controller.signal.test_history_store import KEY, flat
store, number = HistoryStore(Path(sys.argv[1])), 0
while True:
    number += 1
    store.save(KEY, flat(float(number), n=5_000), now_s=0.0)
    store._writer.flush(10.0)
    print(number, flush=True)
"""


@live
def test_a_killed_controller_leaves_the_old_history_or_the_new_one(tmp_path: Path) -> None:
    for n_saves in (1, 3, 7):
        writer = subprocess.Popen([sys.executable, "-c", WRITER, str(tmp_path)], stdout=subprocess.PIPE, text=True)
        assert writer.stdout is not None
        with writer.stdout:
            saved = [float(writer.stdout.readline()) for _ in range(n_saves)]
            os.kill(writer.pid, signals.SIGKILL)
            saved += [float(line) for line in writer.stdout]
        writer.wait(10.0)
        known = load(HistoryStore(tmp_path))
        assert known is not None
        assert len(known) == 5_000
        assert set(known.values) in ({saved[-1]}, {saved[-1] + 1.0})
        assert list(tmp_path.glob("*.corrupt")) == []
