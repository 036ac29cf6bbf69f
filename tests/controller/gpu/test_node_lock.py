"""The locks within one process; that they hold between processes, and vanish with them, is shown in tests/live."""

import os
import socket
import uuid
from pathlib import Path

import pytest

from controller.errors import JournalError, NodeLockedError
from controller.gpu.node_lock import FILE_NAME, NodeLock


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
        with NodeLock(tmp_path):
            pass


def test_the_file_of_a_dead_controller_locks_nothing(tmp_path: Path) -> None:
    (tmp_path / FILE_NAME).write_text("999999999\n")
    with NodeLock(tmp_path):
        assert (tmp_path / FILE_NAME).read_text() == f"{os.getpid()}\n"


def test_a_state_directory_is_made_where_it_is_missing(tmp_path: Path) -> None:
    with NodeLock(tmp_path / "a" / "b"):
        assert (tmp_path / "a" / "b" / FILE_NAME).is_file()


def test_a_state_directory_that_cannot_be_written_is_an_error_that_names_the_key(tmp_path: Path) -> None:
    (tmp_path / "file").touch()
    with pytest.raises(JournalError, match=r"set node\.state_dir"):
        NodeLock(tmp_path / "file").__enter__()


def test_a_gpu_is_locked_across_state_directories(tmp_path: Path) -> None:
    gpu = f"GPU-{uuid.uuid4()}"
    with NodeLock(tmp_path / "a") as first, NodeLock(tmp_path / "b") as second:
        first.lock_gpus([gpu])
        with pytest.raises(NodeLockedError, match=rf"{gpu}: held by process {os.getpid()}; stop that one"):
            second.lock_gpus([gpu])


def test_the_locks_of_gpus_end_with_the_lock_of_the_node(tmp_path: Path) -> None:
    gpus = [f"GPU-{uuid.uuid4()}", f"GPU-{uuid.uuid4()}"]
    with NodeLock(tmp_path / "a") as first:
        first.lock_gpus(gpus)
    with NodeLock(tmp_path / "b") as second:
        second.lock_gpus(gpus)


def test_a_holder_that_does_not_say_who_it_is_is_a_question_mark(tmp_path: Path) -> None:
    gpu = f"GPU-{uuid.uuid4()}"
    with socket.socket(socket.AF_UNIX, socket.SOCK_DGRAM) as odd, NodeLock(tmp_path) as lock:
        odd.bind(f"\0gridchase/gpu/{gpu}")
        lock.lock_gpus([gpu])  # another kind of socket is another name
    with socket.socket(socket.AF_UNIX, socket.SOCK_STREAM) as deaf, NodeLock(tmp_path) as lock:
        deaf.bind(f"\0gridchase/gpu/{gpu}")
        with pytest.raises(NodeLockedError, match=r"held by process \?"):
            lock.lock_gpus([gpu])
