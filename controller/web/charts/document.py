"""Pages of one file that load nothing else, have no script, and print."""

from collections.abc import Iterable, Sequence
from typing import Final

from controller.web.charts.markup import NO_BREAK, Markup, element, escaped, joined
from controller.web.charts.style import CHARTS, COLOURS, DOCUMENT, FIGURES

_ONE_LINE: Final = 20
"""A cell with at most so many letters that is no name is on one line."""


def render_document(title: str, parts: Iterable[Markup]) -> str:
    """Return a page, HTML; the title is plain text."""
    head = element(
        "head",
        element("meta", charset="utf-8"),
        element("meta", name="viewport", content="width=device-width, initial-scale=1"),
        element("title", escaped(title)),
        element("style", Markup(f"{COLOURS}{CHARTS}{FIGURES}{DOCUMENT}")),
    )
    body = element("body", element("main", joined(parts, "\n")))
    return f"<!DOCTYPE html>\n{element('html', head, body, lang='en')}\n"


def render_table(
    headings: Sequence[str],
    rows: Iterable[Sequence[str]],
    *,
    row_classes: Iterable[str] = (),
    n_names: int = 1,
    last_is_text: bool = False,
) -> Markup:
    """Return a table, HTML.

    Args:
        headings: plain text, as the cells.
        rows: the cells of each.
        row_classes: the class of each row; none: no classes.
        n_names: how many columns, from the left, are names: text, not numbers.
        last_is_text: whether the last column is text, too.
    """
    are_names = [place < n_names or (last_is_text and place == len(headings) - 1) for place in range(len(headings))]
    kinds = ["name" if is_name else None for is_name in are_names]
    head = element(
        "tr",
        *(element("th", escaped(text), class_=kind, scope="col") for text, kind in zip(headings, kinds, strict=True)),
    )
    classes = iter(row_classes)
    body = (
        element(
            "tr",
            *(
                element("td", escaped(_unbroken(cell, kind)), class_=kind, data_label=heading or None)
                for cell, kind, heading in zip(row, kinds, headings, strict=True)
            ),
            class_=next(classes, "") or None,
        )
        for row in rows
    )
    table = element("table", element("thead", head), element("tbody", *body))
    return element("div", table, class_="scroll")


def _unbroken(cell: str, kind: str | None) -> str:
    return cell.replace(" ", NO_BREAK) if kind is None and len(cell) <= _ONE_LINE else cell
