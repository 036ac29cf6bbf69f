"""Bearer tokens in a file: who they belong to, and what happens when the file changes."""

import logging
import os
from pathlib import Path

import pytest

from publishers.shared.http.write_access import OPERATOR, Writer, WriteTokens
from publishers.shared.log_once import LogLimiter

ANYBODY = Writer(OPERATOR, None)


@pytest.fixture
def file(tmp_path: Path) -> Path:
    path = tmp_path / "tokens"
    path.touch(0o600)
    return path


def test_a_line_is_a_token_of_an_operator_or_a_user(file: Path) -> None:
    file.write_text("# who may write\n\nplain+/token==\nada: 0123-abc \nci/night:xyz\n")
    tokens = WriteTokens(file)
    owners = [tokens.owner_of(token) for token in ("plain+/token==", "0123-abc", "xyz")]
    assert owners == [ANYBODY, Writer("ada", "ada"), Writer("ci/night", "ci/night")]


@pytest.mark.parametrize("token", ["", "# who may write", "ada", "ada:0123", "0123 ", "012", "01234", "\udcff"])
def test_nothing_else_is_a_token(file: Path, token: str) -> None:
    file.write_text("# who may write\nada:0123\n")
    assert WriteTokens(file).owner_of(token) is None


def test_a_line_that_is_no_token_is_told_by_its_number_and_never_shown(
    file: Path, caplog: pytest.LogCaptureFixture
) -> None:
    file.write_text("good\nsecret with spaces\nada:\n :secret\n")
    tokens = WriteTokens(file)
    assert (tokens.owner_of("good"), tokens.owner_of("secret")) == (ANYBODY, None)
    assert [record.message.split(": not a token")[0] for record in caplog.records] == [
        f"{file}, line 2",
        f"{file}, line 3",
        f"{file}, line 4",
    ]
    assert "secret" not in caplog.text


def test_few_lines_that_are_no_tokens_are_told_however_many_there_are(
    file: Path, caplog: pytest.LogCaptureFixture
) -> None:
    file.write_text("no token\n" * 1_000)
    tokens = WriteTokens(file)
    for n_lines in range(1, 20):
        file.write_text("no token\n" * n_lines + "good\n")
        assert tokens.owner_of("good") == ANYBODY
    n_told = sum("not a token" in record.message for record in caplog.records)
    assert 0 < n_told <= LogLimiter.MAX_LINES


def test_the_file_is_read_again_when_it_changes(file: Path) -> None:
    file.write_text("first\n")
    tokens = WriteTokens(file)
    file.write_text("second\n")
    os.utime(file, ns=(1, 1))
    assert [tokens.owner_of(token) for token in ("first", "second")] == [None, ANYBODY]
    other = file.with_name("other")
    other.write_text("third.\n")
    os.utime(other, ns=(1, 1))
    other.replace(file)
    assert [tokens.owner_of(token) for token in ("second", "third.")] == [None, ANYBODY]


def test_a_file_that_cannot_be_read_holds_no_token_and_that_is_told_once(
    file: Path, caplog: pytest.LogCaptureFixture
) -> None:
    caplog.set_level(logging.INFO)
    file.write_text("first\n")
    tokens = WriteTokens(file)
    file.unlink()
    assert [tokens.owner_of("first") for _ in range(3)] == [None] * 3
    assert tokens.fault == f"no token for writes over HTTP: {file}: No such file or directory"
    file.touch(0o600)
    file.write_text("first\n")
    assert (tokens.owner_of("first"), tokens.fault) == (ANYBODY, "")
    assert [record.levelname for record in caplog.records] == ["ERROR", "INFO"]


@pytest.mark.parametrize(
    ("content", "fault"), [(b"", "{}: holds no token"), (b"\xff\xfe", "http.token_file = '{}': is not UTF-8 text")]
)
def test_a_file_without_tokens_is_told(file: Path, content: bytes, fault: str) -> None:
    file.write_bytes(content)
    assert WriteTokens(file).fault == f"no token for writes over HTTP: {fault.format(file)}"


@pytest.mark.parametrize(("mode", "n_warnings"), [(0o600, 0), (0o640, 0), (0o604, 1)])
def test_a_file_that_everybody_can_read_is_told_once(
    file: Path, mode: int, n_warnings: int, caplog: pytest.LogCaptureFixture
) -> None:
    file.write_text("first\n")
    file.chmod(mode)
    tokens = WriteTokens(file)
    tokens.owner_of("first")
    assert [record.message for record in caplog.records] == [
        f"http.token_file = {str(file)!r}: other users of this machine can read it: chmod 600 {file}"
    ] * n_warnings
