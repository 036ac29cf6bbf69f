"""Directories and files for their owner alone, whatever the umask; what others may have written is refused."""

import os
import stat
from collections.abc import Iterator
from pathlib import Path

import pytest

from publishers.shared.files.private_dir import UnsafeDirectoryError, make_private_dir, make_private_file, open_private

NOBODY = 65_534
as_root = pytest.mark.skipif(os.geteuid() != 0, reason="only root can give files away")


@pytest.fixture(params=[0o000, 0o022, 0o077, 0o777])
def umask(request: pytest.FixtureRequest) -> Iterator[int]:
    """Set a umask."""
    former = os.umask(request.param)
    yield request.param
    os.umask(former)


def mode(path: Path) -> int:
    """Return the permissions of a file."""
    return stat.S_IMODE(path.stat().st_mode)


@pytest.mark.usefixtures("umask")
def test_a_new_directory_is_for_its_owner_alone(tmp_path: Path) -> None:
    make_private_dir(tmp_path / "a" / "b" / "c")
    assert [mode(tmp_path / part) for part in ("a", "a/b", "a/b/c")] == [0o755, 0o755, 0o700]


def test_a_directory_that_others_may_read_is_closed_to_them(tmp_path: Path) -> None:
    (tmp_path / "state").mkdir(0o755)
    make_private_dir(tmp_path / "state")
    assert mode(tmp_path / "state") == 0o700


@as_root
@pytest.mark.parametrize("bits", [0o770, 0o702, 0o1777])
def test_as_root_a_directory_that_others_may_write_is_refused(tmp_path: Path, bits: int) -> None:
    (tmp_path / "state").mkdir()
    (tmp_path / "state").chmod(bits)
    with pytest.raises(UnsafeDirectoryError, match=r"can be written by other users.*chmod 700 "):
        make_private_dir(tmp_path / "state")


@as_root
def test_a_directory_of_another_user_is_refused(tmp_path: Path) -> None:
    (tmp_path / "state").mkdir(0o700)
    os.chown(tmp_path / "state", NOBODY, NOBODY)
    with pytest.raises(UnsafeDirectoryError, match="belongs to user 65534"):
        make_private_dir(tmp_path / "state")


@as_root
def test_a_link_of_another_user_is_refused_and_an_own_one_followed(tmp_path: Path) -> None:
    (tmp_path / "real").mkdir(0o700)
    link = tmp_path / "link"
    link.symlink_to(tmp_path / "real")
    make_private_dir(link)
    os.chown(link, NOBODY, NOBODY, follow_symlinks=False)
    with pytest.raises(UnsafeDirectoryError, match="belongs to user 65534"):
        make_private_dir(link)


def test_a_file_in_place_of_the_directory_is_an_error(tmp_path: Path) -> None:
    (tmp_path / "file").touch()
    with pytest.raises(OSError, match="directory"):
        make_private_dir(tmp_path / "file")
    with pytest.raises(OSError, match="directory"):
        make_private_dir(tmp_path / "file" / "below")


def test_a_new_file_is_for_its_owner_alone(tmp_path: Path) -> None:
    former = os.umask(0)
    try:
        os.close(open_private(tmp_path / "file", os.O_RDWR | os.O_CREAT))
    finally:
        os.umask(former)
    assert mode(tmp_path / "file") == 0o600


def test_links_and_pipes_are_not_opened(tmp_path: Path) -> None:
    (tmp_path / "real").touch()
    (tmp_path / "link").symlink_to(tmp_path / "real")
    os.mkfifo(tmp_path / "pipe")
    (tmp_path / "one name").touch()
    os.link(tmp_path / "one name", tmp_path / "another")
    for name in ("link", "pipe", "another"):
        with pytest.raises(OSError, match=name):
            open_private(tmp_path / name, os.O_RDONLY)


@as_root
def test_a_file_of_another_user_is_not_opened(tmp_path: Path) -> None:
    (tmp_path / "file").touch()
    os.chown(tmp_path / "file", NOBODY, NOBODY)
    with pytest.raises(PermissionError, match="belongs to user 65534"):
        open_private(tmp_path / "file", os.O_RDONLY)


@pytest.mark.usefixtures("umask")
def test_a_file_for_a_library_is_for_its_owner_alone(tmp_path: Path) -> None:
    (tmp_path / "old").touch(0o666)
    (tmp_path / "old").chmod(0o666)
    for name in ("old", "made/new"):
        make_private_file(tmp_path / name)
        assert mode(tmp_path / name) & 0o077 == 0
    assert mode(tmp_path / "made") == 0o700


@as_root
def test_a_file_or_link_of_another_user_is_refused_for_a_library(tmp_path: Path) -> None:
    (tmp_path / "real").touch(0o600)
    (tmp_path / "link").symlink_to(tmp_path / "real")
    make_private_file(tmp_path / "link")
    for name in ("real", "link"):
        os.chown(tmp_path / name, NOBODY, NOBODY, follow_symlinks=False)
        with pytest.raises(PermissionError, match="belongs to user 65534"):
            make_private_file(tmp_path / name)
