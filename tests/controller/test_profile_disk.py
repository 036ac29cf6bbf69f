"""The profiles and a disk that refuses, hangs or has no thread: nobody waits for it, and it is told once."""

import logging
import os
import threading
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest

from controller import file_writer
from controller.profile_store import Known, ProfileStore
from policies.profile import PowerProfile
from tests.controller.profile_shelf import KEY, OTHER, PROFILE, TIMEOUT_S, files, loaded, opened


def test_a_disk_that_refuses_is_told_once_and_borne_and_told_when_it_is_well(
    tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    caplog.set_level(logging.INFO)
    with opened(tmp_path) as store:
        assert store.load(KEY) is None
        (tmp_path / "profiles").touch()
        for profile in (PROFILE, OTHER, PROFILE):
            store.save(KEY, profile)
            assert store.flush(TIMEOUT_S)
        (tmp_path / "profiles").unlink()
        store.save(KEY, OTHER)
    told = [(record.levelname, record.message.partition(": ")[2]) for record in caplog.records]
    assert told == [("WARNING", "profiles are not kept: File exists"), ("INFO", "profiles are kept again")]
    assert loaded(tmp_path) == Known(profile=OTHER, kind="exact", origin="measured before")


@contextmanager
def hanging(monkeypatch: pytest.MonkeyPatch) -> Iterator[Callable[[], None]]:
    """Let the disk hang until told otherwise."""
    goes_on, fsync = threading.Event(), os.fsync
    monkeypatch.setattr(os, "fsync", lambda file: (goes_on.wait(TIMEOUT_S), fsync(file))[1])
    yield goes_on.set
    goes_on.set()


def test_nobody_waits_for_a_disk_that_hangs_and_of_each_curve_only_the_latest_waits(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    monkeypatch.setattr(file_writer, "CLOSE_TIMEOUT_S", 0.0)
    keys = [replace(KEY, job=f"job-{n}") for n in range(3)]
    with hanging(monkeypatch) as go_on:
        with ProfileStore(tmp_path) as store:
            for _ in range(100):
                for key in keys:
                    store.save(key, PROFILE)
            store.save(keys[1], OTHER)
            assert store.load(keys[1]) == Known(profile=OTHER, kind="exact", origin="measured before")
            assert store._writer.n_waiting <= len(keys)
        assert "the disk does not answer; the latest profiles are not kept" in caplog.text
        go_on()
        assert store.flush(TIMEOUT_S)
    for key, profile in zip(keys, (PROFILE, OTHER, PROFILE), strict=True):
        assert loaded(tmp_path, key) == Known(profile=profile, kind="exact", origin="measured before")


def test_where_there_is_no_thread_to_be_had_the_profile_waits_for_the_next_one(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    def refuse(_: threading.Thread) -> None:
        raise RuntimeError("can't start new thread")

    with opened(tmp_path) as store:
        with monkeypatch.context() as patch:
            patch.setattr(threading.Thread, "start", refuse)
            store.save(KEY, PROFILE)
        assert "profiles are not kept: can't start new thread" in caplog.text
        store.save(replace(KEY, job="bert"), PROFILE)
    assert len(files(tmp_path)) == 2


def test_a_profile_that_cannot_be_written_is_told_and_costs_none_that_comes_after_it(
    tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    unwritable = replace(PROFILE.points[0], iterations_per_s=np.float64(0.8))
    with opened(tmp_path) as store:
        for _ in range(2):
            store.save(KEY, PowerProfile((unwritable, *PROFILE.points[1:])))
            assert store.flush(TIMEOUT_S)
        assert [record.message.count("profiles are not kept") for record in caplog.records] == [1]
        store.save(KEY, OTHER)
    assert loaded(tmp_path) == Known(profile=OTHER, kind="exact", origin="measured before")


@pytest.mark.filterwarnings("ignore::pytest.PytestUnhandledThreadExceptionWarning")  # it ends by this
def test_a_writer_that_ends_is_followed_by_another(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    def end(*_: object) -> None:
        raise SystemExit

    with opened(tmp_path) as store:
        with monkeypatch.context() as patch:
            patch.setattr(file_writer, "replace_file", end)
            store.save(KEY, PROFILE)
            assert store.flush(TIMEOUT_S)
            for thread in threading.enumerate():
                if thread.name == "gridchase profiles":  # it ends in this test, not in the next one
                    thread.join(TIMEOUT_S)
        store.save(KEY, OTHER)
    assert loaded(tmp_path) == Known(profile=OTHER, kind="exact", origin="measured before")
