"""Client ids: random, kept in the state directory, for nobody else to read."""

import os
import re
import stat
from pathlib import Path

import pytest

from publishers.mqtt.client_id import FILE, new_client_id, stored_client_id


def test_an_id_is_random_and_of_a_kind_that_every_broker_accepts() -> None:
    ids = {new_client_id() for _ in range(100)}
    assert len(ids) == 100
    assert all(re.fullmatch(r"gc-[0-9a-f]{20}", each) for each in ids)


def test_the_id_of_a_state_directory_stays_and_is_private(tmp_path: Path) -> None:
    former = os.umask(0)
    try:
        first = stored_client_id(tmp_path)
    finally:
        os.umask(former)
    assert stored_client_id(tmp_path) == first
    assert stat.S_IMODE((tmp_path / FILE).stat().st_mode) == 0o600


def test_two_state_directories_have_two_ids(tmp_path: Path) -> None:
    for name in ("a", "b"):
        (tmp_path / name).mkdir()
    assert stored_client_id(tmp_path / "a") != stored_client_id(tmp_path / "b")


@pytest.mark.parametrize("content", [b"", b"gc-", b"gc-0123456789abcdef012X\n", b"node-a", b"\xff" * 1_000_000])
def test_a_file_that_holds_no_id_is_replaced(tmp_path: Path, content: bytes) -> None:
    (tmp_path / FILE).write_bytes(content)
    first = stored_client_id(tmp_path)
    assert re.fullmatch(r"gc-[0-9a-f]{20}", first)
    assert stored_client_id(tmp_path) == first


def test_a_planted_link_is_neither_read_nor_written_through(tmp_path: Path) -> None:
    target = tmp_path / "target"
    target.write_text("gc-00000000000000000000\n")
    (tmp_path / FILE).symlink_to(target)
    assert stored_client_id(tmp_path) != "gc-00000000000000000000"
    assert target.read_text() == "gc-00000000000000000000\n"
    assert not (tmp_path / FILE).is_symlink()


def test_without_a_place_to_keep_it_the_id_is_random_and_it_is_said(
    tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    nowhere = tmp_path / "missing"
    assert stored_client_id(nowhere) != stored_client_id(nowhere)
    assert "the client id is not kept" in caplog.text
