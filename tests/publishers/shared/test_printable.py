"""Text from outside loses all that a terminal would obey, and nothing that a person would read."""

import pytest
from hypothesis import given
from hypothesis import strategies as st

from publishers.shared.printable import printable, printable_line


@pytest.mark.parametrize(
    ("text", "shown"),
    [
        ("\x1b[2J\x1b]0;title\x07", r"\x1b[2J\x1b]0;title\x07"),
        ("a\r\nb\tc\0", r"a\r\nb\tc\x00"),
        ("\x9b31m\x85\x7f", r"\x9b31m\x85\x7f"),
        ("abc\u202edef\u2066\u200f", r"abc\u202edef\u2066\u200f"),
        ("\u2028\u2029\ufeff\u200b", r"\u2028\u2029\ufeff\u200b"),
        ("\ud800", r"\ud800"),
        ("\U000e0041", r"\U000e0041"),
    ],
)
def test_what_a_terminal_would_obey_is_escaped(text: str, shown: str) -> None:
    assert printable(text) == shown


@pytest.mark.parametrize("text", ["", "resnet50", "η·energy ≤ 3 °C · 電力 “é”", r"C:\path\n", "👍"])
def test_what_a_person_reads_stays(text: str) -> None:
    assert printable(text) == text


@given(st.text())
def test_every_text_becomes_printable_and_can_be_written(text: str) -> None:
    assert printable(text).isprintable()
    assert printable(text).encode().decode() == printable(text)
    assert printable(printable(text)) == printable(text)


def test_a_line_is_cut_and_says_how_long_it_was() -> None:
    assert printable_line("abc\n", max_characters=4) == r"abc\n"
    assert printable_line("a" * 5_000, max_characters=4) == "aaaa … (5,000 characters)"
