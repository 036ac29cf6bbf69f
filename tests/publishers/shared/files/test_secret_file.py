"""Secrets: where they come from, what is said where they are missing, and that nothing shows them."""

import copy
import json
import logging
import os
from collections.abc import Callable
from html import escape
from pathlib import Path
from urllib.parse import quote, quote_plus, urlencode

import pytest
from hypothesis import assume, given
from hypothesis import strategies as st

from publishers.shared.files.secret_file import Secret, read_secret, read_secret_file

WORD = 's3cr3t/+ "&é'


def written(folder: Path, content: bytes) -> str:
    path = folder / "token"
    path.write_bytes(content)
    return str(path)


@pytest.mark.parametrize("show", [str, repr, "{}".format, "{0!r:>20}".format, "%s".__mod__])
def test_nothing_shows_it(show: Callable[[Secret], str]) -> None:
    assert WORD not in show(Secret(WORD))


def test_a_log_does_not_show_it(caplog: pytest.LogCaptureFixture) -> None:
    logging.getLogger("a").warning("asked with %s, %r", Secret(WORD), [Secret(WORD)])
    assert WORD not in caplog.text
    assert "asked with …, [Secret(…)]" in caplog.text


def test_reveal_returns_it() -> None:
    assert Secret(WORD).reveal() == copy.copy(Secret(WORD)).reveal() == WORD


@pytest.mark.parametrize(
    "form",
    [
        WORD,
        quote(WORD, safe=""),
        quote(WORD),
        quote_plus(WORD),
        urlencode({"t": WORD}),
        json.dumps([WORD]),
        escape(WORD),
        "https:\\/\\/a\\/" + WORD.replace("/", "\\/"),
    ],
)
def test_every_encoded_form_is_masked(form: str) -> None:
    masked = Secret(WORD).masked(f"you sent {form} and {form}")
    assert "s3cr3t" not in masked
    assert masked.count("…") == 2
    assert masked.startswith("you sent ")


@given(st.text(min_size=1), st.text(), st.text())
def test_no_masked_text_contains_it(word: str, before: str, after: str) -> None:
    assume("…" not in word)
    assert word not in Secret(word).masked(before + word + after)


def test_an_empty_secret_masks_nothing() -> None:
    assert Secret("").masked("as it is") == "as it is"


def test_it_is_read_from_a_file_without_the_end_of_the_line(tmp_path: Path) -> None:
    file = written(tmp_path, b"  tok-en\r\n\n")
    assert read_secret(key="token", file=file, variable="T", environment={"T": "another"}).reveal() == "tok-en"


def test_it_is_read_from_a_variable_without_a_file(monkeypatch: pytest.MonkeyPatch) -> None:
    assert read_secret(key="token", file="", variable="T", environment={"T": " abc "}).reveal() == "abc"
    monkeypatch.setenv("GRIDCHASE_TEST_TOKEN", "of the process")
    assert read_secret(key="token", file="", variable="GRIDCHASE_TEST_TOKEN").reveal() == "of the process"


@pytest.mark.parametrize(
    ("content", "fault"),
    [
        (b"", "holds no token"),
        (b" \n", "holds no token"),
        (b"one\ntwo\n", "holds more than a token: must be one line"),
        (b"with\tTab", "must be one line"),
        (b"\xff\xfe\x00", "is not UTF-8 text"),
    ],
)
def test_a_file_with_other_content_is_named_but_not_shown(tmp_path: Path, content: bytes, fault: str) -> None:
    file = written(tmp_path, content)
    with pytest.raises(ValueError, match=fault) as caught:
        read_secret(key="token", file=file, variable="T", environment={"T": "the file counts"})
    assert str(caught.value).startswith(f"token_file = {file!r}: ")
    assert "one\n" not in str(caught.value)


def test_a_file_without_an_end_is_refused() -> None:
    with pytest.raises(ValueError, match="token_file = '/dev/zero': is longer than 1,048,576 characters"):
        read_secret(key="token", file="/dev/zero", variable="T", environment={})


def test_a_file_that_is_not_there_is_named(tmp_path: Path) -> None:
    with pytest.raises(ValueError, match=r"password_file = .*nowhere': No such file or directory"):
        read_secret(key="password", file=str(tmp_path / "nowhere"), variable="P", environment={})
    with pytest.raises(ValueError, match="Is a directory"):
        read_secret(key="password", file=str(tmp_path), variable="P", environment={})


@pytest.mark.parametrize("variable", ["", "s3cr3t-t0ken", "eyJhbGciOi"])
def test_a_secret_in_place_of_a_variable_name_is_not_repeated(variable: str) -> None:
    with pytest.raises(
        ValueError, match=r"^token_file is not set, and the variable that token_env names: holds no token$"
    ):
        read_secret(key="token", file="", variable=variable, environment={})


@pytest.mark.parametrize("environment", [{}, {"T": ""}, {"T": "  "}])
def test_a_variable_that_is_not_set_is_named(environment: dict[str, str]) -> None:
    with pytest.raises(ValueError, match=r"^token_file is not set, and \$T: holds no token$"):
        read_secret(key="token", file="", variable="T", environment=environment)


@pytest.mark.parametrize(("mode", "is_told"), [(0o600, False), (0o640, False), (0o644, True), (0o604, True)])
def test_a_secret_that_others_can_read_is_told_once(
    tmp_path: Path, caplog: pytest.LogCaptureFixture, mode: int, *, is_told: bool
) -> None:
    path = tmp_path / "pass word"
    path.write_text("s3cr3t")
    path.chmod(mode)
    for _ in range(3):
        assert read_secret_file("bus.password_file", str(path)) == "s3cr3t"
    assert len(caplog.messages) == is_told
    if is_told:
        assert caplog.messages[0].endswith(f"other users of this machine can read it: chmod 600 '{path}'")
    assert "s3cr3t" not in caplog.text


@pytest.mark.skipif(os.geteuid() != 0, reason="only root can give files away")
def test_a_secret_of_another_group_is_told(tmp_path: Path, caplog: pytest.LogCaptureFixture) -> None:
    path = tmp_path / "password"
    path.write_text("s3cr3t")
    path.chmod(0o640)
    os.chown(path, 0, 65_534)
    read_secret_file("bus.password_file", str(path))
    assert "chmod 600" in caplog.text
