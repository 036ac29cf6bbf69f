"""A file is replaced whole or not at all."""

import os
from pathlib import Path

import pytest

from publishers.shared.atomic_file import replace_file


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
