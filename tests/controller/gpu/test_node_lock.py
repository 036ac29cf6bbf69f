"""The locks within one process; that they hold between processes, and vanish with them, is shown in tests/live."""

import os
import socket
import stat
from pathlib import Path

import pytest

from controller.errors import NodeLockedError
from controller.gpu.node_lock import FILE_NAME, NodeLock, lock_holders

GPU = "GPU-8f6d1c7e-52f5-4f0e-9a9d-0b1c2d3e4f50"


@pytest.fixture(autouse=True)
def run_dir(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """Put the locks of GPUs into a directory of the test."""
    monkeypatch.setattr("controller.gpu.run_dir.RUN_DIR", tmp_path / "run")
    monkeypatch.setenv("XDG_RUNTIME_DIR", str(tmp_path))
    return tmp_path / ("run" if os.geteuid() == 0 else "gridchase")


def test_a_second_lock_on_a_state_directory_names_the_holder(tmp_path: Path) -> None:
    with NodeLock(tmp_path), pytest.raises(NodeLockedError, match=rf"process {os.getpid()}; stop that one"):
        NodeLock(tmp_path).__enter__()


def test_a_refused_lock_does_not_break_the_one_that_holds(tmp_path: Path) -> None:
    with NodeLock(tmp_path):
        for _ in range(2):
            with pytest.raises(NodeLockedError):
                NodeLock(tmp_path).__enter__()


def test_a_lock_that_was_let_go_can_be_taken_again(tmp_path: Path) -> None:
    for _ in range(2):
        with NodeLock(tmp_path) as lock:
            assert lock.fault == ""


def test_the_file_of_a_dead_controller_locks_nothing(tmp_path: Path) -> None:
    (tmp_path / FILE_NAME).write_text("999999999\n")
    with NodeLock(tmp_path):
        assert (tmp_path / FILE_NAME).read_text() == f"{os.getpid()}\n"


def test_a_state_directory_is_made_where_it_is_missing_for_its_owner_alone(tmp_path: Path) -> None:
    former = os.umask(0)
    try:
        with NodeLock(tmp_path / "a" / "b"):
            assert stat.S_IMODE((tmp_path / "a" / "b").stat().st_mode) == 0o700
            assert stat.S_IMODE((tmp_path / "a").stat().st_mode) == 0o755
            assert stat.S_IMODE((tmp_path / "a" / "b" / FILE_NAME).stat().st_mode) == 0o600
    finally:
        os.umask(former)


def test_a_state_directory_that_cannot_be_written_is_a_fault_that_names_the_key(tmp_path: Path) -> None:
    (tmp_path / "file").touch()
    with NodeLock(tmp_path / "file") as lock:
        assert "set node.state_dir" in lock.fault


def test_a_planted_link_is_not_locked_and_what_it_leads_to_not_written(tmp_path: Path) -> None:
    (tmp_path / "precious").write_text("precious")
    (tmp_path / FILE_NAME).symlink_to(tmp_path / "precious")
    with NodeLock(tmp_path) as lock:
        assert "cannot be locked" in lock.fault
    assert (tmp_path / "precious").read_text() == "precious"


@pytest.mark.skipif(os.geteuid() != 0, reason="only root can give a directory away")
def test_a_state_directory_of_another_user_is_a_fault_and_nothing_is_written_there(tmp_path: Path) -> None:
    (tmp_path / "theirs").mkdir()
    os.chown(tmp_path / "theirs", 65_534, 65_534)
    with NodeLock(tmp_path / "theirs") as lock:
        assert "belongs to user 65534" in lock.fault
    assert list((tmp_path / "theirs").iterdir()) == []


def test_a_gpu_is_locked_across_state_directories(tmp_path: Path) -> None:
    with NodeLock(tmp_path / "a") as first, NodeLock(tmp_path / "b") as second:
        assert first.lock_gpus([GPU]) == {}
        assert second.lock_gpus([GPU, f"{GPU}-other"]) == {
            GPU: f"{GPU}: held by process {os.getpid()}; stop that one first"
        }
        assert (first.fault, second.fault) == ("", "")


def test_the_locks_of_gpus_end_with_the_lock_of_the_node(tmp_path: Path) -> None:
    with NodeLock(tmp_path / "a") as first:
        assert first.lock_gpus([GPU]) == {}
    with NodeLock(tmp_path / "b") as second:
        assert second.lock_gpus([GPU]) == {}


def test_a_gpu_that_is_unlocked_is_free_though_a_disk_that_hangs_has_its_descriptor(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    copies: list[int] = []
    monkeypatch.setattr("controller.gpu.node_lock._write_note", lambda fd, _: copies.append(fd))
    with NodeLock(tmp_path / "a") as one, NodeLock(tmp_path / "b") as other:
        assert one.lock_gpus([GPU, "GPU-2"]) == {}
        one.unlock_gpus([GPU, "GPU-never-locked"])
        assert other.lock_gpus([GPU, "GPU-2"]).keys() == {"GPU-2"}
        other.unlock_gpus([GPU])
        assert one.lock_gpus([GPU]) == {}, "and can be locked again"
    for fd in copies:
        os.close(fd)


def test_a_squatter_in_the_abstract_socket_space_locks_nothing(tmp_path: Path) -> None:
    with socket.socket(socket.AF_UNIX, socket.SOCK_STREAM) as squatter, NodeLock(tmp_path) as lock:
        squatter.bind(f"\0gridchase/gpu/{GPU}")
        squatter.listen()
        assert lock.lock_gpus([GPU]) == {}


def test_where_the_run_directory_is_not_ours_the_state_directory_has_the_locks(tmp_path: Path, run_dir: Path) -> None:
    run_dir.touch()
    with NodeLock(tmp_path / "state") as lock:
        assert lock.lock_gpus([GPU]) == {}
    assert lock.fault == ""
    assert (tmp_path / "state" / f"{GPU}.lock").is_file()


def test_a_gpu_that_cannot_be_locked_at_all_is_a_fault_until_it_can_be(tmp_path: Path, run_dir: Path) -> None:
    run_dir.touch()
    (tmp_path / "state").mkdir(0o700)
    (tmp_path / "state" / f"{GPU}.lock").mkdir()
    with NodeLock(tmp_path / "state") as lock:
        assert lock.lock_gpus([GPU]) == {}
        assert f"{GPU}: cannot be locked" in lock.fault
        (tmp_path / "state" / f"{GPU}.lock").rmdir()
        for _ in range(2):
            assert (lock.lock_gpus([GPU]), lock.fault) == ({}, "")


def test_who_holds_a_gpu_is_told_without_taking_its_lock(tmp_path: Path) -> None:
    with NodeLock(tmp_path) as lock:
        assert lock_holders(tmp_path, [GPU]) == {}
        lock.lock_gpus([GPU])
        assert lock_holders(tmp_path, [GPU, f"{GPU}-other"]) == {GPU: os.getpid()}
    assert lock_holders(tmp_path, [GPU]) == {}


def test_without_the_list_of_the_kernel_no_holder_is_named(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("controller.gpu.node_lock.LOCKS", tmp_path / "missing")
    with NodeLock(tmp_path) as lock:
        lock.lock_gpus([GPU])
        assert lock_holders(tmp_path, [GPU]) == {}
