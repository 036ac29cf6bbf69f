r"""Text from outside as text that a log or a terminal can show: it moves no cursor, and forges no lines.

Names, reasons and errors come from the bus, HTTP, files, drivers and the environment. Control characters (C0, C1,
DEL), line and paragraph separators, bidirectional overrides, invisible characters and lone surrogates are written as
Python writes them in a literal.

>>> print(printable("resnet\x1b[2J\n2026-11-22 INFO forged \u202e"))
resnet\x1b[2J\n2026-11-22 INFO forged \u202e
>>> printable("température ≤ 80 °C, 電力")
'température ≤ 80 °C, 電力'
"""

import re
from typing import Final

_NOT_ASCII_TEXT: Final = re.compile(r"[^\x20-\x7e]")


def printable(text: str) -> str:
    """Return a text in which every character that is not printable is escaped."""
    return text if text.isprintable() else _NOT_ASCII_TEXT.sub(_escaped, text)


def printable_line(text: str, *, max_characters: int) -> str:
    """Return a text as one line of bounded length, which says how much is left out."""
    if len(text) <= max_characters:
        return printable(text)
    return f"{printable(text[:max_characters])} … ({len(text):,} characters)"


def _escaped(match: re.Match[str]) -> str:
    character = match[0]
    return character if character.isprintable() else repr(character)[1:-1]
