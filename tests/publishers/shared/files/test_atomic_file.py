"""A file is replaced whole or not at all."""

import os
from pathlib import Path

import pytest

from publishers.shared.files.atomic_file import replace_file


def test_the_content_is_replaced_and_nothing_else_is_left(tmp_path: Path) -> None:
    path = tmp_path / "made" / "on demand" / "state.json"
    replace_file(path, b"old")
    replace_file(path, b"new")
    assert path.read_bytes() == b"new"
    assert list(path.parent.iterdir()) == [path]


@pytest.mark.parametrize("call", ["fsync", "open"])
def test_a_disk_that_refuses_leaves_the_old_content(call: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    path = tmp_path / "state.json"
    replace_file(path, b"old")

    def refuse(*_: object) -> int:
        raise OSError(28, "No space left on device")

    if call == "open":
        path.with_name("state.json.new").mkdir()  # cannot be opened for writing
    else:
        monkeypatch.setattr(os, "fsync", refuse)
    with pytest.raises(OSError, match=r"No space left|directory"):
        replace_file(path, b"new")
    assert path.read_bytes() == b"old"


def test_content_and_rename_are_synced_to_the_disk(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    path = tmp_path / "state.json"
    order: list[str] = []
    fsync, replace = os.fsync, Path.replace

    def note_fsync(descriptor: int) -> None:
        order.append("directory" if Path(f"/proc/self/fd/{descriptor}").is_dir() else "file")
        fsync(descriptor)

    def note_move(self: Path, target: Path) -> Path:
        order.append("move")
        return replace(self, target)

    monkeypatch.setattr(os, "fsync", note_fsync)
    monkeypatch.setattr(Path, "replace", note_move)
    replace_file(path, b"content")
    assert order == ["file", "move", "directory"]


def test_a_planted_link_is_replaced_and_what_it_leads_to_not_written(tmp_path: Path) -> None:
    precious, path = tmp_path / "precious", tmp_path / "state.json"
    precious.write_bytes(b"precious")
    path.symlink_to(precious)
    (tmp_path / "state.json.new").symlink_to(precious)
    replace_file(path, b"new")
    assert (path.read_bytes(), path.is_symlink(), precious.read_bytes()) == (b"new", False, b"precious")


def test_a_file_is_for_its_owner_alone_whatever_the_umask(tmp_path: Path) -> None:
    former = os.umask(0)
    try:
        replace_file(tmp_path / "made" / "state.json", b"content")
    finally:
        os.umask(former)
    assert (tmp_path / "made" / "state.json").stat().st_mode & 0o777 == 0o600
    assert (tmp_path / "made").stat().st_mode & 0o777 == 0o700


def test_a_disk_that_is_full_keeps_no_half_file(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    def refuse(_: int) -> None:
        raise OSError(28, "No space left on device")

    monkeypatch.setattr(os, "fsync", refuse)
    with pytest.raises(OSError, match="No space left"):
        replace_file(tmp_path / "state.json", b"content")
    assert list(tmp_path.iterdir()) == []
