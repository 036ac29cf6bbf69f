"""The record of ended runs: what it remembers and forgets, and a disk that fails, hangs or damages it."""

import logging
from pathlib import Path

import pytest

from controller.history import run_history
from controller.history.run_history import JobKey, Outcome, RunHistory
from publishers.shared.files import file_writer
from tests.controller.history.outcomes import OUTCOME, outcome

KEY = JobKey("alice", "resnet50")
TIMEOUT_S = 10.0


def kept(state_dir: Path, *runs: str, key: JobKey = KEY) -> Path:
    """Let runs begin and end, one after the other."""
    with RunHistory(state_dir) as history:
        for run in runs:
            history.begin(key, run)
            history.end(key, outcome(run))
        assert history.flush(TIMEOUT_S)
    return state_dir


def remembered(state_dir: Path, key: JobKey = KEY) -> list[tuple[str, int]]:
    """Return the runs that a new controller knows of, with their numbers."""
    with RunHistory(state_dir) as history:
        return [(each.run, each.number) for each in history.ended(key)]


def test_how_a_run_has_ended_survives_the_controller(tmp_path: Path) -> None:
    with RunHistory(kept(tmp_path, "run-1")) as history:
        (ended,) = history.ended(KEY)
    assert ended.number == 0
    assert all(getattr(ended, name) == getattr(OUTCOME, name) for name in Outcome.__struct_fields__)


def test_a_run_is_remembered_at_once_whatever_the_disk_does(tmp_path: Path) -> None:
    (tmp_path / "history").write_text("in the way")
    with RunHistory(tmp_path) as history:
        assert history.begin(KEY, "run-1").number == 0
        history.end(KEY, outcome())
        assert len(history.ended(KEY)) == 1


def test_runs_are_numbered_as_they_begin_over_restarts(tmp_path: Path) -> None:
    kept(tmp_path, "a", "b")
    with RunHistory(tmp_path) as history:
        assert [history.begin(KEY, run).number for run in ("c", "d", "c")] == [2, 3, 2]
        assert history.flush(TIMEOUT_S)
    with RunHistory(tmp_path) as history:
        assert [history.begin(KEY, run).number for run in ("d", "e")] == [3, 4]


@pytest.mark.parametrize(("end", "number"), [("lost", 0), ("silent", 0), ("finished", 1)])
def test_a_run_that_comes_back_keeps_its_number_unless_it_had_finished(tmp_path: Path, end: str, number: int) -> None:
    with RunHistory(tmp_path) as history:
        history.begin(KEY, "run-1")
        history.end(KEY, outcome(end=end))
        assert history.begin(KEY, "run-1").number == number
        history.end(KEY, outcome(n_iterations=9_000.0))
        assert [each.number for each in history.ended(KEY)] == list(range(number + 1))
        assert history.ended(KEY)[-1].n_iterations == 9_000.0


def test_one_run_of_each_block_is_held_out_for_all_of_its_life(tmp_path: Path) -> None:
    runs = [f"run-{n}" for n in range(20)]
    with RunHistory(tmp_path) as history:
        drawn = [history.begin(KEY, run, holdout_ratio=0.2).is_held_out for run in runs]
        assert history.flush(TIMEOUT_S)
    assert [sum(drawn[block : block + 5]) for block in (0, 5, 10, 15)] == [1, 1, 1, 1]
    with RunHistory(tmp_path) as history:
        assert [history.begin(KEY, run, holdout_ratio=0.0).is_held_out for run in runs] == drawn
        for run in runs:
            history.end(KEY, outcome(run, end="lost"))
        assert [history.begin(KEY, run, holdout_ratio=0.5).is_held_out for run in runs] == drawn


def test_a_run_that_another_node_leads_is_not_remembered(tmp_path: Path) -> None:
    with RunHistory(tmp_path) as history:
        history.end(KEY, outcome())
        assert history.ended(KEY) == ()


def test_two_users_jobs_of_one_name_are_two(tmp_path: Path) -> None:
    kept(tmp_path, "run-1")
    other = JobKey("bob", KEY.job)
    kept(tmp_path, "run-9", key=other)
    assert (remembered(tmp_path), remembered(tmp_path, other)) == ([("run-1", 0)], [("run-9", 0)])


