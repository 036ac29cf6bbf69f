"""The files of the spool: whole lines in their order, bounded, held by one process, and taken over from the dead."""

import errno
import os
from pathlib import Path

import msgspec
import pytest

from policies.service.bus.events import EnergyReported, MetricReported, RunEnded, RunEvent
from policies.service.bus.pending_events import SpoolFiles
from tests.policies.service.memory_desk import NOW_S, final_energy


def measured(epoch: int, *, run: str | None = None) -> MetricReported:
    """Return that a run has reached its target; each epoch is that of another one, unless that is said."""
    return MetricReported(job="resnet50", run=run or f"r{epoch}", at_s=NOW_S, epoch=epoch, value=0.5, reached=True)


def everything(files: SpoolFiles) -> list[RunEvent]:
    """Read and forget all that waits."""
    found: list[RunEvent] = []
    while (segment := files.oldest()) is not None:
        found += files.read(segment)
        files.remove(segment)
    return found


def test_what_is_written_is_read_as_it_was_and_in_its_order(tmp_path: Path) -> None:
    files = SpoolFiles(tmp_path)
    news: list[RunEvent] = [
        measured(1),
        measured(2),
        EnergyReported(job="resnet50", run="r1", at_s=NOW_S, energy=final_energy(cost=0.25, currency="EUR")),
        RunEnded(job="resnet50", run="r1", at_s=NOW_S, lost=True, reached=False),
    ]
    files.append(news[:2])
    files.append(news[2:])
    assert everything(files) == news


def test_of_several_news_about_the_same_the_newest_is_read_in_the_place_of_the_first(tmp_path: Path) -> None:
    files = SpoolFiles(tmp_path)
    below = [msgspec.structs.replace(measured(epoch, run="r1"), reached=False) for epoch in range(3)]
    files.append([below[0], measured(7), *below[1:]])
    assert everything(files) == [below[2], measured(7)]


def test_of_several_epochs_that_have_reached_the_target_the_earliest_is_read(tmp_path: Path) -> None:
    files = SpoolFiles(tmp_path)
    files.append([measured(epoch, run="r1") for epoch in (7, 5, 6, 8)])
    assert everything(files) == [measured(5, run="r1")]


def test_what_is_read_gets_nothing_more(tmp_path: Path) -> None:
    files = SpoolFiles(tmp_path)
    files.append([measured(1)])
    segment = files.oldest()
    assert segment is not None
    files.append([measured(2)])
    assert files.read(segment) == [measured(1)]
    files.remove(segment)
    assert everything(files) == [measured(2)]


def test_segments_are_short_and_keep_their_order(tmp_path: Path) -> None:
    files = SpoolFiles(tmp_path, segment_bytes=200)
    for epoch in range(50):
        files.append([measured(epoch)])
    assert len(list(tmp_path.glob("*/*.jsonl"))) > 10
    assert everything(files) == [measured(epoch) for epoch in range(50)]


def test_a_full_spool_takes_nothing_more_and_says_how_full_it_is(tmp_path: Path) -> None:
    files = SpoolFiles(tmp_path, max_bytes=1 << 20)
    batch = [measured(epoch) for epoch in range(1_000)]
    n_fitting = (1 << 20) // (1_000 * len(msgspec.json.encode(measured(1_000))))
    for _ in range(n_fitting):
        files.append(batch)
    with pytest.raises(OSError, match="1 MiB wait already") as caught:
        files.append([*batch, *batch])
    assert caught.value.errno == errno.EFBIG
    size = sum(path.stat().st_size for path in tmp_path.glob("*/*.jsonl"))
    assert 900_000 < size <= 1 << 20


def test_the_torn_end_of_a_killed_process_costs_that_line_alone(
    tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    files = SpoolFiles(tmp_path)
    files.append([measured(1), measured(2)])
    segment = files.oldest()
    assert segment is not None
    segment.write_bytes(segment.read_bytes()[:-20])
    assert files.read(segment) == [measured(1)]
    assert "1 lines cannot be read" in caplog.text


@pytest.mark.parametrize("line", [b"\xff\xfe", b"null", b'{"what": "else"}', b'{"what": "alive"}', b"[" * 2_000])
def test_lines_that_nobody_wrote_are_left_out(tmp_path: Path, line: bytes) -> None:
    files = SpoolFiles(tmp_path)
    files.append([measured(1)])
    segment = files.oldest()
    assert segment is not None
    segment.write_bytes(line + b"\n" + segment.read_bytes())
    assert files.read(segment) == [measured(1)]


def test_a_disk_that_is_full_leaves_no_half_of_a_batch(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    files = SpoolFiles(tmp_path)
    files.append([measured(1)])
    real = os.write

    def write_a_little(descriptor: int, data: bytes) -> int:
        monkeypatch.setattr(os, "write", full)
        return real(descriptor, data[:30])

    def full(_descriptor: int, _data: bytes) -> int:
        raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC))

    monkeypatch.setattr(os, "write", write_a_little)
    with pytest.raises(OSError, match="No space left"):
        files.append([measured(2), measured(3)])
    monkeypatch.setattr(os, "write", real)
    files.append([measured(2), measured(3)])
    assert everything(files) == [measured(1), measured(2), measured(3)]


def test_what_a_dead_process_left_is_taken_over_and_what_a_living_one_holds_is_not(tmp_path: Path) -> None:
    dead, living, heir = (SpoolFiles(tmp_path) for _ in range(3))
    dead.append([measured(1)])
    dead.append([measured(2)])
    living.append([measured(9)])
    heir.append([measured(3)])
    assert dead._lock is not None
    os.close(dead._lock)  # as the kernel does when a process ends
    assert heir.take_over() == 1
    assert everything(heir) == [measured(3), measured(1), measured(2)]
    assert everything(living) == [measured(9)]
    assert len(list(tmp_path.iterdir())) == 2


def test_a_process_that_leaves_nothing_behind_leaves_no_directory(tmp_path: Path) -> None:
    idle, busy = SpoolFiles(tmp_path / "spool"), SpoolFiles(tmp_path / "spool")
    assert (idle.take_over(), idle.oldest()) == (0, None)
    idle.close()
    assert not (tmp_path / "spool").exists()
    busy.append([measured(1)])
    everything(busy)
    busy.close()
    assert list((tmp_path / "spool").iterdir()) == []


def test_what_waits_at_the_end_is_there_at_the_next_start(tmp_path: Path) -> None:
    files = SpoolFiles(tmp_path)
    files.append([measured(1)])
    files.close()
    heir = SpoolFiles(tmp_path)
    assert heir.take_over() == 1
    assert everything(heir) == [measured(1)]


def test_a_segment_that_was_told_is_not_told_again_where_it_cannot_be_removed(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    files = SpoolFiles(tmp_path)
    files.append([measured(1)])
    segment = files.oldest()
    assert segment is not None

    def read_only(_path: Path, **_: bool) -> None:
        raise OSError(errno.EROFS, os.strerror(errno.EROFS))

    monkeypatch.setattr(Path, "unlink", read_only)
    with pytest.raises(OSError, match="Read-only"):
        files.remove(segment)
    assert files.oldest() is None


def test_a_file_that_cannot_be_read_is_set_aside(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    files = SpoolFiles(tmp_path)
    files.append([measured(1)])
    segment = files.oldest()
    assert segment is not None

    def broken(path: Path) -> bytes:
        raise OSError(errno.EIO, os.strerror(errno.EIO), str(path))

    monkeypatch.setattr(Path, "read_bytes", broken)
    assert files.read(segment) == []
    assert files.oldest() is None
    assert "00000001.unreadable" in caplog.text
