"""The process table: whose a process is, its namespaces, parents and marks; what cannot be seen is no fault."""

import os
import threading
from pathlib import Path

import pytest

from controller.gpu.processes import MAX_ANCESTORS, ProcFileSystem
from publishers.messages.topics import RunKey
from publishers.shared.process_identity import LENGTH, is_mark, mark_this_thread, run_mark
from tests.live.conftest import eventually

pytestmark = pytest.mark.live  # files are read in a thread

NOBODY_HAS = 1 << 30


def show(root: Path, pid: int, *, parent: int = 0, threads: tuple[str, ...] = ("python",), ids: str = "") -> None:
    """Let a process appear below `root` as the kernel shows one."""
    folder = root / str(pid)
    for number, name in enumerate(threads):
        (folder / "task" / str(pid + number)).mkdir(parents=True)
        (folder / "task" / str(pid + number) / "comm").write_text(f"{name}\n")
    lines = ["Name:\tpython", f"PPid:\t{parent}", "Uid:\t1000\t1001\t1000\t1000", f"NSpid:\t{ids or pid}"]
    (folder / "status").write_text("\n".join(lines) + "\n")
    (folder / "ns").mkdir()
    (folder / "ns" / "pid").touch()
    (folder / "cgroup").write_text("0::/docker-a.scope\n")


async def test_a_process_is_read_with_its_ancestors(tmp_path: Path) -> None:
    mark = run_mark(RunKey("alice", "resnet50", "r1"))
    show(tmp_path, 1)
    show(tmp_path, 50, parent=1, threads=("python", mark))
    show(tmp_path, 51, parent=50, ids="51\t7")
    found = await ProcFileSystem(tmp_path).read([51])
    lineage = found[51]
    assert lineage is not None
    assert [(each.pid, each.uid, each.name) for each in lineage] == [(pid, 1000, "python") for pid in (51, 50, 1)]
    assert (lineage[0].namespace_pids, lineage[0].marks, lineage[1].marks) == ((51, 7), frozenset(), frozenset({mark}))
    assert (lineage[0].container, lineage[1].container) == ("0::/docker-a.scope\n", ""), "one has an id in a namespace"
    assert lineage[0].pid_namespace == (tmp_path / "51" / "ns" / "pid").stat().st_ino


async def test_the_namespace_of_a_process_with_one_id_is_ours_where_it_cannot_be_read(tmp_path: Path) -> None:
    show(tmp_path, 50)
    show(tmp_path, 51, ids="51\t7")
    for pid in ("50", "51"):
        (tmp_path / pid / "ns" / "pid").unlink()
    (tmp_path / "self" / "ns").mkdir(parents=True)
    (tmp_path / "self" / "ns" / "pid").touch()
    found = await ProcFileSystem(tmp_path).read([50, 51])
    namespaces = [lineage[0].pid_namespace for lineage in found.values() if lineage is not None]
    assert namespaces == [(tmp_path / "self" / "ns" / "pid").stat().st_ino, None]


async def test_a_process_that_is_hidden_is_listed_as_not_seen(tmp_path: Path) -> None:
    assert await ProcFileSystem(tmp_path).read([os.getpid()]) == {os.getpid(): None}


@pytest.mark.parametrize("status", ["", "Name:\tx\nPPid:\tno number\nUid:\t1\n", "PPid:\t1\nUid:\t\nName:\tx\n"])
async def test_a_status_that_cannot_be_understood_is_one_that_cannot_be_seen(tmp_path: Path, status: str) -> None:
    show(tmp_path, 4_711)
    (tmp_path / "4711" / "status").write_text(status)
    assert (await ProcFileSystem(tmp_path).read([4_711]))[4_711] is None


async def test_a_circle_of_parents_ends(tmp_path: Path) -> None:
    show(tmp_path, 2, parent=3)
    show(tmp_path, 3, parent=2)
    assert len((await ProcFileSystem(tmp_path).read([2]))[2] or ()) == MAX_ANCESTORS


async def test_the_marked_processes_are_found_among_all(tmp_path: Path) -> None:
    show(tmp_path, 50, threads=("python", run_mark(RunKey("alice", "resnet50", "r1"))))
    show(tmp_path, 51, threads=("gcc", "gc"))
    (tmp_path / "self").mkdir()
    assert await ProcFileSystem(tmp_path).marked() == frozenset({50})


async def test_an_ended_process_is_left_out_where_all_can_be_seen() -> None:
    table = ProcFileSystem()
    found = await table.read([NOBODY_HAS])
    assert found == ({} if table.sees_all else {NOBODY_HAS: None})


async def test_a_thread_of_this_process_that_marks_itself_is_seen_from_outside() -> None:
    mark, is_marked, is_read = run_mark(RunKey("alice", "resnet50", "r1")), threading.Event(), threading.Event()

    def publish() -> None:
        mark_this_thread(mark)
        is_marked.set()
        is_read.wait(10)

    thread = threading.Thread(target=publish)
    thread.start()
    is_marked.wait(10)
    try:
        found = await ProcFileSystem().read([os.getpid()])
        assert os.getpid() in await ProcFileSystem().marked()
    finally:
        is_read.set()
        thread.join()
    lineage = found[os.getpid()]
    assert lineage is not None
    assert lineage[0].marks == frozenset({mark})
    await eventually(lambda: not ProcFileSystem()._marks(Path("/proc/self")))  # the mark ends with the thread


async def test_a_local_account_has_its_id_and_other_names_have_none() -> None:
    table = ProcFileSystem()
    assert await table.uid_of("root") == 0
    for name in ("no-such-account", "", "a\0b", "ü" * 60):
        assert await table.uid_of(name) is None


def test_each_run_has_a_mark_of_its_own_that_fits_a_threads_name() -> None:
    marks = {
        run_mark(key)
        for key in (RunKey("a", "b", "c"), RunKey("ab", "", "c"), RunKey("a", "b", "d"), RunKey("x", "b", "c"))
    }
    assert len(marks) == 4
    assert all(is_mark(mark) and len(mark) == LENGTH for mark in marks)
    assert not is_mark("python")
