"""What is wrong with a path is found before anything is done: that a file cannot be written there, too."""

from pathlib import Path

import pytest

from publishers.shared.files.lookup import writing_fault


def test_a_file_that_can_be_written_has_no_fault_and_is_left_as_it_was(tmp_path: Path) -> None:
    there = tmp_path / "there.json"
    there.write_text("old", encoding="utf-8")
    assert (writing_fault(there), writing_fault(tmp_path / "new.json")) == ("", "")
    assert there.read_text(encoding="utf-8") == "old"
    assert [path.name for path in tmp_path.iterdir()] == ["there.json"]


@pytest.mark.parametrize(
    ("path", "fault"),
    [
        ("/proc/day.json", "cannot be written: No such file or directory"),
        ("/proc", "cannot be written: Is a directory"),
        ("/nowhere/day.json", "there is no folder /nowhere"),
    ],
)
def test_a_place_where_no_file_can_be_written_is_told(path: str, fault: str) -> None:
    assert writing_fault(Path(path)) == fault
