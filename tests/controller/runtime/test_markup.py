"""Text of whatever origin is shown as text: never as markup, and never as what moves a cursor or turns a line."""

from html.parser import HTMLParser

import pytest

from controller.runtime.markup import element, escaped, joined

HOSTILE = [
    "<script>alert(1)</script>",
    "\"'><img src=x onerror=alert(1)>",
    "a\x00\x1b[2J\x07b",
    "\u202egnp.exe\u2066\u200f",
    "\ud800lone",
    "&lt;b&gt;",
    "]]>--><!--",
]


class Reader(HTMLParser):
    """Reads markup as a browser would: its elements, attributes and text."""

    def __init__(self, markup: str) -> None:
        super().__init__()
        self.elements: list[tuple[str, dict[str, str | None]]] = []
        self.text = ""
        self.feed(markup)
        self.close()

    def handle_starttag(self, tag: str, attrs: list[tuple[str, str | None]]) -> None:
        """Note an element."""
        self.elements.append((tag, dict(attrs)))

    def handle_data(self, data: str) -> None:
        """Note a text."""
        self.text += data


@pytest.mark.parametrize("text", HOSTILE)
def test_hostile_text_is_shown_and_nothing_else(text: str) -> None:
    page = Reader(element("p", escaped(text), title=text))
    ((name, attributes),) = page.elements
    assert name == "p"
    assert attributes == {"title": page.text}
    assert page.text.isprintable()
    assert page.text.encode()


def test_text_that_is_harmless_is_shown_as_it_is() -> None:
    text = "température ≤ 80\u00a0°C, 12\u202f345 電力, אבג"
    assert Reader(escaped(text)).text == text


def test_attributes_are_named_as_in_html_and_none_are_left_out() -> None:
    assert element("svg", class_="plot", aria_label="a", height=None) == '<svg class="plot" aria-label="a"></svg>'
    assert element("meta", charset="utf-8") == '<meta charset="utf-8">'


def test_what_is_between_parts_is_text() -> None:
    assert joined([escaped("a"), escaped("b")], "<") == "a&lt;b"
