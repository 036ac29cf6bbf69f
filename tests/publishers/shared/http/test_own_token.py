"""The service's own token: made once, kept private, and never taken from a file that others could have written."""

import logging
import os
import pwd
import stat
from collections.abc import Callable
from pathlib import Path
from types import SimpleNamespace
from typing import TYPE_CHECKING, cast

import pytest
from multidict import CIMultiDict

from publishers.shared.http.own_token import make_token, read_token, readers_of
from publishers.shared.http.problems import ProblemError
from publishers.shared.http.write_access import OWN, WriteAccess, Writer

if TYPE_CHECKING:
    from aiohttp import web


@pytest.fixture
def path(tmp_path: Path) -> Path:
    return tmp_path / "state" / "http.token"


@pytest.mark.parametrize("umask", [0o000, 0o022, 0o777])
def test_the_token_is_random_and_only_its_user_can_read_it(path: Path, umask: int) -> None:
    before = os.umask(umask)
    try:
        path.parent.mkdir(mode=0o700)
        path.parent.chmod(0o700)
        make_token(path)
    finally:
        os.umask(before)
    assert stat.S_IMODE(path.stat().st_mode) == 0o600
    assert len(read_token(path)) == 43, "32 bytes"
    other = path.with_name("other")
    make_token(other)
    assert read_token(other) != read_token(path)


def test_the_directory_is_made_private(path: Path) -> None:
    make_token(path)
    assert stat.S_IMODE(path.parent.stat().st_mode) == 0o700


def test_the_token_stays_over_restarts_and_an_empty_file_is_filled(path: Path) -> None:
    make_token(path)
    token = read_token(path)
    make_token(path)
    assert read_token(path) == token
    path.write_text("")
    make_token(path)
    assert read_token(path) not in {"", token}


def _link(path: Path) -> None:
    path.symlink_to(path.with_name("elsewhere"))


def _second_name(path: Path) -> None:
    path.with_name("elsewhere").write_text("planted\n")
    os.link(path.with_name("elsewhere"), path)


def _writable(path: Path) -> None:
    path.write_text("planted\n")
    path.chmod(0o620)


def _pipe(path: Path) -> None:
    os.mkfifo(path, 0o600)


def _foreign(path: Path) -> None:
    path.write_text("planted\n")
    try:
        os.chown(path, 65_534, -1)
    except PermissionError:
        pytest.skip("only root can give a file away")


@pytest.mark.parametrize("plant", [_link, _second_name, _writable, _pipe, _foreign])
async def test_a_planted_file_is_neither_written_nor_believed(
    path: Path, plant: Callable[[Path], None], caplog: pytest.LogCaptureFixture
) -> None:
    path.parent.mkdir()
    plant(path)
    access = WriteAccess(path, None)
    assert [record.levelno for record in caplog.records] == [logging.ERROR]
    assert caplog.records[0].getMessage().startswith(f"no token for writes over HTTP: {path}: ")
    assert access._owner_of("planted") is None
    assert not path.with_name("elsewhere").exists() or path.with_name("elsewhere").read_text() == "planted\n"


def test_a_token_that_is_there_is_used_where_nothing_can_be_written(path: Path) -> None:
    make_token(path)
    path.chmod(0o400)
    path.parent.chmod(0o500)
    assert WriteAccess(path, None)._owner_of(read_token(path)) == Writer(OWN, None)


def test_who_may_read_a_file_is_told(path: Path) -> None:
    user = f"user {pwd.getpwuid(os.geteuid()).pw_name}"
    assert readers_of(path) == user, "whoever has the directory will have the file"
    make_token(path)
    assert readers_of(path) == user
    path.chmod(0o640)
    assert readers_of(path).startswith(f"{user} and group ")
    path.chmod(0o644)
    assert readers_of(path) == "every user"


@pytest.mark.parametrize(("remote", "is_told"), [("127.0.0.1", True), ("::1", True), ("10.0.0.1", False)])
async def test_paths_of_this_machine_are_told_on_this_machine_alone(path: Path, remote: str, is_told: bool) -> None:
    request = SimpleNamespace(method="POST", headers=CIMultiDict[str](), remote=remote)
    with pytest.raises(ProblemError) as caught:
        await WriteAccess(path, None).authenticate(cast("web.Request", request))
    assert (str(path) in caught.value.problem.detail) is is_told