def test_of_many_runs_the_oldest_are_forgotten(tmp_path: Path) -> None:
    n_runs = run_history.MAX_RUNS + 3
    runs = remembered(kept(tmp_path, *(f"run-{n}" for n in range(n_runs))))
    assert [number for _, number in runs] == list(range(3, n_runs))


def test_runs_that_never_end_fill_no_memory(tmp_path: Path) -> None:
    with RunHistory(tmp_path) as history:
        for n in range(run_history.MAX_RUNS + 1):
            history.begin(KEY, f"run-{n}")
        history.end(KEY, outcome("run-0"))
        history.end(KEY, outcome("run-1"))
        assert [each.number for each in history.ended(KEY)] == [1]


def test_of_many_jobs_the_oldest_of_who_has_most_goes(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(run_history, "MAX_JOBS", 2)
    keys = [JobKey("bob", "a"), JobKey("alice", "b"), JobKey("alice", "c")]
    for key in keys:
        kept(tmp_path, "run-1", key=key)
    assert [len(remembered(tmp_path, key)) for key in keys] == [1, 0, 1]
    assert len(list((tmp_path / "history").iterdir())) == 2


@pytest.mark.parametrize(
    ("old", "new"),
    [
        (b'"version":1', b'"version":2'),
        (b'"energy_j":2000000.0', b'"energy_j":3000000.0'),
        (b'"energy_j":2000000.0', b'"energy_j":-1.0'),
        (b'"number":0', b'"number":1'),
        (b'"user":"alice"', b'"user":"bob"'),
        (b"{", b""),
        (b'"begun":{}', b'"begun":' + b"[" * 100_000),
        (b"\n", b" \n"),
    ],
)
def test_a_damaged_record_is_told_once_and_the_next_run_begins_a_new_one(
    tmp_path: Path, caplog: pytest.LogCaptureFixture, old: bytes, new: bytes
) -> None:
    (file,) = (kept(tmp_path, "run-1") / "history").iterdir()
    content = file.read_bytes()
    assert old in content
    file.write_bytes(content.replace(old, new))
    assert remembered(kept(tmp_path, "run-2")) == [("run-2", 0)]
    assert [record.levelno for record in caplog.records] == [logging.WARNING]
    assert "former runs of the job are forgotten" in caplog.text


def test_a_record_under_the_name_of_another_job_does_not_count(
    tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    (file,) = (kept(tmp_path, "run-1") / "history").iterdir()
    file.rename(file.with_name("bert-0123456789abcdef.json"))
    assert remembered(tmp_path) == []
    assert "not the file of alice/resnet50" in caplog.text


def test_what_a_killed_controller_has_half_written_is_removed(tmp_path: Path) -> None:
    half = kept(tmp_path, "run-1") / "history" / "resnet50.json.new"
    half.write_bytes(b"{")
    assert remembered(tmp_path) == [("run-1", 0)]
    assert not half.exists()


def test_a_full_disk_is_told_once_and_delays_nobody(
    tmp_path: Path, caplog: pytest.LogCaptureFixture, monkeypatch: pytest.MonkeyPatch
) -> None:
    def refuse(*_: object) -> None:
        raise OSError(28, "No space left on device")

    monkeypatch.setattr(file_writer, "replace_file", refuse)
    kept(tmp_path, "run-1", "run-2", "run-3")
    assert ["not saved" in record.message for record in caplog.records] == [True]


def test_an_outcome_that_is_impossible_costs_that_run_alone(tmp_path: Path, caplog: pytest.LogCaptureFixture) -> None:
    with RunHistory(kept(tmp_path, "run-1")) as history:
        history.begin(KEY, "run-2")
        assert history.end(KEY, outcome("run-2", energy_j=2e16)) is None
        history.begin(KEY, "run-3")
        history.end(KEY, outcome("run-3"))
        assert history.flush(TIMEOUT_S)
    assert "run-2: how it has ended is not remembered" in caplog.text
    assert remembered(tmp_path) == [("run-1", 0), ("run-3", 2)]
