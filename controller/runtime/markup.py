r"""Markup for HTML and SVG: the one place where text becomes markup.

Only `Markup` is content of an element, and plain text becomes `Markup` by `escaped` alone. What moves a cursor or the
direction of a line (control characters, bidirectional overrides, lone surrogates) is written as in a Python literal.

>>> element("td", escaped('<script>"\u202e'), class_="name")
'<td class="name">&lt;script&gt;&quot;\\u202e</td>'
"""

import re
from collections.abc import Iterable
from html import escape
from typing import Final, NewType

from publishers.shared.printable import printable

Markup = NewType("Markup", str)
"""HTML or SVG."""
NOTHING: Final = Markup("")
NO_BREAK: Final = "\u00a0"
"""A space before a unit, at which no line breaks."""
_SPACES: Final = re.compile("([\u00a0\u202f\n])")
"""Spaces that pages use and terminals do not: no-break, between thousands, new line."""
_VOID: Final = frozenset({"meta", "br", "link", "input"})


def escaped(text: str) -> Markup:
    """Return plain text, of whatever origin, as markup that shows it."""
    if text.isprintable():
        return Markup(escape(text))
    parts = _SPACES.split(text)
    return Markup("".join(part if _SPACES.fullmatch(part) else escape(printable(part)) for part in parts))


def element(name: str, /, *content: Markup, **attributes: str | None) -> Markup:
    """Return an element; attributes are plain text, None leaves one out; `aria_label` is aria-label."""
    given = "".join(
        f' {key.strip("_").replace("_", "-")}="{escaped(value)}"'
        for key, value in attributes.items()
        if value is not None
    )
    inner = "".join(content)
    if name in _VOID:
        return Markup(f"<{name}{given}>")
    return Markup(f"<{name}{given}>{inner}</{name}>")


def joined(parts: Iterable[Markup], between: str = "") -> Markup:
    """Return parts one after the other; `between` is plain text."""
    return Markup(escaped(between).join(parts))
